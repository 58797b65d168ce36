//! The label of a mounted filesystem.

use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, Result};
use zerocopy::FromBytes;

use crate::FsContext;
use crate::groups::backups::backup_groups;
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_MAGIC, SuperblockVerifier, label_of};
use crate::ops::SuperBlock;
use crate::superblock;
use crate::txn::Edit;

/// The longest label.
const LABEL_BYTES_MAX: usize = 16;

/// The label as it is now, without padding.
pub(super) fn label(fs: &FsContext) -> Result<Vec<u8>> {
    let Some(log) = fs.log() else {
        return Ok(fs.superblock.label.clone());
    };
    let verifier = SuperblockVerifier::new(&fs.geometry);
    let block = fs.geometry.superblock_block;
    let disk = log.inspect(block, &verifier, |bytes| verifier.find(bytes).map(label_of))?;
    Ok(disk.unwrap_or_default())
}

/// Sets the label in the superblock, and then in each of its copies that is intact: a crash in between
/// leaves copies with the old one.
pub(super) fn set_label(sb: &SuperBlock, label: &[u8]) -> Result<()> {
    let fs = &sb.fs;
    let mut name = [0; LABEL_BYTES_MAX];
    let Some(start) = name.get_mut(..label.len()) else {
        let text = format!("a label has at most {LABEL_BYTES_MAX} bytes");
        return Err(Condition::InvalidArgument.because(text));
    };
    start.copy_from_slice(label);
    let mut handle = fs.begin(1)?;
    superblock::edit(fs, &mut handle, |disk| disk.volume_name = name)?;
    drop(handle);
    for group in backup_groups(&fs.geometry) {
        let block = fs.geometry.group_first_block(group);
        let mut handle = fs.begin(1)?;
        handle.edit_or_keep(block, &Unverified, |bytes| {
            let copy = copy_in(bytes, fs);
            let Some(copy) = copy.filter(|copy| copy.volume_name != name) else {
                return Ok(Edit::Kept(()));
            };
            copy.volume_name = name;
            copy.seal();
            Ok(Edit::Changed(()))
        })?;
    }
    Ok(())
}

/// The copy of the superblock that a block begins with, if it is intact and of this filesystem.
fn copy_in<'b>(bytes: &'b mut [u8], fs: &FsContext) -> Option<&'b mut DiskSuperblock> {
    let (copy, _) = DiskSuperblock::mut_from_prefix(bytes).ok()?;
    let is_ours = copy.magic.get() == SUPERBLOCK_MAGIC
        && copy.uuid == *fs.superblock.uuid.as_bytes()
        && (!copy.features().has_metadata_csum()
            || copy.checksum.get() == copy.expected_checksum());
    is_ours.then_some(copy)
}
