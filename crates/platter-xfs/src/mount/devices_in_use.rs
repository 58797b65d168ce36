//! Commands on the device of a mount, one at a time, while files are used.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_vfs::devices::{Moved, Moving, NewLength, Resized};
use platter_vfs::{Condition, Devices, Result, Unsupported};

use super::growfs;
use crate::ops::SuperBlock;
use crate::superblock::fitting_size;
use crate::txn::Log;

/// The device of a mount.
#[derive(Debug)]
pub(super) struct DevicesInUse {
    fs: Arc<SuperBlock>,
    /// Held by the command that runs.
    turn: Mutex<(), { rank(0, 2) }>,
    /// The mount ends: no command begins, and the one that runs is to end.
    is_ending: AtomicBool,
}

impl DevicesInUse {
    pub(super) fn new(fs: Arc<SuperBlock>) -> Self {
        Self {
            fs,
            turn: Mutex::default(),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Makes the command that runs end, and lets none begin.
    pub(super) fn stop(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Waits for the command that runs.
    pub(super) fn wait(&self) {
        drop(self.turn.lock());
    }

    fn check(&self) -> Result<()> {
        let log = self.fs.context.log();
        if self.is_ending.load(Ordering::Acquire) || log.is_none_or(Log::is_shut_down) {
            return Err(Condition::ReadOnly.into());
        }
        Ok(())
    }

    fn grow(&self, length: NewLength, moving: Moving<'_>) -> Result<Resized> {
        let _turn = self.turn.try_lock().ok_or(Condition::Busy)?;
        self.check()?;
        let _writer = self.fs.writers.enter();
        // A freeze may have ended since with the mount.
        self.check()?;
        let context = &self.fs.context;
        let (geometry, device) = (context.geometry(), context.device());
        let before_bytes = geometry.len_bytes();
        let wanted = match length {
            NewLength::Whole => {
                // Of a block device, the size that it has by now.
                device.grow(before_bytes)?;
                device.geometry().len_bytes
            }
            NewLength::Bytes(bytes) => bytes,
            NewLength::Larger(bytes) => before_bytes.saturating_add(bytes),
        };
        let now = geometry.growth.size();
        let blocks = wanted >> geometry.block_bits;
        if blocks < now.data_blocks {
            return Err(Unsupported {
                filesystem: "xfs",
                feature: "making a mounted filesystem shorter".to_owned(),
                reason: Some("unmount it first"),
            }
            .into());
        }
        let size = fitting_size(now, geometry.ag_blocks, blocks)?;
        let mut is_cancelled = false;
        if size != now {
            device.grow(wanted)?;
            if wanted > device.geometry().len_bytes {
                return Err(Condition::NoSpace.into());
            }
            let go_on = &mut |done, total| {
                if self.is_ending.load(Ordering::Acquire) {
                    return ControlFlow::Break(());
                }
                moving(done, total)
            };
            is_cancelled = !growfs::grow(&self.fs, size, go_on)?;
        }
        Ok(Resized {
            before_bytes,
            after_bytes: geometry.len_bytes(),
            moved: Moved {
                is_cancelled,
                ..Moved::default()
            },
        })
    }
}

impl Devices for DevicesInUse {
    fn resize_device(
        &self,
        device: Option<u64>,
        length: NewLength,
        moving: Moving<'_>,
    ) -> Result<Resized> {
        if device.is_some() {
            return Err(Condition::NotSupported.into());
        }
        self.grow(length, moving)
    }
}
