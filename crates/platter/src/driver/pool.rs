//! What a driver can do with the devices of a filesystem.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::{CheckSink, Result};

pub use platter_vfs::devices::{Balance, Moved, Moving, Scrubbed};

use super::MountRequest;

/// What a driver can do with the devices of a filesystem.
pub(crate) trait Pool: Sync {
    /// Reads every copy of everything, and with `repairs` rewrites those that are bad.
    fn scrub(
        &self,
        request: MountRequest,
        repairs: bool,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed>;

    /// Places chunks anew.
    fn balance(
        &self,
        request: MountRequest,
        balance: &Balance,
        moving: Moving<'_>,
    ) -> Result<Moved>;

    /// Adds a device. Returns its number.
    fn add_device(&self, request: MountRequest, device: &Arc<dyn BlockDevice>) -> Result<u64>;

    /// Moves what is on a device to others, and removes it.
    fn remove_device(
        &self,
        request: MountRequest,
        device: u64,
        moving: Moving<'_>,
    ) -> Result<Moved>;

    /// Puts a device in the place of another one.
    fn replace_device(
        &self,
        request: MountRequest,
        device: u64,
        target: &Arc<dyn BlockDevice>,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed>;

    /// Changes the length of a device.
    fn resize_device(
        &self,
        request: MountRequest,
        device: u64,
        len_bytes: u64,
        moving: Moving<'_>,
    ) -> Result<Moved>;
}
