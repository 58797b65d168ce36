//! From superblock to trees: the chunk tree by the superblock's chunks, all others by the chunk tree.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Locus;
use platter_vfs::Result;

use super::devices::{self, Found, unsupported};
use super::options::MountOptions;
use crate::chunk::{ChunkMap, ChunkStore, Member, Members};
use crate::context::{FsContext, Leniency};
use crate::log;
use crate::ondisk::chunk_item::ChunkItem;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::superblock::RootBackup;
use crate::ondisk::tree_block::TreeBlockFormat;
use crate::ondisk::{Key, LogicalAddr, Superblock, TreeId};
use crate::tree::{Cursor, Tree, TreeBlocks};

/// Opens the filesystem on `devices`.
pub(crate) fn open(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    budget: &Arc<MemoryBudget>,
) -> Result<FsContext> {
    let found = devices::find(devices, options.superblock_offset)?;
    let latest = try_open(&found, found.superblock.clone(), options, budget);
    let Err(error) = latest else {
        return latest;
    };
    if !options.rescue.uses_backup_root {
        return Err(error);
    }
    let mut backups = found.superblock.backups;
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root.generation));
    for backup in backups.iter().filter(|it| it.tree_root.logical.0 != 0) {
        let superblock = with_backup(&found.superblock, backup);
        if let Ok(context) = try_open(&found, superblock, options, budget) {
            return Ok(context);
        }
    }
    Err(error)
}

/// The superblock as it was when the backup was made. Its log trees are of a later time.
fn with_backup(superblock: &Superblock, backup: &RootBackup) -> Superblock {
    Superblock {
        root: backup.tree_root,
        chunk_root: backup.chunk_root,
        generation: backup.tree_root.generation,
        log_root: None,
        ..superblock.clone()
    }
}

fn try_open(
    found: &Found,
    superblock: Superblock,
    options: &MountOptions,
    budget: &Arc<MemoryBudget>,
) -> Result<FsContext> {
    let name: Arc<str> = format!("btrfs {}", superblock.fsid).into();
    let format = TreeBlockFormat::of(&superblock);
    let map = ChunkMap::new(superblock.sys_chunks.clone())?;
    let store = ChunkStore::new(Arc::clone(&name), map, found.members.clone());
    let blocks = TreeBlocks::new(Arc::new(store), format, Arc::clone(budget));
    let tree = Tree {
        id: TreeId::CHUNK,
        root: superblock.chunk_root,
    };
    let (chunks, members) = read_chunk_tree(&blocks, tree, &superblock, &found.members)?;
    refuse_missing(&members, options)?;
    let store = ChunkStore::new(name, ChunkMap::new(chunks)?, members);
    let blocks = TreeBlocks::new(Arc::new(store), format, Arc::clone(budget));
    let leniency = Leniency {
        ignores_data_checksums: options.rescue.ignores_data_checksums,
        ignores_bad_roots: options.rescue.ignores_bad_roots,
    };
    let mut context = FsContext::new(superblock, blocks, leniency);
    // Reads the root of the root tree, by which others are found.
    context.required_tree(TreeId::FS)?;
    for id in [TreeId::EXTENT, TreeId::DEV, TreeId::CSUM] {
        match read_root(&context, id) {
            Err(_) if leniency.ignores_bad_roots => {}
            result => result?,
        }
    }
    if let Some(log_root) = context.superblock.log_root
        && !options.rescue.skips_log
    {
        let overlays = log::replay(&context, log_root)?;
        context.set_overlays(overlays);
    }
    Ok(context)
}

/// Reads the root of a tree that every filesystem has.
fn read_root(context: &FsContext, id: TreeId) -> Result<()> {
    let tree = context.required_tree(id)?;
    context.cursor(tree).seek(Key::MIN)
}

/// The chunks and devices that the chunk tree lists.
fn read_chunk_tree(
    blocks: &TreeBlocks,
    tree: Tree,
    superblock: &Superblock,
    given: &Members,
) -> Result<(Vec<ChunkItem>, Members)> {
    let mut chunks = superblock.sys_chunks.clone();
    let mut members = given.clone();
    let mut cursor = Cursor::new(blocks, tree);
    cursor.seek(Key::MIN)?;
    while let Some((key, data)) = cursor.item() {
        let locus = tree.locus(key);
        if key.kind == ItemKind::DEV_ITEM {
            let item = DevItem::decode(data, locus)?;
            members.add(Member {
                id: item.id,
                uuid: item.uuid,
                total_bytes: Some(item.total_bytes),
                index: 0,
                device: None,
            });
        }
        if key.kind == ItemKind::CHUNK_ITEM {
            chunks.push(decode_chunk(key, data, superblock, locus)?);
        }
        cursor.step()?;
    }
    // A stale superblock may still have chunks that the tree has no more, or has changed.
    let mut known = Vec::new();
    for chunk in chunks.into_iter().rev() {
        if !known
            .iter()
            .any(|other: &ChunkItem| other.start == chunk.start)
        {
            known.push(chunk);
        }
    }
    Ok((known, members))
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

/// Refuses a filesystem of which devices are missing, unless that is wanted.
fn refuse_missing(members: &Members, options: &MountOptions) -> Result<()> {
    let missing: Vec<String> = members
        .missing()
        .map(|member| format!("devid {} uuid {}", member.id, member.uuid))
        .collect();
    if missing.is_empty() || options.degraded {
        return Ok(());
    }
    let reason = "give all devices, or mount with -o degraded";
    let feature = format!("mounting without {}", missing.join(", "));
    Err(unsupported(feature, Some(reason)))
}
