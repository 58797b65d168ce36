//! From superblock to trees: the chunk tree by the superblock's chunks, all others by the chunk tree.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::Result;

use super::chunks::{self, ChunkTree};
use super::devices;
use super::members::{self, Found, seeds_of};
use super::options::MountOptions;
use crate::chunk::{ChunkMap, ChunkStore, Members};
use crate::context::{FsContext, Leniency};
use crate::log;
use crate::ondisk::superblock::RootBackup;
use crate::ondisk::{Superblock, TreeId};
use crate::pool::unsupported;
use crate::tree::TreeBlocks;

/// What becomes of a given device of the filesystem that no item of the chunk tree names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unnamed {
    /// It is left out.
    LeftOut,
    /// It is read where chunks name it: its item is corrupt.
    Kept,
}

/// Opens the filesystem on `devices`.
pub(crate) fn open(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    budget: &Arc<MemoryBudget>,
) -> Result<FsContext> {
    open_with(devices, options, budget, Unnamed::LeftOut)
}

/// Opens the filesystem on `devices` although items of the chunk tree may not name them.
pub(crate) fn open_for_check(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    budget: &Arc<MemoryBudget>,
) -> Result<FsContext> {
    open_with(devices, options, budget, Unnamed::Kept)
}

fn open_with(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    budget: &Arc<MemoryBudget>,
    unnamed: Unnamed,
) -> Result<FsContext> {
    let found = members::find(devices, options.superblock_offset)?;
    devices::refuse_unreadable(&found.superblock, options.rescue)?;
    let latest = try_open(&found, found.superblock.clone(), options, budget, unnamed);
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
        if let Ok(context) = try_open(&found, superblock, options, budget, unnamed) {
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
    unnamed: Unnamed,
) -> Result<FsContext> {
    let ignores_checksums = options.rescue.ignores_metadata_checksums;
    let tree = ChunkTree::read(found, &superblock, budget, ignores_checksums)?;
    let mut members = found.members(&tree.devices)?;
    let stray = match unnamed {
        Unnamed::Kept => found.unnamed(&tree.devices),
        Unnamed::LeftOut => Vec::new(),
    };
    // As many items as there are such devices may be theirs.
    if members.missing().count() > stray.len() {
        refuse_missing(&members, options)?;
    }
    for member in stray {
        members.add_unlisted(member);
    }
    let name = chunks::name(&superblock);
    let store = ChunkStore::new(name, ChunkMap::new(tree.chunks)?, members);
    let seeds = seeds_of(&tree.devices, superblock.metadata_uuid);
    let format = chunks::format(&superblock, &seeds)?;
    let blocks = TreeBlocks::new(Arc::new(store), format, Arc::clone(budget))
        .ignoring_checksums(ignores_checksums);
    let leniency = Leniency {
        ignores_data_checksums: options.rescue.ignores_data_checksums,
        ignores_bad_roots: options.rescue.ignores_bad_roots,
        never_writes: options.rescue.is_read_only(),
    };
    let mut context = FsContext::new(superblock, blocks, leniency);
    // Reads the root of the root tree, by which others are found.
    context.required_tree(TreeId::FS)?;
    for id in [TreeId::EXTENT, TreeId::DEV, TreeId::CSUM] {
        match read_root(&context, id) {
            Err(_) if leniency.ignores_bad_roots => {
                // Without the tree nothing can be verified.
                let is_csum = id == TreeId::CSUM;
                context.leniency.ignores_data_checksums |= is_csum;
            }
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

/// Reads the root of a tree that every filesystem has, and no more of it, as Linux does.
fn read_root(context: &FsContext, id: TreeId) -> Result<()> {
    let tree = context.required_tree(id)?;
    context.blocks.read_root(tree).map(drop)
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
    let reason = "give all devices, or the option degraded";
    let feature = format!("mounting without {}", missing.join(", "));
    Err(unsupported(feature, Some(reason)))
}
