//! Directories: a name looked up, names listed.

use std::sync::Arc;

use platter_vfs::{DirCursor, DirSink, Name, Result};

use super::{Inode, InodeState};
use crate::context::FsContext;
use crate::directory::Directory;

impl Inode {
    pub(super) fn lookup_name(&self, name: Name<'_>) -> Result<Arc<Self>> {
        let found = self.state.read().directory(self.context())?.lookup(name)?;
        self.superblock.named(found.inode)
    }

    pub(super) fn list_names(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.state
            .read()
            .directory(self.context())?
            .read(from, sink)
    }
}

impl InodeState {
    fn directory<'s>(&'s self, context: &'s FsContext) -> Result<Directory<'s>> {
        Directory::open(context, &self.inode, &self.map)
    }
}
