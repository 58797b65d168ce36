//! Quota files: a tree of 1 KiB blocks, keyed by the four bytes of an id, with limits and usage in
//! its leaves. No document states the layout; the test `intact_fixtures_are_clean_for_both`
//! shows it on files that mke2fs and e2fsck make.

use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Block size of a quota file in bytes, independent of the filesystem's.
pub const QUOTA_BLOCK_BYTES: usize = 1024;
/// Block number of the tree's root.
pub const QUOTA_ROOT_BLOCK: u32 = 1;
/// Levels of the tree above the leaves: one for each byte of an id.
pub const QUOTA_TREE_LEVELS: u32 = 4;
/// `dqh_version` with 64-bit limits.
const VERSION: u32 = 1;
/// Grace period of a new quota file in seconds: a week.
const GRACE_SECONDS: u32 = 604_800;
/// Entries of a leaf.
pub const ENTRIES_PER_LEAF: usize =
    (QUOTA_BLOCK_BYTES - size_of::<DiskQuotaLeafHead>()) / size_of::<DiskQuotaEntry>();

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

    /// Its position in [`ALL`](Self::ALL).
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::User => 0,
            Self::Group => 1,
            Self::Project => 2,
        }
    }

    /// Its owners, as a noun.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "users",
            Self::Group => "groups",
            Self::Project => "projects",
        }
    }

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

impl DiskQuotaHead {
    /// Returns the header of a file with nothing but a root.
    #[must_use]
    pub fn new(kind: QuotaKind) -> Self {
        Self {
            magic: kind.magic().into(),
            version: VERSION.into(),
            space_grace: GRACE_SECONDS.into(),
            inode_grace: GRACE_SECONDS.into(),
            flags: 0.into(),
            blocks: (QUOTA_ROOT_BLOCK + 1).into(),
            free_block: 0.into(),
            free_entry: 0.into(),
        }
    }
}

/// The header of a leaf as stored: `qt_disk_dqdbheader`.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
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
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
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

impl DiskQuotaEntry {
    /// Whether nothing of it is set but perhaps the mark of [`marked`](Self::marked).
    fn is_empty(&self) -> bool {
        let mut rest = *self;
        rest.inode_time = 0.into();
        self.inode_time.get() <= 1 && rest.as_bytes().iter().all(|&byte| byte == 0)
    }

    /// Returns the entry as it is stored: zeros, of the id 0, would be an unused slot.
    #[must_use]
    pub fn marked(mut self) -> Self {
        if self.is_empty() {
            self.inode_time = 1.into();
        }
        self
    }

    /// Returns the entry without that mark.
    #[must_use]
    pub fn unmarked(mut self) -> Self {
        if self.is_empty() {
            self.inode_time = 0.into();
        }
        self
    }
}

rules! {
    /// The rules of a quota file.
    pub enum QuotaRule of "quota file" {
        /// `dqh_magic` matches the kind.
        Magic => "invalid dqh_magic",
        /// `dqh_version` is 1.
        Version => "dqh_version is not 1",
        /// The file is at least `dqi_blocks` long and has a root.
        Length => "shorter than dqi_blocks",
        /// References of the tree are within the file, and no block is referenced twice.
        Reference => "tree block is outside the file or multiply claimed",
        /// No id has two entries.
        Duplicate => "two entries of one id",
        /// Lists of free blocks and entries name blocks of the file with free space.
        FreeList => "list of free blocks or entries is corrupt",
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

impl QuotaUsage {
    /// Returns the usage that an entry records.
    #[must_use]
    pub fn of(entry: &DiskQuotaEntry) -> Self {
        Self {
            space_bytes: entry.space_bytes.get(),
            inodes: entry.inodes.get(),
        }
    }
}

/// Validates the header of a quota file of `len_bytes`, and returns it.
pub fn decode_head(
    bytes: &[u8],
    kind: QuotaKind,
    len_bytes: u64,
) -> Result<DiskQuotaHead, QuotaRule> {
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
    Ok(*head)
}

/// Returns the blocks that a tree block references.
pub fn references(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let references = <[Le32]>::ref_from_bytes(bytes).unwrap_or_default();
    references
        .iter()
        .map(|block| block.get())
        .filter(|&block| block != 0)
}

/// Returns the entries in use of a leaf, each with the offset of its slot.
pub fn entries(bytes: &[u8]) -> impl Iterator<Item = (usize, DiskQuotaEntry)> + '_ {
    let in_use = slots(bytes).filter(|(_, slot)| slot.iter().any(|&byte| byte != 0));
    in_use.filter_map(|(offset, slot)| {
        let entry = DiskQuotaEntry::read_from_bytes(slot).ok()?;
        Some((offset, entry.unmarked()))
    })
}

/// Returns the offset of an unused slot of a leaf.
#[must_use]
pub fn unused_slot(bytes: &[u8]) -> Option<usize> {
    let mut unused = slots(bytes).filter(|(_, slot)| slot.iter().all(|&byte| byte == 0));
    unused.next().map(|(offset, _)| offset)
}

/// The slots of a leaf, with their offsets.
fn slots(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let first = size_of::<DiskQuotaLeafHead>();
    let len = size_of::<DiskQuotaEntry>();
    let slots = bytes.get(first..).unwrap_or_default().chunks_exact(len);
    (first..).step_by(len).zip(slots)
}

/// Returns the position of the reference of an id in a tree block `level` levels below the root.
#[must_use]
pub fn reference_index(id: u32, level: u32) -> usize {
    let bytes = id.to_be_bytes();
    usize::from(bytes.get(level as usize).copied().unwrap_or_default())
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
        assert!(decode_head(&head(6), QuotaKind::Group, len_bytes).is_ok());
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
        let found: Vec<_> = entries(&block).collect();
        let (offset, found) = found[0];
        assert_eq!((offset, found.id.get()), (16 + 72, 1000));
        let usage = QuotaUsage {
            space_bytes: 12288,
            inodes: 3,
        };
        assert_eq!(QuotaUsage::of(&found), usage);
        assert_eq!(entries(&block).count(), 1);
        assert_eq!(unused_slot(&block), Some(16));
    }

    #[test]
    fn entry_of_id_0_without_usage_is_in_use() {
        let mut block = vec![0; QUOTA_BLOCK_BYTES];
        let stored = DiskQuotaEntry::default().marked();
        block[16..88].copy_from_slice(stored.as_bytes());
        let found: Vec<_> = entries(&block).collect();
        assert_eq!((found.len(), found[0].1.inode_time.get()), (1, 0));
        assert_eq!(unused_slot(&block), Some(88));
    }

    #[test]
    fn references_of_an_id_follow_its_bytes() {
        let indices: Vec<_> = (0..4)
            .map(|level| reference_index(0x0102_03ff, level))
            .collect();
        assert_eq!(indices, [1, 2, 3, 255]);
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
