//! Targets of symbolic links. Spec: `xfs/symbolic_links`.

use platter_vfs::check::Checking as _;

use super::forks::ForkExtents;
use super::{Checker, Flow, locus_of};
use crate::mapping::ForkMap;
use crate::ondisk::symlink::{self, SymlinkRule};
use crate::ondisk::{ForkFormat, Inode};
use crate::ops::stored_target;

impl Checker<'_> {
    pub(super) fn check_symlink(&mut self, inode: &Inode, data: &ForkExtents) -> Flow {
        let locus = locus_of(inode.number);
        let map = ForkMap::of_data(self.context, inode);
        let target = map.and_then(|map| stored_target(self.context, inode, &map));
        let Some(target) = self.tolerate("symbolic link", locus, target)? else {
            return Ok(());
        };
        if target.contains(&0) {
            self.found(locus, SymlinkRule::Target)?;
        }
        if inode.data_format == ForkFormat::Extents {
            let len = u32::try_from(inode.size_bytes).unwrap_or(u32::MAX);
            let blocks = symlink::blocks(len, self.context.geometry());
            if data.blocks != u64::from(blocks) {
                self.found(locus, SymlinkRule::Length)?;
            }
        }
        Ok(())
    }
}
