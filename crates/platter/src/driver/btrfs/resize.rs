//! Longer and shorter btrfs.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_btrfs::{MountOptions, PoolRequest};
use platter_vfs::{Result, Unsupported};

use super::BtrfsDriver;
use crate::driver::{Resize, ResizeRequest, Resized};

impl Resize for BtrfsDriver {
    fn len_bytes(&self, device: &dyn BlockDevice) -> Result<u64> {
        Ok(platter_btrfs::identify(device)?.dev_item.total_bytes)
    }

    fn is_atomic(&self, _: &dyn BlockDevice) -> Result<bool> {
        Ok(true)
    }

    fn resize(&self, request: ResizeRequest<'_>) -> Result<Resized> {
        let superblock = platter_btrfs::identify(&**request.device)?;
        if superblock.device_count != 1 {
            let unsupported = Unsupported {
                filesystem: "btrfs",
                feature: "changing the size of several devices".to_owned(),
                reason: Some("name one with `device resize`"),
            };
            return Err(unsupported.into());
        }
        let pool = PoolRequest {
            devices: vec![Arc::clone(request.device)],
            options: MountOptions::default(),
            budget: Arc::clone(request.budget),
            clock: Arc::clone(request.clock),
        };
        let id = superblock.dev_item.id;
        let mut until_cancelled = |_, _| {
            if request.progress.is_cancelled() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        pool.resize_device(id, request.len_bytes, &mut until_cancelled)?;
        Ok(Resized {
            before_bytes: superblock.dev_item.total_bytes,
            after_bytes: self.len_bytes(&**request.device)?,
        })
    }
}
