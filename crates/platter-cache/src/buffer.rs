//! The metadata buffer cache: device block to verified bytes.
//!
//! Metadata enters memory only here, and only through a verifier. A [`Buffer`] is one immutable
//! version of a block; a writer publishes a new version, so whoever holds an older one (a reader,
//! a commit in flight) keeps reading what it was proven to be.

use std::ops::{Deref, Range};
use std::sync::Arc;

use platter_block::{BlockDevice, IoError};
use platter_ondisk::{Corruption, Verify};

use crate::MemoryBudget;

/// Why a metadata block could not be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BufferError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The bytes break a rule of what they should be.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
}

/// One version of one verified block.
#[derive(Debug, Clone)]
pub struct Buffer {
    bytes: Arc<[u8]>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Verified metadata blocks of one device, in units of the filesystem's block size.
#[derive(Debug)]
pub struct BufferCache {
    device: Arc<dyn BlockDevice>,
    block_bytes: u32,
}

impl BufferCache {
    /// A cache of `block_bytes`-sized blocks of `device`, within `budget`.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, block_bytes: u32, budget: Arc<MemoryBudget>) -> Self {
        drop(budget);
        Self {
            device,
            block_bytes,
        }
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// The block, proven by `verifier` now or earlier.
    pub fn read(&self, block: u64, verifier: &dyn Verify) -> Result<Buffer, BufferError> {
        let mut bytes = vec![0; self.block_bytes as usize];
        let offset = block.saturating_mul(u64::from(self.block_bytes));
        self.device.read_at(offset, &mut bytes)?;
        verifier.verify(block, &bytes)?;
        Ok(Buffer {
            bytes: bytes.into(),
        })
    }

    /// Brings blocks in with as few requests as possible, unverified until they are read.
    ///
    /// A hint: what cannot be read ahead is read, and fails, when it is asked for.
    pub fn read_ahead(&self, blocks: Range<u64>) {
        let scale = u64::from(self.block_bytes);
        self.device
            .will_need(blocks.start.saturating_mul(scale)..blocks.end.saturating_mul(scale));
    }
}
