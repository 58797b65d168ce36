//! The group of a new inode: the Orlov allocator.
//!
//! Directories in the root or a top-level directory are spread over groups with space; other
//! directories stay near their parent unless that is crowded, and files stay in their directory's
//! group.

use platter_vfs::FileKind;

use super::counters::Counters;
use super::slot::Slot;
use super::{Allocator, FLEX_GROUPS_MIN};
use crate::ondisk::{Geometry, GroupNr, Inode, InodeFlags, InodeNr};

/// A flex group may be below average in one resource by this fraction.
const NEARLY: u64 = 16;

/// The groups of a flex group, considered together.
#[derive(Debug, Clone, Copy)]
struct Region {
    first: u32,
    groups: u32,
}

impl Region {
    /// Returns its groups, from `goal` on, in a permutation that depends on `goal`: if their number
    /// is a power of two, directories of different groups that outgrow them at the same rate do not
    /// collide in the next one.
    fn groups_from(self, goal: GroupNr) -> impl Iterator<Item = u32> {
        let place = goal.0.saturating_sub(self.first);
        let places = (0..self.groups.next_power_of_two()).map(move |step| place ^ step);
        let groups = places.filter(move |&place| place < self.groups);
        groups.map(move |place| self.first + place)
    }
}

/// The free resources of a flex group.
#[derive(Debug, Clone, Copy, Default)]
struct FreeCounts {
    free_inodes: u64,
    free_clusters: u64,
    directories: u64,
}

/// What is known of the groups of a filesystem without reading their bitmaps.
pub(super) struct Regions<'s> {
    geometry: &'s Geometry,
    slots: &'s [Slot],
    counters: &'s Counters,
}

impl<'s> Regions<'s> {
    /// Returns those of an allocator.
    pub(super) fn of(space: &'s Allocator) -> Self {
        Self {
            geometry: &space.geometry,
            slots: &space.slots,
            counters: &space.counters,
        }
    }

    fn slot(&self, group: GroupNr) -> &Slot {
        &self.slots[group.0 as usize]
    }

    /// Returns the group in which a new inode is searched first.
    pub(super) fn inode_group(&self, parent: &Inode, kind: FileKind, random: u64) -> GroupNr {
        let place = self.geometry.group_of_inode(parent.number);
        let goal = place.map_or(GroupNr(0), |(group, _)| group);
        if kind != FileKind::Directory {
            return self.group_of_file(parent.number, goal);
        }
        let is_top = parent.number == InodeNr::ROOT || parent.flags.contains(InodeFlags::TOP_DIR);
        let region = if is_top {
            self.best_region(random)
        } else {
            None
        };
        let region = region.or_else(|| self.near_region(goal));
        let region = region.or_else(|| self.any_region(goal));
        // The caller continues with the following groups in any case.
        region.map_or(goal, |region| self.emptiest_group(region).unwrap_or(goal))
    }

    /// Returns the flex group with the fewest directories among those near or above average in
    /// inodes and space; a random one of several.
    fn best_region(&self, random: u64) -> Option<Region> {
        let regions = u64::from(self.count());
        let start = random % regions;
        let average = self.average();
        let nearly = |share: u64| share - share / NEARLY;
        let mut best: Option<(u64, Region)> = None;
        for step in 0..regions {
            let region = self.region((start + step) % regions);
            let free = self.free_counts(region);
            let has_share = free.free_inodes > 0
                && free.free_inodes >= nearly(average.free_inodes)
                && free.free_clusters >= nearly(average.free_clusters);
            let is_better = best.is_none_or(|(fewest, _)| free.directories < fewest);
            if has_share && is_better {
                best = Some((free.directories, region));
            }
        }
        best.map(|(_, region)| region)
    }

    /// Returns the next flex group from the parent's on that is not crowded.
    fn near_region(&self, goal: GroupNr) -> Option<Region> {
        let average = self.average();
        let groups = u64::from(self.region_groups());
        let inodes = u64::from(self.geometry.inodes_per_group) * groups;
        let clusters = u64::from(self.geometry.clusters_per_group) * groups;
        let directories_max = average.directories + inodes / 16;
        let inodes_min = average.free_inodes.saturating_sub(inodes / 4).max(1);
        let clusters_min = average.free_clusters.saturating_sub(clusters / 4);
        self.regions_from(goal).find(|&region| {
            let free = self.free_counts(region);
            free.directories < directories_max
                && free.free_inodes >= inodes_min
                && free.free_clusters >= clusters_min
        })
    }

    fn any_region(&self, goal: GroupNr) -> Option<Region> {
        let average = self.average().free_inodes;
        let with = |least: u64| {
            let mut regions = self.regions_from(goal);
            regions.find(|&region| self.free_counts(region).free_inodes >= least.max(1))
        };
        with(average).or_else(|| with(1))
    }

    /// Returns the directory's group, or another one of its flex group; failing that, groups in an
    /// order that is the same for all files of one directory and differs between directories.
    fn group_of_file(&self, parent: InodeNr, goal: GroupNr) -> GroupNr {
        let near = self.region(u64::from(goal.0 / self.region_groups()));
        let mut in_region = near.groups_from(goal);
        let fits = |group: &u32| {
            let slot = self.slot(GroupNr(*group));
            slot.has_inodes() && slot.free() > 0
        };
        if let Some(group) = in_region.find(fits) {
            return GroupNr(group);
        }
        let count = u64::from(self.geometry.groups_count);
        let mut group = (u64::from(goal.0) + u64::from(parent.get())) % count;
        let mut step = 1;
        while step < count {
            group = (group + step) % count;
            let candidate = u32::try_from(group).unwrap_or(0);
            if fits(&candidate) {
                return GroupNr(candidate);
            }
            step *= 2;
        }
        goal
    }

    /// Returns the group with the fewest directories among those of a flex group with free inodes.
    /// Directories in different groups share no bitmap and no inode table block.
    fn emptiest_group(&self, region: Region) -> Option<GroupNr> {
        let groups = region.first..region.first + region.groups;
        let groups = groups.map(GroupNr);
        let with_inodes = groups.filter(|&group| self.slot(group).has_inodes());
        with_inodes.min_by_key(|&group| self.slot(group).directories())
    }

    /// Returns the number of groups of a flex group; the last one may have fewer.
    fn region_groups(&self) -> u32 {
        let flex = self.geometry.groups_per_flex;
        if flex >= FLEX_GROUPS_MIN { flex } else { 1 }
    }

    fn count(&self) -> u32 {
        self.geometry.groups_count.div_ceil(self.region_groups())
    }

    fn region(&self, index: u64) -> Region {
        let groups = self.region_groups();
        let last = self.geometry.groups_count - 1;
        let first = u32::try_from(index).unwrap_or(u32::MAX);
        let first = first.saturating_mul(groups).min(last);
        Region {
            first,
            groups: groups.min(self.geometry.groups_count - first),
        }
    }

    /// Returns all flex groups, that of `goal` first.
    fn regions_from(&self, goal: GroupNr) -> impl Iterator<Item = Region> + '_ {
        let regions = u64::from(self.count());
        let start = u64::from(goal.0 / self.region_groups());
        (0..regions).map(move |step| self.region((start + step) % regions))
    }

    fn free_counts(&self, region: Region) -> FreeCounts {
        let mut free = FreeCounts::default();
        for group in region.first..region.first + region.groups {
            let slot = self.slot(GroupNr(group));
            free.free_inodes += u64::from(slot.free_inodes());
            free.free_clusters += u64::from(slot.free());
            free.directories += u64::from(slot.directories());
        }
        free
    }

    /// Returns the average free resources of a flex group.
    fn average(&self) -> FreeCounts {
        let regions = u64::from(self.count());
        FreeCounts {
            free_inodes: self.counters.free_inodes.get() / regions,
            free_clusters: self.counters.available() / regions,
            directories: self.counters.directories.get() / regions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_different_groups_overflow_apart() {
        let region = Region {
            first: 32,
            groups: 13,
        };
        let orders: Vec<Vec<u32>> = (32..45)
            .map(|goal| region.groups_from(GroupNr(goal)).collect())
            .collect();
        for (goal, order) in (32..45).zip(&orders) {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(order[0], goal);
            assert_eq!(sorted, (32..45).collect::<Vec<u32>>());
        }
        let whole = Region {
            groups: 16,
            ..region
        };
        for step in 0..16 {
            let mut reached: Vec<u32> = (32..48)
                .filter_map(|goal| whole.groups_from(GroupNr(goal)).nth(step))
                .collect();
            reached.sort_unstable();
            assert_eq!(reached, (32..48).collect::<Vec<u32>>());
        }
    }
}
