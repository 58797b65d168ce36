//! Checksums of every structure, computed over what the image holds now.
//! Spec: `ext4/checksums`, `ext4/journal`.

use platter_ondisk::checksum::{crc16, crc32c};

use crate::contents::Contents;

use super::bytes::{be32, high, le16, low, put, slice};
use super::format::{Checksums, Format, SUPERBLOCK};
use super::journal::{FEATURE_CSUM_V2, FEATURE_CSUM_V3};
use super::parts::{Kind, Part, inode_seed};

/// Seals `parts`, then what holds or covers the checksums of others.
pub(super) fn seal(image: &mut Contents, format: &Format, all: &[Part], parts: &[Part]) {
    for part in parts {
        seal_part(image, format, part);
    }
    let is_logged = |part: &Part| matches!(part.kind, Kind::Logged { .. });
    let covers_tags = parts.iter().any(is_logged);
    for part in all {
        if let Kind::Group(group) = part.kind {
            seal_group(image, format, group);
        }
        let is_journal = matches!(part.kind, Kind::JournalBlock { .. });
        if part.kind == Kind::Superblock || (covers_tags && is_journal) {
            seal_part(image, format, part);
        }
    }
}

fn seal_part(image: &mut Contents, format: &Format, part: &Part) {
    let at = part.range.start;
    let length = part.range.len();
    match part.kind {
        Kind::JournalSuperblock => {
            let features = be32(image, at + 0x28);
            if features & (FEATURE_CSUM_V2 | FEATURE_CSUM_V3) != 0 {
                let sum = zeroed(image, at, 1024.min(length), 0xfc, !0);
                put(image, at + 0xfc, &sum.to_be_bytes());
            }
        }
        Kind::JournalBlock { sums, checksum } => {
            if sums.features & (FEATURE_CSUM_V2 | FEATURE_CSUM_V3) != 0 {
                let sum = zeroed(image, at, length, checksum, sums.seed);
                put(image, at + checksum, &sum.to_be_bytes());
            }
        }
        Kind::Logged { sums, tag } => {
            let sum = crc32c(sums.seed, &slice(image, at, length)).to_be_bytes();
            if sums.features & FEATURE_CSUM_V3 != 0 {
                put(image, tag + 12, &sum);
            } else if sums.features & FEATURE_CSUM_V2 != 0 {
                put(image, tag + 4, &sum[2..]);
            }
        }
        _ if format.checksums != Checksums::Metadata => {}
        Kind::Superblock => {
            let sum = crc32c(!0, &slice(image, SUPERBLOCK, 0x3fc));
            put(image, SUPERBLOCK + 0x3fc, &sum.to_le_bytes());
        }
        Kind::BlockBitmap(group) => {
            let used = format.clusters_per_group as usize / 8;
            seal_bitmap(image, format, (at, used), (group, 0x18, 0x38));
        }
        Kind::InodeBitmap(group) => {
            let used = format.inodes_per_group as usize / 8;
            seal_bitmap(image, format, (at, used), (group, 0x1a, 0x3a));
        }
        Kind::Inode(number) => seal_inode(image, format, at, number),
        Kind::ExtentNode(seed) => {
            let tail = 12 + 12 * usize::from(le16(image, at + 4));
            seal_at(image, at, tail, seed);
        }
        Kind::Directory(seed) => {
            // A block without the fake entry of a tail has no checksum.
            if le16(image, at + length - 8) == 12 {
                let sum = crc32c(seed, &slice(image, at, length - 12));
                put(image, at + length - 4, &sum.to_le_bytes());
            }
        }
        Kind::Index(seed, entries) => seal_index(image, at, length, seed, entries),
        Kind::Attributes(block) => {
            let seed = crc32c(format.seed, &u64::from(block).to_le_bytes());
            let sum = zeroed(image, at, length, 0x10, seed);
            put(image, at + 0x10, &sum.to_le_bytes());
        }
        Kind::Orphans(seed, block) => {
            let seed = crc32c(seed, &u64::from(block).to_le_bytes());
            let sum = crc32c(seed, &slice(image, at, length - 8));
            put(image, at + length - 4, &sum.to_le_bytes());
        }
        Kind::Group(_) | Kind::Indirect | Kind::Data => {}
    }
}

/// The checksum of a structure in which the four bytes of the checksum count as zeros.
fn zeroed(image: &Contents, at: usize, length: usize, checksum: usize, seed: u32) -> u32 {
    let sum = crc32c(seed, &slice(image, at, checksum));
    let sum = crc32c(sum, &[0; 4]);
    let rest = at + checksum + 4;
    crc32c(sum, &slice(image, rest, (at + length).saturating_sub(rest)))
}

/// Puts the checksum of the bytes before it at `tail`.
fn seal_at(image: &mut Contents, at: usize, tail: usize, seed: u32) {
    let sum = crc32c(seed, &slice(image, at, tail));
    put(image, at + tail, &sum.to_le_bytes());
}

fn seal_bitmap(
    image: &mut Contents,
    format: &Format,
    (at, used): (usize, usize),
    (group, low_at, high_at): (u32, usize, usize),
) {
    let sum = crc32c(format.seed, &slice(image, at, used));
    let descriptor = format.groups[group as usize].descriptor;
    let uninit = le16(image, descriptor + 0x12) & 3;
    let is_absent = match low_at {
        0x18 => uninit & 2 != 0,
        _ => uninit & 1 != 0,
    };
    if is_absent {
        return;
    }
    put(image, descriptor + low_at, &low(sum));
    if format.descriptor_bytes >= 64 {
        put(image, descriptor + high_at, &high(sum));
    }
}

fn seal_group(image: &mut Contents, format: &Format, group: u32) {
    let at = format.groups[group as usize].descriptor;
    let length = format.descriptor_bytes;
    let number = group.to_le_bytes();
    let sum = match format.checksums {
        Checksums::None => return,
        Checksums::Groups => {
            let sum = crc16(crc16(!0, &format.uuid), &number);
            let sum = crc16(sum, &slice(image, at, 0x1e));
            crc16(sum, &slice(image, at + 0x20, length - 0x20)).to_le_bytes()
        }
        Checksums::Metadata => {
            let sum = crc32c(format.seed, &number);
            let sum = crc32c(sum, &slice(image, at, 0x1e));
            let sum = crc32c(sum, &[0; 2]);
            low(crc32c(sum, &slice(image, at + 0x20, length - 0x20)))
        }
    };
    put(image, at + 0x1e, &sum);
}

fn seal_inode(image: &mut Contents, format: &Format, at: usize, number: u32) {
    let has_high = format.inode_bytes > 128 && le16(image, at + 0x80) >= 4;
    put(image, at + 0x7c, &[0; 2]);
    if has_high {
        put(image, at + 0x82, &[0; 2]);
    }
    let seed = inode_seed(image, format, number);
    let sum = crc32c(seed, &slice(image, at, format.inode_bytes));
    put(image, at + 0x7c, &low(sum));
    if has_high {
        put(image, at + 0x82, &high(sum));
    }
}

fn seal_index(image: &mut Contents, at: usize, length: usize, seed: u32, entries: usize) {
    let limit = usize::from(le16(image, at + entries));
    let count = usize::from(le16(image, at + entries + 2));
    let tail = entries + limit * 8;
    if tail + 8 > length || count > limit {
        return;
    }
    let sum = crc32c(seed, &slice(image, at, entries + count * 8));
    let sum = crc32c(sum, &slice(image, at + tail, 4));
    let sum = crc32c(sum, &[0; 4]);
    put(image, at + tail + 4, &sum.to_le_bytes());
}
