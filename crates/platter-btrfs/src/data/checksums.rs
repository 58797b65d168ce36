//! The stored checksums of a range of data.

use platter_vfs::Result;

use crate::context::FsContext;
use crate::ondisk::checksum::ChecksumKind;
use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::ondisk::{Key, LogicalAddr, TreeId};

/// The stored checksums of the sectors of a range.
#[derive(Debug, Clone)]
pub struct Checksums {
    kind: ChecksumKind,
    sector_bytes: usize,
    /// One for each sector, zeros where none is stored.
    bytes: Vec<u8>,
    /// Whether each sector has one, which may be zero.
    stored: Vec<bool>,
}

impl Checksums {
    /// Reads the checksums of the sectors from `start` on. As in the kernel, a sector without a stored
    /// checksum is taken for one whose checksum is zero.
    pub fn read(context: &FsContext, start: LogicalAddr, len_bytes: u64) -> Result<Self> {
        let kind = context.superblock.checksum_kind;
        let sector_bytes = context.sector_bytes();
        let sector = u64::from(sector_bytes);
        let count = usize::try_from(len_bytes.div_ceil(sector)).unwrap_or(usize::MAX);
        let width = kind.len_bytes();
        let mut checksums = Self {
            kind,
            sector_bytes: sector_bytes as usize,
            bytes: vec![0; count.saturating_mul(width)],
            stored: vec![false; count],
        };
        let tree = context.required_tree(TreeId::CSUM)?;
        let mut cursor = context.cursor(tree);
        let key = |at: LogicalAddr| Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, at.0);
        if !cursor.seek_at_or_before(key(start))? {
            cursor.seek(key(start))?;
        }
        let end = LogicalAddr(start.0.saturating_add(len_bytes));
        while let Some((key, data)) = cursor.item() {
            if key.object > EXTENT_CSUM_OBJECT || LogicalAddr(key.offset) >= end {
                break;
            }
            if key.object == EXTENT_CSUM_OBJECT && key.kind == ItemKind::EXTENT_CSUM {
                let locus = tree.locus(key);
                let item = CsumItem::decode(key, data, kind, sector_bytes, locus)?;
                checksums.take(&item, start, end);
            }
            cursor.step()?;
        }
        Ok(checksums)
    }

    fn take(&mut self, item: &CsumItem<'_>, start: LogicalAddr, end: LogicalAddr) {
        let width = self.kind.len_bytes();
        let sector = self.sector_bytes as u64;
        let mut at = item.start.max(start);
        while at < item.end.min(end) {
            let index = usize::try_from((at.0 - start.0) / sector).unwrap_or(usize::MAX);
            let slot = index
                .checked_mul(width)
                .and_then(|from| self.bytes.get_mut(from..));
            if let (Some(slot), Some(checksum)) = (slot, item.checksum(at))
                && let Some(slot) = slot.get_mut(..width)
            {
                slot.copy_from_slice(checksum);
                if let Some(stored) = self.stored.get_mut(index) {
                    *stored = true;
                }
            }
            at.0 += sector;
        }
    }

    /// The size of a sector.
    #[must_use]
    pub fn sector_bytes(&self) -> usize {
        self.sector_bytes
    }

    /// Whether verifying takes so long that several threads do it sooner than one.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        matches!(self.kind, ChecksumKind::Sha256 | ChecksumKind::Blake2b)
    }

    /// Whether a checksum is stored for the sector number `index` of the range.
    #[must_use]
    pub fn is_stored(&self, index: usize) -> bool {
        self.stored.get(index).is_some_and(|stored| *stored)
    }

    /// The checksums of all sectors; `None` where one has none stored.
    #[must_use]
    pub fn all(&self) -> Option<&[u8]> {
        let is_whole = self.stored.iter().all(|stored| *stored);
        is_whole.then_some(&self.bytes)
    }

    /// Whether the sector number `index` of the range has these bytes.
    #[must_use]
    pub fn matches(&self, index: usize, sector: &[u8]) -> bool {
        let width = self.kind.len_bytes();
        let from = index.saturating_mul(width);
        let stored = self.bytes.get(from..).unwrap_or_default();
        self.kind.matches(sector, stored)
    }
}
