//! The items of all trees of an empty filesystem.

use std::collections::BTreeMap;

use platter_ondisk::Uuid;
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{Condition, FileKind, Result, Timestamp};
use zerocopy::IntoBytes;

use super::blocks::NewTree;
use super::layout::Layout;
use super::options::{Choice, SECTOR_BYTES};
use crate::block_group::Ranges;
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem};
use crate::ondisk::dev_extent::DevExtent;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::extent_item::{ExtentFlags, ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::features::{CompatRo, Incompat};
use crate::ondisk::free_space::{FreeSpaceFlags, FreeSpaceInfo};
use crate::ondisk::header::Header;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::{QgroupFlags, QgroupInfo, QgroupLimit, QgroupStatus};
use crate::ondisk::root_item::{RootHistory, RootItem};
use crate::ondisk::types::{CHUNK_OBJECT, DEV_ITEMS_OBJECT, FIRST_FREE_OBJECT, ROOT_TREE_DIR};
use crate::ondisk::uuid_item::UuidItem;
use crate::ondisk::{DeviceId, Key, LogicalAddr, TreeId};

/// The name of the default subvolume in the root tree.
const DEFAULT_NAME: &[u8] = b"default";
/// The numbers of blocks of trees depend on each other; so often they are counted anew at most.
const ROUNDS_MAX: usize = 16;

type Items = BTreeMap<Key, Vec<u8>>;

/// What the trees of an empty filesystem are made of.
#[derive(Debug)]
pub(super) struct Contents<'c> {
    pub(super) layout: &'c Layout,
    pub(super) choice: &'c Choice,
    /// What headers of blocks have in common.
    pub(super) header: Header,
    /// The UUID of the top-level subvolume.
    pub(super) subvolume_uuid: Uuid,
    pub(super) root_owner: (u32, u32),
    pub(super) now: Timestamp,
}

/// A tree, and where its blocks lie.
#[derive(Debug)]
pub(super) struct PlacedTree {
    pub(super) tree: NewTree,
    pub(super) addresses: Vec<LogicalAddr>,
}

/// All trees, the chunk tree first.
pub(super) type PlacedTrees = Vec<PlacedTree>;

impl Contents<'_> {
    /// The trees that a filesystem has.
    fn ids(&self) -> Vec<TreeId> {
        let compat_ro = self.choice.features.compat_ro;
        let mut ids = vec![
            TreeId::CHUNK,
            TreeId::ROOT,
            TreeId::EXTENT,
            TreeId::DEV,
            TreeId::FS,
            TreeId::CSUM,
            TreeId::UUID,
        ];
        let free_space = compat_ro.contains(CompatRo::FREE_SPACE_TREE);
        ids.extend(free_space.then_some(TreeId::FREE_SPACE));
        let groups = compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
        ids.extend(groups.then_some(TreeId::BLOCK_GROUP));
        ids.extend(self.choice.has_quotas.then_some(TreeId::QUOTA));
        ids.push(TreeId::DATA_RELOC);
        ids
    }

    /// All trees, and where their blocks lie.
    ///
    /// # Errors
    /// `NoSpace` where the first chunks have no space for them.
    pub(super) fn place(&self) -> Result<PlacedTrees> {
        let ids = self.ids();
        let node_bytes = self.choice.node_bytes;
        let mut placed: PlacedTrees = ids
            .iter()
            .map(|&id| PlacedTree {
                tree: NewTree::new(id, Items::new(), node_bytes),
                addresses: Vec::new(),
            })
            .collect();
        for _ in 0..ROUNDS_MAX {
            self.allocate(&mut placed)?;
            let made = placed.iter().map(|old| {
                let id = old.tree.id;
                NewTree::new(id, self.items(id, &placed), node_bytes)
            });
            let made: Vec<_> = made.collect();
            // Items name addresses, levels and first keys of blocks, and other trees have items for each block.
            let is_final = placed
                .iter()
                .zip(&made)
                .all(|(old, new)| old.tree.has_blocks_of(new));
            for (old, new) in placed.iter_mut().zip(made) {
                old.tree = new;
            }
            if is_final {
                return Ok(placed);
            }
        }
        Err(Condition::NoSpace.into())
    }

    /// Assigns each block an address: one after the other in the chunks of its type.
    fn allocate(&self, placed: &mut [PlacedTree]) -> Result<()> {
        for flags in [BlockGroupFlags::SYSTEM, BlockGroupFlags::METADATA] {
            let mut chunks = self.layout.chunks.iter();
            let chunk = chunks.find(|chunk| chunk.flags.contains(flags));
            let free = chunk.map(usable).ok_or(Condition::NoSpace)?;
            let node_bytes = u64::from(self.choice.node_bytes);
            let mut from = 0;
            let is_system = flags == BlockGroupFlags::SYSTEM;
            let of_type = |it: &&mut PlacedTree| (it.tree.id == TreeId::CHUNK) == is_system;
            for PlacedTree { tree, addresses } in placed.iter_mut().filter(of_type) {
                addresses.clear();
                for _ in tree.blocks() {
                    let found = free.find(from, node_bytes, node_bytes.min(64 << 10));
                    let found = found.ok_or(Condition::NoSpace)?;
                    addresses.push(LogicalAddr(found.start));
                    from = found.end;
                }
            }
        }
        Ok(())
    }

    fn items(&self, id: TreeId, placed: &[PlacedTree]) -> Items {
        match id {
            TreeId::CHUNK => self.chunk_items(),
            TreeId::ROOT => self.root_items(placed),
            TreeId::EXTENT => self.extent_items(placed),
            TreeId::DEV => self.dev_items(),
            TreeId::FS => self.directory_items(self.root_owner),
            TreeId::DATA_RELOC => self.directory_items((0, 0)),
            TreeId::UUID => self.uuid_items(),
            TreeId::FREE_SPACE => self.free_space_items(placed),
            TreeId::BLOCK_GROUP => self.group_items(placed),
            TreeId::QUOTA => self.quota_items(),
            _ => Items::new(),
        }
    }

    /// The item of a device.
    pub(super) fn dev_item(&self, id: DeviceId) -> Option<DevItem> {
        let device = self.layout.devices.iter().find(|device| device.id == id)?;
        Some(DevItem {
            id: device.id,
            total_bytes: device.total_bytes,
            bytes_used: device.used_bytes,
            generation: crate::ondisk::Generation(0),
            sector_bytes: SECTOR_BYTES,
            io: (SECTOR_BYTES, SECTOR_BYTES),
            kind: 0,
            start_offset: 0,
            hints: (0, 0, 0),
            uuid: device.uuid,
            fsid: self.header.fsid,
        })
    }

    fn chunk_items(&self) -> Items {
        let mut items = Items::new();
        for device in &self.layout.devices {
            let key = Key::new(DEV_ITEMS_OBJECT, ItemKind::DEV_ITEM, device.id.0);
            if let Some(item) = self.dev_item(device.id) {
                items.insert(key, item.encode().as_bytes().to_vec());
            }
        }
        for chunk in &self.layout.chunks {
            let key = Key::new(CHUNK_OBJECT, ItemKind::CHUNK_ITEM, chunk.start.0);
            items.insert(key, chunk.encode());
        }
        items
    }

    fn dev_items(&self) -> Items {
        let mut items = Items::new();
        for chunk in &self.layout.chunks {
            for stripe in &chunk.stripes {
                let extent = DevExtent {
                    device: stripe.device,
                    start: stripe.offset,
                    len_bytes: chunk.stripe_len_bytes(),
                    chunk: chunk.start,
                    chunk_tree: TreeId::CHUNK.0,
                    chunk_object: CHUNK_OBJECT,
                    chunk_tree_uuid: self.header.chunk_tree_uuid,
                };
                let key = Key::new(stripe.device.0, ItemKind::DEV_EXTENT, stripe.offset.0);
                items.insert(key, extent.encode().as_bytes().to_vec());
            }
        }
        items
    }

    fn root_items(&self, placed: &[PlacedTree]) -> Items {
        let mut items = Items::new();
        let node_bytes = u64::from(self.choice.node_bytes);
        for PlacedTree { tree, addresses } in placed {
            if matches!(tree.id, TreeId::ROOT | TreeId::CHUNK) {
                continue;
            }
            let mut item = RootItem::of_new_tree(tree.root(addresses, &self.header), node_bytes);
            item.bytes_used = node_bytes * addresses.len() as u64;
            if matches!(tree.id, TreeId::FS | TreeId::DATA_RELOC) {
                item.root_dir = FIRST_FREE_OBJECT;
            }
            if tree.id == TreeId::FS {
                item.history = RootHistory {
                    uuid: self.subvolume_uuid,
                    changed: self.now,
                    created: self.now,
                    ..RootHistory::default()
                };
            }
            let key = Key::new(tree.id.0, ItemKind::ROOT_ITEM, 0);
            items.insert(key, item.encode(None).as_bytes().to_vec());
        }
        self.add_directory(&mut items, ROOT_TREE_DIR, (0, 0));
        let entry = DirItem {
            location: Location::Subvolume(TreeId::FS.0),
            transaction: crate::ondisk::Generation(0),
            kind: Some(FileKind::Directory),
            name: DEFAULT_NAME,
        };
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        let key = Key::new(ROOT_TREE_DIR, ItemKind::DIR_ITEM, name_hash(DEFAULT_NAME));
        items.insert(key, bytes);
        let key = Key::new(TreeId::FS.0, ItemKind::INODE_REF, ROOT_TREE_DIR);
        items.insert(key, reference(ROOT_TREE_DIR, DEFAULT_NAME));
        items
    }

    fn directory_items(&self, owner: (u32, u32)) -> Items {
        let mut items = Items::new();
        self.add_directory(&mut items, FIRST_FREE_OBJECT, owner);
        items
    }

    /// Adds an empty directory that is its own parent.
    fn add_directory(&self, items: &mut Items, number: u64, (uid, gid): (u32, u32)) {
        let inode = InodeItem {
            generation: self.header.generation,
            transaction: crate::ondisk::Generation(0),
            size_bytes: 0,
            allocated_bytes: self.choice.node_bytes.into(),
            links: 1,
            uid,
            gid,
            kind: FileKind::Directory,
            permissions: 0o755,
            device: DeviceNumber { major: 0, minor: 0 },
            flags: InodeFlags::empty(),
            sequence: 0,
            accessed: self.now,
            changed: self.now,
            modified: self.now,
            created: self.now,
        };
        let key = Key::new(number, ItemKind::INODE_ITEM, 0);
        items.insert(key, inode.encode().as_bytes().to_vec());
        let key = Key::new(number, ItemKind::INODE_REF, number);
        items.insert(key, reference(number, b".."));
    }

    fn uuid_items(&self) -> Items {
        let item = UuidItem {
            uuid: self.subvolume_uuid,
            trees: vec![TreeId::FS],
        };
        let key = UuidItem::key(item.uuid, ItemKind::UUID_SUBVOL);
        Items::from([(key, item.encode())])
    }

    /// The state of quota groups, and the one of the top-level subvolume, which has one block.
    fn quota_items(&self) -> Items {
        let incompat = self.choice.features.incompat;
        let is_simple = incompat.contains(Incompat::SIMPLE_QUOTA);
        let generation = self.header.generation;
        let mut flags = QgroupFlags::ON;
        flags.set(QgroupFlags::SIMPLE_MODE, is_simple);
        let status = QgroupStatus {
            generation,
            flags,
            rescan: 0,
            enable_generation: is_simple.then_some(generation),
        };
        let bytes = u64::from(self.choice.node_bytes);
        let compressed = if is_simple { 0 } else { bytes };
        let info = QgroupInfo {
            generation,
            referenced: (bytes, compressed),
            exclusive: (bytes, compressed),
        };
        let limit = QgroupLimit::default().encode();
        let key = |kind, id| Key::new(0, kind, id);
        let top = TreeId::FS.0;
        Items::from([
            (key(ItemKind::QGROUP_STATUS, 0), status.encode()),
            (
                key(ItemKind::QGROUP_INFO, top),
                info.encode().as_bytes().to_vec(),
            ),
            (key(ItemKind::QGROUP_LIMIT, top), limit.as_bytes().to_vec()),
        ])
    }

    fn extent_items(&self, placed: &[PlacedTree]) -> Items {
        let mut items = Items::new();
        let incompat = self.choice.features.incompat;
        let is_skinny = incompat.contains(Incompat::SKINNY_METADATA);
        for PlacedTree { tree, addresses } in placed {
            for (block, logical) in tree.blocks().iter().zip(addresses) {
                let item = ExtentItem {
                    refs: 1,
                    generation: self.header.generation,
                    flags: ExtentFlags::TREE_BLOCK,
                    kind: ExtentKind::TreeBlock {
                        level: block.level,
                        first_key: (!is_skinny).then_some(block.first_key),
                    },
                    inline: vec![ExtentRef::TreeBlock { tree: tree.id }],
                };
                let key = if is_skinny {
                    Key::new(logical.0, ItemKind::METADATA_ITEM, block.level.into())
                } else {
                    let node_bytes = self.choice.node_bytes.into();
                    Key::new(logical.0, ItemKind::EXTENT_ITEM, node_bytes)
                };
                items.insert(key, item.encode());
            }
        }
        let compat_ro = self.choice.features.compat_ro;
        if !compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            items.extend(self.group_items(placed));
        }
        items
    }

    fn group_items(&self, placed: &[PlacedTree]) -> Items {
        let item = |chunk: &ChunkItem| {
            let item = BlockGroupItem {
                start: chunk.start,
                len_bytes: chunk.len_bytes,
                used_bytes: self.used(chunk, placed).len_bytes(),
                chunk_object: CHUNK_OBJECT,
                flags: chunk.flags,
            };
            let key = Key::new(chunk.start.0, ItemKind::BLOCK_GROUP_ITEM, chunk.len_bytes);
            (key, item.encode().as_bytes().to_vec())
        };
        self.layout.chunks.iter().map(item).collect()
    }

    fn free_space_items(&self, placed: &[PlacedTree]) -> Items {
        let mut items = Items::new();
        for chunk in &self.layout.chunks {
            let mut free = whole(chunk);
            for range in self.used(chunk, placed).iter() {
                free.exclude(&range);
            }
            let info = FreeSpaceInfo {
                extent_count: u32::try_from(free.count()).unwrap_or(u32::MAX),
                flags: FreeSpaceFlags::empty(),
            };
            let key = Key::new(chunk.start.0, ItemKind::FREE_SPACE_INFO, chunk.len_bytes);
            items.insert(key, info.encode().as_bytes().to_vec());
            for range in free.iter() {
                let len_bytes = range.end - range.start;
                let key = Key::new(range.start, ItemKind::FREE_SPACE_EXTENT, len_bytes);
                items.insert(key, Vec::new());
            }
        }
        items
    }

    /// The tree blocks in a chunk.
    fn used(&self, chunk: &ChunkItem, placed: &[PlacedTree]) -> Ranges {
        let node_bytes = u64::from(self.choice.node_bytes);
        let range = chunk.start.0..chunk.start.0 + chunk.len_bytes;
        let mut used = Ranges::default();
        for address in placed.iter().flat_map(|placed| &placed.addresses) {
            if range.contains(&address.0) {
                used.add(address.0..address.0 + node_bytes);
            }
        }
        used
    }
}

/// All addresses of a chunk.
fn whole(chunk: &ChunkItem) -> Ranges {
    let mut ranges = Ranges::default();
    ranges.add(chunk.start.0..chunk.start.0 + chunk.len_bytes);
    ranges
}

/// Those that no copy of the superblock lies at.
fn usable(chunk: &ChunkItem) -> Ranges {
    let mut free = whole(chunk);
    for range in chunk.superblock_ranges() {
        free.exclude(&range);
    }
    free
}

fn reference(parent: u64, name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    InodeRef {
        parent,
        index: 0,
        name,
    }
    .encode(&mut bytes);
    bytes
}
