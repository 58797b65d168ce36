//! Lists of unlinked inodes. Spec: `xfs/allocation_groups`, "Unlinked Inode List".

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::{Checker, Flow, InodeUseRule, UnlinkedRule, locus_of};
use crate::ondisk::AgInode;
use crate::ondisk::agi::UNLINKED_BUCKETS;

/// Follows the lists of all groups. A clean filesystem has none: recovery frees what is in them.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    for ag in checker.context.geometry().groups() {
        // A corrupt header was reported.
        let Ok(agi) = checker.context.agi(ag) else {
            continue;
        };
        for (bucket, head) in agi.unlinked.into_iter().enumerate() {
            let mut next: Option<AgInode> = head;
            while let Some(inode) = next.take() {
                let locus = Locus::group(ag.0.into());
                let geometry = checker.context.geometry();
                let Some(number) = geometry.inode_nr(ag, inode) else {
                    checker.found(locus, UnlinkedRule::Number)?;
                    break;
                };
                let locus = locus.of_inode(number.get());
                let Some(state) = checker.inodes.get_mut(number) else {
                    checker.found(locus, UnlinkedRule::Number)?;
                    break;
                };
                if std::mem::replace(&mut state.is_unlinked, true) {
                    checker.found(locus, UnlinkedRule::Loop)?;
                    break;
                }
                let is_listed = state.kind.is_some() && state.links == 0;
                let bucket_of = inode.0 as usize % UNLINKED_BUCKETS;
                if !is_listed || bucket_of != bucket {
                    checker.found(locus, UnlinkedRule::Member)?;
                } else {
                    checker.found(locus_of(number), InodeUseRule::Unlinked)?;
                }
                next = checker.inode(number).and_then(|inode| inode.next_unlinked);
            }
        }
    }
    Ok(())
}
