//! References that were found in trees.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::extents::Claim;
use super::{Checker, Flow};
use crate::ondisk::extent_item::ExtentRef;

/// Records a reference, now or when all extents are known.
pub(super) fn add(checker: &mut Checker<'_>, claim: Claim) -> Flow<ExtentRef> {
    if !checker.extents.is_complete {
        checker.extents.deferred.push(claim);
        return Ok(claim.own);
    }
    match checker.extents.claim(&claim) {
        Ok(reference) => Ok(reference),
        Err(rule) => {
            checker.found(locus_of(&claim), rule)?;
            Ok(checker.extents.reference(&claim))
        }
    }
}

/// Where a reference was found.
fn locus_of(claim: &Claim) -> Locus {
    let mut locus = Locus::tree(claim.tree.0).at_block(claim.extent.0);
    if let ExtentRef::Data { inode, .. } = claim.own {
        locus = locus.of_inode(inode);
    }
    locus
}
