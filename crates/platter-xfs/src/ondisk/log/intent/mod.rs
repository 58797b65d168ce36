//! Intents: items that name updates still to be done, until a done item names them. Finishing them is
//! what makes an update of several transactions atomic. Spec: `xfs/journaling_log`.

pub mod extent;
pub mod mapping;
pub mod refcount;
pub mod attr;
pub mod exchange;
pub mod done;

use platter_ondisk::{Corrupt, Locus};

use super::{ItemHeader, ItemKind, LogRule};

pub use attr::{AttrFilter, AttrIntent, AttrOp};
pub use done::Done;
pub use exchange::{ExchangeFlags, ExchangeIntent};
pub use extent::{Extent, ExtentFree};
pub use mapping::{BmapIntent, BmapUpdate, MapExtent, RmapIntent, RmapOp, RmapUpdate};
pub use refcount::{PhysExtent, RefcountIntent, RefcountOp};

/// Where the extents of an intent lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    /// On the data device.
    Data,
    /// On the realtime device.
    Realtime,
}

/// An intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// Free extents.
    ExtentFree(ExtentFree),
    /// Update the reverse mapping.
    Rmap(RmapIntent),
    /// Update reference counts.
    Refcount(RefcountIntent),
    /// Update a file's block mapping.
    Bmap(BmapIntent),
    /// Change an extended attribute.
    Attr(AttrIntent),
    /// Exchange mappings of two files.
    Exchange(ExchangeIntent),
}

impl Intent {
    /// Validates the regions of an intent; `None` for items that are none.
    pub fn decode(regions: &[Vec<u8>], locus: Locus) -> Result<Option<Self>, Corrupt<LogRule>> {
        let first = regions.first().map(Vec::as_slice).unwrap_or_default();
        let kind = ItemHeader::decode(first, locus)?.kind;
        let decoded = match kind {
            ItemKind::ExtentFree => ExtentFree::decode(first, Section::Data).map(Self::ExtentFree),
            ItemKind::RtExtentFree => {
                ExtentFree::decode(first, Section::Realtime).map(Self::ExtentFree)
            }
            ItemKind::Rmap => RmapIntent::decode(first, Section::Data).map(Self::Rmap),
            ItemKind::RtRmap => RmapIntent::decode(first, Section::Realtime).map(Self::Rmap),
            ItemKind::Refcount => RefcountIntent::decode(first, Section::Data).map(Self::Refcount),
            ItemKind::RtRefcount => {
                RefcountIntent::decode(first, Section::Realtime).map(Self::Refcount)
            }
            ItemKind::Bmap => BmapIntent::decode(first).map(Self::Bmap),
            ItemKind::Attr => AttrIntent::decode(regions).map(Self::Attr),
            ItemKind::Exchange => ExchangeIntent::decode(first).map(Self::Exchange),
            ItemKind::Inode
            | ItemKind::Buffer
            | ItemKind::Dquot
            | ItemKind::QuotaOff
            | ItemKind::InodeCreate
            | ItemKind::ExtentFreeDone
            | ItemKind::RmapDone
            | ItemKind::RefcountDone
            | ItemKind::BmapDone
            | ItemKind::AttrDone
            | ItemKind::ExchangeDone
            | ItemKind::RtExtentFreeDone
            | ItemKind::RtRmapDone
            | ItemKind::RtRefcountDone => return Ok(None),
        };
        decoded.map(Some).map_err(|rule| Corrupt::new(locus, rule))
    }

    /// The type of the intent's log item.
    #[must_use]
    pub fn kind(&self) -> ItemKind {
        let by_section = |section, data, realtime| match section {
            Section::Data => data,
            Section::Realtime => realtime,
        };
        match self {
            Self::ExtentFree(intent) => {
                by_section(intent.section, ItemKind::ExtentFree, ItemKind::RtExtentFree)
            }
            Self::Rmap(intent) => by_section(intent.section, ItemKind::Rmap, ItemKind::RtRmap),
            Self::Refcount(intent) => {
                by_section(intent.section, ItemKind::Refcount, ItemKind::RtRefcount)
            }
            Self::Bmap(_) => ItemKind::Bmap,
            Self::Attr(_) => ItemKind::Attr,
            Self::Exchange(_) => ItemKind::Exchange,
        }
    }

    /// The number that binds the done item to this intent.
    #[must_use]
    pub fn id(&self) -> u64 {
        match self {
            Self::ExtentFree(intent) => intent.id,
            Self::Rmap(intent) => intent.id,
            Self::Refcount(intent) => intent.id,
            Self::Bmap(intent) => intent.id,
            Self::Attr(intent) => intent.id,
            Self::Exchange(intent) => intent.id,
        }
    }
}

/// The first bytes of intents with extents.
mod head {
    use platter_ondisk::endian::{Le16, Le32, Le64};
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

    use super::{ItemKind, LogRule};

    /// What precedes the extents of an intent: type, size, number of extents, id.
    /// Spec: `xfs/journaling_log`, `struct xfs_efi_log_format`.
    #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
    #[repr(C)]
    pub(super) struct DiskIntentHead {
        /// `efi_type`.
        pub kind: Le16,
        /// `efi_size`.
        pub regions: Le16,
        /// `efi_nextents`.
        pub extents: Le32,
        /// `efi_id`.
        pub id: Le64,
    }

    const _: () = assert!(size_of::<DiskIntentHead>() == 16);

    /// Splits an intent into its id and its extents, of which there are as many as it says.
    pub(super) fn split<T>(region: &[u8]) -> Result<(u64, &[T]), LogRule>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let (head, rest) =
            DiskIntentHead::ref_from_prefix(region).map_err(|_| LogRule::ItemLength)?;
        let count = usize::try_from(head.extents.get()).map_err(|_| LogRule::IntentLength)?;
        // No count is believed that the region cannot hold.
        if count > rest.len() {
            return Err(LogRule::IntentLength);
        }
        let extents =
            <[T]>::ref_from_bytes_with_elems(rest, count).map_err(|_| LogRule::IntentLength)?;
        Ok((head.id.get(), extents))
    }

    /// The region of an intent with these extents.
    pub(super) fn join<T>(kind: ItemKind, id: u64, extents: &[T]) -> Vec<u8>
    where
        T: IntoBytes + Immutable,
    {
        let head = DiskIntentHead {
            kind: kind.number().into(),
            regions: 1.into(),
            extents: u32::try_from(extents.len()).unwrap_or(u32::MAX).into(),
            id: id.into(),
        };
        let mut region = head.as_bytes().to_vec();
        region.extend_from_slice(extents.as_bytes());
        region
    }
}
