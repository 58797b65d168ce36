//! Replay of extents and their checksums.

use std::ops::Range;

use platter_vfs::Result;

use super::replay::Replay;
use crate::data::Checksums;
use crate::items::Overlay;
use crate::ondisk::Key;
use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::features::Incompat;
use crate::ondisk::file_extent::{ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;

impl Replay<'_> {
    /// Takes over an extent, instead of what its range has.
    pub(super) fn extent(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let sector = self.context.sector_bytes();
        let locus = self.log.locus(key);
        let extent = FileExtent::decode(data, key.offset, sector, locus)?;
        let end = key.offset.saturating_add(extent.file_bytes);
        let end = end.checked_next_multiple_of(sector.into());
        self.drop_extents(key.object, key.offset..end.unwrap_or(u64::MAX))?;
        let incompat = self.context.superblock.features.incompat;
        let is_implied =
            extent.kind == FileExtentKind::Hole && incompat.contains(Incompat::NO_HOLES);
        if !is_implied {
            self.overlay.set(key, data);
        }
        Ok(())
    }

    /// Removes what backs a range of a file; extents that reach beyond are made shorter.
    pub(super) fn drop_extents(&mut self, inode: u64, range: Range<u64>) -> Result<()> {
        let sector = self.context.sector_bytes();
        for (key, data) in self.items_of(
            false,
            inode,
            &(ItemKind::EXTENT_DATA..=ItemKind::EXTENT_DATA),
        )? {
            let locus = self.tree.locus(key);
            let extent = FileExtent::decode(&data, key.offset, sector, locus)?;
            let end = key.offset.saturating_add(extent.file_bytes);
            if end <= range.start || key.offset >= range.end {
                continue;
            }
            self.overlay.remove(key);
            if let FileExtentKind::Inline(_) = extent.kind {
                continue;
            }
            if key.offset < range.start {
                let before = part(&extent, 0..range.start - key.offset);
                self.overlay.set(key, &before.encode());
            }
            if end > range.end {
                let after = part(&extent, range.end - key.offset..extent.file_bytes);
                let offset = range.end;
                self.overlay.set(Key { offset, ..key }, &after.encode());
            }
        }
        Ok(())
    }

    /// What the extents of a file have allocated.
    pub(super) fn allocated_bytes(&self, inode: u64) -> Result<u64> {
        let sector = self.context.sector_bytes();
        let mut sum = 0u64;
        for (key, data) in self.items_of(
            false,
            inode,
            &(ItemKind::EXTENT_DATA..=ItemKind::EXTENT_DATA),
        )? {
            let locus = self.tree.locus(key);
            let extent = FileExtent::decode(&data, key.offset, sector, locus)?;
            if extent.kind != FileExtentKind::Hole {
                sum = sum.saturating_add(extent.file_bytes);
            }
        }
        Ok(sum)
    }

    /// Takes over the checksums of sectors that have none.
    pub(super) fn checksums(&self, checksums: &mut Overlay) -> Result<()> {
        let sector = u64::from(self.context.sector_bytes());
        let kind = self.context.superblock.checksum_kind;
        for (key, data) in self.logged(ItemKind::EXTENT_CSUM)? {
            let locus = self.log.locus(key);
            let item = CsumItem::decode(key, &data, kind, self.context.sector_bytes(), locus)?;
            let len_bytes = item.end.0 - item.start.0;
            let known = Checksums::read(self.context, item.start, len_bytes)?;
            let mut run: Option<(u64, Vec<u8>)> = None;
            let sectors = (len_bytes / sector).min(usize::MAX as u64);
            for index in 0..=sectors {
                let at = item.start.0 + index * sector;
                let checksum = item.checksum(crate::ondisk::LogicalAddr(at));
                let is_known = known.is_stored(usize::try_from(index).unwrap_or(usize::MAX));
                match checksum.filter(|_| !is_known) {
                    Some(checksum) => {
                        let (_, bytes) = run.get_or_insert_with(|| (at, Vec::new()));
                        bytes.extend_from_slice(checksum);
                    }
                    None => {
                        if let Some((start, bytes)) = run.take() {
                            let kind = ItemKind::EXTENT_CSUM;
                            checksums.set(Key::new(EXTENT_CSUM_OBJECT, kind, start), &bytes);
                        }
                    }
                }
            }
        }
        Ok(())
    }
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
