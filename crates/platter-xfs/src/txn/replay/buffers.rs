//! Blocks under recovery. They stay in memory while transactions of one LSN are replayed, so that the
//! second of them finds the LSN that the first one found. Spec: `xfs/metadata_integrity`.

use std::collections::BTreeMap;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::rules::ReplayRule;
use crate::ondisk::log::{BufferType, Stamp};
use crate::ondisk::{BasicBlock, Lsn};
use crate::txn::LogDevice;

/// The longest buffer in bytes.
const LEN_MAX: u64 = 64 << 10;

/// Blocks under recovery, by their first byte.
#[derive(Debug)]
pub(super) struct Buffers<'t> {
    target: &'t dyn BlockDevice,
    log: &'t LogDevice,
    held: BTreeMap<u64, Buffer>,
    lsn: Lsn,
    /// Blocks written.
    pub(super) written: u64,
}

/// A block under recovery.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) bytes: Vec<u8>,
    /// What the block is, once it was replayed in a filesystem of version 5.
    pub(super) seal: Option<BufferType>,
    dirty: bool,
}

impl Buffer {
    /// The stamp of what is on the device without the checksum that it stores.
    pub(super) fn torn_stamp(&self) -> Option<Stamp> {
        let stamp = Stamp::of_block(&self.bytes).filter(|_| !self.dirty);
        stamp.filter(|stamp| !stamp.is_sealed(&self.bytes))
    }

    /// The bytes, to change them.
    pub(super) fn edit(&mut self) -> &mut [u8] {
        self.dirty = true;
        &mut self.bytes
    }
}

impl<'t> Buffers<'t> {
    pub(super) fn new(target: &'t dyn BlockDevice, log: &'t LogDevice) -> Self {
        Self {
            target,
            log,
            held: BTreeMap::new(),
            lsn: Lsn::NULL,
            written: 0,
        }
    }

    /// Begins a transaction: blocks of transactions of another LSN are written.
    pub(super) fn begin(&mut self, lsn: Lsn) -> Result<()> {
        if self.lsn != lsn {
            self.write_all()?;
            self.lsn = lsn;
        }
        Ok(())
    }

    /// The block at a place, which must lie in the filesystem and outside the log.
    pub(super) fn get(&mut self, block: BasicBlock, len_sectors: u64) -> Result<&mut Buffer> {
        let start = block.byte_offset();
        let len = len_sectors.saturating_mul(BasicBlock::BYTES);
        let end = start.saturating_add(len);
        let is_inside = (1..=LEN_MAX).contains(&len)
            && end <= self.target.geometry().len_bytes
            && !self.log.overlaps_data(start, len);
        if !is_inside {
            let locus = Locus::UNKNOWN.at_offset(start);
            return Err(Corrupt::new(locus, ReplayRule::BufferPlace).into());
        }
        let len = usize::try_from(len).unwrap_or_default();
        let is_held = self
            .held
            .get(&start)
            .is_some_and(|held| held.bytes.len() == len);
        if !is_held {
            // A block of another length that overlaps this one goes first.
            let overlapping: Vec<u64> = self
                .held
                .range(start.saturating_sub(LEN_MAX)..end)
                .filter(|(at, held)| *at + held.bytes.len() as u64 > start)
                .map(|(at, _)| *at)
                .collect();
            for at in overlapping {
                if let Some(held) = self.held.remove(&at) {
                    self.write(at, held)?;
                }
            }
            let mut bytes = vec![0; len];
            self.target.read_at(start, &mut bytes)?;
            let fresh = Buffer {
                bytes,
                seal: None,
                dirty: false,
            };
            self.held.insert(start, fresh);
        }
        let held = self.held.get_mut(&start);
        held.ok_or_else(|| {
            Corrupt::new(Locus::UNKNOWN.at_offset(start), ReplayRule::BufferPlace).into()
        })
    }

    /// Writes all blocks that were changed.
    pub(super) fn write_all(&mut self) -> Result<()> {
        for (at, buffer) in std::mem::take(&mut self.held) {
            self.write(at, buffer)?;
        }
        Ok(())
    }

    fn write(&mut self, at: u64, mut buffer: Buffer) -> Result<()> {
        if !buffer.dirty {
            return Ok(());
        }
        if let Some(stamp) = buffer
            .seal
            .and_then(|kind| Stamp::of_type(kind, &buffer.bytes))
        {
            stamp.seal(&mut buffer.bytes, self.lsn);
        }
        self.written += 1;
        Ok(self.target.write_at(at, &buffer.bytes)?)
    }
}
