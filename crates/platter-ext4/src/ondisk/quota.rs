//! Quota files: a tree of 1 KiB blocks, keyed by the four bytes of an id, with limits and usage in
//! its leaves. No document states the layout; the test `undamaged_fixtures_are_clean_for_both`
//! shows it on files that mke2fs and e2fsck make.

use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus, Rule};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Block size of a quota file in bytes, independent of the filesystem's.
pub const QUOTA_BLOCK_BYTES: usize = 1024;
/// Block number of the tree's root.
pub const QUOTA_ROOT_BLOCK: u32 = 1;
/// Levels of the tree above the leaves: one for each byte of an id.
pub const QUOTA_TREE_LEVELS: u32 = 4;
/// `dqh_version` with 64-bit limits.
const VERSION: u32 = 1;

/// The kinds of quota files, in the order of the superblock's three inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaKind {
    /// Usage of users.
    User,
    /// Usage of groups.
    Group,
    /// Usage of projects.
    Project,
}

impl QuotaKind {
    /// All kinds, in order.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    fn magic(self) -> u32 {
        match self {
            Self::User => 0xd9c0_1f11,
            Self::Group => 0xd9c0_1927,
            Self::Project => 0xd9c0_3f14,
        }
    }
}

/// The header of a quota file as stored: `v2_disk_dqheader` and `v2_disk_dqinfo`.
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
    /// `dqi_blocks`: length of the file in blocks.
    pub blocks: Le32,
    /// `dqi_free_blk`: head of the list of free blocks.
    pub free_block: Le32,
    /// `dqi_free_entry`: head of the list of blocks with free entries.
    pub free_entry: Le32,
}

const _: () = assert!(size_of::<DiskQuotaHead>() == 32);

/// The header of a leaf as stored: `qt_disk_dqdbheader`.
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

/// An entry as stored: `v2r1_disk_dqblk`. An unused one is all zeros.
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

/// The rules of a quota file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaRule {
    /// `dqh_magic` matches the kind.
    Magic,
    /// `dqh_version` is 1.
    Version,
    /// The file is at least `dqi_blocks` long and has a root.
    Length,
    /// References of the tree are within the file, and no block is referenced twice.
    Reference,
}

impl Rule for QuotaRule {
    const STRUCTURE: &'static str = "quota file";

    fn text(self) -> &'static str {
        match self {
            Self::Magic => "invalid dqh_magic",
            Self::Version => "dqh_version is not 1",
            Self::Length => "shorter than dqi_blocks",
            Self::Reference => "tree block is outside the file or multiply claimed",
        }
    }
}

/// The usage of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUsage {
    /// Bytes.
    pub space_bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Validates the header of a quota file of `len_bytes`.
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

/// Returns the blocks that a tree block references.
pub fn references(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let references = <[Le32]>::ref_from_bytes(bytes).unwrap_or_default();
    references
        .iter()
        .map(|block| block.get())
        .filter(|&block| block != 0)
}

/// Returns the ids in a leaf with their recorded usage.
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

/// Returns the report of a quota file that breaks `rule`, in its block `block` if known.
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
    fn header_is_validated_by_kind_version_and_length() {
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
    fn unused_entries_are_skipped() {
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
    fn references_are_the_nonzero_numbers() {
        let mut block = vec![0; QUOTA_BLOCK_BYTES];
        block[8] = 5;
        block[1020] = 9;
        assert_eq!(references(&block).collect::<Vec<_>>(), [5, 9]);
        let corrupt = broken(3, Some(5), QuotaRule::Reference);
        assert_eq!(corrupt.locus.parts().offset, Some(5 * 1024));
    }
}
