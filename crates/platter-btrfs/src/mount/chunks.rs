//! The chunk tree: by the chunks of the superblock's array, all others, and the devices.

use std::sync::Arc;

use platter_cache::MemoryBudget;
use platter_ondisk::{Locus, Uuid};
use platter_vfs::Result;

use super::members::Found;
use crate::chunk::{ChunkMap, ChunkStore};
use crate::ondisk::chunk_item::ChunkItem;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::tree_block::{SEEDS_MAX, TreeBlockFormat};
use crate::ondisk::{Key, LogicalAddr, Superblock, TreeId};
use crate::pool::unsupported;
use crate::tree::{Cursor, Tree, TreeBlocks};

/// What the chunk tree lists.
#[derive(Debug, Clone)]
pub(super) struct ChunkTree {
    pub(super) chunks: Vec<ChunkItem>,
    pub(super) devices: Vec<DevItem>,
}

impl ChunkTree {
    /// Reads the chunk tree of `superblock` from the devices that were given.
    pub(super) fn read(
        found: &Found,
        superblock: &Superblock,
        budget: &Arc<MemoryBudget>,
        ignores_checksums: bool,
    ) -> Result<Self> {
        let map = ChunkMap::new(superblock.sys_chunks.clone())?;
        let store = ChunkStore::new(name(superblock), map, found.all());
        let format = format(superblock, &found.seeds())?;
        let blocks = TreeBlocks::new(Arc::new(store), format, Arc::clone(budget))
            .ignoring_checksums(ignores_checksums);
        let tree = Tree {
            id: TreeId::CHUNK,
            root: superblock.chunk_root,
        };
        let mut chunks = superblock.sys_chunks.clone();
        let mut devices = Vec::new();
        let mut cursor = Cursor::new(&blocks, tree);
        cursor.seek(Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            let locus = tree.locus(key);
            if key.kind == ItemKind::DEV_ITEM {
                devices.push(DevItem::decode(key, data, locus)?);
            }
            if key.kind == ItemKind::CHUNK_ITEM {
                chunks.push(decode_chunk(key, data, superblock, locus)?);
            }
            cursor.step()?;
        }
        Ok(Self {
            chunks: latest(chunks),
            devices,
        })
    }
}

/// The name of a filesystem in errors.
pub(super) fn name(superblock: &Superblock) -> Arc<str> {
    format!("btrfs {}", superblock.fsid).into()
}

/// The format of the tree blocks of a filesystem with these seeds.
pub(super) fn format(superblock: &Superblock, seeds: &[Uuid]) -> Result<TreeBlockFormat> {
    let format = TreeBlockFormat::of(superblock).with_seeds(seeds);
    let many = || unsupported(format!("a chain of more than {SEEDS_MAX} seeds"), None);
    format.ok_or_else(many)
}

/// The chunks, of two with one address the last. A stale superblock may still have chunks that the tree
/// has no more, or has changed.
fn latest(mut chunks: Vec<ChunkItem>) -> Vec<ChunkItem> {
    chunks.reverse();
    chunks.sort_by_key(|chunk| chunk.start);
    chunks.dedup_by_key(|chunk| chunk.start);
    chunks
}

fn decode_chunk(key: Key, data: &[u8], superblock: &Superblock, locus: Locus) -> Result<ChunkItem> {
    let start = LogicalAddr(key.offset);
    Ok(ChunkItem::decode(
        data,
        start,
        superblock.sector_bytes,
        locus,
    )?)
}
