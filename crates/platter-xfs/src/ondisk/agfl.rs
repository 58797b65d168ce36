//! The free list of an allocation group, in its fourth sector: blocks set aside for the group's
//! B-trees. Spec: `xfs/allocation_groups`, "AG Free List".

use std::mem::offset_of;

use platter_ondisk::endian::{Be32, Be64, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::agf::Agf;
use super::checksum::{self, Seal};
use super::geometry::Geometry;
use super::types::{AgBlock, AgNr};

/// `agfl_magicnum`: `XAFL`.
pub const AGFL_MAGIC: u32 = 0x5841_464c;

/// The header of version 5. Spec: `struct xfs_agfl`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskAgflHeader {
    /// `agfl_magicnum`.
    pub magic: Be32,
    /// `agfl_seqno`: the allocation group.
    pub sequence: Be32,
    /// `agfl_uuid`.
    pub uuid: [u8; 16],
    /// `agfl_lsn`.
    pub lsn: Be64,
    /// `agfl_crc`, of the sector.
    pub checksum: Le32,
}

const _: () = assert!(size_of::<DiskAgflHeader>() == 36);

impl DiskAgflHeader {
    /// Where the checksum lies in the sector.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);
}

rules! {
    /// What a free list must hold to.
    pub enum AgflRule of "AGFL" {
        /// `agfl_magicnum`.
        Magic => "bad magic number",
        /// `agfl_crc`.
        Checksum => "bad CRC",
        /// `agfl_uuid`.
        Uuid => "bad UUID",
        /// `agfl_seqno`.
        Sequence => "bad sequence number",
        /// The entries in use lie within the group.
        Block => "block lies outside the allocation group",
    }
}

/// The entries of a free list whose header holds.
#[derive(Debug, Clone, Copy)]
pub struct Agfl<'a> {
    entries: &'a [Be32],
}

/// How many entries a free list has.
#[must_use]
pub fn slots(geometry: &Geometry) -> u32 {
    const ENTRY: u32 = 4;
    const HEADER: u32 = 36;
    let header = if geometry.features.is_v5() { HEADER } else { 0 };
    let entries = geometry.sector_bytes().saturating_sub(header);
    entries.checked_div(ENTRY).unwrap_or_default()
}

impl<'a> Agfl<'a> {
    /// Validates the header of the list in a sector.
    pub fn decode(sector: &'a [u8], geometry: &Geometry, ag: AgNr) -> Result<Self, AgflRule> {
        Self::decode_as(sector, geometry, ag, Seal::Present)
    }

    /// Validates the header of the list in a sector, whose checksum was compared before, or is computed when it is
    /// written.
    pub fn decode_unsealed(
        sector: &'a [u8],
        geometry: &Geometry,
        ag: AgNr,
    ) -> Result<Self, AgflRule> {
        Self::decode_as(sector, geometry, ag, Seal::Later)
    }

    fn decode_as(
        sector: &'a [u8],
        geometry: &Geometry,
        ag: AgNr,
        seal: Seal,
    ) -> Result<Self, AgflRule> {
        let mut rest = sector;
        if geometry.features.is_v5() {
            let (header, after) =
                DiskAgflHeader::ref_from_prefix(sector).map_err(|_| AgflRule::Magic)?;
            if header.magic.get() != AGFL_MAGIC {
                return Err(AgflRule::Magic);
            }
            if seal == Seal::Present && !checksum::matches(sector, DiskAgflHeader::CHECKSUM_OFFSET)
            {
                return Err(AgflRule::Checksum);
            }
            if header.uuid != *geometry.meta_uuid.as_bytes() {
                return Err(AgflRule::Uuid);
            }
            if header.sequence.get() != ag.0 {
                return Err(AgflRule::Sequence);
            }
            rest = after;
        }
        let count = usize::try_from(slots(geometry)).unwrap_or_default();
        let (entries, _) =
            <[Be32]>::ref_from_prefix_with_elems(rest, count).map_err(|_| AgflRule::Magic)?;
        Ok(Self { entries })
    }

    /// The blocks in use, in order. The list wraps around.
    pub fn blocks(&self, agf: &Agf) -> impl Iterator<Item = Result<AgBlock, AgflRule>> + use<'a> {
        let first = usize::try_from(agf.free_list_first).unwrap_or_default();
        let count = usize::try_from(agf.free_list_count).unwrap_or_default();
        let (length, entries) = (agf.length, self.entries);
        let ordered = entries.iter().cycle().skip(first);
        ordered.take(count.min(entries.len())).map(move |entry| {
            let block = entry.get();
            let is_inside = block > 0 && block < length;
            is_inside.then_some(AgBlock(block)).ok_or(AgflRule::Block)
        })
    }
}

/// A free list as it is written.
#[derive(Debug)]
pub struct Encoded {
    /// The sector.
    pub sector: Vec<u8>,
    /// The first and the last entry in use.
    pub range: (u32, u32),
}

/// Builds the sector of a list of a new group of version 5.
#[must_use]
pub fn encode_new(geometry: &Geometry, ag: AgNr, blocks: &[AgBlock]) -> Encoded {
    let mut header = DiskAgflHeader::new_zeroed();
    header.magic.set(AGFL_MAGIC);
    header.sequence.set(ag.0);
    header.uuid = *geometry.meta_uuid.as_bytes();
    let mut sector = header.as_bytes().to_vec();
    let len = usize::try_from(geometry.sector_bytes()).unwrap_or_default();
    sector.resize(len.max(sector.len()), u8::MAX);
    encode(&sector, geometry, blocks)
}

/// Builds the sector of a list from the one before: the blocks from the first entry on.
#[must_use]
pub fn encode(sector: &[u8], geometry: &Geometry, blocks: &[AgBlock]) -> Encoded {
    let mut sector = sector.to_vec();
    let is_v5 = geometry.features.is_v5();
    let header = if is_v5 {
        size_of::<DiskAgflHeader>()
    } else {
        0
    };
    let body = sector.get_mut(header..).unwrap_or_default();
    let empty = std::iter::repeat(&AgBlock::NULL);
    for (slot, block) in body.chunks_exact_mut(4).zip(blocks.iter().chain(empty)) {
        let _ = Be32::new(block.0).write_to(slot);
    }
    if is_v5 {
        checksum::seal(&mut sector, DiskAgflHeader::CHECKSUM_OFFSET);
    }
    let last = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
    let last = last.checked_sub(1);
    let end = slots(geometry).saturating_sub(1);
    Encoded {
        sector,
        range: (0, last.unwrap_or(end)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::agf::TreeRoot;
    use super::super::types::Lsn;
    use super::*;
    use crate::ondisk::geometry::tests::{sample_geometry, sample_geometry_v4};

    fn agf(first: u32, count: u32) -> Agf {
        let root = TreeRoot {
            block: AgBlock(1),
            levels: 1,
        };
        Agf {
            ag: AgNr(1),
            length: 4096,
            bno: root,
            cnt: root,
            rmap: None,
            refcount: None,
            free_list_first: first,
            free_list_last: 0,
            free_list_count: count,
            free_blocks: 0,
            longest: 0,
            btree_blocks: 0,
            rmap_blocks: 0,
            refcount_blocks: 0,
            lsn: Lsn(0),
        }
    }

    fn sample() -> Vec<u8> {
        let mut sector = vec![0xff; 512];
        let (header, rest) = DiskAgflHeader::mut_from_prefix(&mut sector).unwrap();
        header.magic.set(AGFL_MAGIC);
        header.sequence.set(1);
        header.uuid = [0x5a; 16];
        let (entries, _) = <[Be32]>::mut_from_prefix_with_elems(rest, 119).unwrap();
        entries[118].set(10);
        entries[0].set(11);
        checksum::seal(&mut sector, DiskAgflHeader::CHECKSUM_OFFSET);
        sector
    }

    #[test]
    fn free_list_wraps_around() {
        let (sector, geometry) = (sample(), sample_geometry());
        let list = Agfl::decode(&sector, &geometry, AgNr(1)).unwrap();
        let blocks: Vec<_> = list.blocks(&agf(118, 2)).collect();
        assert_eq!(blocks, [Ok(AgBlock(10)), Ok(AgBlock(11))]);
        let blocks: Vec<_> = list.blocks(&agf(0, 2)).collect();
        assert_eq!(blocks, [Ok(AgBlock(11)), Err(AgflRule::Block)]);
    }

    #[test]
    fn new_free_list_begins_at_its_first_entry() {
        let geometry = sample_geometry();
        let built = encode_new(&geometry, AgNr(1), &[AgBlock(7), AgBlock(9)]);
        assert_eq!(built.range, (0, 1));
        let list = Agfl::decode(&built.sector, &geometry, AgNr(1)).unwrap();
        let blocks: Vec<_> = list.blocks(&agf(0, 3)).collect();
        let expected = [Ok(AgBlock(7)), Ok(AgBlock(9)), Err(AgflRule::Block)];
        assert_eq!(blocks, expected);
    }

    #[test]
    fn free_list_of_version_4_has_no_header() {
        let geometry = sample_geometry_v4();
        let mut sector = vec![0; 512];
        sector[3] = 9;
        let list = Agfl::decode(&sector, &geometry, AgNr(1)).unwrap();
        let blocks: Vec<_> = list.blocks(&agf(0, 1)).collect();
        assert_eq!(blocks, [Ok(AgBlock(9))]);
        assert_eq!(slots(&geometry), 128);
    }

    #[test]
    fn rules_of_the_header_are_checked() {
        let geometry = sample_geometry();
        let broken = |change: fn(&mut DiskAgflHeader), ag| {
            let mut sector = sample();
            change(DiskAgflHeader::mut_from_prefix(&mut sector).unwrap().0);
            checksum::seal(&mut sector, DiskAgflHeader::CHECKSUM_OFFSET);
            Agfl::decode(&sector, &geometry, ag).unwrap_err()
        };
        assert_eq!(
            broken(|header| header.magic.set(1), AgNr(1)),
            AgflRule::Magic
        );
        assert_eq!(broken(|header| header.uuid[1] = 1, AgNr(1)), AgflRule::Uuid);
        assert_eq!(broken(|_| (), AgNr(2)), AgflRule::Sequence);
        let mut sector = sample();
        sector[511] ^= 1;
        let rule = Agfl::decode(&sector, &geometry, AgNr(1)).unwrap_err();
        assert_eq!(rule, AgflRule::Checksum);
    }
}
