//! An allocation group that changes, compared with what it should hold.

pub(crate) mod sample;
mod rules;

use std::collections::BTreeMap;

use super::Group;
use super::reserve::{kept_blocks, withheld_blocks};
use super::space::{free_list_max, min_free_list};
use crate::ondisk::btree::{
    BtreeKind, DiskFreeExtent, DiskInodeChunk, DiskOwner, Owner, Refcount, RmapOwner,
};
use crate::ondisk::{AgBlock, AgInode};
use sample::{FIRST, Sample, owner};

/// The free space by both trees, which must agree with each other and with the header.
fn free_space(sample: &Sample) -> BTreeMap<u32, u32> {
    let by_block: Vec<DiskFreeExtent> = sample.records(BtreeKind::Bno);
    let mut by_length: Vec<DiskFreeExtent> = sample.records(BtreeKind::Cnt);
    let numbers = |extent: &DiskFreeExtent| (extent.count.get(), extent.start.get());
    assert!(by_length.is_sorted_by_key(numbers));
    by_length.sort_by_key(|extent| extent.start.get());
    assert_eq!(by_block, by_length);
    let free: BTreeMap<u32, u32> = by_block
        .iter()
        .map(|extent| (extent.start.get(), extent.count.get()))
        .collect();
    let sum: u32 = free.values().sum();
    let longest = free.values().copied().max().unwrap_or_default();
    sample.change(|group| group.check_totals(sum, longest));
    free
}

/// Every third block, in an order that jumps around.
fn scattered() -> Vec<u32> {
    let blocks: Vec<u32> = (FIRST..2900).step_by(3).collect();
    let count = blocks.len();
    (0..count).map(|at| blocks[at * 577 % count]).collect()
}

#[test]
fn extents_are_freed_in_any_order_and_merge() {
    let sample = Sample::new();
    let inode = RmapOwner(131);
    // Blocks that cannot be one record of the reverse mapping.
    sample.change(|group| {
        // What the trees take their blocks from.
        group.free_extent(AgBlock(3200), 300).unwrap();
        for block in FIRST..2900 {
            group.fill_free_list().unwrap();
            let record = owner(block, 1, inode, u64::from(block) * 2);
            group.insert(BtreeKind::Rmap, record.encode()).unwrap();
        }
    });
    for group in scattered().chunks(100) {
        sample.change(|change| {
            for &block in group {
                let gone = owner(block, 1, inode, u64::from(block) * 2);
                change.remove_owner(&gone).unwrap();
                change.free_extent(AgBlock(block), 1).unwrap();
            }
        });
    }
    let free = free_space(&sample);
    assert!(free.values().filter(|&&count| count == 1).count() > 900);
    let rest: Vec<u32> = (FIRST..2900)
        .filter(|block| block % 3 != FIRST % 3)
        .collect();
    for group in rest.chunks(100).rev() {
        sample.change(|change| {
            for &block in group {
                let gone = owner(block, 1, inode, u64::from(block) * 2);
                change.remove_owner(&gone).unwrap();
                change.free_extent(AgBlock(block), 1).unwrap();
            }
        });
    }
    let free = free_space(&sample);
    let sum: u32 = free.values().sum();
    let owners: Vec<DiskOwner> = sample.records(BtreeKind::Rmap);
    let owned: u32 = owners.iter().map(|owner| owner.count.get()).sum();
    assert_eq!(sum + owned, 2900 + 300, "{free:?} {owners:?}");
    assert!(free.len() < 60 && owners.len() < 60);
}

#[test]
fn part_of_an_owners_blocks_is_cut_out() {
    let sample = Sample::new();
    sample.change(|group| {
        let record = owner(100, 20, RmapOwner(131), 7);
        group.insert(BtreeKind::Rmap, record.encode()).unwrap();
        group
            .remove_owner(&owner(105, 5, RmapOwner(131), 12))
            .unwrap();
        group
            .remove_owner(&owner(100, 1, RmapOwner(131), 7))
            .unwrap();
        assert!(group.remove_any_owner(AgBlock(119), 1).unwrap());
        assert!(!group.remove_any_owner(AgBlock(119), 1).unwrap());
    });
    let owners: Vec<DiskOwner> = sample.records(BtreeKind::Rmap);
    let of_inode = owners.iter().map(Owner::decode);
    let of_inode: Vec<Owner> = of_inode.filter(|one| one.owner.is_inode()).collect();
    let expected = [
        owner(101, 4, RmapOwner(131), 8),
        owner(110, 9, RmapOwner(131), 17),
    ];
    assert_eq!(of_inode, expected);
}

/// A reservation of space counts on all blocks but those that groups withhold at most.
#[test]
fn group_withholds_no_more_than_is_set_aside() {
    let sample = Sample::new();
    let check = |group: &mut Group<'_>| {
        group.keeps_reserve = true;
        let free = u64::from(group.agf.free_blocks) + group.free_list.len() as u64;
        let given = u64::from(group.available());
        let kept = u64::from(kept_blocks(group.agf, group.agi, &group.geometry));
        let most = withheld_blocks(group.agf, &group.geometry);
        assert!(free <= given + kept + most, "{free} {given} {kept} {most}");
    };
    sample.change(|group| {
        group.free_extent(AgBlock(3200), 300).unwrap();
        check(group);
    });
    for group in scattered().chunks(200) {
        sample.change(|change| {
            for &block in group {
                change.fill_free_list().unwrap();
                let record = owner(block, 1, RmapOwner(131), u64::from(block) * 2);
                change.insert(BtreeKind::Rmap, record.encode()).unwrap();
                check(change);
            }
        });
    }
}

/// Blocks that many clones share have more owners than there are blocks in the group.
#[test]
fn free_list_of_any_tree_of_owners_is_set_aside() {
    let sample = Sample::new();
    let mut groups = sample.groups();
    let mut agf = groups.get(sample::AG).unwrap().agf().clone();
    let mut geometry = sample.geometry.clone();
    geometry.ag_blocks = 1 << 18;
    let half = (BtreeKind::Rmap.records_max(1, &geometry) / 2) as u64;
    let most = free_list_max(&agf, &geometry);
    let (mut blocks, mut width) = (1, 2);
    for levels in 1.. {
        agf.rmap.as_mut().unwrap().levels = levels;
        assert!(min_free_list(&agf, &geometry) <= most, "{levels}");
        blocks += width;
        width *= half;
        if blocks > u64::from(geometry.ag_blocks) {
            assert_eq!(levels, 5);
            break;
        }
    }
}

fn run(start: u32, count: u32, references: u32) -> Refcount {
    Refcount {
        start: AgBlock(start),
        count,
        references,
        is_staged: false,
    }
}

#[test]
fn references_are_dropped_and_runs_merge() {
    let sample = Sample::new();
    sample.change(|group| {
        group.free_extent(AgBlock(1000), 50).unwrap();
        for record in [run(100, 10, 3), run(110, 10, 2), run(130, 5, 2)] {
            group.insert(BtreeKind::Refcount, record.encode()).unwrap();
        }
        // Three references become two next to two; two become one; one becomes none.
        let gone = group.drop_references(AgBlock(105), 5).unwrap();
        assert_eq!(gone, []);
        let gone = group.drop_references(AgBlock(118), 14).unwrap();
        assert_eq!(gone, [(AgBlock(120), 10)]);
    });
    let found: Vec<Refcount> = sample.refcounts().iter().map(Refcount::decode).collect();
    assert_eq!(found, [run(100, 5, 3), run(105, 13, 2), run(132, 3, 2)]);
}

#[test]
fn end_of_an_extent_has_a_limited_number_of_records() {
    let sample = Sample::new();
    sample.change(|group| {
        group.free_extent(AgBlock(1000), 50).unwrap();
        for record in [run(100, 10, 3), run(110, 10, 2), run(130, 5, 2)] {
            group.insert(BtreeKind::Refcount, record.encode()).unwrap();
        }
        let end = |group: &mut Group<'_>, start, count, most| {
            group.end_with_records(AgBlock(start), count, most).unwrap()
        };
        assert_eq!(end(group, 90, 60, 9), (AgBlock(90), 3));
        assert_eq!(end(group, 90, 60, 2), (AgBlock(110), 2));
        assert_eq!(end(group, 90, 60, 1), (AgBlock(120), 1));
        assert_eq!(end(group, 105, 2, 1), (AgBlock(105), 1));
        assert_eq!(end(group, 105, 6, 1), (AgBlock(110), 1));
        assert_eq!(end(group, 120, 10, 1), (AgBlock(120), 0));
    });
}

#[test]
fn staged_blocks_are_freed() {
    let sample = Sample::new();
    sample.change(|group| {
        for start in [200, 300] {
            let record = Refcount {
                is_staged: true,
                ..run(start, 4, 1)
            };
            group.insert(BtreeKind::Refcount, record.encode()).unwrap();
            let record = owner(start, 4, RmapOwner::COW, 0);
            group.insert(BtreeKind::Rmap, record.encode()).unwrap();
        }
        group.free_staged().unwrap();
    });
    assert_eq!(sample.refcounts(), []);
    assert_eq!(free_space(&sample), BTreeMap::from([(200, 4), (300, 4)]));
}

#[test]
fn freed_inode_is_in_both_inode_trees() {
    let sample = Sample::new();
    sample.change(|group| {
        group.free_inode(AgInode(24005)).unwrap();
        group.free_inode(AgInode(24000)).unwrap();
    });
    let chunks: Vec<DiskInodeChunk> = sample.records(BtreeKind::Inobt);
    assert_eq!((chunks[0].free.get(), chunks[0].free_count), (0b10_0001, 2));
    assert_eq!(sample.records::<DiskInodeChunk>(BtreeKind::Finobt), chunks);
}
