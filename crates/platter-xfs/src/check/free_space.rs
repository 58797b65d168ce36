//! B-trees of the space of a group: free extents by block and by length, owners, reference counts.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::groups::{GroupState, Known};
use super::trees::{TreeWalk, walk_group};
use super::{Checker, Flow, GroupUseRule};
use crate::ondisk::AgNr;
use crate::ondisk::agf::{Agf, TreeRoot};
use crate::ondisk::btree::{
    BtreeKind, BtreeRule, DiskFreeExtent, DiskOwner, DiskRefcount, Owner, Refcount, RmapOwner,
};

/// Walks the B-trees that an AGF names, and compares what is counted.
pub(super) fn check(checker: &mut Checker<'_>, agf: &Agf, state: &mut GroupState) -> Flow {
    let ag = agf.ag;
    let locus = Locus::group(ag.0.into());
    let mut by_block = Vec::new();
    let bno = walk_free(checker, BtreeKind::Bno, ag, agf.bno, &mut by_block)?;
    let mut by_length = Vec::new();
    let cnt = walk_free(checker, BtreeKind::Cnt, ag, agf.cnt, &mut by_length)?;
    by_length.sort_unstable();
    let both = bno.is_whole && cnt.is_whole;
    if both && by_block != by_length {
        checker.found(locus, GroupUseRule::FreeTreesDiffer)?;
    }
    if bno.is_whole {
        let sum: u64 = by_block.iter().map(|&(_, count)| u64::from(count)).sum();
        let longest = by_block.iter().map(|&(_, count)| count).max();
        if sum != u64::from(agf.free_blocks) {
            checker.found(locus, GroupUseRule::FreeBlocks)?;
        }
        if longest.unwrap_or(0) != agf.longest {
            checker.found(locus, GroupUseRule::Longest)?;
        }
    }
    drop((by_block, by_length));
    state.known.set(Known::FREE, bno.is_whole);
    let mut is_claimed = both;
    let mut beyond_roots = bno.blocks.saturating_sub(1) + cnt.blocks.saturating_sub(1);
    let mut is_counted = both;
    if let Some(root) = agf.rmap {
        let rmap = walk_owners(checker, ag, root)?;
        state.known.set(Known::OWNERS, rmap.is_whole);
        is_claimed &= rmap.is_whole;
        is_counted &= rmap.is_whole;
        beyond_roots += rmap.blocks.saturating_sub(1);
        if rmap.is_whole && rmap.blocks != u64::from(agf.rmap_blocks) {
            checker.found(locus, GroupUseRule::OwnerTreeBlocks)?;
        }
    }
    let is_lazy = checker.context.geometry().features.has_lazy_count();
    if is_counted && is_lazy && beyond_roots != u64::from(agf.btree_blocks) {
        checker.found(locus, GroupUseRule::TreeBlocks)?;
    }
    if let Some(root) = agf.refcount {
        let refcount = walk_references(checker, ag, root)?;
        state.known.set(Known::REFERENCES, refcount.is_whole);
        is_claimed &= refcount.is_whole;
        if refcount.is_whole && refcount.blocks != u64::from(agf.refcount_blocks) {
            checker.found(locus, GroupUseRule::ReferenceTreeBlocks)?;
        }
    }
    state.known.set(Known::CLAIMS, is_claimed);
    Ok(())
}

fn walk_free(
    checker: &mut Checker<'_>,
    kind: BtreeKind,
    ag: AgNr,
    root: TreeRoot,
    found: &mut Vec<(u32, u32)>,
) -> Flow<TreeWalk> {
    walk_group(checker, kind, ag, root, &mut |checker, leaf| {
        for record in leaf.records::<DiskFreeExtent>() {
            let (start, count) = (record.start.get(), record.count.get());
            if !checker.is_in_group(ag, start, count) {
                checker.found(checker.locus_in(ag, start), BtreeRule::Record)?;
            }
            found.push((start, count));
        }
        Ok(())
    })
}

fn walk_owners(checker: &mut Checker<'_>, ag: AgNr, root: TreeRoot) -> Flow<TreeWalk> {
    let length = checker.context.geometry().ag_len(ag);
    walk_group(checker, BtreeKind::Rmap, ag, root, &mut |checker, leaf| {
        for record in leaf.records::<DiskOwner>() {
            let owner = Owner::decode(record);
            let end = u64::from(owner.start.0) + u64::from(owner.count);
            let is_known = owner.owner.is_inode()
                || (RmapOwner::COW.0..=RmapOwner::FS.0).contains(&owner.owner.0);
            if owner.count == 0 || end > length.into() || !is_known {
                checker.found(checker.locus_in(ag, owner.start.0), BtreeRule::Record)?;
            }
        }
        Ok(())
    })
}

fn walk_references(checker: &mut Checker<'_>, ag: AgNr, root: TreeRoot) -> Flow<TreeWalk> {
    walk_group(
        checker,
        BtreeKind::Refcount,
        ag,
        root,
        &mut |checker, leaf| {
            for record in leaf.records::<DiskRefcount>() {
                let record = Refcount::decode(record);
                let (start, count) = (record.start, record.count);
                let is_possible = if record.is_staged {
                    record.references == 1
                } else {
                    record.references >= 2
                };
                if !checker.is_in_group(ag, start.0, count) || !is_possible {
                    checker.found(checker.locus_in(ag, start.0), BtreeRule::Record)?;
                } else if record.is_staged {
                    checker.claims.add_special(ag, start, count, RmapOwner::COW);
                }
            }
            Ok(())
        },
    )
}
