//! The items of a leaf of a subvolume: references to data, and what its inodes and names add up to.

use platter_ondisk::Locus;
use platter_vfs::Result;
use platter_vfs::check::Checking as _;

use super::extents::Claim;
use super::inodes::{Edge, InodeState, Span};
use super::names::Names;
use super::walked::{Block, Walked};
use super::{Checker, ExtentUseRule, Flow, InodeUseRule, claims, inodes};
use crate::ondisk::checksum::extref_hash;
use crate::ondisk::dir_item::DirItem;
use crate::ondisk::extent_item::ExtentRef;
use crate::ondisk::file_extent::{Compression, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::{FIRST_FREE_OBJECT, LAST_FREE_OBJECT};
use crate::ondisk::{Key, TreeId};

/// An item whose rules hold.
type Item<'b> = (Key, &'b [u8]);

/// Records the references of a leaf to data.
pub(super) fn claim_data(
    checker: &mut Checker<'_>,
    walked: &Walked,
    block: &Block<'_>,
    items: &[Item<'_>],
) -> Flow {
    for claim in data_claims(walked, block, items, checker.format.sector_bytes) {
        claims::add(checker, claim)?;
    }
    Ok(())
}

/// Adds up the inodes and names of a leaf.
pub(super) fn scan_files(
    checker: &mut Checker<'_>,
    walked: &Walked,
    block: &Block<'_>,
    items: &[Item<'_>],
) -> Flow<Span> {
    let mut span = Span::default();
    for group in items.chunk_by(|one, next| one.0.object == next.0.object) {
        let mut inode = InodeState::new(group[0].0.object);
        for &(key, data) in group {
            let locus = walked.tree.locus(key).at_block(block.logical.0);
            let locus = locus.of_inode(key.object);
            let scanned = Names::of_item(key, data, locus);
            if let Some(names) = checker.tolerate("item", locus, scanned)? {
                span.sum = span.sum.wrapping_add(names.sum());
            }
            scan_item(checker, walked, &mut inode, key, data, locus)?;
        }
        // The last inode and the first stay open: more of their items may be in other leaves.
        if (FIRST_FREE_OBJECT..=LAST_FREE_OBJECT).contains(&inode.number) {
            inodes::append_edge(checker, walked, &mut span, Edge::Inode(inode))?;
        }
    }
    Ok(span)
}

fn scan_item(
    checker: &mut Checker<'_>,
    walked: &Walked,
    inode: &mut InodeState,
    key: Key,
    data: &[u8],
    locus: Locus,
) -> Flow {
    let scanned = match key.kind {
        ItemKind::INODE_ITEM if key.offset != 0 => {
            return checker.found(locus, InodeUseRule::Key);
        }
        ItemKind::INODE_ITEM => scan_inode(inode, data, locus),
        ItemKind::INODE_REF => scan_refs(inode, key, data, locus),
        ItemKind::INODE_EXTREF => {
            let refs = InodeRef::decode_all_extended(data, locus).unwrap_or_default();
            let hash = |name: &InodeRef<'_>| extref_hash(name.parent, name.name);
            if refs.iter().any(|name| hash(name) != key.offset) {
                checker.found(locus, InodeUseRule::NameHash)?;
            }
            inode.refs = inode.refs.saturating_add(count(&refs));
            Ok(())
        }
        ItemKind::DIR_ITEM | ItemKind::DIR_INDEX => scan_entries(inode, key, data, locus),
        ItemKind::EXTENT_DATA => return scan_extent(checker, walked, inode, key, data, locus),
        ItemKind(_) => Ok(()),
    };
    checker.tolerate("item", locus, scanned).map(drop)
}

fn scan_extent(
    checker: &mut Checker<'_>,
    walked: &Walked,
    inode: &mut InodeState,
    key: Key,
    data: &[u8],
    locus: Locus,
) -> Flow {
    let sector = checker.format.sector_bytes;
    let Ok(extent) = FileExtent::decode(data, key.offset, sector, locus) else {
        return Ok(());
    };
    let file_bytes = extent.file_bytes;
    let whole = file_bytes.next_multiple_of(sector.into());
    inode.add_extent(key.offset..key.offset.saturating_add(whole));
    let place = match extent.kind {
        FileExtentKind::Hole => return Ok(()),
        FileExtentKind::Inline(_) => {
            inode.bytes = inode.bytes.saturating_add(file_bytes);
            return Ok(());
        }
        FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) => place,
    };
    inode.bytes = inode.bytes.saturating_add(file_bytes);
    let newest = checker.context.superblock.generation.0.saturating_add(1);
    if extent.generation.0 > newest {
        checker.found(locus, ExtentUseRule::Generation)?;
    }
    if walked.id() == TreeId::DATA_RELOC {
        return Ok(());
    }
    let range = if extent.compression == Compression::None {
        let start = place.logical.0.saturating_add(place.offset);
        start..start.saturating_add(file_bytes)
    } else {
        place.logical.0..place.logical.0.saturating_add(place.disk_bytes)
    };
    let summed = checker.csums.ranges.overlap(&range);
    if matches!(extent.kind, FileExtentKind::Prealloc(_)) {
        if summed > 0 {
            checker.found(locus, InodeUseRule::CsumOdd)?;
        }
        return Ok(());
    }
    inode.has_csums |= summed > 0;
    inode.lacks_csums |= summed < range.end - range.start && !checker.csums.is_torn;
    Ok(())
}

/// The references of the items of a leaf to data.
pub(super) fn data_claims<'b>(
    walked: &Walked,
    block: &Block<'_>,
    items: &'b [Item<'b>],
    sector_bytes: u32,
) -> impl Iterator<Item = Claim> + use<'b> {
    let (tree, parent, owner) = (walked.id(), block.logical, block.header.owner);
    items
        .iter()
        .filter(|(key, _)| key.kind == ItemKind::EXTENT_DATA)
        .filter_map(move |(key, data)| {
            let extent = FileExtent::decode(data, key.offset, sector_bytes, Locus::UNKNOWN).ok()?;
            let place = match extent.kind {
                FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) => place,
                FileExtentKind::Inline(_) | FileExtentKind::Hole => return None,
            };
            Some(Claim {
                extent: place.logical,
                len_bytes: place.disk_bytes,
                level: None,
                parent: Some(parent),
                own: ExtentRef::Data {
                    tree: owner,
                    inode: key.object,
                    offset: key.offset.wrapping_sub(place.offset),
                    count: 1,
                },
                tree,
            })
        })
}

fn count(refs: &[InodeRef<'_>]) -> u32 {
    u32::try_from(refs.len()).unwrap_or(u32::MAX)
}

fn scan_inode(inode: &mut InodeState, data: &[u8], locus: Locus) -> Result<()> {
    inode.set_item(&InodeItem::decode(data, locus)?);
    Ok(())
}

fn scan_refs(inode: &mut InodeState, key: Key, data: &[u8], locus: Locus) -> Result<()> {
    let refs = InodeRef::decode_all(data, key.offset, locus)?;
    inode.refs = inode.refs.saturating_add(count(&refs));
    Ok(())
}

fn scan_entries(inode: &mut InodeState, key: Key, data: &[u8], locus: Locus) -> Result<()> {
    let entries = DirItem::decode_all(key, data, locus)?;
    let bytes: u64 = entries.iter().map(|entry| entry.name.len() as u64).sum();
    inode.names_bytes = inode.names_bytes.saturating_add(bytes);
    Ok(())
}
