//! Files that grow, and what they get beyond their end: how it keeps them whole, and when it is freed.

use std::time::Duration;

use platter_vfs::{FallocateMode, SetAttr};

use super::tests::{budget, create, name, new_device};
use super::*;
use crate::preallocation::Preallocation;
use platter_vfs::inode::CreateKind;
use platter_vfs::{Context, FixedClock, Inode, Timestamp};

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

    fn lookup(&self, text: &str) -> Arc<dyn Inode> {
        self.xfs.root().unwrap().lookup(name(text)).unwrap()
    }
}

/// Appends a piece that is durable.
fn append(file: &Arc<dyn Inode>) {
    file.append(&[7; PIECE]).unwrap();
    file.sync(false).unwrap();
}

fn sectors(file: &Arc<dyn Inode>) -> u64 {
    file.attr().unwrap().sectors
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
    other.append(&[7; PIECE]).unwrap();
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
    mounted.xfs.superblock.free_idle_eof_blocks();
    assert_eq!(sectors(&idle), 2 * PIECE_SECTORS);
    assert!(sectors(&busy) > 4 * PIECE_SECTORS);
    append(&idle);
    assert!(sectors(&idle) > 3 * PIECE_SECTORS);
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
