//! Reservations of space: what was reserved is there when it is allocated, so that no change fails halfway for want
//! of space, and `ENOSPC` is returned before anything is changed.

use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_vfs::{Condition, Result};

use super::{WriteContext, chunks, delayed_inodes, quotas, trees, unused};
use crate::block_group::BlockGroup;
use crate::ondisk::TreeId;
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::features::Incompat;

/// The most that is kept for the trees that every transaction changes.
const GLOBAL_MAX_BYTES: u64 = 512 << 20;
/// Tree blocks that are kept at least: a path in each of those trees, split on all levels, and a handle that frees
/// space, which may have half of them.
const GLOBAL_MIN_BLOCKS: u64 = 192;
/// What a sector takes in trees: a file extent, an extent, a checksum and a free range, in leaves that are half full.
const DELAYED_SECTOR_BYTES: u64 = 1024;
/// What a sector takes in the tree of its file: a file extent in a leaf that is half full.
const QUOTA_SECTOR_BYTES: u64 = 160;
/// Tree blocks that limits of quota groups must leave to a file that is written, as in the kernel.
const QUOTA_SPARE_BLOCKS: u64 = 2;
/// Credits of an item that is changed. Those that limits of quota groups count: the blocks that it may copy and split
/// belong to other trees as well.
const CREDITS_OF_ITEM: u32 = 8;
/// Steps that are made to find space for one reservation: a commit, then the removal of what is unused.
const STEPS_MAX: u32 = 4;

/// A chunk for what has no space while a group is held.
const SMALL_CHUNK_BYTES: u64 = 16 << 20;

/// Space that is reserved and not allocated yet.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// For tree blocks of handles.
    metadata: AtomicU64,
    /// For data.
    data: AtomicU64,
    /// Kept for trees whose changes follow from others: references, checksums, free space, roots.
    global: AtomicU64,
    /// Held from the comparison of free space to its reservation.
    turn: Mutex<(), { rank(8, 0) }>,
}

impl Reservations {
    /// Goes on to reserve what a handle has reserved, and does not use.
    pub(super) fn keep_metadata(&self, bytes: u64) {
        self.metadata.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Returns a reservation of tree blocks.
    pub(super) fn release_metadata(&self, bytes: u64) {
        self.metadata.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// How much of the space of metadata a handle may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// All but what is kept.
    Normal,
    /// Half of what is kept as well: to free space.
    Freeing,
}

/// Reserves space for `bytes` of data of a subvolume.
///
/// # Errors
/// `ENOSPC`, after chunks were allocated and freed space was looked for; `EDQUOT`. The caller has no handle.
pub(crate) fn reserve_data(fs: &WriteContext, tree: TreeId, bytes: u64) -> Result<()> {
    let spare = QUOTA_SPARE_BLOCKS * fs.node_bytes();
    quotas::reserve(fs, tree, bytes, spare)?;
    let reserved = reserve(fs, BlockGroupFlags::DATA, bytes, Urgency::Normal);
    reserved.inspect_err(|_| quotas::release(fs, tree, bytes))
}

/// Returns a reservation of data, which was allocated or is not needed.
pub(crate) fn release_reserved_data(fs: &WriteContext, tree: TreeId, bytes: u64) {
    fs.reservations.data.fetch_sub(bytes, Ordering::AcqRel);
    quotas::release(fs, tree, bytes);
}

/// Reserves space for sectors of a subvolume that are allocated later, and for what they take in trees.
///
/// # Errors
/// Those of [`reserve_data`]; then nothing is reserved.
pub(crate) fn reserve_delayed(fs: &WriteContext, tree: TreeId, sectors: u64) -> Result<()> {
    let spare = QUOTA_SPARE_BLOCKS * fs.node_bytes();
    quotas::reserve(fs, tree, charged_bytes(fs, sectors), spare)?;
    reserve_charged(fs, tree, sectors)
}

/// As [`reserve_delayed`], for a file that becomes shorter: limits of quota groups do not refuse it.
///
/// # Errors
/// `ENOSPC`; then nothing is reserved.
pub(crate) fn reserve_to_shorten(fs: &WriteContext, tree: TreeId, sectors: u64) -> Result<()> {
    quotas::reserve_beyond(fs, tree, charged_bytes(fs, sectors));
    reserve_charged(fs, tree, sectors)
}

/// Reserves space for sectors for which quota groups have reserved. They have not, if there is none.
fn reserve_charged(fs: &WriteContext, tree: TreeId, sectors: u64) -> Result<()> {
    let (data, metadata) = delayed_bytes(fs, sectors);
    let charged = charged_bytes(fs, sectors);
    let reserved = reserve(fs, BlockGroupFlags::DATA, data, Urgency::Normal).and_then(|()| {
        let reserved = reserve_metadata(fs, metadata, Urgency::Normal);
        reserved.inspect_err(|_| {
            fs.reservations.data.fetch_sub(data, Ordering::AcqRel);
        })
    });
    reserved.inspect_err(|_| quotas::release(fs, tree, charged))
}

/// Returns a reservation of sectors that have their items, or are not written.
pub(crate) fn release_delayed(fs: &WriteContext, tree: TreeId, sectors: u64) {
    let (data, metadata) = delayed_bytes(fs, sectors);
    fs.reservations.data.fetch_sub(data, Ordering::AcqRel);
    fs.reservations.release_metadata(metadata);
    quotas::release(fs, tree, charged_bytes(fs, sectors));
}

/// What sectors that are allocated later count for in quota groups.
fn charged_bytes(fs: &WriteContext, sectors: u64) -> u64 {
    let sector_bytes = u64::from(fs.context.superblock.sector_bytes);
    sectors.saturating_mul(sector_bytes + QUOTA_SECTOR_BYTES)
}

/// What a handle with so many credits counts for in quota groups.
pub(super) fn charged_of_credits(fs: &WriteContext, credits: u32) -> u64 {
    u64::from(credits.div_ceil(CREDITS_OF_ITEM)) * fs.node_bytes()
}

/// Reserves what sectors take in trees that are written over where they are.
///
/// # Errors
/// As of [`reserve_data`].
pub(crate) fn reserve_written_over(fs: &WriteContext, sectors: u64) -> Result<()> {
    reserve_metadata(fs, delayed_bytes(fs, sectors).1, Urgency::Normal)
}

/// Returns such a reservation.
pub(crate) fn release_written_over(fs: &WriteContext, sectors: u64) {
    fs.reservations
        .release_metadata(delayed_bytes(fs, sectors).1);
}

fn delayed_bytes(fs: &WriteContext, sectors: u64) -> (u64, u64) {
    let data = sectors.saturating_mul(fs.context.superblock.sector_bytes.into());
    (data, sectors.saturating_mul(DELAYED_SECTOR_BYTES))
}

/// Reserves space for `bytes` of tree blocks. The caller has no handle.
pub(super) fn reserve_metadata(fs: &WriteContext, bytes: u64, urgency: Urgency) -> Result<()> {
    reserve(fs, BlockGroupFlags::METADATA, bytes, urgency)
}

/// Bytes of a type that are free and not reserved.
#[cfg(test)]
pub(super) fn available_bytes(fs: &WriteContext, kind: BlockGroupFlags) -> u64 {
    available(fs, kind, Urgency::Normal)
}

/// Bytes of a type that are free and not reserved, for a handle of an urgency.
fn available(fs: &WriteContext, kind: BlockGroupFlags, urgency: Urgency) -> u64 {
    let held = |counter: &AtomicU64| counter.load(Ordering::Acquire);
    let reservations = &fs.reservations;
    let is_mixed = is_mixed(fs);
    let mut reserved = 0u64;
    if kind.contains(BlockGroupFlags::DATA) || is_mixed {
        reserved += held(&reservations.data);
    }
    if kind.contains(BlockGroupFlags::METADATA) || is_mixed {
        let global = held(&reservations.global);
        reserved += held(&reservations.metadata);
        reserved += match urgency {
            Urgency::Normal => global,
            Urgency::Freeing => global / 2,
        };
    }
    fs.groups.free_bytes(kind).saturating_sub(reserved)
}

fn reserve(fs: &WriteContext, kind: BlockGroupFlags, bytes: u64, urgency: Urgency) -> Result<()> {
    let counter = counter(fs, kind);
    let takes_metadata = kind.contains(BlockGroupFlags::METADATA) || is_mixed(fs);
    let (mut step, mut has_written) = (0, false);
    loop {
        let free = fs.groups.free_bytes(kind);
        {
            let _turn = fs.reservations.turn.lock();
            if available(fs, kind, urgency) >= bytes {
                counter.fetch_add(bytes, Ordering::AcqRel);
                return Ok(());
            }
        }
        // Changes of inodes that wait take less than is reserved for them.
        if takes_metadata && !has_written {
            has_written = true;
            if delayed_inodes::write_for_space(fs)? {
                continue;
            }
        }
        if chunks::grow_space(fs, kind, free)? {
            continue;
        }
        // What was freed can be allocated when the commit is durable, by other types if groups went.
        let removes = step % 2 == 1;
        if fs.options.one_transaction
            || step == STEPS_MAX
            || removes && unused::remove_groups(fs)? == 0
        {
            return Err(Condition::NoSpace.into());
        }
        step += 1;
        fs.sync()?;
    }
}

/// Reserves `bytes` of a type if they are free now. Returns whether they were.
pub(super) fn try_reserve(fs: &WriteContext, kind: BlockGroupFlags, bytes: u64) -> bool {
    let _turn = fs.reservations.turn.lock();
    let is_free = available(fs, kind, Urgency::Normal) >= bytes;
    if is_free {
        counter(fs, kind).fetch_add(bytes, Ordering::AcqRel);
    }
    is_free
}

/// Returns such a reservation.
pub(super) fn release_reserved(fs: &WriteContext, kind: BlockGroupFlags, bytes: u64) {
    counter(fs, kind).fetch_sub(bytes, Ordering::AcqRel);
}

fn counter(fs: &WriteContext, kind: BlockGroupFlags) -> &AtomicU64 {
    if kind.contains(BlockGroupFlags::DATA) {
        &fs.reservations.data
    } else {
        &fs.reservations.metadata
    }
}

/// Whether other groups have the space for all that is in a group, for what reservations count on, and `spare` bytes
/// more of each type.
pub(super) fn fits_elsewhere(fs: &WriteContext, group: &BlockGroup, spare: u64) -> bool {
    let _turn = fs.reservations.turn.lock();
    let kinds = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA];
    let wanted = group.usable_bytes().saturating_add(spare);
    let mut held = kinds.into_iter().filter(|kind| group.holds(*kind));
    held.all(|kind| available(fs, kind, Urgency::Normal) >= wanted)
}

/// Lets nothing be allocated in a group, once other groups have the space that reservations count on, and `spare` bytes
/// more. Returns `false` if the group is gone. The caller has no handle.
///
/// # Errors
/// `ENOSPC` where there is no space for chunks that would have it.
pub(super) fn hold(
    fs: &WriteContext,
    group: &BlockGroup,
    spare: &dyn Fn(BlockGroupFlags) -> u64,
) -> Result<bool> {
    let kinds = [
        BlockGroupFlags::DATA,
        BlockGroupFlags::METADATA,
        BlockGroupFlags::SYSTEM,
    ];
    let kinds = || kinds.into_iter().filter(|kind| group.holds(*kind));
    if group.holds(BlockGroupFlags::METADATA) {
        delayed_inodes::write_for_space(fs)?;
    }
    loop {
        let short = {
            let _turn = fs.reservations.turn.lock();
            let missing = |kind: BlockGroupFlags| {
                let wanted = group.free_bytes().saturating_add(spare(kind));
                let bytes = wanted.saturating_sub(available(fs, kind, Urgency::Normal));
                (bytes > 0).then_some((kind, bytes))
            };
            match kinds().find_map(missing) {
                Some(short) => short,
                None => return Ok(fs.groups.hold(group)),
            }
        };
        let (kind, bytes) = short;
        let free = fs.groups.free_bytes(kind);
        fs.chunks.placing.lock().bytes_max = Some(bytes.max(SMALL_CHUNK_BYTES));
        let grown = chunks::grow_space(fs, kind, free);
        fs.chunks.placing.lock().bytes_max = None;
        if !grown? {
            return Err(Condition::NoSpace.into());
        }
    }
}

/// Removes a group that nothing is in from the table, unless reservations count on it. Returns whether it did.
pub(super) fn withdraw(fs: &WriteContext, group: &BlockGroup) -> bool {
    let _turn = fs.reservations.turn.lock();
    let kinds = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA];
    let mut held = kinds.into_iter().filter(|kind| group.holds(*kind));
    let usable = group.usable_bytes();
    held.all(|kind| available(fs, kind, Urgency::Normal) >= usable) && fs.groups.withdraw(group)
}

/// Whether data and metadata share groups.
fn is_mixed(fs: &WriteContext) -> bool {
    let incompat = fs.context.superblock.features.incompat;
    incompat.contains(Incompat::MIXED_GROUPS)
}

/// Counts anew what is kept: the size of the trees that every transaction changes. No tree is locked.
pub(super) fn count_global_reserve(fs: &WriteContext) -> Result<()> {
    let mut trees = vec![TreeId::ROOT, TreeId::EXTENT, TreeId::CSUM];
    trees.extend(trees::has_free_space_tree(fs).then_some(TreeId::FREE_SPACE));
    trees.push(trees::block_group_tree(fs));
    trees.extend(fs.quotas.is_some().then_some(TreeId::QUOTA));
    let mut bytes = 0u64;
    for id in trees {
        bytes = bytes.saturating_add(fs.tree(id)?.view().now.used_bytes);
    }
    let least = GLOBAL_MIN_BLOCKS * fs.node_bytes();
    let bytes = bytes.min(GLOBAL_MAX_BYTES).max(least);
    fs.reservations.global.store(bytes, Ordering::Release);
    Ok(())
}
