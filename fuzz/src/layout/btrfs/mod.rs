//! btrfs on one device. Spec: `btrfs/superblock`, `btrfs/csum`.

mod chunks;
mod walk;

use anyhow::{Result, ensure};

use self::chunks::Chunks;
use super::bytes::{le16, le32, le64, put, slice};
use super::checksum::of_btrfs;
use super::{Kind as AnyKind, Part, Units};

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
}

/// The shape of an image.
#[derive(Debug, Clone)]
pub struct Format {
    node_bytes: usize,
    sector_bytes: usize,
    total_bytes: u64,
    checksum: u16,
    inodes: u64,
    /// Where the checksums of data lie, in each copy.
    sums: Vec<Sums>,
}

/// An item of checksums.
#[derive(Debug, Clone)]
struct Sums {
    /// The first byte of data that it covers in the image, by copy of the data.
    data: Vec<usize>,
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

/// Finds every structure by following the trees from the newest superblock, which is the first.
pub(super) fn read(image: &[u8]) -> Result<(Format, Vec<Part>)> {
    let at = SUPERBLOCKS[0];
    ensure!(slice(image, at + 0x40, 8) == b"_BHRfS_M", "no superblock");
    let mut format = Format {
        node_bytes: usize::try_from(le32(image, at + 0x94))?,
        sector_bytes: usize::try_from(le32(image, at + 0x90))?,
        total_bytes: le64(image, at + 0x70),
        checksum: le16(image, at + 0xc4),
        inodes: 0,
        sums: Vec::new(),
    };
    ensure!(format.node_bytes >= 4096, "no node size");
    let device = le64(image, at + 0xc9);
    let mut parts = Vec::new();
    for at in SUPERBLOCKS {
        if slice(image, at + 0x40, 8) == b"_BHRfS_M" {
            let address = at as u64;
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
    let mut chunks = Chunks::new(device);
    chunks.add_array(image, system);
    let roots = [0x58, 0x50, 0x60].map(|field| le64(image, at + field));
    walk::walk(image, &mut format, &mut chunks, roots, &mut parts);
    Ok((format, parts))
}

/// Seals data, then nodes, then superblocks.
pub(super) fn seal(image: &mut [u8], format: &Format, parts: &[Part]) {
    let mut leaves = Vec::new();
    for part in parts {
        if part.kind == AnyKind::Btrfs(Kind::Data) {
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

/// Puts the checksums of the sectors of a run of data right, and notes the leaves that hold them.
fn seal_data(image: &mut [u8], format: &Format, part: &Part, leaves: &mut Vec<usize>) {
    let (sector_bytes, len) = (format.sector_bytes, format.checksum_bytes());
    for sums in &format.sums {
        for &data in &sums.data {
            for sector in 0..sums.sectors {
                let at = data + sector * sector_bytes;
                if !part.range.contains(&at) {
                    continue;
                }
                let sum = of_btrfs(format.checksum, slice(image, at, sector_bytes));
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

fn seal_block(image: &mut [u8], format: &Format, at: usize, len: usize) {
    let covered = slice(image, at + CHECKSUM_LEN, len - CHECKSUM_LEN);
    if let Some(mut sum) = of_btrfs(format.checksum, covered) {
        sum.resize(CHECKSUM_LEN, 0);
        put(image, at, &sum);
    }
}
