//! The kinds of log items, by the four bytes that each begins with.
//! Spec: `xfs/journaling_log`, "Log Items".

use platter_ondisk::endian::Le16;
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LogRule;

/// What every item begins with.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskItemHeader {
    /// The type.
    pub kind: Le16,
    /// The size, in regions.
    pub regions: Le16,
}

const _: () = assert!(size_of::<DiskItemHeader>() == 4);

/// A log item's type and its number of regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemHeader {
    /// The type.
    pub kind: ItemKind,
    /// Number of regions, this one included.
    pub regions: u16,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)+) => {
        /// The type of a log item.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum ItemKind {
            $($(#[$doc])* $name = $value,)+
        }

        impl ItemKind {
            /// The type with this number.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($value => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// The number of this type.
            #[must_use]
            pub fn number(self) -> u16 {
                match self {
                    $(Self::$name => $value,)+
                }
            }
        }
    };
}

kinds! {
    /// `XFS_LI_EFI`: an intent to free extents.
    ExtentFree = 0x1236,
    /// `XFS_LI_EFD`.
    ExtentFreeDone = 0x1237,
    /// `XFS_LI_INODE`.
    Inode = 0x123b,
    /// `XFS_LI_BUF`.
    Buffer = 0x123c,
    /// `XFS_LI_DQUOT`.
    Dquot = 0x123d,
    /// `XFS_LI_QUOTAOFF`.
    QuotaOff = 0x123e,
    /// `XFS_LI_ICREATE`.
    InodeCreate = 0x123f,
    /// `XFS_LI_RUI`: an intent to update the reverse mapping.
    Rmap = 0x1240,
    /// `XFS_LI_RUD`.
    RmapDone = 0x1241,
    /// `XFS_LI_CUI`: an intent to update reference counts.
    Refcount = 0x1242,
    /// `XFS_LI_CUD`.
    RefcountDone = 0x1243,
    /// `XFS_LI_BUI`: an intent to update a file's block mapping.
    Bmap = 0x1244,
    /// `XFS_LI_BUD`.
    BmapDone = 0x1245,
    /// `XFS_LI_ATTRI`: an intent to change an extended attribute.
    Attr = 0x1246,
    /// `XFS_LI_ATTRD`.
    AttrDone = 0x1247,
    /// `XFS_LI_XMI`: an intent to exchange the mappings of two files.
    Exchange = 0x1248,
    /// `XFS_LI_XMD`.
    ExchangeDone = 0x1249,
    /// `XFS_LI_EFI_RT`.
    RtExtentFree = 0x124a,
    /// `XFS_LI_EFD_RT`.
    RtExtentFreeDone = 0x124b,
    /// `XFS_LI_RUI_RT`.
    RtRmap = 0x124c,
    /// `XFS_LI_RUD_RT`.
    RtRmapDone = 0x124d,
    /// `XFS_LI_CUI_RT`.
    RtRefcount = 0x124e,
    /// `XFS_LI_CUD_RT`.
    RtRefcountDone = 0x124f,
}

impl ItemKind {
    /// The most regions of an item of this type.
    #[must_use]
    pub fn regions_max(self) -> u16 {
        match self {
            // The format and a region for each dirty part: at most one for every second chunk of 128
            // bytes of 64 KiB.
            Self::Buffer => 257,
            // The format, the core, and two forks.
            Self::Inode => 4,
            // The format, old and new name and value.
            Self::Attr => 5,
            Self::Dquot => 2,
            Self::ExtentFree
            | Self::ExtentFreeDone
            | Self::QuotaOff
            | Self::InodeCreate
            | Self::Rmap
            | Self::RmapDone
            | Self::Refcount
            | Self::RefcountDone
            | Self::Bmap
            | Self::BmapDone
            | Self::AttrDone
            | Self::Exchange
            | Self::ExchangeDone
            | Self::RtExtentFree
            | Self::RtExtentFreeDone
            | Self::RtRmap
            | Self::RtRmapDone
            | Self::RtRefcount
            | Self::RtRefcountDone => 1,
        }
    }
}

impl ItemHeader {
    /// Validates the first bytes of an item's first region.
    pub fn decode(region: &[u8], locus: Locus) -> Result<Self, Corrupt<LogRule>> {
        let Ok((disk, _)) = DiskItemHeader::ref_from_prefix(region) else {
            return Err(Corrupt::new(locus, LogRule::ItemLength));
        };
        let Some(kind) = ItemKind::from_number(disk.kind.get()) else {
            return Err(Corrupt::new(locus, LogRule::ItemType));
        };
        let regions = disk.regions.get();
        if regions == 0 || regions > kind.regions_max() {
            return Err(Corrupt::new(locus, LogRule::ItemRegions));
        }
        Ok(Self { kind, regions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_kinds_agree() {
        let kinds: Vec<_> = (0..=u16::MAX).filter_map(ItemKind::from_number).collect();
        assert_eq!(kinds.len(), 23);
        for kind in kinds {
            assert_eq!(ItemKind::from_number(kind.number()), Some(kind));
        }
    }

    #[test]
    fn items_that_break_a_rule_are_refused() {
        let decode = |region: &[u8]| {
            ItemHeader::decode(region, Locus::UNKNOWN).map_err(|corrupt| corrupt.rule)
        };
        let inode = ItemHeader {
            kind: ItemKind::Inode,
            regions: 3,
        };
        assert_eq!(decode(&[0x3b, 0x12, 3, 0, 9]), Ok(inode));
        assert_eq!(decode(&[0x3b, 0x12, 5, 0]), Err(LogRule::ItemRegions));
        assert_eq!(decode(&[0x3b, 0x12, 0, 0]), Err(LogRule::ItemRegions));
        assert_eq!(decode(&[0x38, 0x12, 1, 0]), Err(LogRule::ItemType));
        assert_eq!(decode(&[0x3b, 0x12, 1]), Err(LogRule::ItemLength));
    }
}
