//! Send streams of subvolumes.

use std::io::Write;

use platter_vfs::Result;
use platter_vfs::subvolumes::SendOptions;

use crate::ondisk::TreeId;
use crate::ops::SuperBlock;
use crate::send::{DataSource, send};

impl SuperBlock {
    /// See [`platter_vfs::Subvolumes::send`].
    pub(super) fn send_subvolume(
        &self,
        id: TreeId,
        options: &SendOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let context = self.context();
        if self.writing().is_some() {
            // What is sent is what is stored.
            self.sync()?;
            for id in [Some(id.0), options.parent].into_iter().flatten() {
                context.forget_root_item(TreeId(id));
            }
            for id in &options.clone_sources {
                context.forget_root_item(TreeId(*id));
            }
        }
        let data = DataSource {
            reader: &self.data,
            decompressed: &self.decompressed,
        };
        send(context, data, id, options, out)
    }
}
