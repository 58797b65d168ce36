//! Inodes in memory: found in their table, read, and shown as attributes.

mod attr;
mod store;

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;

use crate::FsContext;
use crate::groups;
use crate::ondisk::inode::InodeRule;
use crate::ondisk::{Geometry, Inode, InodeFlags, InodeNr};

pub use attr::attr;
pub use store::{
    STORE_CREDITS, edit, edit_bytes, edit_or_keep, initialize, join_slot, read_slot, store,
    store_deleted, store_deletion,
};

rules! {
    /// What every number of an inode must hold to, wherever it comes from.
    pub enum InodeNumberRule of "inode number" {
        /// There are that many inodes.
        OutOfRange => "is beyond the last inode",
        /// It is not an inode that the filesystem keeps for itself.
        Reserved => "is reserved for the filesystem",
        /// It is in use.
        Deleted => "is of a deleted inode",
        /// It does not hold the value of an attribute.
        AttributeValue => "is of an inode that holds an attribute value",
        /// It is not that of a directory in itself.
        Itself => "is of a directory that lies in itself",
    }
}

/// The inode with this number, whatever its use; it may have no links.
pub fn read(fs: &FsContext, number: InodeNr) -> Result<Inode> {
    find(fs, number)?.ok_or_else(|| {
        let locus = Locus::inode(u64::from(number.get()));
        match fs.geometry.group_of_inode(number) {
            Some(_) => Corrupt::new(locus, InodeRule::Unused).into(),
            None => Corrupt::new(locus, InodeNumberRule::OutOfRange).into(),
        }
    })
}

/// The inode with this number; `None` if there is no such number, or it is not in use.
pub fn find(fs: &FsContext, number: InodeNr) -> Result<Option<Inode>> {
    find_with(fs, number, Inode::decode)
}

/// Like [`find`], without verifying the checksum: for an inode that will be stored with a new one.
pub fn find_unsummed(fs: &FsContext, number: InodeNr) -> Result<Option<Inode>> {
    find_with(fs, number, Inode::decode_unsummed)
}

fn find_with(
    fs: &FsContext,
    number: InodeNr,
    decode: impl FnOnce(&[u8], InodeNr, &Geometry) -> Result<Inode, Corrupt<InodeRule>>,
) -> Result<Option<Inode>> {
    let Some(slot) = groups::find_inode(fs, number)? else {
        return Ok(None);
    };
    if !fs.buffers().contains(slot.block.0) {
        groups::read_inodes_ahead(fs, number)?;
    }
    // Inodes of one block are validated one by one, so that a corrupt one does not affect the others.
    let buffer = fs.read_block(slot.block, &Unverified)?;
    let bytes = buffer.get(slot.offset..).unwrap_or_default();
    match decode(bytes, number, &fs.geometry) {
        Err(corrupt) if corrupt.rule == InodeRule::Unused => Ok(None),
        decoded => Ok(Some(decoded?)),
    }
}

/// Whether no directory may name this inode: it is one of the filesystem's own.
#[must_use]
pub fn is_reserved(fs: &FsContext, number: InodeNr) -> bool {
    let superblock = &fs.superblock;
    let own = [superblock.orphan_file_inode, superblock.journal_inode];
    let own = own.iter().chain(&superblock.quota_inodes);
    fs.geometry.is_reserved(number) || own.flatten().any(|&special| special == number)
}

/// Why a directory must not name an inode that is not [reserved](is_reserved), if it must not.
#[must_use]
pub fn unfit_to_name(inode: &Inode) -> Option<InodeNumberRule> {
    if inode.links == 0 {
        Some(InodeNumberRule::Deleted)
    } else if inode.flags.contains(InodeFlags::EA_INODE) {
        Some(InodeNumberRule::AttributeValue)
    } else {
        None
    }
}
