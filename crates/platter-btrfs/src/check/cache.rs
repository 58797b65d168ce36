//! Free space caches of version 1: a file for each block group, in the root tree. Spec: `btrfs/free_space`.
//!
//! The file begins with a CRC of each of its pages, and the generation. Entries follow, none across the
//! end of a page; then a page for each bitmap.

use std::io::IoSliceMut;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::FromBytes;

use super::free_space::runs;
use super::ranges::Ranges;
use super::{Checker, Flow, FreeSpaceUseRule, free_space};
use crate::ondisk::chunk_item::ChunkItem;
use crate::ondisk::features::CompatRo;
use crate::ondisk::file_extent::{FileExtent, FileExtentKind};
use crate::ondisk::free_space::{DiskFreeSpaceEntry, FreeSpaceEntry, FreeSpaceHeader};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use platter_vfs::check::{Checking as _, Finding};

/// The largest cache file that is read; the kernel's have 256 KiB at most for each GiB.
const CACHE_BYTES_MAX: u64 = 16 << 20;
const ENTRY_BYTES: usize = size_of::<DiskFreeSpaceEntry>();

/// Compares the caches with the extents, if they are of the last transaction.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let superblock = &checker.context.superblock;
    let compat_ro = superblock.features.compat_ro;
    if compat_ro.contains(CompatRo::FREE_SPACE_TREE) || checker.roots.caches.is_empty() {
        return Ok(());
    }
    let locus = Locus::tree(TreeId::ROOT.0);
    if superblock.cache_generation != superblock.generation.0 {
        return checker.noticed(locus, FreeSpaceUseRule::Stale);
    }
    for (group, header) in std::mem::take(&mut checker.roots.caches) {
        let locus = locus.in_group(group.0).at_block(group.0);
        match read(checker, &header, locus) {
            Ok(Some(mut free)) => {
                // No extent is allocated there, and caches leave them out.
                let map = checker.context.blocks.store().map();
                for range in map.iter().flat_map(ChunkItem::superblock_ranges) {
                    free.add(range);
                }
                free.sort();
                free_space::compare(checker, TreeId::ROOT, &free, Some(group))?;
            }
            Ok(None) => {}
            // The kernel makes such a cache anew.
            Err(error) => {
                let mut finding = Finding::of_error("free space", locus, error);
                finding.severity = platter_vfs::check::Severity::Notice;
                checker.report_finding(finding)?;
            }
        }
    }
    Ok(())
}

/// The free ranges in a cache; `None` if it was not written.
fn read(checker: &Checker<'_>, header: &FreeSpaceHeader, locus: Locus) -> Result<Option<Ranges>> {
    let context = checker.context;
    let tree = context.root_tree();
    let item = context.find(tree, header.location, |data| {
        Ok(InodeItem::decode(data, tree.locus(header.location))?)
    })?;
    let Some(item) = item.filter(|item| item.size_bytes > 0) else {
        return Ok(None);
    };
    let broken = || Corrupt::new(locus, FreeSpaceUseRule::Cache);
    if item.generation != header.generation || item.size_bytes > CACHE_BYTES_MAX {
        return Err(broken().into());
    }
    let bytes = read_file(checker, header.location.object, item.size_bytes)?;
    let page_bytes = checker.format.sector_bytes as usize;
    let pages: Vec<&[u8]> = bytes.chunks_exact(page_bytes).collect();
    Ok(Some(
        decode(&pages, header, checker.format.sector_bytes, locus).ok_or_else(broken)?,
    ))
}

/// The contents of a cache file, which have no checksums in the checksum tree.
fn read_file(checker: &Checker<'_>, inode: u64, size_bytes: u64) -> Result<Vec<u8>> {
    let context = checker.context;
    let tree = context.root_tree();
    let mut bytes = vec![0; usize::try_from(size_bytes).unwrap_or_default()];
    let mut cursor = context.cursor(tree);
    cursor.seek(Key::new(inode, ItemKind::EXTENT_DATA, 0))?;
    while let Some((key, data)) = cursor.item() {
        if key.object != inode || key.kind != ItemKind::EXTENT_DATA {
            break;
        }
        let locus = tree.locus(key);
        let extent = FileExtent::decode(data, key.offset, checker.format.sector_bytes, locus)?;
        if let FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) = extent.kind {
            let start = usize::try_from(key.offset).unwrap_or(usize::MAX);
            let len = usize::try_from(extent.file_bytes).unwrap_or(usize::MAX);
            let rest = bytes.get_mut(start..).unwrap_or_default();
            let len = len.min(rest.len());
            let at = LogicalAddr(place.logical.0.saturating_add(place.offset));
            let bufs = &mut [IoSliceMut::new(&mut rest[..len])];
            context.blocks.store().read(at, 0, bufs)?;
        }
        cursor.step()?;
    }
    Ok(bytes)
}

/// The free ranges in the pages of a cache file; `None` if it is not one.
fn decode(
    pages: &[&[u8]],
    header: &FreeSpaceHeader,
    sector_bytes: u32,
    locus: Locus,
) -> Option<Ranges> {
    let sums_bytes = pages.len().checked_mul(4)?;
    let (sums, first) = pages.first()?.split_at_checked(sums_bytes)?;
    for (index, page) in pages.iter().enumerate() {
        let summed = if index == 0 { first } else { *page };
        let stored = sums.get(index * 4..)?.first_chunk::<4>()?;
        if u32::from_le_bytes(*stored) != !crc32c(!0, summed) {
            return None;
        }
    }
    let (generation, mut rest) = first.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*generation) != header.generation.0 {
        return None;
    }
    let mut next = 1;
    let mut free = Ranges::default();
    let mut bitmaps = Vec::new();
    for _ in 0..header.entry_count {
        if rest.len() < ENTRY_BYTES {
            rest = pages.get(next)?;
            next += 1;
        }
        let (disk, after) = DiskFreeSpaceEntry::ref_from_prefix(rest).ok()?;
        let entry = FreeSpaceEntry::decode(disk, locus).ok()?;
        if entry.is_bitmap {
            bitmaps.push(entry.start.0);
        } else {
            free.add(entry.start.0..entry.start.0.saturating_add(entry.len_bytes));
        }
        rest = after;
    }
    if bitmaps.len() as u64 != header.bitmap_count {
        return None;
    }
    for start in bitmaps {
        let page = pages.get(next)?;
        next += 1;
        let sector = u64::from(sector_bytes);
        for (from, to) in runs(page) {
            let at = |bit: u64| start.saturating_add(bit.saturating_mul(sector));
            free.add(at(from)..at(to));
        }
    }
    free.sort();
    Some(free)
}
