//! XFS, found by magic numbers: whatever has one, with a checksum that is right if there are any, is a
//! structure. Spec: `xfs/allocation_groups`, `xfs/btrees`, `xfs/ondisk_inode`, `xfs/directories`,
//! `xfs/dabtrees`, `xfs/symbolic_links`, `xfs/extended_attributes`, `xfs/internal_inodes`,
//! `xfs/journaling_log`.

use std::ops::Range;

use anyhow::{Result, ensure};

use super::bytes::{be16, be32, be64, byte, le32, put, slice};
use super::checksum::crc32c;
use super::{Kind as AnyKind, Part, Units};
use crate::contents::Contents;

const SECTOR: usize = 512;
/// The checksum of a quota record, and the record's length.
const QUOTA_SUM: usize = 108;
const QUOTA_LEN: usize = 136;
/// The header of a log record, which its checksum covers, and a further header.
const RECORD_LEN: usize = 328;
const RECORD_SUM: usize = 32;
const RECORD_MAGIC: u32 = 0xfeed_babe;
/// Bytes of a record that one header has space for.
const RECORD_BYTES_PER_HEADER: u32 = 32 << 10;

/// Magic numbers of structures of one sector, with the places of their checksums.
const HEADERS: [(&[u8; 4], usize); 4] = [
    (b"XFSB", 224),
    (b"XAGF", 216),
    (b"XAGI", 312),
    (b"XAFL", 32),
];
/// The same of structures of one block.
const BLOCKS: [(&[u8; 4], usize); 10] = [
    (b"AB3B", 52),
    (b"AB3C", 52),
    (b"IAB3", 52),
    (b"FIB3", 52),
    (b"RMB3", 52),
    (b"R3FC", 52),
    (b"BMA3", 64),
    (b"MAP3", 64),
    (b"XSLM", 12),
    (b"XARM", 12),
];
/// The same of structures of one directory block.
const DIRECTORIES: [(&[u8; 4], usize); 3] = [(b"XDB3", 4), (b"XDD3", 4), (b"XDF3", 4)];
/// Magic numbers of blocks of hash trees, which follow two pointers.
const HASHES: [u16; 4] = [0x3ebe, 0x3df1, 0x3dff, 0x3bee];
const HASH_SUM: usize = 12;
const INODE_SUM: usize = 100;

/// Magic numbers of version 4, without checksums: structures of one sector, of one block, of one
/// directory block, and blocks of hash trees.
const HEADERS_4: [&[u8; 4]; 3] = [b"XFSB", b"XAGF", b"XAGI"];
const BLOCKS_4: [&[u8; 4]; 5] = [b"ABTB", b"ABTC", b"IABT", b"FIBT", b"BMAP"];
const DIRECTORIES_4: [&[u8; 4]; 3] = [b"XD2B", b"XD2D", b"XD2F"];
const HASHES_4: [u16; 4] = [0xfebe, 0xd2f1, 0xd2ff, 0xfbee];

/// The header of an operation in a log record.
const OPERATION_LEN: usize = 12;
/// The types of log items.
const ITEM_TYPES: Range<u16> = 0x1236..0x1250;

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A structure with this magic number, and where its checksum is.
    Magic([u8; 4], Option<usize>),
    /// A record of the log.
    LogRecord,
    /// A region in a record of the log: the head of an item of this type, or what is logged, with 0.
    LogRegion(u16),
}

/// The shape of an image.
#[derive(Debug, Clone)]
pub struct Format {
    block_bytes: usize,
    directory_bytes: usize,
    inode_bytes: usize,
    sector_bytes: usize,
    group_blocks: u64,
    group_shift: u8,
    blocks: u64,
    log: Range<usize>,
    has_sums: bool,
}

impl Format {
    fn read(image: &Contents) -> Result<Self> {
        ensure!(*slice(image, 0, 4) == *b"XFSB", "no superblock");
        let byte = |at: usize| byte(image, at);
        let block_bytes = usize::try_from(be32(image, 4))?;
        let mut format = Self {
            block_bytes,
            directory_bytes: block_bytes << byte(192),
            inode_bytes: usize::from(be16(image, 104)),
            sector_bytes: usize::from(be16(image, 102)),
            group_blocks: u64::from(be32(image, 84)),
            group_shift: byte(124),
            blocks: be64(image, 8),
            log: 0..0,
            has_sums: be16(image, 100) & 0xf == 5,
        };
        ensure!(
            block_bytes >= SECTOR && format.inode_bytes >= 256,
            "no sizes"
        );
        let (first, count) = (be64(image, 48), usize::try_from(be32(image, 96))?);
        if first != 0 {
            let (group, within) = (first >> format.group_shift, first & format.group_mask());
            let start = usize::try_from(group * format.group_blocks + within)? * block_bytes;
            format.log = start..start + count * block_bytes;
        }
        Ok(format)
    }

    fn group_mask(&self) -> u64 {
        (1 << self.group_shift) - 1
    }

    /// The number of the block at an offset, as in pointers between groups.
    fn address(&self, at: usize) -> u64 {
        let block = (at / self.block_bytes) as u64;
        let (group, within) = (block / self.group_blocks, block % self.group_blocks);
        group << self.group_shift | within
    }

    pub(super) fn units(&self) -> Units {
        let groups = self.blocks.div_ceil(self.group_blocks);
        Units {
            block_bytes: self.block_bytes,
            addresses: groups << self.group_shift,
            inodes: (groups << self.group_shift) * (self.block_bytes / self.inode_bytes) as u64,
        }
    }
}

/// Finds every structure.
pub(super) fn read(image: &Contents) -> Result<(Format, Vec<Part>)> {
    let format = Format::read(image)?;
    let mut parts = Vec::new();
    let mut add = |kind, range: Range<usize>| {
        parts.push(Part {
            kind: AnyKind::Xfs(kind),
            address: format.address(range.start),
            range,
        });
    };
    let step = SECTOR.min(format.inode_bytes);
    for at in image.held().flat_map(|held| held.step_by(step)) {
        if let Some((kind, len)) = found(image, &format, at) {
            add(kind, at..at + len);
            if kind == Kind::LogRecord {
                regions(image, at, len, &mut add);
            }
        }
    }
    Ok((format, parts))
}

/// Adds the regions of the log record at `at`.
fn regions(image: &Contents, at: usize, len: usize, add: &mut impl FnMut(Kind, Range<usize>)) {
    let end = at + len;
    let mut next = at + record_headers(image, at).unwrap_or(1) * SECTOR;
    while next + OPERATION_LEN <= end {
        let start = next + OPERATION_LEN;
        let Ok(len) = usize::try_from(be32(image, next + 4)) else {
            return;
        };
        next = start.saturating_add(len);
        if next > end {
            return;
        }
        if len > 0 {
            let [low, high] = be16(image, start).to_be_bytes();
            let item = u16::from_le_bytes([low, high]);
            let kind = if ITEM_TYPES.contains(&item) { item } else { 0 };
            add(Kind::LogRegion(kind), start..next);
        }
    }
}

/// The structure that begins at a sector.
fn found(image: &Contents, format: &Format, at: usize) -> Option<(Kind, usize)> {
    if format.log.contains(&at) {
        let len = record_len(image, at)?;
        let is_whole =
            !format.has_sums || record_sum(image, at) == Some(le32(image, at + RECORD_SUM));
        return is_whole.then_some((Kind::LogRecord, len));
    }
    let magic: [u8; 4] = slice(image, at, 4).as_ref().try_into().ok()?;
    if !format.has_sums {
        return found_4(image, format, at, magic);
    }
    let good = |sum: usize, len: usize| {
        let is_good = checksum(image, at, len, sum) == le32(image, at + sum);
        is_good.then_some((Kind::Magic(magic, Some(sum)), len))
    };
    let of_table = |table: &[(&[u8; 4], usize)], len: usize| {
        let row = table.iter().find(|(known, _)| **known == magic);
        row.and_then(|&(_, sum)| good(sum, len))
    };
    if magic.starts_with(b"IN") && at.is_multiple_of(format.inode_bytes) {
        return good(INODE_SUM, format.inode_bytes);
    }
    if magic.starts_with(b"DQ") {
        return good(QUOTA_SUM, QUOTA_LEN);
    }
    if let Some(header) = of_table(&HEADERS, format.sector_bytes) {
        return Some(header);
    }
    if !at.is_multiple_of(format.block_bytes) {
        return None;
    }
    let hash = be16(image, at + 8);
    if HASHES.contains(&hash) {
        let [high, low] = hash.to_be_bytes();
        let kind = Kind::Magic([high, low, 0, 0], Some(HASH_SUM));
        let lens = [format.directory_bytes, format.block_bytes];
        let is_good =
            |len: &usize| checksum(image, at, *len, HASH_SUM) == le32(image, at + HASH_SUM);
        return lens.into_iter().find(is_good).map(|len| (kind, len));
    }
    let directory = of_table(&DIRECTORIES, format.directory_bytes);
    directory.or_else(|| of_table(&BLOCKS, format.block_bytes))
}

/// The structure of version 4 that begins at a sector.
fn found_4(image: &Contents, format: &Format, at: usize, magic: [u8; 4]) -> Option<(Kind, usize)> {
    let kind = Kind::Magic(magic, None);
    let of_table = |table: &[&[u8; 4]], len| table.contains(&&magic).then_some((kind, len));
    if magic.starts_with(b"IN") && at.is_multiple_of(format.inode_bytes) {
        return Some((kind, format.inode_bytes));
    }
    if let Some(header) = of_table(&HEADERS_4, format.sector_bytes) {
        return Some(header);
    }
    if !at.is_multiple_of(format.block_bytes) {
        return None;
    }
    let hash = be16(image, at + 8);
    if HASHES_4.contains(&hash) {
        let [high, low] = hash.to_be_bytes();
        return Some((Kind::Magic([high, low, 0, 0], None), format.block_bytes));
    }
    let directory = of_table(&DIRECTORIES_4, format.directory_bytes);
    directory.or_else(|| of_table(&BLOCKS_4, format.block_bytes))
}

/// The checksum of a structure, of which the checksum itself counts as zeros.
fn checksum(image: &Contents, at: usize, len: usize, sum: usize) -> u32 {
    let rest = slice(image, at + sum + 4, len.saturating_sub(sum + 4));
    crc32c(&[&slice(image, at, sum), &[0; 4], &rest])
}

/// The length of a log record with its headers, if one begins at `at`.
fn record_len(image: &Contents, at: usize) -> Option<usize> {
    if be32(image, at) != RECORD_MAGIC {
        return None;
    }
    let data = usize::try_from(be32(image, at + 12)).ok()?;
    Some(record_headers(image, at)? * SECTOR + data)
}

/// The number of sectors of headers that a record has.
fn record_headers(image: &Contents, at: usize) -> Option<usize> {
    let size = be32(image, at + 320);
    usize::try_from(size.div_ceil(RECORD_BYTES_PER_HEADER).max(1)).ok()
}

/// The checksum of a log record: of its header, of further headers, of its data.
fn record_sum(image: &Contents, at: usize) -> Option<u32> {
    let headers = record_headers(image, at)?;
    let len = record_len(image, at)?;
    let header = slice(image, at, RECORD_LEN);
    let (before, after) = (header.get(..RECORD_SUM)?, header.get(RECORD_SUM + 4..)?);
    let data = slice(image, at + headers * SECTOR, len - headers * SECTOR);
    let further = slice(image, at + SECTOR, (headers - 1) * SECTOR);
    Some(crc32c(&[before, &[0; 4], after, &further, &data]))
}

/// Seals every part; none covers another's checksum but log records, which cover nothing else.
pub(super) fn seal(image: &mut Contents, format: &Format, parts: &[Part]) {
    for part in parts {
        let at = part.range.start;
        match part.kind {
            AnyKind::Xfs(Kind::Magic(_, Some(sum))) => {
                let value = checksum(image, at, part.range.len(), sum);
                put(image, at + sum, &value.to_le_bytes());
            }
            AnyKind::Xfs(Kind::LogRecord) if format.has_sums && format.log.contains(&at) => {
                if let Some(value) = record_sum(image, at) {
                    put(image, at + RECORD_SUM, &value.to_le_bytes());
                }
            }
            AnyKind::Xfs(_) | AnyKind::Ext4(_) | AnyKind::Btrfs(_) => {}
        }
    }
}
