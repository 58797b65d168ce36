//! Compressed extents: decompressed once for all callers that read them at about the same time.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::{Condvar, Mutex, rank};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::read::{DataReader, Reader};
use crate::compress::Decompressor;
use crate::context::FsContext;
use crate::ondisk::file_extent::Compression;
use crate::ondisk::{Generation, LogicalAddr};

/// Extents kept: 128 KiB each.
const EXTENTS_MAX: usize = 8;

/// A compressed extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedExtent {
    /// Where it lies.
    pub logical: LogicalAddr,
    /// The transaction that mapped it: another extent in its place is of a later one.
    pub generation: Generation,
    /// Its length there.
    pub disk_bytes: u64,
    /// Its length when decompressed.
    pub ram_bytes: u64,
    /// The compression.
    pub compression: Compression,
}

/// An extent, and how often data had moved: one that moved may be where an extent of its generation was.
type SlotKey = (CompressedExtent, u64);

/// How far an extent is.
#[derive(Debug, Default)]
enum SlotState {
    /// A caller has to read it.
    #[default]
    Empty,
    /// A caller reads and decompresses it; others wait.
    Filling,
    /// Its data.
    Filled(Arc<[u8]>),
}

/// An extent. No lock is held while it is read.
#[derive(Debug, Default)]
struct Slot {
    /// The decompressed extent.
    state: Mutex<SlotState, { rank(5, 8) }>,
    /// Signalled when it is no longer being filled.
    is_ready: Condvar,
}

/// The caller that fills a slot; one that fails leaves it to the next.
struct Filling<'s>(&'s Slot);

impl Slot {
    /// The data, or the task of reading it.
    fn data_or_task(&self) -> std::result::Result<Arc<[u8]>, Filling<'_>> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                SlotState::Filled(bytes) => return Ok(Arc::clone(bytes)),
                SlotState::Filling => self.is_ready.wait(&mut state),
                SlotState::Empty => {
                    *state = SlotState::Filling;
                    return Err(Filling(self));
                }
            }
        }
    }
}

impl Filling<'_> {
    fn finish(self, bytes: &Arc<[u8]>) {
        *self.0.state.lock() = SlotState::Filled(Arc::clone(bytes));
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if matches!(*state, SlotState::Filling) {
            *state = SlotState::Empty;
        }
        drop(state);
        self.0.is_ready.notify_all();
    }
}

/// The extents that were decompressed last: neighbouring reads of a file share one.
#[derive(Debug, Default)]
pub struct DecompressedCache {
    decompressor: Decompressor,
    /// The one used last is the last.
    slots: Mutex<VecDeque<(SlotKey, Arc<Slot>)>>,
    decompressions: AtomicU64,
}

impl DecompressedCache {
    /// How many extents were decompressed.
    #[must_use]
    pub fn decompressions(&self) -> u64 {
        self.decompressions.load(Ordering::Relaxed)
    }

    /// The data of an extent.
    pub fn read(
        &self,
        context: &FsContext,
        data: &DataReader,
        reader: Reader,
        extent: &CompressedExtent,
    ) -> Result<Arc<[u8]>> {
        let slot = self.slot((*extent, context.reads.moves()));
        let filling = match slot.data_or_task() {
            Ok(bytes) => return Ok(bytes),
            Err(filling) => filling,
        };
        let mut input = vec![0; usize::try_from(extent.disk_bytes).unwrap_or(usize::MAX)];
        let bufs = &mut [IoSliceMut::new(&mut input)];
        data.read(context, reader, extent.logical, bufs)?;
        let bytes = self.decompress(context, reader, extent, &input)?;
        filling.finish(&bytes);
        Ok(bytes)
    }

    /// Decompresses `input`, of which all was verified.
    pub fn decompress(
        &self,
        context: &FsContext,
        reader: Reader,
        extent: &CompressedExtent,
        input: &[u8],
    ) -> Result<Arc<[u8]>> {
        self.decompressions.fetch_add(1, Ordering::Relaxed);
        let mut output = vec![0; usize::try_from(extent.ram_bytes).unwrap_or(usize::MAX)];
        let sector_bytes = context.sector_bytes() as usize;
        let result =
            self.decompressor
                .decompress(extent.compression, input, &mut output, sector_bytes);
        result.map_err(|rule| {
            let locus = Locus::tree(reader.tree.0).of_inode(reader.inode);
            Corrupt::new(locus.at_block(extent.logical.0), rule)
        })?;
        Ok(output.into())
    }

    fn slot(&self, extent: SlotKey) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let known = slots.iter().position(|(known, _)| *known == extent);
        let entry = known.and_then(|index| slots.remove(index));
        let (_, slot) = entry.unwrap_or_else(|| (extent, Arc::default()));
        if slots.len() >= EXTENTS_MAX {
            slots.pop_front();
        }
        slots.push_back((extent, Arc::clone(&slot)));
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn extent_in_place_of_a_freed_one_is_read_anew() {
        let cache = DecompressedCache::default();
        let extent = CompressedExtent {
            logical: LogicalAddr(1 << 20),
            generation: Generation(7),
            disk_bytes: 4096,
            ram_bytes: 131_072,
            compression: Compression::Zstd,
        };
        let freed = cache.slot((extent, 0));
        assert!(Arc::ptr_eq(&freed, &cache.slot((extent, 0))));
        let new = CompressedExtent {
            generation: Generation(9),
            ..extent
        };
        assert!(!Arc::ptr_eq(&freed, &cache.slot((new, 0))));
        // An extent of that generation moved there.
        assert!(!Arc::ptr_eq(&freed, &cache.slot((extent, 1))));
    }

    #[test]
    fn waiting_readers_get_what_one_of_them_read() {
        let slot = Slot::default();
        let bytes: Arc<[u8]> = Arc::from(&b"data"[..]);
        let reads = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| match slot.data_or_task() {
                    Ok(found) => assert_eq!(found, bytes),
                    Err(filling) => {
                        // The first fails, so that another one reads.
                        if reads.fetch_add(1, Ordering::Relaxed) > 0 {
                            filling.finish(&bytes);
                        }
                    }
                });
            }
        });
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }
}
