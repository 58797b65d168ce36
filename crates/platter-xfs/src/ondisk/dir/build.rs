//! Directory blocks of version 5 as they are stored: built, and changed in place.
//! Spec: `xfs/directories`.

use platter_ondisk::endian::{Be16, Be32, Be64};
use platter_vfs::FileKind;
use zerocopy::{FromBytes, IntoBytes};

use super::data::{
    DataKind, DirData, DiskBestFree, DiskBlockTail, DiskDataHeaderV5, DiskDirHeaderV5,
    DiskEntryStart, DiskUnused, entry_bytes, header_bytes,
};
use super::free::{self, DiskFreeCounts};
use super::leaf::{DiskLeafCounts, DiskLeafEntry};
use super::stored_kind;
use crate::ondisk::da::{DaKind, DaLinks, DiskDaEntry, DiskDaHeaderV5, DiskDaNodeCounts};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::identity::Site;
use crate::ondisk::types::InodeNr;

const FREE_TAG: u16 = 0xffff;
/// Header, counts and padding of a leaf, a node or a free index.
const INDEX_HEADER: usize = 64;
const PADDING: usize = 4;
const TAIL: usize = size_of::<DiskBlockTail>();
const LEAF_ENTRY: usize = size_of::<DiskLeafEntry>();

/// A leaf entry: the hash of a name, and where its entry lies in units of 8 bytes.
pub type HashEntry = (u32, u32);

/// The most entries of a leaf that is one of several.
#[must_use]
pub fn leaf_entries_max(geometry: &Geometry) -> usize {
    index_bytes(geometry).checked_div(LEAF_ENTRY).unwrap_or(0)
}

/// The most entries of the only leaf, next to so many free regions.
#[must_use]
pub fn single_leaf_entries_max(geometry: &Geometry, bests: usize) -> usize {
    let bests = bests
        .saturating_mul(size_of::<Be16>())
        .saturating_add(PADDING);
    let left = index_bytes(geometry).saturating_sub(bests);
    left.checked_div(LEAF_ENTRY).unwrap_or(0)
}

/// The most entries of a node.
#[must_use]
pub fn node_entries_max(geometry: &Geometry) -> usize {
    index_bytes(geometry)
        .checked_div(size_of::<DiskDaEntry>())
        .unwrap_or(0)
}

/// The most blocks of entries that a free index is of.
#[must_use]
pub fn free_entries_max(geometry: &Geometry) -> usize {
    index_bytes(geometry)
        .checked_div(size_of::<Be16>())
        .unwrap_or(0)
}

fn dir_bytes(geometry: &Geometry) -> usize {
    usize::try_from(geometry.dir_block_bytes()).unwrap_or_default()
}

fn index_bytes(geometry: &Geometry) -> usize {
    dir_bytes(geometry).saturating_sub(INDEX_HEADER)
}

fn directory_header(header: &mut DiskDirHeaderV5, magic: u32, site: &Site<'_>) {
    header.magic.set(magic);
    header.block.set(site.at.0);
    header.uuid = *site.geometry.meta_uuid.as_bytes();
    header.owner.set(site.owner);
}

/// The header of a block of the hash tree; the rest of the block follows the counts and the padding.
fn tree_block(kind: DaKind, links: DaLinks, counts: [u16; 2], site: &Site<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; dir_bytes(site.geometry)];
    let (header, rest) = DiskDaHeaderV5::mut_from_prefix(&mut bytes).ok()?;
    header.common.magic.set(kind.magic(true));
    header.common.next.set(links.next.unwrap_or(0));
    header.common.previous.set(links.previous.unwrap_or(0));
    header.block.set(site.at.0);
    header.uuid = *site.geometry.meta_uuid.as_bytes();
    header.owner.set(site.owner);
    let [first, second] = counts;
    if kind == DaKind::Node {
        let (disk, _) = DiskDaNodeCounts::mut_from_prefix(rest).ok()?;
        disk.count.set(first);
        disk.level.set(second);
    } else {
        let (disk, _) = DiskLeafCounts::mut_from_prefix(rest).ok()?;
        disk.count.set(first);
        disk.stale.set(second);
    }
    Some(bytes)
}

fn put_pairs(bytes: &mut [u8], at: usize, pairs: &[(u32, u32)]) -> Option<()> {
    let slots = bytes.get_mut(at..)?.chunks_exact_mut(LEAF_ENTRY);
    let mut count = 0_usize;
    for (slot, &(hash, value)) in slots.zip(pairs) {
        let pair = DiskLeafEntry {
            hash: hash.into(),
            address: value.into(),
        };
        slot.copy_from_slice(pair.as_bytes());
        count = count.checked_add(1)?;
    }
    (count == pairs.len()).then_some(())
}

/// A leaf that is one of several.
#[must_use]
pub fn leaf(entries: &[HashEntry], links: DaLinks, site: &Site<'_>) -> Option<Vec<u8>> {
    let count = u16::try_from(entries.len()).ok()?;
    let mut bytes = tree_block(DaKind::DirLeafN, links, [count, 0], site)?;
    put_pairs(&mut bytes, INDEX_HEADER, entries)?;
    Some(bytes)
}

/// The only leaf, with the longest free region of each block of entries.
#[must_use]
pub fn single_leaf(entries: &[HashEntry], bests: &[u16], site: &Site<'_>) -> Option<Vec<u8>> {
    if entries.len() > single_leaf_entries_max(site.geometry, bests.len()) {
        return None;
    }
    let links = DaLinks {
        next: None,
        previous: None,
    };
    let count = u16::try_from(entries.len()).ok()?;
    let mut bytes = tree_block(DaKind::DirLeaf1, links, [count, 0], site)?;
    put_pairs(&mut bytes, INDEX_HEADER, entries)?;
    let (rest, tail) = Be32::mut_from_suffix(&mut bytes).ok()?;
    tail.set(u32::try_from(bests.len()).ok()?);
    let (_, slots) = <[Be16]>::mut_from_suffix_with_elems(rest, bests.len()).ok()?;
    for (slot, best) in slots.iter_mut().zip(bests) {
        slot.set(*best);
    }
    Some(bytes)
}

/// A node: the greatest hash below each child, and the child.
#[must_use]
pub fn node(
    children: &[(u32, u32)],
    level: u16,
    links: DaLinks,
    site: &Site<'_>,
) -> Option<Vec<u8>> {
    let count = u16::try_from(children.len()).ok()?;
    let mut bytes = tree_block(DaKind::Node, links, [count, level], site)?;
    put_pairs(&mut bytes, INDEX_HEADER, children)?;
    Some(bytes)
}

/// A free index whose first value is of the block of entries `first`.
#[must_use]
pub fn free_index(first: u32, bests: &[u16], site: &Site<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; dir_bytes(site.geometry)];
    let (header, rest) = DiskDirHeaderV5::mut_from_prefix(&mut bytes).ok()?;
    directory_header(header, free::magic(true), site);
    let (counts, rest) = DiskFreeCounts::mut_from_prefix(rest).ok()?;
    let used = bests.iter().filter(|&&best| best != free::NO_FREE).count();
    counts.first.set(first);
    counts.valid.set(u32::try_from(bests.len()).ok()?);
    counts.used.set(u32::try_from(used).ok()?);
    let rest = rest.get_mut(PADDING..)?;
    let (slots, _) = <[Be16]>::mut_from_prefix_with_elems(rest, bests.len()).ok()?;
    for (slot, best) in slots.iter_mut().zip(bests) {
        slot.set(*best);
    }
    Some(bytes)
}

/// A block of entries that has none.
#[must_use]
pub fn empty_data(kind: DataKind, site: &Site<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; dir_bytes(site.geometry)];
    let (header, _) = DiskDataHeaderV5::mut_from_prefix(&mut bytes).ok()?;
    directory_header(&mut header.common, kind.magic(true), site);
    let mut end = bytes.len();
    if kind == DataKind::Single {
        end = end.checked_sub(TAIL)?;
    }
    let start = header_bytes(site.geometry);
    put_free(&mut bytes, start, end.checked_sub(start)?)?;
    note_best(&mut bytes, kind, site.geometry)?;
    Some(bytes)
}

/// What a block of entries has.
fn view<'b>(bytes: &'b [u8], kind: DataKind, geometry: &'b Geometry) -> Option<DirData<'b>> {
    DirData::decode(bytes, kind, &Site::verified(geometry, 0)).ok()
}

/// Where the entries of a block end.
#[must_use]
pub fn data_end(bytes: &[u8], kind: DataKind, geometry: &Geometry) -> Option<usize> {
    if kind == DataKind::Data {
        return Some(bytes.len());
    }
    let leaves = view(bytes, kind, geometry)?.leaves.len();
    let tail = leaves.checked_mul(LEAF_ENTRY)?.checked_add(TAIL)?;
    bytes.len().checked_sub(tail)
}

/// The free regions of a block in order.
#[must_use]
pub fn free_regions(
    bytes: &[u8],
    kind: DataKind,
    geometry: &Geometry,
) -> Option<Vec<(usize, usize)>> {
    view(bytes, kind, geometry)?.free_regions()
}

/// Whether a block has no entries.
#[must_use]
pub fn is_all_free(bytes: &[u8], kind: DataKind, geometry: &Geometry) -> bool {
    let start = header_bytes(geometry);
    let end = data_end(bytes, kind, geometry);
    let free = free_regions(bytes, kind, geometry);
    let whole = end.and_then(|end| end.checked_sub(start));
    free.zip(whole)
        .is_some_and(|(free, whole)| free == [(start, whole)])
}

/// The length of the longest free region.
#[must_use]
pub fn best(bytes: &[u8], kind: DataKind, geometry: &Geometry) -> Option<u16> {
    let free = free_regions(bytes, kind, geometry)?;
    let longest = free.into_iter().map(|(_, len)| len).max();
    u16::try_from(longest.unwrap_or(0)).ok()
}

fn put_free(bytes: &mut [u8], at: usize, len: usize) -> Option<()> {
    let region = bytes.get_mut(at..at.checked_add(len)?)?;
    let (unused, _) = DiskUnused::mut_from_prefix(region).ok()?;
    unused.tag.set(FREE_TAG);
    unused.length.set(u16::try_from(len).ok()?);
    put_tag(region, at)
}

fn put_tag(region: &mut [u8], at: usize) -> Option<()> {
    let (_, tag) = Be16::mut_from_suffix(region).ok()?;
    tag.set(u16::try_from(at).ok()?);
    Some(())
}

/// Stores the three longest free regions in the header.
fn note_best(bytes: &mut [u8], kind: DataKind, geometry: &Geometry) -> Option<()> {
    let mut free = free_regions(bytes, kind, geometry)?;
    // Of equal ones, the first.
    free.sort_by_key(|&(offset, len)| (usize::MAX.saturating_sub(len), offset));
    let (header, _) = DiskDataHeaderV5::mut_from_prefix(bytes).ok()?;
    let mut free = free.into_iter();
    for slot in &mut header.best_free {
        let (offset, len) = free.next().unwrap_or((0, 0));
        *slot = DiskBestFree {
            offset: u16::try_from(offset).ok()?.into(),
            length: u16::try_from(len).ok()?.into(),
        };
    }
    Some(())
}

/// Writes an entry over free space.
fn put_entry(
    bytes: &mut [u8],
    at: usize,
    (name, inode, kind): (&[u8], InodeNr, Option<FileKind>),
    has_ftype: bool,
) -> Option<()> {
    let len = entry_bytes(name.len(), has_ftype);
    let region = bytes.get_mut(at..at.checked_add(len)?)?;
    region.fill(0);
    let (start, rest) = DiskEntryStart::mut_from_prefix(region).ok()?;
    start.inode.set(inode.get());
    start.name_len = u8::try_from(name.len()).ok()?;
    rest.get_mut(..name.len())?.copy_from_slice(name);
    if has_ftype {
        *rest.get_mut(name.len())? = kind.map_or(0, stored_kind);
    }
    put_tag(region, at)
}

/// Adds an entry in the longest free region. Returns where it begins; `None`, and nothing changed, if it does
/// not fit.
#[must_use]
pub fn add_entry(
    bytes: &mut [u8],
    block: DataKind,
    entry: (&[u8], InodeNr, Option<FileKind>),
    geometry: &Geometry,
) -> Option<usize> {
    let len = entry_bytes(entry.0.len(), geometry.features.has_ftype());
    let free = free_regions(bytes, block, geometry)?;
    let (at, _) = free
        .into_iter()
        .rev()
        .max_by_key(|&(_, len)| len)
        .filter(|&(_, free)| free >= len)?;
    put_entry_at(bytes, block, at, entry, geometry)?;
    Some(at)
}

/// Adds an entry at a place that is free.
#[must_use]
pub fn put_entry_at(
    bytes: &mut [u8],
    block: DataKind,
    at: usize,
    entry: (&[u8], InodeNr, Option<FileKind>),
    geometry: &Geometry,
) -> Option<()> {
    let has_ftype = geometry.features.has_ftype();
    let len = entry_bytes(entry.0.len(), has_ftype);
    let end = at.checked_add(len)?;
    let free = free_regions(bytes, block, geometry)?;
    let holds = |&(start, free): &(usize, usize)| start <= at && start.saturating_add(free) >= end;
    let (start, free) = free.into_iter().find(holds)?;
    if start < at {
        put_free(bytes, start, at.checked_sub(start)?)?;
    }
    let rest = start.checked_add(free)?.checked_sub(end)?;
    if rest > 0 {
        put_free(bytes, end, rest)?;
    }
    put_entry(bytes, at, entry, has_ftype)?;
    note_best(bytes, block, geometry)
}

/// Makes the entry at a place name another inode.
#[must_use]
pub fn set_entry(
    bytes: &mut [u8],
    at: usize,
    inode: InodeNr,
    kind: Option<FileKind>,
    geometry: &Geometry,
) -> Option<()> {
    let (start, rest) = DiskEntryStart::mut_from_prefix(bytes.get_mut(at..)?).ok()?;
    start.inode.set(inode.get());
    if geometry.features.has_ftype() {
        *rest.get_mut(usize::from(start.name_len))? = kind.map_or(0, stored_kind);
    }
    Some(())
}

/// Removes the entry at a place: it becomes one free region with those next to it.
#[must_use]
pub fn remove_entry(
    bytes: &mut [u8],
    block: DataKind,
    at: usize,
    geometry: &Geometry,
) -> Option<()> {
    let data = view(bytes, block, geometry)?;
    let name_len = data.entry_at(at, geometry).ok()?.name.len();
    let mut start = at;
    let mut end = at.checked_add(entry_bytes(name_len, geometry.features.has_ftype()))?;
    for (offset, len) in free_regions(bytes, block, geometry)? {
        let after = offset.checked_add(len)?;
        if after == start {
            start = offset;
        }
        if offset == end {
            end = after;
        }
    }
    put_free(bytes, start, end.checked_sub(start)?)?;
    note_best(bytes, block, geometry)
}

/// Stores the leaf entries of the only block of a directory, which may need more or less space at its end;
/// `None`, and nothing changed, if entries are in the way.
#[must_use]
pub fn set_leaves(bytes: &mut [u8], leaves: &[HashEntry], geometry: &Geometry) -> Option<()> {
    let kind = DataKind::Single;
    let old_end = data_end(bytes, kind, geometry)?;
    let space = leaves.len().checked_mul(LEAF_ENTRY)?.checked_add(TAIL)?;
    let end = bytes.len().checked_sub(space)?;
    let free = free_regions(bytes, kind, geometry)?;
    let last = free
        .last()
        .copied()
        .filter(|&(offset, len)| offset.checked_add(len) == Some(old_end));
    let start = last.map_or(old_end, |(offset, _)| offset);
    let len = end.checked_sub(start)?;
    if len > 0 {
        put_free(bytes, start, len)?;
    }
    let count = u32::try_from(leaves.len()).ok()?;
    let (_, tail) = DiskBlockTail::mut_from_suffix(bytes).ok()?;
    tail.count.set(count);
    tail.stale.set(0);
    put_pairs(bytes, end, leaves)?;
    note_best(bytes, kind, geometry)
}

/// Makes the only block of a directory one of several: its leaf entries become free space.
#[must_use]
pub fn leave_single(bytes: &mut [u8], geometry: &Geometry) -> Option<()> {
    set_leaves(bytes, &[], geometry)?;
    let end = bytes.len().checked_sub(TAIL)?;
    let free = free_regions(bytes, DataKind::Single, geometry)?;
    let last = free
        .last()
        .copied()
        .filter(|&(offset, len)| offset.checked_add(len) == Some(end));
    let start = last.map_or(end, |(offset, _)| offset);
    let len = bytes.len().checked_sub(start)?;
    put_free(bytes, start, len)?;
    let (header, _) = DiskDirHeaderV5::mut_from_prefix(bytes).ok()?;
    header.magic.set(DataKind::Data.magic(true));
    note_best(bytes, DataKind::Data, geometry)
}

/// Makes the block of entries that is left the only one, with these leaf entries; `None`, and nothing changed,
/// if they do not fit.
#[must_use]
pub fn become_single(bytes: &mut [u8], leaves: &[HashEntry], geometry: &Geometry) -> Option<()> {
    let space = leaves.len().checked_mul(LEAF_ENTRY)?.checked_add(TAIL)?;
    let free = free_regions(bytes, DataKind::Data, geometry)?;
    let (start, len) = free
        .last()
        .copied()
        .filter(|&(offset, len)| offset.checked_add(len) == Some(bytes.len()))?;
    let left = len.checked_sub(space)?;
    if left > 0 {
        put_free(bytes, start, left)?;
    }
    let (header, _) = DiskDirHeaderV5::mut_from_prefix(bytes).ok()?;
    header.magic.set(DataKind::Single.magic(true));
    let (_, tail) = DiskBlockTail::mut_from_suffix(bytes).ok()?;
    tail.count.set(u32::try_from(leaves.len()).ok()?);
    tail.stale.set(0);
    put_pairs(bytes, start.checked_add(left)?, leaves)?;
    note_best(bytes, DataKind::Single, geometry)
}

/// The number of the inode that the entry at a place names.
#[must_use]
pub fn entry_inode(bytes: &[u8], at: usize) -> Option<InodeNr> {
    let (number, _) = Be64::ref_from_prefix(bytes.get(at..)?).ok()?;
    InodeNr::new(number.get())
}
