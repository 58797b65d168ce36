//! Allocator and inodes taken and freed on filesystems of every layout, with `e2fsck` as the judge.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Weak};

use platter::block::{Access, BlockDevice, FileDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_ext4::alloc::{
    ALLOC_INODE_CREDITS, Allocator, FREE_INODE_CREDITS, Reserve, SpaceCounts,
};
use platter_ext4::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_OFFSET_BYTES};
use platter_ext4::ondisk::{BlockNr, Geometry, Inode, InodeNr, Superblock};
use platter_ext4::txn::{CommitClient, Log};
use platter_ext4::{FsContext, alloc, inode};
use platter_vfs::FileKind;
use testkit::oracle::Verdict;
use testkit::oracle::{e2fsck, mke2fs};
use testkit::prng::Prng;
use zerocopy::{FromZeros, IntoBytes};

use crate::images::assert_clean;

/// An image that is changed without a journal.
struct Bench {
    volume: FsContext,
    space: Arc<Allocator>,
}

impl Bench {
    fn open(path: &Path) -> Self {
        let options = OpenOptions {
            access: Access::Write,
            ..OpenOptions::default()
        };
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, options).unwrap());
        let mut disk = DiskSuperblock::new_zeroed();
        device
            .read_at(SUPERBLOCK_OFFSET_BYTES, disk.as_mut_bytes())
            .unwrap();
        let superblock = Superblock::decode(&disk).unwrap();
        let geometry = Geometry::decode(&disk, &superblock).unwrap();
        let budget = Arc::new(MemoryBudget::new(32 << 20));
        let volume = FsContext::new(device, superblock, geometry, budget);
        let volume = volume.writable(Log::without_journal);
        let space = Arc::new(Allocator::open(&volume).unwrap());
        let client: Weak<dyn CommitClient> = Arc::<Allocator>::downgrade(&space);
        volume.log().unwrap().attach(client);
        Self { volume, space }
    }

    fn commit(&self) {
        self.volume.log().unwrap().commit_all().unwrap();
    }

    fn root(&self) -> Inode {
        inode::find(&self.volume, InodeNr::ROOT).unwrap().unwrap()
    }

    fn alloc(&self, goal: u64, want: u32) -> Option<Range<BlockNr>> {
        let (space, volume) = (&self.space, &self.volume);
        let taken = alloc::take(space, volume, BlockNr(goal), want, Reserve::Split).ok()?;
        let blocks = taken.blocks();
        let mut handle = volume.begin(2).unwrap();
        alloc::record(space, volume, &mut handle, taken).unwrap();
        Some(blocks)
    }

    fn free(&self, blocks: Range<BlockNr>) {
        let credits = self.space.free_credits(blocks.end.0 - blocks.start.0);
        let mut handle = self.volume.begin(credits).unwrap();
        alloc::free_blocks(&self.space, &self.volume, &mut handle, blocks).unwrap();
    }

    fn alloc_inode(&self, kind: FileKind, random: u64) -> Option<InodeNr> {
        let (space, volume) = (&self.space, &self.volume);
        let mut handle = volume.begin(ALLOC_INODE_CREDITS).unwrap();
        let root = self.root();
        alloc::alloc_inode(space, volume, &mut handle, &root, kind, random).ok()
    }

    fn free_inode(&self, number: InodeNr, was_dir: bool) {
        let mut handle = self.volume.begin(FREE_INODE_CREDITS).unwrap();
        alloc::free_inode(&self.space, &self.volume, &mut handle, number, was_dir).unwrap();
    }
}

/// Blocks marked in use are unreferenced, and nothing else is wrong: checksums, padding and flags hold.
fn assert_marked_only(path: &Path) {
    let (verdict, report) = e2fsck::report(path).unwrap();
    let Verdict::NotClean(problems) = verdict else {
        panic!("{verdict:?}: {report}");
    };
    let is_expected = |line: &String| {
        let expected = [
            "Block bitmap differences:",
            "Inode bitmap differences:",
            "Free blocks count wrong",
            "Free inodes count wrong",
            "Directories count wrong",
            "Fix? no",
            "********** WARNING: Filesystem still has errors",
        ];
        expected.iter().any(|text| line.contains(text))
    };
    assert!(problems.iter().all(is_expected), "{report}");
}

/// Takes a part of everything and gives it back, then all there is. `e2fsck` agrees when nothing is
/// left, and in between finds the bitmaps to be the only thing that is wrong.
fn assert_judged_clean(size_kib: u64, options: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs::make(&path, size_kib, options, None).unwrap();
    let before = take_some_and_free(&path, options);
    assert_clean(&path, "some");
    let bench = Bench::open(&path);
    assert_eq!(bench.space.stat(), before, "{options:?}");
    let mut all = Vec::new();
    while let Some(blocks) = bench.alloc(0, 32_768) {
        all.push(blocks);
    }
    let taken: u64 = all.iter().map(|blocks| blocks.end.0 - blocks.start.0).sum();
    assert_eq!(taken, before.free_blocks);
    let mut inodes = Vec::new();
    while let Some(number) = bench.alloc_inode(FileKind::Directory, inodes.len() as u64) {
        inodes.push(number);
    }
    assert_eq!(inodes.len() as u64, before.free_inodes);
    bench.commit();
    drop(bench);
    // Everything is marked as in use now, and the counts say so.
    let bench = Bench::open(&path);
    let full = SpaceCounts {
        free_blocks: 0,
        available_blocks: 0,
        free_inodes: 0,
    };
    assert_eq!(bench.space.stat(), full);
    for blocks in all {
        bench.free(blocks);
    }
    for number in inodes {
        bench.free_inode(number, true);
    }
    bench.commit();
    drop(bench);
    assert_clean(&path, "all");
}

fn take_some_and_free(path: &Path, options: &[&str]) -> SpaceCounts {
    let bench = Bench::open(path);
    let before = bench.space.stat();
    let mut random = Prng::named(options.concat().as_bytes());
    let (mut blocks, mut inodes) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        let goal = random.below(bench.volume.geometry.blocks_count);
        let want = u32::try_from(1 + random.below(70)).unwrap();
        blocks.extend(bench.alloc(goal, want));
        let was_dir = random.below(2) == 0;
        let kind = if was_dir {
            FileKind::Directory
        } else {
            FileKind::Regular
        };
        if let Some(number) = bench.alloc_inode(kind, random.next_u64()) {
            inodes.push((number, was_dir));
        }
    }
    bench.commit();
    drop(bench);
    assert_marked_only(path);
    let bench = Bench::open(path);
    for blocks in blocks {
        bench.free(blocks);
    }
    for (number, was_dir) in inodes {
        bench.free_inode(number, was_dir);
    }
    bench.commit();
    before
}

#[test]
fn ext2_and_ext3_stay_clean() {
    assert_judged_clean(20_000, &["-t", "ext2", "-b", "1024"]);
    assert_judged_clean(40_001, &["-t", "ext2", "-b", "4096", "-g", "1024"]);
    assert_judged_clean(30_000, &["-t", "ext3", "-b", "2048", "-J", "size=4"]);
    assert_judged_clean(10_000, &["-t", "ext2", "-b", "1024", "-r", "0"]);
}

#[test]
fn ext4_with_every_kind_of_checksum_stays_clean() {
    let sizes = ["-b", "1024", "-J", "size=4"];
    for features in [
        "metadata_csum,64bit",
        "metadata_csum,^64bit",
        "^metadata_csum,uninit_bg",
        "^metadata_csum,^uninit_bg,^flex_bg",
        "metadata_csum_seed",
    ] {
        let options = [&["-t", "ext4", "-O", features], &sizes[..]].concat();
        assert_judged_clean(60_000, &options);
    }
}

#[test]
fn ext4_with_inode_tables_not_zeroed_yet_stays_clean() {
    let lazy = "lazy_itable_init=1";
    for features in ["metadata_csum", "^metadata_csum,uninit_bg,^flex_bg"] {
        assert_judged_clean(
            300_000,
            &["-t", "ext4", "-O", features, "-E", lazy, "-g", "8192"],
        );
    }
}

#[test]
fn ext4_of_every_layout_stays_clean() {
    for features in [
        "meta_bg,^resize_inode",
        "meta_bg,^resize_inode,^flex_bg",
        "^flex_bg,^sparse_super,^resize_inode",
        "sparse_super2",
        "mmp",
    ] {
        assert_judged_clean(100_000, &["-t", "ext4", "-b", "1024", "-O", features]);
    }
    assert_judged_clean(60_000, &["-t", "ext4", "-b", "1024", "-G", "2"]);
    assert_judged_clean(
        60_000,
        &["-t", "ext4", "-b", "4096", "-g", "256", "-I", "512"],
    );
}

#[test]
fn ext4_with_clusters_stays_clean() {
    for (block, cluster) in [("1024", "16384"), ("4096", "65536"), ("2048", "4096")] {
        let options = ["-t", "ext4", "-O", "bigalloc", "-b", block, "-C", cluster];
        assert_judged_clean(100_007, &options);
    }
}
