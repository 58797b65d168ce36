//! Directories: looking a name up, listing names.

use std::sync::Arc;

use platter_vfs::{DirCursor, DirSink, Name, Result};

use super::{Core, Node};
use crate::Volume;
use crate::directory::Directory;

impl Node {
    pub(super) fn lookup_name(&self, name: Name<'_>) -> Result<Arc<Self>> {
        let _order = self.order.read();
        let found = self.core.read().directory(self.volume())?.lookup(name)?;
        self.tree.named(found.inode)
    }

    pub(super) fn list_names(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        let _order = self.order.read();
        let core = self.core.read();
        core.directory(self.volume())?.read(from, sink)
    }
}

impl Core {
    pub(super) fn directory<'c>(&'c self, volume: &'c Volume) -> Result<Directory<'c>> {
        Directory::open(volume, &self.inode, &self.map)
    }
}
