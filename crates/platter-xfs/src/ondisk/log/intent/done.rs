//! What says that an intent was finished. Spec: `xfs/journaling_log`, "Completion of Intent to Free an
//! Extent".

use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{ItemHeader, ItemKind, LogRule};
use super::extent::{Extent, on_disk};

/// A done item; that of extents names them again.
/// Spec: `xfs/journaling_log`, `struct xfs_rud_log_format`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDone {
    /// `rud_type`.
    pub kind: Le16,
    /// `rud_size`.
    pub regions: Le16,
    /// Padding, or `efd_nextents`.
    pub extents: Le32,
    /// `rud_rui_id`.
    pub intent: Le64,
}

const _: () = assert!(size_of::<DiskDone>() == 16);

/// A done item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Done {
    /// The type of the intent that is done.
    pub intent_kind: ItemKind,
    /// The intent's id.
    pub id: u64,
}

const PAIRS: [(ItemKind, ItemKind); 9] = [
    (ItemKind::ExtentFree, ItemKind::ExtentFreeDone),
    (ItemKind::Rmap, ItemKind::RmapDone),
    (ItemKind::Refcount, ItemKind::RefcountDone),
    (ItemKind::Bmap, ItemKind::BmapDone),
    (ItemKind::Attr, ItemKind::AttrDone),
    (ItemKind::Exchange, ItemKind::ExchangeDone),
    (ItemKind::RtExtentFree, ItemKind::RtExtentFreeDone),
    (ItemKind::RtRmap, ItemKind::RtRmapDone),
    (ItemKind::RtRefcount, ItemKind::RtRefcountDone),
];

impl Done {
    /// Validates the region of a done item; `None` for items that are none.
    pub fn decode(region: &[u8], locus: Locus) -> Result<Option<Self>, Corrupt<LogRule>> {
        let kind = ItemHeader::decode(region, locus)?.kind;
        let Some((intent_kind, _)) = PAIRS.iter().find(|(_, done)| *done == kind) else {
            return Ok(None);
        };
        let Ok((disk, _)) = DiskDone::ref_from_prefix(region) else {
            return Err(Corrupt::new(locus, LogRule::ItemLength));
        };
        Ok(Some(Self {
            intent_kind: *intent_kind,
            id: disk.intent.get(),
        }))
    }

    /// The region of the item; `extents` are those of an intent to free extents, else none.
    #[must_use]
    pub fn encode(&self, extents: &[Extent]) -> Vec<u8> {
        let done = PAIRS.iter().find(|(intent, _)| *intent == self.intent_kind);
        let kind = done.map_or(self.intent_kind, |(_, done)| *done);
        let disk = DiskDone {
            kind: kind.number().into(),
            regions: 1.into(),
            extents: u32::try_from(extents.len()).unwrap_or(u32::MAX).into(),
            intent: self.id.into(),
        };
        let mut region = disk.as_bytes().to_vec();
        region.extend_from_slice(on_disk(extents).as_bytes());
        region
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_items_name_their_intents() {
        for (intent_kind, _) in PAIRS {
            let done = Done {
                intent_kind,
                id: 77,
            };
            let extents = [Extent { start: 5, len: 6 }];
            let region = done.encode(&extents);
            assert_eq!(region.len(), 32);
            assert_eq!(Done::decode(&region, Locus::UNKNOWN), Ok(Some(done)));
            let short = Done::decode(&region[..12], Locus::UNKNOWN).unwrap_err();
            assert_eq!(short.rule, LogRule::ItemLength);
        }
        let buffer = [0x3c, 0x12, 2, 0];
        assert_eq!(Done::decode(&buffer, Locus::UNKNOWN), Ok(None));
    }
}
