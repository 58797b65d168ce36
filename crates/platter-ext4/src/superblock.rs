//! The superblock as a metadata block: changed like any other, through a handle; and at once, at the
//! ends of a mount.

use platter_ondisk::Corrupt;
use platter_vfs::Result;
use zerocopy::{FromZeros, IntoBytes};

use crate::FsContext;
use crate::ondisk::superblock::{
    DiskSuperblock, LOCUS, SUPERBLOCK_MAGIC, SuperblockRule, SuperblockVerifier,
};
use crate::txn::Handle;

/// Changes the superblock as part of a transaction, and seals it. Its copies elsewhere stay as they
/// are. Takes one credit.
pub fn edit<R>(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    change: impl FnOnce(&mut DiskSuperblock) -> R,
) -> Result<R> {
    let verifier = SuperblockVerifier::new(&fs.geometry);
    handle.edit(fs.geometry.superblock_block, &verifier, |bytes| {
        let disk = verifier.find_mut(bytes);
        Ok(change(
            disk.ok_or(Corrupt::new(LOCUS, SuperblockRule::Magic))?,
        ))
    })
}

/// Changes the superblock on the device at once and durably, past transactions: for before the
/// first, after the last, and when there are to be no more.
pub fn rewrite(fs: &FsContext, change: impl FnOnce(&mut DiskSuperblock)) -> Result<()> {
    let geometry = &fs.geometry;
    let mut disk = read(fs)?;
    change(&mut disk);
    disk.seal();
    let device = fs.device();
    device.write_at(offset_bytes(fs), disk.as_bytes())?;
    device.flush()?;
    // Nothing that is not on the device is in the cache, or ever will be on the device.
    fs.buffers().forget(geometry.superblock_block.0);
    Ok(())
}

/// As [`rewrite`], where transactions go on later: they find it in the cache. Until then none changes anything, and
/// none is left to be committed or checkpointed.
pub fn rewrite_cached(fs: &FsContext, change: impl FnOnce(&mut DiskSuperblock)) -> Result<()> {
    let (buffers, block) = (fs.buffers(), fs.geometry.superblock_block.0);
    let verifier = SuperblockVerifier::new(&fs.geometry);
    let mut bytes = buffers.read(block, &verifier)?.to_vec();
    let disk = verifier.find_mut(&mut bytes);
    change(disk.ok_or(Corrupt::new(LOCUS, SuperblockRule::Magic))?);
    let buffer = buffers.publish(block, bytes, &verifier)?;
    buffers.write(&[(block, buffer)])?;
    Ok(fs.device().flush()?)
}

/// The superblock as the device has it, past transactions.
pub fn read(fs: &FsContext) -> Result<DiskSuperblock> {
    let mut disk = DiskSuperblock::new_zeroed();
    fs.device().read_at(offset_bytes(fs), disk.as_mut_bytes())?;
    if disk.magic.get() != SUPERBLOCK_MAGIC {
        return Err(Corrupt::new(LOCUS, SuperblockRule::Magic).into());
    }
    Ok(disk)
}

fn offset_bytes(fs: &FsContext) -> u64 {
    let geometry = &fs.geometry;
    let in_block = SuperblockVerifier::new(geometry).offset_bytes();
    let block = geometry.offset_bytes(geometry.superblock_block);
    block.saturating_add(in_block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs_context::tests::sample_writable;

    fn state(fs: &FsContext) -> u16 {
        let block = fs.geometry.superblock_block.0;
        let verifier = SuperblockVerifier::new(&fs.geometry);
        let buffer = fs.buffers().read(block, &verifier).unwrap();
        verifier.find(&buffer).unwrap().state.get()
    }

    #[test]
    fn edited_superblock_is_sealed_and_committed() {
        let fs = sample_writable();
        let mut handle = fs.begin(1).unwrap();
        edit(&fs, &mut handle, |disk| disk.state.set(5)).unwrap();
        drop(handle);
        assert_eq!(state(&fs), 5);
        fs.log().unwrap().commit_all().unwrap();
        rewrite(&fs, |disk| disk.state.set(disk.state.get() + 1)).unwrap();
        assert_eq!(state(&fs), 6);
    }
}
