//! Mounted filesystems that grow: what they have then, what is refused, and other threads meanwhile.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::sim::{CrashOptions, Effect, Fault, FaultDevice, Recorder, When};
use platter_block::{MemoryDevice, Operation};
use platter_ondisk::Uuid;
use platter_vfs::devices::{NewLength, Resized};
use platter_vfs::inode::CreateKind;
use platter_vfs::{Context, Error, FixedClock, Inode, Timestamp};

use super::tests::{assert_sound, budget, clock, create, mount, name};
use super::*;
use crate::change::{Change, Cost};
use crate::mkfs::{MkfsOptions, Target, mkfs};
use crate::ondisk::superblock::set_size;
use crate::ondisk::{AgNr, DiskSuperblock, FsSize};

const MIB: u64 = 1 << 20;
/// Two groups.
const LEN: u64 = 32 * MIB;
const AG_BYTES: u64 = 16 * MIB;
const BLOCK: u64 = 4096;

fn len_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

/// A filesystem at the start of a longer device.
fn device(features: &[(&str, bool)]) -> Arc<dyn BlockDevice> {
    let mut options = MkfsOptions::new(Uuid::from_bytes([7; 16]));
    options.unsupported = true;
    options.ag_bytes = Some(AG_BYTES);
    for (feature, on) in features {
        options.set_feature(feature, *on).unwrap();
    }
    longer_device(&options, LEN, 100 * MIB)
}

/// A filesystem of `len` bytes on a device of `device_len`.
fn longer_device(options: &MkfsOptions, len: u64, device_len: u64) -> Arc<dyn BlockDevice> {
    let short = MemoryDevice::new("memory", vec![0; len_of(len)]);
    let target = Target {
        device: &short,
        log: None,
        is_zero: true,
    };
    mkfs(&target, options, &FixedClock::new(Timestamp::default(), 1)).unwrap();
    let mut bytes = short.snapshot();
    // What was there before.
    bytes.resize(len_of(device_len), 0xa5);
    Arc::new(MemoryDevice::new("memory", bytes))
}

fn resize(xfs: &Xfs, length: NewLength) -> Result<Resized> {
    let devices = xfs.devices().unwrap();
    devices.resize_device(None, length, &mut |_, _| ControlFlow::Continue(()))
}

fn grow(xfs: &Xfs, bytes: u64) -> u64 {
    resize(xfs, NewLength::Bytes(bytes)).unwrap().after_bytes
}

/// The copies of the superblock of a filesystem that is not mounted say its size, and so do the headers of its groups.
fn assert_consistent(device: &Arc<dyn BlockDevice>) -> Superblock {
    let primary = superblock::read(&**device).unwrap();
    let geometry = Geometry::new(&primary);
    let size = |it: &Superblock| (it.ag_count, it.data_blocks);
    for ag in geometry.groups().skip(1) {
        let mut sector = vec![0; 512];
        device.read_at(geometry.ag_offset(ag), &mut sector).unwrap();
        let locus = platter_ondisk::Locus::group(ag.0.into());
        let copy = Superblock::decode_backup(&sector, locus).unwrap();
        assert_eq!(size(&copy), size(&primary), "{ag:?}");
    }
    let mut counted = primary.clone();
    Counters::read(&**device, &geometry)
        .unwrap()
        .set(&mut counted);
    assert_eq!(counted, primary);
    primary
}

fn write_file(parent: &dyn Inode, text: &str, len: usize) -> Arc<dyn Inode> {
    let file = create(parent, text, CreateKind::Regular).unwrap();
    file.write_at(0, &vec![7; len]).unwrap();
    file
}

#[test]
fn mounted_filesystem_gets_longer_in_steps() {
    for features in [&[][..], &[("rmapbt", true)], &[("reflink", false)]] {
        let device = device(features);
        let xfs = mount(&device);
        let root = xfs.root().unwrap();
        write_file(&*root, "before", 1 << 20).sync(false).unwrap();
        let mut free = xfs.stat_fs().unwrap().blocks_free;
        let mut seen = Vec::new();
        for mib in [44, 48, 56, 100] {
            assert_eq!(grow(&xfs, mib * MIB), mib * MIB);
            let found = xfs.stat_fs().unwrap();
            assert!(found.blocks_free > free, "{mib}: {found:?}");
            free = found.blocks_free;
            let file = write_file(&*root, &format!("at {mib}"), 1 << 20);
            file.sync(false).unwrap();
            seen.push(xfs.context().geometry().ag_count());
        }
        assert_eq!(seen, [3, 3, 4, 7]);
        // More than the filesystem had.
        write_file(&*root, "large", 50 << 20).sync(false).unwrap();
        drop(root);
        let kept = xfs.stat_fs().unwrap();
        xfs.unmount().unwrap();
        drop(xfs);
        let primary = assert_consistent(&device);
        assert_eq!(
            (primary.ag_count, primary.data_blocks),
            (7, 100 * MIB / BLOCK)
        );
        let xfs = mount(&device);
        let found = xfs.stat_fs().unwrap();
        // The reserve pool depends on the size that a mount begins with.
        let missing = kept.blocks_free.abs_diff(found.blocks_free);
        assert!(missing <= 100 * MIB / BLOCK / 20, "{missing}");
        let root = xfs.root().unwrap();
        let large = root.lookup(name("large")).unwrap();
        let mut bytes = vec![0; 50 << 20];
        large.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 7));
        drop((large, root));
        xfs.unmount().unwrap();
    }
}

/// The headers of the last group are logged whole, as they have another length afterwards.
#[test]
fn last_group_with_large_sectors_gets_another_length_offline() {
    let mut options = MkfsOptions::new(Uuid::from_bytes([7; 16]));
    options.sector_bytes = Some(4096);
    options.ag_bytes = Some(80 * MIB);
    let device = longer_device(&options, 300 * MIB, 320 * MIB);
    let clock: Arc<dyn Clock> = clock();
    for mib in [310, 305] {
        let resized = crate::resize::resize(&device, mib * MIB, &budget(), &clock).unwrap();
        assert_eq!(resized.after_bytes, mib * MIB);
        let xfs = mount(&device);
        assert_eq!(xfs.context().geometry().len_bytes(), mib * MIB);
        xfs.unmount().unwrap();
    }
}

#[test]
fn last_group_of_too_few_blocks_is_left_out() {
    let device = device(&[]);
    let xfs = mount(&device);
    let groups = 3 * AG_BYTES;
    assert_eq!(grow(&xfs, groups + 63 * BLOCK), groups);
    let resized = resize(&xfs, NewLength::Larger(63 * BLOCK)).unwrap();
    assert_eq!(
        (resized.before_bytes, resized.after_bytes),
        (groups, groups)
    );
    assert_eq!(grow(&xfs, groups + 64 * BLOCK), groups + 64 * BLOCK);
    let whole = resize(&xfs, NewLength::Whole).unwrap();
    assert_eq!(whole.after_bytes, 100 * MIB);
    xfs.unmount().unwrap();
    drop(xfs);
    assert_consistent(&device);
}

#[test]
fn growth_is_refused_without_a_change() {
    let device = device(&[]);
    let refused = |xfs: &Xfs, length| {
        let error = resize(xfs, length).unwrap_err();
        assert_eq!(xfs.context().geometry().len_bytes(), LEN);
        error
    };
    let xfs = mount(&device);
    let beyond = refused(&xfs, NewLength::Bytes(100 * MIB + 1));
    assert!(matches!(beyond, Error::Condition(Condition::NoSpace)));
    let absurd = refused(&xfs, NewLength::Larger(u64::MAX));
    assert!(
        matches!(absurd, Error::Condition(Condition::NoSpace)),
        "{absurd}"
    );
    let shorter = refused(&xfs, NewLength::Bytes(LEN - 1));
    assert!(shorter.to_string().contains("shorter"), "{shorter}");
    let devices = xfs.devices().unwrap();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let other = devices.resize_device(Some(2), NewLength::Whole, go_on);
    assert!(matches!(
        other,
        Err(Error::Condition(Condition::NotSupported))
    ));
    let broken_off = &mut |_, _| ControlFlow::Break(());
    let cancelled = devices.resize_device(None, NewLength::Whole, broken_off);
    let cancelled = cancelled.unwrap();
    assert!(cancelled.moved.is_cancelled && cancelled.after_bytes == LEN);
    xfs.unmount().unwrap();
    let ended = refused(&xfs, NewLength::Whole);
    assert!(matches!(ended, Error::Condition(Condition::ReadOnly)));
    drop(xfs);
    let xfs = Xfs::mount(Arc::clone(&device), &MountOptions::default(), budget()).unwrap();
    let read_only = refused(&xfs, NewLength::Whole);
    assert!(matches!(read_only, Error::Condition(Condition::ReadOnly)));
    drop(xfs);
    assert_consistent(&device);
}

#[test]
fn full_filesystem_takes_writes_once_it_grew() {
    let device = device(&[("rmapbt", true)]);
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let file = create(&*root, "full", CreateKind::Regular).unwrap();
    let piece = vec![7; 1 << 16];
    let mut at = 0;
    while file.write_at(at, &piece).is_ok() {
        at += piece.len() as u64;
    }
    file.sync(false).unwrap();
    grow(&xfs, 100 * MIB);
    for _ in 0..200 {
        file.write_at(at, &piece).unwrap();
        at += piece.len() as u64;
    }
    file.sync(false).unwrap();
    drop((file, root));
    xfs.unmount().unwrap();
    drop(xfs);
    assert_consistent(&device);
}

#[test]
fn files_are_changed_while_the_filesystem_grows() {
    let device = device(&[("rmapbt", true)]);
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let has_grown = AtomicBool::new(false);
    let work = |thread: u32| {
        let dir = create(&*root, &format!("dir{thread}"), CreateKind::Directory).unwrap();
        let mut round = 0;
        while !has_grown.load(Ordering::Relaxed) || round < 20 {
            let text = format!("file{}", round % 7);
            if dir.lookup(name(&text)).is_ok() {
                dir.unlink(&Context::root(), name(&text)).unwrap();
            }
            let file = write_file(&*dir, &text, 200_000);
            if round % 3 == 0 {
                file.sync(false).unwrap();
            }
            drop(xfs.describe());
            xfs.stat_fs().unwrap();
            round += 1;
        }
    };
    thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || work(thread)));
        let mut steps = (1..=68).map(|step| LEN + step * MIB);
        let grown = steps.try_for_each(|len| resize(&xfs, NewLength::Bytes(len)).map(drop));
        has_grown.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
        grown.unwrap();
    });
    drop(root);
    xfs.unmount().unwrap();
    drop(xfs);
    assert_eq!(assert_consistent(&device).data_blocks, 100 * MIB / BLOCK);
}

#[test]
fn growth_waits_for_the_thaw() {
    let device = device(&[]);
    let xfs = mount(&device);
    xfs.freeze().unwrap();
    thread::scope(|scope| {
        let growing = scope.spawn(|| resize(&xfs, NewLength::Whole));
        thread::sleep(Duration::from_millis(50));
        let frozen = xfs.context().geometry().len_bytes();
        xfs.thaw().unwrap();
        assert_eq!(frozen, LEN);
        assert_eq!(growing.join().unwrap().unwrap().after_bytes, 100 * MIB);
    });
    xfs.freeze().unwrap();
    thread::scope(|scope| {
        let growing = scope.spawn(|| resize(&xfs, NewLength::Whole));
        xfs.unmount().unwrap();
        // It ran before the unmount, or not at all.
        drop(growing.join().unwrap());
    });
    drop(xfs);
    assert_consistent(&device);
}

/// What a check finds.
#[test]
fn new_groups_have_features_that_were_switched_on() {
    let device = device(&[("inobtcount", false)]);
    let xfs = mount(&device);
    let name = "inobtcount".to_owned();
    xfs.tune(&[Tune::Feature { name, on: true }]).unwrap();
    grow(&xfs, 100 * MIB);
    create(&*xfs.root().unwrap(), "file", CreateKind::Regular).unwrap();
    xfs.unmount().unwrap();
    drop(xfs);
    assert!(assert_consistent(&device).features.has_inobtcount());
    assert_sound(&device, "grown");
}

#[test]
fn growth_that_is_cut_is_whole_or_absent() {
    let recorder = Recorder::new(vec![device(&[("rmapbt", true)])]);
    let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    write_file(&*root, "before", 100_000).sync(false).unwrap();
    let before = recorder.mark();
    // What the log has is not in its place.
    create(&*root, "dir", CreateKind::Directory).unwrap();
    grow(&xfs, 44 * MIB);
    create(&*root, "other", CreateKind::Directory).unwrap();
    grow(&xfs, 60 * MIB);
    let grown = recorder.mark();
    write_file(&*root, "after", 30 << 20).sync(false).unwrap();
    let after = recorder.mark();
    drop((root, xfs));
    let recording = recorder.recording();
    let options = CrashOptions {
        first_position: before,
        mixes_per_position: 1,
        subset_writes_max: 3,
        ..CrashOptions::default()
    };
    let mut lengths = std::collections::BTreeMap::new();
    for (state, number) in recording.crash_states(options).zip(0..) {
        let state = state.unwrap();
        let context = format!("state {number} at {}", state.position);
        let cut: Arc<dyn BlockDevice> = Arc::new(state.device().unwrap());
        let xfs = mount(&cut);
        let root = xfs.root().unwrap();
        root.lookup(name("before")).unwrap();
        if state.position >= after {
            root.lookup(name("after")).unwrap();
        }
        drop(root);
        xfs.unmount().unwrap();
        drop(xfs);
        let len = assert_consistent(&cut).data_blocks * BLOCK;
        assert!(
            len == 60 * MIB || state.position < grown,
            "{context}: {len}"
        );
        assert_sound(&cut, &context);
        *lengths.entry(len / MIB).or_insert(0) += 1;
    }
    assert_eq!(lengths.keys().copied().collect::<Vec<_>>(), [32, 44, 60]);
}

/// Leaves a checkpoint in the log that makes the superblock say another size.
fn log_size(device: &Arc<dyn BlockDevice>, size: FsSize) {
    let xfs = mount(device);
    let edit = |change: &mut Change<'_>| {
        change.groups.get(AgNr(0))?;
        let blocks = change.groups.blocks_mut();
        let mut sector = blocks.read(0, 512)?;
        set_size(&mut sector, size.data_blocks, size.ag_count);
        DiskSuperblock::seal(&mut sector);
        blocks.write(0, sector);
        Ok(())
    };
    let cost = Cost {
        bytes: 1024,
        ..Cost::default()
    };
    let context = xfs.context();
    context
        .change(&cost, || (), |change, ()| edit(change))
        .unwrap();
    context.log().unwrap().force_all().unwrap();
}

#[test]
fn log_that_outgrows_the_device_is_refused() {
    let device = device(&[]);
    let size = FsSize {
        ag_count: 7,
        data_blocks: 100 * MIB / BLOCK + 1,
    };
    log_size(&device, size);
    let read = Xfs::mount(Arc::clone(&device), &MountOptions::default(), budget());
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
    let options = MountOptions::default();
    let written = Xfs::mount_writable(Arc::clone(&device), &options, budget(), clock);
    for error in [read.unwrap_err(), written.unwrap_err()] {
        assert!(error.to_string().contains("smaller"), "{error}");
    }
}

/// Writes the size of before into the copies of the second and third group.
fn make_copies_stale(device: &dyn BlockDevice, geometry: &Geometry) {
    let mut sector = vec![0; 512];
    device.read_at(0, &mut sector).unwrap();
    set_size(&mut sector, LEN / BLOCK, 2);
    DiskSuperblock::seal(&mut sector);
    for ag in [1, 2] {
        device
            .write_at(geometry.ag_offset(AgNr(ag)), &sector)
            .unwrap();
    }
}

#[test]
fn stale_copies_are_renewed_and_refuse_no_mount() {
    let memory = device(&[]);
    let xfs = mount(&memory);
    grow(&xfs, 100 * MIB);
    xfs.unmount().unwrap();
    drop(xfs);
    let geometry = Geometry::new(&superblock::read(&*memory).unwrap());
    make_copies_stale(&*memory, &geometry);
    let at = geometry.ag_offset(AgNr(2));
    let faulty = Arc::new(FaultDevice::new(memory));
    faulty.arm(Fault {
        operation: Operation::Write,
        when: When::Touching(at..at + 512),
        effect: Effect::Tear { seed: 1 },
    });
    let device: Arc<dyn BlockDevice> = Arc::clone(&faulty) as _;
    mount(&device).unmount().unwrap();
    assert!(faulty.hits() > 0);
    faulty.disarm();
    mount(&device).unmount().unwrap();
    assert_consistent(&device);
}

#[test]
fn copies_of_another_size_are_renewed_after_a_crash() {
    let device = device(&[]);
    let xfs = mount(&device);
    create(&*xfs.root().unwrap(), "file", CreateKind::Regular).unwrap();
    grow(&xfs, 100 * MIB);
    xfs.sync().unwrap();
    drop(xfs);
    let geometry = Geometry::new(&superblock::read(&*device).unwrap());
    make_copies_stale(&*device, &geometry);
    // A corrupt one is left to a repair.
    let corrupt = geometry.ag_offset(AgNr(3)) + 110;
    device.write_at(corrupt, &[1]).unwrap();
    let xfs = mount(&device);
    assert_eq!(xfs.recovery().unwrap().position.state, LogState::Dirty);
    xfs.unmount().unwrap();
    drop(xfs);
    let mut byte = [0];
    device.read_at(corrupt, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    device.write_at(corrupt, &[0]).unwrap();
    assert_consistent(&device);
}
