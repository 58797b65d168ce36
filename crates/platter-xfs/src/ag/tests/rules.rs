//! One change for each rule that it finds broken.

use platter_ondisk::Rule;
use platter_vfs::writing::RangeSet;
use platter_vfs::{Error, Result};

use super::sample::{AG, Sample, owner};
use super::{add_chunks, leaf, run, share};
use crate::ag::{Group, GroupRule, alloc, inodes, refcount, rmap, space};
use crate::ondisk::btree::{
    BtreeKind, DiskFreeExtent, DiskInodeChunk, DiskRefcount, InodeChunk, RmapOwner,
};
use crate::ondisk::features::Incompat;
use crate::ondisk::{AgBlock, AgInode};
use crate::tree::{self, Node, TreeHost, TreeRecord, TreeRule};

fn assert_broken<T: std::fmt::Debug>(result: Result<T>, rule: impl Rule) {
    let error = result.unwrap_err();
    let Error::Corrupt(corruption) = error else {
        panic!("{error}");
    };
    assert_eq!(corruption.rule, rule.text());
}

#[test]
fn blocks_are_not_freed_twice_or_outside_the_group() {
    Sample::new().change(|group| {
        space::free_extent(group, AgBlock(100), 10).unwrap();
        for (start, count) in [(100, 1), (109, 2), (95, 6), (4090, 7), (0, 1), (50, 0)] {
            let freed = space::free_extent(group, AgBlock(start), count);
            assert_broken(freed, GroupRule::DoubleFree);
        }
    });
}

#[test]
fn free_extents_outside_the_group_are_not_taken() {
    for (start, count) in [(0, 1), (4090, 100), (5000, 1)] {
        Sample::new().change(|group| {
            let extent = DiskFreeExtent {
                start: start.into(),
                count: count.into(),
            };
            group.insert(BtreeKind::Bno, extent).unwrap();
            group.insert(BtreeKind::Cnt, extent).unwrap();
            let avoid = RangeSet::default();
            let found = alloc::find_by_length(group, count, 1, &avoid);
            assert_broken(found, GroupRule::FreeExtent);
            let found = alloc::find_at(group, AgBlock(start), count, &avoid);
            assert_broken(found, GroupRule::FreeExtent);
            let taken = alloc::take(group, AgBlock(start), count);
            assert_broken(taken, GroupRule::FreeExtent);
        });
    }
}

#[test]
fn records_are_inserted_once_and_removed_once() {
    Sample::new().change(|group| {
        let record = owner(100, 1, RmapOwner(131), 0).encode();
        group.insert(BtreeKind::Rmap, record).unwrap();
        assert_broken(group.insert(BtreeKind::Rmap, record), TreeRule::Exists);
        let gone = group.remove::<DiskFreeExtent>(BtreeKind::Bno, (9, 0, 0));
        assert_broken(gone, TreeRule::Missing);
    });
}

#[test]
fn reference_counts_of_two_leaves_do_not_overlap() {
    Sample::new().change(|group| {
        let second = share(group).keys[1].get();
        let last = run(second - 2, 100, 2).encode();
        let place = (u64::from(second - 2), 0, 0);
        group.replace(BtreeKind::Refcount, place, last).unwrap();
        // The part would begin after the extent, where the last record of the first leaf ends.
        let found = refcount::end_with_records(group, AgBlock(2000), second + 1 - 2000, 1);
        assert_broken(found, GroupRule::Refcount);
    });
}

#[test]
fn trees_need_blocks_in_the_free_list() {
    Sample::new().change(|group| {
        for _ in 0..6 {
            space::alloc_tree_block(group, BtreeKind::Bno).unwrap();
        }
        let block = space::alloc_tree_block(group, BtreeKind::Bno);
        assert_broken(block, GroupRule::FreeList);
    });
}

#[test]
fn blocks_of_another_owner_are_not_removed() {
    Sample::new().change(|group| {
        let record = owner(100, 4, RmapOwner(131), 0).encode();
        group.insert(BtreeKind::Rmap, record).unwrap();
        for gone in [
            owner(100, 4, RmapOwner(132), 0),
            owner(101, 1, RmapOwner(131), 0),
            owner(102, 3, RmapOwner(131), 2),
        ] {
            assert_broken(rmap::remove(group, &gone), GroupRule::Owner);
        }
    });
}

#[test]
fn reference_count_below_two_is_found() {
    Sample::new().change(|group| {
        let record = run(100, 4, 1).encode();
        group.insert(BtreeKind::Refcount, record).unwrap();
        let dropped = refcount::decrease(group, AgBlock(100), 4);
        assert_broken(dropped, GroupRule::Refcount);
    });
}

#[test]
fn inode_is_freed_once() {
    Sample::new().change(|group| {
        inodes::free(group, AgInode(24001)).unwrap();
        for inode in [24001, 23999, 24064, 5] {
            assert_broken(inodes::free(group, AgInode(inode)), GroupRule::Inode);
        }
    });
}

/// Inode chunk of the sample, with another start.
fn chunk_at(group: &Group<'_>, start: u32) -> DiskInodeChunk {
    let found: Option<DiskInodeChunk> = group.lookup_lt(BtreeKind::Inobt, (24001, 0, 0)).unwrap();
    DiskInodeChunk {
        start: start.into(),
        ..found.unwrap()
    }
}

#[test]
fn records_that_overlap_are_not_inserted() {
    Sample::new().change(|group| {
        for start in [24000 - 63, 24000 - 8, 24008, 24000 + 63] {
            let chunk = chunk_at(group, start);
            assert_broken(group.insert(BtreeKind::Inobt, chunk), TreeRule::Order);
        }
        let empty = run(500, 0, 2).encode();
        let inserted = group.insert(BtreeKind::Refcount, empty);
        assert_broken(inserted, TreeRule::Order);
        for start in [24000 - 64, 24000 + 64] {
            let chunk = chunk_at(group, start);
            group.insert(BtreeKind::Inobt, chunk).unwrap();
        }
    });
}

/// A record that comes to overlap the next one, by a change of its leaf in place and by one that stores it.
#[test]
fn records_that_overlap_do_not_replace_others() {
    let sample = Sample::new();
    let replace = |group: &mut Group<'_>| {
        for count in [0, 11, 30] {
            let wrong = run(100, count, 3).encode();
            let order = TreeRecord::order(&wrong, BtreeKind::Refcount);
            let replaced = group.replace(BtreeKind::Refcount, order, wrong);
            assert_broken(replaced, TreeRule::Order);
        }
        let wrong = run(99, 2, 3).encode();
        let order = TreeRecord::order(&run(110, 10, 2).encode(), BtreeKind::Refcount);
        let replaced = group.replace(BtreeKind::Refcount, order, wrong);
        assert_broken(replaced, TreeRule::Order);
    };
    sample.change(|group| {
        for record in [run(100, 10, 3), run(110, 10, 2)] {
            group.insert(BtreeKind::Refcount, record.encode()).unwrap();
        }
        replace(group);
    });
    let expected = [run(100, 10, 3), run(110, 10, 2)].map(|run| run.encode());
    assert_eq!(sample.refcounts(), expected);
    let mut mounted = sample.mounted();
    let mut group = mounted.get(AG).unwrap();
    replace(&mut group);
    let records: Vec<DiskRefcount> = leaf(&group, BtreeKind::Refcount, 7).records;
    assert_eq!(records, expected);
}

/// Leaves whose records overlap are valid each, but have no entry in common.
#[test]
fn leaf_that_overlaps_its_neighbour_gets_none_of_its_records() {
    Sample::new().change(|group| {
        let pointers = share(group).pointers;
        let mut second: Node<DiskRefcount> = leaf(group, BtreeKind::Refcount, pointers[1]);
        second.records[0] = run(2001, 1, 2).encode();
        TreeHost::store(group, BtreeKind::Refcount, &second).unwrap();
        let first: Node<DiskRefcount> = leaf(group, BtreeKind::Refcount, pointers[0]);
        let mut removed = Ok(());
        for record in &first.records {
            let order = TreeRecord::order(record, BtreeKind::Refcount);
            removed = group.remove::<DiskRefcount>(BtreeKind::Refcount, order);
            if removed.is_err() {
                break;
            }
        }
        assert_broken(removed, TreeRule::Order);
    });
}

#[test]
fn siblings_that_lead_round_in_a_circle_are_found() {
    Sample::new().change(|group| {
        let pointers = share(group).pointers;
        for (at, left, right) in [
            (pointers[0], Some(pointers[1]), Some(pointers[1])),
            (pointers[1], Some(pointers[0]), Some(pointers[0])),
        ] {
            let leaf: Node<DiskRefcount> = group.load(BtreeKind::Refcount, at, 0).unwrap();
            let leaf = Node {
                left,
                right,
                ..leaf
            };
            TreeHost::store(group, BtreeKind::Refcount, &leaf).unwrap();
        }
        let after = group.lookup_ge::<DiskRefcount>(BtreeKind::Refcount, (2900, 0, 0));
        assert_broken(after, TreeRule::Shape);
        let before = group.lookup_lt::<DiskRefcount>(BtreeKind::Refcount, (5, 0, 0));
        assert_broken(before, TreeRule::Shape);
        let added = refcount::increase(group, AgBlock(2700), 1000);
        assert_broken(added, TreeRule::Shape);
    });
}

#[test]
fn block_that_a_tree_leads_to_twice_is_found() {
    Sample::new().change(|group| {
        let mut root = share(group);
        root.pointers[1] = root.pointers[0];
        TreeHost::store(group, BtreeKind::Refcount, &root).unwrap();
        let visit = &mut |_: &Node<DiskRefcount>| Ok(());
        let walked = tree::walk(group, BtreeKind::Refcount, u64::MAX, |_| true, visit);
        assert_broken(walked, TreeRule::Shape);
    });
}

#[test]
fn blocks_of_inode_trees_are_not_counted_twice() {
    Sample::new().change(|group| {
        add_chunks(group);
        let root: Node<DiskInodeChunk> = group.load_root(BtreeKind::Inobt).unwrap();
        for first in [root.pointers[1], root.at] {
            let mut root = root.clone();
            root.pointers[0] = first;
            TreeHost::store(group, BtreeKind::Inobt, &root).unwrap();
            assert_broken(inodes::count_tree_blocks(group), TreeRule::Shape);
        }
    });
}

#[test]
fn counts_of_a_header_do_not_overflow() {
    Sample::new().change(|group| {
        (group.agi.count, group.agi.free_count) = (u32::MAX, u32::MAX);
        let freed = inodes::free(group, AgInode(24001));
        assert_broken(freed, GroupRule::Inode);
        group.agi.free_count = 0;
        group.agf.free_blocks = u32::MAX - 5;
        let freed = space::free_extent(group, AgBlock(100), 10);
        assert_broken(freed, GroupRule::DoubleFree);
        group.agf.free_blocks = 0;
    });
}

#[test]
fn inode_chunk_whose_counts_are_wrong_is_found() {
    let mut sample = Sample::new();
    sample.geometry.features.incompat.remove(Incompat::SPINODES);
    sample.change(|group| {
        let chunk: Option<DiskInodeChunk> =
            group.lookup_lt(BtreeKind::Inobt, (24001, 0, 0)).unwrap();
        let chunk = InodeChunk::decode(&chunk.unwrap(), false);
        let wrong = InodeChunk {
            free_count: u32::MAX,
            ..chunk
        };
        let record = wrong.encode(false);
        let order = TreeRecord::order(&record, BtreeKind::Inobt);
        group.replace(BtreeKind::Inobt, order, record).unwrap();
        let freed = inodes::free(group, AgInode(24001));
        assert_broken(freed, GroupRule::Inode);
    });
}

#[test]
fn tree_of_another_object_is_no_tree_of_a_group() {
    Sample::new().change(|group| {
        assert_broken(group.root(BtreeKind::Bmap), TreeRule::Shape);
    });
}

#[test]
fn only_free_blocks_and_inodes_are_allocated() {
    Sample::new().change(|group| {
        space::free_extent(group, AgBlock(100), 10).unwrap();
        for (start, count) in [(99, 2), (105, 6), (110, 1), (50, 1), (101, 0)] {
            let taken = alloc::take(group, AgBlock(start), count);
            assert_broken(taken, GroupRule::NotFree);
        }
        alloc::take(group, AgBlock(103), 4).unwrap();
        assert_broken(alloc::take(group, AgBlock(103), 1), GroupRule::NotFree);
        group.agi.free_count = 0;
        assert_eq!(inodes::alloc(group, AgInode(24001)).unwrap(), None);
        inodes::free(group, AgInode(24001)).unwrap();
        let allocated = inodes::alloc(group, AgInode(5)).unwrap();
        assert_eq!(allocated, Some(AgInode(24001)));
        group.agi.free_count = 1;
        let allocated = inodes::alloc(group, AgInode(24001));
        assert_broken(allocated, GroupRule::NotFreeInode);
    });
}
