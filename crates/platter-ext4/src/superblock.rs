//! The superblock as a metadata block: changed like any other, through a handle; and at once, at the
//! ends of a mount.

use platter_vfs::Result;
use zerocopy::{FromZeros, IntoBytes};

use crate::Volume;
use crate::ondisk::superblock::{
    DiskSuperblock, LOCUS, SUPERBLOCK_MAGIC, SuperblockRule, SuperblockVerifier,
};
use crate::txn::Handle;
use platter_ondisk::Corrupt;

/// Changes the superblock as part of a transaction, and seals it. Its copies elsewhere stay as they
/// are. Takes one credit.
pub fn edit<R>(
    volume: &Volume,
    handle: &mut Handle<'_>,
    change: impl FnOnce(&mut DiskSuperblock) -> R,
) -> Result<R> {
    let verifier = SuperblockVerifier::new(&volume.geometry);
    handle.edit(volume.geometry.superblock_block, &verifier, |bytes| {
        let disk = verifier.find_mut(bytes);
        Ok(change(
            disk.ok_or(Corrupt::new(LOCUS, SuperblockRule::Magic))?,
        ))
    })
}

/// Changes the superblock on the device at once and durably, past transactions: for before the
/// first, after the last, and when there are to be no more.
pub fn rewrite(volume: &Volume, change: impl FnOnce(&mut DiskSuperblock)) -> Result<()> {
    let geometry = &volume.geometry;
    let mut disk = read(volume)?;
    change(&mut disk);
    disk.seal();
    let device = volume.device();
    device.write_at(offset_bytes(volume), disk.as_bytes())?;
    device.flush()?;
    // Nothing that is not on the device is in the cache, or ever will be on the device.
    volume.buffers().forget(geometry.superblock_block.0);
    Ok(())
}

/// The superblock as the device has it, past transactions.
pub fn read(volume: &Volume) -> Result<DiskSuperblock> {
    let mut disk = DiskSuperblock::new_zeroed();
    volume
        .device()
        .read_at(offset_bytes(volume), disk.as_mut_bytes())?;
    if disk.magic.get() != SUPERBLOCK_MAGIC {
        return Err(Corrupt::new(LOCUS, SuperblockRule::Magic).into());
    }
    Ok(disk)
}

fn offset_bytes(volume: &Volume) -> u64 {
    let geometry = &volume.geometry;
    let in_block = SuperblockVerifier::new(geometry).offset_bytes();
    let block = geometry.offset_bytes(geometry.superblock_block);
    block.saturating_add(in_block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::tests::sample_writable;

    fn state(volume: &Volume) -> u16 {
        let block = volume.geometry.superblock_block.0;
        let verifier = SuperblockVerifier::new(&volume.geometry);
        let buffer = volume.buffers().read(block, &verifier).unwrap();
        verifier.find(&buffer).unwrap().state.get()
    }

    #[test]
    fn edited_superblock_is_sealed_and_committed() {
        let volume = sample_writable();
        let mut handle = volume.begin(1).unwrap();
        edit(&volume, &mut handle, |disk| disk.state.set(5)).unwrap();
        drop(handle);
        assert_eq!(state(&volume), 5);
        volume.log().unwrap().commit_all().unwrap();
        rewrite(&volume, |disk| disk.state.set(disk.state.get() + 1)).unwrap();
        assert_eq!(state(&volume), 6);
    }
}
