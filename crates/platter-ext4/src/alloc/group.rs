//! The clusters of one group: what its bitmap says, and what else is not free.

use std::collections::BTreeMap;
use std::ops::Range;

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::SpaceRule;
use super::fixed::FixedBlocks;
use super::free_map::FreeMap;
use crate::Volume;
use crate::groups;
use crate::ondisk::bitmap::{self, BitmapVerifier};
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{Corrupt, Geometry, GroupDesc, GroupNr};

/// A run at the goal is taken though it is shorter than asked for, if it has so many clusters.
const GOAL_RUN_MIN: u32 = 16;

/// The clusters of a group whose bitmap was proven.
///
/// # Invariants
/// What is free in `free` is free in `recorded`; `unsettled` counts the clusters that are free in
/// `recorded` only: taken in memory, kept for a file, or freed by a transaction that is not durable.
#[derive(Debug)]
pub(super) struct Clusters {
    /// The bitmap as the running transaction has it.
    pub(super) recorded: Box<[u8]>,
    pub(super) free: FreeMap,
    pub(super) unsettled: u32,
    /// What is kept for files that grow, by the first cluster: the end, and a number.
    pub(super) kept: BTreeMap<u32, (u32, u64)>,
}

/// What is asked of a group, in clusters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// The best start, in the group it lies in.
    pub(super) goal: Option<u32>,
    /// As many as are of use.
    pub(super) want: u32,
    /// Fewer are of no use. At most `want`.
    pub(super) need: u32,
}

impl Clusters {
    /// Brings in the bitmap of a group, or computes that of a group without one.
    pub(super) fn load(volume: &Volume, fixed: &FixedBlocks, group: GroupNr) -> Result<Self> {
        let geometry = &volume.geometry;
        let desc = groups::read_descriptor(volume, group)?;
        let counted = clusters_counted(geometry, group);
        let first = geometry.group_first_block(group).0;
        let blocks = first..first + u64::from(geometry.group_blocks(group));
        let own = fixed.within(blocks).map(|own| {
            let ratio = u64::from(geometry.cluster_blocks);
            let index = |block: u64| u32::try_from((block - first) / ratio).unwrap_or(u32::MAX);
            index(own.start)..index(own.end - 1) + 1
        });
        let locus = Locus::group(u64::from(group.0)).at_block(desc.block_bitmap.0);
        let mut recorded: Box<[u8]>;
        if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            recorded = vec![0; geometry.block_bytes as usize].into();
            own.for_each(|clusters| assign(&mut recorded, clusters, true));
        } else {
            read_ahead(volume, group, &desc);
            let verifier = BitmapVerifier::of_blocks(group, &desc, geometry);
            recorded = volume
                .read_block(desc.block_bitmap, &verifier)?
                .to_vec()
                .into();
            for mut clusters in own {
                if !clusters.all(|index| bitmap::is_set(&recorded, index)) {
                    return Err(Corrupt::new(locus, SpaceRule::MetadataFree).into());
                }
            }
        }
        let bits = geometry.block_bytes.saturating_mul(8);
        assign(&mut recorded, counted..bits, true);
        if bitmap::count_clear(&recorded, counted) != desc.free_clusters {
            return Err(Corrupt::new(locus, SpaceRule::FreeClusters).into());
        }
        let usable = geometry.group_blocks(group) / geometry.cluster_blocks;
        let free = FreeMap::new(&recorded, usable);
        Ok(Self {
            recorded,
            free,
            unsettled: 0,
            kept: BTreeMap::new(),
        })
    }

    /// Free clusters that answer a request best.
    pub(super) fn find(&self, request: Request) -> Option<Range<u32>> {
        let Request { goal, want, need } = request;
        if let Some(goal) = goal {
            let end = self.free.run_end(goal, goal.saturating_add(want));
            let follows = goal == 0 || self.free.run_end(goal - 1, goal) < goal;
            let enough = if follows { 1 } else { want.min(GOAL_RUN_MIN) };
            if end - goal >= enough {
                return Some(goal..end);
            }
        }
        let goal = goal.unwrap_or(0);
        let run = self.free.first_run(goal, want).or_else(|| {
            let run = if goal > 0 {
                self.free.first_run(0, want)
            } else {
                None
            };
            run.or_else(|| self.free.longest_run())
        })?;
        let end = run.end.min(run.start.saturating_add(want));
        (end - run.start >= need).then_some(run.start..end)
    }

    /// Takes free clusters, in memory only.
    pub(super) fn take(&mut self, clusters: Range<u32>) {
        debug_assert!(self.free.is_free(clusters.clone()), "what is taken is free");
        self.unsettled += count(&clusters);
        self.free.assign(clusters, false);
    }

    /// Makes clusters free that are taken in memory only.
    pub(super) fn untake(&mut self, clusters: Range<u32>) {
        debug_assert!(
            self.is_recorded(clusters.clone(), false),
            "what becomes free is not recorded"
        );
        debug_assert!(self.unsettled >= count(&clusters), "it was not free before");
        self.unsettled = self.unsettled.saturating_sub(count(&clusters));
        self.free.assign(clusters, true);
    }

    /// Whether all of these clusters are taken, or all free, by the bitmap.
    pub(super) fn is_recorded(&self, mut clusters: Range<u32>, taken: bool) -> bool {
        clusters.all(|index| bitmap::is_set(&self.recorded, index) == taken)
    }
}

/// The clusters of a group that its descriptor counts; the last one may be cut off by the end of the
/// filesystem.
pub(super) fn clusters_counted(geometry: &Geometry, group: GroupNr) -> u32 {
    let blocks = geometry.group_blocks(group);
    blocks.div_ceil(geometry.cluster_blocks)
}

/// Sets or clears the bits of a range.
pub(super) fn assign(bits: &mut [u8], range: Range<u32>, set: bool) {
    let mut index = range.start;
    while index < range.end {
        let is_whole = index.is_multiple_of(8) && range.end - index >= 8;
        match bits.get_mut(index as usize / 8) {
            Some(byte) if is_whole => {
                *byte = if set { 0xff } else { 0 };
                index += 8;
            }
            Some(_) => {
                bitmap::assign(bits, index, set);
                index += 1;
            }
            None => break,
        }
    }
}

pub(super) fn count(clusters: &Range<u32>) -> u32 {
    clusters.end.saturating_sub(clusters.start)
}

/// With the bitmap that is needed, brings in those that usually lie behind it and are needed next.
fn read_ahead(volume: &Volume, group: GroupNr, desc: &GroupDesc) {
    let geometry = &volume.geometry;
    let flex = geometry.groups_per_flex;
    let rest = (flex - group.0 % flex).min(geometry.groups_count - group.0);
    if rest > 1 {
        volume.read_ahead_of(desc.block_bitmap, desc.block_bitmap, rest);
    }
}
