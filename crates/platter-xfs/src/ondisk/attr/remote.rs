//! A block of an attribute's value outside its leaf: with a header in version 5, bare before.
//! Spec: `xfs/extended_attributes`, "Remote Values".

use std::mem::offset_of;

use platter_ondisk::endian::{Be32, Be64, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ondisk::geometry::Geometry;
use crate::ondisk::identity::{Identity, Site};

/// `rm_magic`: `XARM`.
pub const ATTR_REMOTE_MAGIC: u32 = 0x5841_524d;

/// The header; targets of links have the same one with another magic number.
/// Spec: `struct xfs_attr3_rmt_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskRemoteHeader {
    /// `rm_magic`.
    pub magic: Be32,
    /// `rm_offset`: where the bytes belong in the whole.
    pub offset: Be32,
    /// `rm_bytes`: how many there are.
    pub bytes: Be32,
    /// `rm_crc`, of the block.
    pub checksum: Le32,
    /// `rm_uuid`.
    pub uuid: [u8; 16],
    /// `rm_owner`.
    pub owner: Be64,
    /// `rm_blkno`.
    pub block: Be64,
    /// `rm_lsn`.
    pub lsn: Be64,
}

const _: () = assert!(size_of::<DiskRemoteHeader>() == 56);

impl DiskRemoteHeader {
    /// Where the checksum lies.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);

    pub(in crate::ondisk) fn identity(&self) -> Identity {
        Identity {
            checksum_at: Self::CHECKSUM_OFFSET,
            uuid: self.uuid,
            block: self.block.get(),
            owner: self.owner.get(),
        }
    }
}

rules! {
    /// What a block of a value must hold to.
    pub enum AttrRemoteRule of "remote attribute value" {
        /// `rm_magic`.
        Magic => "bad magic number",
        /// `rm_crc`.
        Checksum => "bad CRC",
        /// `rm_uuid`.
        Uuid => "bad UUID",
        /// `rm_blkno`.
        BlockNumber => "block number is not where it lies",
        /// `rm_owner`.
        Owner => "bad owner",
        /// `rm_offset` is where the blocks before it end.
        Offset => "bad offset",
        /// `rm_bytes` is what is left of the value, or what fits the block.
        Length => "bad length",
        /// Values have blocks up to their end.
        Missing => "value has a hole",
    }
}

identity_rules!(AttrRemoteRule);

/// Bytes of a value that fit a block.
#[must_use]
pub fn capacity(geometry: &Geometry) -> u32 {
    const HEADER: u32 = 56;
    let header = if geometry.features.is_v5() { HEADER } else { 0 };
    geometry.block_bytes().saturating_sub(header)
}

/// Checks what every block of a value of version 5 has, wherever it belongs in the value.
pub fn check(bytes: &[u8], site: &Site<'_>) -> Result<(), AttrRemoteRule> {
    let (header, _) =
        DiskRemoteHeader::ref_from_prefix(bytes).map_err(|_| AttrRemoteRule::Magic)?;
    if header.magic.get() != ATTR_REMOTE_MAGIC {
        return Err(AttrRemoteRule::Magic);
    }
    header.identity().check(bytes, site)
}

/// The part of a value, `left` bytes of which begin at `offset`, in the block that fills `bytes`.
pub fn decode<'a>(
    bytes: &'a [u8],
    offset: u32,
    left: u32,
    site: &Site<'_>,
) -> Result<&'a [u8], AttrRemoteRule> {
    let wanted = left.min(capacity(site.geometry));
    let mut rest = bytes;
    if site.geometry.features.is_v5() {
        let (header, after) =
            DiskRemoteHeader::ref_from_prefix(bytes).map_err(|_| AttrRemoteRule::Magic)?;
        if header.magic.get() != ATTR_REMOTE_MAGIC {
            return Err(AttrRemoteRule::Magic);
        }
        header.identity().check(bytes, site)?;
        if header.offset.get() != offset {
            return Err(AttrRemoteRule::Offset);
        }
        if header.bytes.get() != wanted {
            return Err(AttrRemoteRule::Length);
        }
        rest = after;
    }
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    rest.get(..wanted).ok_or(AttrRemoteRule::Length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::checksum;
    use crate::ondisk::geometry::tests::{sample_geometry, sample_geometry_v4};
    use crate::ondisk::types::BasicBlock;

    fn site(geometry: &Geometry) -> Site<'_> {
        Site::new(geometry, BasicBlock(80), 131)
    }

    fn sample(change: impl FnOnce(&mut DiskRemoteHeader)) -> Vec<u8> {
        let mut block = vec![7; 4096];
        let (header, _) = DiskRemoteHeader::mut_from_prefix(&mut block).unwrap();
        header.magic.set(ATTR_REMOTE_MAGIC);
        header.offset.set(4040);
        header.bytes.set(100);
        header.block.set(80);
        header.uuid = [0x5a; 16];
        header.owner.set(131);
        change(header);
        checksum::seal(&mut block, DiskRemoteHeader::CHECKSUM_OFFSET);
        block
    }

    #[test]
    fn value_fills_blocks_in_order() {
        let geometry = sample_geometry();
        let block = sample(|_| ());
        let part = decode(&block, 4040, 100, &site(&geometry)).unwrap();
        assert_eq!(part, [7; 100]);
        let v4 = sample_geometry_v4();
        assert_eq!(decode(&[1; 4096], 0, 9000, &site(&v4)).unwrap().len(), 4096);
    }

    #[test]
    fn rules_of_a_block_are_checked() {
        let geometry = sample_geometry();
        let broken = |change: fn(&mut DiskRemoteHeader)| {
            let block = sample(change);
            decode(&block, 4040, 100, &site(&geometry)).unwrap_err()
        };
        assert_eq!(broken(|header| header.magic.set(1)), AttrRemoteRule::Magic);
        assert_eq!(broken(|header| header.uuid[0] = 1), AttrRemoteRule::Uuid);
        assert_eq!(
            broken(|header| header.block.set(1)),
            AttrRemoteRule::BlockNumber
        );
        assert_eq!(broken(|header| header.owner.set(1)), AttrRemoteRule::Owner);
        assert_eq!(
            broken(|header| header.offset.set(0)),
            AttrRemoteRule::Offset
        );
        assert_eq!(
            broken(|header| header.bytes.set(99)),
            AttrRemoteRule::Length
        );
        let mut block = sample(|_| ());
        block[4095] = 0;
        let rule = decode(&block, 4040, 100, &site(&geometry)).unwrap_err();
        assert_eq!(rule, AttrRemoteRule::Checksum);
    }
}
