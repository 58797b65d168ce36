//! Reading of data: each sector from the first copy that matches its checksum.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::Mutex;
use platter_block::{IoError, Operation};
use platter_vfs::{Error, Result};

use super::checksums::Checksums;
use super::helpers::Helpers;
use crate::context::FsContext;
use crate::ondisk::{LogicalAddr, TreeId};

/// Bad sectors whose addresses are kept.
const MISMATCHES_MAX: usize = 1 << 16;
/// How much is verified by one thread at a time: whole sectors of any size.
const PART_BYTES: usize = 128 << 10;

/// The file that data is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// Its subvolume.
    pub tree: TreeId,
    /// Its inode number.
    pub inode: u64,
    /// Whether its data has checksums.
    pub is_summed: bool,
}

/// Reads data and counts what was wrong with it.
#[derive(Debug, Default)]
pub struct DataReader {
    /// Sectors that were read from another copy than the first.
    other_copies: AtomicU64,
    /// Sectors of which no copy matches.
    mismatches: AtomicU64,
    /// Their addresses, as many as are kept: reading ahead, or again, finds each several times.
    mismatching: Mutex<BTreeSet<u64>>,
    helpers: Helpers,
}

impl DataReader {
    /// How many sectors were read from another copy than the first.
    #[must_use]
    pub fn other_copies(&self) -> u64 {
        self.other_copies.load(Ordering::Relaxed)
    }

    /// How many sectors matched in no copy.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.mismatches.load(Ordering::Relaxed)
    }

    /// The threads that help with large reads.
    #[must_use]
    pub fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// Fills `bufs` with what follows `logical`. Both the address and the length of each buffer are
    /// multiples of the sector size.
    pub fn read(
        &self,
        context: &FsContext,
        reader: Reader,
        logical: LogicalAddr,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<()> {
        let store = context.blocks.store();
        let first = store.read(logical, 0, bufs);
        let is_verified = reader.is_summed && !context.leniency.ignores_data_checksums;
        if !is_verified && first.is_ok() {
            return Ok(());
        }
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let checksums = if is_verified {
            Some(Checksums::read(context, logical, len_bytes)?)
        } else {
            None
        };
        let sector_bytes = context.sector_bytes() as usize;
        let bad = match &checksums {
            Some(checksums) if first.is_ok() => self.mismatching(checksums, bufs),
            _ => None,
        };
        if bad.as_ref().is_some_and(BTreeSet::is_empty) {
            return Ok(());
        }
        let mut at = logical;
        let mut index = 0;
        for buf in bufs {
            for sector in buf.chunks_mut(sector_bytes) {
                if bad.as_ref().is_none_or(|bad| bad.contains(&index)) {
                    let is_good = |bytes: &[u8]| {
                        let checksums = checksums.as_ref();
                        checksums.is_none_or(|checksums| checksums.matches(index, bytes))
                    };
                    self.read_other_copy(context, reader, at, sector, &is_good)?;
                }
                at = LogicalAddr(at.0.saturating_add(sector.len() as u64));
                index += 1;
            }
        }
        Ok(())
    }

    /// The numbers of the sectors that do not match their checksum.
    fn mismatching(
        &self,
        checksums: &Checksums,
        bufs: &[IoSliceMut<'_>],
    ) -> Option<BTreeSet<usize>> {
        let sector_bytes = checksums.sector_bytes();
        let mut parts = Vec::new();
        let mut index = 0;
        for part in bufs.iter().flat_map(|buf| buf.chunks(PART_BYTES)) {
            parts.push((index, part));
            index += part.len().div_ceil(sector_bytes);
        }
        let bad: Mutex<_> = Mutex::new(BTreeSet::new());
        let verify = |(first, part): (usize, &[u8])| {
            for (index, sector) in (first..).zip(part.chunks(sector_bytes)) {
                if !checksums.matches(index, sector) {
                    bad.lock().insert(index);
                }
            }
            Ok::<_, Infallible>(())
        };
        let is_worth_it = checksums.is_slow() && parts.len() > 1;
        let done = if is_worth_it {
            self.helpers.each(parts, verify)
        } else {
            parts.into_iter().try_for_each(verify)
        };
        done.ok()?;
        Some(bad.into_inner())
    }

    /// Counts a sector, once as long as it is remembered.
    fn count_mismatch(&self, at: LogicalAddr) {
        let mut known = self.mismatching.lock();
        if known.contains(&at.0) {
            return;
        }
        if known.len() < MISMATCHES_MAX {
            known.insert(at.0);
        }
        self.mismatches.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads a sector from the first copy that is good.
    fn read_other_copy(
        &self,
        context: &FsContext,
        reader: Reader,
        at: LogicalAddr,
        sector: &mut [u8],
        is_good: &dyn Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let store = context.blocks.store();
        let mut failed: Option<Error> = None;
        for copy in 0..store.copies(at, sector.len() as u64) {
            match store.read(at, copy, &mut [IoSliceMut::new(sector)]) {
                Ok(()) if is_good(sector) => {
                    if copy > 0 {
                        self.other_copies.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(());
                }
                Ok(()) => {}
                Err(error) => failed = Some(error.into()),
            }
        }
        self.count_mismatch(at);
        // Bytes that match no checksum are not left in the buffer.
        sector.fill(0);
        Err(failed.unwrap_or_else(|| {
            let text = format!("csum failed root {} ino {}", reader.tree, reader.inode);
            let source = io::Error::new(io::ErrorKind::InvalidData, text);
            let length = sector.len() as u64;
            IoError::new(store.name(), Operation::Read, at.0, length, source).into()
        }))
    }
}
