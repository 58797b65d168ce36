//! Replay of extents and their checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::replay::Replay;
use crate::block_group::Ranges;
use crate::data::Checksums;
use crate::items::Overlay;
use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::features::Incompat;
use crate::ondisk::file_extent::{ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::ondisk::{Key, LogicalAddr};
use crate::tree::Tree;

const EXTENTS: std::ops::RangeInclusive<ItemKind> = ItemKind::EXTENT_DATA..=ItemKind::EXTENT_DATA;

/// The extents of one file, as they are so far.
#[derive(Debug)]
pub(super) struct Extents {
    tree: Tree,
    inode: u64,
    sector_bytes: u32,
    /// Items by their offset in the file.
    items: BTreeMap<u64, Vec<u8>>,
    /// Offsets whose item in the subvolume is another one, or none.
    changed: BTreeSet<u64>,
}

impl Extents {
    pub(super) fn new(
        tree: Tree,
        inode: u64,
        sector_bytes: u32,
        items: BTreeMap<u64, Vec<u8>>,
    ) -> Self {
        Self {
            tree,
            inode,
            sector_bytes,
            items,
            changed: BTreeSet::new(),
        }
    }

    fn key(&self, offset: u64) -> Key {
        Key::new(self.inode, ItemKind::EXTENT_DATA, offset)
    }

    fn decode<'d>(&self, offset: u64, data: &'d [u8]) -> Result<FileExtent<'d>> {
        let locus = self.tree.locus(self.key(offset));
        Ok(FileExtent::decode(data, offset, self.sector_bytes, locus)?)
    }

    /// Takes over the extent at `offset`, instead of what its range has.
    pub(super) fn replace(
        &mut self,
        offset: u64,
        data: &[u8],
        locus: Locus,
        has_holes: bool,
    ) -> Result<()> {
        let sector = self.sector_bytes;
        let extent = FileExtent::decode(data, offset, sector, locus)?;
        let end = offset.saturating_add(extent.file_bytes);
        let end = end.checked_next_multiple_of(sector.into());
        self.drop(offset..end.unwrap_or(u64::MAX))?;
        if extent.kind != FileExtentKind::Hole || has_holes {
            self.set(offset, data.to_vec());
        }
        Ok(())
    }

    /// Removes what backs a range of the file; extents that reach beyond are made shorter.
    pub(super) fn drop(&mut self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let before = self.items.range(..range.start).next_back();
        let from = before.map_or(range.start, |(&offset, _)| offset);
        let offsets: Vec<u64> = self
            .items
            .range(from..range.end)
            .map(|(&offset, _)| offset)
            .collect();
        for offset in offsets {
            self.drop_from(offset, &range)?;
        }
        Ok(())
    }

    fn drop_from(&mut self, offset: u64, range: &Range<u64>) -> Result<()> {
        let data = self.items.get(&offset).cloned().unwrap_or_default();
        let extent = self.decode(offset, &data)?;
        let end = offset.saturating_add(extent.file_bytes);
        if end <= range.start {
            return Ok(());
        }
        self.items.remove(&offset);
        self.changed.insert(offset);
        if let FileExtentKind::Inline(_) = extent.kind {
            return Ok(());
        }
        if offset < range.start {
            let before = part(&extent, 0..range.start - offset);
            self.set(offset, before.encode());
        }
        if end > range.end {
            let after = part(&extent, range.end - offset..extent.file_bytes);
            self.set(range.end, after.encode());
        }
        Ok(())
    }

    fn set(&mut self, offset: u64, data: Vec<u8>) {
        self.items.insert(offset, data);
        self.changed.insert(offset);
    }

    /// What the extents have allocated.
    pub(super) fn allocated_bytes(&self) -> Result<u64> {
        let mut sum = 0u64;
        for (&offset, data) in &self.items {
            let extent = self.decode(offset, data)?;
            if extent.kind != FileExtentKind::Hole {
                sum = sum.saturating_add(extent.file_bytes);
            }
        }
        Ok(sum)
    }

    /// Puts the changes over the items of the subvolume.
    pub(super) fn store(self, overlay: &mut Overlay) {
        for &offset in &self.changed {
            match self.items.get(&offset) {
                Some(data) => overlay.set(self.key(offset), data),
                None => overlay.remove(self.key(offset)),
            }
        }
    }
}

/// Takes over the extents of all files, after what follows the ends of files was removed.
pub(super) fn replay(replay: &mut Replay<'_>) -> Result<()> {
    let incompat = replay.context.superblock.features.incompat;
    let has_holes = !incompat.contains(Incompat::NO_HOLES);
    let mut logged: BTreeMap<u64, Vec<(Key, Vec<u8>)>> = BTreeMap::new();
    for (key, data) in replay.logged(ItemKind::EXTENT_DATA)? {
        logged.entry(key.object).or_default().push((key, data));
    }
    let ends = std::mem::take(&mut replay.ends);
    let inodes: BTreeSet<u64> = logged.keys().chain(ends.keys()).copied().collect();
    for inode in inodes {
        let Some(item) = replay.item(inode)? else {
            continue;
        };
        let stored = replay.items_of(false, inode, &EXTENTS)?;
        let stored = stored.into_iter().map(|(key, data)| (key.offset, data));
        let sector_bytes = replay.context.sector_bytes();
        let mut extents = Extents::new(replay.tree, inode, sector_bytes, stored.collect());
        if let Some(&end) = ends.get(&inode) {
            extents.drop(end..u64::MAX)?;
        }
        for (key, data) in logged.remove(&inode).unwrap_or_default() {
            take_data(replay, key, &data)?;
            extents.replace(key.offset, &data, replay.log.locus(key), has_holes)?;
        }
        let allocated_bytes = extents.allocated_bytes()?;
        let item = InodeItem {
            allocated_bytes,
            ..item
        };
        replay.set_item(inode, &item);
        extents.store(&mut replay.overlay);
    }
    Ok(())
}

/// Records the data of an extent, of which the checksums count.
fn take_data(replay: &mut Replay<'_>, key: Key, data: &[u8]) -> Result<()> {
    let (sector_bytes, locus) = (replay.context.sector_bytes(), replay.log.locus(key));
    let extent = FileExtent::decode(data, key.offset, sector_bytes, locus)?;
    if let FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) = extent.kind {
        let end = place.logical.0.saturating_add(place.disk_bytes);
        replay.data.add(place.logical.0..end);
    }
    Ok(())
}

/// Takes over the checksums of sectors that have none, of extents that the log has: it may have others of
/// extents that were dropped since.
pub(super) fn replay_checksums(replay: &Replay<'_>, checksums: &mut Overlay) -> Result<()> {
    let sector = u64::from(replay.context.sector_bytes());
    let kind = replay.context.superblock.checksum_kind;
    // The log of another subvolume that shares extents has checksums of the same sectors.
    let mut taken = Ranges::default();
    for (key, data) in checksums.iter() {
        let count = data.unwrap_or_default().len() / kind.len_bytes();
        taken.add(key.offset..key.offset + count as u64 * sector);
    }
    for (key, data) in replay.logged(ItemKind::EXTENT_CSUM)? {
        let locus = replay.log.locus(key);
        let item = CsumItem::decode(key, &data, kind, replay.context.sector_bytes(), locus)?;
        let len_bytes = item.end.0 - item.start.0;
        let known = Checksums::read(replay.context, item.start, len_bytes)?;
        let mut run: Option<(u64, Vec<u8>)> = None;
        let sectors = (len_bytes / sector).min(usize::MAX as u64);
        for index in 0..=sectors {
            let at = item.start.0 + index * sector;
            let checksum = item.checksum(LogicalAddr(at));
            let is_known = known.is_stored(usize::try_from(index).unwrap_or(usize::MAX));
            let place = at..at.saturating_add(sector);
            let is_used = replay.data.contains(&place) && !taken.contains(&place);
            match checksum.filter(|_| is_used && !is_known) {
                Some(checksum) => {
                    let (_, bytes) = run.get_or_insert_with(|| (at, Vec::new()));
                    bytes.extend_from_slice(checksum);
                }
                None => {
                    if let Some((start, bytes)) = run.take() {
                        taken.add(start..at);
                        let kind = ItemKind::EXTENT_CSUM;
                        checksums.set(Key::new(EXTENT_CSUM_OBJECT, kind, start), &bytes);
                    }
                }
            }
        }
    }
    Ok(())
}

/// A part of an extent.
fn part<'a>(extent: &FileExtent<'a>, range: Range<u64>) -> FileExtent<'a> {
    let moved = |place: ExtentPlace| ExtentPlace {
        offset: place.offset.saturating_add(range.start),
        ..place
    };
    FileExtent {
        file_bytes: range.end - range.start,
        kind: match extent.kind {
            FileExtentKind::Regular(place) => FileExtentKind::Regular(moved(place)),
            FileExtentKind::Prealloc(place) => FileExtentKind::Prealloc(moved(place)),
            other @ (FileExtentKind::Hole | FileExtentKind::Inline(_)) => other,
        },
        ..*extent
    }
}
