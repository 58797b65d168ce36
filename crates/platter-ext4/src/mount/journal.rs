//! Finding the journal that a superblock names: in an inode, or on a device of its own.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::Result;

use super::unsupported;
use crate::Volume;
use crate::file::Contents;
use crate::inode;
use crate::mapping::{Backing, BlockMap};
use crate::ondisk::jbd2::LogBlock;
use crate::ondisk::{FileBlock, InodeNr};
use crate::txn::journal::JournalMapBuilder;
use crate::txn::{Journal, JournalMap};

/// Opens the journal of a volume. `external` is the device of an external one.
pub(super) fn open(volume: &Volume, external: Option<&Arc<dyn BlockDevice>>) -> Result<Journal> {
    match (volume.superblock.journal_inode, external) {
        (Some(inode), _) => Journal::open(internal_map(volume, inode)?),
        (None, Some(device)) => {
            let device = Arc::clone(device);
            Journal::open_external(device, &volume.superblock, &volume.geometry)
        }
        (None, None) => {
            let reason = "the journal is on another device, which was not given";
            Err(unsupported("external journal".into(), Some(reason)))
        }
    }
}

/// Where the blocks of the journal's inode lie.
pub(super) fn internal_map(volume: &Volume, number: InodeNr) -> Result<JournalMap> {
    let inode = inode::read(volume, number)?;
    let map = BlockMap::decode(volume, &inode)?;
    let contents = Contents {
        volume,
        inode: &inode,
        map: &map,
    };
    let geometry = &volume.geometry;
    let mut builder = JournalMapBuilder::new(Arc::clone(volume.device()), geometry.block_bytes);
    let len_blocks = u32::try_from(inode.size_bytes >> geometry.block_bits).unwrap_or(u32::MAX);
    let mut pushed = Ok(());
    contents.runs(FileBlock(0)..FileBlock(len_blocks), &mut |run| {
        if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
            pushed = builder.push(LogBlock(run.first.0), start, run.count);
        }
        if pushed.is_err() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    pushed?;
    Ok(builder.finish())
}
