//! Devices that take the place of others while threads write files, also where one of the two fails.

use std::fs::File;
use std::io::IoSlice;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::sim::{Effect, Fault, FaultDevice, When};
use platter_block::{BlockDevice, CountingDevice, Geometry, IoError, Operation};
use platter_vfs::devices::Scrubbed;
use platter_vfs::{CheckProgress, CheckSink, Context, CreateKind, Filesystem, Finding};

use super::Btrfs;
use super::devices_in_use_tests::{
    Ignore, assert_reads, assert_whole, devices, mount, mount_on, open, with_load,
};
use super::write_tests::{name, read};
use crate::chunk::Unverified;
use crate::context::ListedExtent;
use crate::ondisk::chunk_item::STRIPE_BYTES;
use crate::ondisk::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use crate::ondisk::{LogicalAddr, TreeId};
use crate::txn::WriteOptions;
use crate::txn::tests::Random;
use crate::txn::tests::image::Pool;
use crate::txn::tests::locations::{Location, copies, first_data, leaves, parity, row};

fn replace(devices_count: usize, profile: &str, metadata: &str, number: u64) {
    let mut pool = Pool::make(devices_count, 300, &["-d", profile, "-m", metadata]);
    let image = pool.images()[0].with_extension("new");
    File::create(&image).unwrap().set_len(340 << 20).unwrap();
    let fs = mount(&pool);
    let (models, replaced) = with_load(&fs, 1, || {
        devices(&fs).replace_device(number, &open(&image), &mut Ignore)
    });
    assert!(!replaced.unwrap().is_cancelled);
    assert_reads(&fs, 1, &models);
    let scrubbed = devices(&fs).scrub(false, &mut Ignore).unwrap();
    assert_eq!(scrubbed.errors, 0, "{scrubbed:?}");
    fs.unmount().unwrap();
    drop(fs);
    let old = pool.lose(usize::try_from(number).unwrap() - 1);
    assert!(crate::identify(&*open(&old)).is_err());
    pool.regain(image);
    assert_whole(&pool);
    let fs = mount(&pool);
    assert_reads(&fs, 1, &models);
    fs.unmount().unwrap();
}

#[test]
fn devices_are_replaced_while_files_are_written() {
    replace(1, "single", "dup", 1);
    replace(3, "raid1", "raid1", 2);
    replace(2, "raid0", "raid1", 2);
    replace(3, "raid5", "raid1c3", 1);
}

/// A filesystem with rows with parity on three devices, the contents of its file, and the device on which that begins.
struct Rows {
    pool: Pool,
    fs: Btrfs,
    contents: Vec<u8>,
    /// All devices.
    faulty: Vec<Arc<FaultDevice>>,
    /// Where the file begins.
    data: Location,
    /// The parity of the first row.
    parity: Location,
}

impl Rows {
    fn make() -> Self {
        let pool = Pool::make(3, 300, &["-d", "raid5", "-m", "raid1"]);
        let faulty = pool.devices().into_iter().map(FaultDevice::new);
        let faulty: Vec<_> = faulty.map(Arc::new).collect();
        let below = faulty.iter();
        let below = below.map(|it| -> Arc<dyn BlockDevice> { Arc::<FaultDevice>::clone(it) });
        let fs = mount_on(&below.collect::<Vec<_>>());
        let root = fs.root().unwrap();
        let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
        let contents = Random(6).bytes(1 << 20);
        file.unwrap().write_at(0, &contents).unwrap();
        drop(root);
        fs.sync().unwrap();
        let (data, parity) = {
            let context = fs.super_block().context();
            let start = first_data(context);
            (copies(context, start)[0], parity(context, start).unwrap())
        };
        Self {
            pool,
            fs,
            contents,
            faulty,
            data,
            parity,
        }
    }

    /// Makes a sector of a device unreadable.
    fn lose(&self, (index, at): Location) {
        self.faulty[index].arm(Fault {
            operation: Operation::Read,
            when: When::Touching(at..at + 4096),
            effect: Effect::Tear { seed: 0 },
        });
    }

    fn replace(&self) -> (std::path::PathBuf, platter_vfs::Result<Scrubbed>) {
        let image = self.pool.images()[0].with_extension("new");
        File::create(&image).unwrap().set_len(300 << 20).unwrap();
        let number = self.data.0 as u64 + 1;
        let replaced = devices(&self.fs).replace_device(number, &open(&image), &mut Ignore);
        (image, replaced)
    }

    fn assert_reads(&self) {
        let file = self.fs.root().unwrap().lookup(name("file")).unwrap();
        assert!(read(&*file) == self.contents);
    }
}

#[test]
fn what_cannot_be_read_of_a_replaced_device_is_reconstructed() {
    let rows = Rows::make();
    let (index, at) = rows.data;
    // Data and parity, as these rotate with the rows.
    for row in 0..3 {
        rows.lose((index, at + row * (64 << 10)));
    }
    // Nothing is there.
    let unused = 4 << 20;
    rows.lose((index, at + unused));
    rows.lose((rows.parity.0, rows.parity.1 + unused));
    let (image, replaced) = rows.replace();
    assert!(!replaced.unwrap().is_cancelled);
    rows.assert_reads();
    let scrubbed = devices(&rows.fs).scrub(false, &mut Ignore).unwrap();
    assert_eq!(scrubbed.errors, 0, "{scrubbed:?}");
    rows.fs.unmount().unwrap();
    let Rows {
        mut pool,
        fs,
        faulty,
        ..
    } = rows;
    drop((fs, faulty));
    pool.lose(index);
    pool.regain(image);
    assert_whole(&pool);
}

/// Makes files in items of many leaves, and removes runs of them.
fn make_unused_leaves(pool: &Pool) {
    const FILES: usize = 3000;
    let fs = mount(pool);
    let root = fs.root().unwrap();
    let path = |number: usize| format!("file{number:04}");
    for number in 0..FILES {
        let path = path(number);
        let file = root.create(&Context::root(), name(&path), CreateKind::Regular, 0o644);
        file.unwrap().write_at(0, &[7; 1500]).unwrap();
    }
    fs.sync().unwrap();
    for number in (0..FILES).filter(|number| number / 40 % 2 == 1) {
        root.unlink(&Context::root(), name(&path(number))).unwrap();
    }
    drop(root);
    fs.unmount().unwrap();
}

/// Fills each unused tree block that shares the columns of a row with a leaf of files, as something that was never a
/// tree block. Returns where they are.
fn fill_unused_blocks(pool: &Pool) -> Vec<Location> {
    let fs = pool.open(WriteOptions::default());
    let (context, store) = (fs.context(), fs.blocks().store());
    let bytes = vec![0xa5; context.superblock.node_bytes as usize];
    let mut filled = Vec::new();
    // Other trees change with each commit.
    for leaf in leaves(context, TreeId::FS) {
        let (role, row) = row(context, leaf).unwrap();
        let (other, at) = match role {
            0 => (1, leaf.0 + STRIPE_BYTES),
            _ => (0, leaf.0 - STRIPE_BYTES),
        };
        let unused = at..at + bytes.len() as u64;
        if !ListedExtent::is_any_in(context, &unused).unwrap() {
            let bufs = &[IoSlice::new(&bytes)];
            let written = store.write_with(LogicalAddr(at), bufs, &|_| Box::new(Unverified));
            written.unwrap();
            filled.push(row[other]);
        }
    }
    store.flush().unwrap();
    filled
}

fn replace_with_unused_blocks(devices_count: usize, profile: &str) {
    let mut pool = Pool::make(devices_count, 300, &["-d", profile, "-m", profile]);
    make_unused_leaves(&pool);
    let filled = fill_unused_blocks(&pool);
    let of = |device: usize| filled.iter().filter(move |(index, _)| *index == device);
    let index = (0..devices_count).max_by_key(|index| of(*index).count());
    let index = index.unwrap();
    // The first commits while it is replaced may use some of them.
    assert!(of(index).count() > 5, "{filled:?}");
    let mut below = pool.devices();
    let faulty = FaultDevice::new(below.remove(index));
    for (_, at) in of(index) {
        faulty.arm(Fault {
            operation: Operation::Read,
            when: When::Touching(*at..*at + 4096),
            effect: Effect::Tear { seed: 0 },
        });
    }
    below.insert(index, Arc::new(faulty));
    let fs = mount_on(&below);
    let image = pool.images()[0].with_extension("new");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let number = index as u64 + 1;
    let target = open(&image);
    let replaced = devices(&fs).replace_device(number, &target, &mut Ignore);
    let replaced = replaced.unwrap();
    assert!(!replaced.is_cancelled);
    assert_eq!(replaced.errors, 0, "what is restored is no error");
    let is_kept = |(_, at): &&Location| {
        let mut bytes = [0; 4096];
        target.read_at(*at, &mut bytes).unwrap();
        bytes == [0xa5; 4096]
    };
    assert!(of(index).any(|place| is_kept(&place)), "all are in use now");
    drop(target);
    // The parity is of what is not in use as well.
    let scrubbed = devices(&fs).scrub(false, &mut Ignore).unwrap();
    assert_eq!(scrubbed.errors, 0, "{scrubbed:?}");
    fs.unmount().unwrap();
    drop((fs, below));
    pool.lose(index);
    pool.regain(image);
    assert_whole(&pool);
}

#[test]
fn unused_tree_blocks_of_a_replaced_device_are_reconstructed() {
    replace_with_unused_blocks(3, "raid5");
    replace_with_unused_blocks(4, "raid6");
}

#[test]
fn corrupt_reconstruction_is_reported_at_its_own_address() {
    let mut rows = Rows::make();
    let context = rows.fs.super_block().context();
    let start = first_data(context);
    let (role, row) = row(context, start).unwrap();
    assert_eq!(role, 0);
    // The second data of the row.
    rows.data = row[1];
    rows.lose(rows.data);
    let (index, at) = rows.parity;
    let image = File::options().write(true).open(&rows.pool.images()[index]);
    image.unwrap().write_all_at(&[0xee; 4096], at).unwrap();
    let (_, replaced) = rows.replace();
    let message = replaced.unwrap_err().to_string();
    let block = format!("block {}", start.0 + STRIPE_BYTES);
    assert!(message.contains(&block), "{message}");
    for faulty in &rows.faulty {
        faulty.disarm();
    }
    rows.assert_reads();
    rows.fs.unmount().unwrap();
}

#[test]
fn device_is_not_replaced_where_checksums_cannot_be_read() {
    // Metadata is on one device, and checksums are in several leaves.
    let profiles = ["-d", "raid5", "-m", "single", "-n", "4096"];
    let pool = Pool::make(3, 300, &profiles);
    let fs = mount(&pool);
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let contents = Random(8).bytes(16 << 20);
    file.unwrap().write_at(0, &contents).unwrap();
    drop(root);
    fs.unmount().unwrap();
    drop(fs);
    let (bad, data) = {
        let fs = pool.open(WriteOptions::default());
        let context = fs.context();
        let leaves = leaves(context, TreeId::CSUM).into_iter();
        let bad: Vec<_> = leaves.map(|leaf| copies(context, leaf)[0]).collect();
        let (_, row) = row(context, first_data(context)).unwrap();
        let has_no_bad = |device: usize| bad.iter().all(|(index, _)| *index != device);
        let data = row[..2].iter().find(|(index, _)| has_no_bad(*index));
        let data = *data.unwrap();
        (bad, data)
    };
    assert!(bad.len() > 2, "{bad:?}");
    let sector = |image: &std::path::Path| {
        let mut bytes = vec![0; 4096];
        let file = File::open(image).unwrap();
        file.read_exact_at(&mut bytes, data.1).unwrap();
        bytes
    };
    let right = sector(&pool.images()[data.0]);
    let faulty = pool.devices().into_iter().map(FaultDevice::new);
    let faulty: Vec<_> = faulty.map(Arc::new).collect();
    for (index, at) in bad.iter().copied().chain([data]) {
        faulty[index].arm(Fault {
            operation: Operation::Read,
            when: When::Touching(at..at + 4096),
            effect: Effect::Tear { seed: 0 },
        });
    }
    let below = faulty.iter();
    let below = below.map(|it| -> Arc<dyn BlockDevice> { Arc::<FaultDevice>::clone(it) });
    let fs = mount_on(&below.collect::<Vec<_>>());
    let image = pool.images()[0].with_extension("new");
    let number = data.0 as u64 + 1;
    let replace = || {
        File::create(&image).unwrap().set_len(300 << 20).unwrap();
        devices(&fs).replace_device(number, &open(&image), &mut Ignore)
    };
    replace().unwrap_err();
    assert!(!fs.is_read_only());
    assert!(crate::identify(&*faulty[data.0]).is_ok());
    // With its checksum the sector is reconstructed.
    for (index, _) in &bad {
        faulty[*index].disarm();
    }
    assert!(!replace().unwrap().is_cancelled);
    let file = fs.root().unwrap().lookup(name("file")).unwrap();
    assert!(read(&*file) == contents);
    drop(file);
    fs.unmount().unwrap();
    // Reads would be reconstructed from parity.
    assert!(sector(&image) == right);
}

#[test]
fn device_is_not_replaced_where_parity_is_lost_too() {
    let rows = Rows::make();
    rows.lose(rows.data);
    rows.lose(rows.parity);
    let (_, replaced) = rows.replace();
    replaced.unwrap_err();
    assert!(!rows.fs.is_read_only());
    for faulty in &rows.faulty {
        faulty.disarm();
    }
    rows.assert_reads();
    rows.fs.unmount().unwrap();
    let Rows {
        pool, fs, faulty, ..
    } = rows;
    drop((fs, faulty));
    assert_whole(&pool);
}

#[test]
fn failed_replacement_leaves_the_old_device() {
    let pool = Pool::make(2, 300, &["-d", "raid1", "-m", "raid1"]);
    let image = pool.images()[0].with_extension("new");
    let fs = mount(&pool);
    File::create(&image).unwrap().set_len(200 << 20).unwrap();
    let short = devices(&fs).replace_device(2, &open(&image), &mut Ignore);
    assert!(short.unwrap_err().to_string().contains("shorter"));
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let (models, cancelled) = with_load(&fs, 1, || {
        devices(&fs).replace_device(2, &open(&image), &mut Cancel)
    });
    assert!(cancelled.unwrap().is_cancelled);
    assert!(crate::identify(&*open(&image)).is_err());
    let faulty = FaultDevice::new(open(&image));
    faulty.arm(Fault {
        operation: Operation::Write,
        when: When::Nth(20),
        effect: Effect::Tear { seed: 0 },
    });
    let faulty: Arc<dyn BlockDevice> = Arc::new(faulty);
    devices(&fs)
        .replace_device(2, &faulty, &mut Ignore)
        .unwrap_err();
    assert_reads(&fs, 1, &models);
    assert!(!fs.is_read_only());
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
}

/// A device that ceases to be written to with a write that this selects.
#[derive(Debug)]
struct Ceasing {
    below: Arc<dyn BlockDevice>,
    selects: fn(u64, &[u8]) -> bool,
    /// Other writes fail from then on, too.
    is_final: bool,
    has_ceased: AtomicBool,
}

impl Ceasing {
    fn over(
        below: Arc<dyn BlockDevice>,
        is_final: bool,
        selects: fn(u64, &[u8]) -> bool,
    ) -> Arc<dyn BlockDevice> {
        Arc::new(Self {
            below,
            selects,
            is_final,
            has_ceased: AtomicBool::new(false),
        })
    }

    fn has_ceased(&self) -> bool {
        self.is_final && self.has_ceased.load(Ordering::SeqCst)
    }

    fn failed(&self, offset: u64, len: usize) -> IoError {
        let source = std::io::Error::other("no device there");
        IoError::new(self.name(), Operation::Write, offset, len as u64, source)
    }
}

impl BlockDevice for Ceasing {
    fn name(&self) -> &Arc<str> {
        self.below.name()
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        if self.has_ceased() {
            return Err(self.failed(offset, buf.len()));
        }
        if (self.selects)(offset, buf) {
            self.has_ceased.store(true, Ordering::SeqCst);
            return Err(self.failed(offset, buf.len()));
        }
        self.below.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), IoError> {
        if self.has_ceased() {
            return Err(self.failed(0, 0));
        }
        self.below.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.below.discard(range)
    }
}

fn is_primary_superblock(offset: u64, bytes: &[u8]) -> bool {
    offset == SUPERBLOCK_OFFSETS[0] && bytes.len() == SUPERBLOCK_BYTES
}

#[test]
fn replacement_that_fails_at_the_end_is_not_used() {
    let pool = Pool::make(2, 300, &["-d", "raid1", "-m", "raid1"]);
    let image = pool.images()[0].with_extension("new");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let fs = mount(&pool);
    // Commits wait while it gets its superblock.
    let failing = Ceasing::over(open(&image), true, |offset, bytes| {
        is_primary_superblock(offset, bytes) && bytes.iter().any(|byte| *byte != 0)
    });
    let (models, replaced) = with_load(&fs, 1, || {
        let replaced = devices(&fs).replace_device(2, &failing, &mut Ignore);
        fs.sync().unwrap();
        replaced
    });
    assert!(
        replaced
            .unwrap_err()
            .to_string()
            .contains("no device there")
    );
    assert!(!fs.is_read_only());
    assert_reads(&fs, 1, &models);
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
}

#[test]
fn devices_are_added_and_replaced_where_a_superblock_is_torn() {
    for adds in [true, false] {
        let mut pool = Pool::make(2, 300, &["-d", "raid1", "-m", "raid1"]);
        let image = pool.images()[0].with_extension("new");
        File::create(&image).unwrap().set_len(300 << 20).unwrap();
        // A filesystem is known by the first superblock of the device that is named first.
        let torn = usize::from(!adds);
        pool.tear_superblock(torn);
        let mut opened = pool.devices();
        if adds {
            opened.reverse();
        }
        let fs = mount_on(&opened);
        if adds {
            devices(&fs).add_device(&open(&image)).unwrap();
        } else {
            let replaced = devices(&fs).replace_device(2, &open(&image), &mut Ignore);
            assert!(!replaced.unwrap().is_cancelled);
        }
        fs.unmount().unwrap();
        drop((fs, opened));
        if !adds {
            pool.lose(torn);
        }
        pool.regain(image);
        assert_whole(&pool);
    }
}

#[test]
fn device_that_keeps_its_superblock_is_replaced_and_named() {
    let mut pool = Pool::make(1, 300, &["-m", "dup"]);
    let image = pool.images()[0].with_extension("new");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let old = Ceasing::over(pool.devices().remove(0), false, |offset, bytes| {
        is_primary_superblock(offset, bytes) && bytes.iter().all(|byte| *byte == 0)
    });
    let fs = mount_on(&[old]);
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    let target = open(&image);
    let replaced = devices(&fs).replace_device(1, &target, &mut Ignore);
    let message = replaced.unwrap_err().to_string();
    let expected = "replaced; the old device still has a superblock: no device there";
    assert!(message.ends_with(expected), "{message}");
    // It goes on with the new one.
    let contents = Random(3).bytes(200_000);
    file.write_at(0, &contents).unwrap();
    fs.sync().unwrap();
    // One of its own devices takes no other's place.
    let again = devices(&fs).replace_device(1, &target, &mut Ignore);
    let message = again.unwrap_err().to_string();
    assert!(message.contains("one of the same filesystem"), "{message}");
    drop((file, root));
    fs.unmount().unwrap();
    drop((fs, target));
    pool.lose(0);
    pool.regain(image);
    assert_whole(&pool);
    let fs = mount(&pool);
    let file = fs.root().unwrap().lookup(name("file")).unwrap();
    assert!(read(&*file) == contents);
    drop(file);
    fs.unmount().unwrap();
}

#[test]
fn nothing_is_copied_while_the_filesystem_is_frozen() {
    let pool = Pool::make(1, 300, &["-m", "single"]);
    let image = pool.images()[0].with_extension("new");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let fs = mount(&pool);
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    let contents = Random(3).bytes(3_000_000);
    file.write_at(0, &contents).unwrap();
    fs.sync().unwrap();
    let target = Arc::new(CountingDevice::new(open(&image)));
    let below: Arc<dyn BlockDevice> = Arc::<CountingDevice>::clone(&target);
    let mut sink = AtBegin {
        has_begun: &AtomicBool::new(false),
        goes_on: &AtomicBool::new(false),
    };
    let (has_begun, goes_on) = (sink.has_begun, sink.goes_on);
    thread::scope(|scope| {
        let replacing = scope.spawn(|| devices(&fs).replace_device(1, &below, &mut sink));
        while !has_begun.load(Ordering::Acquire) {
            thread::yield_now();
        }
        fs.freeze().unwrap();
        let before = target.counts().writes;
        goes_on.store(true, Ordering::Release);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(target.counts().writes, before);
        assert!(!replacing.is_finished());
        fs.thaw().unwrap();
        replacing.join().unwrap().unwrap();
    });
    assert!(read(&*file) == contents);
    drop((file, root));
    fs.unmount().unwrap();
}

/// Waits at the begin of a command.
struct AtBegin<'a> {
    has_begun: &'a AtomicBool,
    goes_on: &'a AtomicBool,
}

impl CheckSink for AtBegin<'_> {
    fn finding(&mut self, _: Finding) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn progress(&mut self, _: CheckProgress) -> ControlFlow<()> {
        self.has_begun.store(true, Ordering::Release);
        while !self.goes_on.load(Ordering::Acquire) {
            thread::yield_now();
        }
        ControlFlow::Continue(())
    }
}

struct Cancel;

impl CheckSink for Cancel {
    fn finding(&mut self, _: Finding) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn progress(&mut self, progress: CheckProgress) -> ControlFlow<()> {
        if progress.done > 0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}
