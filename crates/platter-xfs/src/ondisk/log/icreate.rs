//! An item that stands for freshly initialised inodes. Spec: `xfs/journaling_log`, "Inode Creation Log
//! Item".

use platter_ondisk::endian::{Be32, Le16};
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemKind, LogRule};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::types::{AgBlock, AgNr};

/// The item. Spec: `xfs/journaling_log`, `struct xfs_icreate_log`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInodeCreate {
    /// `icl_type`.
    pub kind: Le16,
    /// `icl_size`.
    pub regions: Le16,
    /// `icl_ag`.
    pub ag: Be32,
    /// `icl_agbno`.
    pub block: Be32,
    /// `icl_count`.
    pub count: Be32,
    /// `icl_isize`, in bytes.
    pub inode_bytes: Be32,
    /// `icl_length`, in blocks.
    pub len: Be32,
    /// `icl_gen`.
    pub generation: Be32,
}

const _: () = assert!(size_of::<DiskInodeCreate>() == 28);

/// An inode create item whose rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeCreate {
    /// The allocation group.
    pub ag: AgNr,
    /// The first block of the inodes.
    pub block: AgBlock,
    /// Number of inodes.
    pub count: u32,
    /// Length of the inodes in blocks.
    pub len: u32,
    /// Generation number of the inodes.
    pub generation: u32,
}

impl InodeCreate {
    /// Validates the region of an inode create item.
    pub fn decode(
        region: &[u8],
        geometry: &Geometry,
        locus: Locus,
    ) -> Result<Self, Corrupt<LogRule>> {
        let Ok((disk, _)) = DiskInodeCreate::ref_from_prefix(region) else {
            return Err(Corrupt::new(locus, LogRule::ItemLength));
        };
        let create = Self {
            ag: AgNr(disk.ag.get()),
            block: AgBlock(disk.block.get()),
            count: disk.count.get(),
            len: disk.len.get(),
            generation: disk.generation.get(),
        };
        let start = geometry.fs_block(create.ag, create.block);
        let inodes = create.len.checked_mul(geometry.inodes_per_block());
        let holds = create.ag.0 < geometry.ag_count()
            && create.block.0 > 0
            && geometry.contains(start, create.len.into())
            && geometry.split(start) == (create.ag, create.block)
            && disk.inode_bytes.get() == geometry.inode_bytes()
            && create.len > 0
            && create.len <= geometry.chunk_blocks()
            && inodes == Some(create.count);
        if holds {
            Ok(create)
        } else {
            Err(Corrupt::new(locus, LogRule::InodeCreate))
        }
    }

    /// The region of the item.
    #[must_use]
    pub fn encode(&self, inode_bytes: u32) -> Vec<u8> {
        let disk = DiskInodeCreate {
            kind: ItemKind::InodeCreate.number().into(),
            regions: 1.into(),
            ag: self.ag.0.into(),
            block: self.block.0.into(),
            count: self.count.into(),
            inode_bytes: inode_bytes.into(),
            len: self.len.into(),
            generation: self.generation.into(),
        };
        disk.as_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;

    fn sample() -> InodeCreate {
        InodeCreate {
            ag: AgNr(1),
            block: AgBlock(16),
            count: 64,
            len: 8,
            generation: 77,
        }
    }

    #[test]
    fn item_decodes_as_it_was_encoded() {
        let region = sample().encode(512);
        let decoded = InodeCreate::decode(&region, &sample_geometry(), Locus::UNKNOWN);
        assert_eq!(decoded, Ok(sample()));
    }

    #[test]
    fn items_that_break_a_rule_are_refused() {
        let decode = |create: InodeCreate, inode_bytes| {
            let region = create.encode(inode_bytes);
            let decoded = InodeCreate::decode(&region, &sample_geometry(), Locus::UNKNOWN);
            decoded.map_err(|corrupt| corrupt.rule)
        };
        let bad = Err(LogRule::InodeCreate);
        let (ag, block) = (AgNr(4), AgBlock(0));
        assert_eq!(decode(InodeCreate { ag, ..sample() }, 512), bad);
        assert_eq!(decode(InodeCreate { block, ..sample() }, 512), bad);
        let block = AgBlock(4090);
        assert_eq!(decode(InodeCreate { block, ..sample() }, 512), bad);
        assert_eq!(
            decode(
                InodeCreate {
                    count: 63,
                    ..sample()
                },
                512
            ),
            bad
        );
        assert_eq!(decode(InodeCreate { len: 0, ..sample() }, 512), bad);
        assert_eq!(decode(sample(), 256), bad);
        let short = InodeCreate::decode(&[0; 20], &sample_geometry(), Locus::UNKNOWN);
        assert_eq!(short.map_err(|c| c.rule), Err(LogRule::ItemLength));
    }
}
