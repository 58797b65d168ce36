//! Making a filesystem: its shape is chosen, its metadata placed and written, and then the files it
//! is born with are made through transactions, as all others are.

mod options;
mod shape;
mod layout;
mod skeleton;
mod own_files;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::Volume;
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_OFFSET_BYTES};
use crate::ondisk::{BlockNr, Geometry, InodeNr, Superblock};
use crate::txn::Log;
use layout::Layout;
use own_files::{OwnFiles, backup_groups, lost_found};
use shape::Shape;
use skeleton::OldTables;

pub use options::{Generation, MkfsOptions, SMALL_BLOCKS_END_BYTES};
pub use shape::random_uuid;

/// The state of a backup: not known to be clean.
const BACKUP_STATE: u16 = 0;

/// Refuses what [`mkfs`] would refuse for a device of `len_bytes`, before anything is changed.
///
/// # Errors
/// As `mkfs`.
pub fn check(len_bytes: u64, options: &MkfsOptions, clock: &dyn Clock) -> Result<()> {
    let shape = Shape::choose(len_bytes, options, clock)?;
    Layout::place(&shape.geometry)?;
    Ok(())
}

/// What is free in a filesystem at rest, in bytes, by its superblock.
///
/// # Errors
/// `Corrupt` where there is none.
pub fn free_bytes(device: &dyn BlockDevice) -> Result<u64> {
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    device.read_at(SUPERBLOCK_OFFSET_BYTES, &mut bytes)?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    let superblock = Superblock::decode(&disk)?;
    let geometry = Geometry::decode(&disk, &superblock)?;
    let block_bytes = u64::from(geometry.block_bytes);
    Ok(superblock.free_blocks.saturating_mul(block_bytes))
}

/// Makes a filesystem on the whole of `device`. `is_zero` says that it holds zeros all over, as a
/// new file does: then no zeros are written.
///
/// The same options, clock and seed give the same bytes.
///
/// # Errors
/// `NoSpace` on a device that is too small, `InvalidArgument` for sizes that do not go together,
/// `Unsupported` for features that do not, or cannot be made.
pub fn mkfs(
    device: &Arc<dyn BlockDevice>,
    options: &MkfsOptions,
    is_zero: bool,
    budget: Arc<MemoryBudget>,
    clock: &dyn Clock,
) -> Result<()> {
    let mut shape = Shape::choose(device.geometry().len_bytes, options, clock)?;
    let layout = Layout::place(&shape.geometry)?;
    let reserved = lost_found(&shape.geometry).map_or(0, InodeNr::get);
    let old = match (is_zero, options.zero_inode_tables) {
        (true, _) => OldTables::Zeros,
        (false, false) => OldTables::MayStay,
        (false, true) => OldTables::Overwritten,
    };
    skeleton::write(&**device, &mut shape, layout, reserved, 2, old)?;
    let volume = Volume::new(
        Arc::clone(device),
        shape.superblock.clone(),
        shape.geometry.clone(),
        budget,
    );
    let volume = volume.writable(Log::without_journal);
    OwnFiles::new(&volume, clock, is_zero)?.make(&shape, options.root_owner)?;
    write_backups(&**device, &shape.geometry)?;
    device.flush()?;
    Ok(())
}

/// Copies the superblock and the descriptors to the groups that keep a copy.
fn write_backups(device: &dyn BlockDevice, geometry: &Geometry) -> Result<()> {
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    device.read_at(SUPERBLOCK_OFFSET_BYTES, &mut bytes)?;
    let table_bytes = geometry.descriptor_blocks() as usize * geometry.block_bytes as usize;
    let mut table = vec![0; table_bytes];
    let first = geometry.descriptor_block(0);
    device.read_at(geometry.offset_bytes(first), &mut table)?;
    for group in backup_groups(geometry) {
        let Ok(disk) = DiskSuperblock::mut_from_bytes(&mut bytes) else {
            break;
        };
        disk.block_group.set(u16::try_from(group.0).unwrap_or(0));
        disk.state.set(BACKUP_STATE);
        disk.seal();
        let place = geometry.group_first_block(group);
        device.write_at(geometry.offset_bytes(place), disk.as_bytes())?;
        let place = BlockNr(place.0 + 1);
        device.write_at(geometry.offset_bytes(place), &table)?;
    }
    Ok(())
}
