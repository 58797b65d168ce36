//! Writing of logical addresses: to all copies, on all devices that hold one, or with parity.

use std::io::IoSlice;
use std::ops::Range;

use platter_block::{IoError, Operation};
use platter_cache::BufferError;
use platter_ondisk::Corruption;

use super::layout::Placement;
use super::rows::{
    FindVerifier, ParityCheck, Restored, RowDoubts, RowVerifier, RowWrite, Unverified,
};
use super::store::{ChunkStore, Way};
use crate::ondisk::LogicalAddr;
use crate::ondisk::chunk_item::{ChunkItem, STRIPE_BYTES};

impl ChunkStore {
    /// Writes tree blocks to all copies on devices that are present of what follows `logical`. Where they fill rows with parity by half, the others
    /// in these are verified as tree blocks.
    ///
    /// # Errors
    /// Those of the devices. Fails where more devices are missing than the profile can do without.
    pub fn write(&self, logical: LogicalAddr, bufs: &[IoSlice<'_>]) -> Result<(), BufferError> {
        self.write_with(logical, bufs, &|_| -> Box<dyn RowVerifier> {
            match self.format() {
                Some(format) => Box::new(*format),
                None => Box::new(Unverified),
            }
        })
    }

    /// Writes `bufs` to all copies on devices that are present of what follows `logical`. `find` finds what verifies the rest of rows with parity
    /// that are written in part.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    pub fn write_with(
        &self,
        logical: LogicalAddr,
        bufs: &[IoSlice<'_>],
        find: FindVerifier<'_>,
    ) -> Result<(), BufferError> {
        let mut left: Vec<&[u8]> = bufs.iter().map(|buf| &**buf).collect();
        let mut at = logical;
        let map = self.map();
        while !left.is_empty() {
            let chunk = map.find(at).map_err(Corruption::from)?;
            let wanted: u64 = left.iter().map(|buf| buf.len() as u64).sum();
            let len_bytes = wanted.min(chunk.len_bytes - (at.0 - chunk.start.0));
            let (now, later) = split(left, len_bytes);
            self.write_chunk(chunk, at, &now, find, &[])?;
            left = later;
            at = LogicalAddr(at.0.saturating_add(len_bytes));
        }
        Ok(())
    }

    /// Writes `bufs`, which end in `chunk`, to its stripes, though others may be read from. Of copies, the stripes with
    /// the numbers `kept` are not written.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    pub fn write_chunk(
        &self,
        chunk: &ChunkItem,
        logical: LogicalAddr,
        bufs: &[IoSlice<'_>],
        find: FindVerifier<'_>,
        kept: &[usize],
    ) -> Result<(), BufferError> {
        let mut left: Vec<&[u8]> = bufs.iter().map(|buf| &**buf).collect();
        let mut at = logical;
        while !left.is_empty() {
            let wanted: u64 = left.iter().map(|buf| buf.len() as u64).sum();
            let segment = chunk.segment(at, wanted);
            let (len_bytes, later) = match segment.placement {
                Placement::Copies { first, count } => {
                    let (now, later) = split(left, segment.len_bytes);
                    let stripes = first..first + count;
                    let present = stripes.filter(|it| self.device(chunk, *it).is_some());
                    let present: Vec<_> = present.collect();
                    // With no copy at all, the error is that of the first device.
                    let stripes = if present.is_empty() {
                        vec![first]
                    } else {
                        present
                    };
                    for stripe in stripes.into_iter().filter(|it| !kept.contains(it)) {
                        self.write_stripe(chunk, stripe, segment.offset, &now)?;
                    }
                    (segment.len_bytes, later)
                }
                Placement::Parity { row, .. } => {
                    let row_bytes = chunk.data_stripes() as u64 * STRIPE_BYTES;
                    let inside = (at.0 - chunk.start.0).saturating_sub(row * row_bytes);
                    if chunk.has_incomplete_row() {
                        return Err(self.broken_row(at, segment.len_bytes).into());
                    }
                    let len_bytes = wanted.min(row_bytes - inside);
                    let (now, later) = split(left, len_bytes);
                    let store = self;
                    let row = RowWrite { store, chunk, row };
                    row.write(inside, &gather(&now), find)?;
                    (len_bytes, later)
                }
            };
            left = later;
            at = LogicalAddr(at.0.saturating_add(len_bytes));
        }
        Ok(())
    }

    /// The error of a chunk with parity whose last row is incomplete.
    fn broken_row(&self, at: LogicalAddr, len_bytes: u64) -> IoError {
        IoError::read_only(self.name(), Operation::Write, at.0, len_bytes)
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

    /// Writes one copy of what follows `logical`, as far as a device has it as it is: parity stays.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn repair_copy(
        &self,
        logical: LogicalAddr,
        copy: u16,
        bytes: &[u8],
    ) -> Result<(), BufferError> {
        let mut left = bytes;
        let mut at = logical;
        let map = self.map();
        while !left.is_empty() {
            let chunk = map.find(at).map_err(Corruption::from)?;
            let segment = chunk.segment(at, left.len() as u64);
            let len = usize::try_from(segment.len_bytes).unwrap_or(left.len());
            let (now, later) = left.split_at(len.min(left.len()));
            if let Some(Way::Direct(stripe)) = self.ways(chunk, &segment).get(usize::from(copy)) {
                self.write_stripe(chunk, *stripe, segment.offset, &[IoSlice::new(now)])?;
            }
            left = later;
            at = LogicalAddr(at.0.saturating_add(segment.len_bytes.max(1)));
        }
        Ok(())
    }

    /// Compares the parity of some bytes of each stripe, in the row of an address, with the data, and rewrites it with
    /// `repairs`. With `doubts`, of one unit of data at most, data on missing devices is reconstructed where something of
    /// the row may be out of date.
    ///
    /// # Errors
    /// That there is no chunk.
    pub fn check_parity(
        &self,
        logical: LogicalAddr,
        columns: &Range<u64>,
        repairs: bool,
        doubts: Option<&dyn RowDoubts>,
    ) -> Result<ParityCheck, BufferError> {
        let map = self.map();
        let chunk = map.find(logical).map_err(Corruption::from)?;
        let Placement::Parity { row, .. } = chunk.segment(logical, 1).placement else {
            return Ok(ParityCheck::Compared(Vec::new()));
        };
        // Of a row that is incomplete, the rest of the columns is of something else.
        if chunk.has_incomplete_row() {
            return Ok(ParityCheck::Compared(Vec::new()));
        }
        let store = self;
        Ok(RowWrite { store, chunk, row }.check_parity(columns, repairs, doubts))
    }

    /// Whether data of the row of an address is on a missing device.
    ///
    /// # Errors
    /// That there is no chunk.
    pub fn is_data_missing(&self, logical: LogicalAddr) -> Result<bool, BufferError> {
        let map = self.map();
        let chunk = map.find(logical).map_err(Corruption::from)?;
        let Placement::Parity { row, .. } = chunk.segment(logical, 1).placement else {
            return Ok(false);
        };
        let store = self;
        Ok(RowWrite { store, chunk, row }.is_data_missing())
    }

    /// What a stripe of a chunk with parity has in some columns of a row, reconstructed from the other stripes where it
    /// cannot be read, or is wrong.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn restore(
        &self,
        chunk: &ChunkItem,
        (row, stripe): (u64, usize),
        columns: &Range<u64>,
        verifier: &dyn RowVerifier,
    ) -> Result<Restored, BufferError> {
        let store = self;
        RowWrite { store, chunk, row }.restore(stripe, columns, verifier)
    }

    /// Makes durable what was written to all devices.
    pub fn flush(&self) -> Result<(), IoError> {
        self.members()
            .iter()
            .filter_map(|member| member.device.as_ref())
            .try_for_each(|device| device.flush())
    }
}

/// The bytes of buffers, one after the other.
fn gather(bufs: &[IoSlice<'_>]) -> Vec<u8> {
    let slices: Vec<&[u8]> = bufs.iter().map(|buf| &**buf).collect();
    slices.concat()
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
