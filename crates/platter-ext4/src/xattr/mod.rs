//! Extended attributes of an inode: in the inode, in its attribute block, and values in EA inodes.
//! Spec: `ext4/attributes`.

mod acl;
mod names;
mod sharing;
mod ea_inode;
mod change;
mod set;

use platter_cache::Buffer;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use crate::FsContext;
use crate::ondisk::InodeFlags;
use crate::ondisk::features::Incompat;
use crate::ondisk::inode::Inode;
use crate::ondisk::xattr::{ValuePlace, XattrBlockVerifier, XattrEntry, XattrRule, XattrSpace};
use crate::quota::Charge;
use names::AttributeName;

pub use acl::AclRule;
pub use change::{Holding, Released, XattrChange, change_credits};
pub use ea_inode::EaInodeRule;
pub use set::{acl, inherit, remove_named, set_named, set_permissions};

/// Maximum size of a value in bytes (`XATTR_SIZE_MAX`).
pub const VALUE_BYTES_MAX: u32 = 64 << 10;

/// Returns the value of the attribute with this full name, such as `user.comment`. ACLs are
/// returned in the form of [`platter_vfs::PosixAcl`].
///
/// # Errors
/// `NoAttribute`; `NotSupported` for a prefix that ext4 does not know; `InvalidArgument` for a
/// prefix alone; `OutOfRange` for a name longer than 255 bytes; `TooBig` for a value beyond
/// [`VALUE_BYTES_MAX`].
pub fn get(fs: &FsContext, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    let name = AttributeName::parse(name)?;
    let mut corruption = None;
    // Corrupt in-inode attributes do not hide those in the block.
    match inode_space(fs, inode) {
        Ok(Some(space)) => {
            if let Some(entry) = space.find(name.index, name.rest) {
                return value(fs, inode, entry, true);
            }
        }
        Ok(None) => {}
        Err(error) => corruption = Some(error),
    }
    if let Some(block) = read_block(fs, inode)? {
        let space = block_space(fs, inode, &block)?;
        note_block(fs, inode, &block);
        if let Some(entry) = space.find(name.index, name.rest) {
            return value(fs, inode, entry, false);
        }
    }
    Err(corruption.unwrap_or(Condition::NoAttribute.into()))
}

/// Returns the full names of all attributes except internal ones, in the order they are stored.
pub fn list(fs: &FsContext, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    if let Some(space) = inode_space(fs, inode)? {
        names.extend(space.entries().iter().filter_map(full_name));
    }
    if let Some(block) = read_block(fs, inode)? {
        let space = block_space(fs, inode, &block)?;
        note_block(fs, inode, &block);
        names.extend(space.entries().iter().filter_map(full_name));
    }
    Ok(names)
}

/// Returns the sizes in bytes of the values that are in EA inodes.
///
/// # Errors
/// `Corrupt`.
pub fn values_outside(fs: &FsContext, inode: &Inode) -> Result<Vec<u32>> {
    let mut sizes = Vec::new();
    if !has_ea_inode(fs) || !inode.has_attributes() {
        return Ok(sizes);
    }
    let mut add = |space: &XattrSpace<'_>| {
        let entries = space.entries().iter();
        sizes.extend(entries.filter_map(|entry| match entry.value {
            ValuePlace::Inode { size_bytes, .. } => Some(size_bytes),
            ValuePlace::Here(_) => None,
        }));
    };
    if let Some(space) = inode_space(fs, inode)? {
        add(&space);
    }
    if let Some(block) = read_block(fs, inode)? {
        add(&block_space(fs, inode, &block)?);
    }
    Ok(sizes)
}

/// Returns the sectors of a value in an EA inode that count towards its owner's `i_blocks`.
#[must_use]
pub fn owner_sectors(fs: &FsContext, size_bytes: u64) -> u64 {
    let geometry = &fs.geometry;
    let cluster = u64::from(geometry.block_bytes).saturating_mul(geometry.cluster_blocks.into());
    size_bytes.next_multiple_of(cluster.max(1)) >> 9
}

/// Returns what an inode counts for. Where its attributes are corrupt, its EA inodes are left out.
/// An EA inode counts for nothing: the inodes with the attribute are charged for it.
#[must_use]
pub fn charge_of(fs: &FsContext, inode: &Inode) -> Charge {
    if inode.flags.contains(InodeFlags::EA_INODE) {
        return Charge::of(inode, 0).nothing();
    }
    let ea_inodes = match fs.quotas() {
        Some(_) => values_outside(fs, inode).map_or(0, |values| values.len() as u64),
        None => 0,
    };
    Charge::of(inode, ea_inodes)
}

/// Returns the in-inode attributes, if any.
fn inode_space<'a>(fs: &FsContext, inode: &'a Inode) -> Result<Option<XattrSpace<'a>>> {
    let Some(space) = XattrSpace::decode_inode(&inode.tail, has_ea_inode(fs)) else {
        return Ok(None);
    };
    Ok(Some(space.map_err(|broken| corrupt(inode, broken))?))
}

/// Reads the attribute block of an inode, if it has one.
fn read_block(fs: &FsContext, inode: &Inode) -> Result<Option<Buffer>> {
    let Some(block) = inode.xattr_block else {
        return Ok(None);
    };
    Ok(Some(fs.read_block(block, &block_verifier(fs))?))
}

/// Adds the block returned by [`read_block`] to the mbcache.
fn note_block(fs: &FsContext, inode: &Inode, bytes: &Buffer) {
    if let Some(block) = inode.xattr_block {
        sharing::note_block(fs, block, bytes);
    }
}

fn block_verifier(fs: &FsContext) -> XattrBlockVerifier {
    let geometry = &fs.geometry;
    let has_checksum = geometry.features.has_metadata_csum();
    XattrBlockVerifier {
        checksum_seed: has_checksum.then_some(geometry.checksum_seed),
        has_ea_inode: has_ea_inode(fs),
    }
}

/// Returns the attributes in the block returned by [`read_block`].
fn block_space<'a>(fs: &FsContext, inode: &Inode, block: &'a Buffer) -> Result<XattrSpace<'a>> {
    Ok(XattrSpace::decode_block(block, has_ea_inode(fs))
        .map_err(|broken| corrupt(inode, broken))?)
}

fn has_ea_inode(fs: &FsContext) -> bool {
    let incompat = fs.geometry.features.incompat;
    incompat.contains(Incompat::EA_INODE)
}

fn corrupt(inode: &Inode, (offset, rule): (usize, XattrRule)) -> Corrupt<XattrRule> {
    let locus = Locus::inode(u64::from(inode.number.get())).at_offset(offset as u64);
    Corrupt::new(locus, rule)
}

fn full_name(entry: &XattrEntry<'_>) -> Option<Vec<u8>> {
    names::full_name(entry.name_index, entry.name)
}

/// Returns the value, validated against the entry's hash if it has one: in-inode entries need none.
fn value(
    fs: &FsContext,
    inode: &Inode,
    entry: &XattrEntry<'_>,
    is_inside: bool,
) -> Result<Vec<u8>> {
    let stored = match entry.value {
        ValuePlace::Here(value) => {
            if !(is_inside && entry.hash == 0) {
                entry
                    .verify_hash(value)
                    .map_err(|rule| corrupt(inode, (entry.offset, rule)))?;
            }
            value.to_vec()
        }
        ValuePlace::Inode { number, size_bytes } => {
            ea_inode::read(fs, inode, entry, number, size_bytes)?
        }
    };
    if names::is_acl(entry.name_index) {
        return acl::to_attribute(inode, &stored);
    }
    Ok(stored)
}

#[cfg(test)]
mod tests;
