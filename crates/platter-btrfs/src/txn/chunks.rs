//! Allocation of chunks: stripes on the devices, and the items that describe them.
//!
//! A chunk is wanted in the middle of a change, with a tree locked. It is added in memory then, and its items are
//! inserted before a reference to something in it is run, when no tree is locked.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, Result};
use zerocopy::IntoBytes;

use super::placing::Placing;
use super::{CHUNK_PARTS, WriteContext, trees};
use crate::block_group::{BlockGroup, Ranges};
use crate::chunk::{ChunkMap, Member};
use crate::context::TreesRule;
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::chunk_item::{
    BlockGroupFlags, ChunkItem, DiskChunk, DiskStripe, Profile, STRIPE_BYTES, Stripe,
};
use crate::ondisk::dev_extent::DevExtent;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::features::Incompat;
use crate::ondisk::free_space::{FreeSpaceFlags, FreeSpaceInfo};
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::ITEM_BYTES;
use crate::ondisk::leaf_edit;
use crate::ondisk::superblock::{SYS_CHUNK_STRIPES_MAX, fit_sys_chunk_array};
use crate::ondisk::tree_block::Expected;
use crate::ondisk::types::{CHUNK_OBJECT, DEV_ITEMS_OBJECT};
use crate::ondisk::{DeviceAddr, DeviceId, Generation, Key, LogicalAddr, Superblock, TreeId};

/// What the beginning of each device is left free for.
const RESERVED_OF_DEVICE_BYTES: u64 = 1 << 20;
/// What lengths of stripes are rounded up to where the chunk is limited.
const STRIPE_ROUND_BYTES: u64 = 16 << 20;
/// The same where chunks are to be small.
const STRIPE_ROUND_SMALL_BYTES: u64 = 1 << 20;
/// The longest stripe.
const STRIPE_BYTES_MAX: u64 = 1 << 30;
/// From this size of all devices on, chunks of metadata are larger.
const LARGE_BYTES: u64 = 50 << 30;

/// Profiles in the order in which one is chosen of several that a type has.
const PREFERRED: [Profile; 8] = [
    Profile::Raid1C4,
    Profile::Raid6,
    Profile::Raid1C3,
    Profile::Raid5,
    Profile::Raid10,
    Profile::Raid1,
    Profile::Dup,
    Profile::Raid0,
];

/// Chunks that were allocated.
#[derive(Debug)]
pub(super) struct ChunkAllocator {
    /// Held to allocate a chunk.
    pub(super) turn: Mutex<(), { rank(9, 2) }>,
    /// Chunks whose items are not inserted yet.
    pub(super) pending: Mutex<Vec<ChunkItem>, { rank(9, 3) }>,
    /// Held while the items of pending chunks are inserted; taken with no tree locked.
    creating: Mutex<(), { rank(8, 0) }>,
    /// Those that are pending or being inserted.
    uncreated: AtomicUsize,
    /// The chunks of the chunk tree.
    system: Mutex<SystemChunks>,
    /// Chunks that the last commit has, and that were removed since.
    pub(super) removed: Mutex<RemovedChunks, { rank(9, 6) }>,
    /// Where chunks are placed.
    pub(super) placing: Mutex<Placing>,
    /// Devices that were removed: nothing is written to them.
    pub(super) removed_devices: Mutex<Vec<DeviceId>>,
    /// No new chunk begins below it: the addresses of removed ones are not used again.
    end: AtomicU64,
}

/// Chunks that are not in the map, and whose stripes stay as they are: those that were removed, until that is durable.
#[derive(Debug, Default)]
pub(super) struct RemovedChunks {
    /// By the running transaction.
    running: Vec<ChunkItem>,
    /// By one that is closed.
    closed: Vec<ChunkItem>,
    /// Former and future stripes of a chunk that is being moved.
    moving: Vec<ChunkItem>,
}

impl RemovedChunks {
    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ChunkItem> {
        let removed = self.running.iter().chain(&self.closed);
        removed.chain(&self.moving)
    }
}

impl ChunkAllocator {
    pub(super) fn new(superblock: &Superblock) -> Self {
        Self {
            turn: Mutex::default(),
            pending: Mutex::default(),
            creating: Mutex::default(),
            uncreated: AtomicUsize::new(0),
            system: Mutex::new(SystemChunks {
                listed: superblock.sys_chunks.clone(),
                added: Vec::new(),
            }),
            removed: Mutex::default(),
            placing: Mutex::default(),
            removed_devices: Mutex::default(),
            end: AtomicU64::new(0),
        }
    }

    /// Whether chunks were added whose items are not inserted.
    pub(super) fn has_uncreated(&self) -> bool {
        self.uncreated.load(Ordering::Acquire) > 0
    }

    /// Says that the running transaction is closed.
    pub(super) fn close(&self) {
        let removed = &mut *self.removed.lock();
        removed.closed.append(&mut removed.running);
    }

    /// Says that the closed transaction is durable.
    pub(super) fn set_committed(&self) {
        self.removed.lock().closed.clear();
    }

    /// Lets no chunk be placed where this one has stripes.
    pub(super) fn keep_stripes(&self, chunk: &ChunkItem) {
        self.removed.lock().moving.push(chunk.clone());
    }

    /// Lets chunks be placed again where those have stripes that were kept.
    pub(super) fn release_stripes(&self) {
        self.removed.lock().moving.clear();
    }

    /// Replaces a chunk of the chunk tree.
    ///
    /// # Errors
    /// `ENOSPC` if the superblock has no space for its stripes.
    pub(super) fn replace_system(&self, chunk: &ChunkItem) -> Result<()> {
        let mut system = self.system.lock();
        let mut changed = system.listed.clone();
        for known in changed.iter_mut().filter(|it| it.start == chunk.start) {
            *known = chunk.clone();
        }
        let all = [&changed[..], &system.added].concat();
        if !fit_sys_chunk_array(&all) {
            return Err(Condition::NoSpace.into());
        }
        system.listed = changed;
        Ok(())
    }

    /// The chunks of the chunk tree that have their items, which the superblock lists.
    pub(super) fn system(&self) -> Vec<ChunkItem> {
        self.system.lock().listed.clone()
    }
}

/// Chunks of the chunk tree.
///
/// # Invariants
/// - The superblock has space for all of them.
#[derive(Debug)]
struct SystemChunks {
    /// Those that the superblock of the running transaction lists.
    listed: Vec<ChunkItem>,
    /// Those whose items are not inserted yet. A commit may come before that.
    added: Vec<ChunkItem>,
}

impl SystemChunks {
    /// Adds a chunk without items. Returns `false` if the superblock has no space for it.
    fn add(&mut self, chunk: &ChunkItem) -> bool {
        let all = [&self.listed[..], &self.added, slice::from_ref(chunk)].concat();
        let fits = fit_sys_chunk_array(&all);
        if fits {
            self.added.push(chunk.clone());
        }
        fits
    }

    /// Removes a chunk without items.
    fn remove_added(&mut self, start: LogicalAddr) {
        self.added.retain(|chunk| chunk.start != start);
    }

    /// Adds a chunk that has its items to those that the superblock lists.
    fn list(&mut self, chunk: &ChunkItem) {
        self.remove_added(chunk.start);
        self.listed.push(chunk.clone());
    }
}

/// The end of what chunks that are placed may use of a device.
pub(super) fn limit_of(member: &Member, placing: &Placing) -> u64 {
    let limits = placing.limits.iter().filter(|(id, _)| *id == member.id);
    let least = limits.map(|(_, limit)| *limit).min();
    let total_bytes = member.total_bytes.unwrap_or_default();
    total_bytes.min(least.unwrap_or(u64::MAX))
}

/// How the stripes of a chunk are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    profile: Profile,
    /// Stripes on each device.
    pub(crate) on_device: usize,
    pub(crate) devices_min: usize,
    pub(crate) devices_max: usize,
    /// The number of devices is a multiple of this.
    pub(crate) step: usize,
}

impl Shape {
    pub(crate) fn of(profile: Profile) -> Self {
        let (on_device, devices_min, devices_max, step) = match profile {
            Profile::Single => (1, 1, 1, 1),
            Profile::Dup => (2, 1, 1, 1),
            Profile::Raid0 => (1, 1, usize::MAX, 1),
            Profile::Raid1 => (1, 2, 2, 2),
            Profile::Raid1C3 => (1, 3, 3, 3),
            Profile::Raid1C4 => (1, 4, 4, 4),
            Profile::Raid10 => (1, 2, usize::MAX, 2),
            Profile::Raid5 => (1, 2, usize::MAX, 1),
            Profile::Raid6 => (1, 3, usize::MAX, 1),
        };
        Self {
            profile,
            on_device,
            devices_min,
            devices_max,
            step,
        }
    }

    /// The most devices of a chunk of this type: its item fits into a tree block, and that of a system chunk into the
    /// superblock.
    pub(crate) fn devices_max_of(&self, kind: BlockGroupFlags, node_bytes: u32) -> usize {
        let item_bytes = leaf_edit::capacity(node_bytes).saturating_sub(ITEM_BYTES);
        let item_bytes = item_bytes.saturating_sub(size_of::<DiskChunk>());
        let mut stripes = item_bytes / size_of::<DiskStripe>();
        if kind.contains(BlockGroupFlags::SYSTEM) {
            stripes = stripes.min(SYS_CHUNK_STRIPES_MAX);
        }
        self.devices_max.min(stripes / self.on_device.max(1))
    }
}

/// The longest free piece of a device, up to what a chunk takes of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole<'m> {
    pub(super) member: &'m Member,
    pub(super) start: u64,
    pub(super) len_bytes: u64,
    /// All that is free on the device.
    pub(super) free_bytes: u64,
}

/// The ranges of a device of `total` bytes that neither a chunk uses nor one of `removed`.
pub(super) fn free_of(
    map: &ChunkMap,
    removed: &RemovedChunks,
    member: &Member,
    total: u64,
) -> Ranges {
    let mut free = Ranges::default();
    if total > RESERVED_OF_DEVICE_BYTES {
        free.add(RESERVED_OF_DEVICE_BYTES..total);
    }
    for chunk in map.iter().chain(removed.iter()) {
        let len_bytes = chunk.stripe_len_bytes();
        for stripe in chunk.stripes.iter().filter(|it| it.device == member.id) {
            free.exclude(&(stripe.offset.0..stripe.offset.0.saturating_add(len_bytes)));
        }
    }
    free
}

/// The ranges of a device, up to `total`, that no chunk uses, nor one of the last commit.
pub(super) fn free_of_device(fs: &WriteContext, member: &Member, total: u64) -> Ranges {
    let map = fs.blocks().store().map();
    free_of(&map, &fs.chunks.removed.lock(), member, total)
}

pub(super) fn hole<'m>(free: &Ranges, member: &'m Member, most: u64) -> Option<Hole<'m>> {
    let aligned = |range: std::ops::Range<u64>| {
        let start = range.start.next_multiple_of(STRIPE_BYTES);
        (start, range.end.saturating_sub(start))
    };
    let holes = || free.iter().map(aligned);
    let found = holes().find(|(_, len_bytes)| *len_bytes >= most);
    let (start, len_bytes) = found.or_else(|| holes().max_by_key(|(_, len)| *len))?;
    Some(Hole {
        member,
        start,
        len_bytes: len_bytes.min(most),
        free_bytes: free.len_bytes(),
    })
}

/// The most bytes of a stripe and of a chunk, on devices of `total` bytes.
fn limits(kind: BlockGroupFlags, total: u64, parts: u64) -> (u64, u64) {
    let most = if kind.contains(BlockGroupFlags::DATA) {
        10 << 30
    } else if kind.contains(BlockGroupFlags::SYSTEM) {
        32 << 20
    } else if total > LARGE_BYTES {
        1 << 30
    } else {
        256 << 20
    };
    (most.min(STRIPE_BYTES_MAX), most.min(total / parts.max(1)))
}

/// Allocates space of a type, in a new chunk if that is needed.
///
/// # Errors
/// `ENOSPC`.
pub(super) fn allocate_space(
    fs: &WriteContext,
    kind: BlockGroupFlags,
    len_bytes: u64,
    align: u64,
) -> Result<LogicalAddr> {
    let read = |group: &BlockGroup| trees::read_free_space(fs, group);
    let allocate = || fs.groups.allocate(kind, len_bytes, align, &read);
    let is_full = |error: &Error| matches!(error, Error::Condition(Condition::NoSpace));
    match allocate() {
        Err(error) if is_full(&error) => {}
        found => return found,
    }
    let _turn = fs.chunks.turn.lock();
    loop {
        // Another thread may have added one, or what was added is too short.
        match allocate() {
            Err(error) if is_full(&error) => {}
            found => return found,
        }
        if !add_chunk(fs, kind)? {
            return Err(Condition::NoSpace.into());
        }
    }
}

/// Adds a chunk for a type, unless others did since `free_before` bytes were free. Returns whether there is
/// more space.
pub(crate) fn grow_space(
    fs: &WriteContext,
    kind: BlockGroupFlags,
    free_before: u64,
) -> Result<bool> {
    let _turn = fs.chunks.turn.lock();
    Ok(fs.groups.free_bytes(kind) > free_before || add_chunk(fs, kind)?)
}

/// The flags of a new chunk: the types that groups have together, and the profile that they have.
fn flags_of_new(fs: &WriteContext, kind: BlockGroupFlags) -> BlockGroupFlags {
    let groups = fs.groups.iter().filter(|group| group.holds(kind));
    let all = groups.fold(kind, |all, group| all | group.flags());
    let members = fs.blocks().store().members();
    let count = members.iter().filter(|it| it.device.is_some()).count();
    let is_possible = |profile: &&Profile| {
        all.contains(profile.flags()) && Shape::of(**profile).devices_min <= count
    };
    let target = fs.chunks.placing.lock().profile_of(kind);
    let profile = target.or_else(|| PREFERRED.iter().find(is_possible).copied());
    all.intersection(BlockGroupFlags::TYPES)
        | profile.map_or(BlockGroupFlags::empty(), Profile::flags)
}

/// Adds a chunk in memory. Returns `false` if the devices have no space for one.
fn add_chunk(fs: &WriteContext, kind: BlockGroupFlags) -> Result<bool> {
    let flags = flags_of_new(fs, kind);
    let store = fs.blocks().store();
    let map = store.map();
    let Some(chunk) = plan_chunk(fs, &map, flags) else {
        return Ok(false);
    };
    if flags.contains(BlockGroupFlags::SYSTEM) && !fs.chunks.system.lock().add(&chunk) {
        return Ok(false);
    }
    // A thread that runs references waits for its items from here on, and inserts them when it is in the map
    // and in the groups.
    fs.chunks.uncreated.fetch_add(1, Ordering::AcqRel);
    if let Err(error) = store.add_chunk(chunk.clone()) {
        fs.chunks.uncreated.fetch_sub(1, Ordering::AcqRel);
        fs.chunks.system.lock().remove_added(chunk.start);
        return Err(error.into());
    }
    let item = BlockGroupItem {
        start: chunk.start,
        len_bytes: chunk.len_bytes,
        used_bytes: 0,
        chunk_object: CHUNK_OBJECT,
        flags,
    };
    let superblocks = chunk.superblock_ranges();
    fs.groups.add(BlockGroup::empty(item, superblocks));
    fs.chunks.pending.lock().push(chunk);
    Ok(true)
}

/// A new chunk after all others. `None` if the devices have no space for one.
fn plan_chunk(fs: &WriteContext, map: &ChunkMap, flags: BlockGroupFlags) -> Option<ChunkItem> {
    let profile = Profile::of(flags)?;
    let shape = Shape::of(profile);
    let members = fs.blocks().store().members();
    let sizes = members.iter().map(|member| member.total_bytes.unwrap_or(0));
    let placing = fs.chunks.placing.lock().clone();
    let total = sizes.fold(0, u64::saturating_add);
    let (stripe_max, chunk_max) = limits(flags, total, fs.options.chunk_parts);
    let chunk_max = placing.bytes_max.unwrap_or(u64::MAX).min(chunk_max);
    let on_device = shape.on_device as u64;
    let most = stripe_max * on_device;
    let removed = fs.chunks.removed.lock();
    let present = members
        .iter()
        .filter(|member| member.device.is_some() && !placing.without.contains(&member.id));
    let holes = present.filter_map(|member| {
        let free = free_of(map, &removed, member, limit_of(member, &placing));
        hole(&free, member, most)
    });
    let mut holes: Vec<_> = holes
        .filter(|hole| hole.len_bytes >= STRIPE_BYTES * on_device)
        .collect();
    holes.sort_by_key(|hole| Reverse((hole.len_bytes, hole.free_bytes)));
    let node_bytes = fs.context.superblock.node_bytes;
    let count = holes.len().min(shape.devices_max_of(flags, node_bytes));
    let count = count - count % shape.step;
    if count < shape.devices_min {
        return None;
    }
    holes.truncate(count);
    let stripes = count * shape.on_device;
    let data = stripes.saturating_sub(profile.parity().into()) / usize::from(profile.copies());
    let data = data.max(1) as u64;
    let available = holes.last()?.len_bytes / on_device;
    let mut stripe_bytes = available;
    if stripe_bytes.saturating_mul(data) > chunk_max {
        let round_bytes = if fs.options.chunk_parts > CHUNK_PARTS {
            STRIPE_ROUND_SMALL_BYTES
        } else {
            STRIPE_ROUND_BYTES
        };
        let limited = (chunk_max / data).next_multiple_of(round_bytes);
        stripe_bytes = limited.min(available);
    }
    stripe_bytes -= stripe_bytes % STRIPE_BYTES;
    let stripe = |hole: &Hole<'_>, number: u64| Stripe {
        device: hole.member.id,
        offset: DeviceAddr(hole.start + number * stripe_bytes),
        device_uuid: hole.member.uuid,
    };
    let stripes = holes
        .iter()
        .flat_map(|hole| (0..on_device).map(move |number| stripe(hole, number)));
    let io_bytes = u32::try_from(STRIPE_BYTES).ok()?;
    Some(ChunkItem {
        start: map
            .end()
            .max(LogicalAddr(fs.chunks.end.load(Ordering::Acquire))),
        len_bytes: stripe_bytes * data,
        owner: TreeId::EXTENT.0,
        flags,
        profile,
        io: (io_bytes, io_bytes),
        sector_bytes: fs.context.superblock.sector_bytes,
        sub_stripes: if profile == Profile::Raid10 { 2 } else { 1 },
        stripes: stripes.collect(),
    })
}

/// Bytes of a device that chunks use.
pub(super) fn allocated_bytes(fs: &WriteContext, device: DeviceId) -> u64 {
    let map = fs.blocks().store().map();
    let stripes = map.iter().flat_map(|chunk| {
        let own = chunk.stripes.iter().filter(|it| it.device == device);
        own.map(|_| chunk.stripe_len_bytes())
    });
    stripes.fold(0, u64::saturating_add)
}

/// Inserts the items of chunks that were added. The caller has no tree locked. An error is to abort the
/// transaction.
pub(super) fn create_pending(fs: &WriteContext, generation: Generation) -> Result<()> {
    while fs.chunks.has_uncreated() {
        let _creating = fs.chunks.creating.lock();
        let Some(chunk) = fs.chunks.pending.lock().pop() else {
            continue;
        };
        let created = create_group(fs, generation, &chunk);
        fs.chunks.uncreated.fetch_sub(1, Ordering::AcqRel);
        created?;
    }
    Ok(())
}

fn create_group(fs: &WriteContext, generation: Generation, chunk: &ChunkItem) -> Result<()> {
    fs.logs.require_commit(generation);
    let chunk_key = Key::new(CHUNK_OBJECT, ItemKind::CHUNK_ITEM, chunk.start.0);
    fs.edit(generation, TreeId::CHUNK, |editor| {
        editor.insert(chunk_key, &chunk.encode())
    })?;
    demand_features(fs, chunk.profile);
    if chunk.flags.contains(BlockGroupFlags::SYSTEM) {
        fs.chunks.system.lock().list(chunk);
    }
    update_devices(fs, generation, chunk)?;
    insert_device_extents(fs, generation, chunk, &chunk.stripes)?;
    let (start, len_bytes) = (chunk.start.0, chunk.len_bytes);
    if trees::has_free_space_tree(fs) {
        let info = FreeSpaceInfo {
            extent_count: 1,
            flags: FreeSpaceFlags::empty(),
        };
        let key = |kind| Key::new(start, kind, len_bytes);
        fs.edit(generation, TreeId::FREE_SPACE, |editor| {
            let disk = info.encode();
            editor.insert(key(ItemKind::FREE_SPACE_INFO), disk.as_bytes())?;
            editor.insert(key(ItemKind::FREE_SPACE_EXTENT), &[])
        })?;
    }
    fs.groups.mark_dirty(&*fs.groups.find(chunk.start, 1)?);
    Ok(())
}

/// Adds the features that chunks of a profile need to the superblock of the running transaction.
pub(super) fn demand_features(fs: &WriteContext, profile: Profile) {
    let feature = match profile {
        Profile::Raid5 | Profile::Raid6 => Incompat::RAID56,
        Profile::Raid1C3 | Profile::Raid1C4 => Incompat::RAID1C34,
        Profile::Single | Profile::Dup | Profile::Raid0 | Profile::Raid1 | Profile::Raid10 => {
            return;
        }
    };
    fs.features.lock().incompat |= feature;
}

/// Inserts the items of stripes of a chunk.
pub(super) fn insert_device_extents(
    fs: &WriteContext,
    generation: Generation,
    chunk: &ChunkItem,
    stripes: &[Stripe],
) -> Result<()> {
    let extent = DevExtent {
        device: DeviceId(0),
        start: DeviceAddr(0),
        len_bytes: chunk.stripe_len_bytes(),
        chunk: chunk.start,
        chunk_tree: TreeId::CHUNK.0,
        chunk_object: CHUNK_OBJECT,
        chunk_tree_uuid: chunk_tree_uuid(fs)?,
    };
    for stripe in stripes {
        let key = Key::new(stripe.device.0, ItemKind::DEV_EXTENT, stripe.offset.0);
        fs.edit(generation, TreeId::DEV, |editor| {
            editor.insert(key, extent.encode().as_bytes())
        })?;
    }
    Ok(())
}

/// Removes a chunk in memory, whose items were removed. Its space on the devices is used again when that is
/// durable.
pub(super) fn remove_chunk(fs: &WriteContext, chunk: &ChunkItem) {
    fs.chunks.removed.lock().running.push(chunk.clone());
    let end = chunk.start.0.saturating_add(chunk.len_bytes);
    fs.chunks.end.fetch_max(end, Ordering::AcqRel);
    fs.blocks().store().remove_chunk(chunk.start);
}

/// Brings the items of a chunk's devices up to date.
pub(super) fn update_devices(
    fs: &WriteContext,
    generation: Generation,
    chunk: &ChunkItem,
) -> Result<()> {
    let devices: BTreeSet<DeviceId> = chunk.stripes.iter().map(|it| it.device).collect();
    devices
        .into_iter()
        .try_for_each(|device| update_device(fs, generation, device))
}

/// Brings the item of a device up to date.
fn update_device(fs: &WriteContext, generation: Generation, device: DeviceId) -> Result<()> {
    if update_device_if_there(fs, generation, device)? {
        return Ok(());
    }
    let locus = Locus::tree(TreeId::CHUNK.0);
    Err(Corrupt::new(locus, TreesRule::MissingTree).into())
}

/// Brings the item of a device up to date. Returns `false` if there is none: the device is being removed.
pub(super) fn update_device_if_there(
    fs: &WriteContext,
    generation: Generation,
    device: DeviceId,
) -> Result<bool> {
    let key = device_key(device);
    fs.edit(generation, TreeId::CHUNK, |editor| {
        let locus = editor.tree().locus(key);
        let Some(data) = editor.get(key)? else {
            return Ok(false);
        };
        let item = DevItem {
            bytes_used: allocated_bytes(fs, device),
            ..DevItem::decode(key, &data, locus)?
        };
        editor.set(key, item.encode().as_bytes())?;
        Ok(true)
    })
}

fn device_key(device: DeviceId) -> Key {
    Key::new(DEV_ITEMS_OBJECT, ItemKind::DEV_ITEM, device.0)
}

/// The UUID of the chunk tree, which all tree blocks have.
fn chunk_tree_uuid(fs: &WriteContext) -> Result<platter_ondisk::Uuid> {
    let root = fs.tree(TreeId::CHUNK)?.lock().now.tree.root.logical;
    let block = fs.blocks().read(root, &Expected::default())?;
    let missing = || Corrupt::new(Locus::tree(TreeId::CHUNK.0), TreesRule::MissingTree);
    Ok(block.header().ok_or_else(missing)?.chunk_tree_uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_of_a_chunk_fit_into_its_item() {
        let most = |profile, kind, node_bytes| Shape::of(profile).devices_max_of(kind, node_bytes);
        let (data, system) = (BlockGroupFlags::DATA, BlockGroupFlags::SYSTEM);
        assert_eq!(most(Profile::Raid0, system, 16384), 58);
        assert_eq!(most(Profile::Raid0, data, 16384), 506);
        assert_eq!(most(Profile::Raid6, data, 4096), 122);
        assert_eq!(most(Profile::Raid1, system, 4096), 2);
    }

    #[test]
    fn chunks_are_limited_by_type_and_devices() {
        let gib = 1 << 30;
        assert_eq!(
            limits(BlockGroupFlags::DATA, 1000 * gib, CHUNK_PARTS),
            (gib, 10 * gib)
        );
        assert_eq!(
            limits(BlockGroupFlags::DATA, 10 * gib, CHUNK_PARTS),
            (gib, gib)
        );
        let large = limits(BlockGroupFlags::METADATA, 60 * gib, CHUNK_PARTS);
        assert_eq!(large, (gib, gib));
        let small = limits(BlockGroupFlags::METADATA, 40 * gib, CHUNK_PARTS);
        assert_eq!(small, (256 << 20, 256 << 20));
        let system = limits(BlockGroupFlags::SYSTEM, 40 * gib, CHUNK_PARTS);
        assert_eq!(system, (32 << 20, 32 << 20));
    }
}
