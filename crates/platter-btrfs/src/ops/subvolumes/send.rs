//! Send streams of subvolumes.

use std::io::Write;

use platter_vfs::subvolumes::SendOptions;
use platter_vfs::{Condition, Result};

use super::in_use::SendInProgress;
use crate::ondisk::TreeId;
use crate::ops::{SuperBlock, sync};
use crate::send::{DataSource, send};

/// See [`platter_vfs::Subvolumes::send`].
pub(super) fn send_subvolume(
    superblock: &SuperBlock,
    id: TreeId,
    options: &SendOptions,
    out: &mut dyn Write,
) -> Result<()> {
    let context = superblock.context();
    let others = options.parent.iter().chain(&options.clone_sources);
    let ids: Vec<_> = [id]
        .into_iter()
        .chain(others.map(|id| TreeId(*id)))
        .collect();
    let _in_progress = begin(superblock, &ids)?;
    if superblock.writing().is_some() {
        // What is sent is what is stored.
        sync::sync_fs(superblock)?;
        for id in ids {
            context.forget_root_item(id);
        }
    }
    let data = DataSource {
        reader: &superblock.data,
        decompressed: &superblock.decompressed,
    };
    send(context, data, id, options, out)
}

/// Keeps subvolumes as they are, which are read-only.
fn begin(superblock: &SuperBlock, ids: &[TreeId]) -> Result<Vec<SendInProgress>> {
    let _changing = superblock.subvolume_changes.lock();
    let begin = |id: &TreeId| {
        let found = superblock.context().subvolume(*id)?;
        let found = found.ok_or(Condition::NotFound)?;
        if !found.is_read_only() {
            return Err(Condition::NotPermitted.into());
        }
        let subvolume = superblock.in_use.get_or_add(&found);
        Ok(SendInProgress::begin(subvolume))
    };
    ids.iter().map(begin).collect()
}
