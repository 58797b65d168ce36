//! Directories: looking a name up, listing names.

use std::sync::Arc;

use platter_vfs::{DirCursor, DirSink, Name, Result};

use super::Node;
use crate::directory::Directory;

impl Node {
    pub(super) fn lookup_name(&self, name: Name<'_>) -> Result<Arc<Self>> {
        let found = self.directory()?.lookup(name)?;
        self.tree.named(found.inode)
    }

    pub(super) fn list_names(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.directory()?.read(from, sink)
    }

    fn directory(&self) -> Result<Directory<'_>> {
        Directory::open(self.volume(), &self.inode, &self.map)
    }
}
