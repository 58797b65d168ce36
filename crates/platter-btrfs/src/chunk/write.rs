//! Writing of logical addresses: to all copies, on all devices that hold one.

use std::io::IoSlice;

use platter_block::{IoError, Operation};
use platter_cache::BufferError;
use platter_ondisk::Corruption;

use super::layout::Placement;
use super::store::ChunkStore;
use crate::ondisk::LogicalAddr;
use crate::ondisk::chunk_item::ChunkItem;

impl ChunkStore {
    /// Writes `bufs` to all copies of what follows `logical`.
    ///
    /// # Errors
    /// Those of the devices. Fails for chunks with parity, and where a device is missing.
    pub fn write(&self, logical: LogicalAddr, bufs: &[IoSlice<'_>]) -> Result<(), BufferError> {
        let mut left: Vec<&[u8]> = bufs.iter().map(|buf| &**buf).collect();
        let mut at = logical;
        let map = self.map();
        while !left.is_empty() {
            let chunk = map.find(at).map_err(Corruption::from)?;
            let wanted: u64 = left.iter().map(|buf| buf.len() as u64).sum();
            let segment = chunk.segment(at, wanted);
            let (now, later) = split(left, segment.len_bytes);
            let Placement::Copies { first, count } = segment.placement else {
                let len_bytes = segment.len_bytes;
                let error = IoError::read_only(self.name(), Operation::Write, at.0, len_bytes);
                return Err(error.into());
            };
            for stripe in first..first + count {
                self.write_stripe(chunk, stripe, segment.offset, &now)?;
            }
            left = later;
            at = LogicalAddr(at.0.saturating_add(segment.len_bytes));
        }
        Ok(())
    }

    fn write_stripe(
        &self,
        chunk: &ChunkItem,
        stripe: usize,
        offset: u64,
        bufs: &[IoSlice<'_>],
    ) -> Result<(), BufferError> {
        let at = chunk.device_addr(stripe, offset).0;
        match (self.device(chunk, stripe), bufs) {
            (Some(device), [buf]) => Ok(device.write_at(at, buf)?),
            (Some(device), bufs) => Ok(device.write_vectored_at(at, bufs)?),
            (None, bufs) => {
                let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
                Err(self
                    .missing(chunk, stripe, Operation::Write, at, len_bytes)
                    .into())
            }
        }
    }

    /// Makes durable what was written to all devices.
    pub fn flush(&self) -> Result<(), IoError> {
        self.members()
            .iter()
            .filter_map(|member| member.device.as_ref())
            .try_for_each(|device| device.flush())
    }
}

/// Splits a list of buffers after its first `count` bytes.
fn split(bufs: Vec<&[u8]>, count: u64) -> (Vec<IoSlice<'_>>, Vec<&[u8]>) {
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for buf in bufs {
        let (head, tail) = buf.split_at(left.min(buf.len()));
        left -= head.len();
        if !head.is_empty() {
            before.push(IoSlice::new(head));
        }
        if !tail.is_empty() {
            after.push(tail);
        }
    }
    (before, after)
}
