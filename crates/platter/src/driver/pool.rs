//! What a driver can do with the devices of a filesystem.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::{CheckReport, CheckSink, Result};

use super::MountRequest;

/// Listens to chunks being moved: how many were, and how many there are. `Break` ends it after the last one.
pub type Moving<'m> = &'m mut dyn FnMut(u64, u64) -> ControlFlow<()>;

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

/// What a scrub came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// The listener broke off, so the rest was not looked at.
    pub is_cancelled: bool,
    /// Whether bad copies were rewritten.
    pub repairs: bool,
    /// Errors that were found.
    pub errors: u64,
    /// Of these, those of which no good copy is left.
    pub uncorrectable: u64,
    /// What was counted, under the names of `btrfs scrub status -R`.
    pub counters: Vec<(&'static str, u64)>,
}

impl From<(&CheckReport, bool)> for Scrubbed {
    fn from((report, repairs): (&CheckReport, bool)) -> Self {
        Self {
            is_cancelled: report.cancelled,
            repairs,
            ..Self::default()
        }
    }
}

/// What a command that moves chunks came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Chunks that were looked at.
    pub considered: u64,
    /// Chunks that were moved.
    pub moved: u64,
    /// Chunks that were removed, as nothing was in them.
    pub removed: u64,
    /// The listener ended it.
    pub is_cancelled: bool,
}

/// What is balanced, in the words of `btrfs balance`: the filters of each type, such as `usage=50,convert=raid1`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Balance {
    /// `-d`; `None` leaves data alone.
    pub data: Option<String>,
    /// `-m`; it is that of the chunk tree as well, if that has none.
    pub metadata: Option<String>,
    /// `-s`.
    pub system: Option<String>,
    /// `-f`: metadata may have fewer copies after it.
    pub is_forced: bool,
}
