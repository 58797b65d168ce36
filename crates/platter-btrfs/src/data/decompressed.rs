//! Compressed extents: decompressed once for all callers that read them at about the same time.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::read::{DataReader, Reader};
use crate::compress::Decompressor;
use crate::context::FsContext;
use crate::ondisk::LogicalAddr;
use crate::ondisk::file_extent::Compression;

/// Extents kept: 128 KiB each.
const EXTENTS_MAX: usize = 8;

/// A compressed extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedExtent {
    /// Where it lies.
    pub logical: LogicalAddr,
    /// Its length there.
    pub disk_bytes: u64,
    /// Its length when decompressed.
    pub ram_bytes: u64,
    /// The compression.
    pub compression: Compression,
}

/// An extent's data, once it was decompressed. Locked meanwhile, so that others wait for it.
type Slot = Arc<Mutex<Option<Arc<[u8]>>>>;

/// The extents that were decompressed last: neighbouring reads of a file share one.
#[derive(Debug, Default)]
pub struct DecompressedCache {
    decompressor: Decompressor,
    /// The one used last is the last.
    slots: Mutex<VecDeque<(CompressedExtent, Slot)>>,
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
        let slot = self.slot(extent);
        let mut slot = slot.lock();
        if let Some(bytes) = &*slot {
            return Ok(Arc::clone(bytes));
        }
        let mut input = vec![0; usize::try_from(extent.disk_bytes).unwrap_or(usize::MAX)];
        let bufs = &mut [IoSliceMut::new(&mut input)];
        data.read(context, reader, extent.logical, bufs)?;
        let bytes = self.decompress(context, reader, extent, &input)?;
        *slot = Some(Arc::clone(&bytes));
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

    fn slot(&self, extent: &CompressedExtent) -> Slot {
        let mut slots = self.slots.lock();
        let known = slots.iter().position(|(known, _)| known == extent);
        let entry = known.and_then(|index| slots.remove(index));
        let (_, slot) = entry.unwrap_or_else(|| (*extent, Slot::default()));
        if slots.len() >= EXTENTS_MAX {
            slots.pop_front();
        }
        slots.push_back((*extent, Arc::clone(&slot)));
        slot
    }
}
