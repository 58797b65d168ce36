//! Values too large for an attribute block: each is the contents of an inode that no directory
//! names. Spec: `ext4/attributes` (attribute value inodes).

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus, Rule};
use platter_vfs::{Condition, FileKind, Result};

use super::{VALUE_BYTES_MAX, sharing};
use crate::Volume;
use crate::inode;
use crate::mapping::{Backing, BlockMap};
use crate::ondisk::xattr::{XattrEntry, value_hash};
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};

/// What an inode that holds a value must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueInodeRule {
    /// It is not the inode whose attribute it holds.
    Owner,
    /// It is a regular file with the flag `EA_INODE`.
    Flag,
    /// It has no attributes itself.
    Attributes,
    /// Its size is that of the value.
    Size,
    /// The value's hash is the inode's, and the entry's.
    Hash,
    /// It is counted that somebody uses it.
    References,
}

impl Rule for ValueInodeRule {
    const STRUCTURE: &'static str = "attribute value inode";

    fn text(self) -> &'static str {
        match self {
            Self::Owner => "is the inode whose attribute it holds",
            Self::Flag => "is not flagged as one",
            Self::Attributes => "has attributes itself",
            Self::Size => "size is not that of the value",
            Self::Hash => "hash of the value does not match",
            Self::References => "count of its users is impossible",
        }
    }
}

/// The value of `entry`, an attribute of `owner`.
pub(super) fn read(
    volume: &Volume,
    owner: &Inode,
    entry: &XattrEntry<'_>,
    number: InodeNr,
    size_bytes: u32,
) -> Result<Vec<u8>> {
    let broken = |rule| Corrupt::new(Locus::inode(u64::from(number.get())), rule);
    if number == owner.number {
        return Err(broken(ValueInodeRule::Owner).into());
    }
    let holder = inode::read(volume, number)?;
    if holder.kind != FileKind::Regular || !holder.flags.contains(InodeFlags::EA_INODE) {
        return Err(broken(ValueInodeRule::Flag).into());
    }
    if holder.xattr_block.is_some() {
        return Err(broken(ValueInodeRule::Attributes).into());
    }
    if holder.size_bytes != u64::from(size_bytes) {
        return Err(broken(ValueInodeRule::Size).into());
    }
    if size_bytes > VALUE_BYTES_MAX {
        return Err(Condition::TooBig.into());
    }
    let value = contents(volume, &holder, size_bytes)?;
    if !is_proven(volume, owner, &holder, entry, &value) {
        return Err(broken(ValueInodeRule::Hash).into());
    }
    let hash = value_hash(volume.geometry.checksum_seed, &value);
    if stored_hash(&holder) == hash {
        sharing::note_value(volume, number, hash, &value);
    }
    Ok(value)
}

/// Whether the inode `number` holds this value. Its users are not counted.
pub(super) fn holds(volume: &Volume, number: InodeNr, hash: u32, value: &[u8]) -> Result<bool> {
    let holder = inode::read(volume, number)?;
    let is_like_it = holder.kind == FileKind::Regular
        && holder.flags.contains(InodeFlags::EA_INODE)
        && holder.xattr_block.is_none()
        && holder.size_bytes == value.len() as u64
        && stored_hash(&holder) == hash;
    let Ok(size_bytes) = u32::try_from(value.len()) else {
        return Ok(false);
    };
    Ok(is_like_it && contents(volume, &holder, size_bytes)? == value)
}

/// The hash of the value, which stands in the place of the access time.
pub(super) fn stored_hash(holder: &Inode) -> u32 {
    let low_half = holder.accessed.seconds.cast_unsigned() & u64::from(u32::MAX);
    u32::try_from(low_half).unwrap_or_default()
}

/// The blocks of a value are metadata: the newest of them may not have come home yet.
fn contents(volume: &Volume, holder: &Inode, size_bytes: u32) -> Result<Vec<u8>> {
    let map = BlockMap::decode(volume, holder)?;
    let block_bytes = volume.geometry.block_bytes;
    let count = size_bytes.div_ceil(block_bytes);
    let mut value = Vec::with_capacity(size_bytes as usize);
    for block in 0..count {
        let run = map.lookup(volume, FileBlock(block))?;
        match run.backing {
            Backing::Written(start) => {
                volume.read_ahead_of(start, start, run.count.min(count - block));
                value.extend_from_slice(&volume.read_block(start, &Unverified)?);
            }
            Backing::Hole | Backing::Unwritten(_) => {
                value.resize(value.len() + block_bytes as usize, 0);
            }
        }
    }
    value.truncate(size_bytes as usize);
    Ok(value)
}

/// The hash of the value stands in the place of the access time. An inode made by Lustre has no
/// hash, but the number and generation of its owner.
fn is_proven(
    volume: &Volume,
    owner: &Inode,
    holder: &Inode,
    entry: &XattrEntry<'_>,
    value: &[u8],
) -> bool {
    let low_half = |seconds: i64| seconds.cast_unsigned() & u64::from(u32::MAX);
    let hash = value_hash(volume.geometry.checksum_seed, value);
    if stored_hash(holder) == hash {
        return entry.verify_hash_of_inode(hash).is_ok();
    }
    low_half(holder.modified.seconds) == u64::from(owner.number.get())
        && holder.generation == owner.generation
}
