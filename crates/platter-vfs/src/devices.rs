//! The devices of a filesystem: scrubbing what is on them, balance, devices that come, go and change their lengths.

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;

use crate::{CheckSink, Condition, Result};

/// Listens to chunks being moved: how many were, and how many there are. `Break` ends it after the last one.
pub type Moving<'m> = &'m mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// What a command that moves chunks came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Chunks that were looked at, or were to be.
    pub considered: u64,
    /// Chunks that were moved.
    pub moved: u64,
    /// Chunks that were removed: nothing was in them, or what was in them has moved.
    pub removed: u64,
    /// The listener ended it.
    pub is_cancelled: bool,
}

/// How long what is used of a device is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewLength {
    /// As long as the device.
    Whole,
    /// So many bytes.
    Bytes(u64),
    /// So many bytes longer than it is.
    Larger(u64),
}

/// What a change of a length came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resized {
    /// The length before.
    pub before_bytes: u64,
    /// The length now.
    pub after_bytes: u64,
    /// What was moved for it.
    pub moved: Moved,
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
    pub counters: Vec<(Cow<'static, str>, u64)>,
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

/// The devices of a mounted filesystem, which goes on being used meanwhile. One of these commands runs at a time; what
/// an unmount interrupts is left as a valid filesystem.
pub trait Devices: Send + Sync + Debug {
    /// Reads every copy of everything in use, and with `repairs` rewrites those that are bad.
    ///
    /// # Errors
    /// `Busy` while another command runs, as of all of these; `ReadOnly` after an unmount.
    fn scrub(&self, repairs: bool, sink: &mut dyn CheckSink) -> Result<Scrubbed> {
        let _ = (repairs, sink);
        not_supported()
    }

    /// Places chunks anew, each in a commit of its own.
    ///
    /// # Errors
    /// `Unsupported` for words that are not known; `NoSpace` where the devices have none for a chunk.
    fn balance(&self, balance: &Balance, moving: Moving<'_>) -> Result<Moved> {
        let _ = (balance, moving);
        not_supported()
    }

    /// Adds a device, whose contents are lost. Returns its number.
    fn add_device(&self, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        let _ = device;
        not_supported()
    }

    /// Moves what is on a device to others, and removes it.
    ///
    /// # Errors
    /// `NotFound` where there is no such device; `NoSpace` where the others have no space, or are too few.
    fn remove_device(&self, device: u64, moving: Moving<'_>) -> Result<Moved> {
        let _ = (device, moving);
        not_supported()
    }

    /// Puts a device in the place of another one, whose number it gets.
    fn replace_device(
        &self,
        device: u64,
        target: &Arc<dyn BlockDevice>,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed> {
        let _ = (device, target, sink);
        not_supported()
    }

    /// Changes the length of what is used of a device, the only one if none is named; of a shorter one, what is beyond is
    /// moved. A file becomes longer with it.
    ///
    /// # Errors
    /// `NoSpace` where there is no space for it, or for a length beyond the device.
    fn resize_device(
        &self,
        device: Option<u64>,
        length: NewLength,
        moving: Moving<'_>,
    ) -> Result<Resized> {
        let _ = (device, length, moving);
        not_supported()
    }
}

fn not_supported<T>() -> Result<T> {
    Err(Condition::NotSupported.into())
}
