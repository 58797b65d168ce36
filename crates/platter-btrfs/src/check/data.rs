//! Data against its checksums: every copy of every sector.

use std::io::IoSliceMut;
use std::ops::Range;

use platter_ondisk::{Corrupt, Corruption, Locus};
use platter_vfs::check::{Checking as _, Finding};
use platter_vfs::{Error, Result};

use super::{Checker, DataRule, Flow};
use crate::chunk::{Placement, Segment};
use crate::data::Checksums;
use crate::ondisk::chunk_item::{ChunkItem, Profile, STRIPE_BYTES};
use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::extent_item::{ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::file_extent::{Compression, FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use crate::tree::Tree;

/// Data that is read at once.
const READ_BYTES: u64 = 1 << 20;
/// References to an extent that are looked at to name a file.
const REFERENCES_MAX: usize = 256;
/// File extents that are looked at to name the files of an extent.
const FILE_EXTENTS_MAX: usize = 1 << 16;
/// Uses of an extent that are kept.
const USES_MAX: usize = 4096;
/// The longest compressed extent when it is decompressed.
const COMPRESSED_BYTES_MAX: u64 = 128 << 10;

/// A file that a sector of data is of.
#[derive(Debug, Clone, Copy)]
struct Owner {
    tree: TreeId,
    key: Key,
}

/// A data extent, and the files that use parts of it.
#[derive(Debug)]
pub(super) struct Owned {
    extent: Range<u64>,
    /// The logical range of each use.
    uses: Vec<(Range<u64>, Owner)>,
    /// File extents that may still be looked at.
    left: usize,
}

impl Owned {
    /// The first file that uses a sector; of one that none uses, the first that refers to its extent.
    fn owner_of(&self, at: u64) -> Option<Owner> {
        let user = self.uses.iter().find(|(used, _)| used.contains(&at));
        user.or(self.uses.first()).map(|(_, owner)| *owner)
    }

    /// Records a file extent if it uses the extent. Returns `false` if no more are to be looked at.
    fn look_at(&mut self, file_extent: &FileExtent<'_>, owner: Owner) -> bool {
        if let Some(used) = used_range(file_extent, self.extent.start) {
            self.uses.push((used, owner));
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0 && self.uses.len() < USES_MAX
    }
}

impl Checker<'_> {
    /// Reads all data that has checksums.
    pub(super) fn verify_data(&mut self) -> Flow {
        let context = self.context;
        let locus = Locus::tree(TreeId::CSUM.0);
        let tree = context.required_tree(TreeId::CSUM);
        let Some(tree) = self.tolerate("tree", locus, tree)? else {
            return Ok(());
        };
        let mut cursor = context.cursor(tree);
        let from = Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, 0);
        let sought = cursor.seek(from);
        if self.tolerate("tree", locus, sought)?.is_none() {
            return Ok(());
        }
        let mut done = 0u64;
        loop {
            let Some((key, data)) = cursor.item() else {
                return Ok(());
            };
            if key.object == EXTENT_CSUM_OBJECT && key.kind == ItemKind::EXTENT_CSUM {
                done = done.saturating_add(self.verify_item(tree, key, data)?);
                let total = context.superblock.bytes_used.max(done);
                self.report.progress("data", done, total)?;
            }
            let stepped = cursor.step();
            // What follows in the tree cannot be found without the block that is corrupt.
            if self.tolerate("tree", locus, stepped)?.is_none() {
                return Ok(());
            }
        }
    }

    /// Reads the data of an item of checksums. Returns how much it is.
    fn verify_item(&mut self, tree: Tree, key: Key, data: &[u8]) -> Flow<u64> {
        let (kind, sector) = (self.format.checksum_kind, self.format.sector_bytes);
        let locus = tree.locus(key);
        let item = CsumItem::decode(key, data, kind, sector, locus).map_err(Error::from);
        let Some(item) = self.tolerate("csum item", locus, item)? else {
            return Ok(0);
        };
        let mut at = item.start;
        while at < item.end {
            let context = self.context;
            let map = context.blocks.store().map();
            let chunk = map.find(at).map_err(Error::from);
            let Some(chunk) = self.tolerate("chunk map", locus, chunk)? else {
                break;
            };
            let left = (item.end.0 - at.0).min(READ_BYTES);
            let segment = chunk.segment(at, left);
            self.verify_segment(chunk, &segment, at, &item)?;
            at.0 = at.0.saturating_add(segment.len_bytes.max(1));
        }
        let len_bytes = item.end.0 - item.start.0;
        self.report.count("sectors", len_bytes / u64::from(sector));
        Ok(len_bytes)
    }

    /// Reads a piece that no stripe boundary divides, from each of its copies.
    fn verify_segment(
        &mut self,
        chunk: &ChunkItem,
        segment: &Segment,
        start: LogicalAddr,
        item: &CsumItem<'_>,
    ) -> Flow {
        let store = self.context.blocks.store();
        let count = store.copies(start, segment.len_bytes);
        let mut bytes = vec![0; usize::try_from(segment.len_bytes).unwrap_or_default()];
        for copy in copies_to_read(chunk.profile, count) {
            let bufs = &mut [IoSliceMut::new(&mut bytes)];
            let read = store.read(start, copy, bufs);
            let is_read = read.is_ok();
            if let Err(error) = read
                && segment.len_bytes <= self.format.sector_bytes.into()
            {
                if !self.follows_from_row(chunk, start, copy) {
                    self.report_unreadable(start, copy, error.into())?;
                }
                continue;
            }
            let sector_bytes = self.format.sector_bytes as usize;
            let mut at = start;
            for sector in bytes.chunks_mut(sector_bytes) {
                // What cannot be read at once may be read in part.
                if !is_read {
                    let bufs = &mut [IoSliceMut::new(&mut *sector)];
                    if let Err(error) = store.read(at, copy, bufs) {
                        if !self.follows_from_row(chunk, at, copy) {
                            self.report_unreadable(at, copy, error.into())?;
                        }
                        at.0 += sector_bytes as u64;
                        continue;
                    }
                }
                let stored = item.checksum(at).unwrap_or_default();
                let is_good = self.format.checksum_kind.matches(sector, stored);
                if !is_good && !self.follows_from_row(chunk, at, copy) {
                    self.report_sector(at, copy)?;
                }
                at.0 += sector_bytes as u64;
            }
        }
        Ok(())
    }

    /// Whether a sector was reconstructed from data of its row that is itself bad, which is reported where it is read.
    fn follows_from_row(&self, chunk: &ChunkItem, at: LogicalAddr, copy: u16) -> bool {
        let Placement::Parity { data, .. } = chunk.segment(at, 1).placement else {
            return false;
        };
        if self.context.blocks.store().location(at, copy).is_some() {
            return false;
        }
        let stripe_at = |index: usize| (index as u64).saturating_mul(STRIPE_BYTES);
        let first = at.0.saturating_sub(stripe_at(data));
        let others = (0..chunk.data_stripes()).filter(|other| *other != data);
        let mut others = others.map(|other| LogicalAddr(first.saturating_add(stripe_at(other))));
        others.any(|other| self.is_bad(other))
    }

    /// Whether a sector that has a checksum does not match it, or cannot be read. Others are read with their row only,
    /// which is reported then.
    fn is_bad(&self, at: LogicalAddr) -> bool {
        let sector_bytes = self.format.sector_bytes;
        let stored = Checksums::read(self.context, at, sector_bytes.into());
        let Some(stored) = stored.ok().filter(|stored| stored.is_stored(0)) else {
            return false;
        };
        let store = self.context.blocks.store();
        if store.location(at, 0).is_none() {
            return false;
        }
        let mut sector = vec![0; sector_bytes as usize];
        let read = store.read(at, 0, &mut [IoSliceMut::new(&mut sector)]);
        read.is_err() || !stored.matches(0, &sector)
    }

    fn report_unreadable(&mut self, at: LogicalAddr, copy: u16, error: Error) -> Flow {
        let (locus, owner) = self.locus_of_sector(at, copy);
        let finding = Finding::of_error("data", locus, error);
        self.report_owned(finding, owner)
    }

    /// Reports a sector that does not match.
    fn report_sector(&mut self, at: LogicalAddr, copy: u16) -> Flow {
        let (locus, owner) = self.locus_of_sector(at, copy);
        let rule = if locus.parts().member.is_some() {
            DataRule::Checksum
        } else {
            DataRule::Parity
        };
        let corruption = Corruption::from(Corrupt::new(locus, rule));
        self.report_owned(Finding::error(corruption), owner)
    }

    fn report_owned(&mut self, finding: Finding, owner: Option<Owner>) -> Flow {
        if owner.is_none() {
            self.report.count("sectors without a file", 1);
        }
        self.report_finding(finding)
    }

    fn locus_of_sector(&mut self, at: LogicalAddr, copy: u16) -> (Locus, Option<Owner>) {
        let mut locus = Locus::block(at.0).of_copy(copy);
        if let Some((member, place)) = self.context.blocks.store().location(at, copy) {
            locus = locus.on_member(member.id.0).at_offset(place.0);
        }
        // What cannot be read is what a check is for; the sector is reported without a file.
        let owner = self.owner_of(at).ok().flatten();
        if let Some(owner) = owner {
            locus = locus.in_tree(owner.tree.0).at_key(owner.key.into());
            locus = locus.of_inode(owner.key.object);
        }
        (locus, owner)
    }

    /// The first file that uses a sector; of an extent whose other parts alone are used, the first that
    /// refers to it. The uses of an extent are kept for its other sectors.
    fn owner_of(&mut self, at: LogicalAddr) -> Result<Option<Owner>> {
        let known = self.owned.take();
        let known = known.filter(|owned| owned.extent.contains(&at.0));
        let owned = match known {
            Some(owned) => Some(owned),
            None => self.uses_of(at)?,
        };
        let owner = owned.as_ref().and_then(|owned| owned.owner_of(at.0));
        self.owned = owned;
        Ok(owner)
    }

    /// The extent that an address is in, and its uses.
    fn uses_of(&self, at: LogicalAddr) -> Result<Option<Owned>> {
        let Some((extent, references)) = self.references_to(at)? else {
            return Ok(None);
        };
        let mut owned = Owned {
            extent,
            uses: Vec::new(),
            left: FILE_EXTENTS_MAX,
        };
        for reference in references {
            // What cannot be read is what a check is for; others may name the file.
            let _ = match reference {
                ExtentRef::Data {
                    tree,
                    inode,
                    offset,
                    count: _,
                } => self.uses_in_file(tree, inode, offset, &mut owned),
                ExtentRef::SharedData { parent, count: _ } => self.uses_in_leaf(parent, &mut owned),
                ExtentRef::TreeBlock { .. }
                | ExtentRef::SharedBlock { .. }
                | ExtentRef::Owner { .. } => Ok(()),
            };
            if owned.left == 0 || owned.uses.len() >= USES_MAX {
                break;
            }
        }
        Ok(Some(owned))
    }

    /// The data extent that an address is in, and its references.
    fn references_to(&self, at: LogicalAddr) -> Result<Option<(Range<u64>, Vec<ExtentRef>)>> {
        let context = self.context;
        let tree = context.required_tree(TreeId::EXTENT)?;
        let mut cursor = context.cursor(tree);
        let last = Key::new(at.0, ItemKind::EXTENT_ITEM, u64::MAX);
        if !cursor.seek_at_or_before(last)? {
            return Ok(None);
        }
        // Keyed references and block groups may be in between.
        let start = cursor.key().map_or(0, |key| key.object);
        cursor.seek(Key::new(start, ItemKind::EXTENT_ITEM, 0))?;
        let mut references = Vec::new();
        let mut extent = start..start;
        while let Some((key, data)) = cursor.item().filter(|(key, _)| key.object == start) {
            let locus = tree.locus(key);
            match key.kind {
                ItemKind::EXTENT_ITEM => {
                    let item = ExtentItem::decode(key, data, locus)?;
                    let holds = at.0 - start < key.offset;
                    if item.kind != ExtentKind::Data || !holds {
                        return Ok(None);
                    }
                    extent.end = start.saturating_add(key.offset);
                    references.extend(item.inline);
                }
                ItemKind::EXTENT_DATA_REF | ItemKind::SHARED_DATA_REF => {
                    references.push(ExtentRef::decode_keyed(key, data, locus)?);
                }
                ItemKind(_) => {}
            }
            if references.len() >= REFERENCES_MAX {
                break;
            }
            cursor.step()?;
        }
        Ok((!extent.is_empty()).then_some((extent, references)))
    }

    /// Looks among the extents of a file that may refer to an extent, so that its beginning is at `offset`.
    fn uses_in_file(&self, id: TreeId, inode: u64, offset: u64, owned: &mut Owned) -> Result<()> {
        let context = self.context;
        let Some(tree) = context.tree(id)? else {
            return Ok(());
        };
        let len_bytes = owned.extent.end - owned.extent.start;
        let end = offset.wrapping_add(len_bytes.max(COMPRESSED_BYTES_MAX));
        // The offset wraps where an extent's beginning is not used by a file's.
        let from = if offset < end { offset } else { 0 };
        let mut cursor = context.cursor(tree);
        cursor.seek(Key::new(inode, ItemKind::EXTENT_DATA, from))?;
        while let Some((key, data)) = cursor.item() {
            let is_near = key.object == inode && key.offset < end;
            if !is_near || key.kind != ItemKind::EXTENT_DATA {
                break;
            }
            let sector = self.format.sector_bytes;
            let extent = FileExtent::decode(data, key.offset, sector, tree.locus(key))?;
            if !owned.look_at(&extent, Owner { tree: id, key }) {
                break;
            }
            cursor.step()?;
        }
        Ok(())
    }

    /// Looks among the extents in a leaf.
    fn uses_in_leaf(&self, leaf: LogicalAddr, owned: &mut Owned) -> Result<()> {
        let block = self.context.blocks.read(leaf, &Expected::default())?;
        let Some(header) = block.header().filter(|header| header.level == 0) else {
            return Ok(());
        };
        let tree = header.owner;
        for (key, data) in block.leaf().iter() {
            if key.kind != ItemKind::EXTENT_DATA {
                continue;
            }
            let locus = Locus::tree(tree.0).at_key(key.into());
            let extent = FileExtent::decode(data, key.offset, self.format.sector_bytes, locus)?;
            if !owned.look_at(&extent, Owner { tree, key }) {
                break;
            }
        }
        Ok(())
    }
}

/// The logical range of the extent at `start` that a file extent uses; `None` if it is of another one.
fn used_range(extent: &FileExtent<'_>, start: u64) -> Option<Range<u64>> {
    let place = match extent.kind {
        FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) => place,
        FileExtentKind::Inline(_) | FileExtentKind::Hole => return None,
    };
    if place.logical.0 != start {
        return None;
    }
    if extent.compression != Compression::None {
        return Some(start..start.saturating_add(place.disk_bytes));
    }
    let from = start.saturating_add(place.offset);
    Some(from..from.saturating_add(extent.file_bytes))
}

/// The copies that are read of data. Of parity, the data itself and what P and Q say it is.
fn copies_to_read(profile: Profile, count: u16) -> Vec<u16> {
    let last_but_one = count.saturating_sub(2);
    if profile == Profile::Raid6 && last_but_one > 1 {
        return vec![0, 1, last_but_one];
    }
    (0..count.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_is_read_by_p_and_by_q() {
        assert_eq!(copies_to_read(Profile::Raid1C3, 3), [0, 1, 2]);
        assert_eq!(copies_to_read(Profile::Single, 0), [0]);
        // The data, P, and the reconstructions without one of two other data, P and Q.
        assert_eq!(copies_to_read(Profile::Raid6, 6), [0, 1, 4]);
        assert_eq!(copies_to_read(Profile::Raid6, 2), [0, 1]);
    }
}
