//! The checksum tree: items do not overlap, and are of extents.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::ranges::Ranges;
use super::{Checker, CsumUseRule, Flow};
use crate::ondisk::csum_item::CsumItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::ondisk::{Key, TreeId};

impl Checker<'_> {
    /// Records an item of the checksum tree.
    pub(super) fn note_csums(&mut self, key: Key, data: &[u8], locus: Locus) -> Flow {
        if key.kind != ItemKind::EXTENT_CSUM {
            return Ok(());
        }
        let (kind, sector) = (self.format.checksum_kind, self.format.sector_bytes);
        let Ok(item) = CsumItem::decode(key, data, kind, sector, locus) else {
            return Ok(());
        };
        if item.start < self.summed_to {
            self.found(locus, CsumUseRule::Overlap)?;
        }
        self.summed_to = self.summed_to.max(item.end);
        self.summed.add(item.start.0..item.end.0);
        Ok(())
    }

    /// Checks that all checksums are of data extents.
    pub(super) fn check_csums(&mut self) -> Flow {
        if self.is_blind {
            return Ok(());
        }
        let mut data = Ranges::default();
        for extent in self.extents.iter().filter(|extent| extent.is_data()) {
            data.add(extent.start..extent.end());
        }
        data.sort();
        let stray: Vec<_> = self
            .summed
            .iter()
            .filter_map(|run| data.first_missing(run))
            .collect();
        for run in stray {
            let key = Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, run.start);
            let locus = Locus::tree(TreeId::CSUM.0).at_key(key.into());
            self.found(locus.at_block(run.start), CsumUseRule::NoExtent)?;
        }
        Ok(())
    }
}
