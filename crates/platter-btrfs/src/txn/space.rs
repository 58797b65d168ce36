//! Reservations of space: what was reserved is there when it is allocated, so that no change fails halfway for want
//! of space, and `ENOSPC` is returned before anything is changed.

use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_vfs::{Condition, Result};

use super::WriteContext;
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
/// Steps that are made to find space for one reservation: a commit, then the removal of what is unused.
const STEPS_MAX: u32 = 4;

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

/// How much of the space of metadata a handle may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// All but what is kept.
    Normal,
    /// Half of what is kept as well: to free space.
    Freeing,
}

impl WriteContext {
    /// Reserves space for `bytes` of data.
    ///
    /// # Errors
    /// `ENOSPC`, after chunks were allocated and freed space was looked for. The caller has no handle.
    pub fn reserve_data(&self, bytes: u64) -> Result<()> {
        self.reserve(BlockGroupFlags::DATA, bytes, Urgency::Normal)
    }

    /// Returns a reservation of data, which was allocated or is not needed.
    pub fn release_reserved_data(&self, bytes: u64) {
        self.reservations.data.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Reserves space for sectors that are allocated later, and for what they take in trees.
    ///
    /// # Errors
    /// Those of [`reserve_data`](Self::reserve_data); then nothing is reserved.
    pub fn reserve_delayed(&self, sectors: u64) -> Result<()> {
        let (data, metadata) = self.delayed_bytes(sectors);
        self.reserve_data(data)?;
        self.reserve_metadata(metadata, Urgency::Normal)
            .inspect_err(|_| self.release_reserved_data(data))
    }

    /// Returns a reservation of sectors that have their items, or are not written.
    pub fn release_delayed(&self, sectors: u64) {
        let (data, metadata) = self.delayed_bytes(sectors);
        self.release_reserved_data(data);
        self.release_metadata(metadata);
    }

    /// Reserves what sectors take in trees that are written over where they are.
    ///
    /// # Errors
    /// As of [`reserve_data`](Self::reserve_data).
    pub fn reserve_written_over(&self, sectors: u64) -> Result<()> {
        self.reserve_metadata(self.delayed_bytes(sectors).1, Urgency::Normal)
    }

    /// Returns such a reservation.
    pub fn release_written_over(&self, sectors: u64) {
        self.release_metadata(self.delayed_bytes(sectors).1);
    }

    fn delayed_bytes(&self, sectors: u64) -> (u64, u64) {
        let data = sectors.saturating_mul(self.context.superblock.sector_bytes.into());
        (data, sectors.saturating_mul(DELAYED_SECTOR_BYTES))
    }

    /// Reserves space for `bytes` of tree blocks. The caller has no handle.
    pub(super) fn reserve_metadata(&self, bytes: u64, urgency: Urgency) -> Result<()> {
        self.reserve(BlockGroupFlags::METADATA, bytes, urgency)
    }

    /// Returns a reservation of tree blocks.
    pub(super) fn release_metadata(&self, bytes: u64) {
        self.reservations
            .metadata
            .fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Bytes of a type that are free and not reserved.
    #[must_use]
    pub fn available_bytes(&self, kind: BlockGroupFlags) -> u64 {
        self.available(kind, Urgency::Normal)
    }

    fn available(&self, kind: BlockGroupFlags, urgency: Urgency) -> u64 {
        let held = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let reservations = &self.reservations;
        let is_mixed = self.is_mixed();
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
        self.groups.free_bytes(kind).saturating_sub(reserved)
    }

    fn reserve(&self, kind: BlockGroupFlags, bytes: u64, urgency: Urgency) -> Result<()> {
        let counter = if kind.contains(BlockGroupFlags::DATA) {
            &self.reservations.data
        } else {
            &self.reservations.metadata
        };
        let mut step = 0;
        loop {
            let free = self.groups.free_bytes(kind);
            {
                let _turn = self.reservations.turn.lock();
                if self.available(kind, urgency) >= bytes {
                    counter.fetch_add(bytes, Ordering::AcqRel);
                    return Ok(());
                }
            }
            if self.grow_space(kind, free)? {
                continue;
            }
            // What was freed can be allocated when the commit is durable, by other types if groups went.
            let removes = step % 2 == 1;
            if self.options.one_transaction
                || step == STEPS_MAX
                || removes && self.remove_unused_groups()? == 0
            {
                return Err(Condition::NoSpace.into());
            }
            step += 1;
            self.sync()?;
        }
    }

    /// Removes a group that nothing is in from the table, unless reservations count on it. Returns whether it did.
    pub(super) fn withdraw(&self, group: &BlockGroup) -> bool {
        let _turn = self.reservations.turn.lock();
        let kinds = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA];
        let mut held = kinds.into_iter().filter(|kind| group.holds(*kind));
        let usable = group.usable_bytes();
        held.all(|kind| self.available(kind, Urgency::Normal) >= usable)
            && self.groups.withdraw(group)
    }

    /// Whether data and metadata share groups.
    fn is_mixed(&self) -> bool {
        let incompat = self.context.superblock.features.incompat;
        incompat.contains(Incompat::MIXED_GROUPS)
    }

    /// Counts anew what is kept: the size of the trees that every transaction changes. No tree is locked.
    pub(super) fn count_global_reserve(&self) -> Result<()> {
        let mut trees = vec![TreeId::ROOT, TreeId::EXTENT, TreeId::CSUM];
        trees.extend(self.has_free_space_tree().then_some(TreeId::FREE_SPACE));
        trees.push(self.group_tree());
        trees.extend(self.quotas.is_some().then_some(TreeId::QUOTA));
        let mut bytes = 0u64;
        for id in trees {
            bytes = bytes.saturating_add(self.tree(id)?.view().now.used_bytes);
        }
        let least = GLOBAL_MIN_BLOCKS * self.node_bytes();
        let bytes = bytes.min(GLOBAL_MAX_BYTES).max(least);
        self.reservations.global.store(bytes, Ordering::Release);
        Ok(())
    }
}
