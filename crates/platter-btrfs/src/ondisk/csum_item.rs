//! A checksum item: the checksums of consecutive sectors of data. Spec: `btrfs/csum_item`.

use platter_ondisk::{Corrupt, Locus, rules};

use super::checksum::ChecksumKind;
use super::key::Key;
use super::types::{EXTENT_CSUM_OBJECT, LogicalAddr};

rules! {
    /// The rules of a checksum item.
    pub enum CsumItemRule of "csum item" {
        /// It has whole checksums, at least one.
        Size => "unaligned item size",
        /// The key has the object of checksums.
        Object => "invalid key objectid",
        /// It begins at a sector, and ends within the address space.
        Address => "unaligned key offset",
    }
}

/// The checksums of consecutive sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsumItem<'a> {
    /// The first sector.
    pub start: LogicalAddr,
    /// The end of the last.
    pub end: LogicalAddr,
    checksums: &'a [u8],
    sector_bytes: u32,
    checksum_bytes: usize,
}

impl<'a> CsumItem<'a> {
    /// Decodes the item with this key.
    pub fn decode(
        key: Key,
        bytes: &'a [u8],
        kind: ChecksumKind,
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<Self, Corrupt<CsumItemRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let checksum_bytes = kind.len_bytes();
        if bytes.is_empty() || !bytes.len().is_multiple_of(checksum_bytes) {
            return Err(broken(CsumItemRule::Size));
        }
        if key.object != EXTENT_CSUM_OBJECT {
            return Err(broken(CsumItemRule::Object));
        }
        let start = LogicalAddr(key.offset);
        let count = bytes.len().checked_div(checksum_bytes).unwrap_or_default();
        let len_bytes = u64::from(sector_bytes).checked_mul(count as u64);
        let end = len_bytes.and_then(|len_bytes| start.checked_add(len_bytes));
        let is_aligned = start.0.is_multiple_of(u64::from(sector_bytes));
        let end = end
            .filter(|_| is_aligned)
            .ok_or(broken(CsumItemRule::Address))?;
        Ok(Self {
            start,
            end,
            checksums: bytes,
            sector_bytes,
            checksum_bytes,
        })
    }

    /// The checksum of the sector at `logical`, if it is one of them.
    #[must_use]
    pub fn checksum(&self, logical: LogicalAddr) -> Option<&'a [u8]> {
        let distance = logical.checked_since(self.start)?;
        let index = distance.checked_div(u64::from(self.sector_bytes))?;
        let at = usize::try_from(index)
            .ok()?
            .checked_mul(self.checksum_bytes)?;
        self.checksums.get(at..)?.get(..self.checksum_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::key::ItemKind;

    fn decode(object: u64, start: u64, bytes: &[u8]) -> Result<CsumItem<'_>, CsumItemRule> {
        let key = Key::new(object, ItemKind::EXTENT_CSUM, start);
        let decoded = CsumItem::decode(key, bytes, ChecksumKind::Crc32c, 4096, Locus::UNKNOWN);
        decoded.map_err(|corrupt| corrupt.rule)
    }

    #[test]
    fn checksums_are_found_by_sector() {
        let item = decode(EXTENT_CSUM_OBJECT, 8192, b"aaaabbbb").unwrap();
        let checksum = |at| item.checksum(LogicalAddr(at));
        assert_eq!(item.end, LogicalAddr(16384));
        assert_eq!(checksum(8192), Some(&b"aaaa"[..]));
        assert_eq!(checksum(12288), Some(&b"bbbb"[..]));
        assert_eq!(checksum(4096), None);
        assert_eq!(checksum(16384), None);
    }

    #[test]
    fn broken_items_are_refused() {
        let object = EXTENT_CSUM_OBJECT;
        assert_eq!(decode(object, 0, b"aaa"), Err(CsumItemRule::Size));
        assert_eq!(decode(object, 0, b""), Err(CsumItemRule::Size));
        assert_eq!(decode(1, 0, b"aaaa"), Err(CsumItemRule::Object));
        assert_eq!(decode(object, 1, b"aaaa"), Err(CsumItemRule::Address));
        let last = !4095;
        assert_eq!(decode(object, last, b"aaaa"), Err(CsumItemRule::Address));
    }
}
