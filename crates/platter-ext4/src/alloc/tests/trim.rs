//! Discarding free space: the device fills it with zeros.

use crate::alloc;
use platter_block::BlockDevice;

use super::sample::{Sample, Shape};
use super::*;

/// A byte that no metadata structure is filled with.
const USED: u8 = 0xa5;

impl Sample {
    fn trim(&self, need: u32) -> u64 {
        let geometry = &self.fs.geometry;
        let all = geometry.first_data_block..BlockNr(geometry.blocks_count);
        alloc::trim(&self.space, &self.fs, all, need).unwrap()
    }

    fn fill(&self, blocks: &Range<BlockNr>) {
        let geometry = &self.fs.geometry;
        let bytes = geometry.offset_bytes(blocks.start)..geometry.offset_bytes(blocks.end);
        let filling = vec![USED; usize::try_from(bytes.end - bytes.start).unwrap()];
        self.device.write_at(bytes.start, &filling).unwrap();
    }

    fn holds(&self, blocks: &Range<BlockNr>, byte: u8) -> bool {
        let geometry = &self.fs.geometry;
        let bytes = geometry.offset_bytes(blocks.start)..geometry.offset_bytes(blocks.end);
        let mut found = vec![0; usize::try_from(bytes.end - bytes.start).unwrap()];
        self.device.read_at(bytes.start, &mut found).unwrap();
        found.iter().all(|&found| found == byte)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.device.geometry().len_bytes).unwrap()];
        self.device.read_at(0, &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn freed_blocks_are_discarded_after_the_commit() {
    for shape in Shape::ALL {
        let sample = Sample::new(shape);
        let (space, fs) = (&sample.space, &sample.fs);
        let free = space.stat().free_blocks;
        let mut handle = fs.begin(16).unwrap();
        let mut alloc = |want| {
            let goal = fs.geometry.first_data_block;
            let from = Reserve::Ordinary;
            alloc::alloc_blocks(space, fs, &mut handle, goal, want, from).unwrap()
        };
        let (kept, freed) = (alloc(12), alloc(24));
        drop(handle);
        sample.commit();
        sample.fill(&kept);
        sample.fill(&freed);
        let held = alloc::take(space, fs, kept.start, 8, Reserve::Ordinary).unwrap();
        sample.fill(&held.blocks());
        assert!(sample.trim(1) < free, "{shape:?}");

        let mut handle = fs.begin(16).unwrap();
        alloc::free_blocks(space, fs, &mut handle, freed.clone()).unwrap();
        drop(handle);
        sample.trim(1);
        for blocks in [&kept, &freed, &held.blocks()] {
            assert!(sample.holds(blocks, USED), "{shape:?}");
        }
        sample.commit();
        sample.trim(1);
        assert!(sample.holds(&freed, 0), "{shape:?}");
        for blocks in [&kept, &held.blocks()] {
            assert!(sample.holds(blocks, USED), "{shape:?}");
        }
        alloc::give_back(space, held);
        sample.commit();
        sample.validated();
    }
}

#[test]
fn only_free_blocks_are_discarded() {
    for shape in Shape::ALL {
        let sample = Sample::new(shape);
        let ratio = u64::from(shape.cluster_blocks);
        let free = sample.space.stat().free_blocks;
        let before = sample.bytes();
        assert_eq!(sample.trim(1), free, "{shape:?}");
        let after = sample.bytes();
        let changed = before.chunks(1024).zip(after.chunks(1024));
        let changed = changed.filter(|(before, after)| before != after).count();
        assert!(changed as u64 <= free, "{shape:?}");
        sample.validated();
        // A second trim discards the same; short runs are skipped.
        assert_eq!(sample.trim(1), free, "{shape:?}");
        let most = shape.blocks_per_group / shape.cluster_blocks;
        assert_eq!(sample.trim(most + 1), 0, "{shape:?}");
        let long = sample.trim(most / 2);
        assert!(long <= free && long.is_multiple_of(ratio), "{shape:?}");
    }
}

#[test]
fn runs_are_discarded_within_the_requested_range() {
    let sample = Sample::new(Shape::PLAIN);
    let (space, fs) = (&sample.space, &sample.fs);
    let middle = BlockNr(700)..BlockNr(740);
    sample.fill(&middle);
    let trim = |start, end, need| {
        let blocks = BlockNr(start)..BlockNr(end);
        alloc::trim(space, fs, blocks, need).unwrap()
    };
    assert_eq!(trim(710, 720, 11), 0);
    assert_eq!(trim(710, 720, 10), 10);
    assert!(sample.holds(&(BlockNr(710)..BlockNr(720)), 0));
    for rest in [BlockNr(700)..BlockNr(710), BlockNr(720)..BlockNr(740)] {
        assert!(sample.holds(&rest, USED));
    }
    assert_eq!(trim(700, 740, 1), 40);
    assert!(sample.holds(&middle, 0));
}

#[test]
fn group_with_corrupt_bitmap_is_skipped() {
    let sample = Sample::corrupt(Shape::PLAIN, |bytes, geometry| {
        let start = usize::try_from(geometry.offset_bytes(geometry.group_first_block(GroupNr(2))));
        // In a group without a superblock copy, the bitmap comes first.
        bytes[start.unwrap()] ^= 0xff;
    });
    let free = sample.space.stat().free_blocks;
    let trimmed = sample.trim(1);
    assert!(trimmed > 0 && trimmed < free);
    assert!(sample.space.take_corruption().is_some());
}
