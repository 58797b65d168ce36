//! Allocating and freeing inodes.

use std::collections::BTreeSet;

use super::sample::{Sample, Shape};
use super::*;
use crate::alloc;
use crate::ondisk::Inode;
use crate::ondisk::inode::tests::sample as sample_inode;

impl Sample {
    fn parent(&self, number: u32) -> Inode {
        let number = InodeNr::new(number).unwrap();
        let geometry = &self.fs.geometry;
        let bytes = sample_inode(geometry, number, |disk, _| disk.mode.set(0o4_0755));
        Inode::decode(&bytes, number, geometry).unwrap()
    }

    pub(super) fn alloc_inode(&self, parent: u32, kind: FileKind, random: u64) -> Result<u32> {
        let mut handle = self.fs.begin(ALLOC_INODE_CREDITS)?;
        let parent = self.parent(parent);
        let number = alloc::alloc_inode(&self.space, &self.fs, &mut handle, &parent, kind, random)?;
        Ok(number.get())
    }

    /// Allocates an inode of this group.
    pub(super) fn in_group(&self, group: GroupNr) -> Result<Option<InodeNr>> {
        let mut handle = self.fs.begin(ALLOC_INODE_CREDITS)?;
        crate::alloc::inodes::alloc_inode_in(
            &self.space,
            &self.fs,
            &mut handle,
            group,
            FileKind::Regular,
        )
    }

    pub(super) fn free_inode(&self, number: u32, was_dir: bool) -> Result<()> {
        let mut handle = self.fs.begin(FREE_INODE_CREDITS)?;
        let number = InodeNr::new(number).unwrap();
        alloc::free_inode(&self.space, &self.fs, &mut handle, number, was_dir)
    }
}

#[test]
fn all_inodes_are_allocated_and_freed() {
    for (uninit, ro_compat) in [
        (false, RoCompat::METADATA_CSUM),
        (true, RoCompat::METADATA_CSUM),
        (true, RoCompat::GDT_CSUM),
        (true, RoCompat::empty()),
    ] {
        let sample = Sample::new(Shape {
            ro_compat,
            uninit,
            ..Shape::PLAIN
        });
        let before = sample.space.stat();
        let mut numbers = BTreeSet::new();
        while let Ok(number) = sample.alloc_inode(100, FileKind::Regular, 0) {
            assert!(number >= 11 && numbers.insert(number));
        }
        assert_eq!(numbers.len() as u64, before.free_inodes);
        assert_eq!(sample.space.stat().free_inodes, 0);
        sample.commit();
        sample.validated();
        let sample = Sample::on(sample.device);
        assert!(refused(&sample.alloc_inode(2, FileKind::Regular, 0)));
        for number in numbers {
            sample.free_inode(number, false).unwrap();
        }
        sample.commit();
        sample.validated();
        assert_eq!(sample.space.stat(), before);
    }
}

#[test]
fn file_gets_lowest_inode_of_its_parents_group() {
    let sample = Sample::new(Shape::PLAIN);
    let first = sample.alloc_inode(100, FileKind::Regular, 0).unwrap();
    let second = sample.alloc_inode(100, FileKind::Symlink, 0).unwrap();
    assert_eq!((first, second), (97, 98));
    sample.free_inode(97, false).unwrap();
    assert_eq!(sample.alloc_inode(100, FileKind::Fifo, 0).unwrap(), 97);
}

#[test]
fn only_directories_of_the_root_are_spread() {
    let sample = Sample::new(Shape::PLAIN);
    let group = |number: u32| (number - 1) / 32;
    let groups: BTreeSet<_> = (0..6)
        .map(|random| {
            sample
                .alloc_inode(2, FileKind::Directory, random * 77)
                .unwrap()
        })
        .map(group)
        .collect();
    assert_eq!(groups.len(), 6);
    let below = sample.alloc_inode(100, FileKind::Directory, 5).unwrap();
    assert_eq!(group(below), 3);
    sample.commit();
    sample.validated();
    assert_eq!(sample.space.counters.directories.get(), 8);
}

/// Sixteen groups in flex groups of four.
const FLEX: Shape = Shape {
    blocks: 16 * 512 + 1,
    blocks_per_group: 512,
    groups_per_flex: 4,
    uninit: true,
    ..Shape::PLAIN
};

#[test]
fn flex_groups_are_filled_as_one() {
    let sample = Sample::new(FLEX);
    let region = |number: u32| (number - 1) / 128;
    let regions: BTreeSet<_> = (0..3)
        .map(|random| sample.alloc_inode(2, FileKind::Directory, random).unwrap())
        .map(region)
        .collect();
    // The root is in the first flex group.
    assert_eq!(regions, BTreeSet::from([1, 2, 3]));
    // Files of a directory in the last group of the second flex group stay in it.
    let files: Vec<_> = (0..100)
        .map(|_| sample.alloc_inode(250, FileKind::Regular, 0).unwrap())
        .collect();
    assert_eq!((files[0], files[32]), (225, 193));
    assert!(files.iter().all(|&number| region(number) == 1));
    sample.commit();
    sample.validated();
}

#[test]
fn directories_leave_crowded_flex_groups() {
    let sample = Sample::new(FLEX);
    let region = |number: u32| (number - 1) / 128;
    let mut count = [0; 4];
    for _ in 0..60 {
        let number = sample.alloc_inode(130, FileKind::Directory, 0).unwrap();
        count[region(number) as usize] += 1;
    }
    assert!(count[1] >= 8 && count.iter().max() < Some(&40), "{count:?}");
}

#[test]
fn topdir_flag_spreads_subdirectories() {
    let sample = Sample::new(FLEX);
    let mut parent = sample.parent(130);
    parent.flags |= crate::ondisk::InodeFlags::TOP_DIR;
    let groups: BTreeSet<_> = (0..8)
        .map(|random| {
            let mut handle = sample.fs.begin(ALLOC_INODE_CREDITS).unwrap();
            let (space, fs) = (&sample.space, &sample.fs);
            let number =
                alloc::alloc_inode(space, fs, &mut handle, &parent, FileKind::Directory, random);
            (number.unwrap().get() - 1) / 128
        })
        .collect();
    assert_eq!(groups.len(), 4);
}

#[test]
fn files_avoid_the_first_group_of_a_flex_group() {
    let sample = Sample::new(FLEX);
    let goal = |number, kind| {
        let number = InodeNr::new(number).unwrap();
        sample.space.first_goal(number, kind).0
    };
    assert_eq!(goal(250, FileKind::Regular), 1 + 5 * 512);
    assert_eq!(goal(250, FileKind::Directory), 1 + 4 * 512);
    let sample = Sample::new(Shape::PLAIN);
    let number = InodeNr::new(100).unwrap();
    assert_eq!(
        sample.space.first_goal(number, FileKind::Regular).0,
        1 + 3 * 256
    );
}

#[test]
fn unused_inode_table_block_is_zeroed() {
    let sample = Sample::new(Shape {
        uninit: true,
        ..Shape::PLAIN
    });
    for _ in 0..5 {
        sample.alloc_inode(100, FileKind::Regular, 0).unwrap();
    }
    sample.commit();
    sample.validated();
    let desc = groups::read_descriptor(&sample.fs, GroupNr(3)).unwrap();
    assert_eq!(desc.unused_inodes, 27);
    let buffer = |index| {
        let block = desc.inode_table.0 + index;
        let unverified = platter_ondisk::verify::Unverified;
        sample.fs.read_block(BlockNr(block), &unverified).unwrap()
    };
    for index in 0..2 {
        assert!(buffer(index).iter().all(|&byte| byte == 0));
    }
    assert!(buffer(2).iter().all(|&byte| byte == 0xa5));
}
