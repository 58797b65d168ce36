//! The blocks of a journal that waits for replay. Spec: `ext4/journal`.

use platter_ondisk::checksum::crc32c;

use crate::contents::Contents;

use super::bytes::{be32, slice};
use super::parts::{FileBlocks, JournalSums, Kind, Part};

const MAGIC: u32 = 0xc03b_3998;
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const REVOKE: u32 = 5;
const FEATURE_64BIT: u32 = 0x2;
pub(super) const FEATURE_CSUM_V2: u32 = 0x8;
pub(super) const FEATURE_CSUM_V3: u32 = 0x10;
const TAG_ESCAPED_SAME_UUID: u32 = 0x2;
const TAG_LAST: u32 = 0x8;
/// The header of every block of a journal.
const HEADER: usize = 12;
/// Where a commit block keeps its checksum.
const COMMIT_CHECKSUM: usize = 0x10;

pub(super) fn find(image: &Contents, block_bytes: usize, blocks: &FileBlocks) -> Vec<Part> {
    let offset = |index: u32| {
        let block = blocks.iter().find(|(place, _)| *place == index as usize)?;
        Some(block.1 as usize * block_bytes)
    };
    let mut parts = Vec::new();
    let mut add = |kind, start: usize| {
        if start + block_bytes <= image.len() {
            let range = start..start + block_bytes;
            parts.push(Part { kind, range });
        }
    };
    let Some(superblock) = offset(0) else {
        return parts;
    };
    add(Kind::JournalSuperblock, superblock);
    let sums = JournalSums {
        features: be32(image, superblock + 0x28),
        seed: crc32c(!0, &slice(image, superblock + 0x30, 16)),
    };
    let (mut index, end) = (
        be32(image, superblock + 0x1c),
        be32(image, superblock + 0x10),
    );
    let mut sequence = be32(image, superblock + 0x18);
    while index != 0 && index < end {
        let Some(at) = offset(index) else {
            break;
        };
        if be32(image, at) != MAGIC || be32(image, at + 8) != sequence {
            break;
        }
        index += 1;
        let kind = be32(image, at + 4);
        let checksum = match kind {
            COMMIT => COMMIT_CHECKSUM,
            _ => block_bytes - 4,
        };
        add(Kind::JournalBlock { sums, checksum }, at);
        match kind {
            DESCRIPTOR => {
                let sums = JournalSums {
                    seed: crc32c(sums.seed, &sequence.to_be_bytes()),
                    ..sums
                };
                for tag in tags(image, at, block_bytes, sums.features) {
                    if let Some(at) = offset(index) {
                        add(Kind::Logged { sums, tag }, at);
                    }
                    index += 1;
                }
            }
            COMMIT => sequence = sequence.wrapping_add(1),
            REVOKE => {}
            _ => break,
        }
    }
    parts
}

/// The offsets of a descriptor block's tags.
fn tags(image: &Contents, at: usize, block_bytes: usize, features: u32) -> Vec<usize> {
    let length = tag_bytes(features);
    let has_tail = features & (FEATURE_CSUM_V2 | FEATURE_CSUM_V3) != 0;
    let end = at + block_bytes - if has_tail { 4 } else { 0 };
    let mut tags = Vec::new();
    let mut tag = at + HEADER;
    while tag + length <= end {
        tags.push(tag);
        let flags = if features & FEATURE_CSUM_V3 != 0 {
            be32(image, tag + 4)
        } else {
            be32(image, tag + 4) & 0xffff
        };
        tag += length;
        if flags & TAG_ESCAPED_SAME_UUID == 0 {
            tag += 16;
        }
        if flags & TAG_LAST != 0 {
            break;
        }
    }
    tags
}

fn tag_bytes(features: u32) -> usize {
    if features & FEATURE_CSUM_V3 != 0 {
        return 16;
    }
    let checksum = if features & FEATURE_CSUM_V2 != 0 {
        2
    } else {
        0
    };
    let high = if features & FEATURE_64BIT != 0 { 4 } else { 0 };
    8 + checksum + high
}
