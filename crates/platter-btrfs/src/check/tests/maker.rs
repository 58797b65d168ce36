//! A small filesystem in memory, of which everything can be changed before it is written: two subvolumes
//! that share a leaf, a file, a symbolic link, checksums, free space tree, UUID tree and quota tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};
use platter_ondisk::Uuid;
use platter_vfs::FileKind;
use zerocopy::{FromZeros, IntoBytes};

use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::checksum::{ChecksumKind, name_hash};
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem, Profile};
use crate::ondisk::dev_extent::DevExtent;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::extent_item::{ExtentFlags, ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::features::{CompatRo, Features, Incompat};
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::free_space::{FreeSpaceFlags, FreeSpaceInfo};
use crate::ondisk::header::Header;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::node::KeyPointer;
use crate::ondisk::qgroup::{QgroupFlags, QgroupInfo, QgroupStatus};
use crate::ondisk::root_item::{OLD_ROOT_ITEM_BYTES, RootFlags, RootHistory, RootItem};
use crate::ondisk::root_ref::RootRef;
use crate::ondisk::superblock::{DiskSuperblock, RootPointer, SUPERBLOCK_OFFSETS};
use crate::ondisk::tree_block::tests::FORMAT;
use crate::ondisk::types::{CHUNK_OBJECT, DEV_ITEMS_OBJECT, EXTENT_CSUM_OBJECT};
use crate::ondisk::uuid_item::UuidItem;
use crate::ondisk::{
    DeviceAddr, DeviceId, Generation, Key, LogicalAddr, Superblock, TreeId, leaf, node,
};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const NODE: u64 = 4096;
/// Where the chunks begin, each of 1 MiB.
pub(super) const SYSTEM: u64 = MIB;
pub(super) const METADATA: u64 = 4 * MIB;
pub(super) const DATA: u64 = 8 * MIB;
/// Where the tree blocks lie.
pub(super) const CHUNKS: u64 = SYSTEM;
pub(super) const ROOTS: u64 = METADATA;
pub(super) const EXTENTS: u64 = METADATA + NODE;
pub(super) const DEVICES: u64 = METADATA + 2 * NODE;
pub(super) const CSUMS: u64 = METADATA + 3 * NODE;
pub(super) const FREE: u64 = METADATA + 4 * NODE;
/// Root, first leaf of the top-level subvolume; the leaf that it shares with its snapshot.
pub(super) const TOP: u64 = METADATA + 5 * NODE;
pub(super) const TOP_LEAF: u64 = METADATA + 6 * NODE;
pub(super) const SHARED: u64 = METADATA + 7 * NODE;
/// The snapshot.
pub(super) const SNAP: u64 = METADATA + 8 * NODE;
pub(super) const SNAP_LEAF: u64 = METADATA + 9 * NODE;
pub(super) const UUIDS: u64 = METADATA + 10 * NODE;
pub(super) const QUOTA: u64 = METADATA + 11 * NODE;
/// Blocks of metadata.
const BLOCKS: u64 = 12;
/// The length of the only data extent.
pub(super) const DATA_BYTES: u64 = 8192;
pub(super) const SNAPSHOT: TreeId = TreeId(256);
pub(super) const GENERATION: Generation = Generation(9);

/// A tree block.
#[derive(Clone)]
pub(super) struct Block {
    pub(super) header: Header,
    pub(super) items: BTreeMap<Key, Vec<u8>>,
    pub(super) pointers: Vec<KeyPointer>,
}

/// The filesystem.
pub(super) struct Maker {
    pub(super) superblock: Superblock,
    pub(super) blocks: BTreeMap<u64, Block>,
    pub(super) chunks: Vec<ChunkItem>,
    pub(super) device_bytes: usize,
    /// A second device is there, with a superblock of this generation.
    pub(super) second: Option<Generation>,
    /// Bytes that are flipped at last, by device.
    pub(super) flips: Vec<(usize, u64)>,
    /// What data holds, by its logical address.
    pub(super) contents: Vec<(u64, Vec<u8>)>,
    /// Copies of the superblock, by their place, that are written with a generation.
    pub(super) mirrors: Vec<(u64, Generation)>,
}

impl Block {
    fn leaf(owner: TreeId, logical: u64) -> Self {
        let header = Header {
            owner,
            ..crate::ondisk::header::tests::sample(logical, 0)
        };
        Self {
            header,
            items: BTreeMap::new(),
            pointers: Vec::new(),
        }
    }
}

pub(super) fn chunk(
    start: u64,
    profile: Profile,
    offsets: &[u64],
    kind: BlockGroupFlags,
) -> ChunkItem {
    let stripes = u16::try_from(offsets.len()).unwrap();
    let mut chunk = crate::ondisk::chunk_item::tests::sample(start, profile, stripes);
    let flags = chunk.flags.difference(BlockGroupFlags::DATA) | kind;
    chunk.flags = flags;
    chunk.len_bytes = MIB;
    for (stripe, offset) in chunk.stripes.iter_mut().zip(offsets) {
        stripe.offset = DeviceAddr(*offset);
    }
    chunk
}

pub(super) fn inode(kind: FileKind, size_bytes: u64, allocated_bytes: u64) -> InodeItem {
    InodeItem {
        size_bytes,
        allocated_bytes,
        flags: InodeFlags::empty(),
        ..crate::ondisk::inode_item::tests::sample(kind)
    }
}

pub(super) fn regular(file_bytes: u64) -> Vec<u8> {
    let place = ExtentPlace {
        logical: LogicalAddr(DATA),
        disk_bytes: DATA_BYTES,
        offset: 0,
    };
    FileExtent {
        generation: GENERATION,
        ram_bytes: DATA_BYTES,
        compression: Compression::None,
        file_bytes,
        kind: FileExtentKind::Regular(place),
    }
    .encode()
}

pub(super) fn tree_refs(trees: &[TreeId]) -> Vec<ExtentRef> {
    let trees = trees.iter();
    trees.map(|&tree| ExtentRef::TreeBlock { tree }).collect()
}

pub(super) fn metadata_item(level: u8, inline: Vec<ExtentRef>) -> ExtentItem {
    ExtentItem {
        refs: inline.len() as u64,
        generation: GENERATION,
        flags: ExtentFlags::TREE_BLOCK,
        kind: ExtentKind::TreeBlock {
            level,
            first_key: None,
        },
        inline,
    }
}

pub(super) fn data_item(inline: Vec<ExtentRef>) -> ExtentItem {
    ExtentItem {
        refs: inline.iter().map(|reference| reference.count()).sum(),
        generation: GENERATION,
        flags: ExtentFlags::DATA,
        kind: ExtentKind::Data,
        inline,
    }
}

pub(super) fn data_ref(count: u32) -> ExtentRef {
    ExtentRef::Data {
        tree: TreeId::FS,
        inode: 257,
        offset: 0,
        count,
    }
}

pub(super) fn name_ref(parent: u64, index: u64, name: &[u8]) -> Vec<u8> {
    let mut item = Vec::new();
    InodeRef {
        parent,
        index,
        name,
    }
    .encode(&mut item);
    item
}

pub(super) fn root_item(logical: u64, level: u8) -> RootItem {
    RootItem {
        root: RootPointer {
            logical: LogicalAddr(logical),
            generation: GENERATION,
            level,
        },
        root_dir: 256,
        bytes_used: NODE,
        last_snapshot: Generation(0),
        flags: RootFlags::empty(),
        refs: 1,
        drop_progress: Key::MIN,
        drop_level: 0,
        history: RootHistory {
            uuid: Uuid::from_u128(u128::from(logical)),
            ..RootHistory::default()
        },
    }
}

pub(super) fn root_key(tree: TreeId) -> Key {
    Key::new(tree.0, ItemKind::ROOT_ITEM, 0)
}

pub(super) fn group(start: u64, used_bytes: u64, flags: BlockGroupFlags) -> (Key, Vec<u8>) {
    let item = BlockGroupItem {
        start: LogicalAddr(start),
        len_bytes: MIB,
        used_bytes,
        chunk_object: CHUNK_OBJECT,
        flags,
    };
    (group_key(start), item.encode().as_bytes().to_vec())
}

pub(super) fn group_key(start: u64) -> Key {
    Key::new(start, ItemKind::BLOCK_GROUP_ITEM, MIB)
}

pub(super) fn dev_extent(device: u64, start: u64, chunk: u64) -> (Key, Vec<u8>) {
    let extent = DevExtent {
        device: DeviceId(device),
        start: DeviceAddr(start),
        len_bytes: MIB,
        chunk: LogicalAddr(chunk),
        chunk_tree: TreeId::CHUNK.0,
        chunk_object: CHUNK_OBJECT,
        chunk_tree_uuid: Uuid::from_u128(78),
    };
    let key = Key::new(device, ItemKind::DEV_EXTENT, start);
    (key, extent.encode().as_bytes().to_vec())
}

pub(super) fn dev_item(id: u64, bytes_used: u64) -> DevItem {
    DevItem {
        total_bytes: 16 * MIB,
        bytes_used,
        ..crate::ondisk::dev_item::tests::sample(id)
    }
}

pub(super) fn free_info(start: u64, extent_count: u32) -> (Key, Vec<u8>) {
    let info = FreeSpaceInfo {
        extent_count,
        flags: FreeSpaceFlags::empty(),
    };
    let key = Key::new(start, ItemKind::FREE_SPACE_INFO, MIB);
    (key, info.encode().as_bytes().to_vec())
}

pub(super) fn free_extent(start: u64, end: u64) -> (Key, Vec<u8>) {
    let key = Key::new(start, ItemKind::FREE_SPACE_EXTENT, end - start);
    (key, Vec::new())
}

pub(super) fn usage(referenced: u64, exclusive: u64) -> Vec<u8> {
    let info = QgroupInfo {
        generation: GENERATION,
        referenced: (referenced, referenced),
        exclusive: (exclusive, exclusive),
    };
    info.encode().as_bytes().to_vec()
}

pub(super) fn quota_status(flags: QgroupFlags) -> Vec<u8> {
    let status = QgroupStatus {
        generation: GENERATION,
        flags,
        rescan: 0,
        enable_generation: None,
    };
    status.encode()
}

pub(super) fn qgroup_key(kind: ItemKind, id: u64) -> Key {
    Key::new(0, kind, id)
}

pub(super) fn csum_key(start: u64) -> Key {
    Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, start)
}

/// Checksums of sectors of zeros.
pub(super) fn csums(sectors: usize) -> Vec<u8> {
    let sum = ChecksumKind::Crc32c.of(&[0; 4096]);
    sum[..4].repeat(sectors)
}

impl Maker {
    pub(super) fn new() -> Self {
        let chunks = vec![
            chunk(SYSTEM, Profile::Single, &[MIB], BlockGroupFlags::SYSTEM),
            chunk(
                METADATA,
                Profile::Dup,
                &[2 * MIB, 3 * MIB],
                BlockGroupFlags::METADATA,
            ),
            chunk(DATA, Profile::Single, &[4 * MIB], BlockGroupFlags::DATA),
        ];
        let root = |logical| RootPointer {
            logical: LogicalAddr(logical),
            generation: GENERATION,
            level: 0,
        };
        let superblock = Superblock {
            root: root(ROOTS),
            chunk_root: root(CHUNKS),
            total_bytes: 16 * MIB,
            bytes_used: NODE + BLOCKS * NODE + DATA_BYTES,
            node_bytes: 4096,
            features: Features {
                compat: 0,
                compat_ro: CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID,
                incompat: Incompat::MIXED_BACKREF
                    | Incompat::EXTENDED_IREF
                    | Incompat::SKINNY_METADATA,
            },
            dev_item: dev_item(1, 4 * MIB),
            sys_chunks: vec![chunks[0].clone()],
            ..crate::ondisk::superblock::tests::sample()
        };
        let mut maker = Self {
            superblock,
            blocks: BTreeMap::new(),
            chunks,
            device_bytes: 16 << 20,
            second: None,
            flips: Vec::new(),
            contents: Vec::new(),
            mirrors: Vec::new(),
        };
        for (owner, logical) in [
            (TreeId::CHUNK, CHUNKS),
            (TreeId::ROOT, ROOTS),
            (TreeId::EXTENT, EXTENTS),
            (TreeId::DEV, DEVICES),
            (TreeId::CSUM, CSUMS),
            (TreeId::FREE_SPACE, FREE),
            (TreeId::FS, TOP),
            (TreeId::FS, TOP_LEAF),
            (TreeId::FS, SHARED),
            (SNAPSHOT, SNAP),
            (SNAPSHOT, SNAP_LEAF),
            (TreeId::UUID, UUIDS),
            (TreeId::QUOTA, QUOTA),
        ] {
            maker.blocks.insert(logical, Block::leaf(owner, logical));
        }
        maker.add_roots();
        maker.add_devices();
        maker.add_extents(BlockGroupFlags::DUP);
        maker.add_files();
        maker
    }

    /// The items of a leaf.
    pub(super) fn items(&mut self, logical: u64) -> &mut BTreeMap<Key, Vec<u8>> {
        &mut self.blocks.get_mut(&logical).unwrap().items
    }

    pub(super) fn put(&mut self, logical: u64, item: (Key, Vec<u8>)) {
        self.items(logical).insert(item.0, item.1);
    }

    pub(super) fn remove(&mut self, logical: u64, key: Key) {
        assert!(self.items(logical).remove(&key).is_some(), "{key}");
    }

    /// Replaces the item of a tree in the root tree.
    pub(super) fn set_root(&mut self, tree: TreeId, item: &RootItem) {
        let mut bytes = item.encode(None).as_bytes().to_vec();
        if !tree.is_subvolume() {
            bytes.truncate(OLD_ROOT_ITEM_BYTES);
        }
        self.put(ROOTS, (root_key(tree), bytes));
    }

    fn add_roots(&mut self) {
        for (tree, logical, level) in [
            (TreeId::EXTENT, EXTENTS, 0),
            (TreeId::DEV, DEVICES, 0),
            (TreeId::CSUM, CSUMS, 0),
            (TreeId::FREE_SPACE, FREE, 0),
            (TreeId::UUID, UUIDS, 0),
            (TreeId::QUOTA, QUOTA, 0),
            (TreeId::FS, TOP, 1),
            (SNAPSHOT, SNAP, 1),
        ] {
            self.set_root(tree, &root_item(logical, level));
        }
        self.add_subvolume_names(SNAPSHOT, 4, b"snap");
        let uuid = UuidItem {
            uuid: root_item(SNAP, 1).history.uuid,
            trees: vec![SNAPSHOT],
        };
        let key = UuidItem::key(uuid.uuid, ItemKind::UUID_SUBVOL);
        self.put(UUIDS, (key, uuid.encode()));
        let status = qgroup_key(ItemKind::QGROUP_STATUS, 0);
        self.put(QUOTA, (status, quota_status(QgroupFlags::ON)));
        // Two blocks of its own, one that is shared, and the data.
        let usage = usage(3 * NODE + DATA_BYTES, 2 * NODE);
        for tree in [TreeId::FS, SNAPSHOT] {
            let key = qgroup_key(ItemKind::QGROUP_INFO, tree.0);
            self.put(QUOTA, (key, usage.clone()));
        }
    }

    /// Names a subvolume in the root tree.
    pub(super) fn add_subvolume_names(&mut self, child: TreeId, index: u64, name: &[u8]) {
        let dir = 256;
        let bytes = RootRef { dir, index, name }.encode();
        let top = TreeId::FS.0;
        let forth = Key::new(top, ItemKind::ROOT_REF, child.0);
        let back = Key::new(child.0, ItemKind::ROOT_BACKREF, top);
        self.put(ROOTS, (forth, bytes.clone()));
        self.put(ROOTS, (back, bytes));
    }

    fn add_devices(&mut self) {
        let item = dev_item(1, 4 * MIB).encode();
        let key = Key::new(DEV_ITEMS_OBJECT, ItemKind::DEV_ITEM, 1);
        self.put(CHUNKS, (key, item.as_bytes().to_vec()));
        self.put_chunks();
        for (start, chunk) in [(1, SYSTEM), (2, METADATA), (3, METADATA), (4, DATA)] {
            self.put(DEVICES, dev_extent(1, start * MIB, chunk));
        }
    }

    /// Writes the chunk items anew.
    pub(super) fn put_chunks(&mut self) {
        for chunk in self.chunks.clone() {
            let key = Key::new(CHUNK_OBJECT, ItemKind::CHUNK_ITEM, chunk.start.0);
            self.put(CHUNKS, (key, chunk.encode()));
        }
    }

    fn add_extents(&mut self, metadata: BlockGroupFlags) {
        for (logical, level, trees) in [
            (CHUNKS, 0, &[TreeId::CHUNK][..]),
            (ROOTS, 0, &[TreeId::ROOT]),
            (EXTENTS, 0, &[TreeId::EXTENT]),
            (DEVICES, 0, &[TreeId::DEV]),
            (CSUMS, 0, &[TreeId::CSUM]),
            (FREE, 0, &[TreeId::FREE_SPACE]),
            (TOP, 1, &[TreeId::FS]),
            (TOP_LEAF, 0, &[TreeId::FS]),
            (SHARED, 0, &[TreeId::FS, SNAPSHOT]),
            (SNAP, 1, &[SNAPSHOT]),
            (SNAP_LEAF, 0, &[SNAPSHOT]),
            (UUIDS, 0, &[TreeId::UUID]),
            (QUOTA, 0, &[TreeId::QUOTA]),
        ] {
            self.set_block_item(logical, level, &metadata_item(level, tree_refs(trees)));
        }
        self.set_data_item(&data_item(vec![data_ref(1)]));
        let used = BLOCKS * NODE;
        let kind = BlockGroupFlags::METADATA | metadata;
        self.put(EXTENTS, group(SYSTEM, NODE, BlockGroupFlags::SYSTEM));
        self.put(EXTENTS, group(METADATA, used, kind));
        self.put(EXTENTS, group(DATA, DATA_BYTES, BlockGroupFlags::DATA));
        for (start, used) in [(SYSTEM, NODE), (METADATA, used), (DATA, DATA_BYTES)] {
            self.put(FREE, free_info(start, 1));
            self.put(FREE, free_extent(start + used, start + MIB));
        }
        self.put(CSUMS, (csum_key(DATA), csums(2)));
    }

    /// Replaces the extent item of a tree block.
    pub(super) fn set_block_item(&mut self, logical: u64, level: u8, item: &ExtentItem) {
        let key = Key::new(logical, ItemKind::METADATA_ITEM, level.into());
        self.put(EXTENTS, (key, item.encode()));
    }

    /// Replaces the extent item of the data.
    pub(super) fn set_data_item(&mut self, item: &ExtentItem) {
        let key = Key::new(DATA, ItemKind::EXTENT_ITEM, DATA_BYTES);
        self.put(EXTENTS, (key, item.encode()));
    }

    fn add_files(&mut self) {
        for leaf in [TOP_LEAF, SNAP_LEAF] {
            self.set_inode(leaf, 256, &inode(FileKind::Directory, 16, 0));
            let up = Key::new(256, ItemKind::INODE_REF, 256);
            self.put(leaf, (up, name_ref(256, 0, b"..")));
            let (file, link) = (Location::Inode(257), Location::Inode(258));
            self.add_entry(leaf, 2, file, FileKind::Regular, b"file");
            self.add_entry(leaf, 3, link, FileKind::Symlink, b"link");
        }
        self.set_inode(TOP_LEAF, 256, &inode(FileKind::Directory, 24, 0));
        let snap = Location::Subvolume(SNAPSHOT.0);
        self.add_entry(TOP_LEAF, 4, snap, FileKind::Directory, b"snap");
        self.set_inode(
            SHARED,
            257,
            &inode(FileKind::Regular, DATA_BYTES, DATA_BYTES),
        );
        self.set_ref(257, &name_ref(256, 2, b"file"));
        self.set_extent(257, 0, regular(DATA_BYTES));
        self.set_inode(SHARED, 258, &inode(FileKind::Symlink, 6, 6));
        self.set_ref(258, &name_ref(256, 3, b"link"));
        let target = FileExtent {
            generation: GENERATION,
            ram_bytes: 6,
            compression: Compression::None,
            file_bytes: 6,
            kind: FileExtentKind::Inline(b"target"),
        };
        self.set_extent(258, 0, target.encode());
    }

    pub(super) fn set_inode(&mut self, leaf: u64, number: u64, item: &InodeItem) {
        let key = Key::new(number, ItemKind::INODE_ITEM, 0);
        self.put(leaf, (key, item.encode().as_bytes().to_vec()));
    }

    pub(super) fn set_ref(&mut self, number: u64, item: &[u8]) {
        let key = Key::new(number, ItemKind::INODE_REF, 256);
        self.put(SHARED, (key, item.to_vec()));
    }

    pub(super) fn set_extent(&mut self, number: u64, offset: u64, item: Vec<u8>) {
        self.put(
            SHARED,
            (Key::new(number, ItemKind::EXTENT_DATA, offset), item),
        );
    }

    /// Adds an entry to the root directory of a subvolume, by hash and by index.
    pub(super) fn add_entry(
        &mut self,
        leaf: u64,
        index: u64,
        location: Location,
        kind: FileKind,
        name: &[u8],
    ) {
        let entry = DirItem {
            location,
            transaction: GENERATION,
            kind: Some(kind),
            name,
        };
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        let by_hash = Key::new(256, ItemKind::DIR_ITEM, name_hash(name));
        self.put(leaf, (by_hash, bytes.clone()));
        self.put(leaf, (index_key(index), bytes));
    }

    /// Writes the filesystem.
    pub(super) fn make(&self) -> Vec<Arc<dyn BlockDevice>> {
        let count = 1 + usize::from(self.second.is_some());
        let mut devices = vec![vec![0; self.device_bytes]; count];
        let mut blocks = self.blocks.clone();
        for (root, leaf) in [(TOP, TOP_LEAF), (SNAP, SNAP_LEAF)] {
            let pointer = |logical: u64| KeyPointer {
                key: *blocks[&logical].items.keys().next().unwrap(),
                logical: LogicalAddr(logical),
                generation: blocks[&logical].header.generation,
            };
            let pointers = vec![pointer(leaf), pointer(SHARED)];
            let root = blocks.get_mut(&root).unwrap();
            root.header.level = 1;
            if root.pointers.is_empty() {
                root.pointers = pointers;
            }
        }
        for (logical, block) in &blocks {
            let mut bytes = vec![0; 4096];
            if block.header.level > 0 {
                assert!(node::encode(&mut bytes, &block.header, &block.pointers));
            } else {
                let items = block.items.iter().map(|(key, data)| (*key, &data[..]));
                assert!(leaf::encode(&mut bytes, &block.header, items));
            }
            FORMAT.seal(&mut bytes);
            for (device, at) in self.places(*logical) {
                let at = usize::try_from(at).unwrap();
                devices[device][at..at + 4096].copy_from_slice(&bytes);
            }
        }
        for (logical, bytes) in &self.contents {
            for (device, at) in self.places(*logical) {
                let at = usize::try_from(at).unwrap();
                devices[device][at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        let mut write = |device: usize, at: u64, superblock: &Superblock| {
            let disk = superblock.encode(&DiskSuperblock::new_zeroed(), at);
            let at = usize::try_from(at).unwrap();
            devices[device][at..at + 4096].copy_from_slice(disk.as_bytes());
        };
        write(0, SUPERBLOCK_OFFSETS[0], &self.superblock);
        for &(at, generation) in &self.mirrors {
            let superblock = Superblock {
                generation,
                ..self.superblock.clone()
            };
            write(0, at, &superblock);
        }
        if let Some(generation) = self.second {
            let superblock = Superblock {
                generation,
                dev_item: dev_item(2, 0),
                ..self.superblock.clone()
            };
            write(1, SUPERBLOCK_OFFSETS[0], &superblock);
        }
        for &(device, at) in &self.flips {
            devices[device][usize::try_from(at).unwrap()] ^= 0x10;
        }
        let device = |(index, bytes)| -> Arc<dyn BlockDevice> {
            Arc::new(MemoryDevice::new(&format!("device{index}"), bytes))
        };
        devices.into_iter().enumerate().map(device).collect()
    }

    /// Where a logical address lies: in the chunks here, every stripe has all of it.
    fn places(&self, logical: u64) -> Vec<(usize, u64)> {
        let of = |chunk: &&ChunkItem| (chunk.start.0..chunk.start.0 + MIB).contains(&logical);
        let chunk = self.chunks.iter().find(of).unwrap();
        let inside = logical - chunk.start.0;
        let place = |stripe: &crate::ondisk::chunk_item::Stripe| {
            let device = usize::try_from(stripe.device.0 - 1).unwrap();
            (device, stripe.offset.0 + inside)
        };
        chunk.stripes.iter().map(place).collect()
    }
}

pub(super) fn index_key(index: u64) -> Key {
    Key::new(256, ItemKind::DIR_INDEX, index)
}
