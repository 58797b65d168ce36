//! The metadata buffer cache: device block to verified bytes.
//!
//! Metadata enters memory only here, and only through a verifier. A [`Buffer`] is one version of a
//! block. A writer changes it where it is while nobody else has it, and makes a new version else: so
//! whoever holds one (a reader, a commit in flight) keeps reading what it was proven to be.

mod edit;
mod flight;
mod read_ahead;
mod table;
#[cfg(test)]
mod tests;
mod turns;
mod version;
mod write;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use platter_block::{BlockDevice, IoError};
use platter_ondisk::{Corruption, Verify};

use crate::MemoryBudget;
use crate::budget::{LruId, Owner, OwnerId, Registration, Verdict};
use crate::sync::Mutex;
use flight::{Flight, Landing};
use table::{Claim, Table, cost_bytes};
use turns::Turns;
use version::Version;

pub use edit::{Edit, Edited};
pub(crate) use table::LAYOUT as TABLE_LAYOUT;
pub use version::Buffer;

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

/// Verified metadata blocks of one device, in units of the filesystem's block size.
///
/// # Invariants
/// - A block is read from the device by one thread at a time; others that want it wait for that
///   read. No lock is held meanwhile.
/// - What [`read`](Self::read) returns was proven under the key of the verifier it was given. Bytes
///   proven as one structure are verified again before they pass as another.
/// - A dirty version stays until it is written or invalidated: it is in no eviction order.
/// - A version that is not sealed passes only as what it was changed as; it is sealed before it is
///   read as anything else, and before it is written.
pub struct BufferCache {
    core: Arc<Core>,
}

/// What the eviction order reaches the cache by.
struct Core {
    device: Arc<dyn BlockDevice>,
    block_bytes: u32,
    table: Table,
    budget: Arc<MemoryBudget>,
    registration: Registration,
    turns: CachePadded<Turns>,
    /// Held while dirty blocks are written.
    write_turn: CachePadded<Mutex<()>>,
}

crate::layout!(pub(crate) LAYOUT: Core {
    ReadOnly: device, block_bytes, budget, registration;
    Hot: turns, write_turn;
    Apart: table;
});

impl BufferCache {
    /// A cache of `block_bytes`-sized blocks of `device`, within `budget`.
    ///
    /// # Panics
    /// If `block_bytes` is zero.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, block_bytes: u32, budget: Arc<MemoryBudget>) -> Self {
        assert_ne!(block_bytes, 0, "a block has bytes");
        let core = Arc::new_cyclic(|core| {
            let owner: std::sync::Weak<Core> = core.clone();
            Core {
                device,
                block_bytes,
                table: Table::new(Arc::clone(&budget)),
                registration: budget.register(owner),
                budget,
                turns: CachePadded::default(),
                write_turn: CachePadded::default(),
            }
        });
        Self { core }
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.core.device
    }

    /// What it shares with the other caches.
    #[must_use]
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.core.budget
    }

    /// The size of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.core.block_bytes
    }

    /// The block, proven by `verifier` now or earlier.
    ///
    /// A block that breaks a rule is an error each time it is read, and unless it was proven as
    /// something else it is read from the device again each time.
    pub fn read(&self, block: u64, verifier: &dyn Verify) -> Result<Buffer, BufferError> {
        let mut version = self.core.version(block)?;
        let key = verifier.key();
        if !version.is_proven_by(key) {
            while !version.is_sealed() {
                drop(version);
                self.settle(block)?;
                version = self.core.version(block)?;
            }
            if let Err(corruption) = verifier.verify(block, version.bytes()) {
                self.core.table.distrust(block, &version);
                return Err(corruption.into());
            }
            version.add_proof(key);
        }
        Ok(Buffer { version })
    }

    /// Brings blocks in with as few requests as possible, unverified until they are read.
    ///
    /// A hint: what cannot be read ahead is read, and fails, when it is asked for. At most
    /// [`READ_AHEAD_BYTES_MAX`](Self::READ_AHEAD_BYTES_MAX) of the range are read.
    pub fn read_ahead(&self, blocks: Range<u64>) {
        self.core.read_ahead(blocks);
    }

    /// Whether the block is cached, so that reading it asks nothing of the device.
    #[must_use]
    pub fn contains(&self, block: u64) -> bool {
        self.core.table.contains(block)
    }

    /// How many blocks are cached or being read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.core.table.len()
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for BufferCache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BufferCache")
            .field("device", &self.core.device.name())
            .field("block_bytes", &self.core.block_bytes)
            .field("blocks", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for BufferCache {
    fn drop(&mut self) {
        // An evictor may hold the core a moment longer; the memory goes back now.
        self.core.table.invalidate(0..u64::MAX);
    }
}

impl Core {
    /// The block's current version, verified or not.
    fn version(&self, block: u64) -> Result<Arc<Version>, IoError> {
        loop {
            match self.table.find_or_claim(block) {
                Claim::Cached(version) => return Ok(version),
                Claim::Wait(flight) => match flight.wait() {
                    Landing::Read(version) => return Ok(version),
                    Landing::Failed(error) => return Err(error),
                    Landing::Abandoned => {}
                },
                Claim::Edited => self.turns.wait(block),
                Claim::Claimed(flight) => {
                    if let Some(version) = Reading::new(self, block, flight).read()? {
                        return Ok(version);
                    }
                }
            }
        }
    }

    fn owner(&self) -> OwnerId {
        self.registration.id()
    }

    fn offset(&self, block: u64) -> u64 {
        // A block beyond 2^64 bytes is beyond the device as well, which says so.
        block.saturating_mul(u64::from(self.block_bytes))
    }

    /// Memory for a block, to be read into.
    fn memory(&self) -> Box<[u8]> {
        self.budget.take_block(self.block_bytes as usize)
    }

    /// A version of `bytes`, charged if the budget has room.
    fn charged(&self, bytes: Box<[u8]>) -> Arc<Version> {
        let charge = self.budget.charge(cost_bytes(&bytes));
        Arc::new(Version::new(bytes, charge))
    }
}

impl Owner for Core {
    fn take_heat(&self, block: u64, id: LruId) -> bool {
        self.table.take_heat(block, id)
    }

    fn evict(&self, block: u64, id: LruId) -> Verdict {
        self.table.evict(block, id)
    }
}

/// The duty to read one block. Dropped without an end, as by a panic of the device, it wakes
/// those who wait and they read themselves.
struct Reading<'a> {
    core: &'a Core,
    block: u64,
    flight: Arc<Flight>,
    landed: bool,
}

impl<'a> Reading<'a> {
    fn new(core: &'a Core, block: u64, flight: Arc<Flight>) -> Self {
        Self {
            core,
            block,
            flight,
            landed: false,
        }
    }

    /// The block's version; `None` if it is being changed.
    fn read(self) -> Result<Option<Arc<Version>>, IoError> {
        let mut bytes = self.core.memory();
        let offset = self.core.offset(self.block);
        match self.core.device.read_at(offset, &mut bytes) {
            Ok(()) => Ok(self.complete(bytes)),
            Err(error) => {
                self.end(Landing::Failed(error.clone()));
                Err(error)
            }
        }
    }

    fn complete(mut self, bytes: Box<[u8]>) -> Option<Arc<Version>> {
        let read = self.core.charged(bytes);
        let core = self.core;
        let table = &core.table;
        let version = table.complete(core.owner(), self.block, &self.flight, read);
        self.landed = true;
        let landing = version.as_ref().map(Arc::clone);
        self.flight
            .land(landing.map_or(Landing::Abandoned, Landing::Read));
        version
    }

    fn end(mut self, landing: Landing) {
        self.give_up(landing);
    }

    fn give_up(&mut self, landing: Landing) {
        self.core.table.give_up(self.block, &self.flight);
        self.landed = true;
        self.flight.land(landing);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.give_up(Landing::Abandoned);
        }
    }
}
