//! Space: which clusters and inodes are taken, in memory and on the medium. Spec: `ext4/bitmaps`,
//! `ext4/blockgroup`, `ext4/bigalloc`.
//!
//! Data is placed in two steps, so that a crash between them leaves nothing that points to blocks
//! without their contents: clusters are [taken](Space::take) in memory, and
//! [recorded](Space::record) in bitmap and descriptor once the data is written.

mod counters;
mod fixed;
mod free_map;
mod recording;
mod group;
mod group_inodes;
mod slot;
mod search;
mod window;
mod record;
mod orlov;
mod inodes;
mod usage;
mod trim;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use platter_vfs::{Condition, Error, FileKind, Result, Unsupported};

use crate::Volume;
use crate::groups::{self, GROUPS_SUMMED_MAX, layout};
use crate::ondisk::{BlockNr, Geometry, GroupNr, InodeNr};
use counters::{Counters, Floors};
use fixed::{FixedBlocks, FixedBuilder};
use platter_ondisk::Rule;
use slot::Slot;

pub use inodes::is_inode_in_use;
use window::DirectoryWindows;
pub use window::Window;

/// Memory for the bitmaps of groups in use.
const LOADED_BYTES_MAX: usize = 16 << 20;
/// A flexible group of so many groups keeps files out of the group with its metadata.
const FLEX_GROUPS_MIN: u32 = 4;

/// Blocks that [`Space::record`] and [`Space::alloc`] change at most.
pub const RECORD_CREDITS: u32 = 2;
/// Blocks that [`Space::alloc_inode`] changes at most, the new inode's own block among them.
pub const ALLOC_INODE_CREDITS: u32 = 4;
/// Blocks that [`Space::free_inode`] changes at most.
pub const FREE_INODE_CREDITS: u32 = 2;

/// Who asks for space, and so how much of it has to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reserve {
    /// Anybody: the blocks reserved for the superuser stay.
    Ordinary,
    /// The superuser, or whom the superblock names.
    Privileged,
    /// Metadata that data needs which has a promise, or is there already: everything goes that is
    /// not promised.
    Split,
    /// Data with a promise by [`Space::reserve_delayed`], which this request uses up.
    Promised,
}

/// What of the free space contents of files may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ContentsShare {
    /// What is reserved for the superuser stays.
    #[default]
    Unreserved,
    /// That too: where everybody who writes is the superuser.
    Reserved,
    /// And what is kept for splitting extents: for a filesystem that is being filled, and thrown away
    /// if it proves too small.
    Everything,
}

/// Blocks taken in memory: to be recorded, or given back. Dropped, they are lost until the
/// filesystem is mounted again.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Taken {
    /// Whole clusters of one group.
    clusters: Range<BlockNr>,
    blocks: u32,
    from: Reserve,
}

impl Taken {
    /// The blocks, at most as many as were asked for. They start with a cluster.
    #[must_use]
    pub fn blocks(&self) -> Range<BlockNr> {
        let start = self.clusters.start;
        start..BlockNr(start.0 + u64::from(self.blocks))
    }

    /// The first block.
    #[must_use]
    pub fn start(&self) -> BlockNr {
        self.clusters.start
    }

    /// How many blocks, at least one.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.blocks
    }

    /// Parts the first `blocks` from the rest, each with its own clusters of `cluster_blocks`; nothing is
    /// parted where there are fewer. The rest may be none, to be dropped.
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

/// What is free, in blocks and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceCounts {
    /// Blocks that are free and not promised.
    pub free_blocks: u64,
    /// Those of them that anybody may have.
    pub available_blocks: u64,
    /// Inodes.
    pub free_inodes: u64,
}

/// What the structures that tell of space must hold to, beyond each one's own rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpaceRule {
    /// No two structures of the filesystem share a block.
    Overlap,
    /// The descriptor's count of free clusters is the bitmap's.
    FreeClusters,
    /// The bitmap marks the filesystem's own blocks as taken.
    MetadataFree,
    /// Blocks are freed once.
    BlockFreedTwice,
    /// Only blocks within the filesystem are freed, and none of its own structures.
    FreedOwn,
    /// The descriptor's count of free inodes is the bitmap's.
    FreeInodes,
    /// The bitmap marks no inode as taken where the descriptor says none was ever used.
    NeverUsed,
    /// Inodes are freed once.
    InodeFreedTwice,
    /// Only inodes that names can have are freed.
    FreedReserved,
    /// The descriptor counts the directories that are freed.
    UsedDirs,
}

impl Rule for SpaceRule {
    const STRUCTURE: &'static str = "allocation";

    fn text(self) -> &'static str {
        match self {
            Self::Overlap => "two structures share a block",
            Self::FreeClusters => "free blocks of a group are counted wrong",
            Self::MetadataFree => "the filesystem's own blocks are marked as free",
            Self::BlockFreedTwice => "a block that is free is freed",
            Self::FreedOwn => "a block of the filesystem's own is freed",
            Self::FreeInodes => "free inodes of a group are counted wrong",
            Self::NeverUsed => "an inode that was never used is marked as taken",
            Self::InodeFreedTwice => "an inode that is free is freed",
            Self::FreedReserved => "an inode of the filesystem's own is freed",
            Self::UsedDirs => "directories of a group are counted wrong",
        }
    }
}

/// The space of a mounted filesystem.
///
/// Each group has a lock of its own, taken with or without a handle and held over the reading of
/// its bitmap; nobody begins a handle or waits for a commit with one held.
#[derive(Debug)]
pub struct Space {
    geometry: Geometry,
    fixed: FixedBlocks,
    /// Who the contents of files are written for.
    contents_from: Reserve,
    loaded_max: usize,
    slots: Box<[Slot]>,
    counters: Counters,
    /// Groups whose bitmap is in memory, the longest there first.
    loaded: CachePadded<Mutex<VecDeque<GroupNr>>>,
    /// Groups of which the running transaction changes something.
    pending: CachePadded<Mutex<BTreeSet<GroupNr>>>,
    directories: CachePadded<Mutex<DirectoryWindows>>,
    /// Free blocks and inodes as the superblock has them.
    stored: CachePadded<Mutex<(u64, u64)>>,
    /// Damage that nobody was told of.
    damage: Mutex<Option<Error>>,
}

platter_cache::layout!(
    /// Of the space.
    pub LAYOUT: Space {
        ReadOnly: geometry, fixed, contents_from, loaded_max, slots;
        Rare: damage;
        Hot: counters, loaded, pending, directories, stored;
    }
);

impl Space {
    /// The space of a volume, by its descriptors, all of which are read.
    ///
    /// # Errors
    /// `Corrupt` when a descriptor is broken: nothing may then be changed. `Unsupported` with too
    /// many groups.
    pub fn open(volume: &Volume) -> Result<Self> {
        let geometry = volume.geometry.clone();
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
        groups::visit_descriptors(volume, |group, desc| {
            let desc = desc?;
            free += u64::from(desc.free_clusters);
            free_inodes += u64::from(desc.free_inodes);
            directories += u64::from(desc.used_dirs);
            fixed.add(&geometry, group, &desc);
            slots.push(Slot::new(&desc));
            Ok(())
        })?;
        let counters = Counters::new(free, free_inodes, directories, floors(volume));
        let partial_cluster = !geometry
            .blocks_count
            .is_multiple_of(u64::from(geometry.cluster_blocks));
        counters.write_off(u64::from(partial_cluster));
        let group_bytes = geometry.block_bytes as usize * 3;
        let superblock = &volume.superblock;
        Ok(Self {
            fixed: fixed.build(volume)?,
            contents_from: Reserve::Ordinary,
            loaded_max: (LOADED_BYTES_MAX / group_bytes).max(16),
            slots: slots.into(),
            counters,
            loaded: CachePadded::default(),
            pending: CachePadded::default(),
            directories: CachePadded::default(),
            stored: Mutex::new((superblock.free_blocks, u64::from(superblock.free_inodes))).into(),
            damage: Mutex::default(),
            geometry,
        })
    }

    /// The same space, of which contents of files may take another part.
    #[must_use]
    pub fn with_share(mut self, share: ContentsShare) -> Self {
        match share {
            ContentsShare::Unreserved => {}
            ContentsShare::Reserved => self.contents_from = Reserve::Privileged,
            ContentsShare::Everything => self.counters.drop_floors(),
        }
        self
    }

    /// Who the contents of files are written for. Pages are written back long after whoever filled
    /// them, so that is one answer for a mount.
    #[must_use]
    pub fn contents_from(&self) -> Reserve {
        self.contents_from
    }

    /// The space as requests of one kind have it.
    #[must_use]
    pub fn portion(&self, from: Reserve) -> Portion<'_> {
        Portion { space: self, from }
    }

    /// What is free, exactly.
    #[must_use]
    pub fn stat(&self) -> SpaceCounts {
        let ratio = u64::from(self.geometry.cluster_blocks);
        SpaceCounts {
            free_blocks: self.counters.available().saturating_mul(ratio),
            available_blocks: self.counters.available_to_all().saturating_mul(ratio),
            free_inodes: self.counters.free_inodes.get(),
        }
    }

    /// Promises `clusters` clusters to data that will be given a place later, by requests from
    /// [`Reserve::Promised`], which cannot fail for want of space.
    ///
    /// # Errors
    /// `NoSpace`: nothing is promised.
    pub fn reserve_delayed(&self, clusters: u64, from: Reserve) -> Result<()> {
        if self.counters.promise(clusters, from) {
            return Ok(());
        }
        Err(Condition::NoSpace.into())
    }

    /// Takes back the promise of `clusters` clusters.
    pub fn release_delayed(&self, clusters: u64) {
        self.counters.withdraw(clusters);
    }

    /// Promises clusters again that were taken from a promise and are about to be freed.
    pub(crate) fn renew_delayed(&self, clusters: u64) {
        self.counters.renew(clusters);
    }

    /// Where the first block of an inode without any is best placed.
    ///
    /// Where groups keep their metadata together, files stay out of the first group with it, and
    /// directories in.
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

    /// Blocks that [`free`](Self::free) changes at most, for so many adjacent blocks.
    #[must_use]
    pub fn free_credits(&self, blocks: u64) -> u32 {
        let groups = blocks / u64::from(self.geometry.blocks_per_group) + 2;
        let groups = groups.min(u64::from(self.geometry.groups_count));
        u32::try_from(groups.saturating_mul(2)).unwrap_or(u32::MAX)
    }

    /// Damage that was met since this was last asked, and that no operation failed for: a group that
    /// cannot be used was passed by.
    pub fn take_damage(&self) -> Option<Error> {
        self.damage.lock().take()
    }

    /// Remembers what was wrong with a group that was passed by.
    fn pass_by(&self, failure: Option<Error>) {
        if let Some(error @ Error::Corrupt(_)) = failure {
            self.damage.lock().get_or_insert(error);
        }
    }

    /// The first of `clusters` clusters of a group, and the block behind the last.
    fn blocks_of(&self, group: GroupNr, clusters: &Range<u32>) -> Range<BlockNr> {
        let first = self.geometry.group_first_block(group).0;
        let ratio = u64::from(self.geometry.cluster_blocks);
        let block = |cluster: u32| BlockNr(first + u64::from(cluster) * ratio);
        block(clusters.start)..block(clusters.end)
    }

    /// The clusters of each group that these blocks, which lie in the filesystem, touch.
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

/// The group that what is no contents of a file lies in best, if it belongs to `group`: the first of
/// those that keep their metadata together.
#[must_use]
pub fn gathering_group(geometry: &Geometry, group: GroupNr) -> GroupNr {
    let flex = geometry.groups_per_flex;
    if flex < FLEX_GROUPS_MIN {
        return group;
    }
    GroupNr(group.0 - group.0 % flex)
}

/// The space as requests of one kind have it.
#[derive(Debug, Clone, Copy)]
pub struct Portion<'s> {
    /// The space.
    pub space: &'s Space,
    /// How much of it has to stay.
    pub from: Reserve,
}

fn floors(volume: &Volume) -> Floors {
    let ratio = u64::from(volume.geometry.cluster_blocks);
    Floors {
        reserved: volume.superblock.reserved_blocks / ratio,
        split: groups::split_reserve_clusters(volume),
    }
}
