//! The clusters of one group: its bitmap, and the clusters that are in use otherwise.

use std::collections::BTreeMap;
use std::ops::Range;

use platter_ondisk::verify::{Unverified, Verify};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result};

use super::SpaceRule;
use super::free_map::FreeMap;
use super::ranges::BlockRanges;
use super::recording::Recording;
use crate::FsContext;
use crate::groups::{self, layout};
use crate::ondisk::bitmap::{self, BitmapVerifier};
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{Geometry, GroupDesc, GroupNr};

/// Minimum length of a run at the goal that is used although it is shorter than requested.
const GOAL_RUN_MIN: u32 = 16;

/// The clusters of a group with a valid bitmap.
///
/// # Invariants
/// Clusters free in `free` are free in `recorded`; `unfinished` counts the clusters that are free in
/// `recorded` only: allocated in memory, preallocated, or freed by a transaction that is not
/// durable.
#[derive(Debug)]
pub(super) struct Clusters {
    /// The bitmap in the state of the running transaction.
    pub(super) recorded: Box<[u8]>,
    pub(super) recording: Recording,
    pub(super) free: FreeMap,
    pub(super) unfinished: u32,
    /// The descriptor may not agree with the bitmap.
    pub(super) may_disagree: bool,
    /// Preallocated clusters of growing files, by the first cluster: the end, and a number.
    pub(super) kept: BTreeMap<u32, (u32, u64)>,
}

/// A request to a group, in clusters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// The preferred start, in its group.
    pub(super) goal: Option<u32>,
    /// The maximum useful number.
    pub(super) want: u32,
    /// The minimum useful number. At most `want`.
    pub(super) need: u32,
}

impl Clusters {
    /// Reads the bitmap of a group, or computes an uninitialized one. In a replay, which has
    /// `excluded`, it counts whatever its descriptor says.
    pub(super) fn load(
        fs: &FsContext,
        fixed: &BlockRanges,
        excluded: Option<&BlockRanges>,
        group: GroupNr,
    ) -> Result<Self> {
        let geometry = &fs.geometry;
        let desc = groups::read_descriptor(fs, group)?;
        let corrupt = |rule| {
            let locus = Locus::group(u64::from(group.0)).at_block(desc.block_bitmap.0);
            Error::from(Corrupt::new(locus, rule))
        };
        let counted = layout::clusters_counted(geometry, group);
        let first = geometry.group_first_block(group).0;
        let blocks = first..first + u64::from(geometry.group_blocks(group));
        let fixed = fixed.within(blocks.clone());
        let is_new = desc.flags.contains(GroupFlags::BLOCK_UNINIT);
        let mut may_disagree = false;
        let recorded = if is_new {
            layout::fresh_bitmap(geometry, group, fixed)
        } else {
            read_ahead(fs, group, &desc);
            let verifier = BitmapVerifier::of_blocks(group, &desc, geometry);
            let buffer = if excluded.is_some() {
                let buffer = fs.read_block(desc.block_bitmap, &Unverified)?;
                may_disagree = verifier.verify(desc.block_bitmap.0, &buffer).is_err();
                buffer
            } else {
                fs.read_block(desc.block_bitmap, &verifier)?
            };
            let mut bits = buffer.to_vec();
            let mut own = layout::clusters(geometry, group, fixed);
            if !own.all(|clusters| bitmap::has_range(&bits, clusters, true)) {
                return Err(corrupt(SpaceRule::MetadataFree));
            }
            layout::pad(&mut bits, counted);
            bits
        };
        if bitmap::count_clear(&recorded, counted) != desc.free_clusters {
            if excluded.is_none() {
                return Err(corrupt(SpaceRule::FreeClusters));
            }
            may_disagree = true;
        }
        let usable = geometry.group_blocks(group) / geometry.cluster_blocks;
        let mut free = FreeMap::new(&recorded, usable);
        if let Some(excluded) = excluded {
            for clusters in layout::clusters(geometry, group, excluded.within(blocks)) {
                free.assign(clusters, false);
            }
        }
        Ok(Self {
            recorded: recorded.into(),
            recording: Recording::of(desc.block_bitmap, is_new),
            free,
            unfinished: 0,
            may_disagree,
            kept: BTreeMap::new(),
        })
    }

    /// Returns the free clusters that fit a request best.
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

    /// Allocates free clusters, in memory only.
    pub(super) fn take(&mut self, clusters: Range<u32>) {
        debug_assert!(self.free.is_free(clusters.clone()), "what is taken is free");
        self.unfinished += count(&clusters);
        self.free.assign(clusters, false);
    }

    /// Frees clusters that are allocated in memory only.
    pub(super) fn untake(&mut self, clusters: Range<u32>) {
        debug_assert!(
            self.is_recorded(clusters.clone(), false),
            "what becomes free is not recorded"
        );
        debug_assert!(
            self.unfinished >= count(&clusters),
            "it was not free before"
        );
        self.unfinished = self.unfinished.saturating_sub(count(&clusters));
        self.free.assign(clusters, true);
    }

    /// Updates the group's descriptor.
    pub(super) fn describe(&self, desc: &mut GroupDesc, group: GroupNr, geometry: &Geometry) {
        let counted = layout::clusters_counted(geometry, group);
        desc.free_clusters = bitmap::count_clear(&self.recorded, counted);
        desc.flags.remove(GroupFlags::BLOCK_UNINIT);
        let bits = geometry.clusters_per_group;
        let sum = bitmap::expected_checksum(&self.recorded, bits, geometry);
        desc.block_bitmap_checksum = sum.unwrap_or(desc.block_bitmap_checksum);
    }

    /// Whether all of these clusters are in use, or all free, in the bitmap.
    pub(super) fn is_recorded(&self, clusters: Range<u32>, taken: bool) -> bool {
        bitmap::has_range(&self.recorded, clusters, taken)
    }
}

pub(super) fn count(clusters: &Range<u32>) -> u32 {
    clusters.end.saturating_sub(clusters.start)
}

/// Reads adjacent bitmaps along with the needed one, as they are usually needed next.
fn read_ahead(fs: &FsContext, group: GroupNr, desc: &GroupDesc) {
    let geometry = &fs.geometry;
    let flex = geometry.groups_per_flex;
    let rest = (flex - group.0 % flex).min(geometry.groups_count - group.0);
    if rest > 1 {
        fs.read_ahead_of(desc.block_bitmap, desc.block_bitmap, rest);
    }
}
