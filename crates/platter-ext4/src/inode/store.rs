//! Inodes on their way into their table.

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result};

use crate::FsContext;
use crate::groups::{self, InodeSlot};
use crate::ondisk::features::RoCompat;
use crate::ondisk::inode::{InodeRule, put_deleted, seal};
use crate::ondisk::{Inode, InodeNr};
use crate::superblock;
use crate::txn::{Edit, Handle};

/// Blocks that storing an inode changes at most: the one of its table, and the superblock where
/// the inode is the first of its kind.
pub const STORE_CREDITS: u32 = 2;

/// The largest size that needs no word of its existence in the superblock.
const SMALL_FILE_BYTES_MAX: u64 = 0x7fff_ffff;

/// Takes an inode as it is now into its table. What this driver does not know of it stays.
pub fn store(fs: &FsContext, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
    put(fs, handle, inode, |slot| inode.encode(slot, &fs.geometry))
}

/// Takes an inode that is deleted at `time`, in seconds, into its table for the last time. Takes
/// [`STORE_CREDITS`].
pub fn store_deletion(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    inode: &Inode,
    time: u32,
) -> Result<()> {
    let geometry = &fs.geometry;
    put(fs, handle, inode, |slot| {
        inode.encode_deletion(slot, time, geometry)
    })
}

/// Takes a new inode into its table, over whatever was there.
pub fn initialize(fs: &FsContext, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
    put(fs, handle, inode, |slot| {
        let mut new = vec![0; slot.len()];
        inode.encode(&mut new, &fs.geometry)?;
        slot.copy_from_slice(&new);
        Ok(())
    })
}

/// Stores the time of an inode's deletion, or the next inode of the orphan list. Takes one credit.
pub fn store_deleted(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    number: InodeNr,
    deleted: u32,
) -> Result<()> {
    let geometry = &fs.geometry;
    let InodeSlot { block, offset, .. } = slot(fs, number)?;
    handle.edit(block, &Unverified, |bytes| {
        let bytes = bytes.get_mut(offset..).unwrap_or_default();
        Ok(put_deleted(bytes, number, deleted, geometry)?)
    })
}

/// Changes an inode that is not in memory. Takes one credit.
pub fn edit<R>(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    number: InodeNr,
    change: impl FnOnce(&mut Inode) -> Result<R>,
) -> Result<R> {
    edit_or_keep(fs, handle, number, |inode| change(inode).map(Edit::Changed))
}

/// As [`edit`], of an inode that `change` may also leave as it is.
pub fn edit_or_keep<R>(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    number: InodeNr,
    change: impl FnOnce(&mut Inode) -> Result<Edit<R>>,
) -> Result<R> {
    let geometry = &fs.geometry;
    let InodeSlot { block, offset, .. } = slot(fs, number)?;
    handle.edit_or_keep(block, &Unverified, |bytes| {
        let bytes = bytes.get_mut(offset..).unwrap_or_default();
        let mut inode = Inode::decode(bytes, number, geometry)?;
        let result = change(&mut inode)?;
        if let Edit::Changed(_) = result {
            inode.encode(bytes, geometry)?;
        }
        Ok(result)
    })
}

/// Brings the block of an inode's slot into memory, so that [`store`] finds it there.
pub fn read_slot(fs: &FsContext, number: InodeNr) -> Result<()> {
    let place = slot(fs, number)?;
    if !fs.buffers().contains(place.block.0) {
        fs.read_block(place.block, &Unverified)?;
    }
    Ok(())
}

/// Makes the block of an inode's slot part of the transaction, as it is: the inode will be stored before
/// it closes. Takes one credit.
pub fn join_slot(fs: &FsContext, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
    let place = slot(fs, number)?;
    handle.edit(place.block, &Unverified, |_| Ok(()))
}

/// Has `encode` change the slot of an inode in its table.
fn put(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    inode: &Inode,
    encode: impl FnOnce(&mut [u8]) -> Result<(), Corrupt<InodeRule>>,
) -> Result<()> {
    announce_large_file(fs, handle, inode)?;
    change_slot(fs, handle, inode.number, encode)
}

/// Changes the bytes of an inode in its table, whatever they are, and seals them. Takes one credit.
pub fn edit_bytes(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    number: InodeNr,
    change: impl FnOnce(&mut [u8]),
) -> Result<()> {
    change_slot(fs, handle, number, |slot| {
        change(slot);
        seal(slot, number, &fs.geometry);
        Ok(())
    })
}

fn change_slot(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    number: InodeNr,
    change: impl FnOnce(&mut [u8]) -> Result<(), Corrupt<InodeRule>>,
) -> Result<()> {
    let InodeSlot { block, offset, .. } = slot(fs, number)?;
    handle.edit(block, &Unverified, |bytes| {
        let end = offset.saturating_add(usize::from(fs.geometry.inode_bytes));
        let bytes = bytes
            .get_mut(offset..end)
            .ok_or(broken(number, InodeRule::Truncated))?;
        Ok(change(bytes)?)
    })
}

fn slot(fs: &FsContext, number: InodeNr) -> Result<InodeSlot> {
    let slot = groups::find_inode(fs, number)?;
    Ok(slot.ok_or(broken(number, InodeRule::Truncated))?)
}

fn broken(number: InodeNr, rule: InodeRule) -> Corrupt<InodeRule> {
    Corrupt::new(Locus::inode(u64::from(number.get())), rule)
}

/// A filesystem says in its superblock whether it ever had a file of 2 GiB.
fn announce_large_file(fs: &FsContext, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
    let is_large = inode.kind == FileKind::Regular && inode.size_bytes > SMALL_FILE_BYTES_MAX;
    let features = fs.geometry.features.ro_compat;
    if !is_large || features.contains(RoCompat::LARGE_FILE) {
        return Ok(());
    }
    superblock::edit(fs, handle, |disk| {
        disk.leave_revision_0();
        let bits = disk.feature_ro_compat.get() | RoCompat::LARGE_FILE.bits();
        disk.feature_ro_compat.set(bits);
    })
}

#[cfg(test)]
mod tests {
    use platter_vfs::Timestamp;
    use zerocopy::FromBytes;

    use super::*;
    use crate::fs_context::tests::sample_writable;
    use crate::inode;
    use crate::ondisk::inode::DiskInode;
    use crate::ondisk::superblock::DiskSuperblock;

    #[test]
    fn an_inode_is_found_as_it_was_stored() {
        let fs = sample_writable();
        let number = InodeNr::new(12).unwrap();
        let mut inode = Inode::new(number, FileKind::Regular, 7, 32, &fs.geometry);
        inode.links = 1;
        inode.uid = 0x1_0002;
        inode.created = Some(Timestamp::default());
        let mut handle = fs.begin(STORE_CREDITS).unwrap();
        initialize(&fs, &mut handle, &inode).unwrap();
        inode.modified = Timestamp {
            seconds: 1 << 33,
            nanoseconds: 5,
        };
        inode.size_bytes = 1 << 31;
        store(&fs, &mut handle, &inode).unwrap();
        store_deleted(&fs, &mut handle, number, 99).unwrap();
        store(&fs, &mut handle, &inode).unwrap();
        drop(handle);
        inode.deleted = 99;
        let found = inode::read(&fs, number).unwrap();
        assert_eq!(format!("{found:?}"), format!("{inode:?}"));
        let superblock = fs.geometry.superblock_block.0;
        let superblock = fs.buffers().read(superblock, &Unverified).unwrap();
        let (disk, _) = DiskSuperblock::ref_from_prefix(&superblock).unwrap();
        let features = disk.feature_ro_compat.get();
        assert_ne!(features & RoCompat::LARGE_FILE.bits(), 0);
        assert_eq!(disk.checksum.get(), disk.expected_checksum());
    }

    #[test]
    fn what_is_not_known_of_an_inode_stays_when_it_is_stored() {
        let fs = sample_writable();
        let number = InodeNr::new(12).unwrap();
        let mut inode = Inode::new(number, FileKind::Regular, 7, 32, &fs.geometry);
        inode.links = 1;
        let place = slot(&fs, number).unwrap();
        let mut handle = fs.begin(STORE_CREDITS).unwrap();
        for (is_new, expected) in [(false, 9), (true, 0)] {
            handle
                .edit(place.block, &Unverified, |bytes| {
                    bytes[place.offset + 0x70] = 9;
                    Ok(())
                })
                .unwrap();
            let take = if is_new { initialize } else { store };
            take(&fs, &mut handle, &inode).unwrap();
            let buffer = fs.read_block(place.block, &Unverified).unwrap();
            let (disk, _) = DiskInode::ref_from_prefix(&buffer[place.offset..]).unwrap();
            assert_eq!(disk.fragment.get() & 0xff, expected);
        }
    }
}
