//! One test per rule of the journal superblock.

use super::*;

const BLOCK_BYTES: u32 = 4096;
const CAPACITY: u32 = 2048;

fn sample() -> DiskJournalSuperblock {
    let mut disk = DiskJournalSuperblock::read_from_bytes(&[0; 1024]).unwrap();
    disk.header = Header {
        kind: BlockKind::SuperblockV2,
        sequence: Sequence(0),
    }
    .encode();
    disk.block_bytes = BLOCK_BYTES.into();
    disk.len_blocks = CAPACITY.into();
    disk.first = 1.into();
    disk.sequence = 9.into();
    disk.start = 1.into();
    disk.uuid = [3; 16];
    disk
}

fn decode(disk: &DiskJournalSuperblock) -> Result<JournalSuperblock> {
    JournalSuperblock::decode(disk, LogBlock(0), BLOCK_BYTES, CAPACITY)
}

fn refused(disk: &DiskJournalSuperblock) -> JournalSuperblockRule {
    decode(disk).unwrap_err().rule
}

fn with_v3(mut disk: DiskJournalSuperblock) -> DiskJournalSuperblock {
    disk.feature_incompat = (JournalIncompat::CSUM_V3 | JournalIncompat::BIT64)
        .bits()
        .into();
    disk.checksum_type = CHECKSUM_TYPE_CRC32C;
    disk.seal();
    disk
}

#[test]
fn version_1_has_no_features() {
    let mut disk = sample();
    disk.feature_incompat = u32::MAX.into();
    disk.users_count = u32::MAX.into();
    disk.header.kind = 3.into();
    let journal = decode(&disk).unwrap();
    assert_eq!(journal.version, 1);
    assert_eq!(journal.incompat, JournalIncompat::empty());
    assert_eq!(journal.format.checksums, Checksums::None);
    assert_eq!(journal.uuid, Uuid::nil());
    assert!(journal.check_supported().is_ok());
}

#[test]
fn checksum_version_3_is_recognised() {
    let journal = decode(&with_v3(sample())).unwrap();
    let seed = crc32c(!0, &[3; 16]);
    assert_eq!(journal.format.checksums, Checksums::Tag32 { seed });
    assert!(journal.format.wide);
    assert_eq!(
        journal.feature_names(),
        ["journal_64bit", "journal_checksum_v3"]
    );
}

#[test]
fn wrong_magic_or_kind_is_corrupt() {
    let mut disk = sample();
    disk.header.kind = 2.into();
    assert_eq!(refused(&disk), JournalSuperblockRule::Magic);
    disk = sample();
    disk.header.magic = 0.into();
    assert_eq!(refused(&disk), JournalSuperblockRule::Magic);
}

#[test]
fn other_block_size_is_corrupt() {
    let mut disk = sample();
    disk.block_bytes = 1024.into();
    assert_eq!(refused(&disk), JournalSuperblockRule::BlockSize);
}

#[test]
fn journal_longer_than_its_inode_is_corrupt() {
    let mut disk = sample();
    disk.len_blocks = (CAPACITY + 1).into();
    assert_eq!(refused(&disk), JournalSuperblockRule::Length);
}

#[test]
fn first_block_outside_the_log_is_corrupt() {
    for first in [0, CAPACITY, u32::MAX] {
        let mut disk = sample();
        disk.first = first.into();
        assert_eq!(refused(&disk), JournalSuperblockRule::First);
    }
}

#[test]
fn start_outside_the_log_is_corrupt() {
    let mut disk = sample();
    disk.first = 2.into();
    for start in [1, CAPACITY, u32::MAX] {
        disk.start = start.into();
        assert_eq!(refused(&disk), JournalSuperblockRule::Start);
    }
    disk.start = 0.into();
    assert_eq!(decode(&disk).unwrap().start, None);
}

#[test]
fn two_versions_of_checksums_are_corrupt() {
    let v2_v3 = JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3;
    let mut disk = sample();
    disk.feature_incompat = v2_v3.bits().into();
    assert_eq!(refused(&disk), JournalSuperblockRule::ChecksumFeatures);
    disk.feature_incompat = JournalIncompat::CSUM_V2.bits().into();
    disk.feature_compat = JournalCompat::CHECKSUM.bits().into();
    assert_eq!(refused(&disk), JournalSuperblockRule::ChecksumFeatures);
}

#[test]
fn unknown_checksum_type_is_corrupt() {
    let mut disk = with_v3(sample());
    disk.checksum_type = 1;
    assert_eq!(refused(&disk), JournalSuperblockRule::ChecksumType);
}

#[test]
fn flipped_bit_fails_the_checksum() {
    let mut disk = with_v3(sample());
    disk.sequence = 8.into();
    assert_eq!(refused(&disk), JournalSuperblockRule::Checksum);
}

#[test]
fn fast_commit_area_follows_the_log() {
    let mut disk = sample();
    disk.feature_incompat = JournalIncompat::FAST_COMMIT.bits().into();
    let journal = decode(&disk).unwrap();
    assert_eq!(journal.end, LogBlock(CAPACITY - 256));
    assert_eq!(journal.fast_commit, CAPACITY - 255..CAPACITY);
    for blocks in [CAPACITY - 1, CAPACITY, u32::MAX] {
        disk.fast_commit_blocks = blocks.into();
        assert_eq!(refused(&disk), JournalSuperblockRule::FastCommitBlocks);
    }
}

#[test]
fn too_many_users_are_corrupt() {
    let mut disk = sample();
    disk.users_count = 49.into();
    assert_eq!(refused(&disk), JournalSuperblockRule::Users);
    disk.users_count = 48.into();
    assert_eq!(decode(&disk).unwrap().users.len(), 48);
}

#[test]
fn unknown_feature_is_refused_by_its_bit() {
    let mut disk = sample();
    disk.feature_incompat = 0x40.into();
    let refusal = decode(&disk).unwrap().check_supported().unwrap_err();
    assert_eq!(refusal.feature, "journal incompat feature 0x40");
    disk.feature_incompat = 0.into();
    disk.feature_ro_compat = 1.into();
    let refusal = decode(&disk).unwrap().check_supported().unwrap_err();
    assert_eq!(refusal.feature, "journal read-only compat feature 0x1");
}

#[test]
fn emptied_journal_has_a_valid_checksum() {
    let mut disk = with_v3(sample());
    disk.mark_empty(Sequence(12));
    let journal = decode(&disk).unwrap();
    assert_eq!((journal.start, journal.sequence), (None, Sequence(12)));
}
