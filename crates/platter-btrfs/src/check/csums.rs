//! The checksum tree: items do not overlap, and are of extents.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::ranges::Ranges;
use super::{Checker, CsumUseRule, Flow};
use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::ondisk::{Key, LogicalAddr, TreeId};

/// What the checksum tree says.
#[derive(Debug, Default)]
pub(super) struct Csums {
    /// Data that has checksums.
    pub(super) ranges: Ranges,
    /// The end of the last item.
    end: LogicalAddr,
    /// Checksums are missing because a block could not be read.
    pub(super) is_torn: bool,
}

/// Records an item of the checksum tree.
pub(super) fn note_item(checker: &mut Checker<'_>, key: Key, data: &[u8], locus: Locus) -> Flow {
    if key.kind != ItemKind::EXTENT_CSUM {
        return Ok(());
    }
    let (kind, sector) = (checker.format.checksum_kind, checker.format.sector_bytes);
    let Ok(item) = CsumItem::decode(key, data, kind, sector, locus) else {
        return Ok(());
    };
    if item.start < checker.csums.end {
        checker.found(locus, CsumUseRule::Overlap)?;
    }
    checker.csums.end = checker.csums.end.max(item.end);
    checker.csums.ranges.add(item.start.0..item.end.0);
    Ok(())
}

/// Checks that all checksums are of data extents.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    if checker.is_blind {
        return Ok(());
    }
    let mut data = Ranges::default();
    for extent in checker.extents.iter().filter(|extent| extent.is_data()) {
        data.add(extent.start..extent.end());
    }
    data.sort();
    let stray: Vec<_> = checker
        .csums
        .ranges
        .iter()
        .filter_map(|run| data.first_missing(run))
        .collect();
    for run in stray {
        let key = Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, run.start);
        let locus = Locus::tree(TreeId::CSUM.0).at_key(key.into());
        checker.found(locus.at_block(run.start), CsumUseRule::NoExtent)?;
    }
    Ok(())
}
