//! Space as `statfs(2)` reports it.

use platter_vfs::{Result, StatFs};

use crate::context::FsContext;
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem};
use crate::ondisk::features::CompatRo;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, TreeId};
use crate::ops::SuperBlock;

/// `BTRFS_SUPER_MAGIC`. Spec: `linux/magic.h`.
const MAGIC: u32 = 0x9123_683e;

/// Length and use of all block groups with the same flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) flags: BlockGroupFlags,
    /// How many copies each byte takes, but for parity.
    pub(super) copies: u64,
    pub(super) total_bytes: u64,
    pub(super) used_bytes: u64,
    /// Bytes on devices.
    pub(super) device_bytes: u64,
}

/// What the block groups of each kind and profile hold, in the order of their first one.
pub(super) fn usage(context: &FsContext) -> Result<Vec<Usage>> {
    let compat_ro = context.superblock.features.compat_ro;
    let id = if compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    };
    let tree = context.required_tree(id)?;
    let mut all: Vec<Usage> = Vec::new();
    for chunk in context.blocks.store().map().iter() {
        let key = Key::new(chunk.start.0, ItemKind::BLOCK_GROUP_ITEM, chunk.len_bytes);
        let group = context.find(tree, key, |data| {
            Ok(BlockGroupItem::decode(key, data, tree.locus(key))?)
        })?;
        let used_bytes = group.map_or(0, |group| group.used_bytes);
        add(&mut all, chunk, used_bytes);
    }
    Ok(all)
}

fn add(all: &mut Vec<Usage>, chunk: &ChunkItem, used_bytes: u64) {
    let stripes = chunk.stripes.len() as u64;
    let device_bytes = chunk.stripe_len_bytes().saturating_mul(stripes);
    if let Some(usage) = all.iter_mut().find(|usage| usage.flags == chunk.flags) {
        usage.total_bytes = usage.total_bytes.saturating_add(chunk.len_bytes);
        usage.used_bytes = usage.used_bytes.saturating_add(used_bytes);
        usage.device_bytes = usage.device_bytes.saturating_add(device_bytes);
        return;
    }
    all.push(Usage {
        flags: chunk.flags,
        copies: chunk.profile.copies().into(),
        total_bytes: chunk.len_bytes,
        used_bytes,
        device_bytes,
    });
}

/// Space of the filesystem. What is not in a block group yet counts as data of the profile that data
/// has.
pub(super) fn stat_fs(fs: &SuperBlock) -> Result<StatFs> {
    let context = &fs.context;
    let superblock = &context.superblock;
    let usage = usage(context)?;
    let is_data = |usage: &&Usage| usage.flags.contains(BlockGroupFlags::DATA);
    let copies = usage.iter().find(is_data).map_or(1, |usage| usage.copies);
    let on_devices = |bytes: u64, usage: &Usage| bytes.saturating_mul(usage.copies);
    let used = usage
        .iter()
        .map(|usage| on_devices(usage.used_bytes, usage))
        .fold(0, u64::saturating_add);
    let in_groups = usage
        .iter()
        .map(|usage| usage.device_bytes)
        .fold(0, u64::saturating_add);
    let data_free = usage
        .iter()
        .filter(is_data)
        .map(|usage| usage.total_bytes.saturating_sub(usage.used_bytes))
        .fold(0, u64::saturating_add);
    let unallocated = superblock.total_bytes.saturating_sub(in_groups) / copies;
    let block = u64::from(superblock.sector_bytes);
    let blocks = superblock.total_bytes / copies / block;
    Ok(StatFs {
        block_bytes: superblock.sector_bytes,
        blocks,
        blocks_free: blocks.saturating_sub(used / copies / block),
        blocks_available: data_free.saturating_add(unallocated) / block,
        inodes: 0,
        inodes_free: 0,
        name_len_max: 255,
        id: identity(fs),
        magic: MAGIC,
    })
}

/// The UUID folded, and the subvolume that is the root.
fn identity(fs: &SuperBlock) -> u64 {
    let (high, low) = fs.context.superblock.fsid.as_u64_pair();
    let folded = high ^ low;
    let subvolume = fs.root().tree;
    let first = u32::try_from(folded >> 32).unwrap_or_default();
    let second = u32::try_from(folded & 0xffff_ffff).unwrap_or_default();
    let first = first ^ u32::try_from(subvolume >> 32).unwrap_or_default();
    let second = second ^ u32::try_from(subvolume & 0xffff_ffff).unwrap_or_default();
    u64::from(second) << 32 | u64::from(first)
}
