//! Free blocks of an offline filesystem, which may be overwritten.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use platter_vfs::writing::RangeSet;

use super::MountOptions;
use crate::btree::Tree;
use crate::context::FsContext;
use crate::ondisk::agfl::Agfl;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent};
use crate::ondisk::{AgBlock, AgNr, Geometry};
use crate::superblock;
use crate::txn::{self, LogDevice, LogState};

/// The blocks of a device that its filesystem does not use; valid until the filesystem is written.
#[derive(Debug)]
pub struct Unused {
    block_bytes: u64,
    /// Free blocks, counted from the start of the device.
    free: RangeSet<u64>,
}

impl Unused {
    /// Looks at a filesystem; `None` if it has a log to replay, which may use other blocks.
    pub fn of(
        device: &Arc<dyn BlockDevice>,
        options: &MountOptions,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Option<Self>> {
        let primary = superblock::read(&**device)?;
        superblock::refuse_unreadable(&primary.features)?;
        let log = LogDevice::open(&primary, device, options.log.as_ref())?;
        let position = txn::find_position(&log, primary.features.is_v5())?;
        if position.state == LogState::Dirty {
            return Ok(None);
        }
        let context = FsContext::new(Arc::clone(device), None, primary, Arc::clone(budget));
        Self::read(&context).map(Some)
    }

    /// The free extents of a filesystem.
    pub(super) fn read(context: &FsContext) -> Result<Self> {
        let geometry = context.geometry();
        let mut free = RangeSet::default();
        for ag in geometry.groups() {
            let agf = context.agf(ag)?;
            Tree::of_group(context, BtreeKind::Bno, ag, agf.bno).leaves(&mut |leaf| {
                for record in leaf.records::<DiskFreeExtent>() {
                    let start = record.start.get();
                    let end = start.saturating_add(record.count.get()).min(agf.length);
                    let first = index(geometry, ag, start.min(end));
                    free.insert(first..first + u64::from(end.saturating_sub(start)));
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(Self {
            block_bytes: geometry.block_bytes().into(),
            free,
        })
    }

    /// Adds the blocks of the free lists, whose contents do not matter either.
    pub(super) fn with_free_lists(mut self, context: &FsContext) -> Result<Self> {
        let geometry = context.geometry();
        for ag in geometry.groups() {
            let agf = context.agf(ag)?;
            let corrupt = |rule| Corrupt::new(Locus::group(ag.0.into()), rule);
            let sector = context.read_agfl(ag)?;
            let list = Agfl::decode_unsealed(&sector, geometry, ag).map_err(corrupt)?;
            for block in list.blocks(&agf) {
                let at = index(geometry, ag, block.map_err(corrupt)?.0);
                self.free.insert(at..at + 1);
            }
        }
        Ok(self)
    }

    /// Whether nothing uses any of these bytes, which are whole blocks.
    #[must_use]
    pub fn contains(&self, bytes: &Range<u64>) -> bool {
        let is_whole = bytes.start.is_multiple_of(self.block_bytes)
            && bytes.end.is_multiple_of(self.block_bytes);
        let blocks = bytes.start / self.block_bytes..bytes.end / self.block_bytes;
        is_whole && self.free.gaps(blocks).next().is_none()
    }

    /// Whether nothing uses a block, counted from the start of the device.
    pub(super) fn has(&self, block: u64) -> bool {
        self.free.contains(block)
    }
}

fn index(geometry: &Geometry, ag: AgNr, block: u32) -> u64 {
    geometry.byte_offset(geometry.fs_block(ag, AgBlock(block))) >> geometry.block_bits
}
