//! Files that grow, and what they get beyond their end: how it keeps them whole, and when it is freed.

use std::ops::Range;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use platter_block::CountingDevice;
use platter_vfs::file::FileBlocks;
use platter_vfs::{Exchange, Extent, FallocateMode, SetAttr, XattrMode};

use super::tests::{budget, change_block, create, device_of, name, new_device};
use super::*;
use crate::file::group_block;
use crate::mkfs::MkfsOptions;
use crate::ondisk::AgBlock;
use crate::ondisk::btree::{BtreeKind, checksum_offset};
use crate::ops::eof_blocks;
use crate::preallocation::Preallocation;
use platter_ondisk::Uuid;
use platter_vfs::inode::CreateKind;
use platter_vfs::{Context, FixedClock, Inode, SystemClock, Timestamp};

const PIECE: usize = 64 << 10;
/// Sectors of a piece.
const PIECE_SECTORS: u64 = 128;

struct Mounted {
    xfs: Xfs,
    clock: Arc<FixedClock>,
    device: Arc<dyn BlockDevice>,
}

impl Mounted {
    fn new(preallocation: Preallocation) -> Self {
        Self::on(new_device(), preallocation)
    }

    fn on(device: Arc<dyn BlockDevice>, preallocation: Preallocation) -> Self {
        let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
        let options = MountOptions {
            preallocation,
            ..MountOptions::default()
        };
        let time: Arc<dyn Clock> = Arc::<FixedClock>::clone(&clock);
        let xfs = Xfs::mount_writable(Arc::clone(&device), &options, budget(), time);
        Self {
            xfs: xfs.unwrap(),
            clock,
            device,
        }
    }

    fn file(&self, text: &str) -> Arc<dyn Inode> {
        create(&*self.xfs.root().unwrap(), text, CreateKind::Regular).unwrap()
    }

    /// Unmounts, and mounts again.
    fn remount(self) -> Self {
        self.xfs.unmount().unwrap();
        let Self { xfs, device, .. } = self;
        drop(xfs);
        Self::on(device, Preallocation::Off)
    }

    /// Allocates all free blocks but so many.
    fn leave_blocks(&self, left: u64) {
        let file = self.file("space");
        let space = FallocateMode::Allocate { keep_size: false };
        let context = &self.xfs.superblock.context;
        let surplus = || {
            let free = context.mount().free_blocks().sum() - context.space().floor();
            u64::try_from(free).unwrap().saturating_sub(left)
        };
        let (mut at, mut count) = (0, surplus());
        while count > 0 {
            // Meanwhile the tree of mappings has a reservation.
            let end = at + (count - count / 64).saturating_sub(1).max(1) * 4096;
            file.fallocate(at..end, space).unwrap();
            (at, count) = (end, surplus());
        }
    }

    fn lookup(&self, text: &str) -> Arc<dyn Inode> {
        self.xfs.root().unwrap().lookup(name(text)).unwrap()
    }
}

/// Appends a piece that is durable.
fn append(file: &Arc<dyn Inode>) {
    file.append(&vec![7; PIECE]).unwrap();
    file.sync(false).unwrap();
}

fn sectors(file: &Arc<dyn Inode>) -> u64 {
    file.attr().unwrap().sectors
}

/// Where the block at an offset of a file lies.
fn place(file: &Arc<dyn Inode>, offset: u64) -> u64 {
    let mut places = Vec::new();
    let mut sink = |extent: Extent| {
        places.push(extent.place.unwrap().offset + (offset - extent.file.start.min(offset)));
        std::ops::ControlFlow::Continue(())
    };
    file.extents(offset..offset + 4096, &mut sink).unwrap();
    places[0]
}

fn extents(file: &Arc<dyn Inode>) -> usize {
    let mut count = 0;
    let mut sink = |_| {
        count += 1;
        std::ops::ControlFlow::Continue(())
    };
    file.extents(0..u64::MAX, &mut sink).unwrap();
    count
}

#[test]
fn files_that_grow_in_turn_have_few_extents() {
    const PIECES: u64 = 64;
    let counts = [Preallocation::Off, Preallocation::Dynamic].map(|preallocation| {
        let mounted = Mounted::new(preallocation);
        let files = ["one", "two"].map(|text| mounted.file(text));
        for _ in 0..PIECES {
            files.iter().for_each(append);
        }
        drop(files);
        let mounted = mounted.remount();
        ["one", "two"].map(|text| {
            let file = mounted.lookup(text);
            // Many extents take a block of their own.
            let indirect = sectors(&file) - PIECES * PIECE_SECTORS;
            assert!(indirect <= 8, "{preallocation:?}: {indirect}");
            extents(&file)
        })
    });
    let [off, dynamic] = counts;
    assert!(off.iter().all(|&count| count >= 32), "{off:?}");
    assert!(dynamic.iter().all(|&count| count <= 8), "{dynamic:?}");
}

#[test]
fn blocks_beyond_the_end_double_and_are_shown() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    let shown: Vec<u64> = (0..6)
        .map(|_| {
            append(&file);
            sectors(&file) / PIECE_SECTORS
        })
        .collect();
    assert_eq!(shown, [1, 3, 3, 7, 7, 7]);
    let truncated = SetAttr {
        size_bytes: Some(1),
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &truncated).unwrap();
    assert_eq!(sectors(&file), 8);
}

#[test]
fn first_close_frees_blocks_beyond_the_end() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    append(&file);
    append(&file);
    assert!(sectors(&file) > 2 * PIECE_SECTORS);
    file.closed();
    assert_eq!(sectors(&file), 2 * PIECE_SECTORS);
    append(&file);
    let kept = sectors(&file);
    assert!(kept > 3 * PIECE_SECTORS);
    file.closed();
    assert_eq!(sectors(&file), kept);
    // A file that is closed before it is written back gets none.
    let other = mounted.file("other");
    append(&other);
    other.append(&vec![7; PIECE]).unwrap();
    other.closed();
    other.sync(false).unwrap();
    assert_eq!(sectors(&other), 2 * PIECE_SECTORS);
}

#[test]
fn idle_files_lose_blocks_beyond_their_end() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let (idle, busy) = (mounted.file("idle"), mounted.file("busy"));
    for file in [&idle, &busy] {
        append(file);
        append(file);
    }
    mounted.clock.advance(Duration::from_secs(20));
    append(&busy);
    append(&busy);
    mounted.clock.advance(Duration::from_secs(20));
    eof_blocks::free_idle(&mounted.xfs.superblock);
    assert_eq!(sectors(&idle), 2 * PIECE_SECTORS);
    assert!(sectors(&busy) > 4 * PIECE_SECTORS);
    append(&idle);
    assert!(sectors(&idle) > 3 * PIECE_SECTORS);
}

#[test]
fn space_is_estimated_while_it_may_change() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let shown = |file: &Arc<dyn Inode>| {
        let attr = file.attr().unwrap();
        (attr.sectors, attr.space_is_estimated)
    };
    // Its blocks have mappings in the inode, wherever they come to lie.
    let file = mounted.file("file");
    file.append(&vec![7; PIECE]).unwrap();
    assert_eq!(shown(&file), (PIECE_SECTORS, false));
    file.sync(false).unwrap();
    assert_eq!(shown(&file), (PIECE_SECTORS, false));
    append(&file);
    assert_eq!(shown(&file), (3 * PIECE_SECTORS, true));
    mounted.clock.advance(Duration::from_secs(40));
    eof_blocks::free_idle(&mounted.xfs.superblock);
    assert_eq!(shown(&file), (2 * PIECE_SECTORS, false));
    // The mappings of this one get a block of their own.
    let scattered = mounted.file("scattered");
    for block in 0..30 {
        scattered.write_at(block * PIECE as u64, b"text").unwrap();
    }
    assert_eq!(shown(&scattered), (30 * 8, true));
    scattered.sync(false).unwrap();
    assert_eq!(shown(&scattered), (31 * 8, false));
}

/// Writes until there is no space. Returns how much that was.
fn fill(file: &Arc<dyn Inode>) -> u64 {
    let mut written = 0;
    for len in [1 << 20, 4096] {
        let piece = vec![3; len];
        while file.write_at(written, &piece).is_ok() {
            written += len as u64;
        }
    }
    file.sync(false).unwrap();
    written
}

#[test]
fn full_filesystem_holds_as_much_as_without() {
    let written = [Preallocation::Off, Preallocation::Dynamic].map(|preallocation| {
        let mounted = Mounted::new(preallocation);
        let growing: Vec<_> = (0..4)
            .map(|number| mounted.file(&format!("growing{number}")))
            .collect();
        for _ in 0..20 {
            growing.iter().for_each(append);
        }
        let written = fill(&mounted.file("filling"));
        for file in &growing {
            assert_eq!(sectors(file), 20 * PIECE_SECTORS, "{preallocation:?}");
        }
        mounted.xfs.unmount().unwrap();
        written
    });
    let [off, dynamic] = written;
    // What the trees of mappings take depends on how long their extents are.
    assert!(off.abs_diff(dynamic) <= 64 << 10, "{written:?}");
}

#[test]
fn blocks_that_were_asked_for_beyond_the_end_stay() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    append(&file);
    append(&file);
    let space = FallocateMode::Allocate { keep_size: true };
    let end = 2 * PIECE as u64;
    file.fallocate(end..end + (1 << 20), space).unwrap();
    let asked = 2 * PIECE_SECTORS + (1 << 20) / 512;
    assert_eq!(sectors(&file), asked);
    file.closed();
    append(&file);
    drop(file);
    let mounted = mounted.remount();
    assert_eq!(sectors(&mounted.lookup("file")), asked);
}

#[test]
fn fixed_preallocation_begins_with_the_first_block() {
    let mounted = Mounted::new(Preallocation::Fixed(1 << 20));
    let file = mounted.file("file");
    file.append(b"text").unwrap();
    file.sync(false).unwrap();
    assert_eq!(sectors(&file), (1 << 20) / 512);
    drop(file);
    let mounted = mounted.remount();
    assert_eq!(sectors(&mounted.lookup("file")), 8);
}

#[test]
fn close_during_writeback_loses_no_blocks() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    for number in 0..16 {
        let file = mounted.file(&format!("file{number}"));
        append(&file);
        file.append(&vec![7; PIECE]).unwrap();
        thread::scope(|scope| {
            let writeback = scope.spawn(|| file.sync(false).unwrap());
            file.closed();
            writeback.join().unwrap();
        });
        mounted.clock.advance(Duration::from_secs(40));
        eof_blocks::free_idle(&mounted.xfs.superblock);
        assert_eq!(sectors(&file), 2 * PIECE_SECTORS, "{number}");
    }
}

#[test]
fn fallocate_keeps_nothing_that_a_crash_left() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    append(&file);
    append(&file);
    let before = sectors(&file);
    drop(file);
    let mounted = crash(mounted, Preallocation::Dynamic);
    let file = mounted.lookup("file");
    assert!(before > 2 * PIECE_SECTORS);
    assert_eq!(sectors(&file), before);
    let space = FallocateMode::Allocate { keep_size: true };
    let end = 2 * PIECE as u64;
    file.fallocate(end..end + 4096, space).unwrap();
    assert_eq!(sectors(&file), 2 * PIECE_SECTORS + 8);
}

#[test]
fn holes_keep_no_blocks_that_were_beyond_the_end() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let files = ["written", "truncated"].map(|text| mounted.file(text));
    for file in &files {
        append(file);
        append(file);
        assert!(sectors(file) > 2 * PIECE_SECTORS);
    }
    let [written, truncated] = files;
    written.write_at(4 << 20, &[7; 4096]).unwrap();
    written.sync(false).unwrap();
    written.closed();
    assert_eq!(sectors(&written), 2 * PIECE_SECTORS + 8);
    let longer = SetAttr {
        size_bytes: Some(4 << 20),
        ..SetAttr::default()
    };
    truncated.set_attr(&Context::root(), &longer).unwrap();
    assert_eq!(sectors(&truncated), 2 * PIECE_SECTORS);
}

#[test]
fn threads_fill_a_filesystem_as_much_as_without() {
    const THREADS: usize = 4;
    const LEFT: u64 = 8192;
    let written = [Preallocation::Off, Preallocation::Dynamic].map(|preallocation| {
        let mounted = Mounted::new(preallocation);
        let files: Vec<_> = (0..THREADS)
            .map(|number| mounted.file(&format!("file{number}")))
            .collect();
        mounted.leave_blocks(LEFT);
        let fill = |file: &Arc<dyn Inode>| {
            let mut len = 0;
            for piece in [PIECE, 4096] {
                while file.append(&vec![3; piece]).is_ok() {
                    len += piece as u64;
                    // So that what is appended next finds blocks beyond the end.
                    file.sync(false).unwrap();
                }
            }
            len
        };
        let written: u64 = thread::scope(|scope| {
            let spawn = |file| scope.spawn(move || fill(file));
            let threads: Vec<_> = files.iter().map(spawn).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.sum()
        });
        let sizes = files.iter().map(|file| file.attr().unwrap().size_bytes);
        assert_eq!(sizes.sum::<u64>(), written);
        drop(files);
        mounted.xfs.unmount().unwrap();
        written
    });
    let [off, dynamic] = written;
    // What the trees of mappings take depends on how long their extents are.
    assert!(off.abs_diff(dynamic) <= 64 << 10, "{written:?}");
}

/// Writes to unwritten blocks before and after the filesystem is full, each of which becomes an extent of its own.
#[test]
fn writes_to_unwritten_blocks_of_a_full_filesystem_last() {
    const BLOCKS: u64 = 2000;
    for is_full in [false, true] {
        let mounted = Mounted::new(Preallocation::Dynamic);
        let file = mounted.file("file");
        let space = FallocateMode::Allocate { keep_size: false };
        file.fallocate(0..BLOCKS * 4096, space).unwrap();
        let fill_up = || {
            mounted.leave_blocks(256);
            fill(&mounted.file("filling"));
        };
        if is_full {
            fill_up();
        }
        let written: Vec<u64> = (0..BLOCKS).step_by(2).collect();
        for block in &written {
            file.write_at(block * 4096, &[5; 4096]).unwrap();
        }
        if !is_full {
            fill_up();
        }
        file.sync(false).unwrap();
        drop(file);
        let mounted = mounted.remount();
        let file = mounted.lookup("file");
        let mut found = [0; 4096];
        for block in written {
            file.read_at(block * 4096, &mut found).unwrap();
            assert_eq!(found, [5; 4096], "{block}");
        }
    }
}

/// Without trees that keep blocks, nothing but the reserve pool has what the tree of mappings needs.
#[test]
fn reserve_pool_is_for_writes_to_unwritten_blocks() {
    const BLOCKS: u64 = 40_000;
    let mut options = MkfsOptions::new(Uuid::from_bytes([7; 16]));
    for feature in ["reflink", "finobt", "inobtcount"] {
        options.set_feature(feature, false).unwrap();
    }
    let mounted = Mounted::on(device_of(&options), Preallocation::Off);
    let file = mounted.file("file");
    let space = FallocateMode::Allocate { keep_size: false };
    file.fallocate(0..BLOCKS * 4096, space).unwrap();
    mounted.leave_blocks(256);
    fill(&mounted.file("filling"));
    let stat = mounted.xfs.stat_fs().unwrap();
    assert!(stat.blocks_available < 256, "{stat:?}");
    // Files that are made and attributes leave it, too; removing takes from it.
    let root = mounted.xfs.root().unwrap();
    let long = |number: u32| format!("{number:0200}");
    let is_full = |error: platter_vfs::Error| {
        matches!(error, platter_vfs::Error::Condition(Condition::NoSpace))
    };
    let make = |number: u32| create(&*root, &long(number), CreateKind::Regular);
    let made = (0..100_000)
        .find(|&number| make(number).is_err_and(is_full))
        .unwrap();
    let value = vec![7; 60_000];
    let set = file.set_xattr(&Context::root(), b"user.a", &value, XattrMode::Set);
    assert!(set.is_err_and(is_full));
    let context = &mounted.xfs.superblock.context;
    let pool = (context.geometry().data_blocks() / 20).cast_signed();
    assert!(context.mount().free_blocks().sum() >= pool);
    for number in 0..made {
        root.unlink(&Context::root(), name(&long(number))).unwrap();
    }
    drop(root);
    for block in (0..BLOCKS).step_by(2) {
        file.write_at(block * 4096, &[5; 4096]).unwrap();
    }
    file.sync(false).unwrap();
    drop(file);
    let mounted = mounted.remount();
    let file = mounted.lookup("file");
    let mut found = [0; 4096];
    for block in 0..BLOCKS {
        file.read_at(block * 4096, &mut found).unwrap();
        let expected = if block % 2 == 0 { 5 } else { 0 };
        assert_eq!(found, [expected; 4096], "{block}");
    }
}

#[test]
fn synced_appends_write_no_more_than_without() {
    const APPENDS: usize = 256;
    let counts = [Preallocation::Off, Preallocation::Dynamic].map(|preallocation| {
        let counted = Arc::new(CountingDevice::new(new_device()));
        let device: Arc<dyn BlockDevice> = Arc::<CountingDevice>::clone(&counted);
        let mounted = Mounted::on(device, preallocation);
        let file = mounted.file("file");
        append(&file);
        let before = counted.counts();
        for _ in 0..APPENDS {
            file.append(&[7; 4096]).unwrap();
            file.sync(false).unwrap();
        }
        counted.counts() - before
    });
    let [off, dynamic] = counts;
    assert!(off.writes >= APPENDS as u64, "{off:?}");
    assert!(dynamic.writes <= off.writes, "{off:?}, {dynamic:?}");
    assert!(
        dynamic.write_bytes <= off.write_bytes,
        "{off:?}, {dynamic:?}"
    );
    assert!(dynamic.flushes <= off.flushes, "{off:?}, {dynamic:?}");
}

#[test]
fn frozen_filesystem_has_no_blocks_beyond_ends() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    append(&file);
    append(&file);
    assert!(sectors(&file) > 2 * PIECE_SECTORS);
    mounted.xfs.freeze().unwrap();
    assert_eq!(sectors(&file), 2 * PIECE_SECTORS);
    mounted.xfs.thaw().unwrap();
    append(&file);
    assert!(sectors(&file) > 3 * PIECE_SECTORS);
}

#[test]
fn attribute_of_a_growing_file_finds_space() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    for _ in 0..8 {
        append(&file);
    }
    let before = sectors(&file);
    mounted.leave_blocks(4);
    assert_eq!(sectors(&file), before);
    let value = vec![6; 60 << 10];
    assert!(before > 8 * PIECE_SECTORS + value.len() as u64 / 512);
    let context = Context::root();
    file.set_xattr(&context, b"user.large", &value, XattrMode::Set)
        .unwrap();
}

#[test]
fn truncated_file_is_as_small_as_a_new_one() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    append(&file);
    append(&file);
    file.closed();
    append(&file);
    assert!(sectors(&file) > 3 * PIECE_SECTORS);
    let empty = SetAttr {
        size_bytes: Some(0),
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &empty).unwrap();
    file.append(&[7; 4096]).unwrap();
    file.sync(false).unwrap();
    assert_eq!(sectors(&file), 8);
    // What it has beyond its end goes with its next close, as if it had never been closed.
    file.closed();
    append(&file);
    append(&file);
    assert!(sectors(&file) > 2 * PIECE_SECTORS + 8);
    file.closed();
    assert_eq!(sectors(&file), 2 * PIECE_SECTORS + 8);
}

#[test]
fn moved_contents_take_nothing_from_beyond_the_end_along() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let files = ["collapsed", "inserted"].map(|text| mounted.file(text));
    for file in &files {
        append(file);
        append(file);
        assert!(sectors(file) > 2 * PIECE_SECTORS);
    }
    let piece = 0..PIECE as u64;
    files[0]
        .fallocate(piece.clone(), FallocateMode::CollapseRange)
        .unwrap();
    assert_eq!(sectors(&files[0]), PIECE_SECTORS);
    files[1]
        .fallocate(piece, FallocateMode::InsertRange)
        .unwrap();
    assert_eq!(sectors(&files[1]), 2 * PIECE_SECTORS);
}

#[test]
fn holes_are_punched_beyond_the_end() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    file.append(&[7; 5000]).unwrap();
    let space = FallocateMode::Allocate { keep_size: true };
    file.fallocate(0..1 << 20, space).unwrap();
    assert_eq!(sectors(&file), (1 << 20) / 512);
    // From the third to the ninth block, and to the end of the hundredth.
    let punch = |range| file.fallocate(range, FallocateMode::PunchHole).unwrap();
    punch(5000..40_000);
    assert_eq!(sectors(&file), (1 << 20) / 512 - 7 * 8);
    punch(200_000..100 * 4096);
    assert_eq!(sectors(&file), (1 << 20) / 512 - (7 + 51) * 8);
    punch(1..1 << 40);
    assert_eq!(sectors(&file), 8);
}

#[test]
fn failed_fallocate_keeps_nothing_beyond_the_end() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    let file = mounted.file("file");
    mounted.leave_blocks(16_384);
    let space = FallocateMode::Allocate { keep_size: true };
    file.fallocate(0..1 << 40, space).unwrap_err();
    append(&file);
    append(&file);
    assert!(sectors(&file) > 2 * PIECE_SECTORS);
    file.closed();
    assert_eq!(sectors(&file), 2 * PIECE_SECTORS);
}

/// As if the computer had crashed.
fn crash(mounted: Mounted, preallocation: Preallocation) -> Mounted {
    let Mounted { xfs, device, .. } = mounted;
    drop(xfs);
    Mounted::on(device, preallocation)
}

#[test]
fn close_and_time_free_what_a_crash_left_beyond_ends() {
    for preallocation in [Preallocation::Dynamic, Preallocation::Off] {
        let mounted = Mounted::new(Preallocation::Dynamic);
        let names = ["closed", "written", "read"];
        let files = names.map(|text| mounted.file(text));
        for _ in 0..2 {
            files.iter().for_each(append);
        }
        let before = sectors(&files[0]);
        assert!(before > 2 * PIECE_SECTORS);
        drop(files);
        let mounted = crash(mounted, preallocation);
        let [closed, written, read] = names.map(|text| mounted.lookup(text));
        closed.closed();
        assert_eq!(sectors(&closed), 2 * PIECE_SECTORS);
        written.write_at(0, &[5; 4096]).unwrap();
        mounted.clock.advance(Duration::from_secs(40));
        eof_blocks::free_idle(&mounted.xfs.superblock);
        assert_eq!(sectors(&written), 2 * PIECE_SECTORS);
        read.read_at(0, &mut [0; 10]).unwrap();
        assert_eq!(sectors(&read), before);
    }
}

fn free_blocks(mounted: &Mounted) -> i64 {
    mounted.xfs.superblock.context.mount().free_blocks().sum()
}

/// The tree of mappings may need a block for each half leaf of mappings, however many calls write them.
#[test]
fn adjacent_writes_reserve_for_the_mapping_tree_once() {
    const BLOCKS: u64 = 1000;
    let mounted = Mounted::new(Preallocation::Off);
    for is_allocated in [false, true] {
        let file = mounted.file(if is_allocated { "allocated" } else { "new" });
        if is_allocated {
            let space = FallocateMode::Allocate { keep_size: false };
            file.fallocate(0..BLOCKS * 4096, space).unwrap();
        }
        let before = free_blocks(&mounted);
        for block in 0..BLOCKS {
            file.write_at(block * 4096, &[5; 4096]).unwrap();
        }
        let contents = if is_allocated { 0 } else { BLOCKS };
        let reserved = u64::try_from(before - free_blocks(&mounted)).unwrap();
        assert!(
            reserved >= contents && reserved - contents <= 16,
            "{reserved}"
        );
        // What is written returns its part.
        file.write_at(10 << 22, &[5; 4096]).unwrap();
        file.sync(false).unwrap();
        assert_eq!(before - free_blocks(&mounted), (contents + 1).cast_signed());
    }
}

#[test]
fn filled_filesystem_has_nothing_left_after_a_sync() {
    let mounted = Mounted::new(Preallocation::Dynamic);
    mounted.leave_blocks(3000);
    let file = mounted.file("file");
    for block in 0_u64.. {
        if file.write_at(block * 4096, &[5; 4096]).is_err() {
            break;
        }
    }
    file.sync(false).unwrap();
    let left = mounted.xfs.stat_fs().unwrap().blocks_available;
    assert!(left <= 4, "{left}");
}

/// A file in use that has nothing beyond its end is not waited for; one that has is.
#[test]
fn no_space_is_reported_at_once_where_no_file_in_use_has_some() {
    for has_some in [false, true] {
        let mounted = Mounted::new(Preallocation::Dynamic);
        mounted.leave_blocks(if has_some { 16_384 } else { 3000 });
        let used = mounted.file("used");
        append(&used);
        append(&used);
        // Where space is scarce, none is left to grow into after so many blocks.
        assert_eq!(sectors(&used) > 2 * PIECE_SECTORS, has_some);
        let number = InodeNr::new(used.id().number).unwrap();
        let used = mounted.xfs.superblock.find(number).unwrap().unwrap();
        let (locked, is_locked) = channel();
        let (done, is_done) = channel::<()>();
        let took = thread::scope(|scope| {
            // The other thread ends also where this one fails.
            let done = done;
            scope.spawn(move || {
                let _lock = used.inode_lock().write();
                locked.send(()).unwrap();
                is_done.recv().unwrap();
            });
            is_locked.recv().unwrap();
            let filling = mounted.file("filling");
            fill(&filling);
            let clock = SystemClock::new();
            let append = || {
                let begun = clock.monotonic();
                filling.append(&vec![3; 1 << 20]).unwrap_err();
                clock.monotonic().saturating_sub(begun)
            };
            let took = (0..3).map(|_| append()).min();
            done.send(()).unwrap();
            took.unwrap()
        });
        let waited = Duration::from_millis(200);
        assert_eq!(took >= waited, has_some, "{took:?}");
    }
}

/// Each dirty block that has no neighbour reserves one for the tree of mappings, which most do not need.
#[test]
fn reservations_of_dirty_files_do_not_keep_others_from_space() {
    // Less than what has writers throttled.
    const DIRTY: u64 = 900;
    let dirty_and_full = || {
        let mounted = Mounted::new(Preallocation::Off);
        let dirty = mounted.file("dirty");
        mounted.leave_blocks(2 * DIRTY + 40);
        for block in 0..DIRTY {
            dirty.write_at(block * 8192, &[5; 4096]).unwrap();
        }
        let left = mounted.xfs.stat_fs().unwrap().blocks_available;
        assert!(left <= 40, "{left}");
        (mounted, dirty)
    };
    let (_mounted, dirty) = dirty_and_full();
    let value = vec![6; 60 << 10];
    for number in 0..10 {
        let name = format!("user.{number}");
        let set = dirty.set_xattr(&Context::root(), name.as_bytes(), &value, XattrMode::Set);
        set.unwrap();
    }
    let (mounted, _dirty) = dirty_and_full();
    let root = mounted.xfs.root().unwrap();
    for number in 0..3000 {
        create(&*root, &format!("{number:0200}"), CreateKind::Regular).unwrap();
    }
    let (mounted, dirty) = dirty_and_full();
    let root = mounted.xfs.root().unwrap();
    root.unlink(&Context::root(), name("dirty")).unwrap();
    for block in DIRTY..DIRTY + 100 {
        dirty.write_at(block * 8192, &[5; 4096]).unwrap();
    }
}

/// Of so many times four blocks, two are shared, with two reference counts.
const FOURS: u16 = 350;

fn partly_shared(mounted: &Mounted) -> Arc<dyn Inode> {
    let [file, second, third] = ["file", "second", "third"].map(|name| mounted.file(name));
    file.write_at(0, &vec![7; usize::from(FOURS) * 16384])
        .unwrap();
    file.sync(false).unwrap();
    for at in (0..FOURS).map(|four| u64::from(four) * 16384) {
        second.clone_range(&*file, at..at + 8192, at).unwrap();
        third.clone_range(&*file, at + 4096..at + 8192, at).unwrap();
    }
    file
}

/// The first extents of a file, and which of them are shared.
fn parts(file: &Arc<dyn Inode>, most: usize) -> Vec<(Range<u64>, bool)> {
    let mut parts = Vec::new();
    let mut sink = |extent: Extent| {
        parts.push((extent.file, extent.shared));
        if parts.len() == most {
            return std::ops::ControlFlow::Break(());
        }
        std::ops::ControlFlow::Continue(())
    };
    file.extents(0..u64::MAX, &mut sink).unwrap();
    parts
}

/// Blocks next to each other that are shared are one extent, though they have several reference counts.
#[test]
fn extents_with_many_reference_counts_are_listed_whole() {
    let mounted = Mounted::new(Preallocation::Off);
    let file = partly_shared(&mounted);
    let all: Vec<_> = (0..u64::from(FOURS) * 2)
        .map(|part| (part * 8192..(part + 1) * 8192, part % 2 == 0))
        .collect();
    assert_eq!(parts(&file, usize::MAX), all);
    assert_eq!(parts(&file, 600), all[..600]);
}

/// A leaf whose last record lies within the next leaf is valid by itself.
#[test]
fn extents_ascend_where_reference_counts_overlap() {
    const BLOCK: usize = 4096;
    const POINTERS: usize = 56 + (BLOCK - 56) / 8 * 4;
    let mounted = Mounted::new(Preallocation::Off);
    let file = partly_shared(&mounted);
    let geometry = mounted.xfs.context().geometry().clone();
    let (ag, _) = group_block(&geometry, place(&file, 0));
    let root = mounted.xfs.context().agf(ag).unwrap().refcount.unwrap();
    assert_eq!(root.levels, 2);
    drop(file);
    mounted.xfs.unmount().unwrap();
    let Mounted { xfs, device, .. } = mounted;
    drop(xfs);
    let at = |block: u32| geometry.byte_offset(geometry.fs_block(ag, AgBlock(block)));
    let mut node = [0; BLOCK];
    device.read_at(at(root.block.0), &mut node).unwrap();
    let first = u32::from_be_bytes(node[POINTERS..POINTERS + 4].try_into().unwrap());
    let sum = checksum_offset(BtreeKind::Refcount);
    change_block(&*device, at(first), (BLOCK, sum), |leaf| {
        let records = usize::from(u16::from_be_bytes([leaf[6], leaf[7]]));
        let last = &mut leaf[56 + (records - 1) * 12..][..4];
        let start = u32::from_be_bytes(last.try_into().unwrap());
        last.copy_from_slice(&(start + 500).to_be_bytes());
    });
    let mounted = Mounted::on(device, Preallocation::Off);
    let file = mounted.xfs.root().unwrap().lookup(name("file")).unwrap();
    let parts = parts(&file, usize::MAX);
    let mut end = 0;
    for (part, _) in &parts {
        assert!(part.start == end && part.end > end, "{part:?} after {end}");
        end = part.end;
    }
    assert_eq!(end, u64::from(FOURS) * 16384);
}

/// It is written where it is, and needs no copy any more.
#[test]
fn block_that_is_not_shared_any_more_keeps_no_reservation() {
    let mounted = Mounted::new(Preallocation::Off);
    let (file, clone) = (mounted.file("file"), mounted.file("clone"));
    append(&file);
    clone.clone_range(&*file, 0..PIECE as u64, 0).unwrap();
    let before = free_blocks(&mounted);
    file.write_at(4096, &[6; 4096]).unwrap();
    assert!(free_blocks(&mounted) < before);
    drop(clone);
    let root = mounted.xfs.root().unwrap();
    root.unlink(&Context::root(), name("clone")).unwrap();
    // What makes the block this file's alone is durable with another one.
    mounted.file("other").sync(false).unwrap();
    let unshared = free_blocks(&mounted);
    file.sync(false).unwrap();
    assert!(free_blocks(&mounted) > unshared);
    assert_eq!(sectors(&file), PIECE_SECTORS);
}

/// A crash brings the clone back.
#[test]
fn block_that_was_shared_is_copied_until_that_is_durable() {
    let mounted = Mounted::new(Preallocation::Off);
    let (file, clone) = (mounted.file("file"), mounted.file("clone"));
    append(&file);
    clone.clone_range(&*file, 0..PIECE as u64, 0).unwrap();
    clone.sync(false).unwrap();
    let first = place(&file, 0);
    drop(clone);
    let root = mounted.xfs.root().unwrap();
    root.unlink(&Context::root(), name("clone")).unwrap();
    let write = |byte: u8| {
        file.write_at(0, &[byte; 4096]).unwrap();
        file.sync(false).unwrap();
    };
    write(1);
    let second = place(&file, 0);
    assert_ne!(second, first);
    write(2);
    assert_eq!(place(&file, 0), second);
}

/// A crash gives it back to the other file, or to the place that it had.
#[test]
fn block_that_was_moved_is_copied_until_that_is_durable() {
    let mounted = Mounted::new(Preallocation::Off);
    let [file, other] = ["file", "other"].map(|text| mounted.file(text));
    append(&file);
    append(&other);
    let write = |byte: u8| {
        file.write_at(0, &[byte; 4096]).unwrap();
        file.sync(false).unwrap();
    };
    let others = place(&other, 0);
    let exchange = Exchange {
        offset: 0,
        other_offset: 0,
        len_bytes: None,
        written_only: false,
        dry_run: false,
    };
    file.exchange_range(&*other, &exchange).unwrap();
    assert_eq!(place(&file, 0), others);
    write(1);
    let copied = place(&file, 0);
    assert_ne!(copied, others);
    write(2);
    assert_eq!(place(&file, 0), copied);
    let next = place(&file, 4096);
    file.fallocate(0..4096, FallocateMode::CollapseRange)
        .unwrap();
    assert_eq!(place(&file, 0), next);
    // A collapse is durable when it returns.
    write(3);
    assert_eq!(place(&file, 0), next);
}

/// Blocks that both files have at the same places of a range have an owner for each already.
#[test]
fn files_that_share_blocks_exchange_the_others() {
    let mut options = MkfsOptions::new(Uuid::from_bytes([7; 16]));
    options.set_feature("rmapbt", true).unwrap();
    let mounted = Mounted::on(device_of(&options), Preallocation::Off);
    let (file, clone) = (mounted.file("file"), mounted.file("clone"));
    append(&file);
    clone.clone_range(&*file, 0..PIECE as u64, 0).unwrap();
    clone.write_at(8192, &[6; 4096]).unwrap();
    clone.sync(false).unwrap();
    let places = |file: &Arc<dyn Inode>| [0, 4096, 8192, 12288].map(|at| place(file, at));
    let (before, of_clone) = (places(&file), places(&clone));
    let exchange = Exchange {
        offset: 0,
        other_offset: 0,
        len_bytes: Some(PIECE as u64),
        written_only: false,
        dry_run: false,
    };
    file.exchange_range(&*clone, &exchange).unwrap();
    assert_eq!((places(&file), places(&clone)), (of_clone, before));
    let mut bytes = [0; 4096];
    file.read_at(8192, &mut bytes).unwrap();
    assert_eq!(bytes, [6; 4096]);
    drop((file, clone));
    mounted.remount();
}

/// `FS_IOC_FSSETXATTR` sets both: a hint without its flag, or a flag without its hint, is corrupt to Linux.
#[test]
fn hints_that_are_set_with_other_flags_are_whole() {
    const NODUMP: u32 = 0x40;
    const XFLAGS: u32 = 0x800 | 0x1_0000;
    let mounted = Mounted::new(Preallocation::Off);
    let file = mounted.file("file");
    for (flags, xflags, bytes) in [(NODUMP, XFLAGS, 65536), (0, 0, 0)] {
        let changes = SetAttr {
            flags: Some(flags),
            xflags: Some(xflags),
            extent_size_bytes: Some(bytes),
            cow_extent_size_bytes: Some(bytes),
            ..SetAttr::default()
        };
        let attr = file.set_attr(&Context::root(), &changes).unwrap();
        assert_eq!(attr.flags, flags);
        let found = file.extended_flags().unwrap();
        let hints = (found.extent_size_bytes, found.cow_extent_size_bytes);
        assert_eq!((found.xflags, hints), (xflags, (bytes, bytes)));
    }
}

/// What takes links is up to the flag of the directory alone; files have none.
#[test]
fn directories_with_the_flag_take_no_new_links() {
    const NOSYMLINKS: u32 = 0x400;
    let mounted = Mounted::new(Preallocation::Off);
    let root = mounted.xfs.root().unwrap();
    let context = Context::root();
    let changes = |xflags| SetAttr {
        xflags: Some(xflags),
        ..SetAttr::default()
    };
    let directory = create(&*root, "dir", CreateKind::Directory).unwrap();
    let link = || create(&*directory, "link", CreateKind::Symlink(b"target".to_vec()));
    directory.set_attr(&context, &changes(NOSYMLINKS)).unwrap();
    assert_eq!(directory.extended_flags().unwrap().xflags, NOSYMLINKS);
    let refused = link().unwrap_err();
    assert!(matches!(
        refused,
        platter_vfs::Error::Condition(Condition::NotPermitted)
    ));
    let file = create(&*directory, "file", CreateKind::Regular).unwrap();
    file.set_attr(&context, &changes(NOSYMLINKS)).unwrap();
    assert_eq!(file.extended_flags().unwrap().xflags, 0);
    directory.set_attr(&context, &changes(0)).unwrap();
    link().unwrap();
}
