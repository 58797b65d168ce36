//! Corruption of the filesystem's own files: journal, orphan file, quota, resize inode, bad blocks.

use super::*;
use crate::mapping::IndirectRule;
use crate::ondisk::jbd2::superblock::DiskJournalSuperblock;
use crate::ondisk::mmp::MmpRule;

fn with_journal() -> Image {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let features = "has_journal,orphan_file,quota,resize_inode,^metadata_csum,^64bit";
    let bytes = BYTES.get_or_init(|| make(features, &[])).clone();
    Image { bytes }
}

impl Image {
    fn journal(&mut self) -> &mut DiskJournalSuperblock {
        let block = self.place_of(InodeNr::JOURNAL, 0);
        let bytes = self.block(block);
        DiskJournalSuperblock::mut_from_bytes(bytes).unwrap()
    }

    fn orphan_file(&mut self) -> InodeNr {
        InodeNr::new(self.superblock().orphan_file_inode.get()).unwrap()
    }
}

#[test]
fn intact_own_files_are_clean() {
    assert_eq!(with_journal().findings(&[]), []);
}

#[test]
fn short_journal_is_reported() {
    let mut image = with_journal();
    image.number(8).size_lo.set(1023 * 1024);
    image.breaks(JournalUseRule::Length);
}

#[test]
fn journal_data_without_needs_recovery_is_reported() {
    let mut image = with_journal();
    image.journal().start = 1.into();
    image.breaks(JournalUseRule::NotMarked);
}

#[test]
fn aborted_journal_is_reported() {
    let mut image = with_journal();
    image.journal().errno = (-5i32).cast_unsigned().into();
    image.breaks(JournalUseRule::Aborted);
}

#[test]
fn missing_orphan_file_is_reported() {
    let mut image = with_journal();
    image.superblock().orphan_file_inode.set(0);
    image.breaks(OrphanFileRule::Missing);
}

#[test]
fn orphan_file_of_wrong_size_is_reported() {
    let mut image = with_journal();
    let number = image.orphan_file();
    image.number(number.get()).size_lo.set(1000);
    image.breaks(OrphanFileRule::Inode);
    let mut image = with_journal();
    image.number(number.get()).block[2] = 0;
    image.breaks(OrphanFileRule::Hole);
}

#[test]
fn orphans_without_orphan_present_are_reported() {
    let mut image = with_journal();
    let block = image.place_of(image.clone().orphan_file(), 0);
    image.block(block)[0] = 13;
    image.breaks(OrphanFileRule::Unmarked);
}

#[test]
fn wrong_quota_usage_is_reported() {
    let mut image = with_journal();
    image.inode("file").uid_lo.set(1000);
    image.breaks(QuotaUseRule::Usage);
    image.breaks(QuotaUseRule::Missing);
}

#[test]
fn second_quota_entry_of_an_id_is_reported() {
    let mut image = with_journal();
    let users = InodeNr::new(image.superblock().user_quota_inode.get()).unwrap();
    // Head, root and three levels of the tree come before the leaf; entries follow its head.
    let leaf = image.place_of(users, 5);
    let slot = &mut image.block(leaf)[16 + 12 * 72..][..72];
    assert_eq!(slot, [0; 72]);
    slot[4] = 1;
    image.breaks(QuotaUseRule::Usage);
}

#[test]
fn invalid_resize_inode_mapping_is_reported() {
    let mut image = with_journal();
    image.number(7).block[0] = 9;
    image.breaks(InodeUseRule::ResizeMap);
    let mut image = with_journal();
    let root = u32::from_le_bytes(image.number(7).block[52..56].try_into().unwrap());
    image.block(u64::from(root))[1020] = 1;
    image.breaks(InodeUseRule::ResizeStray);
    let mut image = with_journal();
    image.block(u64::from(root))[4..8].fill(1);
    image.breaks(InodeUseRule::ResizeMap);
    let mut image = with_journal();
    image.number(7).blocks_lo.set(2);
    image.breaks(InodeUseRule::BlockCount);
}

#[test]
fn bad_blocks_count_as_in_use() {
    let mut image = Image::plain();
    image.number(1).block[..4].copy_from_slice(&4000u32.to_le_bytes());
    image.breaks(BitmapUseRule::BlockMarkedFree);
    image.number(1).block[..4].copy_from_slice(&40_000u32.to_le_bytes());
    image.breaks(IndirectRule::Outside);
    let file = u32::try_from(image.place("file", 0)).unwrap();
    image.number(1).block[..4].copy_from_slice(&file.to_le_bytes());
    image.breaks(InodeUseRule::SharedBlock);
}

type Corruptor = fn(&mut DiskInode);

#[test]
fn resize_inode_of_other_type_is_reported() {
    let corruptors: [(Corruptor, InodeUseRule); 5] = [
        (|inode| inode.mode.set(0o060_600), InodeUseRule::ResizeInode),
        (|inode| inode.links.set(0), InodeUseRule::ResizeInode),
        (|inode| inode.deleted.set(77), InodeUseRule::UsedWithTime),
        (|inode| inode.size_lo.set(1024), InodeUseRule::SizeTooSmall),
        (
            |inode| inode.size_hi.set(1 << 10),
            InodeUseRule::SizeTooLarge,
        ),
    ];
    for (corrupt, rule) in corruptors {
        let features = "resize_inode,^has_journal,^metadata_csum,^64bit,^huge_file";
        let mut image = Image::with_options(features, &["-g", "1024"]);
        corrupt(image.number(7));
        image.breaks(rule);
    }
}

#[test]
fn invalid_mmp_block_is_reported() {
    for (features, at, rule) in [
        ("mmp,^has_journal,^metadata_csum", 0, MmpRule::Magic),
        ("mmp,^has_journal", 60, MmpRule::Checksum),
    ] {
        let mut image = Image::with(features);
        assert_eq!(image.findings(&[]), []);
        let block = image.superblock().mmp_block.get();
        image.block(block)[at] ^= 1;
        image.breaks(rule);
    }
    let mut image = Image::with("mmp,^has_journal,^metadata_csum");
    image.superblock().mmp_block.set(40_000);
    image.breaks(MmpRule::Place);
}

#[test]
fn invalid_quota_inode_is_reported() {
    for number in [2, 4, 400_000] {
        let mut image = with_journal();
        image.superblock().user_quota_inode.set(number);
        image.breaks(SuperblockUseRule::QuotaInode);
    }
}
