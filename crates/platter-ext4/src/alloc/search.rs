//! The search for free clusters: at the goal, in its group, near it, anywhere.

use std::ops::Range;

use platter_vfs::{Condition, Error, Result};

use super::group::Request;
use super::{Reserve, Space, Taken};
use crate::Volume;
use crate::ondisk::{BlockNr, GroupNr};

/// A run of so many blocks is long enough to end a search for longer ones, 8 MiB at 4 KiB a block.
const GOOD_RUN_BLOCKS: u32 = 2048;
/// A search for a long run looks into so many groups whose bitmap was never read.
const NEW_GROUPS_MAX: u32 = 16;
/// How often clusters that are known to be free are searched for while others take and free some.
const SEARCHES_MAX: u32 = 8;
/// Clusters taken at a time.
const TAKEN_CLUSTERS_MAX: u32 = 32_768;

/// What a search came to.
enum Outcome {
    Found(Taken),
    /// There is not so much space.
    Refused,
    /// There is space, but not among the clusters that may be used now.
    Missed,
}

impl Space {
    /// Takes up to `want` adjacent blocks, in memory only, as near to `goal` as there is room.
    /// The caller has no handle: what was freed may have to be made durable first.
    ///
    /// With clusters of several blocks whole ones are taken, and the blocks start with a cluster:
    /// where a block has to lie within its cluster, `want` counts from the cluster's start.
    ///
    /// # Errors
    /// `NoSpace`. `Corrupt` or `Io` if nothing is found but in groups that cannot be used.
    pub fn take(&self, volume: &Volume, goal: BlockNr, want: u32, from: Reserve) -> Result<Taken> {
        let mut searches = 0;
        loop {
            match self.search(volume, goal, want, from)? {
                Outcome::Found(taken) => return Ok(taken),
                Outcome::Refused => return Err(Condition::NoSpace.into()),
                Outcome::Missed => {}
            }
            searches += 1;
            if searches == SEARCHES_MAX {
                return Err(Condition::NoSpace.into());
            }
            self.settle(volume)?;
        }
    }

    /// Takes up to `want` adjacent blocks and records them: for metadata, by who has a handle.
    /// Changes [`RECORD_CREDITS`](super::RECORD_CREDITS) blocks.
    ///
    /// # Errors
    /// As for [`take`](Self::take). When there is `NoSpace` though [`has_pending`](Self::has_pending),
    /// dropping the handle, [`settle`](Self::settle) and another try may help.
    pub fn alloc(
        &self,
        volume: &Volume,
        handle: &mut crate::txn::Handle<'_>,
        goal: BlockNr,
        want: u32,
        from: Reserve,
    ) -> Result<Range<BlockNr>> {
        let Outcome::Found(taken) = self.search(volume, goal, want, from)? else {
            return Err(Condition::NoSpace.into());
        };
        let blocks = taken.blocks();
        self.record(volume, handle, taken)?;
        Ok(blocks)
    }

    /// Gives back blocks that were taken and nothing was recorded of.
    pub fn give_back(&self, taken: Taken) {
        for (group, clusters) in self.clusters_of(taken.clusters) {
            let count = clusters.len() as u64;
            if let Some(mut held) = self.loaded_clusters(group) {
                held.untake(clusters);
                self.slot(group).note(&held);
            }
            self.counters.unclaim(count, taken.from);
        }
    }

    /// Whether blocks were freed that cannot be used before a commit.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.counters.pending.get() > 0
    }

    /// Sees to it that what was freed so far may be used. The caller has no handle.
    pub fn settle(&self, volume: &Volume) -> Result<()> {
        match volume.log() {
            Some(log) if self.has_pending() => log.commit_all(),
            _ => Ok(()),
        }
    }

    fn search(&self, volume: &Volume, goal: BlockNr, want: u32, from: Reserve) -> Result<Outcome> {
        let geometry = &self.geometry;
        let want = want.max(1);
        let available = self.counters.claimable(from);
        if available == 0 {
            return Ok(Outcome::Refused);
        }
        let clusters = want.div_ceil(geometry.cluster_blocks);
        let clusters = u32::try_from(available).map_or(clusters, |most| most.min(clusters));
        let clusters = clusters.min(TAKEN_CLUSTERS_MAX);
        let goal_place = self
            .clusters_of(goal..BlockNr(goal.0.saturating_add(1)))
            .next();
        let (goal_group, goal) = goal_place.map_or((GroupNr(0), None), |(group, place)| {
            (group, Some(place.start))
        });
        let good_run = (GOOD_RUN_BLOCKS / geometry.cluster_blocks).max(1);
        let mut need = clusters.min(good_run);
        let mut failure = None;
        loop {
            let mut new_groups = 0;
            for group in self.groups_from(goal_group) {
                let slot = self.slot(group);
                let is_goal = group == goal_group;
                // A shorter run is welcome where the goal is.
                if !slot.may_hold(if is_goal { 1 } else { need }) {
                    continue;
                }
                if !slot.is_known() && !is_goal && need > 1 {
                    new_groups += 1;
                    if new_groups > NEW_GROUPS_MAX {
                        continue;
                    }
                }
                let request = Request {
                    goal: goal.filter(|_| is_goal),
                    want: clusters,
                    need,
                };
                match self.take_in(volume, group, request, from) {
                    Ok(None) => {}
                    Ok(Some(Claim::Granted(range))) => {
                        return Ok(Outcome::Found(self.taken(group, &range, want, from)));
                    }
                    Ok(Some(Claim::Refused)) => return Ok(Outcome::Refused),
                    Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
                        failure.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            if need == 1 {
                break;
            }
            need = (need / 4).max(1);
        }
        failure.map_or(Ok(Outcome::Missed), Err)
    }

    /// Takes clusters of one group, if it has such as are asked for.
    fn take_in(
        &self,
        volume: &Volume,
        group: GroupNr,
        request: Request,
        from: Reserve,
    ) -> Result<Option<Claim>> {
        let mut held = self.clusters(volume, group)?;
        let Some(found) = held.find(request) else {
            return Ok(None);
        };
        // Claimed only now: nobody is refused for clusters that another one did not find.
        let granted = self.counters.claim(super::group::count(&found), from);
        if granted == 0 {
            return Ok(Some(Claim::Refused));
        }
        let range = found.start..found.start + granted;
        held.take(range.clone());
        self.slot(group).note(&held);
        Ok(Some(Claim::Granted(range)))
    }

    fn taken(&self, group: GroupNr, range: &Range<u32>, want: u32, from: Reserve) -> Taken {
        let clusters = self.blocks_of(group, range);
        let blocks = clusters.end.0 - clusters.start.0;
        Taken {
            clusters,
            blocks: u32::try_from(blocks).map_or(want, |blocks| blocks.min(want)),
            from,
        }
    }

    /// All groups: first those that share their flexible group with the goal's, from it on.
    fn groups_from(&self, goal: GroupNr) -> impl Iterator<Item = GroupNr> + use<> {
        let count = self.geometry.groups_count;
        let flex = self.geometry.groups_per_flex;
        let first = goal.0 - goal.0 % flex;
        let end = count.min(first.saturating_add(flex));
        (goal.0..end)
            .chain(first..goal.0)
            .chain(end..count)
            .chain(0..first)
            .map(GroupNr)
    }
}

/// What came of clusters that were found.
enum Claim {
    Granted(Range<u32>),
    /// Others took what was left of the count.
    Refused,
}
