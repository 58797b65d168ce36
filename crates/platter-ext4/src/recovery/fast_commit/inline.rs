//! Converts an inline directory to blocks, so that entries can be added and removed as in any
//! other. That is always valid, and the kernel does so when an inode is full.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result};
use zerocopy::FromBytes;

use super::inode_slot;
use super::names::Names;
use super::space::ReplayAllocator;
use crate::FsContext;
use crate::mapping::InlineData;
use crate::ondisk::dir_entry::EntryFormat;
use crate::ondisk::inode::{DiskInode, DiskInodeExtra};
use crate::ondisk::jbd2::fast_commit::FastCommitRule;
use crate::ondisk::xattr::remove_from_inode;
use crate::ondisk::{Inode, InodeFlags, InodeNr};

/// The attribute with inline data beyond `i_block`: `system.data`.
const INLINE_DATA_NAME: (u8, &[u8]) = (7, b"data");

/// A name and its inode.
type NamedInode = (Vec<u8>, InodeNr, FileKind);

/// Returns the directory converted to a block.
pub(super) fn expand(fs: &FsContext, space: &ReplayAllocator<'_>, inode: &Inode) -> Result<Inode> {
    let number = inode.number;
    let gone = Corrupt::new(
        Locus::inode(u64::from(number.get())),
        FastCommitRule::Parent,
    );
    let (parent, entries) = contents(fs, inode)?;
    let parent = parent.ok_or(gone)?;
    clear(fs, number)?;
    let emptied = inode_slot::find(fs, number)?.ok_or(gone)?;
    let mut names = Names::open(fs, space, emptied)?;
    names.begin(parent)?;
    for (name, target, kind) in entries {
        names.insert(&name, target, kind)?;
    }
    Ok(inode_slot::find(fs, number)?.ok_or(gone)?)
}

fn contents(fs: &FsContext, inode: &Inode) -> Result<(Option<InodeNr>, Vec<NamedInode>)> {
    let data = InlineData::decode(inode, &fs.geometry)?;
    let (parent, area) = data.first.split_at(size_of::<u32>());
    let parent = zerocopy::little_endian::U32::read_from_bytes(parent);
    let parent = parent.ok().and_then(|parent| InodeNr::new(parent.get()));
    let format = EntryFormat::new(&fs.geometry, false);
    let mut names = Vec::new();
    for region in [area, data.rest] {
        for entry in format.entries(region).map_while(std::result::Result::ok) {
            let Some(target) = entry.inode else {
                continue;
            };
            let kind = match entry.kind {
                Some(kind) => Some(kind),
                None => inode_slot::find(fs, target)?.map(|inode| inode.kind),
            };
            names.push((
                entry.name.to_vec(),
                target,
                kind.unwrap_or(FileKind::Regular),
            ));
        }
    }
    Ok((parent, names))
}

/// Removes the contents of the inode.
fn clear(fs: &FsContext, number: InodeNr) -> Result<()> {
    let mut bytes = inode_slot::read(fs, number)?;
    let Ok((disk, rest)) = DiskInode::mut_from_prefix(&mut bytes) else {
        return Ok(());
    };
    let mut flags = InodeFlags::from_bits_retain(disk.flags.get());
    flags.remove(InodeFlags::INLINE_DATA);
    flags.insert(InodeFlags::EXTENTS);
    disk.flags = flags.bits().into();
    disk.size_lo = 0.into();
    disk.size_hi = 0.into();
    disk.block = inode_slot::empty_map(flags);
    let extra_bytes = DiskInodeExtra::ref_from_prefix(rest)
        .map_or(0, |(extra, _)| usize::from(extra.extra_size.get()));
    if let Some(tail) = rest.get_mut(extra_bytes..) {
        remove_from_inode(tail, INLINE_DATA_NAME.0, INLINE_DATA_NAME.1);
    }
    inode_slot::write(fs, number, &mut bytes)
}
