//! The metadata buffer cache: address and length of a block to verified bytes.
//!
//! Metadata enters memory only here, and only through a verifier. A [`Buffer`] is one version of a
//! block. A writer changes a version in place while it is not shared, and makes a new one otherwise:
//! a thread that holds one (a reader, a commit in flight) keeps reading the bytes that were validated.
//!
//! Blocks of several lengths share a cache. Where the store below has several copies of a block, the
//! cache reads another one if a copy breaks a rule, and may rewrite the bad one.

mod edited;
mod key;
mod store;
mod turns;
mod version;
mod flight;
mod table;
mod reading;
mod copies;
mod edit;
mod read_ahead;
mod write;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use platter_block::{BlockDevice, IoError};
use platter_ondisk::{Corruption, Locus, Verify};

use crate::MemoryBudget;
use crate::budget::{LruId, Owner, OwnerId, Registration, Verdict};
use crate::sync::{AtomicU8, Mutex, Ordering, rank};
use copies::{CopyRecord, Search};
use flight::Landing;
use key::Key;
use reading::Reading;
use table::{Claim, Refusal, Table, cost_bytes};
use turns::Turns;
use version::Version;

pub use crate::block_size::BlockSize;
pub use copies::{BadCopies, BadCopy, Expect, Healed};
pub use edited::{Edit, Edited};
pub use key::{Addressing, BlockAt};
pub use store::{DeviceStore, MetadataStore};
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

/// Verified metadata blocks of one store, in one cache whatever their length.
///
/// # Invariants
/// - A block is read from the store by one thread at a time; others that want it wait for that
///   read. No lock is held meanwhile.
/// - What [`read`](Self::read) returns was validated under the key of the verifier it was passed, here or by the
///   caller that [published](Self::publish_unsealed) it. Bytes validated as one structure are verified again before
///   they pass as another.
/// - A dirty version stays until it is written or invalidated: it is in no eviction order.
/// - A version that is not sealed passes only as what it was changed as; it is sealed before it is
///   read as anything else, and before it is written.
/// - Dirty blocks have no bytes in common. A driver that uses the bytes of a block for one of another
///   length [forgets](Self::forget) the block first.
pub struct BufferCache<S = DeviceStore> {
    core: Arc<Core>,
    store: Arc<S>,
}

/// What the eviction order reaches the cache by.
struct Core {
    store: Arc<dyn MetadataStore>,
    addressing: Addressing,
    /// Whether bad copies are rewritten: not zero if so.
    repairs: AtomicU8,
    table: Table,
    budget: Arc<MemoryBudget>,
    registration: Registration,
    turns: CachePadded<Turns>,
    /// Held while dirty blocks are written.
    write_turn: CachePadded<Mutex<(), { rank(10, 3) }>>,
    copies: CachePadded<CopyRecord>,
}

crate::layout!(pub(crate) LAYOUT: Core {
    ReadOnly: store, addressing, budget, registration;
    Rare: repairs;
    Hot: turns, write_turn, copies;
    Apart: table;
});

impl BufferCache {
    /// A cache of the blocks of `device`, which are `block_bytes` long and have numbers.
    ///
    /// # Panics
    /// If no block is [so long](BlockSize::new).
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, block_bytes: u32, budget: Arc<MemoryBudget>) -> Self {
        let size = BlockSize::new(block_bytes).expect("the size of a block");
        let store = Arc::new(DeviceStore::new(device));
        Self::over(store, Addressing::by_number(size), budget)
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        self.store.device()
    }
}

impl<S: MetadataStore> BufferCache<S> {
    /// A cache of the blocks of `store`, within `budget`.
    ///
    /// # Panics
    /// If the unit of addresses is no power of two.
    #[must_use]
    pub fn over(store: Arc<S>, addressing: Addressing, budget: Arc<MemoryBudget>) -> Self {
        assert!(
            addressing.unit_bytes.is_power_of_two(),
            "addresses count in powers of two"
        );
        let below: Arc<dyn MetadataStore> = Arc::<S>::clone(&store);
        let core = Arc::new_cyclic(|core| {
            let owner: std::sync::Weak<Core> = core.clone();
            Core {
                store: below,
                addressing,
                repairs: AtomicU8::new(0),
                table: Table::new(Arc::clone(&budget)),
                registration: budget.register(owner),
                budget,
                turns: CachePadded::default(),
                write_turn: CachePadded::default(),
                copies: CachePadded::default(),
            }
        });
        Self { core, store }
    }

    /// The store below.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// The bad copies that were found so far, while another copy of the block was good.
    #[must_use]
    pub fn bad_copies(&self) -> BadCopies {
        self.core.copies.snapshot()
    }

    /// Has bad copies rewritten from now on, or not. They are not to begin with.
    pub fn set_repair(&self, is_wanted: bool) {
        self.core
            .repairs
            .store(u8::from(is_wanted), Ordering::Relaxed);
    }
}

impl<S> BufferCache<S> {
    /// What it shares with the other caches.
    #[must_use]
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.core.budget
    }

    /// The usual size of a block in bytes: that of blocks named by their address alone.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.core.addressing.usual.bytes()
    }

    /// Returns the block, validated by `verifier` now or earlier.
    ///
    /// A block that breaks a rule is an error each time it is read, and unless it was validated as
    /// something else it is read from the store again each time. Where it has several copies, it breaks
    /// a rule only if all of them do.
    pub fn read(
        &self,
        block: impl Into<BlockAt>,
        verifier: &dyn Verify,
    ) -> Result<Buffer, BufferError> {
        let key = self.core.key(block.into())?;
        let version = match self.core.table.find_validated(key, verifier.key()) {
            Some(version) => version,
            None => self.core.read(&mut Search::new(key, verifier, None))?,
        };
        Ok(Buffer { version })
    }

    /// As [`read`](Self::read), where the block has to satisfy `expect` as well, which is asked at each
    /// read: what the pointer to a block says of it, such as its generation. A copy that does not is
    /// bad, and another one is tried. Also returns what became of bad copies.
    pub fn read_expecting(
        &self,
        block: impl Into<BlockAt>,
        verifier: &dyn Verify,
        expect: Expect<'_>,
    ) -> Result<(Buffer, Healed), BufferError> {
        let key = self.core.key(block.into())?;
        if let Some(version) = self.core.table.find_validated(key, verifier.key())
            && expect(version.bytes()).is_ok()
        {
            return Ok((Buffer { version }, Healed::default()));
        }
        let mut search = Search::new(key, verifier, Some(expect));
        let version = self.core.read(&mut search)?;
        Ok((Buffer { version }, search.healed))
    }

    /// The most that one call of [`read_ahead`](Self::read_ahead) reads, in bytes.
    pub const READ_AHEAD_BYTES_MAX: u64 = 2 << 20;

    /// Brings blocks of the usual length in with as few requests as possible, unverified until they are
    /// read.
    ///
    /// A hint: what cannot be read ahead is read, and fails, when it is asked for. At most
    /// [`READ_AHEAD_BYTES_MAX`](Self::READ_AHEAD_BYTES_MAX) of the range are read.
    pub fn read_ahead(&self, blocks: Range<u64>) {
        let step = self.core.addressing.step();
        let addresses = std::iter::successors(Some(blocks.start), |at| at.checked_add(step));
        self.read_ahead_each(addresses.take_while(|&at| at < blocks.end));
    }

    /// As [`read_ahead`](Self::read_ahead), of the blocks listed: those that follow one another in the list
    /// and in the store are read by one request.
    pub fn read_ahead_each<B: Into<BlockAt>>(&self, blocks: impl IntoIterator<Item = B>) {
        let bytes_max = Self::READ_AHEAD_BYTES_MAX.min(self.core.budget.limit_bytes() / 8);
        let blocks = blocks.into_iter();
        let keys = blocks.map_while(|block| self.core.addressing.locate(block.into()));
        read_ahead::read_ahead(&self.core, keys, bytes_max);
    }

    /// Whether the block is cached, so that reading it asks nothing of the store.
    #[must_use]
    pub fn contains(&self, block: impl Into<BlockAt>) -> bool {
        let key = self.core.addressing.locate(block.into());
        key.is_some_and(|key| self.core.table.contains(key))
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

impl<S> fmt::Debug for BufferCache<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BufferCache")
            .field("store", &self.core.store.name())
            .field("addressing", &self.core.addressing)
            .field("blocks", &self.len())
            .finish_non_exhaustive()
    }
}

impl<S> Drop for BufferCache<S> {
    fn drop(&mut self) {
        // An evictor may hold the core a moment longer; the memory goes back now.
        let all = self.core.addressing.keys(&(0..u64::MAX));
        self.core.table.forget_all(&all);
    }
}

impl Core {
    /// The key of a block.
    fn key(&self, block: BlockAt) -> Result<Key, BufferError> {
        self.addressing.locate(block).ok_or_else(|| {
            let locus = Locus::block(block.address());
            Corruption::new("metadata block", locus, "address is not aligned").into()
        })
    }

    /// The block's version, validated.
    fn read(&self, search: &mut Search<'_>) -> Result<Arc<Version>, BufferError> {
        let key = search.key;
        loop {
            let (bad, error) = match self.version(key) {
                Ok(version) => match self.validate(search, &version) {
                    Ok(true) => return Ok(version),
                    Ok(false) => {
                        drop(version);
                        edit::seal(self, key)?;
                        continue;
                    }
                    Err(corruption) => (Some(version), corruption.into()),
                },
                Err(error) => (None, error),
            };
            if let Some(version) = copies::heal(self, search, bad.as_ref(), error)? {
                return Ok(version);
            }
        }
    }

    /// Whether the version is what it should be; false if it has to be sealed to be compared.
    fn validate(&self, search: &Search<'_>, version: &Version) -> Result<bool, Corruption> {
        let key = search.verifier.key();
        if !version.is_validated_by(key) {
            if !version.is_sealed() {
                return Ok(false);
            }
            let address = self.addressing.address(search.key);
            search.verifier.verify(address, version.bytes())?;
            version.add_proof(key);
        }
        match search.expect {
            Some(expect) => expect(version.bytes()).map(|()| true),
            None => Ok(true),
        }
    }

    /// The block's current version, verified or not.
    fn version(&self, key: Key) -> Result<Arc<Version>, BufferError> {
        loop {
            match self.table.find_or_claim(key) {
                Claim::Cached(version) => return Ok(version),
                Claim::Wait(flight) => match flight.wait() {
                    Landing::Read(version) => return Ok(version),
                    Landing::Failed(error) => return Err(error),
                    Landing::Abandoned => {}
                },
                Claim::Edited => self.turns.wait(key),
                Claim::Claimed(flight) => {
                    if let Some(version) = Reading::new(self, key, flight).read()? {
                        return Ok(version);
                    }
                }
            }
        }
    }

    /// Makes `version` the block's current one, dirty. Returns whether it is the first of `round`.
    fn publish(
        &self,
        key: Key,
        version: Arc<Version>,
        round: Option<u64>,
    ) -> Result<bool, Corruption> {
        let mut version = version;
        loop {
            let refusal = match self.table.publish(key, version, round) {
                Ok(is_first) => return Ok(is_first),
                Err(refusal) => refusal,
            };
            match refusal {
                Refusal::Repair(refused, flight) => {
                    flight.wait();
                    version = refused;
                }
                Refusal::Overlap(other) => {
                    // A version that was changed in place is dropped, and the block read again.
                    self.table.forget(key);
                    let locus = Locus::block(self.addressing.address(key));
                    let other = self.addressing.address(other);
                    let rule = format!("overlaps dirty block {other}");
                    return Err(Corruption::new("metadata block", locus, rule));
                }
            }
        }
    }

    fn owner(&self) -> OwnerId {
        self.registration.id()
    }

    /// Memory for a block, to be read into.
    fn memory(&self, key: Key) -> Box<[u8]> {
        self.budget.take_block(key.len_bytes() as usize)
    }

    /// A version of `bytes`, charged if the budget has space.
    fn charged(&self, bytes: Box<[u8]>) -> Version {
        let charge = self.budget.charge(cost_bytes(&bytes));
        Version::new(bytes, charge)
    }

    /// A version of `bytes`, charged beyond the budget if need be.
    fn charged_beyond(&self, bytes: Box<[u8]>) -> Version {
        let charge = self.budget.charge_beyond(cost_bytes(&bytes));
        Version::new(bytes, Some(charge))
    }

    /// Returns a version of `bytes`, sealed and validated.
    fn sealed(
        &self,
        key: Key,
        mut bytes: Box<[u8]>,
        verifier: &dyn Verify,
    ) -> Result<Arc<Version>, BufferError> {
        let address = self.addressing.address(key);
        verifier.seal(address, &mut bytes);
        verifier.verify(address, &bytes)?;
        let version = self.charged_beyond(bytes);
        version.add_proof(verifier.key());
        Ok(Arc::new(version))
    }
}

impl Owner for Core {
    fn take_heat(&self, key: u64, id: LruId) -> bool {
        self.table.take_heat(Key::from_bits(key), id)
    }

    fn evict(&self, key: u64, id: LruId) -> Verdict {
        self.table.evict(Key::from_bits(key), id)
    }
}
