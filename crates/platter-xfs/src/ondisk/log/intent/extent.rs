//! The intent to free extents. Spec: `xfs/journaling_log`, "Intent to Free an Extent".

use platter_ondisk::endian::{Le32, Le64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{ItemKind, LogRule};
use super::{Section, head};

/// An extent. Spec: `xfs/journaling_log`, `struct xfs_extent_64`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskExtent {
    /// `ext_start`.
    pub start: Le64,
    /// `ext_len`.
    pub len: Le32,
    /// `ext_pad`.
    pub pad: Le32,
}

/// The same from machines that do not pad it. Spec: `xfs/journaling_log`, `struct xfs_extent_32`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskExtent32 {
    /// `ext_start`.
    pub start: Le64,
    /// `ext_len`.
    pub len: Le32,
}

const _: () = assert!(size_of::<DiskExtent>() == 16);
const _: () = assert!(size_of::<DiskExtent32>() == 12);

/// Blocks that follow each other: filesystem blocks, or blocks of the realtime device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// The first block.
    pub start: u64,
    /// Number of blocks.
    pub len: u32,
}

/// The intent to free extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentFree {
    /// Where the extents lie.
    pub section: Section,
    /// What the done item names.
    pub id: u64,
    /// The extents.
    pub extents: Vec<Extent>,
}

impl ExtentFree {
    pub(super) fn decode(region: &[u8], section: Section) -> Result<Self, LogRule> {
        let (id, extents) = if let Ok((id, extents)) = head::split::<DiskExtent>(region) {
            let extents = extents.iter().map(|one| (one.start, one.len));
            (id, extents.collect::<Vec<_>>())
        } else {
            let (id, extents) = head::split::<DiskExtent32>(region)?;
            let extents = extents.iter().map(|one| (one.start, one.len));
            (id, extents.collect())
        };
        let extents = extents.into_iter().map(|(start, len)| Extent {
            start: start.get(),
            len: len.get(),
        });
        Ok(Self {
            section,
            id,
            extents: extents.collect(),
        })
    }

    /// The region of the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.section {
            Section::Data => ItemKind::ExtentFree,
            Section::Realtime => ItemKind::RtExtentFree,
        };
        head::join(kind, self.id, &on_disk(&self.extents))
    }
}

/// Extents as intents and done items have them.
pub(super) fn on_disk(extents: &[Extent]) -> Vec<DiskExtent> {
    let extents = extents.iter().map(|extent| DiskExtent {
        start: extent.start.into(),
        len: extent.len.into(),
        pad: 0.into(),
    });
    extents.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_decode_to_the_same() {
        let extents = vec![
            Extent {
                start: 0x72_0daf,
                len: 1,
            },
            Extent { start: 99, len: 8 },
        ];
        let intent = ExtentFree {
            section: Section::Data,
            id: 0x1234_5678_9abc_def0,
            extents,
        };
        let region = intent.encode();
        assert_eq!(region.len(), 48);
        assert_eq!(
            ExtentFree::decode(&region, Section::Data),
            Ok(intent.clone())
        );
        let unpadded = [&region[..28], &region[32..44]].concat();
        assert_eq!(ExtentFree::decode(&unpadded, Section::Data), Ok(intent));
        let refused = ExtentFree::decode(&region[..47], Section::Data);
        assert_eq!(refused, Err(LogRule::IntentLength));
        let refused = ExtentFree::decode(&region[..15], Section::Data);
        assert_eq!(refused, Err(LogRule::ItemLength));
    }
}
