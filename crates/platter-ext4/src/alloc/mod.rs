//! The block and inode allocator. Spec: `ext4/bitmaps`, `ext4/blockgroup`, `ext4/bigalloc`.
//!
//! Data blocks are allocated in two steps, so that a crash between them leaves no reference to
//! blocks without their data: clusters are [allocated in memory](take), and
//! [marked](record()) in bitmap and descriptor once the data is written.

mod counters;
mod ranges;
mod fixed;
mod free_map;
mod recording;
mod group;
mod group_inodes;
mod slot;
mod search;
mod preallocation;
mod record;
mod orlov;
mod inodes;
mod usage;
mod trim;
mod replay;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crossbeam_utils::CachePadded;
use platter_block::lock::{Mutex, rank};
use platter_ondisk::rules;
use platter_vfs::{Condition, Error, FileKind, Result, Unsupported};

use crate::FsContext;
use crate::groups::{self, GROUPS_SUMMED_MAX, layout};
use crate::ondisk::{BlockNr, Geometry, GroupNr, InodeNr};
use counters::{Counters, Floors};
use fixed::FixedBuilder;
use ranges::BlockRanges;
use slot::Slot;

pub use inodes::{alloc_inode, check_inode_freeable, free_inode, is_inode_in_use};
use preallocation::DirectoryPreallocations;
pub use preallocation::{Preallocation, close_preallocation};
pub use record::{check_freeable, free_blocks, record};
pub use search::{alloc_blocks, alloc_for_directory, finish_freed, give_back, take, take_growing};
pub use trim::trim;
pub use usage::is_free;

/// Maximum memory for bitmaps of groups in use, in bytes.
const LOADED_BYTES_MAX: usize = 16 << 20;
/// Minimum number of groups of a flex group whose first group is not used for files.
const FLEX_GROUPS_MIN: u32 = 4;

/// Maximum number of blocks modified by [`record()`] and [`alloc_blocks`].
pub const RECORD_CREDITS: u32 = 2;
/// Maximum number of blocks modified by [`alloc_inode`], including the new inode's block.
pub const ALLOC_INODE_CREDITS: u32 = 4;
/// Maximum number of blocks modified by [`free_inode`].
pub const FREE_INODE_CREDITS: u32 = 2;

/// The kind of a request, which determines the space it must leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reserve {
    /// Without privileges: leaves the blocks reserved for the superuser.
    Ordinary,
    /// The superuser, or the user and group in the superblock.
    Privileged,
    /// Metadata needed to write reserved data; may use all unreserved space.
    Split,
    /// Data with a reservation by [`Allocator::reserve_delayed`], which this request consumes.
    Delayed,
}

/// The part of the free space that file data may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ContentsShare {
    /// All but the blocks reserved for the superuser.
    #[default]
    Unreserved,
    /// Also those: for mounts where every writer is the superuser.
    Reserved,
    /// Also the reserve for splitting extents: for a filesystem that is being populated, and
    /// discarded if it is too small, and for a replay.
    Everything,
}

/// Blocks allocated in memory: to be marked in the bitmap, or freed. If dropped, they are lost
/// until the next mount.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Taken {
    /// Whole clusters of one group.
    clusters: Range<BlockNr>,
    blocks: u32,
    from: Reserve,
}

impl Taken {
    /// Returns the blocks, at most as many as requested. They begin at a cluster boundary.
    #[must_use]
    pub fn blocks(&self) -> Range<BlockNr> {
        let start = self.clusters.start;
        start..BlockNr(start.0 + u64::from(self.blocks))
    }

    /// Returns the first block.
    #[must_use]
    pub fn start(&self) -> BlockNr {
        self.clusters.start
    }

    /// Returns the number of blocks, at least one.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.blocks
    }

    /// Splits off the first `blocks`, each part with its own clusters of `cluster_blocks`; returns
    /// `None` if there are fewer. The rest may be empty, to be dropped.
    pub fn split_first(&mut self, blocks: u32, cluster_blocks: u32) -> Option<Self> {
        if blocks == 0 || blocks > self.blocks {
            return None;
        }
        let whole = blocks.next_multiple_of(cluster_blocks);
        let middle = self.clusters.start.0.saturating_add(u64::from(whole));
        let middle = BlockNr(middle.min(self.clusters.end.0));
        let first = Self {
            clusters: self.clusters.start..middle,
            blocks,
            from: self.from,
        };
        self.clusters.start = middle;
        self.blocks = self.blocks.saturating_sub(whole);
        Some(first)
    }
}

/// Free blocks and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceCounts {
    /// Blocks that are free and not reserved.
    pub free_blocks: u64,
    /// Those available without privileges.
    pub available_blocks: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

rules! {
    /// Rules of the allocation metadata across structures.
    pub enum SpaceRule of "allocation" {
        /// No two structures of the filesystem share a block.
        Overlap => "metadata blocks overlap",
        /// The descriptor's free cluster count equals the bitmap's.
        FreeClusters => "free blocks count wrong for group",
        /// The bitmap marks fixed metadata as in use.
        MetadataFree => "metadata blocks marked free",
        /// A freed block was in use.
        BlockFreedTwice => "freeing already freed block",
        /// A freed block is within the filesystem and not fixed metadata.
        FreedOwn => "freeing blocks in system zone",
        /// A block that is marked as in use is within the filesystem and not fixed metadata.
        MarkedOwn => "block range overlaps system zone",
        /// The descriptor's free inode count equals the bitmap's.
        FreeInodes => "free inodes count wrong for group",
        /// The bitmap marks no inode as in use after the descriptor's unused count.
        NeverUsed => "inode beyond bg_itable_unused marked in use",
        /// A freed inode was in use.
        InodeFreedTwice => "bit already cleared for inode",
        /// A freed inode is not reserved.
        FreedReserved => "reserved or nonexistent inode",
        /// The descriptor's directory count includes a freed directory.
        UsedDirs => "directories count wrong for group",
    }
}

/// The allocator of a mounted filesystem.
///
/// Each group has its own lock, taken with or without a handle and held while its bitmap is read;
/// no thread begins a handle or waits for a commit while holding one.
#[derive(Debug)]
pub struct Allocator {
    geometry: Geometry,
    fixed: BlockRanges,
    /// What records of fast commits use; `None` but for their replay.
    excluded: Option<BlockRanges>,
    /// The kind of requests for file data.
    contents_from: Reserve,
    loaded_max: usize,
    slots: Box<[Slot]>,
    counters: Counters,
    /// Groups with a bitmap in memory, in the order they were loaded.
    loaded: CachePadded<Mutex<VecDeque<GroupNr>, { rank(8, 3) }>>,
    /// Groups that the running transaction modifies.
    pending: CachePadded<Mutex<BTreeSet<GroupNr>, { rank(8, 3) }>>,
    /// Preallocations of directories.
    directories: CachePadded<Mutex<DirectoryPreallocations, { rank(8, 3) }>>,
    /// Free blocks and inodes as stored in the superblock.
    stored: CachePadded<Mutex<(u64, u64), { rank(8, 9) }>>,
    /// Corruption not reported yet.
    corruption: Mutex<Option<Error>>,
}

platter_cache::layout!(
    /// Of [Allocator].
    pub LAYOUT: Allocator {
        ReadOnly: geometry, fixed, excluded, contents_from, loaded_max, slots;
        Rare: corruption;
        Hot: counters, loaded, pending, directories, stored;
    }
);

impl Allocator {
    /// Opens the allocator of a filesystem, reading all descriptors.
    ///
    /// # Errors
    /// `Corrupt` if a descriptor is corrupt: then the filesystem must not be modified.
    /// `Unsupported` with too many groups.
    pub fn open(fs: &FsContext) -> Result<Self> {
        Self::open_with(fs, None)
    }

    fn open_with(fs: &FsContext, excluded: Option<BlockRanges>) -> Result<Self> {
        let geometry = fs.geometry.clone();
        if geometry.groups_count > GROUPS_SUMMED_MAX {
            let unsupported = Unsupported {
                filesystem: "ext4",
                feature: "writing to more than 1048576 block groups".into(),
                reason: None,
            };
            return Err(unsupported.into());
        }
        let mut fixed = FixedBuilder::default();
        let mut slots = Vec::with_capacity(geometry.groups_count as usize);
        let (mut free, mut free_inodes, mut directories) = (0, 0, 0);
        groups::visit_descriptors(fs, |group, desc| {
            let desc = match desc {
                Err(Error::Corrupt(_)) if excluded.is_some() => {
                    slots.push(Slot::lost());
                    return Ok(());
                }
                desc => desc?,
            };
            free += u64::from(desc.free_clusters);
            free_inodes += u64::from(desc.free_inodes);
            directories += u64::from(desc.used_dirs);
            fixed.add(&geometry, group, &desc);
            slots.push(Slot::new(&desc));
            Ok(())
        })?;
        let counters = Counters::new(free, free_inodes, directories, floors(fs));
        let partial_cluster = !geometry
            .blocks_count
            .is_multiple_of(u64::from(geometry.cluster_blocks));
        counters.write_off(u64::from(partial_cluster));
        let group_bytes = geometry.block_bytes as usize * 3;
        let superblock = &fs.superblock;
        let ratio = u64::from(geometry.cluster_blocks);
        let stored = match excluded {
            Some(_) => (free.saturating_mul(ratio), free_inodes),
            None => (superblock.free_blocks, u64::from(superblock.free_inodes)),
        };
        Ok(Self {
            fixed: fixed.build(fs)?,
            excluded,
            contents_from: Reserve::Ordinary,
            loaded_max: (LOADED_BYTES_MAX / group_bytes).max(16),
            slots: slots.into(),
            counters,
            loaded: CachePadded::default(),
            pending: CachePadded::default(),
            directories: CachePadded::default(),
            stored: Mutex::new(stored).into(),
            corruption: Mutex::default(),
            geometry,
        })
    }

    /// Sets the part of the space that file data may use.
    #[must_use]
    pub fn with_share(mut self, share: ContentsShare) -> Self {
        match share {
            ContentsShare::Unreserved => {}
            ContentsShare::Reserved => self.contents_from = Reserve::Privileged,
            ContentsShare::Everything => self.counters.drop_floors(),
        }
        self
    }

    /// Returns the kind of requests for file data. Writeback runs long after the write, so it is
    /// the same for the whole mount.
    #[must_use]
    pub fn contents_from(&self) -> Reserve {
        self.contents_from
    }

    /// Returns the allocator with a fixed kind of requests.
    #[must_use]
    pub fn portion(&self, from: Reserve) -> Portion<'_> {
        Portion { space: self, from }
    }

    /// Returns the free blocks and inodes, exactly.
    #[must_use]
    pub fn stat(&self) -> SpaceCounts {
        let ratio = u64::from(self.geometry.cluster_blocks);
        SpaceCounts {
            free_blocks: self.counters.available().saturating_mul(ratio),
            available_blocks: self.counters.available_to_all().saturating_mul(ratio),
            free_inodes: self.counters.free_inodes.get(),
        }
    }

    /// Reserves `clusters` clusters for delayed data, to be allocated by requests with
    /// [`Reserve::Delayed`], which do not fail with ENOSPC.
    ///
    /// # Errors
    /// `NoSpace`: nothing is reserved.
    pub fn reserve_delayed(&self, clusters: u64, from: Reserve) -> Result<()> {
        if self.counters.reserve(clusters, from) {
            return Ok(());
        }
        Err(Condition::NoSpace.into())
    }

    /// Releases the reservation of `clusters` clusters.
    pub fn release_delayed(&self, clusters: u64) {
        self.counters.withdraw(clusters);
    }

    /// Reserves clusters again that were allocated from a reservation and are about to be freed.
    pub(crate) fn renew_delayed(&self, clusters: u64) {
        self.counters.renew(clusters);
    }

    /// Returns the allocation goal of an inode's first block.
    ///
    /// With `flex_bg`, files avoid the first group of the flex group, and directories prefer it.
    #[must_use]
    pub fn first_goal(&self, inode: InodeNr, kind: FileKind) -> BlockNr {
        let geometry = &self.geometry;
        let group = geometry
            .group_of_inode(inode)
            .map_or(0, |(group, _)| group.0);
        if geometry.groups_per_flex < FLEX_GROUPS_MIN {
            return geometry.group_first_block(GroupNr(group));
        }
        let first = gathering_group(geometry, GroupNr(group)).0;
        let skipped = u32::from(kind == FileKind::Regular);
        let group = first.saturating_add(skipped).min(geometry.groups_count - 1);
        geometry.group_first_block(GroupNr(group))
    }

    /// Returns the maximum number of blocks modified by [`free_blocks`] for so many adjacent
    /// blocks.
    #[must_use]
    pub fn free_credits(&self, blocks: u64) -> u32 {
        let groups = blocks / u64::from(self.geometry.blocks_per_group) + 2;
        let groups = groups.min(u64::from(self.geometry.groups_count));
        u32::try_from(groups.saturating_mul(2)).unwrap_or(u32::MAX)
    }

    /// Whether `count` blocks from `first` are in the filesystem, and none of them is fixed metadata.
    #[must_use]
    pub fn may_hold_contents(&self, first: BlockNr, count: u64) -> bool {
        let blocks = first.0..first.0.saturating_add(count);
        self.geometry.contains(first, count) && self.fixed.within(blocks).next().is_none()
    }

    /// Returns corruption found since the last call that failed no operation: an unusable group was
    /// skipped.
    pub fn take_corruption(&self) -> Option<Error> {
        self.corruption.lock().take()
    }

    /// Whether freed blocks wait for a commit.
    #[must_use]
    fn has_pending(&self) -> bool {
        self.counters.pending.get() > 0
    }

    /// Returns how often freed space became allocatable.
    pub fn returned(&self) -> u64 {
        self.counters.returned.get()
    }

    /// Whether an inode is marked in use.
    pub fn is_inode_in_use(&self, fs: &FsContext, number: InodeNr) -> Result<bool> {
        let Some((group, index)) = self.geometry.group_of_inode(number) else {
            return Ok(false);
        };
        Ok(slot::inodes(self, fs, group)?.is_taken(index))
    }

    fn slot(&self, group: GroupNr) -> &Slot {
        &self.slots[group.0 as usize]
    }

    /// Makes the transaction that closes next record the corruption of what is passed over.
    pub fn pass_by(&self, failure: Option<Error>) {
        if let Some(error @ Error::Corrupt(_)) = failure {
            self.corruption.lock().get_or_insert(error);
        }
    }

    /// Returns the first block of `clusters` of a group, and the block after the last.
    fn blocks_of(&self, group: GroupNr, clusters: &Range<u32>) -> Range<BlockNr> {
        let first = self.geometry.group_first_block(group).0;
        let ratio = u64::from(self.geometry.cluster_blocks);
        let block = |cluster: u32| BlockNr(first + u64::from(cluster) * ratio);
        block(clusters.start)..block(clusters.end)
    }

    /// Returns the clusters of each group that contain these blocks, which are in the filesystem.
    fn clusters_of(
        &self,
        blocks: Range<BlockNr>,
    ) -> impl Iterator<Item = (GroupNr, Range<u32>)> + '_ {
        let geometry = &self.geometry;
        let mut at = blocks.start;
        std::iter::from_fn(move || {
            let group = geometry.group_of_block(at).filter(|_| at < blocks.end)?;
            let clusters = layout::clusters(geometry, group, Some(at.0..blocks.end.0)).next()?;
            let first = geometry.group_first_block(group).0;
            at = BlockNr(first + u64::from(geometry.group_blocks(group)));
            Some((group, clusters))
        })
    }
}

/// Returns the preferred group of metadata for `group`: the first group of its flex group.
#[must_use]
pub fn gathering_group(geometry: &Geometry, group: GroupNr) -> GroupNr {
    let flex = geometry.groups_per_flex;
    if flex < FLEX_GROUPS_MIN {
        return group;
    }
    GroupNr(group.0 - group.0 % flex)
}

/// The allocator with a fixed kind of requests.
#[derive(Debug, Clone, Copy)]
pub struct Portion<'s> {
    /// The allocator.
    pub space: &'s Allocator,
    /// The kind of the requests.
    pub from: Reserve,
}

fn floors(fs: &FsContext) -> Floors {
    let ratio = u64::from(fs.geometry.cluster_blocks);
    Floors {
        reserved: fs.superblock.reserved_blocks / ratio,
        split: groups::split_reserve_clusters(fs),
    }
}
