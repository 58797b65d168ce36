//! Data that is written before it has items, and its checksums, which are kept until then.

use std::collections::BTreeMap;
use std::io::IoSlice;

use platter_block::lock::Mutex;
use platter_vfs::{Condition, Result};

use super::SuperBlock;
use crate::ondisk::LogicalAddr;
use crate::txn::data_extents;

/// Checksums of data without items.
#[derive(Debug, Default)]
pub(super) struct OrderedChecksums {
    /// The checksums of what was written and has no items yet, by where it begins.
    by_address: Mutex<BTreeMap<LogicalAddr, Vec<u8>>>,
}

impl OrderedChecksums {
    /// Takes the checksums of data, of so many bytes for each sector.
    fn take(&self, address: LogicalAddr, len_bytes: u64, (sector, each): (u64, usize)) -> Vec<u8> {
        let place = |bytes: u64| usize::try_from(bytes / sector).unwrap_or(usize::MAX) * each;
        let end = address.0.saturating_add(len_bytes);
        let (mut at, mut taken) = (address.0, Vec::new());
        let mut written = self.by_address.lock();
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

/// Writes data that was allocated, whole sectors, and keeps its checksums.
pub(super) fn write(
    superblock: &SuperBlock,
    address: LogicalAddr,
    bufs: &[IoSlice<'_>],
) -> Result<()> {
    let writing = superblock.writing().ok_or(Condition::ReadOnly)?;
    let sector_bytes = superblock.context().sector_bytes() as usize;
    superblock.writes.write(|| {
        if let Some(error) = writing.failure() {
            return Err(error);
        }
        data_extents::write(writing, address, bufs)
    })?;
    let is_whole = |buf: &IoSlice<'_>| buf.len().is_multiple_of(sector_bytes);
    let found = if bufs.iter().all(is_whole) {
        let each = bufs
            .iter()
            .map(|buf| data_extents::checksums_of(writing, buf));
        each.collect::<Vec<_>>().concat()
    } else {
        let joined = bufs.iter().flat_map(|buf| buf.iter().copied());
        data_extents::checksums_of(writing, &joined.collect::<Vec<u8>>())
    };
    superblock
        .checksums
        .by_address
        .lock()
        .insert(address, found);
    Ok(())
}

/// Takes the checksums of data that was written.
pub(super) fn take_checksums(
    superblock: &SuperBlock,
    address: LogicalAddr,
    len_bytes: u64,
) -> Vec<u8> {
    let sector = u64::from(superblock.context().sector_bytes());
    let each = superblock.context().superblock.checksum_kind.len_bytes();
    superblock
        .checksums
        .take(address, len_bytes, (sector, each))
}
