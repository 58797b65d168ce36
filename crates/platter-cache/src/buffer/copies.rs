//! Blocks with several copies: another copy is read where one is bad, and the bad one is rewritten.

use std::io::IoSliceMut;
use std::sync::Arc;

use platter_ondisk::{Corruption, Verify};

use super::key::Key;
use super::reading::Reading;
use super::table::Reclaim;
use super::version::Version;
use super::{BufferError, Core};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Bad copies that are listed; all are counted.
const LISTED_MAX: usize = 256;

/// What a block must satisfy beyond its verifier, decided by the caller that follows the pointer to it.
pub type Expect<'a> = &'a dyn Fn(&[u8]) -> Result<(), Corruption>;

/// What one read made of bad copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Healed {
    /// Copies that this read found bad before it found a good one.
    pub bad: u16,
    /// Of these, copies that were rewritten.
    pub repaired: u16,
}

/// A copy of a block that could not be used while another could.
#[derive(Debug, Clone)]
pub struct BadCopy {
    /// The block's address, in the unit of the cache.
    pub block: u64,
    /// Its length.
    pub len_bytes: u32,
    /// Which copy, counted from zero.
    pub copy: u16,
    /// What was wrong with it last.
    pub error: BufferError,
    /// Whether it was rewritten.
    pub is_repaired: bool,
}

/// The bad copies that were found since the cache was made.
#[derive(Debug, Clone, Default)]
pub struct BadCopies {
    /// How often a copy was found bad while another was good.
    pub found: u64,
    /// How often one was rewritten.
    pub repaired: u64,
    /// Each of them, once, in order of discovery: the first 256.
    pub listed: Vec<BadCopy>,
}

/// The record of a cache.
#[derive(Debug, Default)]
pub(super) struct CopyRecord {
    found: AtomicU64,
    repaired: AtomicU64,
    /// The bad copies that were found.
    listed: Mutex<Vec<BadCopy>>,
}

impl CopyRecord {
    fn add(&self, copy: BadCopy) {
        self.found.fetch_add(1, Ordering::Relaxed);
        if copy.is_repaired {
            self.repaired.fetch_add(1, Ordering::Relaxed);
        }
        let mut listed = self.listed.lock();
        let is_same = |it: &BadCopy| it.block == copy.block && it.copy == copy.copy;
        match listed.iter().position(is_same) {
            Some(known) => listed[known] = copy,
            None if listed.len() < LISTED_MAX => listed.push(copy),
            None => {}
        }
    }

    pub(super) fn snapshot(&self) -> BadCopies {
        BadCopies {
            found: self.found.load(Ordering::Relaxed),
            repaired: self.repaired.load(Ordering::Relaxed),
            listed: self.listed.lock().clone(),
        }
    }
}

/// A read under way: what its block has to be, and what was found so far.
pub(super) struct Search<'a> {
    pub(super) key: Key,
    pub(super) verifier: &'a dyn Verify,
    pub(super) expect: Option<Expect<'a>>,
    pub(super) healed: Healed,
}

impl<'a> Search<'a> {
    pub(super) fn new(key: Key, verifier: &'a dyn Verify, expect: Option<Expect<'a>>) -> Self {
        Self {
            key,
            verifier,
            expect,
            healed: Healed::default(),
        }
    }
}

/// Looks for a good copy of a block, of which one turned out bad with `error`: the version `bad`, or
/// one that could not be read. `None` if the block has another version meanwhile.
///
/// The only place that reads a copy other than the first, and that rewrites one.
pub(super) fn heal(
    core: &Core,
    search: &mut Search<'_>,
    bad: Option<&Arc<Version>>,
    error: BufferError,
) -> Result<Option<Arc<Version>>, BufferError> {
    let key = search.key;
    let copies = core.store.copies(key.at(), key.len_bytes());
    if copies <= 1 {
        if let Some(bad) = bad {
            core.table.distrust(key, bad);
        }
        return Err(error);
    }
    let (flight, is_in_place) = match core.table.reclaim(key, bad) {
        Reclaim::Claimed {
            flight,
            is_in_place,
        } => (flight, is_in_place),
        Reclaim::Changed => return Ok(None),
        Reclaim::Unwritten => return Err(error),
    };
    let reading = Reading::new(core, key, flight);
    let bad_copy = bad.map_or(0, |bad| bad.copy());
    let mut failed = vec![(bad_copy, of_copy(error, bad_copy))];
    // A block that was not cached may have been written since: then the bad copy is good.
    let again = (!is_in_place).then_some(bad_copy);
    let others = (0..copies).filter(|&copy| copy != bad_copy);
    for copy in others.chain(again) {
        match read_copy(core, search, copy) {
            Ok(bytes) => {
                failed.retain(|&(other, _)| other != copy);
                repair(core, search, &reading, &failed, &bytes);
                return Ok(reading.complete_as(bytes, copy, search.verifier.key()));
            }
            Err(error) => failed.push((copy, of_copy(error, copy))),
        }
    }
    match bad {
        // What was validated as something else remains that.
        Some(bad) if is_in_place && bad.is_validated() => reading.put_back(Arc::clone(bad)),
        Some(_) | None => drop(reading),
    }
    Err(worst(failed))
}

/// One copy of the block, validated.
fn read_copy(core: &Core, search: &Search<'_>, copy: u16) -> Result<Box<[u8]>, BufferError> {
    let mut bytes = core.memory(search.key);
    let at = search.key.at();
    core.store
        .read(at, copy, &mut [IoSliceMut::new(&mut bytes)])?;
    let address = core.addressing.address(search.key);
    search.verifier.verify(address, &bytes)?;
    if let Some(expect) = search.expect {
        expect(&bytes)?;
    }
    Ok(bytes)
}

/// Records the bad copies of a block, and rewrites them if that is wanted and the block did not get
/// another version meanwhile: until `reading` ends, it gets none.
fn repair(
    core: &Core,
    search: &mut Search<'_>,
    reading: &Reading<'_>,
    failed: &[(u16, BufferError)],
    good: &[u8],
) {
    let key = search.key;
    let is_wanted = core.repairs.load(Ordering::Relaxed) != 0;
    let may = is_wanted && core.table.begin_repair(key, &reading.flight);
    for (copy, error) in failed {
        let is_repaired = may && core.store.repair(key.at(), *copy, good).is_ok();
        search.healed.bad += 1;
        search.healed.repaired += u16::from(is_repaired);
        core.copies.add(BadCopy {
            block: core.addressing.address(key),
            len_bytes: key.len_bytes(),
            copy: *copy,
            error: error.clone(),
            is_repaired,
        });
    }
}

fn of_copy(error: BufferError, copy: u16) -> BufferError {
    match error {
        BufferError::Corrupt(mut corruption) => {
            corruption.locus = corruption.locus.of_copy(copy);
            corruption.into()
        }
        BufferError::Io(error) => error.into(),
    }
}

/// The error of a block whose copies are all bad: corruption says more than a failed device.
fn worst(mut failed: Vec<(u16, BufferError)>) -> BufferError {
    let corrupt = failed
        .iter()
        .position(|(_, error)| matches!(error, BufferError::Corrupt(_)));
    failed.swap_remove(corrupt.unwrap_or_default()).1
}
