//! Extended attributes.

use platter_vfs::Result;

use super::Node;
use crate::xattr;

impl Node {
    pub(super) fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        xattr::get(self.volume(), &self.core.read().inode, name)
    }

    pub(super) fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        xattr::list(self.volume(), &self.core.read().inode)
    }
}
