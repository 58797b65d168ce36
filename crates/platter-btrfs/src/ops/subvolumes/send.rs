//! Send streams of subvolumes.

use std::io::Write;

use platter_vfs::Result;
use platter_vfs::subvolumes::SendOptions;

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
    if superblock.writing().is_some() {
        // What is sent is what is stored.
        sync::sync_fs(superblock)?;
        for id in [Some(id.0), options.parent].into_iter().flatten() {
            context.forget_root_item(TreeId(id));
        }
        for id in &options.clone_sources {
            context.forget_root_item(TreeId(*id));
        }
    }
    let data = DataSource {
        reader: &superblock.data,
        decompressed: &superblock.decompressed,
    };
    send(context, data, id, options, out)
}
