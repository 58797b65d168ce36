//! One moment for every time in an image. Spec: `ext4/inodes`, `ext4/super`, `ext4/journal`.

use crate::contents::Contents;

use super::bytes::{le16, le32, put};
use super::format::SUPERBLOCK;
use super::parts::{Kind, Part};

const MOMENT: u32 = 1_700_000_000;
/// Times of an inode's first 128 bytes: modification, access, change.
const INODE_TIMES: [usize; 3] = [0x10, 0x08, 0x0c];
/// The further bits of those times, the time of creation and its further bits.
const INODE_EXTRA: [usize; 3] = [0x88, 0x8c, 0x84];
const INODE_CREATION: usize = 0x90;
const INODE_CREATION_EXTRA: usize = 0x94;
/// Times of the superblock: mount, write, last check, making.
const SUPERBLOCK_TIMES: [usize; 4] = [0x2c, 0x30, 0x40, 0x108];
/// Kilobytes ever written, which tools count.
const SUPERBLOCK_WRITTEN: usize = 0x178;
/// Seconds and nanoseconds of a commit block.
const COMMIT_TIME: usize = 0x30;

pub(super) fn set_times(image: &mut Contents, parts: &[Part]) {
    for part in parts {
        let at = part.range.start;
        if part.kind == Kind::Superblock {
            for time in SUPERBLOCK_TIMES {
                put(image, SUPERBLOCK + time, &MOMENT.to_le_bytes());
            }
            put(image, SUPERBLOCK + SUPERBLOCK_WRITTEN, &[0; 8]);
        }
        if let Kind::Inode(_) = part.kind {
            // An inode that holds a value has its hash and its count in the place of other times.
            let times = if holds_value(image, at) { 1 } else { 3 };
            for time in &INODE_TIMES[..times] {
                put(image, at + time, &MOMENT.to_le_bytes());
            }
            if part.range.len() > 128 && le16(image, at + 0x80) >= 0x18 {
                for extra in &INODE_EXTRA[..times] {
                    put(image, at + extra, &[0; 4]);
                }
                put(image, at + INODE_CREATION, &MOMENT.to_le_bytes());
                put(image, at + INODE_CREATION_EXTRA, &[0; 4]);
            }
        }
        if let Kind::JournalBlock { checksum: 0x10, .. } = part.kind {
            put(image, at + COMMIT_TIME, &u64::from(MOMENT).to_be_bytes());
            put(image, at + COMMIT_TIME + 8, &[0; 4]);
        }
    }
}

/// Whether the inode at `at` holds the value of an attribute.
pub(super) fn holds_value(image: &Contents, at: usize) -> bool {
    const FLAGS: usize = 0x20;
    const FLAG_EA_INODE: u32 = 0x20_0000;
    le32(image, at + FLAGS) & FLAG_EA_INODE != 0
}
