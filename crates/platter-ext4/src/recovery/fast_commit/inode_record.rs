//! The bytes of an inode as a record has them, merged into its slot. Records lack the block mapping,
//! which other records change, and the attributes in the inode, which none changes.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result};
use zerocopy::FromBytes;

use super::apply::{Apply, Mapped};
use super::{entries, ranges, records};
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::INLINE_DATA_NAME;
use crate::ondisk::extent::{encode_node, node_capacity};
use crate::ondisk::inode::{BLOCK_AREA_BYTES, DiskInode, DiskInodeExtra};
use crate::ondisk::jbd2::fast_commit::FastCommitRule;
use crate::ondisk::xattr::remove_from_inode;
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};
use crate::orphan::ORPHAN_CREDITS;

pub(super) fn replay(apply: &mut Apply<'_>, number: InodeNr, raw: &[u8]) -> Result<()> {
    let Some((group, _)) = apply.fs.geometry.group_of_inode(number) else {
        let locus = Locus::inode(u64::from(number.get()));
        return Err(Corrupt::new(locus, FastCommitRule::Inode).into());
    };
    let Ok((new, _)) = DiskInode::ref_from_prefix(raw) else {
        return Ok(());
    };
    let holds_value = new.flags.get() & InodeFlags::EA_INODE.bits() != 0;
    if holds_value || inode::is_reserved(apply.fs, number) {
        return Ok(());
    }
    let old = apply.in_use(number)?;
    let is_same = |old: &Inode| old.generation == new.generation.get();
    let keeps = old.as_ref().is_some_and(is_same);
    let is_directory = kind_of(new) == Some(FileKind::Directory);
    if number == InodeNr::ROOT && !(keeps && is_directory) {
        let locus = Locus::inode(u64::from(number.get()));
        return Err(Corrupt::new(locus, FastCommitRule::Root).into());
    }
    // The record of its last name came before; a file of `O_TMPFILE` may get its first one later.
    let may_get_name = keeps && apply.register.contains(number) && apply.unnamed(number)?.is_some();
    if new.links.get() == 0 && !may_get_name {
        apply.gone.insert(number);
        if keeps {
            apply.awaited.forget(number);
        } else {
            if old.is_some() {
                drop_ranges_of_another(apply, number)?;
            }
            apply.awaited.pass_by(number, new.generation.get());
        }
        return Ok(());
    }
    let awaiting = if keeps {
        apply.awaited.forget(number)
    } else {
        apply.awaited.take(number, new.generation.get())?
    };
    apply.gone.remove(&number);
    if new.links.get() > 0 {
        apply.doomed.remove(&number);
    }
    if !keeps {
        apply.incomplete.remove(&number);
    }
    apply.touch(number)?;
    if let Some(old) = old {
        if old.kind == FileKind::Directory {
            apply.groups.insert(group);
        }
        let (mapping, new_mapping) = (Mapping::of_inode(&old), Mapping::of(new));
        if !keeps {
            entries::empty(apply, old)?;
        } else if mapping.is_some() && mapping != new_mapping {
            let mut file = Mapped::new(apply.fs, old)?;
            ranges::unmap(apply, &mut file, FileBlock(0)..FileBlock::MAX)?;
        }
    }
    if !keeps {
        // Before its link to the next orphan is overwritten.
        apply.ensure(ORPHAN_CREDITS)?;
        apply.register.remove(apply.fs, &mut apply.handle, number)?;
    }
    apply.take_inode(number, is_directory)?;
    apply.ensure(STORE_CREDITS)?;
    inode::edit_bytes(apply.fs, &mut apply.handle, number, |slot| {
        merge(slot, raw, keeps);
    })?;
    let Some(inode) = inode::find(apply.fs, number)? else {
        return Ok(());
    };
    // For the first file of 2 GiB.
    inode::store(apply.fs, &mut apply.handle, &inode)?;
    if keeps {
        return Ok(());
    }
    for record in awaiting.records() {
        records::dispatch(apply, &record)?;
    }
    if awaiting.has_names() {
        apply.doomed.remove(&number);
        apply.edit(number, |inode| inode.links = new.links.get().into())?;
    }
    Ok(())
}

/// Unmaps what the last records mapped in an inode that was not theirs: it is removed, or made by later
/// records, which map its blocks again.
fn drop_ranges_of_another(apply: &mut Apply<'_>, number: InodeNr) -> Result<()> {
    for (first, len) in apply.awaited.last_ranges(number) {
        ranges::delete(apply, number, first, len)?;
    }
    Ok(())
}

/// Fills the slot of an inode from the bytes of a record. An inode that `is_same` keeps its mapping
/// and its place among the orphans; another one begins without.
fn merge(slot: &mut [u8], raw: &[u8], is_same: bool) {
    let old = DiskInode::read_from_prefix(slot).ok().map(|(old, _)| old);
    let old = old.filter(|_| is_same);
    if old.is_none() {
        slot.fill(0);
    }
    if let Some(bytes) = slot.get_mut(..raw.len()) {
        bytes.copy_from_slice(raw);
    }
    let Ok((disk, rest)) = DiskInode::mut_from_prefix(slot) else {
        return;
    };
    disk.deleted = old.map_or(0.into(), |old| old.deleted);
    let flags = flags_of(disk);
    let Some(mapping) = Mapping::of(disk) else {
        return;
    };
    let old_flags = old.as_ref().map(flags_of);
    let was_inline = old_flags.is_some_and(|flags| flags.contains(InodeFlags::INLINE_DATA));
    if was_inline {
        let fields = DiskInodeExtra::ref_from_prefix(rest);
        let in_use = fields.map_or(0, |(fields, _)| usize::from(fields.extra_size.get()));
        let tail = rest.get_mut(in_use..).unwrap_or_default();
        remove_from_inode(tail, INLINE_DATA_NAME.0, INLINE_DATA_NAME.1);
    }
    let has_map = |old: &DiskInode| Mapping::of(old) == Some(mapping);
    let Some(old) = old.filter(has_map) else {
        disk.block = empty_map(flags);
        return;
    };
    disk.block = old.block;
    if kind_of(disk) == Some(FileKind::Directory) {
        // As long as its blocks: names are in no other record than those that add them again.
        (disk.size_lo, disk.size_hi) = (old.size_lo, old.size_hi);
        let index = flags_of(&old) & InodeFlags::INDEX;
        disk.flags = (flags.difference(InodeFlags::INDEX) | index).bits().into();
    }
}

/// Returns the type of an inode.
fn kind_of(disk: &DiskInode) -> Option<FileKind> {
    FileKind::from_mode(u32::from(disk.mode.get()))
}

fn flags_of(disk: &DiskInode) -> InodeFlags {
    InodeFlags::from_bits_retain(disk.flags.get())
}

/// What `i_block` is if it is a block mapping: of which file type, and whether by extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    kind: Option<FileKind>,
    has_extents: bool,
}

impl Mapping {
    fn of(disk: &DiskInode) -> Option<Self> {
        Self::with(kind_of(disk), flags_of(disk), disk.size_lo.get())
    }

    fn of_inode(inode: &Inode) -> Option<Self> {
        // Only that of a short symbolic link matters.
        let size_lo = u32::try_from(inode.size_bytes).unwrap_or(u32::MAX);
        Self::with(Some(inode.kind), inode.flags, size_lo)
    }

    /// Returns `None` for inline data, the target of a fast symbolic link, a device number.
    fn with(kind: Option<FileKind>, flags: InodeFlags, size_lo: u32) -> Option<Self> {
        let has_extents = flags.contains(InodeFlags::EXTENTS);
        let has_contents = match kind {
            Some(FileKind::Symlink) => (size_lo as usize) < BLOCK_AREA_BYTES && !has_extents,
            Some(FileKind::CharDevice | FileKind::BlockDevice) => true,
            Some(FileKind::Regular | FileKind::Directory | FileKind::Fifo | FileKind::Socket)
            | None => false,
        };
        let is_mapping = !has_contents && !flags.contains(InodeFlags::INLINE_DATA);
        is_mapping.then_some(Self { kind, has_extents })
    }
}

/// Returns the `i_block` of an empty file.
fn empty_map(flags: InodeFlags) -> [u8; BLOCK_AREA_BYTES] {
    let mut block = [0; BLOCK_AREA_BYTES];
    if flags.contains(InodeFlags::EXTENTS) {
        encode_node(&mut block, 0, node_capacity(BLOCK_AREA_BYTES), &[]);
    }
    block
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    /// An inode of this mode, with these flags and `i_block` full of `fill`.
    fn inode(mode: u16, flags: InodeFlags, fill: u8) -> DiskInode {
        let mut disk = DiskInode::new_zeroed();
        disk.mode = mode.into();
        disk.flags = flags.bits().into();
        disk.block = [fill; BLOCK_AREA_BYTES];
        disk
    }

    fn merged(old: &DiskInode, new: &DiskInode, is_same: bool) -> DiskInode {
        let mut slot = [old.as_bytes(), &[7; 128]].concat();
        merge(&mut slot, new.as_bytes(), is_same);
        let expected = if is_same { 7 } else { 0 };
        assert!(slot[128..].iter().all(|&byte| byte == expected));
        DiskInode::read_from_prefix(&slot).unwrap().0
    }

    #[test]
    fn mapping_stays_with_the_inode_it_belongs_to() {
        let extents = InodeFlags::EXTENTS;
        let (old, new) = (inode(0o10_0644, extents, 1), inode(0o10_0600, extents, 2));
        let same = merged(&old, &new, true);
        assert_eq!((same.mode.get(), same.block), (0o10_0600, [1; 60]));
        assert_eq!(merged(&old, &new, false).block, empty_map(extents));
        let indirect = inode(0o10_0600, InodeFlags::empty(), 2);
        assert_eq!(merged(&old, &indirect, true).block, [0; 60]);
        // A device number is in the record.
        let device = inode(0o02_0600, InodeFlags::empty(), 3);
        assert_eq!(merged(&old, &device, true).block, [3; 60]);
    }

    #[test]
    fn target_outside_the_inode_keeps_its_mapping() {
        let link = |len: u32, fill| {
            let mut disk = inode(0o12_0777, InodeFlags::empty(), fill);
            disk.size_lo = len.into();
            disk
        };
        assert_eq!(merged(&link(60, 1), &link(60, 2), true).block, [1; 60]);
        assert_eq!(merged(&link(60, 1), &link(59, 2), true).block, [2; 60]);
        // What was a target, or the mapping of another file, is no mapping of this one.
        assert_eq!(merged(&link(59, 1), &link(60, 2), true).block, [0; 60]);
        let file = inode(0o10_0644, InodeFlags::empty(), 1);
        assert_eq!(merged(&file, &link(60, 2), true).block, [0; 60]);
    }

    #[test]
    fn directory_keeps_the_size_of_its_blocks() {
        let index = InodeFlags::EXTENTS | InodeFlags::INDEX;
        let mut old = inode(0o04_0755, InodeFlags::EXTENTS, 1);
        let mut new = inode(0o04_0700, index, 2);
        (old.size_lo, new.size_lo) = (4096.into(), 8192.into());
        let same = merged(&old, &new, true);
        assert_eq!(same.size_lo.get(), 4096);
        assert_eq!(flags_of(&same), InodeFlags::EXTENTS);
    }

    #[test]
    fn place_among_the_orphans_stays() {
        let mut old = inode(0o10_0644, InodeFlags::EXTENTS, 1);
        let mut new = old;
        (old.deleted, new.deleted) = (15.into(), 16.into());
        assert_eq!(merged(&old, &new, true).deleted.get(), 15);
        assert_eq!(merged(&old, &new, false).deleted.get(), 0);
    }
}
