//! Discarding of logical addresses: of all copies, on all devices that have one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use platter_block::{BlockDevice, IoError};
use platter_cache::BufferError;
use platter_ondisk::Corruption;

use super::layout::Placement;
use super::store::ChunkStore;
use crate::ondisk::LogicalAddr;

/// Discards logical addresses on the devices that are present. Rows with parity stay as they are: the parity is that
/// of all data in them. Returns how many bytes were discarded.
///
/// # Errors
/// Those of the devices, and that there is no chunk.
pub fn discard(store: &ChunkStore, range: &Range<u64>) -> Result<u64, BufferError> {
    let map = store.map();
    let mut discarded = 0;
    let mut at = range.start;
    while at < range.end {
        let chunk = map.find(LogicalAddr(at)).map_err(Corruption::from)?;
        let end = range.end.min(chunk.start.0.saturating_add(chunk.len_bytes));
        let mut pieces = Pieces::default();
        while at < end {
            let segment = chunk.segment(LogicalAddr(at), end - at);
            if let Placement::Copies { first, count } = segment.placement {
                for stripe in first..first + count {
                    let start = chunk.device_addr(stripe, segment.offset).0;
                    let piece = start..start.saturating_add(segment.len_bytes);
                    if let Some(device) = store.device(chunk, stripe) {
                        pieces.add(stripe, device, piece)?;
                    }
                }
                discarded += segment.len_bytes;
            }
            at = at.saturating_add(segment.len_bytes.max(1));
        }
        pieces.end()?;
    }
    Ok(discarded)
}

/// What is to be discarded of each stripe: those of neighbouring rows are one piece.
#[derive(Default)]
struct Pieces(BTreeMap<usize, (Arc<dyn BlockDevice>, Range<u64>)>);

impl Pieces {
    fn add(
        &mut self,
        stripe: usize,
        device: Arc<dyn BlockDevice>,
        piece: Range<u64>,
    ) -> Result<(), IoError> {
        if let Some((_, before)) = self.0.get_mut(&stripe)
            && before.end == piece.start
        {
            before.end = piece.end;
            return Ok(());
        }
        match self.0.insert(stripe, (device, piece)) {
            Some((device, before)) => device.discard(before),
            None => Ok(()),
        }
    }

    fn end(self) -> Result<(), IoError> {
        let mut pieces = self.0.into_values();
        pieces.try_for_each(|(device, piece)| device.discard(piece))
    }
}
