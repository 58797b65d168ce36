//! The superblock: identity, features, the roots to begin from, and the chunks to find them by.
//! Spec: `btrfs/superblock`.

mod disk;
#[cfg(test)]
pub(crate) mod tests;

use bitflags::bitflags;
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::checksum::{CHECKSUM_BYTES_MAX, Checksum, ChecksumKind};
use super::chunk_item::{ChunkItem, DiskChunk, DiskStripe};
use super::dev_item::DevItem;
use super::features::{CompatRo, Features, Incompat};
use super::header::LEVEL_MAX;
use super::key::{DiskKey, ItemKind, Key};
use super::types::{CHUNK_OBJECT, Generation, LogicalAddr};

pub use disk::{
    DiskRootBackup, DiskSuperblock, MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS,
    SYS_CHUNK_ARRAY_BYTES,
};

/// The smallest size of sectors and tree blocks.
pub const BLOCK_BYTES_MIN: u32 = 4096;
/// The longest label.
pub const LABEL_LEN_MAX: usize = 255;
/// The largest size of sectors and tree blocks.
pub const BLOCK_BYTES_MAX: u32 = 64 << 10;
/// The most stripes of a system chunk, as in the kernel (`BTRFS_MAX_DEVS_SYS_CHUNK`): the array has space for another
/// one with one stripe.
pub const SYS_CHUNK_STRIPES_MAX: usize = (SYS_CHUNK_ARRAY_BYTES
    - 2 * (size_of::<DiskKey>() + size_of::<DiskChunk>())
    - size_of::<DiskStripe>())
    / size_of::<DiskStripe>();

bitflags! {
    /// `flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SuperblockFlags: u64 {
        /// It was written; always set.
        const WRITTEN = 1 << 0;
        /// Under relocation.
        const RELOC = 1 << 1;
        /// An error was found.
        const ERROR = 1 << 2;
        /// The device is a seed: nothing is written to it.
        const SEEDING = 1 << 32;
        /// Metadata without data, by btrfs-image.
        const METADUMP = 1 << 33;
        /// Metadata without data, by btrfs-image.
        const METADUMP_V2 = 1 << 34;
        /// A change of the UUID was interrupted.
        const CHANGING_FSID = 1 << 35;
        /// A change of `fsid` alone was interrupted.
        const CHANGING_FSID_V2 = 1 << 36;
        /// A change to or from a tree of block groups was interrupted.
        const CHANGING_BG_TREE = 1 << 38;
        /// A change of the checksums of data was interrupted.
        const CHANGING_DATA_CSUM = 1 << 39;
        /// A change of the checksums of metadata was interrupted.
        const CHANGING_META_CSUM = 1 << 40;
    }
}

/// Flags that a driver must know to open the filesystem, unless it ignores them, and what they say.
const CHANGES: [(SuperblockFlags, &str); 5] = [
    (
        SuperblockFlags::CHANGING_FSID,
        "a change of the UUID that is in progress",
    ),
    (
        SuperblockFlags::CHANGING_FSID_V2,
        "a change of the UUID that is in progress",
    ),
    (
        SuperblockFlags::CHANGING_BG_TREE,
        "a change of the block group tree that is in progress",
    ),
    (
        SuperblockFlags::CHANGING_DATA_CSUM,
        "a change of data checksums that is in progress",
    ),
    (
        SuperblockFlags::CHANGING_META_CSUM,
        "a change of metadata checksums that is in progress",
    ),
];

impl SuperblockFlags {
    /// What flags say with which the kernel mounts no filesystem; a flag without a name by its number.
    #[must_use]
    pub fn refused(self) -> Option<String> {
        let named = CHANGES.iter().find(|(flag, _)| self.contains(*flag));
        let unknown = self.difference(Self::all()).bits();
        match named {
            Some((_, text)) => Some((*text).to_owned()),
            None => (unknown != 0).then(|| format!("superblock flag {unknown:#x}")),
        }
    }
}

rules! {
    /// The rules of a superblock.
    pub enum SuperblockRule of "superblock" {
        /// `magic`.
        Magic => "magic is not _BHRfS_M",
        /// `csum_type` is known.
        ChecksumKind => "unsupported checksum algorithm",
        /// `csum`.
        Checksum => "checksum mismatch",
        /// `bytenr` is where the copy lies.
        Offset => "bytenr is not where the superblock lies",
        /// Levels are below the largest depth.
        Level => "root level is 8 or more",
        /// `sectorsize` is a power of two from 4096 to 65536.
        SectorSize => "invalid sectorsize",
        /// `nodesize` is a power of two from `sectorsize` to 65536, and `leafsize` the same.
        NodeSize => "invalid nodesize or leafsize",
        /// Roots are aligned to the sector size.
        RootAlignment => "tree root is not aligned to the sector size",
        /// There is a device.
        DeviceCount => "number of devices is zero",
        /// `bytes_used` has space for the first trees.
        BytesUsed => "bytes_used is too small",
        /// `dev_item` names this filesystem.
        DevItemFsid => "dev_item UUID does not match the filesystem",
        /// The system chunks fill `sys_chunk_array_size` bytes of the array.
        SysArray => "invalid sys_chunk_array",
        /// Each system chunk is one.
        SysChunk => "invalid chunk in sys_chunk_array",
    }
}

/// A tree root: where it lies, its level, its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RootPointer {
    /// Its logical address.
    pub logical: LogicalAddr,
    /// Its generation.
    pub generation: Generation,
    /// Its level.
    pub level: u8,
}

/// Roots of an earlier transaction, to begin from where the latest ones are corrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RootBackup {
    /// The tree of tree roots.
    pub tree_root: RootPointer,
    /// The chunk tree.
    pub chunk_root: RootPointer,
    /// The extent tree.
    pub extent_root: RootPointer,
    /// The top-level subvolume.
    pub fs_root: RootPointer,
    /// The device tree.
    pub dev_root: RootPointer,
    /// The checksum tree.
    pub csum_root: RootPointer,
    /// `total_bytes`.
    pub total_bytes: u64,
    /// `bytes_used`.
    pub bytes_used: u64,
    /// `num_devices`.
    pub device_count: u64,
}

/// A validated superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The UUID that users see.
    pub fsid: Uuid,
    /// The UUID in tree blocks: `fsid`, or another one with the metadata-uuid feature.
    pub metadata_uuid: Uuid,
    /// `flags`.
    pub flags: SuperblockFlags,
    /// The transaction that wrote it.
    pub generation: Generation,
    /// The tree of tree roots.
    pub root: RootPointer,
    /// The chunk tree.
    pub chunk_root: RootPointer,
    /// The tree of log trees, if there is one.
    pub log_root: Option<RootPointer>,
    /// The sizes of all devices together.
    pub total_bytes: u64,
    /// Bytes of allocated extents.
    pub bytes_used: u64,
    /// Object of the root tree's directory.
    pub root_dir: u64,
    /// How many devices the filesystem has.
    pub device_count: u64,
    /// The unit of data and its checksums.
    pub sector_bytes: u32,
    /// The size of tree blocks.
    pub node_bytes: u32,
    /// `stripesize`.
    pub stripe_bytes: u32,
    /// Feature sets.
    pub features: Features,
    /// The checksum algorithm of metadata and data.
    pub checksum_kind: ChecksumKind,
    /// The device that this superblock lies on.
    pub dev_item: DevItem,
    /// The label without padding.
    pub label: Vec<u8>,
    /// The generation of the free space cache of version 1; `u64::MAX` without one.
    pub cache_generation: u64,
    /// The generation up to which the UUID tree is complete.
    pub uuid_tree_generation: u64,
    /// The chunks that hold the chunk tree.
    pub sys_chunks: Vec<ChunkItem>,
    /// Roots of the last transactions.
    pub backups: [RootBackup; 4],
}

impl Superblock {
    /// Decodes the superblock that lies at byte `offset` of its device.
    pub fn decode(disk: &DiskSuperblock, offset: u64) -> Result<Self, Corrupt<SuperblockRule>> {
        let locus = Locus::UNKNOWN.at_offset(offset);
        Self::try_decode(disk, offset, locus).map_err(|rule| Corrupt::new(locus, rule))
    }

    fn try_decode(
        disk: &DiskSuperblock,
        offset: u64,
        locus: Locus,
    ) -> Result<Self, SuperblockRule> {
        if disk.magic != MAGIC {
            return Err(SuperblockRule::Magic);
        }
        let kind = ChecksumKind::from_number(disk.checksum_kind.get());
        let checksum_kind = kind.ok_or(SuperblockRule::ChecksumKind)?;
        if !checksum_kind.matches(summed(disk), &disk.checksum) {
            return Err(SuperblockRule::Checksum);
        }
        if disk.offset.get() != offset {
            return Err(SuperblockRule::Offset);
        }
        let (sector_bytes, node_bytes) = sizes(disk)?;
        let incompat = Incompat::from_bits_retain(disk.incompat.get());
        let fsid = Uuid::from_bytes(disk.fsid);
        let metadata_uuid = if incompat.contains(Incompat::METADATA_UUID) {
            Uuid::from_bytes(disk.metadata_uuid)
        } else {
            fsid
        };
        let dev_item = DevItem::decode_disk(&disk.dev_item);
        if dev_item.fsid != metadata_uuid {
            return Err(SuperblockRule::DevItemFsid);
        }
        if disk.device_count.get() == 0 {
            return Err(SuperblockRule::DeviceCount);
        }
        let least = u64::from(node_bytes).saturating_mul(TREE_BLOCKS_MIN);
        if disk.bytes_used.get() < least {
            return Err(SuperblockRule::BytesUsed);
        }
        let generation = Generation(disk.generation.get());
        let root = |logical: u64, generation: Generation, level: u8| {
            if level >= LEVEL_MAX {
                return Err(SuperblockRule::Level);
            }
            if !logical.is_multiple_of(u64::from(sector_bytes)) {
                return Err(SuperblockRule::RootAlignment);
            }
            Ok(RootPointer {
                logical: LogicalAddr(logical),
                generation,
                level,
            })
        };
        let chunk_generation = Generation(disk.chunk_root_generation.get());
        // A log is of the transaction that was running.
        let log_generation = Generation(generation.0.saturating_add(1));
        let log_root = root(disk.log_root.get(), log_generation, disk.log_root_level)?;
        Ok(Self {
            fsid,
            metadata_uuid,
            flags: SuperblockFlags::from_bits_retain(disk.flags.get()),
            generation,
            root: root(disk.root.get(), generation, disk.root_level)?,
            chunk_root: root(
                disk.chunk_root.get(),
                chunk_generation,
                disk.chunk_root_level,
            )?,
            log_root: (log_root.logical.0 != 0).then_some(log_root),
            total_bytes: disk.total_bytes.get(),
            bytes_used: disk.bytes_used.get(),
            root_dir: disk.root_dir.get(),
            device_count: disk.device_count.get(),
            sector_bytes,
            node_bytes,
            stripe_bytes: disk.stripe_bytes.get(),
            features: Features {
                compat: disk.compat.get(),
                compat_ro: CompatRo::from_bits_retain(disk.compat_ro.get()),
                incompat,
            },
            checksum_kind,
            dev_item,
            label: label(&disk.label),
            cache_generation: disk.cache_generation.get(),
            uuid_tree_generation: disk.uuid_tree_generation.get(),
            sys_chunks: sys_chunks(disk, sector_bytes, locus)?,
            backups: disk.backups.map(|backup| RootBackup::decode(&backup)),
        })
    }

    /// Encodes the superblock of the device in `dev_item`, for the copy at byte `offset`, with its
    /// checksum. What this driver does not know stays as in `old`.
    #[must_use]
    pub fn encode(&self, old: &DiskSuperblock, offset: u64) -> DiskSuperblock {
        let log_root = self.log_root.unwrap_or_default();
        let mut disk = DiskSuperblock {
            checksum: [0; CHECKSUM_BYTES_MAX],
            fsid: self.fsid.into_bytes(),
            offset: offset.into(),
            flags: self.flags.bits().into(),
            magic: MAGIC,
            generation: self.generation.0.into(),
            root: self.root.logical.0.into(),
            chunk_root: self.chunk_root.logical.0.into(),
            log_root: log_root.logical.0.into(),
            log_root_transid: 0.into(),
            total_bytes: self.total_bytes.into(),
            bytes_used: self.bytes_used.into(),
            root_dir: self.root_dir.into(),
            device_count: self.device_count.into(),
            sector_bytes: self.sector_bytes.into(),
            node_bytes: self.node_bytes.into(),
            leaf_bytes: self.node_bytes.into(),
            stripe_bytes: self.stripe_bytes.into(),
            sys_chunk_array_bytes: 0.into(),
            chunk_root_generation: self.chunk_root.generation.0.into(),
            compat: self.features.compat.into(),
            compat_ro: self.features.compat_ro.bits().into(),
            incompat: self.features.incompat.bits().into(),
            checksum_kind: self.checksum_kind.number().into(),
            root_level: self.root.level,
            chunk_root_level: self.chunk_root.level,
            log_root_level: log_root.level,
            dev_item: self.dev_item.encode(),
            label: [0; 256],
            cache_generation: self.cache_generation.into(),
            uuid_tree_generation: self.uuid_tree_generation.into(),
            metadata_uuid: old.metadata_uuid,
            reserved: old.reserved,
            sys_chunk_array: [0; SYS_CHUNK_ARRAY_BYTES],
            backups: self.backups.map(|backup| backup.encode()),
            unused: old.unused,
        };
        if self.features.incompat.contains(Incompat::METADATA_UUID) {
            disk.metadata_uuid = self.metadata_uuid.into_bytes();
        }
        for (to, from) in disk.label.iter_mut().zip(&self.label) {
            *to = *from;
        }
        let array: Vec<u8> = self.sys_chunks.iter().flat_map(encode_sys_chunk).collect();
        let len = u32::try_from(array.len()).unwrap_or(u32::MAX);
        disk.sys_chunk_array_bytes.set(len);
        for (to, from) in disk.sys_chunk_array.iter_mut().zip(&array) {
            *to = *from;
        }
        disk.checksum = self.checksum_kind.of(summed(&disk));
        disk
    }
}

/// Tree blocks that every filesystem has: one for each of the first trees.
const TREE_BLOCKS_MIN: u64 = 6;

/// What the checksum is of.
fn summed(disk: &DiskSuperblock) -> &[u8] {
    disk.as_bytes()
        .get(size_of::<Checksum>()..)
        .unwrap_or_default()
}

/// The sizes of sectors and tree blocks.
fn sizes(disk: &DiskSuperblock) -> Result<(u32, u32), SuperblockRule> {
    let is_valid = |bytes: u32| {
        bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes)
    };
    let (sector, node) = (disk.sector_bytes.get(), disk.node_bytes.get());
    if !is_valid(sector) {
        return Err(SuperblockRule::SectorSize);
    }
    if !is_valid(node) || node < sector || disk.leaf_bytes.get() != node {
        return Err(SuperblockRule::NodeSize);
    }
    Ok((sector, node))
}

fn label(padded: &[u8; 256]) -> Vec<u8> {
    let label = padded.split(|byte| *byte == 0).next();
    label.unwrap_or_default().to_vec()
}

fn sys_chunks(
    disk: &DiskSuperblock,
    sector_bytes: u32,
    locus: Locus,
) -> Result<Vec<ChunkItem>, SuperblockRule> {
    let len = usize::try_from(disk.sys_chunk_array_bytes.get()).unwrap_or(usize::MAX);
    let mut rest = disk.sys_chunk_array.get(..len).unwrap_or_default();
    if rest.is_empty() {
        return Err(SuperblockRule::SysArray);
    }
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let prefix = DiskKey::ref_from_prefix(rest);
        let (key, after) = prefix.map_err(|_| SuperblockRule::SysArray)?;
        let key = Key::decode(key);
        if key.kind != ItemKind::CHUNK_ITEM || key.object != CHUNK_OBJECT {
            return Err(SuperblockRule::SysArray);
        }
        let start = LogicalAddr(key.offset);
        let decoded = ChunkItem::decode_prefix(after, start, sector_bytes, locus);
        let (chunk, after) = decoded.map_err(|_| SuperblockRule::SysChunk)?;
        chunks.push(chunk);
        rest = after;
    }
    Ok(chunks)
}

/// Whether the chunks fit into the array of a superblock.
#[must_use]
pub fn fit_sys_chunk_array(chunks: &[ChunkItem]) -> bool {
    let bytes = chunks.iter().map(|chunk| encode_sys_chunk(chunk).len());
    bytes.fold(0usize, usize::saturating_add) <= SYS_CHUNK_ARRAY_BYTES
}

fn encode_sys_chunk(chunk: &ChunkItem) -> Vec<u8> {
    let key = Key::new(CHUNK_OBJECT, ItemKind::CHUNK_ITEM, chunk.start.0);
    let mut bytes = key.encode().as_bytes().to_vec();
    bytes.extend(chunk.encode());
    bytes
}

impl RootBackup {
    /// Decodes a backup; whether its roots are any good is seen when they are read.
    #[must_use]
    pub fn decode(disk: &DiskRootBackup) -> Self {
        let [tree, chunk, extent, fs, dev, csum] = disk.levels;
        let root = |[logical, generation]: [platter_ondisk::endian::Le64; 2], level| RootPointer {
            logical: LogicalAddr(logical.get()),
            generation: Generation(generation.get()),
            level,
        };
        Self {
            tree_root: root(disk.tree_root, tree),
            chunk_root: root(disk.chunk_root, chunk),
            extent_root: root(disk.extent_root, extent),
            fs_root: root(disk.fs_root, fs),
            dev_root: root(disk.dev_root, dev),
            csum_root: root(disk.csum_root, csum),
            total_bytes: disk.total_bytes.get(),
            bytes_used: disk.bytes_used.get(),
            device_count: disk.device_count.get(),
        }
    }

    /// Encodes the backup.
    #[must_use]
    pub fn encode(&self) -> DiskRootBackup {
        let root = |root: RootPointer| [root.logical.0.into(), root.generation.0.into()];
        let mut disk = DiskRootBackup::new_zeroed();
        disk.tree_root = root(self.tree_root);
        disk.chunk_root = root(self.chunk_root);
        disk.extent_root = root(self.extent_root);
        disk.fs_root = root(self.fs_root);
        disk.dev_root = root(self.dev_root);
        disk.csum_root = root(self.csum_root);
        disk.total_bytes.set(self.total_bytes);
        disk.bytes_used.set(self.bytes_used);
        disk.device_count.set(self.device_count);
        disk.levels = [
            self.tree_root.level,
            self.chunk_root.level,
            self.extent_root.level,
            self.fs_root.level,
            self.dev_root.level,
            self.csum_root.level,
        ];
        disk
    }
}
