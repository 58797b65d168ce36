//! The target of a symbolic link outside its inode: each extent has a header in version 5, and is bare
//! before. Spec: `xfs/symbolic_links`.

use platter_ondisk::rules;
use zerocopy::FromBytes;

use super::attr::remote::{self, DiskRemoteHeader};
use super::checksum;
use super::geometry::Geometry;
use super::identity::Site;

/// `sl_magic`: `XSLM`.
pub const SYMLINK_MAGIC: u32 = 0x5853_4c4d;

rules! {
    /// What the target of a link must hold to.
    pub enum SymlinkRule of "symbolic link" {
        /// `sl_magic`.
        Magic => "bad magic number",
        /// `sl_crc`.
        Checksum => "bad CRC",
        /// `sl_uuid`.
        Uuid => "bad UUID",
        /// `sl_blkno`.
        BlockNumber => "block number is not where it lies",
        /// `sl_owner`.
        Owner => "bad owner",
        /// `sl_offset` is where the blocks before it end.
        Offset => "bad offset",
        /// `sl_bytes` is what is left of the target, or what fits the blocks.
        Length => "bad length",
        /// The target is not empty and has no zero byte.
        Target => "bad target",
        /// The target has blocks up to its end.
        Missing => "target has a hole",
    }
}

identity_rules!(SymlinkRule);

/// How many blocks a whole target of `len` bytes takes.
#[must_use]
pub fn blocks(len: u32, geometry: &Geometry) -> u32 {
    len.div_ceil(remote::capacity(geometry))
}

/// Checks what every extent of a target of version 5 has.
pub fn check(bytes: &[u8], site: &Site<'_>) -> Result<(), SymlinkRule> {
    let (header, _) = DiskRemoteHeader::ref_from_prefix(bytes).map_err(|_| SymlinkRule::Magic)?;
    if header.magic.get() != SYMLINK_MAGIC {
        return Err(SymlinkRule::Magic);
    }
    header.identity().check(bytes, site)
}

/// An extent of `blocks` blocks of version 5 with the part of a target that begins at `offset` and fits, and the
/// length of that part.
#[must_use]
pub fn encode(
    target: &[u8],
    offset: usize,
    blocks: u32,
    site: &Site<'_>,
) -> Option<(Vec<u8>, usize)> {
    let len = usize::try_from(site.geometry.block_bytes().checked_mul(blocks)?).ok()?;
    let mut bytes = vec![0; len];
    let space = len.checked_sub(size_of::<DiskRemoteHeader>())?;
    let rest = target.get(offset..)?;
    let part = rest.get(..space.min(rest.len()))?;
    let (header, body) = DiskRemoteHeader::mut_from_prefix(&mut bytes).ok()?;
    header.magic.set(SYMLINK_MAGIC);
    header.offset.set(u32::try_from(offset).ok()?);
    header.bytes.set(u32::try_from(part.len()).ok()?);
    header.uuid = *site.geometry.meta_uuid.as_bytes();
    header.owner.set(site.owner);
    header.block.set(site.at.0);
    body.get_mut(..part.len())?.copy_from_slice(part);
    checksum::seal(&mut bytes, DiskRemoteHeader::CHECKSUM_OFFSET);
    Some((bytes, part.len()))
}

/// The part of a target, `left` bytes of which begin at `offset`, in the extent that fills `bytes`.
pub fn decode<'a>(
    bytes: &'a [u8],
    offset: u32,
    left: u32,
    site: &Site<'_>,
) -> Result<&'a [u8], SymlinkRule> {
    let mut rest = bytes;
    let mut wanted = left.min(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    if site.geometry.features.is_v5() {
        let (header, after) =
            DiskRemoteHeader::ref_from_prefix(bytes).map_err(|_| SymlinkRule::Magic)?;
        wanted = left.min(u32::try_from(after.len()).unwrap_or(u32::MAX));
        if header.magic.get() != SYMLINK_MAGIC {
            return Err(SymlinkRule::Magic);
        }
        header.identity().check(bytes, site)?;
        if header.offset.get() != offset {
            return Err(SymlinkRule::Offset);
        }
        if header.bytes.get() != wanted {
            return Err(SymlinkRule::Length);
        }
        rest = after;
    }
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    rest.get(..wanted).ok_or(SymlinkRule::Length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::checksum;
    use crate::ondisk::geometry::tests::{sample_geometry, sample_geometry_v4};
    use crate::ondisk::types::BasicBlock;

    fn decode_changed(change: impl FnOnce(&mut DiskRemoteHeader)) -> Result<Vec<u8>, SymlinkRule> {
        let mut block = vec![b'x'; 4096];
        let (header, _) = DiskRemoteHeader::mut_from_prefix(&mut block).unwrap();
        header.magic.set(SYMLINK_MAGIC);
        header.offset.set(0);
        header.bytes.set(600);
        header.block.set(80);
        header.uuid = [0x5a; 16];
        header.owner.set(131);
        change(header);
        let has_crc = header.lsn.get() != 1;
        if has_crc {
            checksum::seal(&mut block, DiskRemoteHeader::CHECKSUM_OFFSET);
        }
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        decode(&block, 0, 600, &site).map(<[u8]>::to_vec)
    }

    #[test]
    fn rules_of_a_block_are_checked() {
        assert_eq!(decode_changed(|_| ()), Ok(vec![b'x'; 600]));
        let broken = |change: fn(&mut DiskRemoteHeader)| decode_changed(change).unwrap_err();
        assert_eq!(broken(|header| header.magic.set(1)), SymlinkRule::Magic);
        assert_eq!(broken(|header| header.lsn.set(1)), SymlinkRule::Checksum);
        assert_eq!(broken(|header| header.uuid[0] = 1), SymlinkRule::Uuid);
        assert_eq!(
            broken(|header| header.block.set(1)),
            SymlinkRule::BlockNumber
        );
        assert_eq!(broken(|header| header.owner.set(1)), SymlinkRule::Owner);
        assert_eq!(broken(|header| header.offset.set(9)), SymlinkRule::Offset);
        assert_eq!(broken(|header| header.bytes.set(601)), SymlinkRule::Length);
    }

    #[test]
    fn target_of_version_4_has_no_header() {
        let geometry = sample_geometry_v4();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        assert_eq!(decode(&[b'y'; 4096], 0, 1000, &site).unwrap().len(), 1000);
    }
}
