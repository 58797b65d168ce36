//! The journal superblock: the start of the live log, and the journal's features. Spec:
//! `ext4/journal`, super block.

use std::mem::offset_of;
use std::ops::Range;

use bitflags::bitflags;
use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::Be32;
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use platter_vfs::Unsupported;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::{Checksums, LogFormat};
use super::header::{BlockKind, DiskHeader, Header, LogBlock, Sequence};

/// Length of the journal superblock in bytes.
pub const JOURNAL_SUPERBLOCK_LEN_BYTES: usize = 1024;
/// Blocks of the fast commit area when `s_num_fc_blks` is zero.
const FAST_COMMIT_BLOCKS_DEFAULT: u32 = 256;
/// `s_checksum_type`: CRC-32C.
const CHECKSUM_TYPE_CRC32C: u8 = 4;
/// Maximum number of filesystems that share an external journal.
const USERS_MAX: usize = 48;

/// The journal superblock as stored. Spec: `ext4/journal`, `struct journal_superblock_s`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskJournalSuperblock {
    /// `s_header`: its sequence is unused.
    pub header: DiskHeader,
    /// `s_blocksize`: bytes of a block.
    pub block_bytes: Be32,
    /// `s_maxlen`: blocks of the journal, counted from its block 0.
    pub len_blocks: Be32,
    /// `s_first`: first block of the log.
    pub first: Be32,
    /// `s_sequence`: first transaction expected in the log.
    pub sequence: Be32,
    /// `s_start`: block of that transaction; zero if there is nothing to replay.
    pub start: Be32,
    /// `s_errno`: the reason for aborting the journal, as a negative errno.
    pub errno: Be32,
    /// `s_feature_compat`. From here on only in version 2.
    pub feature_compat: Be32,
    /// `s_feature_incompat`.
    pub feature_incompat: Be32,
    /// `s_feature_ro_compat`.
    pub feature_ro_compat: Be32,
    /// `s_uuid`.
    pub uuid: [u8; 16],
    /// `s_nr_users`: filesystems that share the journal.
    pub users_count: Be32,
    /// `s_dynsuper`.
    pub dynamic_superblock: Be32,
    /// `s_max_transaction`.
    pub max_transaction: Be32,
    /// `s_max_trans_data`.
    pub max_transaction_data: Be32,
    /// `s_checksum_type`.
    pub checksum_type: u8,
    /// `s_padding2`.
    pub padding2: [u8; 3],
    /// `s_num_fc_blks`: blocks of the fast commit area; zero for the default.
    pub fast_commit_blocks: Be32,
    /// `s_head`: location of the next transaction while the log is empty.
    pub head: Be32,
    /// `s_padding`.
    pub padding: [Be32; 40],
    /// `s_checksum`: CRC-32C of the superblock with this field zero, from `!0`.
    pub checksum: Be32,
    /// `s_users`: UUIDs of the filesystems that share the journal.
    pub users: [[u8; 16]; USERS_MAX],
}

const _: () = assert!(size_of::<DiskJournalSuperblock>() == JOURNAL_SUPERBLOCK_LEN_BYTES);
const _: () = assert!(offset_of!(DiskJournalSuperblock, uuid) == 0x30);
const _: () = assert!(offset_of!(DiskJournalSuperblock, checksum_type) == 0x50);
const _: () = assert!(offset_of!(DiskJournalSuperblock, checksum) == 0xfc);

impl DiskJournalSuperblock {
    fn own_checksum(&self) -> u32 {
        let mut copy = *self;
        copy.checksum = 0.into();
        crc32c(!0, copy.as_bytes())
    }

    /// Marks the log as empty. No block of it may have a sequence of `next` or later.
    pub fn mark_empty(&mut self, next: Sequence) {
        self.start = 0.into();
        self.sequence = next.0.into();
        self.head = self.first;
        self.seal();
    }

    /// Sets the tail: the log has transactions from `start` on, the first of which is `sequence`.
    pub fn set_tail(&mut self, start: LogBlock, sequence: Sequence) {
        self.start = start.0.into();
        self.sequence = sequence.0.into();
        self.seal();
    }

    /// Records the reason for aborting the journal, as a negative errno; zero if it was not
    /// aborted.
    pub fn set_errno(&mut self, errno: i32) {
        self.errno = errno.cast_unsigned().into();
        self.seal();
    }

    /// Creates the superblock of a new, empty journal of `len_blocks` blocks inside the filesystem
    /// `uuid`.
    #[must_use]
    pub fn new(block_bytes: u32, len_blocks: u32, uuid: &Uuid) -> Self {
        let mut disk = Self::new_zeroed();
        disk.header = Header {
            kind: BlockKind::SuperblockV2,
            sequence: Sequence(0),
        }
        .encode();
        disk.block_bytes = block_bytes.into();
        disk.len_blocks = len_blocks.into();
        disk.first = 1.into();
        disk.sequence = 1.into();
        disk.uuid = *uuid.as_bytes();
        disk.users_count = 1.into();
        disk
    }

    /// Upgrades a superblock of version 1 to version 2, without features. The log must be empty.
    pub fn upgrade(&mut self) {
        let mut version2 = Self::new_zeroed();
        version2.header = Header {
            kind: BlockKind::SuperblockV2,
            sequence: Sequence(0),
        }
        .encode();
        version2.block_bytes = self.block_bytes;
        version2.len_blocks = self.len_blocks;
        version2.first = self.first;
        version2.sequence = self.sequence;
        version2.errno = self.errno;
        version2.users_count = 1.into();
        *self = version2;
    }

    /// Sets the features that a filesystem needs: 64-bit block numbers, and checksums of version 3
    /// unless those of version 2 are set. Revoke is always set, async commit never. The log must be
    /// empty.
    pub fn adapt(&mut self, wide: bool, with_checksums: bool) {
        let mut compat = JournalCompat::from_bits_retain(self.feature_compat.get());
        let mut incompat = JournalIncompat::from_bits_retain(self.feature_incompat.get());
        incompat.insert(JournalIncompat::REVOKE);
        incompat.remove(JournalIncompat::ASYNC_COMMIT);
        if wide {
            incompat.insert(JournalIncompat::BIT64);
        }
        if with_checksums && !incompat.contains(JournalIncompat::CSUM_V2) {
            incompat.insert(JournalIncompat::CSUM_V3);
            compat.remove(JournalCompat::CHECKSUM);
            self.checksum_type = CHECKSUM_TYPE_CRC32C;
        }
        self.feature_compat = compat.bits().into();
        self.feature_incompat = incompat.bits().into();
        self.seal();
    }

    /// Stores the checksum, if the journal has one.
    pub fn seal(&mut self) {
        let features = JournalIncompat::from_bits_retain(self.feature_incompat.get());
        if Header::decode(self.header.as_bytes())
            .is_some_and(|header| header.kind == BlockKind::SuperblockV2)
            && features.intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3)
        {
            self.checksum = self.own_checksum().into();
        }
    }
}

bitflags! {
    /// `s_feature_compat` of the journal.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct JournalCompat: u32 {
        /// Commit blocks hold a checksum of their transaction (version 1).
        const CHECKSUM = 0x1;
    }
}

bitflags! {
    /// `s_feature_incompat` of the journal.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct JournalIncompat: u32 {
        /// Revoke blocks are used.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// A commit block may reach the disk before the blocks it commits.
        const ASYNC_COMMIT = 0x4;
        /// Checksums of version 2.
        const CSUM_V2 = 0x8;
        /// Checksums of version 3.
        const CSUM_V3 = 0x10;
        /// A fast commit area follows the log.
        const FAST_COMMIT = 0x20;
    }
}

impl JournalIncompat {
    const NAMES: [(Self, &'static str); 6] = [
        (Self::REVOKE, "journal_incompat_revoke"),
        (Self::BIT64, "journal_64bit"),
        (Self::ASYNC_COMMIT, "journal_async_commit"),
        (Self::CSUM_V2, "journal_checksum_v2"),
        (Self::CSUM_V3, "journal_checksum_v3"),
        (Self::FAST_COMMIT, "fast_commit"),
    ];
}

rules! {
    /// The rules of a journal superblock.
    pub enum JournalSuperblockRule of "journal superblock" {
        /// `h_magic` and `h_blocktype`.
        Magic => "invalid magic or block type",
        /// `s_blocksize` is the filesystem's block size.
        BlockSize => "s_blocksize is not the filesystem's block size",
        /// `s_maxlen` does not exceed the journal inode or device.
        Length => "journal file too short for s_maxlen",
        /// `s_first` is after the superblock and within the log.
        First => "s_first is outside the journal",
        /// `s_start` is within the log.
        Start => "invalid start block of the journal",
        /// At most one version of checksums is set.
        ChecksumFeatures => "more than one checksum version is set",
        /// `s_checksum_type`.
        ChecksumType => "unknown checksum type",
        /// `s_checksum`.
        Checksum => "checksum does not match",
        /// `s_num_fc_blks` leaves space for the log.
        FastCommitBlocks => "s_num_fc_blks leaves no space for the log",
        /// `s_nr_users` is at most the size of the table of users.
        Users => "s_nr_users exceeds the table of users",
    }
}

/// A validated journal superblock.
///
/// # Invariants
/// `superblock < first < end <= fast_commit.start <= fast_commit.end`, all at most the length of
/// the journal; `start`, if present, is in `first..end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSuperblock {
    /// 1 for a superblock without features, else 2.
    pub version: u8,
    /// Length of the journal in blocks.
    pub len_blocks: u32,
    /// First block of the log.
    pub first: LogBlock,
    /// First block after the log, which wraps around to `first`.
    pub end: LogBlock,
    /// The fast commit area; empty without the feature.
    pub fast_commit: Range<u32>,
    /// The first transaction expected in the log.
    pub sequence: Sequence,
    /// First block of that transaction; `None` if there is nothing to replay.
    pub start: Option<LogBlock>,
    /// The reason for aborting the journal, as a negative errno; zero if it was not aborted.
    pub errno: i32,
    /// `s_feature_compat`.
    pub compat: JournalCompat,
    /// `s_feature_incompat`.
    pub incompat: JournalIncompat,
    /// `s_feature_ro_compat`: none is known.
    pub ro_compat: u32,
    /// The journal's UUID.
    pub uuid: Uuid,
    /// UUIDs of the filesystems that share the journal; may be empty for an internal one.
    pub users: Vec<Uuid>,
    /// The format of the log's blocks.
    pub format: LogFormat,
}

type Result<T> = std::result::Result<T, Corrupt<JournalSuperblockRule>>;

impl JournalSuperblock {
    /// Validates a superblock read from block `place` of a journal with `capacity_blocks` blocks of
    /// `block_bytes`.
    pub fn decode(
        disk: &DiskJournalSuperblock,
        place: LogBlock,
        block_bytes: u32,
        capacity_blocks: u32,
    ) -> Result<Self> {
        let version = match Header::decode(disk.header.as_bytes()).map(|header| header.kind) {
            Some(BlockKind::SuperblockV1) => 1,
            Some(BlockKind::SuperblockV2) => 2,
            _ => return Err(broken(JournalSuperblockRule::Magic)),
        };
        require(
            disk.block_bytes.get() == block_bytes,
            JournalSuperblockRule::BlockSize,
        )?;
        let (compat, incompat, ro_compat) = features(disk, version);
        let checksums = checksums(disk, compat, incompat)?;
        let len_blocks = disk.len_blocks.get();
        require(len_blocks <= capacity_blocks, JournalSuperblockRule::Length)?;
        let first = disk.first.get();
        require(
            first > place.0 && first < len_blocks,
            JournalSuperblockRule::First,
        )?;
        let (end, fast_commit) = areas(disk, incompat, first, len_blocks)?;
        let start = disk.start.get();
        let in_log = start == 0 || (first..end).contains(&start);
        require(in_log, JournalSuperblockRule::Start)?;
        Ok(Self {
            version,
            len_blocks,
            first: LogBlock(first),
            end: LogBlock(end),
            fast_commit,
            sequence: Sequence(disk.sequence.get()),
            start: (start != 0).then_some(LogBlock(start)),
            errno: disk.errno.get().cast_signed(),
            compat,
            incompat,
            ro_compat,
            uuid: if version == 1 {
                Uuid::nil()
            } else {
                Uuid::from_bytes(disk.uuid)
            },
            users: users(disk, version)?,
            format: LogFormat {
                block_bytes,
                wide: incompat.contains(JournalIncompat::BIT64),
                checksums,
                async_commit: incompat.contains(JournalIncompat::ASYNC_COMMIT),
            },
        })
    }

    /// Refuses a journal with a feature that replay does not support.
    pub fn check_supported(&self) -> std::result::Result<(), Unsupported> {
        let unknown = self.incompat.difference(JournalIncompat::all()).bits();
        let feature = if unknown != 0 {
            format!("journal incompat feature {unknown:#x}")
        } else if self.ro_compat != 0 {
            format!("journal read-only compat feature {:#x}", self.ro_compat)
        } else {
            return Ok(());
        };
        Err(Unsupported {
            filesystem: "ext4",
            feature,
            reason: None,
        })
    }

    /// Returns the names of the journal's features, as printed by e2fsprogs.
    #[must_use]
    pub fn feature_names(&self) -> Vec<&'static str> {
        let checksum = self.compat.contains(JournalCompat::CHECKSUM);
        let compat = checksum.then_some("journal_checksum");
        let incompat = JournalIncompat::NAMES
            .into_iter()
            .filter(|(bit, _)| self.incompat.contains(*bit));
        compat
            .into_iter()
            .chain(incompat.map(|(_, name)| name))
            .collect()
    }
}

fn broken(rule: JournalSuperblockRule) -> Corrupt<JournalSuperblockRule> {
    Corrupt::new(Locus::default(), rule)
}

fn require(holds: bool, rule: JournalSuperblockRule) -> Result<()> {
    if holds { Ok(()) } else { Err(broken(rule)) }
}

fn features(disk: &DiskJournalSuperblock, version: u8) -> (JournalCompat, JournalIncompat, u32) {
    if version == 1 {
        return (JournalCompat::empty(), JournalIncompat::empty(), 0);
    }
    (
        JournalCompat::from_bits_retain(disk.feature_compat.get()),
        JournalIncompat::from_bits_retain(disk.feature_incompat.get()),
        disk.feature_ro_compat.get(),
    )
}

fn checksums(
    disk: &DiskJournalSuperblock,
    compat: JournalCompat,
    incompat: JournalIncompat,
) -> Result<Checksums> {
    let v1 = compat.contains(JournalCompat::CHECKSUM);
    let v2 = incompat.contains(JournalIncompat::CSUM_V2);
    let v3 = incompat.contains(JournalIncompat::CSUM_V3);
    let seed = crc32c(!0, &disk.uuid);
    let checksums = match (v1, v2, v3) {
        (false, false, false) => return Ok(Checksums::None),
        (true, false, false) => return Ok(Checksums::Commit),
        (false, true, false) => Checksums::Tag16 { seed },
        (false, false, true) => Checksums::Tag32 { seed },
        _ => return Err(broken(JournalSuperblockRule::ChecksumFeatures)),
    };
    let known = disk.checksum_type == CHECKSUM_TYPE_CRC32C;
    require(known, JournalSuperblockRule::ChecksumType)?;
    let matches = disk.checksum.get() == disk.own_checksum();
    require(matches, JournalSuperblockRule::Checksum)?;
    Ok(checksums)
}

/// Returns the end of the log, and the fast commit area: one unused block is between them. That
/// block is shown by the oracle test `fast_commits_replay_like_the_kernel`.
fn areas(
    disk: &DiskJournalSuperblock,
    incompat: JournalIncompat,
    first: u32,
    len_blocks: u32,
) -> Result<(u32, Range<u32>)> {
    if !incompat.contains(JournalIncompat::FAST_COMMIT) {
        return Ok((len_blocks, len_blocks..len_blocks));
    }
    let count = match disk.fast_commit_blocks.get() {
        0 => FAST_COMMIT_BLOCKS_DEFAULT,
        count => count,
    };
    let end = len_blocks.checked_sub(count).filter(|&end| end > first);
    let end = end.ok_or(broken(JournalSuperblockRule::FastCommitBlocks))?;
    Ok((end, end.saturating_add(1)..len_blocks))
}

fn users(disk: &DiskJournalSuperblock, version: u8) -> Result<Vec<Uuid>> {
    if version == 1 {
        return Ok(Vec::new());
    }
    let count = usize::try_from(disk.users_count.get()).unwrap_or(usize::MAX);
    let users = disk.users.get(..count);
    let users = users.ok_or(broken(JournalSuperblockRule::Users))?;
    Ok(users.iter().map(|uuid| Uuid::from_bytes(*uuid)).collect())
}

#[cfg(test)]
mod tests;
