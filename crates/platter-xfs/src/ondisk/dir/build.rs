//! Directory blocks of version 5 as they are stored: built, and changed in place. Where `within` is passed, the chunks of
//! what changes are added to it.
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
use crate::ondisk::chunks::Chunks;
use crate::ondisk::da::{DaKind, DaLinks, DiskDaEntry, DiskDaHeaderV5, DiskDaNodeCounts};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::identity::Site;
use crate::ondisk::types::InodeNr;

const FREE_TAG: u16 = 0xffff;
/// Header, counts and padding of a leaf, a node or a free index.
const INDEX_HEADER: usize = 64;
pub(super) const PADDING: usize = 4;
const TAIL: usize = size_of::<DiskBlockTail>();
pub(super) const LEAF_ENTRY: usize = size_of::<DiskLeafEntry>();

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
    let whole = end.and_then(|end| end.checked_sub(start));
    let first = bytes.get(start..);
    let first = first.and_then(|first| Some(DiskUnused::ref_from_prefix(first).ok()?.0));
    first.zip(whole).is_some_and(|(first, whole)| {
        first.tag.get() == FREE_TAG && usize::from(first.length.get()) == whole
    })
}

/// The length of the longest free region of a block that was changed here: its header has it.
#[must_use]
pub fn best(bytes: &[u8]) -> Option<u16> {
    let (header, _) = DiskDataHeaderV5::ref_from_prefix(bytes).ok()?;
    let [best, ..] = &header.best_free;
    Some(best.length.get())
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

/// Adds the chunks of the start and the end of a free region.
fn note_region(within: &mut Chunks, at: usize, len: usize) {
    let end = at.saturating_add(len);
    within.add_bytes(at..at.saturating_add(size_of::<DiskUnused>()));
    within.add_bytes(end.saturating_sub(size_of::<Be16>())..end);
}

/// Stores the three longest free regions in the header.
fn note_best(bytes: &mut [u8], kind: DataKind, geometry: &Geometry) -> Option<()> {
    let free = free_regions(bytes, kind, geometry)?;
    note_best_of(bytes, &free)
}

/// The three longest of free regions, which ascend; of those that are not there, zeros.
fn longest_of(free: &[(usize, usize)]) -> Option<[(usize, usize); 3]> {
    let mut longest = [(0, 0); 3];
    for &region in free {
        // Of equal ones, the first.
        let place = longest.iter().position(|&(_, len)| len < region.1);
        if let Some(rest) = place.and_then(|place| longest.get_mut(place..)) {
            rest.rotate_right(1);
            *rest.first_mut()? = region;
        }
    }
    Some(longest)
}

/// Stores the three longest free regions in the header of a block that has these, which ascend.
fn note_best_of(bytes: &mut [u8], free: &[(usize, usize)]) -> Option<()> {
    let longest = longest_of(free)?;
    let (header, _) = DiskDataHeaderV5::mut_from_prefix(bytes).ok()?;
    for (slot, (offset, len)) in header.best_free.iter_mut().zip(longest) {
        *slot = best_free(offset, len)?;
    }
    Some(())
}

fn best_free(offset: usize, len: usize) -> Option<DiskBestFree> {
    Some(DiskBestFree {
        offset: u16::try_from(offset).ok()?.into(),
        length: u16::try_from(len).ok()?.into(),
    })
}

/// Whether the header of a block has the three longest of its free regions, which ascend.
fn has_best_of(bytes: &[u8], free: &[(usize, usize)]) -> Option<bool> {
    let (header, _) = DiskDataHeaderV5::ref_from_prefix(bytes).ok()?;
    let stored = header.best_free.map(region_of);
    Some(stored == longest_of(free)?)
}

fn region_of(best: DiskBestFree) -> (usize, usize) {
    (best.offset.get().into(), best.length.get().into())
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

/// Adds an entry in the longest free region. Returns where it begins, and whether the header had the longest free
/// regions before; `None`, and nothing changed, if it does not fit.
#[must_use]
pub fn add_entry(
    bytes: &mut [u8],
    within: &mut Chunks,
    block: DataKind,
    entry: (&[u8], InodeNr, Option<FileKind>),
    geometry: &Geometry,
) -> Option<(usize, bool)> {
    let len = entry_bytes(entry.0.len(), geometry.features.has_ftype());
    let mut free = free_regions(bytes, block, geometry)?;
    let is_sound = has_best_of(bytes, &free)?;
    let (index, &(at, _)) = free
        .iter()
        .enumerate()
        .rev()
        .max_by_key(|(_, (_, len))| *len)
        .filter(|(_, (_, free))| *free >= len)?;
    put_entry_within((bytes, within), (&mut free, index), at, entry, geometry)?;
    Some((at, is_sound))
}

/// Adds an entry as [`add_entry`] does, but without a walk, to a block of several whose regions were validated, and
/// whose header has the longest free regions: where the longest one is the end of the block, and what is left of it
/// stays the longest. Returns where the entry begins; `None`, and nothing changed, where that is not so.
#[must_use]
pub fn append_entry(
    bytes: &mut [u8],
    within: &mut Chunks,
    entry: (&[u8], InodeNr, Option<FileKind>),
    geometry: &Geometry,
) -> Option<usize> {
    let has_ftype = geometry.features.has_ftype();
    let len = entry_bytes(entry.0.len(), has_ftype);
    let (header, _) = DiskDataHeaderV5::ref_from_prefix(bytes).ok()?;
    let [(at, whole), (_, second), _] = header.best_free.map(region_of);
    let left = whole.checked_sub(len).filter(|&left| left > second)?;
    let region = bytes.get(at..).filter(|region| region.len() == whole)?;
    let (unused, _) = DiskUnused::ref_from_prefix(region).ok()?;
    let (_, tag) = Be16::ref_from_suffix(region).ok()?;
    let stored = (usize::from(unused.length.get()), usize::from(tag.get()));
    if unused.tag.get() != FREE_TAG || stored != (whole, at) {
        return None;
    }
    let start = at.checked_add(len)?;
    let longest = best_free(start, left)?;
    let is_sound = |bytes: &[u8]| {
        free_regions(bytes, DataKind::Data, geometry)
            .is_some_and(|free| has_best_of(bytes, &free) == Some(true))
    };
    // A corrupt filesystem may map the block twice, and have it changed as another one.
    let was_sound = cfg!(debug_assertions) && is_sound(bytes);
    put_free(bytes, start, left)?;
    note_region(within, start, left);
    put_entry(bytes, at, entry, has_ftype)?;
    within.add_bytes(at..start);
    let (header, _) = DiskDataHeaderV5::mut_from_prefix(bytes).ok()?;
    *header.best_free.first_mut()? = longest;
    within.add_bytes(0..size_of::<DiskDataHeaderV5>());
    debug_assert!(
        !was_sound || is_sound(bytes),
        "the header has the longest free regions"
    );
    Some(at)
}

/// Adds an entry at a place that is free.
#[must_use]
pub fn put_entry_at(
    bytes: &mut [u8],
    within: &mut Chunks,
    block: DataKind,
    at: usize,
    entry: (&[u8], InodeNr, Option<FileKind>),
    geometry: &Geometry,
) -> Option<()> {
    let len = entry_bytes(entry.0.len(), geometry.features.has_ftype());
    let end = at.checked_add(len)?;
    let mut free = free_regions(bytes, block, geometry)?;
    let holds = |&(start, free): &(usize, usize)| start <= at && start.saturating_add(free) >= end;
    let index = free.iter().position(holds)?;
    put_entry_within((bytes, within), (&mut free, index), at, entry, geometry)
}

/// Adds an entry in one of the free regions, which ascend.
fn put_entry_within(
    (bytes, within): (&mut [u8], &mut Chunks),
    (free, index): (&mut Vec<(usize, usize)>, usize),
    at: usize,
    entry: (&[u8], InodeNr, Option<FileKind>),
    geometry: &Geometry,
) -> Option<()> {
    let has_ftype = geometry.features.has_ftype();
    let end = at.checked_add(entry_bytes(entry.0.len(), has_ftype))?;
    let &(start, whole) = free.get(index)?;
    let before = at.checked_sub(start)?;
    let after = start.checked_add(whole)?.checked_sub(end)?;
    let left = [(start, before), (end, after)];
    let left = left.into_iter().filter(|&(_, len)| len > 0);
    for (start, len) in left.clone() {
        put_free(bytes, start, len)?;
        note_region(within, start, len);
    }
    put_entry(bytes, at, entry, has_ftype)?;
    within.add_bytes(at..end);
    within.add_bytes(0..size_of::<DiskDataHeaderV5>());
    free.splice(index..=index, left);
    note_best_of(bytes, free)
}

/// Makes the entry at a place name another inode. `None`, and nothing changed, if no entry begins there.
#[must_use]
pub fn set_entry(
    bytes: &mut [u8],
    within: &mut Chunks,
    block: DataKind,
    at: usize,
    (inode, kind): (InodeNr, Option<FileKind>),
    geometry: &Geometry,
) -> Option<()> {
    let mut is_entry = false;
    let data = view(bytes, block, geometry)?;
    data.free_regions_next_to(|entry| is_entry |= entry == at)?;
    if !is_entry {
        return None;
    }
    let (start, rest) = DiskEntryStart::mut_from_prefix(bytes.get_mut(at..)?).ok()?;
    let len = entry_bytes(start.name_len.into(), geometry.features.has_ftype());
    within.add_bytes(at..at.checked_add(len)?);
    start.inode.set(inode.get());
    if geometry.features.has_ftype() {
        *rest.get_mut(usize::from(start.name_len))? = kind.map_or(0, stored_kind);
    }
    Some(())
}

/// Removes the entry at a place: it becomes one free region with those next to it. `None`, and nothing changed, if no
/// entry begins there.
#[must_use]
pub fn remove_entry(
    bytes: &mut [u8],
    within: &mut Chunks,
    block: DataKind,
    at: usize,
    geometry: &Geometry,
) -> Option<()> {
    let data = view(bytes, block, geometry)?;
    let name_len = data.entry_at(at, geometry).ok()?.name.len();
    let mut start = at;
    let mut end = at.checked_add(entry_bytes(name_len, geometry.features.has_ftype()))?;
    let mut is_entry = false;
    let mut free = data.free_regions_next_to(|entry| is_entry |= entry == at)?;
    if !is_entry {
        return None;
    }
    for &(offset, len) in &free {
        let after = offset.checked_add(len)?;
        if after == start {
            start = offset;
        }
        if offset == end {
            end = after;
        }
    }
    let merged = (start, end.checked_sub(start)?);
    put_free(bytes, merged.0, merged.1)?;
    note_region(within, merged.0, merged.1);
    within.add_bytes(0..size_of::<DiskDataHeaderV5>());
    let first = free.partition_point(|&(offset, _)| offset < start);
    let last = free.partition_point(|&(offset, _)| offset < end);
    free.splice(first..last, [merged]);
    note_best_of(bytes, &free)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::dir::data::{Region, dot_offset};
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::types::BasicBlock;

    const KIND: DataKind = DataKind::Data;

    fn number(inode: u64) -> InodeNr {
        InodeNr::new(inode).unwrap()
    }

    fn empty(geometry: &Geometry) -> Vec<u8> {
        empty_data(KIND, &Site::new(geometry, BasicBlock(80), 131)).unwrap()
    }

    /// Where entries begin, and their names.
    fn entries(bytes: &[u8], geometry: &Geometry) -> Vec<(usize, Vec<u8>)> {
        let data = view(bytes, KIND, geometry).unwrap();
        let regions = data.regions(geometry).map(Result::unwrap);
        let entries = regions.filter_map(|region| match region {
            Region::Entry(entry) => Some((entry.offset, entry.name.to_vec())),
            Region::Free { .. } => None,
        });
        entries.collect()
    }

    #[test]
    fn best_free_regions_are_those_of_a_fresh_walk() {
        let geometry = sample_geometry();
        let mut bytes = empty(&geometry);
        let mut model: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut number = 1_u32;
        let mut random = |end: usize| {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            number as usize / 256 % end
        };
        let (mut added, mut put, mut appended) = (0, 0, 0);
        for step in 0..6000 {
            let (before, mut within) = (bytes.clone(), Chunks::default());
            // It fills at first, and empties at the end.
            if random(6000) > step || model.is_empty() {
                let name = vec![b'n'; 1 + random(60)];
                let entry = (&name[..], self::number(131), Some(FileKind::Regular));
                let at = if random(2) == 0 {
                    let (mut other, mut other_within) = (bytes.clone(), Chunks::default());
                    let last = append_entry(&mut other, &mut other_within, entry, &geometry);
                    let at = add_entry(&mut bytes, &mut within, KIND, entry, &geometry);
                    assert!(at.is_none_or(|(_, is_sound)| is_sound), "{step}");
                    let at = at.map(|(at, _)| at);
                    match last {
                        Some(_) => assert!(last == at && other == bytes, "{step}"),
                        None => assert!(other == before, "{step}"),
                    }
                    let differ = Chunks::between(Some(&before), &other, other_within);
                    let all = Chunks::between(Some(&before), &other, Chunks::ALL);
                    assert_eq!(differ, all, "{step}");
                    appended += usize::from(last.is_some());
                    added += usize::from(at.is_some());
                    at
                } else {
                    let at = dot_offset(&geometry) + random(500) * 8;
                    let done = put_entry_at(&mut bytes, &mut within, KIND, at, entry, &geometry);
                    put += usize::from(done.is_some());
                    done.map(|()| at)
                };
                model.extend(at.map(|at| (at, name.clone())));
                model.sort();
            } else {
                let (at, _) = model.remove(random(model.len()));
                remove_entry(&mut bytes, &mut within, KIND, at, &geometry).unwrap();
            }
            let differ = Chunks::between(Some(&before), &bytes, within);
            let all = Chunks::between(Some(&before), &bytes, Chunks::ALL);
            assert_eq!(differ, all, "{step}");
            let mut walked = bytes.clone();
            note_best(&mut walked, KIND, &geometry).unwrap();
            assert!(walked == bytes, "{step}");
            assert_eq!(entries(&bytes, &geometry), model, "{step}");
            assert_eq!(is_all_free(&bytes, KIND, &geometry), model.is_empty());
        }
        assert!(added > 500 && put > 100, "{added} {put}");
        assert!(appended > 0 && appended < added, "{appended} {added}");
    }

    #[test]
    fn entry_within_a_name_is_not_changed() {
        let geometry = sample_geometry();
        let mut bytes = empty(&geometry);
        let (kind, hidden) = (Some(FileKind::Regular), &b"x"[..]);
        let mut name = [b'n'; 64];
        // Where the entry with this name will lie, and the first place within the name that an entry may have.
        let at = header_bytes(&geometry);
        let within = at + 16;
        let mut inner = vec![0; bytes.len()];
        put_entry(&mut inner, within, (hidden, number(131), kind), true).unwrap();
        let start = size_of::<DiskEntryStart>();
        let skipped = within - at - start;
        name[skipped..skipped + 16].copy_from_slice(&inner[within..within + 16]);
        let entry = (&name[..], number(132), kind);
        let added = add_entry(&mut bytes, &mut Chunks::default(), KIND, entry, &geometry);
        assert_eq!(added, Some((at, true)));
        let data = view(&bytes, KIND, &geometry).unwrap();
        assert_eq!(data.entry_at(within, &geometry).unwrap().name, hidden);
        let before = bytes.clone();
        let mut chunks = Chunks::default();
        let removed = remove_entry(&mut bytes, &mut chunks, KIND, within, &geometry);
        assert_eq!(removed, None);
        let other = (number(133), kind);
        let set = set_entry(&mut bytes, &mut chunks, KIND, within, other, &geometry);
        assert_eq!(set, None);
        assert!(bytes == before && chunks.is_empty());
        set_entry(&mut bytes, &mut chunks, KIND, at, other, &geometry).unwrap();
        assert_eq!(bytes[at..at + 8], 133_u64.to_be_bytes());
        let all = Chunks::between(Some(&before), &bytes, Chunks::ALL);
        assert_eq!(Chunks::between(Some(&before), &bytes, chunks), all);
    }
}
