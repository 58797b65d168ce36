//! EA inodes: each holds an attribute value too large for an attribute block, and has no directory
//! entry. Spec: `ext4/attributes` (attribute value inodes).

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, FileKind, Result};

use super::{VALUE_BYTES_MAX, sharing};
use crate::FsContext;
use crate::inode;
use crate::mapping::{Backing, BlockMap};
use crate::ondisk::xattr::{XattrEntry, value_hash};
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};

rules! {
    /// The rules of an EA inode.
    pub enum EaInodeRule of "EA inode" {
        /// It is not the inode that has the attribute.
        Owner => "EA inode is its own parent inode",
        /// It is a regular file with the flag `EA_INODE`.
        Flag => "missing EA_INODE flag",
        /// It has no attributes itself.
        Attributes => "EA inode has extended attributes",
        /// Its size is the size of the value.
        Size => "i_size is not the size of the value",
        /// The value's hash matches the inode's, and the entry's.
        Hash => "value hash does not match",
        /// Its reference count is not zero.
        References => "invalid EA inode ref count",
    }
}

/// Returns the value of `entry`, an attribute of `owner`.
pub(super) fn read(
    fs: &FsContext,
    owner: &Inode,
    entry: &XattrEntry<'_>,
    number: InodeNr,
    size_bytes: u32,
) -> Result<Vec<u8>> {
    let broken = |rule| Corrupt::new(Locus::inode(u64::from(number.get())), rule);
    if number == owner.number {
        return Err(broken(EaInodeRule::Owner).into());
    }
    let ea_inode = inode::read(fs, number)?;
    if ea_inode.kind != FileKind::Regular || !ea_inode.flags.contains(InodeFlags::EA_INODE) {
        return Err(broken(EaInodeRule::Flag).into());
    }
    if ea_inode.xattr_block.is_some() {
        return Err(broken(EaInodeRule::Attributes).into());
    }
    if ea_inode.size_bytes != u64::from(size_bytes) {
        return Err(broken(EaInodeRule::Size).into());
    }
    if size_bytes > VALUE_BYTES_MAX {
        return Err(Condition::TooBig.into());
    }
    let value = contents(fs, &ea_inode, size_bytes)?;
    if !hash_matches(fs, owner, &ea_inode, entry, &value) {
        return Err(broken(EaInodeRule::Hash).into());
    }
    let hash = value_hash(fs.geometry.checksum_seed, &value);
    if stored_hash(&ea_inode) == hash {
        sharing::note_value(fs, number, hash, &value);
    }
    Ok(value)
}

/// Whether the EA inode `number` has this value. Its reference count is not checked.
pub(super) fn holds(fs: &FsContext, number: InodeNr, hash: u32, value: &[u8]) -> Result<bool> {
    let ea_inode = inode::read(fs, number)?;
    let is_like_it = ea_inode.kind == FileKind::Regular
        && ea_inode.flags.contains(InodeFlags::EA_INODE)
        && ea_inode.xattr_block.is_none()
        && ea_inode.size_bytes == value.len() as u64
        && stored_hash(&ea_inode) == hash;
    let Ok(size_bytes) = u32::try_from(value.len()) else {
        return Ok(false);
    };
    Ok(is_like_it && contents(fs, &ea_inode, size_bytes)? == value)
}

/// Returns the hash of the value, stored in the access time.
pub(super) fn stored_hash(ea_inode: &Inode) -> u32 {
    let low_half = ea_inode.accessed.seconds.cast_unsigned() & u64::from(u32::MAX);
    u32::try_from(low_half).unwrap_or_default()
}

/// Reads the value. Its blocks are metadata: the newest versions may not be checkpointed yet.
fn contents(fs: &FsContext, ea_inode: &Inode, size_bytes: u32) -> Result<Vec<u8>> {
    let map = BlockMap::decode(fs, ea_inode)?;
    let block_bytes = fs.geometry.block_bytes;
    let count = size_bytes.div_ceil(block_bytes);
    let mut value = Vec::with_capacity(size_bytes as usize);
    for block in 0..count {
        let run = map.lookup(fs, FileBlock(block))?;
        match run.backing {
            Backing::Written(start) => {
                fs.read_ahead_of(start, start, run.count.min(count - block));
                value.extend_from_slice(&fs.read_block(start, &Unverified)?);
            }
            Backing::Hole | Backing::Unwritten(_) => {
                value.resize(value.len() + block_bytes as usize, 0);
            }
        }
    }
    value.truncate(size_bytes as usize);
    Ok(value)
}

/// Whether the hash matches; it is stored in the access time. A Lustre EA inode has no hash, but
/// the number and generation of its owner.
fn hash_matches(
    fs: &FsContext,
    owner: &Inode,
    ea_inode: &Inode,
    entry: &XattrEntry<'_>,
    value: &[u8],
) -> bool {
    let low_half = |seconds: i64| seconds.cast_unsigned() & u64::from(u32::MAX);
    let hash = value_hash(fs.geometry.checksum_seed, value);
    if stored_hash(ea_inode) == hash {
        return entry.verify_hash_of_inode(hash).is_ok();
    }
    low_half(ea_inode.modified.seconds) == u64::from(owner.number.get())
        && ea_inode.generation == owner.generation
}
