//! Making a filesystem: chooses its sizes, places and writes its metadata, and then creates its
//! initial files through transactions.

mod options;
mod shape;
pub(crate) mod layout;
pub(crate) mod skeleton;
mod own_files;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Result};

use crate::FsContext;
use crate::groups::backups::write_backups;
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_OFFSET_BYTES};
use crate::ondisk::{Geometry, GroupNr, InodeNr, Superblock};
use crate::txn::Log;
use layout::Layout;
use own_files::{OwnFiles, lost_found};
use shape::Shape;
pub(crate) use shape::is_last_group_too_short;
use skeleton::OldTables;

pub use options::{Generation, MkfsOptions, SMALL_BLOCKS_END_BYTES};

/// Refuses what [`mkfs`] would refuse for a device of `len_bytes`, before anything is changed.
///
/// # Errors
/// Those of `mkfs`.
pub fn check(len_bytes: u64, options: &MkfsOptions, clock: &dyn Clock) -> Result<()> {
    let shape = Shape::choose(len_bytes, options, clock)?;
    Layout::place(&shape.geometry, GroupNr(0))?;
    Ok(())
}

/// Returns the free space of an offline filesystem in bytes, according to its superblock.
///
/// # Errors
/// `Corrupt` without a valid superblock.
pub fn free_bytes(device: &dyn BlockDevice) -> Result<u64> {
    let (superblock, geometry) = read_shape(device)?;
    let block_bytes = u64::from(geometry.block_bytes);
    Ok(superblock.free_blocks.saturating_mul(block_bytes))
}

/// Returns the length of a filesystem in bytes, according to its superblock.
///
/// # Errors
/// `Corrupt` without a valid superblock.
pub fn len_bytes(device: &dyn BlockDevice) -> Result<u64> {
    Ok(read_shape(device)?.1.len_bytes())
}

fn read_shape(device: &dyn BlockDevice) -> Result<(Superblock, Geometry)> {
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    device.read_at(SUPERBLOCK_OFFSET_BYTES, &mut bytes)?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    let superblock = Superblock::decode(&disk)?;
    let geometry = Geometry::decode(&disk, &superblock)?;
    Ok((superblock, geometry))
}

/// Makes a filesystem on the whole of `device`. `is_zero` says that it contains only zeros, as a
/// new file does: then no zeros are written.
///
/// The same options, clock and seed give the same bytes.
///
/// # Errors
/// `NoSpace` on a device that is too small, `InvalidArgument` for inconsistent sizes, `Unsupported`
/// for inconsistent features or those that cannot be made.
pub fn mkfs(
    device: &Arc<dyn BlockDevice>,
    options: &MkfsOptions,
    is_zero: bool,
    budget: Arc<MemoryBudget>,
    clock: &dyn Clock,
) -> Result<()> {
    let mut shape = Shape::choose(device.geometry().len_bytes, options, clock)?;
    let layout = Layout::place(&shape.geometry, GroupNr(0))?;
    let last = lost_found(&shape.geometry).max(shape.superblock.quota_inodes[2]);
    let reserved = last.map_or(0, InodeNr::get);
    let old = match (is_zero, options.zero_inode_tables) {
        (true, _) => OldTables::Zeros,
        (false, false) => OldTables::MayStay,
        (false, true) => OldTables::Overwritten,
    };
    skeleton::write(&**device, &mut shape, layout, reserved, 2, old)?;
    let fs = FsContext::new(
        Arc::clone(device),
        shape.superblock.clone(),
        shape.geometry.clone(),
        budget,
    );
    let fs = fs.writable(Log::without_journal);
    let root_owner = options.root_owner.unwrap_or_default();
    OwnFiles::new(&fs, clock, is_zero)?.make(&shape, root_owner)?;
    write_backups(&**device, &shape.geometry)?;
    device.flush()?;
    Ok(())
}
