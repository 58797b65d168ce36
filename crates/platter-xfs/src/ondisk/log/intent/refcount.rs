//! The intent to update reference counts. Spec: `xfs/journaling_log`, "Reference Count Updates Intent".

use platter_ondisk::endian::{Le32, Le64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{ItemKind, LogRule};
use super::{Section, head};

/// An extent and what is done to it. Spec: `xfs/journaling_log`, `struct xfs_phys_extent`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskPhysExtent {
    /// `pe_startblock`.
    pub start: Le64,
    /// `pe_len`.
    pub len: Le32,
    /// `pe_flags`.
    pub flags: Le32,
}

const _: () = assert!(size_of::<DiskPhysExtent>() == 16);

/// What is done to reference counts (`XFS_REFCOUNT_EXTENT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefcountOp {
    /// Increase them.
    Increase,
    /// Decrease them.
    Decrease,
    /// Add an extent to those that stage a copy on write.
    AllocCow,
    /// Remove an extent from those that stage a copy on write.
    FreeCow,
}

/// An update of reference counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhysExtent {
    /// What is done.
    pub op: RefcountOp,
    /// The first block.
    pub start: u64,
    /// Number of blocks.
    pub len: u32,
}

/// The intent to update reference counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefcountIntent {
    /// Where the blocks lie.
    pub section: Section,
    /// What the done item names.
    pub id: u64,
    /// The updates.
    pub updates: Vec<PhysExtent>,
}

impl RefcountIntent {
    pub(super) fn decode(region: &[u8], section: Section) -> Result<Self, LogRule> {
        let (id, extents) = head::split::<DiskPhysExtent>(region)?;
        let update = |disk: &DiskPhysExtent| {
            let op = match disk.flags.get() {
                1 => RefcountOp::Increase,
                2 => RefcountOp::Decrease,
                3 => RefcountOp::AllocCow,
                4 => RefcountOp::FreeCow,
                _ => return Err(LogRule::IntentFlags),
            };
            Ok(PhysExtent {
                op,
                start: disk.start.get(),
                len: disk.len.get(),
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
            Section::Data => ItemKind::Refcount,
            Section::Realtime => ItemKind::RtRefcount,
        };
        let extents = self.updates.iter().map(|update| DiskPhysExtent {
            start: update.start.into(),
            len: update.len.into(),
            flags: match update.op {
                RefcountOp::Increase => 1.into(),
                RefcountOp::Decrease => 2.into(),
                RefcountOp::AllocCow => 3.into(),
                RefcountOp::FreeCow => 4.into(),
            },
        });
        head::join(kind, self.id, &extents.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_decode_as_they_were_encoded() {
        let ops = [
            RefcountOp::Increase,
            RefcountOp::Decrease,
            RefcountOp::AllocCow,
            RefcountOp::FreeCow,
        ];
        let updates = ops.map(|op| PhysExtent {
            op,
            start: 1 << 40,
            len: 9,
        });
        let intent = RefcountIntent {
            section: Section::Data,
            id: 1,
            updates: updates.to_vec(),
        };
        let mut region = intent.encode();
        assert_eq!(RefcountIntent::decode(&region, Section::Data), Ok(intent));
        region[28] = 5;
        let refused = RefcountIntent::decode(&region, Section::Data);
        assert_eq!(refused, Err(LogRule::IntentFlags));
        region[4] = 5;
        let refused = RefcountIntent::decode(&region, Section::Data);
        assert_eq!(refused, Err(LogRule::IntentLength));
    }
}
