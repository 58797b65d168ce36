//! The intents to update the reverse mapping and a file's block mapping.
//! Spec: `xfs/journaling_log`, "Reverse Mapping Updates Intent" and "File Block Mapping Intent".

use platter_ondisk::endian::{Le32, Le64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{ItemKind, LogRule};
use super::{Section, head};

/// A mapping. Spec: `xfs/journaling_log`, `struct xfs_map_extent`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskMapExtent {
    /// `me_owner`.
    pub owner: Le64,
    /// `me_startblock`.
    pub start_block: Le64,
    /// `me_startoff`.
    pub start_offset: Le64,
    /// `me_len`.
    pub len: Le32,
    /// `me_flags`.
    pub flags: Le32,
}

const _: () = assert!(size_of::<DiskMapExtent>() == 32);

const TYPE_MASK: u32 = 0xff;
const ATTR_FORK: u32 = 1 << 31;
/// Of reverse mappings only; a file's block mapping has its unwritten bit here.
const RMAP_BMBT_BLOCK: u32 = 1 << 30;
const RMAP_UNWRITTEN: u32 = 1 << 29;
const BMAP_UNWRITTEN: u32 = 1 << 30;
const BMAP_REALTIME: u32 = 1 << 29;

/// The blocks of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapExtent {
    /// Inode number, or another owner.
    pub owner: u64,
    /// The first block.
    pub start: u64,
    /// The first block of the file.
    pub offset: u64,
    /// Number of blocks.
    pub len: u32,
    /// Whether it is of the attribute fork.
    pub attr_fork: bool,
    /// Whether it is unwritten.
    pub unwritten: bool,
}

/// What is done to a reverse mapping (`XFS_RMAP_EXTENT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RmapOp {
    /// Add one of file blocks.
    Map,
    /// Add one of file blocks that may be shared.
    MapShared,
    /// Remove one of file blocks.
    Unmap,
    /// Remove one of file blocks that may be shared.
    UnmapShared,
    /// Change one between unwritten and written.
    Convert,
    /// Change one that may be shared between unwritten and written.
    ConvertShared,
    /// Add one of other blocks.
    Alloc,
    /// Remove one of other blocks.
    Free,
}

/// An update of the reverse mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmapUpdate {
    /// What is done.
    pub op: RmapOp,
    /// The mapping.
    pub extent: MapExtent,
    /// Whether the block is one of the fork's tree.
    pub bmbt_block: bool,
}

/// The intent to update the reverse mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RmapIntent {
    /// Where the blocks lie.
    pub section: Section,
    /// What the done item names.
    pub id: u64,
    /// The updates.
    pub updates: Vec<RmapUpdate>,
}

/// An update of a file's block mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BmapUpdate {
    /// Whether the mapping is removed instead of added.
    pub unmap: bool,
    /// Whether the blocks lie on the realtime device.
    pub realtime: bool,
    /// The mapping.
    pub extent: MapExtent,
}

/// The intent to update a file's block mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BmapIntent {
    /// What the done item names.
    pub id: u64,
    /// The updates.
    pub updates: Vec<BmapUpdate>,
}

impl RmapOp {
    const ALL: [Self; 8] = [
        Self::Map,
        Self::MapShared,
        Self::Unmap,
        Self::UnmapShared,
        Self::Convert,
        Self::ConvertShared,
        Self::Alloc,
        Self::Free,
    ];

    fn from_number(number: u32) -> Option<Self> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    fn number(self) -> u32 {
        let index = Self::ALL.iter().position(|&op| op == self);
        u32::try_from(index.unwrap_or_default())
            .unwrap_or_default()
            .saturating_add(1)
    }
}

impl MapExtent {
    fn decode(disk: &DiskMapExtent, unwritten: u32) -> Self {
        let flags = disk.flags.get();
        Self {
            owner: disk.owner.get(),
            start: disk.start_block.get(),
            offset: disk.start_offset.get(),
            len: disk.len.get(),
            attr_fork: flags & ATTR_FORK != 0,
            unwritten: flags & unwritten != 0,
        }
    }

    fn encode(&self, flags: u32, unwritten: u32) -> DiskMapExtent {
        let attr_fork = if self.attr_fork { ATTR_FORK } else { 0 };
        let unwritten = if self.unwritten { unwritten } else { 0 };
        DiskMapExtent {
            owner: self.owner.into(),
            start_block: self.start.into(),
            start_offset: self.offset.into(),
            len: self.len.into(),
            flags: (flags | attr_fork | unwritten).into(),
        }
    }
}

impl RmapIntent {
    pub(super) fn decode(region: &[u8], section: Section) -> Result<Self, LogRule> {
        let (id, extents) = head::split::<DiskMapExtent>(region)?;
        let known = TYPE_MASK | ATTR_FORK | RMAP_BMBT_BLOCK | RMAP_UNWRITTEN;
        let update = |disk: &DiskMapExtent| {
            let flags = disk.flags.get();
            let op = RmapOp::from_number(flags & TYPE_MASK).filter(|_| flags & !known == 0);
            Ok(RmapUpdate {
                op: op.ok_or(LogRule::IntentFlags)?,
                extent: MapExtent::decode(disk, RMAP_UNWRITTEN),
                bmbt_block: flags & RMAP_BMBT_BLOCK != 0,
            })
        };
        Ok(Self {
            section,
            id,
            updates: extents.iter().map(update).collect::<Result<_, _>>()?,
        })
    }

    /// The region of the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.section {
            Section::Data => ItemKind::Rmap,
            Section::Realtime => ItemKind::RtRmap,
        };
        let extents = self.updates.iter().map(|update| {
            let bmbt = if update.bmbt_block {
                RMAP_BMBT_BLOCK
            } else {
                0
            };
            let flags = update.op.number() | bmbt;
            update.extent.encode(flags, RMAP_UNWRITTEN)
        });
        head::join(kind, self.id, &extents.collect::<Vec<_>>())
    }
}

impl BmapIntent {
    pub(super) fn decode(region: &[u8]) -> Result<Self, LogRule> {
        let (id, extents) = head::split::<DiskMapExtent>(region)?;
        let known = TYPE_MASK | ATTR_FORK | BMAP_UNWRITTEN | BMAP_REALTIME;
        let update = |disk: &DiskMapExtent| {
            let flags = disk.flags.get();
            let unmap = match flags & TYPE_MASK {
                1 => false,
                2 => true,
                _ => return Err(LogRule::IntentFlags),
            };
            if flags & !known != 0 {
                return Err(LogRule::IntentFlags);
            }
            Ok(BmapUpdate {
                unmap,
                realtime: flags & BMAP_REALTIME != 0,
                extent: MapExtent::decode(disk, BMAP_UNWRITTEN),
            })
        };
        // One update each, by the format.
        if extents.len() != 1 {
            return Err(LogRule::IntentLength);
        }
        Ok(Self {
            id,
            updates: extents.iter().map(update).collect::<Result<_, _>>()?,
        })
    }

    /// The region of the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let extents = self.updates.iter().map(|update| {
            let realtime = if update.realtime { BMAP_REALTIME } else { 0 };
            let flags = realtime | if update.unmap { 2 } else { 1 };
            update.extent.encode(flags, BMAP_UNWRITTEN)
        });
        head::join(ItemKind::Bmap, self.id, &extents.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent() -> MapExtent {
        MapExtent {
            owner: 131,
            start: 0x1_0000_0020,
            offset: 7,
            len: 3,
            attr_fork: true,
            unwritten: true,
        }
    }

    #[test]
    fn rmap_intents_decode_as_they_were_encoded() {
        for op in RmapOp::ALL {
            let intent = RmapIntent {
                section: Section::Realtime,
                id: 5,
                updates: vec![
                    RmapUpdate {
                        op,
                        extent: extent(),
                        bmbt_block: true,
                    };
                    2
                ],
            };
            let decoded = RmapIntent::decode(&intent.encode(), Section::Realtime);
            assert_eq!(decoded, Ok(intent));
        }
    }

    #[test]
    fn bmap_intents_decode_as_they_were_encoded() {
        let update = BmapUpdate {
            unmap: true,
            realtime: true,
            extent: extent(),
        };
        let mut intent = BmapIntent {
            id: 5,
            updates: vec![update],
        };
        assert_eq!(BmapIntent::decode(&intent.encode()), Ok(intent.clone()));
        intent.updates.push(update);
        let refused = BmapIntent::decode(&intent.encode());
        assert_eq!(refused, Err(LogRule::IntentLength));
    }

    #[test]
    fn unknown_flags_and_types_are_refused() {
        let intent = RmapIntent {
            section: Section::Data,
            id: 5,
            updates: vec![RmapUpdate {
                op: RmapOp::Free,
                extent: extent(),
                bmbt_block: false,
            }],
        };
        let mut region = intent.encode();
        region[44] = 9;
        let refused = Err(LogRule::IntentFlags);
        assert_eq!(RmapIntent::decode(&region, Section::Data), refused);
        (region[44], region[45]) = (8, 1);
        assert_eq!(RmapIntent::decode(&region, Section::Data), refused);
        assert_eq!(BmapIntent::decode(&region), Err(LogRule::IntentFlags));
    }
}
