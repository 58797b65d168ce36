//! Send streams of subvolumes.

use std::io::{Read, Write};

use platter_vfs::subvolumes::{Received, SendOptions};
use platter_vfs::{Condition, Inode, Subvolumes};

use super::Volume;
use crate::Result;

/// Why a subvolume is not sent.
pub const NOT_READ_ONLY: &str =
    "is not read-only; send a read-only snapshot of it, or make it so by `subvolume set-read-only`";

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

/// See [`Volume::send`].
pub(super) fn send(
    volume: &Volume,
    path: &[u8],
    request: &SendRequest,
    out: &mut dyn Write,
) -> Result<()> {
    let id = read_only_at(volume, path)?;
    let parent = request.parent.as_ref();
    let sources = request.clone_sources.iter();
    let options = SendOptions {
        parent: parent.map(|path| read_only_at(volume, path)).transpose()?,
        clone_sources: sources
            .map(|path| read_only_at(volume, path))
            .collect::<Result<_>>()?,
        version: request.version,
        compressed: request.compressed,
        no_data: request.no_data,
        cancellation: None,
    };
    let sent = own_subvolumes(volume, path)?.send(id, &options, out);
    volume.named(path, sent)
}

/// See [`Volume::receive`].
pub(super) fn receive(volume: &Volume, dir: &[u8], input: &mut dyn Read) -> Result<Vec<Received>> {
    let parent = volume.open(dir)?;
    let mut all = Vec::new();
    let received = own_subvolumes(volume, dir)?.receive(
        volume.context(),
        parent.inode().id(),
        input,
        &mut |done| all.push(done),
    );
    volume.named(dir, received)?;
    Ok(all)
}

fn own_subvolumes<'v>(volume: &'v Volume, path: &[u8]) -> Result<&'v dyn Subvolumes> {
    let none = || volume.error(path, platter_vfs::Error::from(Condition::NotSupported));
    volume.filesystem().subvolumes().ok_or_else(none)
}

/// The number of a subvolume that refuses changes, whose root is at a path.
fn read_only_at(volume: &Volume, path: &[u8]) -> Result<u64> {
    let id = subvolume_at(volume, path)?;
    let found = volume.named(path, own_subvolumes(volume, path)?.get(id))?;
    if !found.read_only {
        return Err(volume.error(path, Condition::NotPermitted.because(NOT_READ_ONLY)));
    }
    Ok(id)
}

/// The number of the subvolume whose root is at a path.
fn subvolume_at(volume: &Volume, path: &[u8]) -> Result<u64> {
    own_subvolumes(volume, path)?;
    let file = volume.open(path)?;
    let is_root = volume.named(path, is_subvolume_root(&**file.inode()))?;
    if !is_root {
        let refused = Condition::InvalidArgument.because("is not a subvolume");
        return Err(volume.error(path, refused));
    }
    Ok(file.inode().id().tree)
}

/// Whether what is above a directory is in another subvolume, or there is nothing.
fn is_subvolume_root(inode: &dyn Inode) -> platter_vfs::Result<bool> {
    let above = inode.lookup(platter_vfs::Name::new(b"..")?)?.id();
    Ok(above.tree != inode.id().tree || above == inode.id())
}
