//! How a driver makes its filesystems larger and smaller.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Result};

use crate::Progress;

/// How the filesystems of a driver become larger and smaller.
pub(crate) trait Resize: Sync {
    /// How long the filesystem is, in bytes, by its superblock.
    fn len_bytes(&self, device: &dyn BlockDevice) -> Result<u64>;

    /// Whether the filesystem has its old or its new size after a crash.
    fn is_atomic(&self, device: &dyn BlockDevice) -> Result<bool>;

    /// Makes it longer, or refuses a size that it cannot have.
    fn resize(&self, request: ResizeRequest<'_>) -> Result<Resized>;
}

/// What is to become of a filesystem.
#[derive(Debug)]
pub(crate) struct ResizeRequest<'r> {
    pub(crate) device: &'r Arc<dyn BlockDevice>,
    /// Its new length.
    pub(crate) len_bytes: u64,
    pub(crate) budget: &'r Arc<MemoryBudget>,
    pub(crate) clock: &'r Arc<dyn Clock>,
    /// Cancels it where it takes long. It keeps its size then.
    pub(crate) progress: &'r Progress,
}

/// The length of a filesystem before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resized {
    /// Before.
    pub before_bytes: u64,
    /// Now: as far as whole blocks, clusters and groups go.
    pub after_bytes: u64,
}
