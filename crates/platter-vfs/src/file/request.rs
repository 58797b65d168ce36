//! Bytes of a file on their way to the device.

use std::io::IoSlice;
use std::ops::Range;

use super::{Allocation, FileRun};

/// Zeros for the rest of the last block.
pub static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Consecutive bytes of a file that are to be written.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The first byte.
    pub offset: u64,
    /// The byte after the last.
    pub end: u64,
    /// The bytes.
    pub bufs: &'a [IoSlice<'a>],
}

impl Request<'_> {
    /// The contents of a run of blocks, with zeros beyond the end of the bytes.
    #[must_use]
    pub fn blocks(&self, run: &FileRun, block_bits: u32) -> Vec<IoSlice<'_>> {
        let first = run.first << block_bits;
        let end = first + (run.count << block_bits);
        let mut bufs = self.bytes(first..end);
        let missing = end.saturating_sub(self.end);
        if let Some(zeros) = usize::try_from(missing)
            .ok()
            .and_then(|len| ZEROS.get(..len))
            && !zeros.is_empty()
        {
            bufs.push(IoSlice::new(zeros));
        }
        bufs
    }

    /// What is written to the device for allocated blocks.
    pub(super) fn stored<'b>(
        &'b self,
        allocation: &'b impl Allocation,
        block_bits: u32,
    ) -> Vec<IoSlice<'b>> {
        match allocation.encoded() {
            Some(bytes) => vec![IoSlice::new(bytes)],
            None => self.blocks(&allocation.run(), block_bits),
        }
    }

    /// The parts of the buffers that hold a range of the file.
    #[must_use]
    pub fn bytes(&self, range: Range<u64>) -> Vec<IoSlice<'_>> {
        let mut at = self.offset;
        let mut bufs = Vec::with_capacity(self.bufs.len() + 1);
        for buf in self.bufs {
            let end = at + buf.len() as u64;
            let within =
                |at_byte: u64| usize::try_from(at_byte.clamp(at, end) - at).unwrap_or_default();
            let part = buf.get(within(range.start)..within(range.end));
            bufs.extend(part.filter(|part| !part.is_empty()).map(IoSlice::new));
            at = end;
        }
        bufs
    }

    /// The end of the bytes of a run of blocks that are written.
    #[must_use]
    pub fn end_within(&self, run: &FileRun, block_bits: u32) -> u64 {
        (run.end() << block_bits).min(self.end)
    }
}
