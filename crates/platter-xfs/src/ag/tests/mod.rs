//! An allocation group that changes, compared with what it should hold.

pub(crate) mod sample;
mod rules;

use std::collections::BTreeMap;

use super::reserve::{kept_blocks, tree_limits, withheld_blocks};
use super::space::{free_list_max, min_free_list};
use super::{BlockRole, Blocks, Group, alloc, inodes, refcount, rmap, space};
use crate::ondisk::btree::{
    BtreeKind, DiskFreeExtent, DiskInodeChunk, DiskOwner, DiskRefcount, Owner, Refcount, RmapOwner,
};
use crate::ondisk::features::RoCompat;
use crate::ondisk::{AgBlock, AgInode, BlockKind};
use crate::tree::{Node, TreeHost, TreeRecord};
use sample::{AG, FIRST, Sample, owner};

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
        space::free_extent(group, AgBlock(3200), 300).unwrap();
        for block in FIRST..2900 {
            space::fill_free_list(group).unwrap();
            let record = owner(block, 1, inode, u64::from(block) * 2);
            group.insert(BtreeKind::Rmap, record.encode()).unwrap();
        }
    });
    for group in scattered().chunks(100) {
        sample.change(|change| {
            for &block in group {
                let gone = owner(block, 1, inode, u64::from(block) * 2);
                rmap::remove(change, &gone).unwrap();
                space::free_extent(change, AgBlock(block), 1).unwrap();
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
                rmap::remove(change, &gone).unwrap();
                space::free_extent(change, AgBlock(block), 1).unwrap();
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
        rmap::remove(group, &owner(105, 5, RmapOwner(131), 12)).unwrap();
        rmap::remove(group, &owner(100, 1, RmapOwner(131), 7)).unwrap();
        assert!(rmap::remove_any(group, AgBlock(119), 1).unwrap());
        assert!(!rmap::remove_any(group, AgBlock(119), 1).unwrap());
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
        let given = u64::from(alloc::available(group));
        let kept = u64::from(kept_blocks(group.agf, group.agi, group.limits));
        let most = withheld_blocks(group.agf, group.limits);
        assert!(free <= given + kept + most, "{free} {given} {kept} {most}");
    };
    sample.change(|group| {
        space::free_extent(group, AgBlock(3200), 300).unwrap();
        check(group);
    });
    for group in scattered().chunks(200) {
        sample.change(|change| {
            for &block in group {
                space::fill_free_list(change).unwrap();
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
    let limits = tree_limits(&geometry, geometry.ag_blocks);
    let most = free_list_max(&agf, &limits);
    let (mut blocks, mut width) = (1, 2);
    for levels in 1.. {
        agf.rmap.as_mut().unwrap().levels = levels;
        assert!(min_free_list(&agf, &limits) <= most, "{levels}");
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
        space::free_extent(group, AgBlock(1000), 50).unwrap();
        for record in [run(100, 10, 3), run(110, 10, 2), run(130, 5, 2)] {
            group.insert(BtreeKind::Refcount, record.encode()).unwrap();
        }
        // Three references become two next to two; two become one; one becomes none.
        let gone = refcount::decrease(group, AgBlock(105), 5).unwrap();
        assert_eq!(gone, []);
        let gone = refcount::decrease(group, AgBlock(118), 14).unwrap();
        assert_eq!(gone, [(AgBlock(120), 10)]);
    });
    let found: Vec<Refcount> = sample.refcounts().iter().map(Refcount::decode).collect();
    assert_eq!(found, [run(100, 5, 3), run(105, 13, 2), run(132, 3, 2)]);
}

#[test]
fn end_of_an_extent_has_a_limited_number_of_records() {
    let sample = Sample::new();
    sample.change(|group| {
        space::free_extent(group, AgBlock(1000), 50).unwrap();
        for record in [run(100, 10, 3), run(110, 10, 2), run(130, 5, 2)] {
            group.insert(BtreeKind::Refcount, record.encode()).unwrap();
        }
        let end = |group: &mut Group<'_>, start, count, most| {
            refcount::end_with_records(group, AgBlock(start), count, most).unwrap()
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
        refcount::free_staged(group).unwrap();
    });
    assert_eq!(sample.refcounts(), []);
    assert_eq!(free_space(&sample), BTreeMap::from([(200, 4), (300, 4)]));
}

#[test]
fn freed_inode_is_in_both_inode_trees() {
    let sample = Sample::new();
    sample.change(|group| {
        inodes::free(group, AgInode(24005)).unwrap();
        inodes::free(group, AgInode(24000)).unwrap();
    });
    let chunks: Vec<DiskInodeChunk> = sample.records(BtreeKind::Inobt);
    assert_eq!((chunks[0].free.get(), chunks[0].free_count), (0b10_0001, 2));
    assert_eq!(sample.records::<DiskInodeChunk>(BtreeKind::Finobt), chunks);
}

/// Makes every second block from 2000 to 2800 shared, which takes two leaves. Returns the root.
fn share(group: &mut Group<'_>) -> Node<DiskRefcount> {
    space::free_extent(group, AgBlock(1000), 500).unwrap();
    for block in (2000..2800).step_by(2) {
        space::fill_free_list(group).unwrap();
        let record = run(block, 1, 2).encode();
        group.insert(BtreeKind::Refcount, record).unwrap();
    }
    let root: Node<DiskRefcount> = group.load_root(BtreeKind::Refcount).unwrap();
    assert_eq!((root.level, root.pointers.len()), (1, 2));
    root
}

#[test]
fn lookups_find_the_records_next_to_a_place() {
    let sample = Sample::new();
    let check = |group: &Group<'_>, starts: &[u64]| {
        for at in 1998..2804 {
            let place =
                |record: Option<DiskRefcount>| record.map(|found| u64::from(found.start.get()));
            let kind = BtreeKind::Refcount;
            let after = place(group.lookup_ge(kind, (at, 0, 0)).unwrap());
            assert_eq!(after, starts.iter().copied().find(|&start| start >= at));
            let before = place(group.lookup_lt(kind, (at, 0, 0)).unwrap());
            assert_eq!(before, starts.iter().copied().rfind(|&start| start < at));
        }
    };
    sample.change(|group| check(group, &[]));
    let starts: Vec<u64> = (2000..2800).step_by(2).collect();
    sample.change(|group| {
        share(group);
        check(group, &starts);
    });
    let mut mounted = sample.mounted();
    check(&mounted.get(AG).unwrap(), &starts);
}

/// The records of a leaf.
fn leaf<R: TreeRecord>(group: &Group<'_>, kind: BtreeKind, at: u64) -> Node<R> {
    TreeHost::load(group, kind, at, 0).unwrap()
}

/// Changes one record of a tree, in its leaf and by storing the leaf, and compares the blocks.
fn assert_replaced_alike<R: TreeRecord>(
    sample: &Sample,
    (kind, at, index): (BtreeKind, u64, usize),
    change: impl Fn(&mut R),
) {
    let block = sample
        .geometry
        .fs_block(AG, AgBlock(u32::try_from(at).unwrap()));
    let offset = sample.geometry.byte_offset(block);
    let changed = |change: &dyn Fn(&mut Group<'_>)| {
        let mut groups = sample.mounted();
        change(&mut groups.get(AG).unwrap());
        let changed = groups.blocks_mut().take_changes().changed;
        assert_eq!(changed.len(), 1);
        let (at, block) = changed.into_iter().next().unwrap();
        assert_eq!(at, offset);
        block
    };
    let in_place = changed(&|group| {
        let mut record = leaf::<R>(group, kind, at).records[index];
        change(&mut record);
        let order = record.order(kind);
        group.replace(kind, order, record).unwrap();
    });
    let stored = changed(&|group| {
        let mut leaf = leaf::<R>(group, kind, at);
        change(&mut leaf.records[index]);
        TreeHost::store(group, kind, &leaf).unwrap();
    });
    assert!(in_place.bytes == stored.bytes, "{kind:?} {at} {index}");
    assert_eq!(in_place.role, stored.role);
}

/// Adds records to the inode B-tree, which has several leaves then.
fn add_chunks(group: &mut Group<'_>) {
    space::free_extent(group, AgBlock(3200), 300).unwrap();
    let record = leaf::<DiskInodeChunk>(group, BtreeKind::Inobt, 8).records[0];
    for number in 10..300_u32 {
        let chunk = DiskInodeChunk {
            start: (64 * number).into(),
            ..record
        };
        space::fill_free_list(group).unwrap();
        group.insert(BtreeKind::Inobt, chunk).unwrap();
    }
}

#[test]
fn blocks_of_inode_trees_are_counted_without_the_feature() {
    let mut sample = Sample::new();
    let features = &mut sample.geometry.features;
    features.ro_compat.remove(RoCompat::INOBTCNT);
    let counts = |group: &Group<'_>| {
        let agi = group.agi();
        [agi.inode_btree_blocks, agi.free_btree_blocks]
    };
    sample.change(|group| {
        (group.agi.inode_btree_blocks, group.agi.free_btree_blocks) = (0, 0);
        add_chunks(group);
        assert_eq!(counts(group), [0, 0], "not counted yet");
        inodes::count_tree_blocks(group).unwrap();
        let counted = counts(group);
        assert!(counted[0] > 2 && counted[1] == 1, "{counted:?}");
        for number in 10..210_u64 {
            let order = (64 * number, 0, 0);
            space::fill_free_list(group).unwrap();
            group
                .remove::<DiskInodeChunk>(BtreeKind::Inobt, order)
                .unwrap();
        }
        let maintained = counts(group);
        assert!(maintained[0] < counted[0], "{maintained:?}");
        inodes::count_tree_blocks(group).unwrap();
        assert_eq!(counts(group), maintained);
    });
}

#[test]
fn record_replaced_in_its_leaf_is_the_one_that_is_stored() {
    let sample = Sample::new();
    let use_one = |chunk: &mut DiskInodeChunk| {
        chunk.free.set(chunk.free.get() ^ 2);
        chunk.free_count ^= 1;
    };
    let count_up = |shared: &mut DiskRefcount| shared.references.set(3);
    sample.change(|group| inodes::free(group, AgInode(24000)).unwrap());
    for (kind, root) in [(BtreeKind::Inobt, 8), (BtreeKind::Finobt, 9)] {
        assert_replaced_alike(&sample, (kind, root, 0), use_one);
    }
    // More than one leaf of each.
    let roots = sample.change(|group| {
        space::free_extent(group, AgBlock(3200), 300).unwrap();
        let record = leaf::<DiskInodeChunk>(group, BtreeKind::Inobt, 8).records[0];
        for start in (0..300)
            .map(|chunk| 64 * (100 + chunk))
            .filter(|&at| at != 24000)
        {
            let chunk = DiskInodeChunk {
                start: start.into(),
                ..record
            };
            for kind in [BtreeKind::Inobt, BtreeKind::Finobt] {
                space::fill_free_list(group).unwrap();
                group.insert(kind, chunk).unwrap();
            }
        }
        let kinds = [BtreeKind::Inobt, BtreeKind::Finobt];
        kinds.map(|kind| {
            let root: Node<DiskInodeChunk> = group.load_root(kind).unwrap();
            (kind, root)
        })
    });
    for (kind, root) in roots {
        assert!(root.level == 1 && root.pointers.len() > 1);
        for &at in &root.pointers {
            for index in [0, 1, 100] {
                assert_replaced_alike(&sample, (kind, at, index), use_one);
            }
        }
    }
    let shared = sample.change(|group| share(group).pointers);
    assert_replaced_alike(&sample, (BtreeKind::Refcount, shared[1], 7), count_up);
}

#[test]
fn block_is_changed_as_one_thing_of_one_owner() {
    let sample = Sample::new();
    let role = |kind, owner| BlockRole { kind, owner };
    let leaf = role(BlockKind::Btree(BtreeKind::Inobt), 1);
    let others = [
        role(BlockKind::Btree(BtreeKind::Finobt), 1),
        role(BlockKind::Btree(BtreeKind::Inobt), 2),
        role(BlockKind::DirFree, 131),
    ];
    let at = sample.geometry.ag_offset(AG) + 8 * 4096;
    let mut blocks = Blocks::new(std::sync::Arc::clone(&sample.device));
    let copy = |bytes: &mut [u8], _: &mut _| bytes.to_vec();
    let bytes = blocks.edit_verified(at, 4096, leaf, &sample.geometry, copy);
    let bytes = bytes.unwrap();
    for other in others {
        assert!(blocks.edit(at, 4096, other).is_err());
        let edited = blocks.edit_verified(at, 4096, other, &sample.geometry, copy);
        let error = edited.unwrap_err().to_string();
        assert!(error.contains("multiply-claimed block"), "{error}");
        assert!(blocks.write_as(at, other, vec![1; 4096]).is_err());
    }
    assert_eq!(*blocks.edit(at, 4096, leaf).unwrap(), bytes);
    // What is new is what it is first written as.
    blocks.create(at, vec![0; 4096]);
    blocks.write_as(at, others[0], bytes).unwrap();
    assert!(blocks.edit(at, 4096, leaf).is_err());
    let changes = blocks.take_changes();
    let (place, changed) = &changes.changed[0];
    assert_eq!(
        (*place, changed.role, changed.is_fresh),
        (at, Some(others[0]), true)
    );
}
