//! btrfs. Spec: `btrfs/superblock`, `btrfs/csum`.

mod chunks;
mod walk;

use std::ops::Range;

use anyhow::{Context, Result, ensure};

use self::chunks::Chunks;
use super::bytes::{le16, le32, le64, put, slice};
use super::checksum::of_btrfs;
use super::{Kind as AnyKind, Part, Units};
use crate::contents::Contents;

/// The primary superblock and its copies.
const SUPERBLOCKS: [usize; 3] = [64 << 10, 64 << 20, 256 << 30];
const SUPERBLOCK_LEN: usize = 4096;
/// What every node and superblock begins with: a checksum.
const CHECKSUM_LEN: usize = 32;

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A superblock.
    Superblock,
    /// The system chunk array of a superblock.
    SystemChunks,
    /// A node with pointers.
    Node,
    /// A leaf.
    Leaf,
    /// An item of this type in a leaf, with its data.
    Item(u8),
    /// Contents of a file.
    Data,
    /// Compressed contents of a file.
    Compressed,
}

/// The shape of an image.
#[derive(Debug, Clone)]
pub struct Format {
    node_bytes: usize,
    sector_bytes: usize,
    total_bytes: u64,
    checksum: u16,
    inodes: u64,
    chunks: Chunks,
    /// Where the checksums of data lie, in each copy.
    sums: Vec<Sums>,
}

/// An item of checksums.
#[derive(Debug, Clone)]
struct Sums {
    /// The address of the first sector that it covers.
    logical: u64,
    sectors: usize,
    /// The item's data and its leaf in the image, by copy of the leaf.
    items: Vec<(usize, usize)>,
}

impl Format {
    pub(super) fn units(&self) -> Units {
        Units {
            block_bytes: self.sector_bytes,
            addresses: self.total_bytes,
            inodes: self.inodes,
        }
    }

    fn checksum_bytes(&self) -> usize {
        match self.checksum {
            0 => 4,
            1 => 8,
            _ => 32,
        }
    }
}

/// Finds every structure by following the trees from the first superblock of the first device, which is
/// as new as the others.
pub(super) fn read(image: &Contents, devices: &[Range<usize>]) -> Result<(Format, Vec<Part>)> {
    let is_superblock = |at: usize| *slice(image, at + 0x40, 8) == *b"_BHRfS_M";
    let at = devices.first().context("no device")?.start + SUPERBLOCKS[0];
    ensure!(is_superblock(at), "no superblock");
    let number = |device: &Range<usize>| {
        let superblock = device.start + SUPERBLOCKS[0];
        (le64(image, superblock + 0xc9), device.start as u64)
    };
    let mut format = Format {
        node_bytes: usize::try_from(le32(image, at + 0x94))?,
        sector_bytes: usize::try_from(le32(image, at + 0x90))?,
        total_bytes: le64(image, at + 0x70),
        checksum: le16(image, at + 0xc4),
        inodes: 0,
        chunks: Chunks::new(devices.iter().map(number).collect()),
        sums: Vec::new(),
    };
    ensure!(format.node_bytes >= 4096, "no node size");
    let mut parts = Vec::new();
    for device in devices {
        let copies = SUPERBLOCKS.iter().map(|offset| device.start + offset);
        for at in copies.filter(|&at| at < device.end && is_superblock(at)) {
            let address = (at - device.start) as u64;
            for (kind, range) in [
                (Kind::Superblock, at..at + SUPERBLOCK_LEN),
                (Kind::SystemChunks, at + 0x32b..at + 0x32b + 0x200),
            ] {
                parts.push(Part {
                    kind: AnyKind::Btrfs(kind),
                    range,
                    address,
                });
            }
        }
    }
    let system = at + 0x32b..at + 0x32b + usize::try_from(le32(image, at + 0xa0))?;
    format.chunks.add_array(image, system);
    let roots = [0x58, 0x50, 0x60].map(|field| le64(image, at + field));
    walk::walk(image, &mut format, roots, &mut parts);
    Ok((format, parts))
}

/// Seals data, then nodes, then superblocks.
pub(super) fn seal(image: &mut Contents, format: &Format, parts: &[Part]) {
    let mut leaves = Vec::new();
    for part in parts {
        if matches!(part.kind, AnyKind::Btrfs(Kind::Data | Kind::Compressed)) {
            seal_data(image, format, part, &mut leaves);
        }
    }
    let of_kind = |kind: Kind| {
        parts
            .iter()
            .filter(move |part| part.kind == AnyKind::Btrfs(kind))
    };
    let nodes = of_kind(Kind::Node).chain(of_kind(Kind::Leaf));
    for at in nodes.map(|part| part.range.start).chain(leaves) {
        seal_block(image, format, at, format.node_bytes);
    }
    for part in of_kind(Kind::Superblock) {
        seal_block(image, format, part.range.start, SUPERBLOCK_LEN);
    }
}

/// Puts the checksums of the sectors of a run of data right, and records the leaves that hold them.
fn seal_data(image: &mut Contents, format: &Format, part: &Part, leaves: &mut Vec<usize>) {
    let (sector_bytes, len) = (format.sector_bytes, format.checksum_bytes());
    let end = part.address + part.range.len() as u64;
    for sums in &format.sums {
        for sector in 0..sums.sectors {
            let logical = sums.logical + (sector * sector_bytes) as u64;
            if !(part.address..end).contains(&logical) {
                continue;
            }
            let (places, _) = format.chunks.places(logical);
            for at in places.into_iter().filter(|at| part.range.contains(at)) {
                let sum = of_btrfs(format.checksum, &slice(image, at, sector_bytes));
                let Some(sum) = sum else {
                    continue;
                };
                for &(item, leaf) in &sums.items {
                    put(image, item + sector * len, &sum);
                    leaves.push(leaf);
                }
            }
        }
    }
}

fn seal_block(image: &mut Contents, format: &Format, at: usize, len: usize) {
    let covered = of_btrfs(
        format.checksum,
        &slice(image, at + CHECKSUM_LEN, len - CHECKSUM_LEN),
    );
    if let Some(mut sum) = covered {
        sum.resize(CHECKSUM_LEN, 0);
        put(image, at, &sum);
    }
}
