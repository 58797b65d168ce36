//! Targets of symbolic links: in the inode, or in blocks of their own.

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, FileKind, Result};

use super::{Inode, InodeState};
use crate::context::FsContext;
use crate::mapping::Backing;
use crate::ondisk::symlink::{self, SymlinkRule};
use crate::ondisk::{FileBlock, FsBlock, Site};

impl Inode {
    pub(super) fn link_target(&self) -> Result<Vec<u8>> {
        if self.kind != FileKind::Symlink {
            return Err(Condition::InvalidArgument.into());
        }
        let state = self.state.read();
        let target = match state.inode.local_data() {
            Some(target) => target.to_vec(),
            None => state.remote_target(self.context())?,
        };
        if target.is_empty() || target.contains(&0) {
            let locus = Locus::inode(self.number.get());
            return Err(Corrupt::new(locus, SymlinkRule::Target).into());
        }
        Ok(target)
    }
}

impl InodeState {
    fn remote_target(&self, context: &FsContext) -> Result<Vec<u8>> {
        let geometry = &context.geometry;
        let owner = self.inode.number.get();
        // Validated inodes have targets of 1024 bytes at most.
        let len = u32::try_from(self.inode.size_bytes).unwrap_or(u32::MAX);
        let mut target = Vec::new();
        let mut left = len;
        let mut at = FileBlock(0);
        while left > 0 {
            let run = self.map.lookup(context, at)?;
            let Backing::Written(start) = run.backing else {
                let corrupt = Corrupt::new(Locus::inode(owner), SymlinkRule::Missing);
                return Err(corrupt.into());
            };
            let block = FsBlock(start);
            let bytes = context.read_block(block, &Unverified)?;
            let site = Site::new(geometry, geometry.basic_block(block), owner);
            let part = symlink::decode(&bytes, len - left, left, &site)
                .map_err(|rule| Corrupt::new(site.locus().of_inode(owner), rule))?;
            target.extend_from_slice(part);
            left -= u32::try_from(part.len()).unwrap_or(left);
            at = FileBlock(at.0 + 1);
        }
        Ok(target)
    }
}
