//! Symbolic links: the target in the inode, or as the contents of the link's first block.

use platter_ondisk::Locus;
use platter_vfs::{Condition, FileKind, Result};

use super::Node;
use crate::ondisk::corrupt::{Corrupt, Rule};

/// What a link with its target outside the inode must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkRule {
    /// The target is not empty, and shorter than a block.
    Length,
    /// The target does not begin with a NUL.
    Target,
}

impl Rule for LinkRule {
    const STRUCTURE: &'static str = "symbolic link";

    fn text(self) -> &'static str {
        match self {
            Self::Length => "target is empty or not shorter than a block",
            Self::Target => "target begins with a NUL",
        }
    }
}

impl Node {
    pub(super) fn link_target(&self) -> Result<Vec<u8>> {
        if self.kind != FileKind::Symlink {
            return Err(Condition::InvalidArgument.into());
        }
        let core = self.core.read();
        let inode = &core.inode;
        if inode.is_encrypted() {
            return Err(Condition::NoKey.into());
        }
        let geometry = &self.volume().geometry;
        if inode.has_target_inside(geometry) {
            return Ok(inode.target_inside().unwrap_or_default().to_vec());
        }
        let broken = |rule| Corrupt::new(Locus::inode(u64::from(self.number.get())), rule);
        let length = inode.size_bytes;
        if length == 0 || length >= u64::from(geometry.block_bytes) {
            return Err(broken(LinkRule::Length).into());
        }
        let mut target = vec![0; usize::try_from(length).unwrap_or_default()];
        core.contents(self.volume()).read_at(0, &mut target)?;
        // A NUL ends the target, as it does where a path is a string.
        if let Some(end) = target.iter().position(|&byte| byte == 0) {
            target.truncate(end);
        }
        if target.is_empty() {
            return Err(broken(LinkRule::Target).into());
        }
        Ok(target)
    }
}
