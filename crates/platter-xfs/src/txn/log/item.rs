//! Log items: what of a block, an inode or an intent is logged, and its regions.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use platter_cache::Buffer;

use super::headers::BlockType;
use super::record::OPERATION_BYTES;
use crate::ondisk::chunks::{CHUNK_BYTES, Chunks};
use crate::ondisk::log::dinode::LogDinode;
use crate::ondisk::log::forks::LoggedFork;
use crate::ondisk::log::{
    BufferFlags, BufferFormat, BufferType, InodeFields, InodeFormat, ItemKind, forks,
};
use crate::ondisk::{BasicBlock, Geometry, Inode, InodeNr};

/// What a log item is of. Items are written back in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::txn) enum ItemKey {
    /// The block of so many bytes that begins here. One of another length is another block to recovery.
    Block(BasicBlock, u32),
    /// Inodes that are new, by their first cluster.
    Chunk(BasicBlock),
    Inode(InodeNr),
    /// An intent by its type and id.
    Intent(ItemKind, u64),
}

impl Hash for ItemKey {
    /// Hashes all of it as one number: each commit looks its items up several times.
    fn hash<H: Hasher>(&self, state: &mut H) {
        const CHUNK: u64 = 1 << 32;
        const INODE: u64 = 2 << 32;
        const INTENT: u64 = 3 << 32;
        let (number, rest) = match *self {
            Self::Block(at, len) => (at.0, len.into()),
            Self::Chunk(at) => (at.0, CHUNK),
            Self::Inode(number) => (number.get(), INODE),
            Self::Intent(kind, id) => (id, INTENT | kind as u64),
        };
        state.write_u128(u128::from(rest) << 64 | u128::from(number));
    }
}

/// Where an inode lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodePlace {
    /// The inode.
    pub number: InodeNr,
    /// Its cluster.
    pub cluster: BasicBlock,
    /// Length of the cluster in bytes.
    pub cluster_bytes: u32,
    /// The inode's first byte in the cluster.
    pub offset: u32,
}

/// A committed version of an inode. A clone is the same version.
#[derive(Debug, Clone)]
pub struct InodeVersion {
    /// The inode as it is to lie on the disk, without a checksum.
    pub image: Arc<[u8]>,
    /// What it says, validated; `None` for one that is free.
    pub inode: Option<Arc<Inode>>,
}

/// What an item holds after a transaction. A clone is the same version.
#[derive(Debug, Clone)]
pub(in crate::txn) enum Content {
    Block {
        what: BlockType,
        version: Buffer,
    },
    /// The block was freed: earlier items of it must not be replayed.
    Cancelled {
        len_bytes: u32,
    },
    /// The inodes were freed with their clusters, which are cancelled: earlier items never reach their place.
    Gone,
    Inode {
        place: InodePlace,
        version: InodeVersion,
    },
    /// Inodes that are new: logged as an inode create item, and written to their place before any of them.
    Chunk {
        regions: Arc<[Vec<u8>]>,
        clusters: Arc<[(BasicBlock, Buffer)]>,
    },
    /// The regions of an intent, or of one that says it is done.
    Intent(Arc<[Vec<u8>]>),
}

/// What differs from the disk: all of it is logged each time, since the item leaves its earlier place in
/// the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::txn) struct Dirty {
    pub(in crate::txn) chunks: Chunks,
    pub(in crate::txn) data_fork: bool,
    pub(in crate::txn) attr_fork: bool,
    /// The link of the unlinked list, which is logged with the cluster.
    pub(in crate::txn) link: bool,
}

impl Dirty {
    pub(in crate::txn) fn of_chunks(chunks: Chunks) -> Self {
        Self {
            chunks,
            ..Self::default()
        }
    }

    pub(in crate::txn) fn add(&mut self, other: &Self) {
        self.chunks.add(&other.chunks);
        self.data_fork |= other.data_fork;
        self.attr_fork |= other.attr_fork;
        self.link |= other.link;
    }

    /// What differs between two versions of an inode; `None` is one that is free.
    pub(in crate::txn) fn between(before: Option<&Inode>, after: Option<&Inode>) -> Self {
        let (Some(before), Some(after)) = (before, after) else {
            return Self {
                data_fork: true,
                attr_fork: true,
                ..Self::default()
            };
        };
        let (one, two) = (before.data_fork(), after.data_fork());
        let data = one.format != two.format || one.extents != two.extents || one.bytes != two.bytes;
        let attr = before.attr_fork() != after.attr_fork();
        // What begins elsewhere is logged whole.
        let moved = one.bytes.len() != two.bytes.len();
        Self {
            data_fork: data || before.size_bytes != after.size_bytes,
            attr_fork: attr || moved,
            ..Self::default()
        }
    }
}

/// Regions of items, one after the other.
#[derive(Debug, Default)]
pub(in crate::txn) struct Regions {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Regions {
    /// None yet of those of a checkpoint that takes so many bytes at most.
    pub(in crate::txn) fn with_capacity(bytes: u64) -> Self {
        Self {
            bytes: Vec::with_capacity(usize::try_from(bytes).unwrap_or_default()),
            ends: Vec::new(),
        }
    }

    fn push(&mut self, region: &[u8]) {
        self.bytes.extend_from_slice(region);
        self.ends.push(self.bytes.len());
    }

    /// How many there are.
    pub(in crate::txn) fn count(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of each.
    pub(in crate::txn) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        ranges.map(|(start, end)| self.bytes.get(start..*end).unwrap_or_default())
    }
}

impl Content {
    /// Adds the regions of the items that are logged for it.
    pub(in crate::txn) fn log(
        &self,
        key: ItemKey,
        dirty: &Dirty,
        geometry: &Geometry,
        regions: &mut Regions,
    ) {
        match (self, key) {
            (Self::Block { what, version }, ItemKey::Block(at, _)) => {
                block(at, what.kind, version, dirty.chunks, regions);
            }
            (Self::Cancelled { len_bytes }, ItemKey::Block(at, _)) => {
                let format = BufferFormat::new(
                    at,
                    units(*len_bytes),
                    BufferType::Unknown,
                    BufferFlags::CANCEL,
                    [],
                );
                regions.push(&format.encode());
            }
            (Self::Inode { place, version }, _) => {
                let (image, inode) = (&version.image, version.inode.as_deref());
                log_inode(place, (image, inode), dirty, geometry, regions);
                if dirty.link {
                    link(place, image, regions);
                }
            }
            (
                Self::Intent(stored)
                | Self::Chunk {
                    regions: stored, ..
                },
                _,
            ) => stored.iter().for_each(|region| regions.push(region)),
            (Self::Block { .. } | Self::Cancelled { .. } | Self::Gone, _) => {}
        }
    }

    /// The bytes that they take in a checkpoint.
    pub(in crate::txn) fn log_bytes(&self, dirty: &Dirty, geometry: &Geometry) -> u64 {
        match self {
            Self::Block { version, .. } => {
                let (chunks, runs) = dirty.chunks.count();
                let map = BufferFormat::encoded_bytes(version.len()) + OPERATION_BYTES;
                let last = version.len() % CHUNK_BYTES;
                // The last chunk of a block is whole.
                debug_assert_eq!(last, 0);
                map + chunks * CHUNK_BYTES as u64 + runs * OPERATION_BYTES
            }
            Self::Cancelled { len_bytes } => {
                let len = usize::try_from(*len_bytes).unwrap_or(usize::MAX);
                BufferFormat::encoded_bytes(len) + OPERATION_BYTES
            }
            Self::Gone => 0,
            Self::Inode { place, version } => {
                let InodeVersion { image, inode } = version;
                let data = inode.as_deref().filter(|_| dirty.data_fork);
                let data = data.map_or(0, |inode| forks::data_fork_bytes(inode, geometry));
                let attr = inode.as_deref().filter(|_| dirty.attr_fork);
                let attr = attr.map_or(0, |inode| forks::attr_fork_bytes(inode, geometry));
                let forks = [data, attr].into_iter().filter(|len| *len > 0);
                let regions = [InodeFormat::BYTES, LogDinode::encoded_bytes(image)];
                let regions = regions.into_iter().chain(forks);
                let item: u64 = regions.map(|len| len as u64 + OPERATION_BYTES).sum();
                let link = if dirty.link {
                    let cluster = usize::try_from(place.cluster_bytes).unwrap_or(usize::MAX);
                    BufferFormat::encoded_bytes(cluster) + CHUNK_BYTES as u64 + 2 * OPERATION_BYTES
                } else {
                    0
                };
                item + link
            }
            Self::Intent(regions) | Self::Chunk { regions, .. } => {
                let regions = regions.iter().map(|region| region.len() as u64);
                regions.map(|len| len + OPERATION_BYTES).sum()
            }
        }
    }
}

fn units(len_bytes: u32) -> u16 {
    u16::try_from(len_bytes / 512).unwrap_or(u16::MAX)
}

fn block_format(at: BasicBlock, kind: BufferType, len: usize, chunks: Chunks) -> BufferFormat {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    BufferFormat::new(at, units(len), kind, BufferFlags::empty(), chunks.indices())
}

fn block(at: BasicBlock, kind: BufferType, bytes: &[u8], chunks: Chunks, regions: &mut Regions) {
    let format = block_format(at, kind, bytes.len(), chunks);
    parts(&format, |range| bytes.get(range), regions);
}

/// Adds the first region of a buffer item, and one for each run of its map.
fn parts<'b>(
    format: &BufferFormat,
    bytes: impl Fn(std::ops::Range<usize>) -> Option<&'b [u8]>,
    regions: &mut Regions,
) {
    regions.push(&format.encode());
    for run in format.runs() {
        regions.push(bytes(run).unwrap_or_default());
    }
}

/// The data and the attribute fork of an inode, where they are logged and hold something.
fn logged_forks(
    inode: Option<&Inode>,
    dirty: &Dirty,
    geometry: &Geometry,
) -> [Option<LoggedFork>; 2] {
    let data = inode.filter(|_| dirty.data_fork);
    let attr = inode.filter(|_| dirty.attr_fork);
    [
        data.and_then(|inode| forks::data_fork(inode, geometry)),
        attr.and_then(|inode| forks::attr_fork(inode, geometry)),
    ]
}

fn log_inode(
    place: &InodePlace,
    (image, inode): (&[u8], Option<&Inode>),
    dirty: &Dirty,
    geometry: &Geometry,
    regions: &mut Regions,
) {
    let forks = logged_forks(inode, dirty, geometry);
    let mut fields = InodeFields::CORE;
    // Its format and its core.
    let mut count = 2;
    let mut lens = [0; 2];
    for (len, fork) in lens.iter_mut().zip(&forks) {
        let Some(fork) = fork else { continue };
        fields |= fork.fields;
        *len = u16::try_from(fork.region.len()).unwrap_or_default();
        count += u16::from(!fork.region.is_empty());
    }
    let format = InodeFormat {
        regions: count,
        fields,
        attr_len: lens[1],
        data_len: lens[0],
        inode: place.number,
        device: if fields.contains(InodeFields::DEVICE) {
            inode.map_or(0, forks::device)
        } else {
            0
        },
        block: place.cluster,
        len: place.cluster_bytes / 512,
        offset: place.offset,
    };
    regions.push(&format.encode());
    regions.push(&LogDinode::encode(image));
    for fork in forks.iter().flatten() {
        if !fork.region.is_empty() {
            regions.push(&fork.region);
        }
    }
}

/// Adds the part of the cluster that holds the link of an inode.
fn link(place: &InodePlace, image: &[u8], regions: &mut Regions) {
    let first = place.offset as usize / CHUNK_BYTES;
    let format = BufferFormat::new(
        place.cluster,
        units(place.cluster_bytes),
        BufferType::Inodes,
        BufferFlags::INODES,
        [first],
    );
    parts(&format, |_| image.get(..CHUNK_BYTES), regions);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::inode::tests::sample;

    #[test]
    fn bytes_of_an_inode_are_those_of_its_regions() {
        let geometry = sample_geometry();
        let number = InodeNr::new(131).unwrap();
        let image = sample();
        let inode = Inode::decode(&image, number, &geometry).unwrap();
        let place = InodePlace {
            number,
            cluster: BasicBlock(128),
            cluster_bytes: 16384,
            offset: 1536,
        };
        let content = |inode: Option<&Inode>| Content::Inode {
            place,
            version: InodeVersion {
                image: image.as_slice().into(),
                inode: inode.cloned().map(Arc::new),
            },
        };
        for flags in 0..16 {
            let dirty = Dirty {
                data_fork: flags & 1 != 0,
                attr_fork: flags & 2 != 0,
                link: flags & 4 != 0,
                ..Dirty::default()
            };
            let content = content(Some(&inode).filter(|_| flags & 8 != 0));
            let mut regions = Regions::default();
            content.log(ItemKey::Inode(number), &dirty, &geometry, &mut regions);
            let bytes: u64 = regions
                .iter()
                .map(|region| region.len() as u64 + OPERATION_BYTES)
                .sum();
            assert_eq!(content.log_bytes(&dirty, &geometry), bytes, "{flags}");
        }
    }
}
