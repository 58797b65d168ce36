//! Targets of symbolic links. Spec: `xfs/symbolic_links`.

use platter_vfs::check::Checking as _;

use super::forks::ForkExtents;
use super::{Checker, Flow, locus_of};
use crate::mapping::ForkMap;
use crate::ondisk::symlink::{self, SymlinkRule};
use crate::ondisk::{ForkFormat, Inode};
use crate::ops::stored_target;

/// Reads the target of a link, whose data fork has these extents.
pub(super) fn check(checker: &mut Checker<'_>, inode: &Inode, data: &ForkExtents) -> Flow {
    let locus = locus_of(inode.number);
    let map = ForkMap::of_data(checker.context, inode);
    let target = map.and_then(|map| stored_target(checker.context, inode, &map));
    let Some(target) = checker.tolerate("symbolic link", locus, target)? else {
        return Ok(());
    };
    if target.contains(&0) {
        checker.found(locus, SymlinkRule::Target)?;
    }
    if inode.data_format == ForkFormat::Extents {
        let len = u32::try_from(inode.size_bytes).unwrap_or(u32::MAX);
        let blocks = symlink::blocks(len, checker.context.geometry());
        if data.blocks != u64::from(blocks) {
            checker.found(locus, SymlinkRule::Length)?;
        }
    }
    Ok(())
}
