//! The reference count B-tree of a group against the files that share blocks. Spec: `xfs/refcountbt`.

use std::ops::{ControlFlow, Range};

use platter_vfs::Result;
use platter_vfs::check::Checking as _;

use super::claims::Claim;
use super::owners::Usage;
use super::{Checker, Flow, ReferenceRule, locus_of};
use crate::btree::Tree;
use crate::ondisk::agf::TreeRoot;
use crate::ondisk::btree::{BtreeKind, DiskRefcount, Refcount};
use crate::ondisk::{AgNr, InodeNr};

/// Compares the reference counts of a group with its files' claims.
pub(super) fn check(
    checker: &mut Checker<'_>,
    ag: AgNr,
    root: TreeRoot,
    usage: &Usage,
    claims: &[Claim],
    is_complete: bool,
) -> Flow {
    let tree = Tree::of_group(checker.context, BtreeKind::Refcount, ag, root);
    let mut stored: Vec<(Range<u64>, u64)> = Vec::new();
    let read: Result<()> = tree.leaves(&mut |leaf| {
        for record in leaf.records::<DiskRefcount>() {
            let record = Refcount::decode(record);
            if record.is_staged {
                continue;
            }
            let start = u64::from(record.start.0);
            let blocks = start..start + u64::from(record.count);
            let owners = u64::from(record.references);
            match stored.last_mut() {
                Some((last, known)) if last.end == start && *known == owners => {
                    last.end = blocks.end;
                }
                _ => stored.push((blocks, owners)),
            }
        }
        Ok(ControlFlow::Continue(()))
    });
    if read.is_err() {
        // Reported when it was walked.
        return Ok(());
    }
    check_flags(checker, usage, claims)?;
    if !is_complete {
        return Ok(());
    }
    let key = |(blocks, owners): &(Range<u64>, u64)| (blocks.start, blocks.end, *owners);
    let (mut stored, mut expected) = (
        stored.iter().map(key).peekable(),
        usage.shared.iter().map(key).peekable(),
    );
    loop {
        let (one, other) = (stored.peek().copied(), expected.peek().copied());
        if one.is_none() && other.is_none() {
            return Ok(());
        }
        let is_extra = other.is_none_or(|other| one.is_some_and(|one| one < other));
        let (found, rule) = if one == other {
            expected.next();
            stored.next();
            continue;
        } else if is_extra {
            (stored.next(), ReferenceRule::Extra)
        } else {
            (expected.next(), ReferenceRule::Missing)
        };
        if let Some((start, ..)) = found {
            let block = u32::try_from(start).unwrap_or(u32::MAX);
            checker.found(checker.locus_in(ag, block), rule)?;
        }
    }
}

/// Files that share blocks have the flag for it.
fn check_flags(checker: &mut Checker<'_>, usage: &Usage, claims: &[Claim]) -> Flow {
    let mut reported = None;
    for claim in claims.iter().filter(|claim| claim.is_shareable()) {
        let Some(inode) = InodeNr::new(claim.owner.0) else {
            continue;
        };
        let start = u64::from(claim.start);
        let after = usage
            .shared
            .partition_point(|(blocks, _)| blocks.end <= start);
        let next = usage.shared.get(after);
        let is_shared = next.is_some_and(|(blocks, _)| blocks.start < claim.end());
        if is_shared && !checker.sharing.contains(&inode) && reported != Some(inode) {
            reported = Some(inode);
            checker.found(locus_of(inode), ReferenceRule::Flag)?;
        }
    }
    Ok(())
}
