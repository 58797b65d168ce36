//! How a driver commits edits of images that are not mounted.

use std::ops::Range;
use std::sync::Arc;

use platter_block::{BlockDevice, ScratchDevice};
use platter_vfs::Result;

use super::MountRequest;

/// How edits are committed to their image.
pub(crate) enum EditStrategy<'d> {
    /// They are not: the driver only reads.
    Refused,
    /// The filesystem is mounted on scratch devices above its own, and what they differ by is written in
    /// one transaction.
    Journaled(&'d dyn JournaledEdits),
    /// The filesystem is mounted on its own devices, as [`Purpose::EditInPlace`] says. What it writes
    /// goes to free space, and its last superblock makes all of it visible at once.
    InPlace,
}

/// Edits that are made on scratch devices.
pub(crate) trait JournaledEdits: Sync {
    /// The free ranges of the first device, if they are known before a replay.
    fn free_ranges(&self, request: &MountRequest) -> Result<Option<Box<FreeRanges>>>;

    /// Makes the devices hold, in one transaction, what was changed on the scratch devices above them.
    fn commit_image(&self, commit: ImageCommit<'_>) -> Result<()>;
}

/// Whether a range of bytes of a device is free, as long as the filesystem is not written.
pub(crate) type FreeRanges = dyn Fn(&Range<u64>) -> bool + Send + Sync;

/// An edit that is to be committed to its image.
pub(crate) struct ImageCommit<'c> {
    /// The devices that hold the filesystem, and how it was opened.
    pub(crate) mount: MountRequest,
    /// The first device again, for blocks that are free before.
    pub(crate) unbatched: Arc<dyn BlockDevice>,
    /// What the first device is to hold.
    pub(crate) new: &'c Arc<ScratchDevice>,
    /// What the other devices are to hold, in their order; logs have none.
    #[expect(dead_code, reason = "for filesystems with a realtime device")]
    pub(crate) others: &'c [Option<Arc<ScratchDevice>>],
}

/// What a filesystem is mounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be used.
    Use,
    /// To be edited on scratch devices, which do not outlive the mount: a power failure does not
    /// matter.
    EditOnScratch,
    /// To be edited on its own devices: nothing is committed before it is unmounted, and where that does
    /// not happen the devices hold what they held before. What does not fit into one transaction
    /// fails with `NoSpace`.
    EditInPlace,
}
