//! Data that is written before it has items, and its checksums, which are kept until then.

use std::io::IoSlice;

use platter_vfs::{Condition, Result};

use super::SuperBlock;
use crate::ondisk::LogicalAddr;

impl SuperBlock {
    /// Writes data that was allocated, whole sectors, and keeps its checksums.
    pub(super) fn write_data(&self, address: LogicalAddr, bufs: &[IoSlice<'_>]) -> Result<()> {
        let writing = self.writing().ok_or(Condition::ReadOnly)?;
        let sector_bytes = self.context().sector_bytes() as usize;
        self.writes.write(|| {
            if let Some(error) = writing.failure() {
                return Err(error);
            }
            writing.write_data(address, bufs)
        })?;
        let is_whole = |buf: &IoSlice<'_>| buf.len().is_multiple_of(sector_bytes);
        let found = if bufs.iter().all(is_whole) {
            let each = bufs.iter().map(|buf| writing.checksums_of(buf));
            each.collect::<Vec<_>>().concat()
        } else {
            let joined = bufs.iter().flat_map(|buf| buf.iter().copied());
            writing.checksums_of(&joined.collect::<Vec<u8>>())
        };
        self.checksums.lock().insert(address, found);
        Ok(())
    }

    /// Takes the checksums of data that was written.
    pub(super) fn take_checksums(&self, address: LogicalAddr, len_bytes: u64) -> Vec<u8> {
        let sector = u64::from(self.context().sector_bytes());
        let each = self.context().superblock.checksum_kind.len_bytes();
        let place = |bytes: u64| usize::try_from(bytes / sector).unwrap_or(usize::MAX) * each;
        let end = address.0.saturating_add(len_bytes);
        let (mut at, mut taken) = (address.0, Vec::new());
        let mut written = self.checksums.lock();
        // What was written by one request may be mapped in several parts.
        while at < end {
            let before = written.range(..=LogicalAddr(at)).next_back();
            let Some((start, mut found)) = before.map(|(start, _)| *start).and_then(|start| {
                let found = written.remove(&start)?;
                Some((start, found))
            }) else {
                break;
            };
            let (from, to) = (place(at - start.0), place(end - start.0));
            if from >= found.len() {
                written.insert(start, found);
                break;
            }
            if to < found.len() {
                written.insert(LogicalAddr(end), found.split_off(to));
            }
            let part = found.split_off(from);
            if !found.is_empty() {
                written.insert(start, found);
            }
            at += (part.len() / each) as u64 * sector;
            taken.extend(part);
        }
        taken
    }
}
