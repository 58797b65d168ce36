//! Attributes.

use platter_vfs::{Attr, FileKind, Result};

use super::Node;
use crate::inode;

impl Node {
    #[expect(clippy::unnecessary_wraps, reason = "as the trait has it")]
    pub(super) fn attributes(&self) -> Result<Attr> {
        let mut attr = inode::attr(&self.core.read().inode, &self.volume().geometry);
        if self.kind == FileKind::Regular {
            attr.size_bytes = self.size_bytes();
        }
        Ok(attr)
    }
}
