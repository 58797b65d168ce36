//! Chunks that are moved and converted, devices that come and go: the checker with data checksums finds nothing, and the
//! kernel reads the same files and goes on.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platter_block::sim::{
    CrashOptions, Effect, Fault, FaultDevice, Recorder, RecordingDevice, When,
};
use platter_block::{
    Access, BlockDevice, FileDevice, MemoryDevice, OpenOptions, Operation, PartitionView,
};
use platter_cache::MemoryBudget;
use platter_vfs::devices::{Moved, Scrubbed};
use platter_vfs::{
    CheckSink, Context, CreateKind, Filesystem, Finding, Name, Result, SetAttr, SystemClock,
};

use super::PoolRequest;
use super::scrub_tests::{FILL, SUMS, scrub};
use crate::context::ListedExtent;
use crate::mount::{Btrfs, MountOptions};
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ondisk::{DeviceId, LogicalAddr};
use crate::pool::{self, BalanceArgs, BalanceFilter};
use crate::txn::tests::Random;
use crate::txn::tests::crash::store;
use crate::txn::tests::image::{CHECK_DATA, Pool};
use crate::txn::tests::locations::{Location, copies, first_data, parity, row};
use crate::txn::{WriteOptions, chunks};

/// The kernel changes files, and the checker reads all data.
const GO_ON: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
head -c 300000 /dev/urandom > "$root"/more
sync -f "$root"
rm "$root"/more
"#;

pub(super) fn request_of(devices: Vec<Arc<dyn BlockDevice>>) -> PoolRequest {
    PoolRequest {
        devices,
        options: MountOptions {
            degraded: true,
            ..MountOptions::default()
        },
        budget: Arc::new(MemoryBudget::new(16 << 20)),
        clock: Arc::new(SystemClock::new()),
    }
}

pub(super) fn request(pool: &Pool) -> PoolRequest {
    request_of(pool.devices())
}

pub(super) fn to_the_end(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn filter_to(profile: Profile) -> BalanceFilter {
    BalanceFilter {
        convert: Some(profile),
        is_soft: true,
        ..BalanceFilter::default()
    }
}

fn convert(request: &PoolRequest, data: Profile, metadata: Profile) -> Result<Moved> {
    let args = BalanceArgs {
        data: Some(filter_to(data)),
        metadata: Some(filter_to(metadata)),
        system: Some(filter_to(metadata)),
        is_forced: true,
    };
    pool::balance(&request.open().unwrap(), &args, &mut to_the_end)
}

/// The profiles of all chunks, of data and of others.
fn profiles(pool: &Pool) -> (Vec<Profile>, Vec<Profile>) {
    let fs = request(pool).open().unwrap();
    let map = fs.blocks().store().map();
    let (data, others): (Vec<_>, Vec<_>) = map
        .iter()
        .partition(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
    let of = |chunks: Vec<&crate::ondisk::chunk_item::ChunkItem>| {
        let mut profiles: Vec<_> = chunks.into_iter().map(|chunk| chunk.profile).collect();
        profiles.sort_unstable();
        profiles.dedup();
        profiles
    };
    (of(data), of(others))
}

fn assert_same(pool: &Pool, sums: &str) {
    let checked = pool.run(CHECK_DATA);
    let is_clean = checked.contains("no error found") && !checked.contains("ERROR");
    assert!(is_clean, "{checked}");
    assert_eq!(pool.run(SUMS), sums);
}

/// As [`assert_same`], and every copy and all parity is right.
fn assert_whole(pool: &Pool, sums: &str) {
    assert_same(pool, sums);
    let counts = scrub(pool, false);
    assert_eq!(counts.errors(), 0, "{counts:?}");
}

fn filled(devices: usize, size_mib: u64, mkfs: &[&str]) -> (Pool, String) {
    let pool = Pool::make(devices, size_mib, mkfs);
    pool.run(FILL);
    let sums = pool.run(SUMS);
    (pool, sums)
}

#[test]
fn chunks_are_converted_to_every_profile() {
    use Profile::{Dup, Raid0, Raid1, Raid1C3, Raid1C4, Raid5, Raid6, Raid10, Single};
    let (pool, sums) = filled(4, 1000, &["-d", "single", "-m", "raid1"]);
    let steps = [
        (Raid5, Raid6),
        (Raid10, Raid1C3),
        (Raid6, Raid1C4),
        (Raid0, Raid10),
        (Raid1C3, Raid5),
        (Single, Dup),
        (Raid1, Raid1),
    ];
    for (data, metadata) in steps {
        let moved = convert(&request(&pool), data, metadata).unwrap();
        assert!(moved.moved >= 3, "{moved:?}");
        assert_eq!(profiles(&pool), (vec![data], vec![metadata]));
        assert_whole(&pool, &sums);
        pool.run(GO_ON);
        // What is as it should be is left alone.
        let again = convert(&request(&pool), data, metadata).unwrap();
        assert_eq!(again.moved, 0);
    }
}

#[test]
fn metadata_keeps_its_copies_unless_forced() {
    let (pool, sums) = filled(2, 300, &["-d", "single", "-m", "raid1"]);
    let args = BalanceArgs {
        metadata: Some(filter_to(Profile::Single)),
        ..BalanceArgs::default()
    };
    let refused = pool::balance(&request(&pool).open().unwrap(), &args, &mut to_the_end);
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("without its copies")
    );
    // More copies than there are devices.
    let args = BalanceArgs {
        data: Some(filter_to(Profile::Raid1C3)),
        ..BalanceArgs::default()
    };
    pool::balance(&request(&pool).open().unwrap(), &args, &mut to_the_end).unwrap_err();
    assert_whole(&pool, &sums);
}

#[test]
fn devices_are_added_and_removed() {
    for (data, metadata) in [("raid1", "raid1"), ("single", "dup"), ("raid5", "raid1c3")] {
        let (mut pool, sums) = filled(3, 320, &["-d", data, "-m", metadata]);
        let image = pool.images()[0].with_extension("added");
        File::create(&image).unwrap().set_len(400 << 20).unwrap();
        let device = open(&image);
        assert_eq!(request(&pool).add_device(&device).unwrap(), 4);
        drop(device);
        pool.regain(image);
        assert_whole(&pool, &sums);
        pool.run(GO_ON);
        let device = DeviceId(2);
        request(&pool)
            .remove_device(device, &mut to_the_end)
            .unwrap();
        let removed = pool.lose(1);
        assert!(crate::identify(&*open(&removed)).is_err());
        assert_whole(&pool, &sums);
        pool.run(GO_ON);
        assert_whole(&pool, &sums);
    }
}

#[test]
fn missing_device_is_removed() {
    let (mut pool, sums) = filled(3, 320, &["-d", "raid1", "-m", "raid1"]);
    pool.lose(1);
    request(&pool)
        .remove_device(DeviceId(2), &mut to_the_end)
        .unwrap();
    assert_whole(&pool, &sums);
    pool.run(GO_ON);
}

#[test]
fn device_that_is_needed_is_not_removed() {
    let (pool, sums) = filled(2, 300, &["-d", "raid1", "-m", "raid1"]);
    request(&pool)
        .remove_device(DeviceId(1), &mut to_the_end)
        .unwrap_err();
    assert_whole(&pool, &sums);
}

fn open(image: &Path) -> Arc<dyn BlockDevice> {
    let options = OpenOptions {
        access: Access::Write,
        direct: false,
    };
    Arc::new(FileDevice::open(image, options).unwrap())
}

struct Ignore;

impl CheckSink for Ignore {
    fn finding(&mut self, _: Finding) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// The superblock of the new device is made from that of another one, of which the first copy is torn.
#[test]
fn device_is_replaced_by_a_copy_of_a_torn_superblock() {
    for count in [2, 3] {
        let (mut pool, sums) = filled(count, 200, &["-d", "raid1", "-m", "raid1"]);
        let image = pool.images()[0].with_extension("new");
        File::create(&image).unwrap().set_len(200 << 20).unwrap();
        let target = open(&image);
        pool.tear_superblock(0);
        let mut opened = pool.devices();
        opened.reverse();
        let replaced = request_of(opened).replace_device(DeviceId(2), &target, &mut Ignore);
        assert_eq!(replaced.unwrap().uncorrectable, 0);
        drop(target);
        pool.lose(1);
        pool.regain(image);
        assert_whole(&pool, &sums);
        pool.run(GO_ON);
        assert_whole(&pool, &sums);
    }
}

fn replace(devices: usize, profile: &str, is_missing: bool) {
    let (mut pool, sums) = filled(devices, 200, &["-d", profile, "-m", profile]);
    let image = pool.images()[0].with_extension("new");
    File::create(&image).unwrap().set_len(240 << 20).unwrap();
    let target = open(&image);
    let lost = is_missing.then(|| pool.lose(1));
    let request = request(&pool);
    let device = DeviceId(if devices == 1 { 1 } else { 2 });
    let replaced = request
        .replace_device(device, &target, &mut Ignore)
        .unwrap();
    assert_eq!(replaced.uncorrectable, 0, "{replaced:?}");
    drop((request, target));
    if lost.is_none() {
        let old = pool.lose(devices.min(2) - 1);
        assert!(crate::identify(&*open(&old)).is_err());
    }
    pool.regain(image);
    assert_whole(&pool, &sums);
    pool.run(GO_ON);
    assert_whole(&pool, &sums);
}

#[test]
fn devices_are_replaced() {
    replace(1, "single", false);
    replace(3, "raid0", false);
    replace(3, "raid5", false);
}

#[test]
fn missing_devices_are_replaced() {
    replace(2, "raid1", true);
    replace(3, "raid5", true);
    replace(4, "raid6", true);
}

/// Makes a file without checksums, of one extent.
fn write_unverified(pool: &Pool, contents: &[u8]) {
    write_file(pool, contents, Some(0x80_0000));
}

/// Makes a file with some flags, of one extent.
fn write_file(pool: &Pool, contents: &[u8], flags: Option<u32>) {
    write_named(pool, "file", contents, flags);
}

fn write_named(pool: &Pool, name: &str, contents: &[u8], flags: Option<u32>) {
    let mounted = pool.mount_without_thread();
    let context = Context::root();
    let (root, name) = (mounted.root().unwrap(), Name::new(name.as_bytes()).unwrap());
    let file = root.create(&context, name, CreateKind::Regular, 0o644);
    let file = file.unwrap();
    let changes = SetAttr {
        flags,
        ..SetAttr::default()
    };
    file.set_attr(&context, &changes).unwrap();
    file.write_at(0, contents).unwrap();
    drop((file, root));
    mounted.unmount().unwrap();
}

fn mount_degraded(pool: &Pool) -> Btrfs {
    let PoolRequest {
        devices,
        options,
        budget,
        clock,
    } = request(pool);
    Btrfs::mount_writable(&devices, &options, budget, clock).unwrap()
}

/// Where the first data extent begins: all copies of it, and the parity of its row.
fn locations(pool: &Pool) -> (Vec<Location>, Option<Location>) {
    let fs = pool.open(WriteOptions::default());
    let at = first_data(fs.context());
    (copies(fs.context(), at), parity(fs.context(), at))
}

/// The device, of which the sectors at these places cannot be read.
fn unreadable(device: Arc<dyn BlockDevice>, places: &[u64]) -> Arc<dyn BlockDevice> {
    failing(device, Operation::Read, places)
}

/// The device, which fails this operation at these sectors.
fn failing(
    device: Arc<dyn BlockDevice>,
    operation: Operation,
    places: &[u64],
) -> Arc<dyn BlockDevice> {
    let faulty = FaultDevice::new(device);
    for place in places {
        faulty.arm(Fault {
            operation,
            when: When::Touching(*place..*place + 4096),
            effect: Effect::Tear { seed: 0 },
        });
    }
    Arc::new(faulty)
}

/// Writes over a range of a device.
fn spoil(image: &Path, at: u64, len: usize) {
    open(image).write_at(at, &vec![0xee; len]).unwrap();
}

/// A new device, to be the one in the place of another.
fn new_device(pool: &Pool, size_mib: u64) -> (PathBuf, Arc<dyn BlockDevice>) {
    let image = pool.images()[0].with_extension("new");
    File::create(&image)
        .unwrap()
        .set_len(size_mib << 20)
        .unwrap();
    let device = open(&image);
    (image, device)
}

fn counter(scrubbed: &Scrubbed, name: &str) -> u64 {
    let found = scrubbed.counters.iter().find(|(known, _)| known == name);
    found.map(|(_, count)| *count).unwrap()
}

#[test]
fn unreadable_data_without_a_copy_keeps_the_old_device() {
    for (data, count) in [("single", 1), ("dup", 2)] {
        let pool = Pool::make(1, 300, &["-d", data, "-m", "dup"]);
        let contents = Random(7).bytes(1 << 20);
        write_unverified(&pool, &contents);
        let (copies, _) = locations(&pool);
        assert_eq!(copies.len(), count);
        // The third sector of it.
        let bad: Vec<u64> = copies.iter().map(|(_, at)| at + 8192).collect();
        let (_, target) = new_device(&pool, 300);
        let request = request_of(vec![unreadable(pool.devices().remove(0), &bad)]);
        let replaced = request.replace_device(DeviceId(1), &target, &mut Ignore);
        let replaced = replaced.unwrap();
        assert_eq!(replaced.uncorrectable, count as u64, "{replaced:?}");
        assert_eq!(counter(&replaced, "read_errors"), count as u64);
        drop(request);
        // All others were copied.
        for (_, at) in copies {
            let mut bytes = vec![0; contents.len()];
            target.read_at(at, &mut bytes).unwrap();
            assert!(bytes[..8192] == contents[..8192]);
            assert!(bytes[12288..] == contents[12288..]);
        }
        assert!(crate::identify(&*open(&pool.images()[0])).is_ok());
    }
}

#[test]
fn unreadable_data_with_a_copy_is_replaced() {
    let mut pool = Pool::make(2, 300, &["-d", "raid1", "-m", "raid1"]);
    let contents = Random(8).bytes(1 << 20);
    write_unverified(&pool, &contents);
    let (copies, _) = locations(&pool);
    let (_, at) = *copies.iter().find(|(index, _)| *index == 1).unwrap();
    let (image, target) = new_device(&pool, 300);
    let mut devices = pool.devices();
    let old = unreadable(devices.remove(1), &[at + 8192]);
    devices.push(old);
    let request = request_of(devices);
    let replaced = request.replace_device(DeviceId(2), &target, &mut Ignore);
    let replaced = replaced.unwrap();
    assert_eq!(replaced.uncorrectable, 0, "{replaced:?}");
    assert_eq!(counter(&replaced, "read_errors"), 0);
    drop(request);
    let mut bytes = vec![0; contents.len()];
    target.read_at(at, &mut bytes).unwrap();
    assert!(bytes == contents);
    drop(target);
    let old = pool.lose(1);
    assert!(crate::identify(&*open(&old)).is_err());
    pool.regain(image);
    assert_eq!(scrub(&pool, false).errors(), 0);
    pool.assert_clean();
}

/// The parity of a device that is missing is made where data of the row is missing too.
#[test]
fn parity_is_made_of_data_on_missing_devices() {
    let mut pool = Pool::make(4, 300, &["-d", "raid6", "-m", "raid1c3"]);
    let contents = Random(18).bytes(1 << 20);
    write_unverified(&pool, &contents);
    let row = {
        let fs = pool.open(WriteOptions::default());
        let (_, row) = row(fs.context(), first_data(fs.context())).unwrap();
        row
    };
    let ((data, _), (parity, _)) = (row[0], row[2]);
    let (image, target) = new_device(&pool, 300);
    for index in [data.max(parity), data.min(parity)] {
        pool.lose(index);
    }
    let number = DeviceId(parity as u64 + 1);
    let replaced = request(&pool).replace_device(number, &target, &mut Ignore);
    let replaced = replaced.unwrap();
    assert_eq!(replaced.uncorrectable, 0, "{replaced:?}");
    drop(target);
    let second = image.with_extension("second");
    pool.regain(image);
    let fs = mount_degraded(&pool);
    let file = fs.root().unwrap().lookup(Name::new(b"file").unwrap());
    let file = file.unwrap();
    let mut bytes = vec![0; contents.len()];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes == contents);
    drop(file);
    fs.unmount().unwrap();
    drop(fs);
    let number = DeviceId(data as u64 + 1);
    File::create(&second).unwrap().set_len(300 << 20).unwrap();
    let replaced = request(&pool).replace_device(number, &open(&second), &mut Ignore);
    let replaced = replaced.unwrap();
    // Of half of the eight rows it had P or Q; all other parity is right.
    assert_eq!(counter(&replaced, "parity_errors"), 4, "{replaced:?}");
    assert_eq!(replaced.uncorrectable, 0);
    pool.regain(second);
    assert_eq!(scrub(&pool, false).errors(), 0);
    pool.assert_clean();
}

/// Replaces a device of the first row, data or parity, where a sector of it that is not in use cannot be read from
/// another one. Returns whether the old one is given up.
fn replace_next_to_unreadable(of_parity: bool) -> bool {
    let mut pool = Pool::make(3, 300, &["-d", "raid5", "-m", "raid1"]);
    write_file(&pool, &Random(17).bytes(20 << 10), None);
    let row = {
        let fs = pool.open(WriteOptions::default());
        let (role, row) = row(fs.context(), first_data(fs.context())).unwrap();
        assert_eq!(role, 0);
        row
    };
    let (unused, at) = row[1];
    let (replaced, place) = row[if of_parity { 2 } else { 0 }];
    let (image, target) = new_device(&pool, 300);
    let mut devices = pool.devices();
    devices[unused] = unreadable(Arc::clone(&devices[unused]), &[at + 8192]);
    if of_parity {
        devices[replaced] = unreadable(Arc::clone(&devices[replaced]), &[place + 8192]);
    }
    let request = request_of(devices);
    let number = DeviceId(replaced as u64 + 1);
    let scrubbed = request
        .replace_device(number, &target, &mut Ignore)
        .unwrap();
    assert_eq!(counter(&scrubbed, "read_errors"), 1, "{scrubbed:?}");
    drop((request, target));
    let is_given_up = crate::identify(&*open(&pool.images()[replaced])).is_err();
    if is_given_up {
        pool.lose(replaced);
        pool.regain(image);
        assert_eq!(scrub(&pool, false).errors(), 0);
        pool.assert_clean();
    }
    is_given_up
}

#[test]
fn device_is_replaced_unless_its_own_parity_is_in_doubt() {
    assert!(replace_next_to_unreadable(false));
    assert!(!replace_next_to_unreadable(true));
}

#[test]
fn data_of_a_missing_device_without_parity_is_counted() {
    let mut pool = Pool::make(3, 300, &["-d", "raid5", "-m", "raid1"]);
    write_unverified(&pool, &Random(9).bytes(1 << 20));
    let (copies, parity) = locations(&pool);
    let ((lost, _), (of_parity, place)) = (copies[0], parity.unwrap());
    let (_, target) = new_device(&pool, 300);
    pool.lose(lost);
    let mut devices = pool.devices();
    let at = of_parity - usize::from(of_parity > lost);
    let faulty = unreadable(devices.remove(at), &[place]);
    devices.push(faulty);
    let device = DeviceId(lost as u64 + 1);
    let replaced = request_of(devices).replace_device(device, &target, &mut Ignore);
    let replaced = replaced.unwrap();
    assert_eq!(counter(&replaced, "read_errors"), 1, "{replaced:?}");
    assert!(replaced.uncorrectable > 0, "{replaced:?}");
}

#[test]
fn data_is_not_made_of_parity_that_missed_commits() {
    let mut pool = Pool::make(3, 300, &["-d", "raid5", "-m", "raid1"]);
    write_unverified(&pool, &Random(10).bytes(1 << 20));
    let (copies, parity) = locations(&pool);
    let ((of_data, place), (of_parity, _)) = (copies[0], parity.unwrap());
    let lost = pool.lose(of_parity);
    // The file is written where it is, without the device of its parity.
    let contents = Random(11).bytes(1 << 20);
    let fs = mount_degraded(&pool);
    let file = fs.root().unwrap().lookup(Name::new(b"file").unwrap());
    let file = file.unwrap();
    file.write_at(0, &contents).unwrap();
    drop(file);
    fs.unmount().unwrap();
    drop(fs);
    let mut devices = pool.devices();
    let at = of_data - usize::from(of_data > of_parity);
    let faulty = unreadable(devices.remove(at), &[place]);
    devices.extend([faulty, open(&lost)]);
    let scrubbed = request_of(devices).scrub(true, &mut Ignore).unwrap();
    assert_eq!(counter(&scrubbed, "read_errors"), 1, "{scrubbed:?}");
    assert!(scrubbed.uncorrectable > 0, "{scrubbed:?}");
    let mut bytes = vec![0; 4096];
    open(&pool.images()[at]).read_at(place, &mut bytes).unwrap();
    assert!(bytes == contents[..4096]);
}

#[test]
fn scrub_goes_on_where_a_copy_is_not_rewritten() {
    let pool = Pool::make(2, 300, &["-d", "raid1", "-m", "raid1"]);
    write_file(&pool, &Random(12).bytes(1 << 20), None);
    let (copies, _) = locations(&pool);
    let (_, at) = *copies.iter().find(|(index, _)| *index == 1).unwrap();
    // Five sectors of data, and the second superblock.
    let superblock = 64 << 20;
    spoil(&pool.images()[1], at, 5 * 4096);
    spoil(&pool.images()[1], superblock, 4096);
    let mut devices = pool.devices();
    let unwritable = [at + 8192, superblock];
    let failing = failing(devices.remove(1), Operation::Write, &unwritable);
    devices.push(failing);
    let scrubbed = request_of(devices).scrub(true, &mut Ignore).unwrap();
    let counted = |name| counter(&scrubbed, name);
    assert_eq!((counted("csum_errors"), counted("super_errors")), (5, 1));
    assert_eq!(counted("corrected_errors"), 4, "{scrubbed:?}");
    assert_eq!(scrubbed.uncorrectable, 2);
    let again = scrub(&pool, true);
    assert_eq!((again.csum_errors, again.super_errors), (1, 1));
    assert_eq!(again.uncorrectable_errors, 0, "{again:?}");
    assert_eq!(scrub(&pool, false).errors(), 0);
}

#[test]
fn scrub_goes_on_where_parity_is_not_rewritten() {
    let pool = Pool::make(3, 300, &["-d", "raid5", "-m", "raid1"]);
    write_file(&pool, &Random(13).bytes(1 << 20), None);
    let (index, at) = locations(&pool).1.unwrap();
    spoil(&pool.images()[index], at, 4096);
    let mut devices = pool.devices();
    let failing = failing(devices.remove(index), Operation::Write, &[at]);
    devices.push(failing);
    let scrubbed = request_of(devices).scrub(true, &mut Ignore).unwrap();
    assert_eq!(counter(&scrubbed, "parity_errors"), 1, "{scrubbed:?}");
    assert_eq!((scrubbed.errors, scrubbed.uncorrectable), (1, 1));
    let again = scrub(&pool, true);
    assert_eq!((again.parity_errors, again.corrected_errors), (1, 1));
    assert_eq!(scrub(&pool, false).errors(), 0);
}

/// Writes a file with checksums as data `checked` of a row, and one without as the other of the first two. Returns the
/// locations of the row's stripes by role.
fn write_checked_and_plain(pool: &Pool, checked: usize) -> Vec<Location> {
    let write_checked = || write_named(pool, "checked", &Random(15).bytes(64 << 10), None);
    if checked == 0 {
        write_checked();
    }
    write_named(pool, "plain", &Random(16).bytes(64 << 10), Some(0x80_0000));
    if checked == 1 {
        write_checked();
    }
    let fs = pool.open(WriteOptions::default());
    let start = first_data(fs.context());
    let (role, row) = row(fs.context(), start).unwrap();
    assert_eq!(role, 0);
    let second = LogicalAddr(start.0 + (64 << 10));
    let end = second.0 + (64 << 10);
    assert!(ListedExtent::is_any_in(fs.context(), &(second.0..end)).unwrap());
    row
}

/// Scrubs a row whose data `checked` is corrupt; the other of the first two has no checksum, and cannot be read.
fn scrub_made_of_corrupt_data(profile: &str, count: usize, checked: usize) -> (Scrubbed, bool) {
    let pool = Pool::make(count, 300, &["-d", profile, "-m", "raid1"]);
    let row = write_checked_and_plain(&pool, checked);
    let ((corrupt, at), (plain, place)) = (row[checked], row[1 - checked]);
    let read = || {
        let mut bytes = [0; 4096];
        open(&pool.images()[plain])
            .read_at(place, &mut bytes)
            .unwrap();
        bytes
    };
    let before = read();
    spoil(&pool.images()[corrupt], at, 4096);
    let mut devices = pool.devices();
    let faulty = unreadable(devices.remove(plain), &[place]);
    devices.push(faulty);
    let scrubbed = request_of(devices).scrub(true, &mut Ignore).unwrap();
    (scrubbed, read() == before)
}

#[test]
fn scrub_makes_no_data_of_corrupt_data() {
    for checked in [0, 1] {
        let (scrubbed, is_kept) = scrub_made_of_corrupt_data("raid5", 3, checked);
        assert_eq!((scrubbed.errors, scrubbed.uncorrectable), (2, 2));
        assert!(is_kept);
        // Q does without the corrupt data. The sector that was rewritten still cannot be read for the parity.
        let (scrubbed, is_kept) = scrub_made_of_corrupt_data("raid6", 4, checked);
        assert_eq!(counter(&scrubbed, "corrected_errors"), 2);
        assert_eq!((scrubbed.errors, scrubbed.uncorrectable), (3, 1));
        assert!(is_kept);
    }
}

#[test]
fn parity_of_unused_data_that_cannot_be_read_is_reported() {
    let pool = Pool::make(3, 300, &["-d", "raid5", "-m", "raid1"]);
    write_file(&pool, &Random(14).bytes(20 << 10), None);
    let (unused, parity) = {
        let fs = pool.open(WriteOptions::default());
        let (role, row) = row(fs.context(), first_data(fs.context())).unwrap();
        (row[1 - role], row[2])
    };
    let (index, at) = parity;
    spoil(&pool.images()[index], at, 4096);
    let (index, at) = unused;
    let mut devices = pool.devices();
    let faulty = unreadable(devices.remove(index), &[at + 8192]);
    devices.push(faulty);
    let scrubbed = request_of(devices).scrub(true, &mut Ignore).unwrap();
    let counted = |name| counter(&scrubbed, name);
    assert_eq!((counted("read_errors"), counted("parity_errors")), (1, 1));
    // Sectors that can be compared are.
    assert_eq!(counted("corrected_errors"), 1, "{scrubbed:?}");
    assert_eq!((scrubbed.errors, scrubbed.uncorrectable), (2, 1));
    assert_eq!(scrub(&pool, false).errors(), 0);
}

#[test]
fn devices_become_shorter_and_longer() {
    let (pool, sums) = filled(2, 700, &["-d", "single", "-m", "raid1"]);
    // A chunk near the end.
    let fs = pool.open(WriteOptions::default());
    for _ in 0..8 {
        let kind = BlockGroupFlags::DATA;
        assert!(chunks::grow_space(&fs, kind, fs.groups().free_bytes(kind)).unwrap());
    }
    crate::txn::tests::files::create(&fs, crate::ondisk::TreeId::FS, "x", &[7; 9000], 4096);
    fs.sync().unwrap();
    drop(fs);
    let sums_with = pool.run(SUMS);
    assert_ne!(sums, sums_with);
    for size_mib in [420, 300, 700] {
        for device in [1, 2] {
            let bytes = size_mib << 20;
            request(&pool)
                .resize_device(DeviceId(device), bytes, &mut to_the_end)
                .unwrap();
        }
        let fs = pool.open(WriteOptions::default());
        assert_eq!(fs.superblock().total_bytes, 2 * (size_mib << 20));
        drop(fs);
        assert_whole(&pool, &sums_with);
        pool.run(GO_ON);
    }
    let least = request(&pool).resize_device(DeviceId(1), 100 << 20, &mut to_the_end);
    assert!(least.unwrap_err().to_string().contains("256 MiB"));
    // A file would become longer.
    let part = |device: Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
        let (name, len_bytes) = (Arc::clone(device.name()), device.geometry().len_bytes);
        Arc::new(PartitionView::new(&name, device, 0..len_bytes).unwrap())
    };
    let parts = pool.devices().into_iter().map(part).collect();
    let beyond = request_of(parts).resize_device(DeviceId(1), 1 << 40, &mut to_the_end);
    let beyond = beyond.unwrap_err().to_string();
    assert!(beyond.contains("are more than device 1 has"), "{beyond}");
}

/// Power fails while chunks are converted: each state is a valid filesystem with all files, and the conversion goes on.
#[test]
fn conversion_that_is_cut_goes_on() {
    let (pool, sums) = filled(2, 200, &["-d", "single", "-m", "dup", "-n", "4096"]);
    let base = |path: &PathBuf| -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::new("base", std::fs::read(path).unwrap()).with_blocks(4096))
    };
    let recorder = Recorder::new(pool.images().iter().map(base).collect());
    let recorded = recorder.devices().iter();
    let recorded: Vec<Arc<dyn BlockDevice>> = recorded
        .map(|device| -> Arc<dyn BlockDevice> { Arc::<RecordingDevice>::clone(device) })
        .collect();
    convert(&request_of(recorded), Profile::Raid1, Profile::Raid1).unwrap();
    let recording = recorder.recording();
    let judged = Pool::empty(2);
    let count = recording.crash_states(CrashOptions::default()).count();
    let step = (count / 7).max(1);
    let states = recording.crash_states(CrashOptions::default());
    for (index, state) in states.step_by(step).enumerate() {
        let devices = state.unwrap().devices().unwrap();
        for (device, path) in devices.into_iter().zip(judged.images()) {
            store(&device, path);
        }
        assert_same(&judged, &sums);
        if index % 3 == 1 {
            convert(&request(&judged), Profile::Raid1, Profile::Raid1).unwrap();
            let all = (vec![Profile::Raid1], vec![Profile::Raid1]);
            assert_eq!(profiles(&judged), all);
            assert_same(&judged, &sums);
        }
    }
    assert!(count > 100, "{count} states");
}
