//! Corruptions of metadata, found by magic numbers, with a checksum that is right in half of the cases.
//! Spec: `xfs/allocation_groups`, `xfs/btrees`, `xfs/ondisk_inode`, `xfs/directories`, `xfs/dabtrees`,
//! `xfs/symbolic_links`, `xfs/extended_attributes`.

use std::collections::BTreeMap;
use std::fmt;

use platter_xfs::ondisk::checksum;
use testkit::prng::Prng;

const SECTOR: usize = 512;

/// Structures of one sector: magic number, and where the checksum is.
const HEADERS: &[(&[u8; 4], usize)] = &[
    (b"XFSB", 224),
    (b"XAGF", 216),
    (b"XAGI", 312),
    (b"XAFL", 32),
];
/// Structures of one block, in version 5 and in version 4.
const BLOCKS: &[(&[u8; 4], usize)] = &[
    (b"AB3B", 52),
    (b"AB3C", 52),
    (b"IAB3", 52),
    (b"FIB3", 52),
    (b"RMB3", 52),
    (b"R3FC", 52),
    (b"BMA3", 64),
    (b"XSLM", 12),
    (b"XARM", 12),
    (b"ABTB", 0),
    (b"ABTC", 0),
    (b"IABT", 0),
    (b"BMAP", 0),
];
/// Structures of one directory block.
const DIRECTORIES: &[(&[u8; 4], usize)] = &[
    (b"XDB3", 4),
    (b"XDD3", 4),
    (b"XDF3", 4),
    (b"XD2B", 0),
    (b"XD2D", 0),
    (b"XD2F", 0),
];
/// Blocks of hash trees, by the magic number after two pointers.
const HASHES: &[(u16, usize)] = &[
    (0x3ebe, 12),
    (0x3df1, 12),
    (0x3dff, 12),
    (0x3bee, 12),
    (0xfebe, 0),
    (0xd2f1, 0),
    (0xd2ff, 0),
    (0xfbee, 0),
];
const INODE_SUM: usize = 100;

/// A structure in an image. A checksum at 0 is none.
#[derive(Debug, Clone, Copy)]
struct Part {
    at: usize,
    len: usize,
    sum: usize,
}

/// An image and its structures.
pub(super) struct Corrupter {
    image: Vec<u8>,
    kinds: BTreeMap<[u8; 4], Vec<Part>>,
}

/// A change of a structure.
pub(super) struct Corruption {
    pub(super) at: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) before: Vec<u8>,
    kind: [u8; 4],
    is_sealed: bool,
}

impl fmt::Display for Corruption {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.escape_ascii();
        let sealed = if self.is_sealed {
            "sealed"
        } else {
            "not sealed"
        };
        write!(out, "{kind} at {}, {sealed}:", self.at)?;
        for (at, (new, old)) in self.bytes.iter().zip(&self.before).enumerate() {
            if new != old {
                write!(out, " {at}:{old:02x}>{new:02x}")?;
            }
        }
        Ok(())
    }
}

fn number(image: &[u8], at: usize, len: usize) -> usize {
    let bytes = image.get(at..at + len).unwrap_or_default();
    bytes
        .iter()
        .fold(0, |number, &byte| number << 8 | usize::from(byte))
}

impl Corrupter {
    /// Finds the structures of an image, the log left out.
    pub(super) fn of(image: Vec<u8>) -> Self {
        let block = number(&image, 4, 4);
        let sector = number(&image, 102, 2);
        let inode = number(&image, 104, 2);
        let is_v5 = number(&image, 100, 2) & 0xf == 5;
        let directory = block << image[192];
        let (first, shift) = (number(&image, 48, 8), image[124]);
        let group_blocks = number(&image, 84, 4);
        let log_block = (first >> shift) * group_blocks + (first & ((1 << shift) - 1));
        let log = log_block * block..(log_block + number(&image, 96, 4)) * block;
        let mut kinds: BTreeMap<[u8; 4], Vec<Part>> = BTreeMap::new();
        for at in (0..image.len()).step_by(SECTOR.min(inode)) {
            if log.contains(&at) {
                continue;
            }
            let magic: [u8; 4] = image[at..at + 4].try_into().unwrap_or_default();
            let in_table = |table: &[(&[u8; 4], usize)], len: usize| {
                let row = table.iter().find(|(known, _)| **known == magic)?;
                Some(Part {
                    at,
                    len,
                    sum: row.1,
                })
            };
            let hash = number(&image, at + 8, 2);
            let tree = HASHES.iter().find(|(known, _)| usize::from(*known) == hash);
            let is_block = at.is_multiple_of(block);
            let mut kind = magic;
            let parts = if magic.starts_with(b"IN") && at.is_multiple_of(inode) {
                // By type and form, so that rare ones are hit as often.
                kind = [b'I', b'N', image[at + 2] >> 4, image[at + 5]];
                vec![Part {
                    at,
                    len: inode,
                    sum: INODE_SUM,
                }]
            } else if let Some(header) = in_table(HEADERS, sector) {
                vec![header]
            } else if let (Some(&(magic, sum)), true) = (tree, is_block) {
                let [high, low] = magic.to_be_bytes();
                kind = [b'D', b'A', high, low];
                [directory, block].map(|len| Part { at, len, sum }).to_vec()
            } else if is_block {
                let part = in_table(DIRECTORIES, directory).or(in_table(BLOCKS, block));
                part.into_iter().collect()
            } else {
                Vec::new()
            };
            let is_sound = |part: &Part| {
                let bytes = image.get(part.at..part.at + part.len);
                !is_v5 || bytes.is_some_and(|bytes| checksum::matches(bytes, part.sum))
            };
            if let Some(part) = parts.into_iter().find(is_sound) {
                let sum = if is_v5 { part.sum } else { 0 };
                kinds.entry(kind).or_default().push(Part { sum, ..part });
            }
        }
        Self { image, kinds }
    }

    /// A change of one structure.
    pub(super) fn corrupt(&self, prng: &mut Prng) -> Corruption {
        let kinds = self.kinds.len() as u64;
        let nth = usize::try_from(prng.below(kinds)).unwrap_or(0);
        let (kind, parts) = self
            .kinds
            .iter()
            .nth(nth)
            .expect("an image with structures");
        let part = parts[usize::try_from(prng.below(parts.len() as u64)).unwrap_or(0)];
        let before = &self.image[part.at..part.at + part.len];
        let mut bytes = before.to_vec();
        while bytes == before {
            change(&mut bytes, prng);
        }
        let is_sealed = part.sum != 0 && prng.below(2) == 0;
        if is_sealed {
            checksum::seal(&mut bytes, part.sum);
        }
        Corruption {
            at: part.at as u64,
            before: before.to_vec(),
            bytes,
            kind: *kind,
            is_sealed,
        }
    }
}

/// Changes a bit, a number, or a few bytes, most often near the start.
fn change(bytes: &mut [u8], prng: &mut Prng) {
    let mut below = |bound: usize| usize::try_from(prng.below(bound as u64)).unwrap_or(0);
    let most = if below(3) == 0 {
        bytes.len()
    } else {
        bytes.len().min(256)
    };
    match below(6) {
        0 | 1 => {
            let bit = below(most * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        2..=4 => {
            let len = 1 << below(4);
            let at = below(most / len) * len;
            let old = number(bytes, at, len);
            let new = match below(6) {
                0 => 0,
                1 => usize::MAX,
                2 => old.wrapping_add(1),
                3 => old.wrapping_sub(1),
                4 => old.wrapping_shl(1),
                _ => below(usize::MAX),
            };
            let new = new.to_be_bytes();
            bytes[at..at + len].copy_from_slice(&new[new.len() - len..]);
        }
        _ => {
            let at = below(bytes.len() / 8) * 8;
            let garbage = prng.bytes(16);
            for (byte, new) in bytes[at..].iter_mut().zip(garbage) {
                *byte = new;
            }
        }
    }
}
