//! Every block of a group against the claims on it: owned once, or free; and the reverse mapping
//! B-tree against all owners. Spec: `xfs/rmapbt`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{ControlFlow, Range};

use platter_vfs::Result;
use platter_vfs::check::Checking as _;

use super::claims::Claim;
use super::groups::Known;
use super::{BlockUseRule, Checker, Flow, OwnerRule, references};
use crate::btree::Tree;
use crate::ondisk::agf::TreeRoot;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent, DiskOwner, Owner};
use crate::ondisk::{AgBlock, AgNr};

/// How the blocks of a group are used.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Blocks in use, neighbours merged.
    used: Vec<Range<u64>>,
    /// Blocks with several owners that may share them, and how many.
    pub(super) shared: Vec<(Range<u64>, u64)>,
    /// Blocks with several owners that may not.
    conflicts: Vec<Range<u64>>,
}

impl Usage {
    /// The usage by claims in the order of their first blocks.
    pub(super) fn of(claims: &[Claim], may_share: bool) -> Self {
        let mut usage = Self::default();
        let mut ends: BinaryHeap<Reverse<(u64, bool)>> = BinaryHeap::new();
        // Owners that may share, and owners that may not, of the blocks at `at`.
        let (mut sharing, mut fixed) = (0_u64, 0_u64);
        let mut at = 0;
        let mut next = claims.iter().peekable();
        loop {
            let start = next.peek().map(|claim| u64::from(claim.start));
            let end = ends.peek().map(|Reverse((end, _))| *end);
            let Some(boundary) = start.into_iter().chain(end).min() else {
                return usage;
            };
            usage.add(at..boundary, sharing, fixed, may_share);
            at = boundary;
            while let Some(&Reverse((end, is_shareable))) = ends.peek()
                && end == at
            {
                ends.pop();
                let owners = if is_shareable {
                    &mut sharing
                } else {
                    &mut fixed
                };
                *owners -= 1;
            }
            while let Some(claim) = next.next_if(|claim| u64::from(claim.start) == at) {
                if claim.count == 0 {
                    continue;
                }
                ends.push(Reverse((claim.end(), claim.is_shareable())));
                let owners = if claim.is_shareable() {
                    &mut sharing
                } else {
                    &mut fixed
                };
                *owners += 1;
            }
        }
    }

    fn add(&mut self, blocks: Range<u64>, sharing: u64, fixed: u64, may_share: bool) {
        if blocks.is_empty() || sharing + fixed == 0 {
            return;
        }
        join(&mut self.used, blocks.clone());
        let most_sharing = if may_share { sharing.min(1) } else { sharing };
        if fixed + most_sharing > 1 {
            join(&mut self.conflicts, blocks);
        } else if sharing > 1 {
            match self.shared.last_mut() {
                Some((last, owners)) if last.end == blocks.start && *owners == sharing => {
                    last.end = blocks.end;
                }
                _ => self.shared.push((blocks, sharing)),
            }
        }
    }
}

/// Adds a range after all others, or to the last one if they are neighbours.
fn join(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// Compares claims with the B-trees of each group.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let count = u64::from(checker.context.geometry().ag_count());
    let may_share = checker.context.geometry().features.has_reflink();
    for ag in checker.context.geometry().groups() {
        checker.report.progress("blocks", ag.0.into(), count)?;
        let claims = checker.claims.take(ag);
        let usage = Usage::of(&claims, may_share);
        check_conflicts(checker, ag, &usage, &claims)?;
        // A corrupt header was reported.
        let Ok(agf) = checker.context.agf(ag) else {
            continue;
        };
        let Some(state) = checker.groups.get(&ag.0) else {
            continue;
        };
        let known = state.known;
        let is_complete = known.contains(Known::CLAIMS) && !checker.is_blind;
        if known.contains(Known::FREE) {
            check_free(checker, ag, agf.bno, &usage, is_complete)?;
        }
        if let Some(root) = agf.rmap.filter(|_| known.contains(Known::OWNERS)) {
            check_owners(checker, ag, root, &claims, is_complete)?;
        }
        if let Some(root) = agf.refcount.filter(|_| known.contains(Known::REFERENCES)) {
            references::check(checker, ag, root, &usage, &claims, is_complete)?;
        }
    }
    Ok(())
}

fn check_conflicts(checker: &mut Checker<'_>, ag: AgNr, usage: &Usage, claims: &[Claim]) -> Flow {
    for conflict in &usage.conflicts {
        let block = u32::try_from(conflict.start).unwrap_or(u32::MAX);
        let mut locus = checker.locus_in(ag, block);
        // The last one that begins at or before it is one of its owners, or near.
        let after = claims.partition_point(|claim| u64::from(claim.start) <= conflict.start);
        let owner = claims.get(..after).unwrap_or_default().iter().rev();
        let mut owner = owner.take(64).filter(|claim| claim.end() > conflict.start);
        if let Some(claim) = owner.find(|claim| claim.owner.is_inode()) {
            locus = locus.of_inode(claim.owner.0);
        }
        checker.found(locus, BlockUseRule::Multiple)?;
    }
    Ok(())
}

/// What is not in use is free, and the other way round.
fn check_free(
    checker: &mut Checker<'_>,
    ag: AgNr,
    root: TreeRoot,
    usage: &Usage,
    is_complete: bool,
) -> Flow {
    let tree = Tree::of_group(checker.context, BtreeKind::Bno, ag, root);
    let mut free: Vec<Range<u64>> = Vec::new();
    let read: Result<()> = tree.leaves(&mut |leaf| {
        for record in leaf.records::<DiskFreeExtent>() {
            let start = u64::from(record.start.get());
            free.push(start..start + u64::from(record.count.get()));
        }
        Ok(ControlFlow::Continue(()))
    });
    if read.is_err() {
        // Reported when it was walked.
        return Ok(());
    }
    let len = u64::from(checker.context.geometry().ag_len(ag));
    let mut free = free.into_iter().peekable();
    let mut used = usage.used.iter().cloned().peekable();
    let mut at = 0;
    while at < len {
        while free.next_if(|range| range.end <= at).is_some() {}
        while used.next_if(|range| range.end <= at).is_some() {}
        let is_in = |range: Option<&Range<u64>>| range.is_some_and(|range| range.start <= at);
        let next = |range: Option<&Range<u64>>| match range {
            Some(range) if range.start > at => range.start,
            Some(range) => range.end,
            None => len,
        };
        let (is_free, is_used) = (is_in(free.peek()), is_in(used.peek()));
        let end = next(free.peek()).min(next(used.peek())).min(len);
        let locus = checker.locus_in(ag, u32::try_from(at).unwrap_or(u32::MAX));
        if is_free && is_used {
            checker.found(locus, BlockUseRule::UsedFree)?;
        } else if !is_free && !is_used && is_complete {
            checker.found(locus, BlockUseRule::Lost)?;
        }
        at = end;
    }
    Ok(())
}

fn check_owners(
    checker: &mut Checker<'_>,
    ag: AgNr,
    root: TreeRoot,
    claims: &[Claim],
    is_complete: bool,
) -> Flow {
    let tree = Tree::of_group(checker.context, BtreeKind::Rmap, ag, root);
    let mut stored = Vec::new();
    let read: Result<()> = tree.leaves(&mut |leaf| {
        stored.extend(leaf.records::<DiskOwner>().iter().map(Owner::decode));
        Ok(ControlFlow::Continue(()))
    });
    if read.is_err() {
        return Ok(());
    }
    let all = canonical(stored);
    let expected = canonical(claims.iter().map(|claim| claim.to_owner()).collect());
    let (mut stored, mut expected) = (all.iter().peekable(), expected.iter().peekable());
    loop {
        let (one, other) = match (stored.peek(), expected.peek()) {
            (None, None) => return Ok(()),
            (stored, expected) => (
                stored.map(|owner| sort_key(owner)),
                expected.map(|owner| sort_key(owner)),
            ),
        };
        if one == other {
            stored.next();
            expected.next();
            continue;
        }
        let is_extra = other.is_none_or(|other| one.is_some_and(|one| one < other));
        let (owner, rule) = if is_extra {
            (stored.next(), OwnerRule::Extra)
        } else {
            (expected.next(), OwnerRule::Missing)
        };
        // Without all claims, a record may have more blocks than are known. With all, it is the record that
        // is wrong, and nothing is missing.
        let is_known = |owner: &&Owner| {
            if is_extra {
                is_complete
            } else {
                !is_covered(owner, &all)
            }
        };
        let Some(owner) = owner.filter(is_known) else {
            continue;
        };
        let mut locus = checker.locus_in(ag, owner.start.0);
        if owner.owner.is_inode() {
            locus = locus.of_inode(owner.owner.0);
        }
        checker.found(locus, rule)?;
    }
}

/// How many records before a block are searched for one that has it: more only share it.
const OVERLAPS_MAX: usize = 64;

/// Whether a record, of those in order, has all of an owner's blocks.
fn is_covered(owner: &Owner, records: &[Owner]) -> bool {
    let after = records.partition_point(|record| record.start <= owner.start);
    let near = records.get(..after).unwrap_or_default().iter().rev();
    near.take(OVERLAPS_MAX).any(|record| {
        let before = u64::from(owner.start.0 - record.start.0);
        let is_same = flags(record) == flags(owner) && record.owner == owner.owner;
        let is_in_order =
            !has_offset(owner) || record.offset.checked_add(before) == Some(owner.offset);
        is_same && is_in_order && before + u64::from(owner.count) <= u64::from(record.count)
    })
}

fn flags(owner: &Owner) -> [bool; 3] {
    [owner.is_attr_fork, owner.is_btree, owner.is_unwritten]
}

/// Whether an offset in the file counts.
fn has_offset(owner: &Owner) -> bool {
    owner.owner.is_inode() && !owner.is_btree
}

type SortKey = (AgBlock, u32, u64, u64, [bool; 3]);

fn sort_key(owner: &Owner) -> SortKey {
    let flags = flags(owner);
    (owner.start, owner.count, owner.owner.0, owner.offset, flags)
}

/// Records merged as far as they can be, in order: what is stored may be merged in other ways.
fn canonical(mut owners: Vec<Owner>) -> Vec<Owner> {
    owners.sort_unstable_by_key(|owner| {
        // Parts of one record have the same difference of file offset and block, also around a clone within the file.
        let distance = if has_offset(owner) {
            owner.offset.wrapping_sub(owner.start.0.into())
        } else {
            0
        };
        (owner.owner, flags(owner), distance, owner.start)
    });
    owners.dedup_by(|next, last| {
        let follows = u64::from(last.start.0) + u64::from(last.count) == u64::from(next.start.0)
            && (last.owner, flags(last)) == (next.owner, flags(next))
            && (!has_offset(last) || last.offset + u64::from(last.count) == next.offset);
        if follows {
            last.count = last.count.saturating_add(next.count);
        }
        follows
    });
    owners.sort_unstable_by_key(sort_key);
    owners
}

#[cfg(test)]
mod tests {
    use super::super::claims::Claims;
    use super::*;
    use crate::ondisk::btree::RmapOwner;

    fn file(start: u32, count: u32, inode: u64, offset: u64) -> Owner {
        Owner {
            start: AgBlock(start),
            count,
            owner: RmapOwner(inode),
            offset,
            is_attr_fork: false,
            is_btree: false,
            is_unwritten: false,
        }
    }

    #[test]
    fn overlaps_are_shared_or_conflicts() {
        let mut claims = Claims::default();
        claims.add_special(AgNr(0), AgBlock(0), 4, RmapOwner::FS);
        for (start, count, inode) in [(4, 6, 131), (6, 2, 132), (6, 6, 133)] {
            claims.add(AgNr(0), &file(start, count, inode, 0), true);
        }
        let claims = claims.take(AgNr(0));
        let usage = Usage::of(&claims, true);
        assert!(usage.used.iter().eq([&(0..12)]));
        assert_eq!(usage.shared, [(6..8, 3), (8..10, 2)]);
        assert!(usage.conflicts.is_empty());
        let usage = Usage::of(&claims, false);
        assert!(usage.conflicts.iter().eq([&(6..10)]) && usage.shared.is_empty());
        let mut claims = Claims::default();
        claims.add_special(AgNr(0), AgBlock(3), 2, RmapOwner::INODES);
        claims.add(AgNr(0), &file(4, 3, 131, 0), true);
        let usage = Usage::of(&claims.take(AgNr(0)), true);
        assert!(usage.used.iter().eq([&(3..7)]) && usage.conflicts.iter().eq([&(4..5)]));
    }

    #[test]
    fn parts_of_records_are_covered_by_them() {
        let records = [file(10, 10, 131, 4), file(12, 2, 132, 0)];
        for (part, expected) in [
            (file(10, 10, 131, 4), true),
            (file(12, 3, 131, 6), true),
            (file(12, 3, 131, 7), false),
            (file(12, 3, 132, 0), false),
            (file(19, 2, 131, 13), false),
            (file(9, 1, 131, 3), false),
        ] {
            assert_eq!(is_covered(&part, &records), expected, "{part:?}");
        }
        let special = Owner {
            owner: RmapOwner::AG,
            ..file(5, 4, 0, 0)
        };
        let part = Owner {
            count: 1,
            start: AgBlock(7),
            ..special
        };
        assert!(is_covered(&part, &[special]));
    }

    #[test]
    fn records_are_merged_over_those_of_others() {
        let records = vec![
            file(10, 5, 131, 0),
            file(12, 5, 132, 9),
            file(15, 5, 131, 5),
            file(20, 5, 131, 11),
        ];
        let merged = canonical(records);
        let expected = [
            file(10, 10, 131, 0),
            file(12, 5, 132, 9),
            file(20, 5, 131, 11),
        ];
        assert_eq!(merged, expected);
    }

    #[test]
    fn parts_of_a_record_are_merged_over_a_clone_in_the_file() {
        let extents = vec![
            file(10, 5, 131, 0),
            file(12, 2, 131, 100),
            file(15, 5, 131, 5),
        ];
        let merged = canonical(extents);
        assert_eq!(merged, [file(10, 10, 131, 0), file(12, 2, 131, 100)]);
        // Blocks of a B-tree have no offset.
        let block = |start| Owner {
            is_btree: true,
            ..file(start, 1, 131, 0)
        };
        let merged = canonical(vec![block(11), block(10)]);
        let expected = Owner {
            count: 2,
            ..block(10)
        };
        assert_eq!(merged, [expected]);
    }
}
