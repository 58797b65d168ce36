//! Space as `statfs(2)` reports it.

use platter_vfs::{Result, StatFs};

use crate::context::FsContext;
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem, Profile, STRIPE_BYTES};
use crate::ondisk::features::CompatRo;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, TreeId};
use crate::ops::SuperBlock;
use crate::tree::Tree;
use crate::txn::WriteContext;

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

/// What the block groups of each kind and profile hold, in the order of their first one. Where the tree
/// of block groups cannot be read and that is ignored, what it does not say counts as full, as in the kernel.
pub(super) fn usage(fs: &SuperBlock) -> Result<Vec<Usage>> {
    let context = fs.context();
    let mut all: Vec<Usage> = Vec::new();
    if let Some(writing) = fs.writing() {
        // Items may be on their way from one tree to another.
        for chunk in context.blocks.store().map().iter() {
            // A chunk that is being added, or removed, has no group.
            let group = writing.groups().find(chunk.start, chunk.len_bytes);
            let used_bytes = group.map_or(0, |group| group.space().used);
            add(&mut all, chunk, used_bytes);
        }
        return Ok(all);
    }
    let mut tree = match group_tree(fs) {
        Err(_) if context.leniency.ignores_bad_roots => None,
        tree => Some(tree?),
    };
    for chunk in context.blocks.store().map().iter() {
        let used_bytes = match tree {
            Some(groups) => match used_bytes(context, groups, chunk) {
                Err(_) if context.leniency.ignores_bad_roots => {
                    tree = None;
                    chunk.len_bytes
                }
                used_bytes => used_bytes?,
            },
            None => chunk.len_bytes,
        };
        add(&mut all, chunk, used_bytes);
    }
    Ok(all)
}

/// The tree that has the block group items. Its root is read.
fn group_tree(fs: &SuperBlock) -> Result<Tree> {
    let (context, compat_ro) = (fs.context(), fs.features().compat_ro);
    let id = if compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    };
    let tree = context.required_tree(id)?;
    context.cursor(tree).seek(Key::MIN)?;
    Ok(tree)
}

fn used_bytes(context: &FsContext, tree: Tree, chunk: &ChunkItem) -> Result<u64> {
    let key = Key::new(chunk.start.0, ItemKind::BLOCK_GROUP_ITEM, chunk.len_bytes);
    let group = context.find(tree, key, |data| {
        Ok(BlockGroupItem::decode(key, data, tree.locus(key))?)
    })?;
    Ok(group.map_or(0, |group| group.used_bytes))
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

/// Space of the filesystem, as the kernel estimates it: in bytes of files with the profile that data has.
pub(super) fn stat_fs(fs: &SuperBlock) -> Result<StatFs> {
    let context = fs.context();
    let superblock = &context.superblock;
    let usage = usage(fs)?;
    let is_data = |usage: &&Usage| usage.flags.contains(BlockGroupFlags::DATA);
    let copies = usage.iter().filter(is_data).map(|usage| usage.copies).max();
    let copies = copies.unwrap_or(1);
    let sum = |bytes: &dyn Fn(&Usage) -> u64| usage.iter().map(bytes).fold(0, u64::saturating_add);
    let used = sum(&|usage| usage.used_bytes.saturating_mul(usage.copies));
    let profile = data_profile(context, &usage);
    let data_free = sum(&|usage| {
        if !is_data(&usage) || is_passed_over(usage, profile) {
            return 0;
        }
        let free = usage.total_bytes.saturating_sub(usage.used_bytes);
        free.saturating_mul(usage.copies)
    });
    let block = u64::from(superblock.sector_bytes);
    // Devices may have come, gone, or changed their lengths since the mount.
    let now = fs.writing().map(WriteContext::superblock);
    let total_bytes = now.map_or(superblock.total_bytes, |now| now.total_bytes);
    let blocks = total_bytes / copies / block;
    let free = blocks.saturating_sub(used / copies / block);
    let reserved = reserved_bytes(fs)?;
    let unallocated = unallocated_bytes(context, profile) / copies;
    Ok(StatFs {
        block_bytes: superblock.sector_bytes,
        blocks,
        blocks_free: free.saturating_sub(reserved / block),
        blocks_available: (data_free / copies).saturating_add(unallocated) / block,
        inodes: 0,
        inodes_free: 0,
        name_len_max: 255,
        id: identity(fs),
        magic: MAGIC,
    })
}

/// Items that one change may insert: a tree of all levels is copied and split for each.
const LEVELS_OF_AN_ITEM: u64 = 16;
/// Items that the kernel reserves space for, for `unlink` in a full filesystem.
const ITEMS_OF_UNLINK: u64 = 6;
/// The most that it reserves.
const RESERVED_BYTES_MAX: u64 = 512 << 20;

/// What the kernel reserves for its own metadata (`GlobalReserve`): the size of the trees that every
/// transaction changes, and at least what an `unlink` needs.
pub(super) fn reserved_bytes(fs: &SuperBlock) -> Result<u64> {
    let context = fs.context();
    if context.leniency.never_writes {
        return Ok(0);
    }
    let features = fs.features().compat_ro;
    let has_space_tree = features.contains(CompatRo::FREE_SPACE_TREE);
    let mut trees = vec![TreeId::EXTENT, TreeId::CSUM];
    trees.extend(has_space_tree.then_some(TreeId::FREE_SPACE));
    let has_group_tree = features.contains(CompatRo::BLOCK_GROUP_TREE);
    trees.extend(has_group_tree.then_some(TreeId::BLOCK_GROUP));
    let mut tree_bytes = 0u64;
    for id in &trees {
        let item = context.root_item(*id)?;
        tree_bytes = tree_bytes.saturating_add(item.map_or(0, |item| item.bytes_used));
    }
    // The root tree, and these; deferred references may change the free space tree, too.
    let items = 1 + trees.len() as u64 + ITEMS_OF_UNLINK;
    let deferred = ITEMS_OF_UNLINK * if has_space_tree { 2 } else { 1 };
    let item_bytes = u64::from(context.superblock.node_bytes) * LEVELS_OF_AN_ITEM;
    let least = (items + deferred) * item_bytes;
    Ok(tree_bytes.max(least).min(RESERVED_BYTES_MAX))
}

/// Profiles by the order in which the kernel prefers one, where data has groups of several.
const PREFERRED: [Profile; 8] = [
    Profile::Raid6,
    Profile::Raid5,
    Profile::Raid1C4,
    Profile::Raid1C3,
    Profile::Raid10,
    Profile::Raid1,
    Profile::Dup,
    Profile::Raid0,
];

/// The profile of new data chunks: one that data has, and that the devices that are present allow.
fn data_profile(context: &FsContext, usage: &[Usage]) -> Profile {
    let members = context.blocks.store().members();
    let present = members.iter().filter(|it| it.device.is_some()).count();
    let has = |profile: &Profile| {
        let of_data = |usage: &&Usage| usage.flags.contains(BlockGroupFlags::DATA);
        let mut of_data = usage.iter().filter(of_data);
        of_data.any(|usage| Profile::of(usage.flags) == Some(*profile))
    };
    let mut allowed = PREFERRED.into_iter();
    let found = allowed.find(|profile| has(profile) && devices_min(*profile) <= present);
    found.unwrap_or(Profile::Single)
}

/// The fewest devices that the kernel makes a chunk on.
fn devices_min(profile: Profile) -> usize {
    match profile {
        Profile::Single | Profile::Dup | Profile::Raid0 => 1,
        Profile::Raid1 | Profile::Raid10 | Profile::Raid5 => 2,
        Profile::Raid1C3 | Profile::Raid6 => 3,
        Profile::Raid1C4 => 4,
    }
}

/// Whether the kernel allocates nothing in these groups: they have one copy, and others have more.
fn is_passed_over(usage: &Usage, profile: Profile) -> bool {
    let is_redundant = !matches!(profile, Profile::Single | Profile::Raid0);
    let of = Profile::of(usage.flags);
    is_redundant && matches!(of, Some(Profile::Single | Profile::Raid0))
}

/// What the beginning of each device is left free for.
const RESERVED_OF_DEVICE_BYTES: u64 = 1 << 20;

/// How much of the space that is not allocated to chunks chunks of a profile can take, on all devices
/// together. Stripes of a chunk are equal, so the devices with the least space are used up first.
fn unallocated_bytes(context: &FsContext, profile: Profile) -> u64 {
    let on_device = if profile == Profile::Dup { 2 } else { 1 };
    let least = on_device * STRIPE_BYTES;
    let mut free = free_of_devices(context, least);
    free.sort_unstable_by_key(|&bytes| std::cmp::Reverse(bytes));
    let mut width = match profile {
        Profile::Raid0 => free.len(),
        Profile::Raid1 | Profile::Raid1C3 | Profile::Raid1C4 => usize::from(profile.copies()),
        Profile::Raid10 => 4,
        Profile::Single | Profile::Dup | Profile::Raid5 | Profile::Raid6 => 1,
    };
    let mut sum = 0u64;
    while free.len() >= devices_min(profile) {
        width = width.min(free.len());
        let (Some(bytes), true) = (free.pop(), width > 0) else {
            break;
        };
        if bytes >= least {
            sum = sum.saturating_add(bytes.saturating_mul(width as u64));
            let others = free.len().saturating_sub(width - 1)..;
            for other in free.get_mut(others).unwrap_or_default() {
                *other = other.saturating_sub(bytes);
            }
        }
    }
    sum
}

/// The unallocated bytes of each device that is present, where there are enough for a chunk.
fn free_of_devices(context: &FsContext, least: u64) -> Vec<u64> {
    let store = context.blocks.store();
    let map = store.map();
    let members = store.members();
    let present = members.iter().filter(|it| it.device.is_some());
    let free = present.map(|member| {
        let chunks = map.iter();
        let stripes = chunks.flat_map(|chunk| {
            let own = chunk
                .stripes
                .iter()
                .filter(|stripe| stripe.device == member.id);
            own.map(|_| chunk.stripe_len_bytes())
        });
        let used = stripes.fold(0, u64::saturating_add);
        let free = member.total_bytes.unwrap_or_default().saturating_sub(used);
        free - free % STRIPE_BYTES
    });
    let is_enough = |&bytes: &u64| bytes > RESERVED_OF_DEVICE_BYTES + least;
    let free = free.filter(is_enough);
    free.map(|bytes| bytes - RESERVED_OF_DEVICE_BYTES).collect()
}

/// The UUID folded, and the subvolume that is the root.
fn identity(fs: &SuperBlock) -> u64 {
    let (high, low) = fs.context().superblock.fsid.as_u64_pair();
    let folded = high ^ low;
    let subvolume = fs.root().tree;
    let first = u32::try_from(folded >> 32).unwrap_or_default();
    let second = u32::try_from(folded & 0xffff_ffff).unwrap_or_default();
    let first = first ^ u32::try_from(subvolume >> 32).unwrap_or_default();
    let second = second ^ u32::try_from(subvolume & 0xffff_ffff).unwrap_or_default();
    u64::from(second) << 32 | u64::from(first)
}
