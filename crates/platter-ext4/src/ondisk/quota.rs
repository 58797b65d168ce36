//! A quota file: a tree of 1 KiB blocks, by the four bytes of an id, to entries with limits and
//! usage. No document states the layout; the test `undamaged_fixtures_are_clean_for_both` shows it
//! on what mke2fs and e2fsck make.

use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus, Rule};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block of a quota file, whatever the filesystem's are.
pub const QUOTA_BLOCK_BYTES: usize = 1024;
/// The block of the tree's root.
pub const QUOTA_ROOT_BLOCK: u32 = 1;
/// Levels of the tree above the blocks of entries: one for each byte of an id.
pub const QUOTA_TREE_LEVELS: u32 = 4;
/// `dqh_version` of 64-bit limits.
const VERSION: u32 = 1;

/// Whose usage a quota file tells, in the order of the superblock's three inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaKind {
    /// Of users.
    User,
    /// Of groups.
    Group,
    /// Of projects.
    Project,
}

impl QuotaKind {
    /// All, in order.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    fn magic(self) -> u32 {
        match self {
            Self::User => 0xd9c0_1f11,
            Self::Group => 0xd9c0_1927,
            Self::Project => 0xd9c0_3f14,
        }
    }
}

/// The head of a quota file as stored: `v2_disk_dqheader` and `v2_disk_dqinfo`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskQuotaHead {
    /// `dqh_magic`.
    pub magic: Le32,
    /// `dqh_version`.
    pub version: Le32,
    /// `dqi_bgrace`: seconds.
    pub space_grace: Le32,
    /// `dqi_igrace`: seconds.
    pub inode_grace: Le32,
    /// `dqi_flags`.
    pub flags: Le32,
    /// `dqi_blocks`: of the file.
    pub blocks: Le32,
    /// `dqi_free_blk`: head of the list of free blocks.
    pub free_block: Le32,
    /// `dqi_free_entry`: head of the list of blocks with free entries.
    pub free_entry: Le32,
}

const _: () = assert!(size_of::<DiskQuotaHead>() == 32);

/// The head of a block of entries as stored: `qt_disk_dqdbheader`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskQuotaLeafHead {
    /// `dqdh_next_free`.
    pub next_free: Le32,
    /// `dqdh_prev_free`.
    pub prev_free: Le32,
    /// `dqdh_entries`: in use.
    pub entries: Le16,
    /// `dqdh_pad1` and `dqdh_pad2`.
    pub padding: [u8; 6],
}

const _: () = assert!(size_of::<DiskQuotaLeafHead>() == 16);

/// An entry as stored: `v2r1_disk_dqblk`. One that is not in use is all zeros.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskQuotaEntry {
    /// `dqb_id`.
    pub id: Le32,
    /// `dqb_pad`.
    pub padding: Le32,
    /// `dqb_ihardlimit`.
    pub inodes_hard: Le64,
    /// `dqb_isoftlimit`.
    pub inodes_soft: Le64,
    /// `dqb_curinodes`: in use.
    pub inodes: Le64,
    /// `dqb_bhardlimit`.
    pub space_hard: Le64,
    /// `dqb_bsoftlimit`.
    pub space_soft: Le64,
    /// `dqb_curspace`: bytes in use.
    pub space_bytes: Le64,
    /// `dqb_btime`.
    pub space_time: Le64,
    /// `dqb_itime`.
    pub inode_time: Le64,
}

const _: () = assert!(size_of::<DiskQuotaEntry>() == 72);

/// What a quota file must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaRule {
    /// `dqh_magic` is that of its kind.
    Magic,
    /// `dqh_version` is 1.
    Version,
    /// The file has the blocks it tells of, and a root.
    Length,
    /// A reference of the tree points into the file, and to no block twice.
    Reference,
}

impl Rule for QuotaRule {
    const STRUCTURE: &'static str = "quota file";

    fn text(self) -> &'static str {
        match self {
            Self::Magic => "magic is not that of its kind",
            Self::Version => "version is not 1",
            Self::Length => "is shorter than it says",
            Self::Reference => "tree points outside the file or to a block twice",
        }
    }
}

/// What an id uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUsage {
    /// Bytes.
    pub space_bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Proves the head of a quota file of `len_bytes`.
pub fn decode_head(bytes: &[u8], kind: QuotaKind, len_bytes: u64) -> Result<(), QuotaRule> {
    let (head, _) = DiskQuotaHead::ref_from_prefix(bytes).map_err(|_| QuotaRule::Length)?;
    if head.magic.get() != kind.magic() {
        return Err(QuotaRule::Magic);
    }
    if head.version.get() != VERSION {
        return Err(QuotaRule::Version);
    }
    let blocks = u64::from(head.blocks.get()).max(u64::from(QUOTA_ROOT_BLOCK).saturating_add(1));
    if blocks.saturating_mul(QUOTA_BLOCK_BYTES as u64) > len_bytes {
        return Err(QuotaRule::Length);
    }
    Ok(())
}

/// The blocks that a block of the tree refers to.
pub fn references(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let references = <[Le32]>::ref_from_bytes(bytes).unwrap_or_default();
    references
        .iter()
        .map(|block| block.get())
        .filter(|&block| block != 0)
}

/// The ids of a block of entries, and what they are said to use.
pub fn entries(bytes: &[u8]) -> impl Iterator<Item = (u32, QuotaUsage)> + '_ {
    let rest = bytes
        .get(size_of::<DiskQuotaLeafHead>()..)
        .unwrap_or_default();
    let slots = rest.chunks_exact(size_of::<DiskQuotaEntry>());
    let in_use = slots.filter(|slot| slot.iter().any(|&byte| byte != 0));
    in_use.filter_map(|slot| {
        let entry = DiskQuotaEntry::ref_from_bytes(slot).ok()?;
        let usage = QuotaUsage {
            space_bytes: entry.space_bytes.get(),
            inodes: entry.inodes.get(),
        };
        Some((entry.id.get(), usage))
    })
}

/// A quota file that breaks `rule`; its block `block`, where that is known.
#[must_use]
pub fn broken(inode: u32, block: Option<u32>, rule: QuotaRule) -> Corrupt<QuotaRule> {
    let inode = Locus::inode(u64::from(inode));
    let locus = block.map_or(inode, |block| {
        inode.at_offset(u64::from(block).saturating_mul(QUOTA_BLOCK_BYTES as u64))
    });
    Corrupt::new(locus, rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(blocks: u32) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        let head = DiskQuotaHead::mut_from_bytes(&mut bytes).unwrap();
        head.magic.set(0xd9c0_1927);
        head.version.set(1);
        head.blocks.set(blocks);
        bytes
    }

    #[test]
    fn head_tells_kind_version_and_length() {
        let len_bytes = 6 * 1024;
        assert_eq!(decode_head(&head(6), QuotaKind::Group, len_bytes), Ok(()));
        let wrong = |bytes: &[u8], kind| decode_head(bytes, kind, len_bytes).unwrap_err();
        assert_eq!(wrong(&head(6), QuotaKind::User), QuotaRule::Magic);
        assert_eq!(wrong(&head(6), QuotaKind::Project), QuotaRule::Magic);
        assert_eq!(wrong(&head(7), QuotaKind::Group), QuotaRule::Length);
        assert_eq!(wrong(&[], QuotaKind::Group), QuotaRule::Length);
        let mut old = head(6);
        old[4] = 0;
        assert_eq!(wrong(&old, QuotaKind::Group), QuotaRule::Version);
    }

    #[test]
    fn entries_not_in_use_are_left_out() {
        let mut block = vec![0; QUOTA_BLOCK_BYTES];
        let (entry, _) = DiskQuotaEntry::mut_from_prefix(&mut block[16 + 72..]).unwrap();
        entry.id.set(1000);
        entry.inodes.set(3);
        entry.space_bytes.set(12288);
        let usage = QuotaUsage {
            space_bytes: 12288,
            inodes: 3,
        };
        assert_eq!(entries(&block).collect::<Vec<_>>(), [(1000, usage)]);
    }

    #[test]
    fn references_are_the_numbers_that_are_not_zero() {
        let mut block = vec![0; QUOTA_BLOCK_BYTES];
        block[8] = 5;
        block[1020] = 9;
        assert_eq!(references(&block).collect::<Vec<_>>(), [5, 9]);
        let corrupt = broken(3, Some(5), QuotaRule::Reference);
        assert_eq!(corrupt.locus.parts().offset, Some(5 * 1024));
    }
}
