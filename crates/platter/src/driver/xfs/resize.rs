//! Longer and shorter XFS.

use platter_block::BlockDevice;
use platter_vfs::Result;
use platter_xfs::resize;

use super::Xfs;
use crate::driver::{Resize, ResizeRequest, Resized};

impl Resize for Xfs {
    fn len_bytes(&self, device: &dyn BlockDevice) -> Result<u64> {
        resize::len_bytes(device)
    }

    fn is_atomic(&self, _: &dyn BlockDevice) -> Result<bool> {
        Ok(true)
    }

    fn resize(&self, request: ResizeRequest<'_>) -> Result<Resized> {
        let ResizeRequest {
            device,
            len_bytes,
            budget,
            clock,
            progress: _,
        } = request;
        let resized = resize::resize(device, len_bytes, budget, clock)?;
        Ok(Resized {
            before_bytes: resized.before_bytes,
            after_bytes: resized.after_bytes,
        })
    }
}
