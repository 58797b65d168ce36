//! A quota record: limits and use of one user, group or project.
//! Spec: `xfs/internal_inodes`, "Quota Inodes"; the flag of large times: `xfs-headers/xfs_format.h`.

use std::mem::offset_of;

use platter_ondisk::endian::{Be16, Be32, Be64, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum;
use super::geometry::Geometry;

/// `d_magic`: `DQ`.
pub const DQUOT_MAGIC: u16 = 0x4451;
const VERSION: u8 = 1;
/// The bits of `d_type` that say whose record it is.
const KIND_MASK: u8 = 0x7;
/// Timers are of large times.
const BIGTIME: u8 = 0x80;

/// The record as stored. Spec: `struct xfs_dqblk`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDquot {
    /// `d_magic`.
    pub magic: Be16,
    /// `d_version`.
    pub version: u8,
    /// `d_type`.
    pub kind: u8,
    /// `d_id`.
    pub id: Be32,
    /// `d_blk_hardlimit`.
    pub block_hard_limit: Be64,
    /// `d_blk_softlimit`.
    pub block_soft_limit: Be64,
    /// `d_ino_hardlimit`.
    pub inode_hard_limit: Be64,
    /// `d_ino_softlimit`.
    pub inode_soft_limit: Be64,
    /// `d_bcount`.
    pub blocks: Be64,
    /// `d_icount`.
    pub inodes: Be64,
    /// `d_itimer`.
    pub inode_timer: Be32,
    /// `d_btimer`.
    pub block_timer: Be32,
    /// `d_iwarns`.
    pub inode_warnings: Be16,
    /// `d_bwarns`.
    pub block_warnings: Be16,
    /// `d_pad0`.
    pub padding: Be32,
    /// `d_rtb_hardlimit`.
    pub rt_hard_limit: Be64,
    /// `d_rtb_softlimit`.
    pub rt_soft_limit: Be64,
    /// `d_rtbcount`.
    pub rt_blocks: Be64,
    /// `d_rtbtimer`.
    pub rt_timer: Be32,
    /// `d_rtbwarns`.
    pub rt_warnings: Be16,
    /// `d_pad`.
    pub padding2: Be16,
    /// `dd_fill`.
    pub fill: [u8; 4],
    /// `dd_crc`, of the record; in version 5.
    pub checksum: Le32,
    /// `dd_lsn`.
    pub lsn: Be64,
    /// `dd_uuid`.
    pub uuid: [u8; 16],
}

const _: () = assert!(size_of::<DiskDquot>() == 136);
const _: () = assert!(offset_of!(DiskDquot, fill) == 104);

impl DiskDquot {
    /// Where the checksum lies.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);
}

rules! {
    /// What a quota record must hold to.
    pub enum DquotRule of "dquot" {
        /// `d_magic`.
        Magic => "bad magic number",
        /// `d_version`.
        Version => "bad version number",
        /// `d_type` is that of the quota file.
        Kind => "bad quota type",
        /// `d_id` is that of the record's position.
        Id => "bad ID",
        /// `dd_crc`.
        Checksum => "bad CRC",
        /// `dd_uuid`.
        Uuid => "bad UUID",
    }
}

/// Whose limits and use a quota file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QuotaKind {
    /// Of users.
    User = 1,
    /// Of projects.
    Project = 2,
    /// Of groups.
    Group = 4,
}

/// Limits and use of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource {
    /// The hard limit; zero for none.
    pub hard_limit: u64,
    /// The soft limit; zero for none.
    pub soft_limit: u64,
    /// Use.
    pub used: u64,
    /// When the soft limit becomes hard, as stored; zero while it is not exceeded.
    pub timer: u32,
}

/// A quota record whose rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dquot {
    /// The user, group or project.
    pub id: u32,
    /// Blocks.
    pub blocks: Resource,
    /// Inodes.
    pub inodes: Resource,
    /// Realtime blocks.
    pub rt_blocks: Resource,
    /// Timers are of large times: in units of four seconds.
    pub is_bigtime: bool,
}

impl Dquot {
    /// Validates the record of `id` at the start of `bytes`; `None` for one that was never used.
    pub fn decode(
        bytes: &[u8],
        kind: QuotaKind,
        id: u32,
        geometry: &Geometry,
    ) -> Result<Option<Self>, DquotRule> {
        let (disk, _) = DiskDquot::ref_from_prefix(bytes).map_err(|_| DquotRule::Magic)?;
        if disk.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if disk.magic.get() != DQUOT_MAGIC {
            return Err(DquotRule::Magic);
        }
        if geometry.features.is_v5() {
            if !checksum::matches(disk.as_bytes(), DiskDquot::CHECKSUM_OFFSET) {
                return Err(DquotRule::Checksum);
            }
            if disk.uuid != *geometry.meta_uuid.as_bytes() {
                return Err(DquotRule::Uuid);
            }
        }
        if disk.version != VERSION {
            return Err(DquotRule::Version);
        }
        if disk.kind & KIND_MASK != kind as u8 {
            return Err(DquotRule::Kind);
        }
        if disk.id.get() != id {
            return Err(DquotRule::Id);
        }
        let resource = |hard: Be64, soft: Be64, used: Be64, timer: Be32| Resource {
            hard_limit: hard.get(),
            soft_limit: soft.get(),
            used: used.get(),
            timer: timer.get(),
        };
        Ok(Some(Self {
            id,
            blocks: resource(
                disk.block_hard_limit,
                disk.block_soft_limit,
                disk.blocks,
                disk.block_timer,
            ),
            inodes: resource(
                disk.inode_hard_limit,
                disk.inode_soft_limit,
                disk.inodes,
                disk.inode_timer,
            ),
            rt_blocks: resource(
                disk.rt_hard_limit,
                disk.rt_soft_limit,
                disk.rt_blocks,
                disk.rt_timer,
            ),
            is_bigtime: disk.kind & BIGTIME != 0,
        }))
    }
}

/// Records of one block.
#[must_use]
pub fn per_block(geometry: &Geometry) -> u32 {
    let record = u32::try_from(size_of::<DiskDquot>()).unwrap_or(u32::MAX);
    geometry
        .block_bytes()
        .checked_div(record)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;

    fn decode(change: impl FnOnce(&mut DiskDquot)) -> Result<Option<Dquot>, DquotRule> {
        let mut disk = DiskDquot::read_from_bytes(&[0; 136]).unwrap();
        disk.magic.set(DQUOT_MAGIC);
        disk.version = 1;
        disk.kind = 0x81;
        disk.id.set(7);
        disk.blocks.set(99);
        disk.inode_soft_limit.set(5);
        disk.uuid = [0x5a; 16];
        change(&mut disk);
        if disk.fill[0] == 0 {
            checksum::seal(disk.as_mut_bytes(), DiskDquot::CHECKSUM_OFFSET);
        }
        Dquot::decode(disk.as_bytes(), QuotaKind::User, 7, &sample_geometry())
    }

    #[test]
    fn record_has_limits_and_use() {
        let dquot = decode(|_| ()).unwrap().unwrap();
        assert_eq!((dquot.blocks.used, dquot.inodes.soft_limit), (99, 5));
        assert!(dquot.is_bigtime);
        let geometry = sample_geometry();
        let unused = Dquot::decode(&[0; 136], QuotaKind::User, 9, &geometry);
        assert_eq!(unused, Ok(None));
        assert_eq!(per_block(&geometry), 30);
    }

    #[test]
    fn rules_of_a_record_are_checked() {
        let broken = |change: fn(&mut DiskDquot)| decode(change).unwrap_err();
        assert_eq!(broken(|disk| disk.magic.set(1)), DquotRule::Magic);
        assert_eq!(broken(|disk| disk.version = 2), DquotRule::Version);
        assert_eq!(broken(|disk| disk.kind = 2), DquotRule::Kind);
        assert_eq!(broken(|disk| disk.id.set(8)), DquotRule::Id);
        assert_eq!(broken(|disk| disk.uuid[0] = 0), DquotRule::Uuid);
        assert_eq!(broken(|disk| disk.fill[0] = 1), DquotRule::Checksum);
    }
}
