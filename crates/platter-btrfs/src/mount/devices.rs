//! The superblocks of devices.

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus, Uuid};
use platter_vfs::Result;

use super::options::Rescue;
use crate::ondisk::Superblock;
use crate::ondisk::superblock::{
    DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SuperblockFlags, SuperblockRule,
};
use crate::pool::unsupported;

/// Reads what the superblock of `device` says, without opening the filesystem: its features may be ones
/// that this driver does not know.
pub fn identify(device: &dyn BlockDevice) -> Result<Superblock> {
    read(device, SUPERBLOCK_OFFSETS[0])
}

/// Where a valid copy of the superblock lies: the newest; of two, the first.
#[must_use]
pub fn find_superblock_copy(device: &dyn BlockDevice) -> Option<u64> {
    let newest = copies(device).rev().max_by_key(|(_, it)| it.generation);
    newest.map(|(at, _)| at)
}

/// The newest copy of the superblock of a device. What was on it before may have left newer ones: those of the
/// filesystem of `other` count first.
pub(super) fn newest_copy(device: &dyn BlockDevice, other: &Superblock) -> Option<Superblock> {
    let is_own = |it: &Superblock| identity(it) == identity(other);
    let newest = copies(device).max_by_key(|(_, it)| (is_own(it), it.generation));
    newest.map(|(_, superblock)| superblock)
}

/// What devices of one filesystem have in common: both UUIDs, since a change of one alone may have
/// reached only some devices.
pub(super) fn identity(superblock: &Superblock) -> (Uuid, Uuid) {
    (superblock.fsid, superblock.metadata_uuid)
}

/// The valid copies but for the first, and where they lie.
fn copies(device: &dyn BlockDevice) -> impl DoubleEndedIterator<Item = (u64, Superblock)> {
    let copies = SUPERBLOCK_OFFSETS.into_iter().skip(1);
    copies.filter_map(|at| Some((at, read(device, at).ok()?)))
}

/// The superblock at byte `at`.
pub(super) fn read(device: &dyn BlockDevice, at: u64) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let end = at.checked_add(SUPERBLOCK_BYTES as u64);
    if end.is_none_or(|end| end > device.geometry().len_bytes) {
        let locus = Locus::UNKNOWN.at_offset(at);
        return Err(Corrupt::new(locus, SuperblockRule::Magic).into());
    }
    device.read_at(at, &mut bytes)?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    Ok(Superblock::decode(&disk, at)?)
}

/// Refuses a filesystem by what its superblock says.
pub(super) fn refuse_unreadable(superblock: &Superblock, rescue: Rescue) -> Result<()> {
    let names = superblock.features.unreadable();
    if !names.is_empty() {
        return Err(unsupported(names.join(", "), None));
    }
    // As in the kernel, whatever is to be ignored.
    let is_final = superblock.flags.contains(SuperblockFlags::CHANGING_FSID_V2);
    if let Some(flag) = superblock.flags.refused()
        && (is_final || !rescue.ignores_superblock_flags)
    {
        let reason = "let btrfstune finish it, or mount with rescue=ignoresuperflags";
        return Err(unsupported(flag, Some(reason)));
    }
    Ok(())
}
