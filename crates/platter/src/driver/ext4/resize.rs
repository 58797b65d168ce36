//! Growth of ext2, ext3 and ext4.

use platter_block::BlockDevice;
use platter_ext4::resize;
use platter_vfs::Result;

use super::Ext;
use crate::driver::{Resize, ResizeRequest, Resized};

impl Resize for Ext {
    fn len_bytes(&self, device: &dyn BlockDevice) -> Result<u64> {
        platter_ext4::mkfs::len_bytes(device)
    }

    fn is_atomic(&self, device: &dyn BlockDevice) -> Result<bool> {
        resize::is_journaled(device)
    }

    fn resize(&self, request: ResizeRequest<'_>) -> Result<Resized> {
        let ResizeRequest {
            device,
            len_bytes,
            budget,
            clock,
            progress: _,
        } = request;
        let grown = resize::grow(device, len_bytes, budget, clock)?;
        Ok(Resized {
            before_bytes: grown.before_bytes,
            after_bytes: grown.after_bytes,
        })
    }
}
