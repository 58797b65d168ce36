//! Tuned filesystems: what the superblock, its copies and the log say then, and after a crash at any moment.

use std::ops::Range;

use platter_block::MemoryDevice;
use platter_block::sim::{CrashOptions, Recorder};
use platter_ondisk::{Locus, Rule, Uuid};
use platter_vfs::{Context, CreateKind};

use super::tests::{assert_sound, budget, clock, create, device_of, mount, name, new_device};
use super::*;
use crate::context::tests::broken_rule;
use crate::mkfs::{MkfsOptions, Target, mkfs};
use crate::ondisk::AgNr;
use crate::ondisk::log::RecordHeader;
use crate::txn::replay::ReplayRule;
use crate::txn::{LogDevice, find_position, set_last_uuid};

const LEN: u64 = 48 << 20;
const OLD: Uuid = Uuid::from_bytes([7; 16]);
const NEW: Uuid = Uuid::from_bytes([8; 16]);

/// What a filesystem of three groups is made with.
fn mkfs_options(uuid: Uuid) -> MkfsOptions {
    let mut options = MkfsOptions {
        unsupported: true,
        ag_bytes: Some(16 << 20),
        label: b"before".to_vec(),
        ..MkfsOptions::new(uuid)
    };
    for name in ["bigtime", "inobtcount"] {
        options.set_feature(name, false).unwrap();
    }
    options
}

fn zeros(len: u64) -> Arc<dyn BlockDevice> {
    let len = usize::try_from(len).unwrap();
    Arc::new(MemoryDevice::new("memory", vec![0; len]))
}

/// A filesystem with a file.
fn device() -> Arc<dyn BlockDevice> {
    let device = zeros(LEN);
    let target = Target {
        device: &*device,
        log: None,
        is_zero: true,
    };
    mkfs(&target, &mkfs_options(OLD), &*clock()).unwrap();
    write(&device, "file");
    device
}

/// A filesystem, and the device of its log.
fn with_external_log(uuid: Uuid) -> [Arc<dyn BlockDevice>; 2] {
    let [device, log] = [LEN, 16 << 20].map(zeros);
    let target = Target {
        device: &*device,
        log: Some(&*log),
        is_zero: true,
    };
    mkfs(&target, &mkfs_options(uuid), &*clock()).unwrap();
    [device, log]
}

fn contents(device: &Arc<dyn BlockDevice>) -> Vec<u8> {
    let len = usize::try_from(device.geometry().len_bytes).unwrap();
    let mut bytes = vec![0; len];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Makes a file in a mount of its own.
fn write(device: &Arc<dyn BlockDevice>, text: &str) {
    let xfs = mount(device);
    drop(create(&*xfs.root().unwrap(), text, CreateKind::Regular).unwrap());
    xfs.unmount().unwrap();
}

/// An edit of the image, before its commit.
fn edit(device: &Arc<dyn BlockDevice>, change: impl FnOnce(&Xfs)) -> ImageCommit {
    edit_with_log(device, None, change)
}

fn edit_with_log(
    device: &Arc<dyn BlockDevice>,
    log: Option<&Arc<dyn BlockDevice>>,
    change: impl FnOnce(&Xfs),
) -> ImageCommit {
    let options = MountOptions {
        logging: Logging::Scratch,
        log: log.cloned(),
        ..MountOptions::default()
    };
    let layer = OverlayDevice::new(Arc::clone(device), OverlayOptions::default());
    let new: Arc<dyn BlockDevice> = Arc::new(layer);
    let xfs = Xfs::mount_writable(Arc::clone(&new), &options, budget(), clock()).unwrap();
    change(&xfs);
    xfs.unmount().unwrap();
    ImageCommit {
        device: Arc::clone(device),
        unseen: Arc::clone(device),
        new,
        written: std::iter::once(0..LEN).collect(),
        options,
        budget: budget(),
    }
}

fn tune(device: &Arc<dyn BlockDevice>, changes: &[Tune]) {
    let commit = edit(device, |xfs| xfs.tune(changes).unwrap());
    commit.run().unwrap();
}

fn feature(name: &str) -> Tune {
    let name = name.to_owned();
    Tune::Feature { name, on: true }
}

/// What a check finds, notices included.
/// A check finds nothing, and all superblocks say the same.
fn assert_tuned(device: &Arc<dyn BlockDevice>, context: &str) {
    assert_sound(device, context);
    let primary = superblock::read(&**device).unwrap();
    let geometry = Geometry::new(&primary);
    let says = |it: &Superblock| (it.uuid, it.meta_uuid, it.label.clone(), it.features);
    for ag in geometry.groups().skip(1) {
        let mut sector = vec![0; 512];
        device.read_at(geometry.ag_offset(ag), &mut sector).unwrap();
        let copy = Superblock::decode_backup(&sector, Locus::group(ag.0.into())).unwrap();
        assert_eq!(says(&copy), says(&primary), "{context}: {ag:?}");
    }
    assert_log_fits(device, context);
}

/// Linux mounts the filesystem: its last record bears its UUID or, in a clean log, none.
fn assert_log_fits(device: &Arc<dyn BlockDevice>, context: &str) {
    let primary = superblock::read(&**device).unwrap();
    let log = LogDevice::open(&primary, device, None).unwrap();
    let position = find_position(&log, true).unwrap();
    let sector = log.read(position.last, 1).unwrap();
    let last = RecordHeader::decode(&sector, Locus::UNKNOWN).unwrap();
    let is_free = position.state == LogState::Clean && last.uuid.is_nil();
    assert!(is_free || last.uuid == primary.uuid, "{context}: {last:?}");
}

/// Ends a clean log as a mount of Linux does: its last record bears the UUID, and copies of the superblock stay as they are.
fn end_log(device: &Arc<dyn BlockDevice>) {
    let primary = superblock::read(&**device).unwrap();
    let log = LogDevice::open(&primary, device, None).unwrap();
    let position = find_position(&log, true).unwrap();
    if position.state == LogState::Clean {
        set_last_uuid(&log, &position, primary.uuid).unwrap();
    }
}

/// Whether everything changed, where nothing else did.
fn is_changed(device: &Arc<dyn BlockDevice>, context: &str) -> bool {
    let primary = superblock::read(&**device).unwrap();
    let is_new = primary.uuid == NEW;
    assert_eq!(primary.meta_uuid, OLD, "{context}");
    let label: &[u8] = if is_new { b"after" } else { b"before" };
    assert_eq!(primary.label, label, "{context}");
    let features = &primary.features;
    let switched = [
        features.has_meta_uuid(),
        features.has_bigtime(),
        features.has_inobtcount(),
    ];
    assert_eq!(switched, [is_new; 3], "{context}");
    is_new
}

#[test]
fn crash_leaves_all_that_was_tuned_or_nothing() {
    let changes = [
        Tune::Label(b"after".to_vec()),
        Tune::Uuid(NEW),
        feature("bigtime"),
        feature("inobtcount"),
    ];
    let recorder = Recorder::new(vec![device()]);
    let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
    tune(&device, &changes);
    let after = recorder.mark();
    assert!(is_changed(&device, "after"));
    assert_tuned(&device, "after");
    let recording = recorder.recording();
    let mut found = [0, 0];
    let states = recording.crash_states(CrashOptions::default());
    for (state, number) in states.zip(0..) {
        let state = state.unwrap();
        let context = format!("state {number} at {}", state.position);
        let [cut, ended] =
            [(); 2].map(|()| -> Arc<dyn BlockDevice> { Arc::new(state.device().unwrap()) });
        assert_log_fits(&cut, &context);
        let is_new = is_changed(&cut, &context);
        assert!(is_new || state.position < after, "{context}");
        found[usize::from(is_new)] += 1;
        end_log(&ended);
        for device in [cut, ended] {
            write(&device, "other");
            assert_eq!(is_changed(&device, &context), is_new, "{context}");
            assert_tuned(&device, &context);
        }
    }
    assert!(found[0] > 3 && found[1] > 3, "{found:?}");
}

#[test]
fn uuid_that_metadata_bears_needs_no_feature() {
    let device = device();
    let features = superblock::read(&*device).unwrap().features;
    for uuid in [NEW, Uuid::from_bytes([9; 16]), OLD] {
        tune(&device, &[Tune::Uuid(uuid)]);
        let primary = superblock::read(&*device).unwrap();
        assert_eq!((primary.uuid, primary.meta_uuid), (uuid, OLD));
        assert_tuned(&device, "after a change of the UUID");
        write(&device, &uuid.to_string());
        assert_tuned(&device, "after a mount");
    }
    assert_eq!(superblock::read(&*device).unwrap().features, features);
}

#[test]
fn uuid_changes_after_the_log_was_recovered() {
    let device = device();
    let xfs = mount(&device);
    drop(create(&*xfs.root().unwrap(), "logged", CreateKind::Regular).unwrap());
    xfs.sync().unwrap();
    xfs.shutdown().unwrap();
    drop(xfs);
    tune(&device, &[Tune::Uuid(NEW)]);
    assert_tuned(&device, "after a recovery");
    let xfs = mount(&device);
    assert!(xfs.root().unwrap().lookup(name("logged")).is_ok());
    // What is logged from now on is recovered.
    drop(create(&*xfs.root().unwrap(), "again", CreateKind::Regular).unwrap());
    xfs.sync().unwrap();
    xfs.shutdown().unwrap();
    drop(xfs);
    assert_log_fits(&device, "dirty");
    let xfs = mount(&device);
    assert!(xfs.root().unwrap().lookup(name("again")).is_ok());
    xfs.unmount().unwrap();
    assert_tuned(&device, "after another recovery");
}

#[test]
fn uuid_is_refused_in_mounts_and_with_other_changes() {
    let device = device();
    let xfs = mount(&device);
    let error = xfs.tune(&[Tune::Uuid(NEW)]).unwrap_err().to_string();
    assert!(error.contains("UUID of a mount"), "{error}");
    xfs.unmount().unwrap();
    let commit = edit(&device, |xfs| {
        xfs.tune(&[Tune::Uuid(NEW)]).unwrap();
        drop(create(&*xfs.root().unwrap(), "other", CreateKind::Regular).unwrap());
    });
    let error = commit.run().unwrap_err().to_string();
    assert!(error.contains("with other changes"), "{error}");
    assert_tuned(&device, "after it was refused");
    let primary = superblock::read(&*device).unwrap();
    assert_eq!(
        (primary.uuid, primary.features.has_meta_uuid()),
        (OLD, false)
    );
    let xfs = mount(&device);
    assert!(xfs.root().unwrap().lookup(name("other")).is_err());
    xfs.unmount().unwrap();
}

#[test]
fn nrext64_is_refused_where_the_log_is_short() {
    let short = device();
    let xfs = mount(&short);
    let changes = [Tune::Label(b"after".to_vec()), feature("nrext64")];
    let error = xfs.tune(&changes).unwrap_err().to_string();
    assert!(error.contains("at least 64 MiB"), "{error}");
    xfs.unmount().unwrap();
    let primary = superblock::read(&*short).unwrap();
    assert!(primary.label == b"before" && !primary.features.has_nrext64());
    let long = new_device();
    let xfs = mount(&long);
    xfs.tune(&changes).unwrap();
    xfs.unmount().unwrap();
    assert!(superblock::read(&*long).unwrap().features.has_nrext64());
    assert_tuned(&long, "after it was switched on");
}

#[test]
fn log_of_another_filesystem_is_refused() {
    let [device, log] = with_external_log(OLD);
    let [_, other] = with_external_log(NEW);
    let mut commit = edit_with_log(&device, Some(&log), |xfs| {
        xfs.tune(&[Tune::Uuid(NEW)]).unwrap();
    });
    let before = [&device, &other].map(contents);
    commit.options.log = Some(Arc::clone(&other));
    let options = MountOptions {
        log: Some(Arc::clone(&other)),
        ..MountOptions::default()
    };
    let mounted = Xfs::mount_writable(Arc::clone(&device), &options, budget(), clock());
    for refused in [commit.run(), mounted.map(drop)] {
        assert_eq!(broken_rule(refused), ReplayRule::RecordUuid.text());
    }
    assert!([&device, &other].map(contents) == before);
    commit.options.log = Some(Arc::clone(&log));
    commit.run().unwrap();
    let options = MountOptions {
        log: Some(log),
        ..MountOptions::default()
    };
    let xfs = Xfs::mount_writable(Arc::clone(&device), &options, budget(), clock()).unwrap();
    xfs.unmount().unwrap();
    assert_eq!(superblock::read(&*device).unwrap().uuid, NEW);
}

/// Makes files in the root, which get inodes in its group.
fn create_files(xfs: &Xfs, numbers: Range<u32>) {
    let root = xfs.root().unwrap();
    for number in numbers {
        drop(create(&*root, &format!("file{number}"), CreateKind::Regular).unwrap());
    }
}

/// The blocks of the inode B-trees of the first group, by its header.
fn inode_tree_blocks(xfs: &Xfs) -> [u32; 2] {
    let agi = xfs.context().agi(AgNr(0)).unwrap();
    [agi.inode_btree_blocks, agi.free_btree_blocks]
}

#[test]
fn mount_counts_blocks_of_inode_trees_once_it_is_to() {
    let mut options = MkfsOptions {
        block_bytes: Some(1024),
        ..MkfsOptions::new(OLD)
    };
    options.set_feature("inobtcount", false).unwrap();
    let device = device_of(&options);
    let xfs = mount(&device);
    create_files(&xfs, 0..4500);
    // All chunks have a free inode, and are in both trees.
    let root = xfs.root().unwrap();
    for number in (0..4500).step_by(40) {
        let text = format!("file{number}");
        root.unlink(&Context::root(), name(&text)).unwrap();
    }
    drop(root);
    xfs.unmount().unwrap();
    let xfs = mount(&device);
    xfs.tune(&[feature("inobtcount")]).unwrap();
    let counted = inode_tree_blocks(&xfs);
    assert!(counted.iter().all(|&blocks| blocks > 1), "{counted:?}");
    create_files(&xfs, 4500..8000);
    xfs.sync().unwrap();
    let grown = inode_tree_blocks(&xfs);
    assert!(grown[0] > counted[0], "{counted:?}, then {grown:?}");
    xfs.shutdown().unwrap();
    drop(xfs);
    write(&device, "other");
    let primary = superblock::read(&*device).unwrap();
    assert!(primary.features.has_inobtcount());
    assert_tuned(&device, "after a recovery");
}
