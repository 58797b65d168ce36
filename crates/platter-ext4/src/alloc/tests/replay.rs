//! Blocks and inodes that a replay of fast commits marks.

use std::ops::Range;

use platter_ondisk::Rule as _;

use super::rules::{GROUP, rule, with_bit};
use super::sample::{Sample, Shape};
use super::*;
use crate::alloc;
use crate::txn::CommitClient;

/// The filesystem of a sample in the hands of a replay.
struct Replay {
    sample: Sample,
    space: Arc<Allocator>,
}

impl Replay {
    fn of(sample: Sample, excluded: Vec<Range<u64>>) -> Self {
        let sample = Sample::without_client(sample.device);
        let space = Arc::new(Allocator::open_for_replay(&sample.fs, excluded).unwrap());
        let client: Arc<dyn CommitClient> = Arc::<Allocator>::clone(&space);
        sample.fs.log().unwrap().attach(Arc::downgrade(&client));
        Self { sample, space }
    }

    fn mark(&self, blocks: Range<u64>, in_use: bool) {
        let fs = &self.sample.fs;
        let count = blocks.end - blocks.start;
        let mut handle = fs.begin(self.space.free_credits(count)).unwrap();
        let blocks = BlockNr(blocks.start)..BlockNr(blocks.end);
        self.space.mark(fs, &mut handle, blocks, in_use).unwrap();
    }

    /// Commits, and opens the filesystem again, whose groups agree with their descriptors.
    fn reopened(self) -> Sample {
        self.sample.commit();
        let sample = Sample::on(self.sample.device);
        for group in (0..sample.fs.geometry.groups_count).map(GroupNr) {
            drop(slot::clusters(&sample.space, &sample.fs, group).unwrap());
            drop(slot::inodes(&sample.space, &sample.fs, group).unwrap());
        }
        sample
    }
}

fn number(number: u32) -> InodeNr {
    InodeNr::new(number).unwrap()
}

#[test]
fn marks_count_whatever_was_there_before() {
    for shape in Shape::ALL {
        let replay = Replay::of(Sample::new(shape), Vec::new());
        let free = |blocks: Range<u64>| {
            blocks
                .map(BlockNr)
                .filter(|&block| replay.space.may_hold_contents(block, 16))
                .map(|block| block.0)
                .collect::<Vec<_>>()
        };
        let ratio = u64::from(shape.cluster_blocks);
        let first = free(200..4000)[0].next_multiple_of(ratio)
            + replay.sample.fs.geometry.first_data_block.0 % ratio;
        for _ in 0..2 {
            replay.mark(first..first + 3 * ratio, true);
            replay.mark(first + ratio..first + 2 * ratio, false);
        }
        let sample = replay.reopened();
        let is_free = |cluster: u64| {
            let block = BlockNr(first + cluster * ratio);
            alloc::is_free(&sample.space, &sample.fs, block)
        };
        assert_eq!([0, 1, 2].map(is_free), [false, true, false], "{shape:?}");
    }
}

#[test]
fn blocks_of_records_are_not_allocated() {
    let sample = Sample::new(Shape::PLAIN);
    let blocks = sample.fs.geometry.blocks_count;
    let replay = Replay::of(sample, vec![1..700, 701..blocks]);
    let fs = &replay.sample.fs;
    let mut handle = fs.begin(2 * RECORD_CREDITS).unwrap();
    let mut alloc = || {
        let space = &replay.space;
        alloc::alloc_blocks(space, fs, &mut handle, BlockNr(100), 1, Reserve::Split)
    };
    assert_eq!(alloc().unwrap(), BlockNr(700)..BlockNr(701));
    assert!(refused(&alloc()));
}

#[test]
fn every_request_may_use_all_of_the_space() {
    for shape in Shape::ALL {
        let replay = Replay::of(Sample::new(shape), Vec::new());
        let (fs, space) = (&replay.sample.fs, &replay.space);
        assert!(space.stat().free_blocks > 0);
        let refusal = loop {
            let mut handle = fs.begin(RECORD_CREDITS).unwrap();
            let found = alloc::alloc_blocks(
                space,
                fs,
                &mut handle,
                BlockNr(100),
                4096,
                Reserve::Ordinary,
            );
            if found.is_err() {
                break found;
            }
        };
        assert!(refused(&refusal));
        assert_eq!(space.stat().free_blocks, 0, "{shape:?}");
    }
}

#[test]
fn freed_blocks_are_not_allocated_again() {
    let sample = Sample::new(Shape::PLAIN);
    let blocks = sample.fs.geometry.blocks_count;
    let replay = Replay::of(sample, vec![1..700, 701..blocks]);
    replay.mark(700..701, true);
    replay.mark(700..701, false);
    let fs = &replay.sample.fs;
    let mut handle = fs.begin(RECORD_CREDITS).unwrap();
    let space = &replay.space;
    let found = alloc::alloc_blocks(space, fs, &mut handle, BlockNr(100), 1, Reserve::Split);
    assert!(refused(&found));
}

#[test]
fn bitmap_counts_more_than_its_descriptor() {
    let first = u64::from(Shape::PLAIN.blocks_per_group) * u64::from(GROUP.0) + 1;
    for is_repaired in [false, true] {
        let corrupt = with_bit(200, false);
        assert!(slot::clusters(&corrupt.space, &corrupt.fs, GROUP).is_err());
        let replay = Replay::of(corrupt, Vec::new());
        if is_repaired {
            // In use already: what changes is the descriptor.
            replay.mark(first + 200..first + 201, true);
            replay.reopened();
        } else {
            replay.sample.commit();
            let sample = Sample::on(replay.sample.device);
            assert!(slot::clusters(&sample.space, &sample.fs, GROUP).is_err());
        }
    }
}

#[test]
fn metadata_is_not_marked() {
    let replay = Replay::of(Sample::new(Shape::PLAIN), Vec::new());
    let fs = &replay.sample.fs;
    let desc = groups::read_descriptor(fs, GROUP).unwrap();
    let blocks = desc.inode_table..BlockNr(desc.inode_table.0 + 1);
    let mut handle = fs.begin(RECORD_CREDITS).unwrap();
    for (in_use, broken) in [(false, SpaceRule::FreedOwn), (true, SpaceRule::MarkedOwn)] {
        let marked = replay.space.mark(fs, &mut handle, blocks.clone(), in_use);
        assert_eq!(rule(marked), broken.text());
    }
}

#[test]
fn marked_inodes_are_in_use_and_their_table_defined() {
    for shape in Shape::ALL {
        let replay = Replay::of(Sample::new(shape), Vec::new());
        let fs = &replay.sample.fs;
        let last = shape.inodes_per_group * 2;
        let space = &replay.space;
        let blank = space.blank_table_blocks(fs, number(last)).unwrap();
        let has_sums = fs.geometry.features.has_group_csum();
        assert_eq!(blank.is_empty(), !has_sums, "{shape:?}");
        let mut handle = fs.begin(2 * ALLOC_INODE_CREDITS).unwrap();
        for _ in 0..2 {
            space.mark_inode(fs, &mut handle, number(last)).unwrap();
            let again = space.blank_table_blocks(fs, number(last)).unwrap();
            assert!(again.is_empty());
        }
        let group = GroupNr(1);
        assert_eq!(space.inodes_in_use(fs, group).unwrap(), [number(last)]);
        space.set_directories(fs, &mut handle, group, 1).unwrap();
        drop(handle);
        let sample = replay.reopened();
        let desc = groups::read_descriptor(&sample.fs, group).unwrap();
        assert_eq!(desc.free_inodes, shape.inodes_per_group - 1);
        assert_eq!(desc.used_dirs, 1);
    }
}
