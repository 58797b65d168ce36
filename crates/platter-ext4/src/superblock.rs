//! The superblock as a metadata block: changed like any other, through a handle.

use platter_vfs::Result;

use crate::Volume;
use crate::ondisk::corrupt::Corrupt;
use crate::ondisk::superblock::{DiskSuperblock, LOCUS, SuperblockRule, SuperblockVerifier};
use crate::txn::Handle;

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
