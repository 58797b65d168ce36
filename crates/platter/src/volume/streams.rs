//! Send streams of subvolumes.

use std::io::{Read, Write};

use platter_vfs::subvolumes::{Received, SendOptions};
use platter_vfs::{Condition, Inode, Subvolumes};

use super::Volume;
use crate::{AsPath, Result};

/// What to send of a subvolume, with others named by their paths.
#[derive(Debug, Clone, Default)]
pub struct SendRequest {
    /// Send what changed since this subvolume, which the receiver has.
    pub parent: Option<Vec<u8>>,
    /// Others that the receiver has, whose extents may be referred to.
    pub clone_sources: Vec<Vec<u8>>,
    /// The version of the stream; `None` for the newest that can be made.
    pub version: Option<u32>,
    /// Compressed extents as they are stored, in streams from version 2 on.
    pub compressed: bool,
    /// Which ranges of files differ, without their data.
    pub no_data: bool,
}

impl Volume {
    /// Writes the read-only subvolume at `path` to `out` as a send stream, which `btrfs receive` and
    /// [`receive`](Self::receive) make a subvolume of.
    ///
    /// # Errors
    /// `NotSupported` where the filesystem has no subvolumes, `InvalidArgument` for a path that is not one's root,
    /// `NotPermitted` for one that is not read-only.
    pub fn send(
        &self,
        path: impl AsPath,
        request: &SendRequest,
        out: &mut dyn Write,
    ) -> Result<()> {
        let path = path.path_bytes();
        let id = self.subvolume_at(path)?;
        let parent = request.parent.as_ref();
        let sources = request.clone_sources.iter();
        let options = SendOptions {
            parent: parent.map(|path| self.subvolume_at(path)).transpose()?,
            clone_sources: sources
                .map(|path| self.subvolume_at(path))
                .collect::<Result<_>>()?,
            version: request.version,
            compressed: request.compressed,
            no_data: request.no_data,
        };
        let sent = self.own_subvolumes(path)?.send(id, &options, out);
        self.named(path, sent)
    }

    /// Receives the subvolumes of send streams into the directory `dir`. Each is read-only and durable when it is
    /// complete; after an error, the one that was begun is deleted.
    ///
    /// # Errors
    /// `NotSupported` where the filesystem has no subvolumes, `NotFound` where a subvolume is not there that
    /// a stream was made from.
    pub fn receive(&self, dir: impl AsPath, input: &mut dyn Read) -> Result<Vec<Received>> {
        let dir = dir.path_bytes();
        let parent = self.open(dir)?;
        let mut all = Vec::new();
        let received = self.own_subvolumes(dir)?.receive(
            self.context(),
            parent.inode().id(),
            input,
            &mut |done| all.push(done),
        );
        self.named(dir, received)?;
        Ok(all)
    }

    fn own_subvolumes(&self, path: &[u8]) -> Result<&dyn Subvolumes> {
        let none = || self.error(path, platter_vfs::Error::from(Condition::NotSupported));
        self.filesystem().subvolumes().ok_or_else(none)
    }

    /// The number of the subvolume whose root is at a path.
    fn subvolume_at(&self, path: &[u8]) -> Result<u64> {
        self.own_subvolumes(path)?;
        let file = self.open(path)?;
        let is_root = self.named(path, is_subvolume_root(&**file.inode()))?;
        if !is_root {
            let error = platter_vfs::Error::from(Condition::InvalidArgument);
            return Err(self.error(path, error));
        }
        Ok(file.inode().id().tree)
    }
}

/// Whether what is above a directory is in another subvolume, or there is nothing.
fn is_subvolume_root(inode: &dyn Inode) -> platter_vfs::Result<bool> {
    let above = inode.lookup(platter_vfs::Name::new(b"..")?)?.id();
    Ok(above.tree != inode.id().tree || above == inode.id())
}
