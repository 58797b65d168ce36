//! The usage of quota groups, changed by the extents that other subvolumes reach than before.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use super::limited::LimitedGroup;
use super::limits::CountingLimits;
use super::sets::{Set, Sets};
use super::stored::Stored;
use super::uncounted::Uncounted;
use crate::ondisk::qgroup::{QgroupInfo, QgroupLimit};
use crate::ondisk::{Generation, TreeId};

/// Bytes of extents by the subvolumes that reached them before, and those that do now.
#[derive(Debug, Default)]
pub struct Moves(HashMap<(Set, Set), u64>);

impl Moves {
    /// Adds an extent.
    pub fn add(&mut self, before: Set, after: Set, bytes: u64) {
        if before != after {
            let sum = self.0.entry((before, after)).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
}

/// Quota groups and their usage.
///
/// Usage is as of the last commit while a transaction runs.
#[derive(Debug, Default)]
pub struct Groups {
    pub(super) infos: BTreeMap<u64, QgroupInfo>,
    /// The groups that a group is a member of.
    pub(super) above: BTreeMap<u64, BTreeSet<u64>>,
    /// Groups whose usage is to be stored.
    dirty: BTreeSet<u64>,
    /// Groups without items.
    new: BTreeSet<u64>,
    /// Limits that are to be stored.
    changed_limits: BTreeMap<u64, QgroupLimit>,
    /// Subvolumes of which nothing is left.
    gone: BTreeSet<TreeId>,
    /// Groups with limits, and what is reserved of them.
    pub(super) limited: BTreeMap<u64, LimitedGroup>,
    /// The groups with limits that subvolumes are in, as far as they were looked up.
    pub(super) limited_of: HashMap<TreeId, Arc<[u64]>>,
}

/// A group whose items are to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtyGroup {
    /// Its number.
    pub id: u64,
    /// Its usage.
    pub info: QgroupInfo,
    /// Its limits, if they changed.
    pub limit: Option<QgroupLimit>,
    /// It has no items yet.
    pub is_new: bool,
    /// The groups that it is a member of, if it is new.
    pub above: BTreeSet<u64>,
}

impl Groups {
    /// The groups that the quota tree has.
    #[must_use]
    pub fn new(stored: Stored) -> Self {
        let mut above: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (group, members) in stored.members {
            for member in members {
                above.entry(member).or_default().insert(group);
            }
        }
        let mut groups = Self {
            infos: stored.infos,
            above,
            ..Self::default()
        };
        for (id, limit) in stored.limits {
            groups.limit(id, limit);
        }
        groups
    }

    /// Adds the group of a new subvolume, unless there is one.
    pub fn create(&mut self, id: TreeId) {
        if let Entry::Vacant(place) = self.infos.entry(id.0) {
            place.insert(QgroupInfo::default());
            self.new.insert(id.0);
            self.changed_limits.insert(id.0, QgroupLimit::default());
            self.dirty.insert(id.0);
        }
    }

    /// Puts the group of a new subvolume into the groups that the one of `container` is in, as the kernel does with
    /// simple quotas.
    pub fn inherit_groups(&mut self, id: TreeId, container: TreeId) {
        if self.new.contains(&id.0)
            && let Some(above) = self.above.get(&container.0).cloned()
        {
            self.above.insert(id.0, above);
        }
    }

    /// Sets the limits of the group of a snapshot to those of its source, as the kernel does without simple quotas.
    pub fn inherit_limits(&mut self, id: TreeId, source: TreeId) {
        if !self.infos.contains_key(&source.0) {
            return;
        }
        let limit = self.limited.get(&source.0).map(LimitedGroup::limit);
        let limit = limit.unwrap_or_default();
        let old = self.limited.get(&id.0).map(LimitedGroup::limit);
        if old.unwrap_or_default() != limit {
            self.limit(id.0, limit);
            self.changed_limits.insert(id.0, limit);
            self.dirty.insert(id.0);
        }
    }

    /// Adds to the usage of the group of a subvolume, and of all above it, what it allocated, and takes off what of it
    /// was freed.
    pub fn charge(&mut self, owner: TreeId, (allocated, freed): (u64, u64)) {
        for group in self.all_above(owner) {
            if let Some(info) = self.infos.get_mut(&group) {
                for usage in [&mut info.referenced.0, &mut info.exclusive.0] {
                    // What older kernels did not add may be taken off.
                    *usage = usage.saturating_add(allocated).saturating_sub(freed);
                }
                self.dirty.insert(group);
            }
        }
    }

    /// The group of a subvolume, and all groups above it, of those that there are.
    pub(super) fn all_above(&self, id: TreeId) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        let mut pending = vec![id.0];
        while let Some(id) = pending.pop() {
            if self.infos.contains_key(&id) && found.insert(id) {
                pending.extend(self.above.get(&id).into_iter().flatten());
            }
        }
        found
    }

    /// Whether the usage after a snapshot follows from that of its source alone: neither is in another group.
    #[must_use]
    pub fn snapshot_is_simple(&self, source: TreeId, snapshot: TreeId) -> bool {
        let is_alone =
            |id: TreeId| self.infos.contains_key(&id.0) && !self.above.contains_key(&id.0);
        is_alone(source) && is_alone(snapshot)
    }

    /// Counts a snapshot that [follows from its source](Self::snapshot_is_simple): all but the two roots is shared.
    pub fn count_snapshot(&mut self, source: TreeId, snapshot: TreeId, root_bytes: u64) {
        let Some(info) = self.infos.get_mut(&source.0) else {
            return;
        };
        info.exclusive = (root_bytes, root_bytes);
        let copy = *info;
        self.infos.insert(snapshot.0, copy);
        self.dirty.extend([source.0, snapshot.0]);
    }

    /// Changes the usage of all groups.
    ///
    /// # Errors
    /// Too much to look at; usage that is less than what was counted before. Nothing is known of usage any more then.
    pub fn apply(
        &mut self,
        sets: &Sets,
        moves: &Moves,
        limits: &CountingLimits,
    ) -> Result<(), Uncounted> {
        let mut looks_left = limits.group_looks_max;
        let mut ids_left = limits.group_ids_max;
        let mut groups_of: HashMap<TreeId, Rc<[u64]>> = HashMap::new();
        for (&(before, after), &bytes) in &moves.0 {
            let (before, after) = (sets.members(before), sets.members(after));
            // In how many subvolumes of a group, before and now.
            let mut counts: BTreeMap<u64, [usize; 2]> = BTreeMap::new();
            for (side, members) in [before, after].into_iter().enumerate() {
                for member in members {
                    let groups = if let Some(groups) = groups_of.get(member) {
                        Rc::clone(groups)
                    } else {
                        let groups = self.groups_of(*member, &mut looks_left)?;
                        take(&mut ids_left, groups.len())?;
                        groups_of.insert(*member, Rc::clone(&groups));
                        groups
                    };
                    take(&mut looks_left, groups.len() + 1)?;
                    for group in &*groups {
                        counts.entry(*group).or_default()[side] += 1;
                    }
                }
            }
            let all = [before.len(), after.len()];
            for (group, counts) in counts {
                let Some(info) = self.infos.get_mut(&group) else {
                    continue;
                };
                let is_reached = counts.map(|count| count > 0);
                let is_alone = [0, 1].map(|side| is_reached[side] && counts[side] == all[side]);
                let changed = [
                    change(&mut info.referenced, is_reached, bytes),
                    change(&mut info.exclusive, is_alone, bytes),
                ];
                for changed in changed {
                    if changed.ok_or(Uncounted::Usage)? {
                        self.dirty.insert(group);
                    }
                }
            }
        }
        Ok(())
    }

    /// The group of a subvolume, and all groups above it, of those that there are.
    fn groups_of(&self, id: TreeId, looks_left: &mut usize) -> Result<Rc<[u64]>, Uncounted> {
        let mut found = BTreeSet::new();
        let mut pending = vec![id.0];
        while let Some(id) = pending.pop() {
            take(looks_left, 1)?;
            if self.infos.contains_key(&id) && found.insert(id) {
                pending.extend(self.above.get(&id).into_iter().flatten());
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Says that nothing is left of a subvolume.
    pub fn drop_subvolume(&mut self, id: TreeId) {
        self.gone.insert(id);
    }

    /// Removes the groups of subvolumes of which nothing is left, as the kernel does. Returns them with the groups that
    /// they were in. Those that have usage stay: it is not right.
    pub fn take_gone(&mut self) -> Vec<(u64, BTreeSet<u64>)> {
        let mut taken = Vec::new();
        for TreeId(id) in std::mem::take(&mut self.gone) {
            let is_unused = |info: &QgroupInfo| info.referenced.0 == 0 && info.exclusive.0 == 0;
            if self.infos.get(&id).is_some_and(is_unused) {
                self.infos.remove(&id);
                self.dirty.remove(&id);
                self.changed_limits.remove(&id);
                self.limited.remove(&id);
                self.limited_of.remove(&TreeId(id));
                let above = self.above.remove(&id).unwrap_or_default();
                // It has no items yet if it is new.
                if !self.new.remove(&id) {
                    taken.push((id, above));
                }
            }
        }
        taken
    }

    /// Takes the groups whose items are to be stored.
    pub fn take_dirty(&mut self, generation: Generation) -> Vec<DirtyGroup> {
        let mut taken = Vec::new();
        for id in std::mem::take(&mut self.dirty) {
            if let Some(info) = self.infos.get_mut(&id) {
                info.generation = generation;
                let is_new = self.new.remove(&id);
                let above = self.above.get(&id).filter(|_| is_new);
                taken.push(DirtyGroup {
                    id,
                    info: *info,
                    limit: self.changed_limits.remove(&id),
                    is_new,
                    above: above.cloned().unwrap_or_default(),
                });
            }
        }
        taken
    }
}

/// Takes what is looked at off what is left.
fn take(left: &mut usize, count: usize) -> Result<(), Uncounted> {
    *left = left.checked_sub(count).ok_or(Uncounted::Groups)?;
    Ok(())
}

/// Adds or takes off bytes that count now or did before. Returns whether that changed anything; `None` if it cannot
/// be.
fn change(usage: &mut (u64, u64), counts: [bool; 2], bytes: u64) -> Option<bool> {
    let change = |value: u64| match counts {
        [false, true] => value.checked_add(bytes),
        [true, false] => value.checked_sub(bytes),
        [_, _] => Some(value),
    };
    *usage = (change(usage.0)?, change(usage.1)?);
    Some(counts[0] != counts[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::types::QGROUP_LEVEL_ONE;

    const GROUP: u64 = QGROUP_LEVEL_ONE;

    fn groups() -> Groups {
        let mut stored = Stored::default();
        for id in [5, 256, 257, GROUP, 2 * GROUP] {
            stored.infos.insert(id, QgroupInfo::default());
        }
        stored.members.insert(GROUP, [256, 257].into());
        stored.members.insert(2 * GROUP, [GROUP, 256].into());
        Groups::new(stored)
    }

    fn usage(groups: &Groups, id: u64) -> (u64, u64) {
        let info = groups.infos[&id];
        assert_eq!(info.referenced.0, info.referenced.1);
        (info.referenced.0, info.exclusive.0)
    }

    #[test]
    fn usage_follows_the_subvolumes_that_reach_an_extent() {
        let (mut groups, mut sets) = (groups(), Sets::default());
        let mut set = |ids: &[u64]| {
            let ids: Rc<[TreeId]> = ids.iter().map(|id| TreeId(*id)).collect();
            sets.of(ids).unwrap()
        };
        let (none, one, both) = (set(&[]), set(&[256]), set(&[256, 257]));
        let with_top = set(&[5, 256, 257]);
        let mut run = |before, after, bytes| {
            let mut moves = Moves::default();
            moves.add(before, after, bytes);
            groups
                .apply(&sets, &moves, &CountingLimits::DEFAULT)
                .unwrap();
            [5, 256, 257, GROUP, 2 * GROUP].map(|id| usage(&groups, id))
        };
        let zero = (0, 0);
        let all = (10, 10);
        assert_eq!(run(none, one, 10), [zero, all, zero, all, all]);
        assert_eq!(run(one, both, 10), [zero, (10, 0), (10, 0), all, all]);
        let shared = (10, 0);
        assert_eq!(run(both, with_top, 10), [shared; 5]);
        assert_eq!(run(with_top, one, 10), [zero, all, zero, all, all]);
        assert_eq!(run(one, none, 10), [zero; 5]);
        assert_eq!(groups.take_dirty(Generation(7)).len(), 5);
    }

    #[test]
    fn group_of_a_subvolume_goes_with_it() {
        let mut groups = groups();
        groups.infos.get_mut(&5).unwrap().referenced = (1, 1);
        for id in [5, 256, 999] {
            groups.drop_subvolume(TreeId(id));
        }
        assert_eq!(groups.take_gone(), [(256, [GROUP, 2 * GROUP].into())]);
        assert!(groups.take_gone().is_empty() && groups.infos.contains_key(&5));
    }

    #[test]
    fn usage_that_does_not_fit_is_not_known() {
        let (mut groups, mut sets) = (groups(), Sets::default());
        let none = sets.of(Rc::new([])).unwrap();
        let one = sets.of(Rc::new([TreeId(256)])).unwrap();
        let mut moves = Moves::default();
        moves.add(one, none, 1);
        let applied = groups.apply(&sets, &moves, &CountingLimits::DEFAULT);
        assert!(matches!(applied, Err(Uncounted::Usage)), "{applied:?}");
    }

    #[test]
    fn groups_are_looked_at_within_limits() {
        let mut sets = Sets::default();
        let none = sets.of(Rc::new([])).unwrap();
        let both = sets.of(Rc::new([TreeId(256), TreeId(257)])).unwrap();
        let mut moves = Moves::default();
        moves.add(none, both, 1);
        // 256 and 257 are in the group of the first level, which is in that of the second, as 256 is.
        let limits = CountingLimits {
            group_looks_max: 4 + 3 + 4 + 4,
            group_ids_max: 6,
            ..CountingLimits::DEFAULT
        };
        let apply = |limits: &CountingLimits| groups().apply(&sets, &moves, limits);
        assert!(apply(&limits).is_ok());
        for less in [
            CountingLimits {
                group_looks_max: limits.group_looks_max - 1,
                ..limits
            },
            CountingLimits {
                group_ids_max: limits.group_ids_max - 1,
                ..limits
            },
        ] {
            assert!(matches!(apply(&less), Err(Uncounted::Groups)), "{less:?}");
        }
    }

    #[test]
    fn snapshot_shares_all_but_its_root() {
        let mut groups = groups();
        let (source, snapshot) = (TreeId(5), TreeId(300));
        groups.infos.get_mut(&5).unwrap().referenced = (100, 100);
        groups.infos.get_mut(&5).unwrap().exclusive = (90, 90);
        assert!(!groups.snapshot_is_simple(source, snapshot));
        groups.create(snapshot);
        assert!(groups.snapshot_is_simple(source, snapshot));
        assert!(!groups.snapshot_is_simple(TreeId(256), snapshot));
        groups.count_snapshot(source, snapshot, 16);
        assert_eq!(usage(&groups, 5), (100, 16));
        assert_eq!(usage(&groups, 300), (100, 16));
        let dirty = groups.take_dirty(Generation(9));
        let new: Vec<_> = dirty.iter().filter(|group| group.is_new).collect();
        assert_eq!((dirty.len(), new.len()), (2, 1));
    }

    #[test]
    fn simple_usage_is_that_of_the_owner_and_all_above() {
        let mut groups = groups();
        groups.charge(TreeId(256), (30, 10));
        groups.charge(TreeId(257), (5, 0));
        groups.charge(TreeId(999), (5, 0));
        let simple = |groups: &Groups, id: u64| {
            let info = groups.infos[&id];
            assert_eq!(info.referenced.0, info.exclusive.0);
            info.referenced.0
        };
        let all = |groups: &Groups| [5, 256, 257, GROUP, 2 * GROUP].map(|id| simple(groups, id));
        assert_eq!(all(&groups), [0, 20, 5, 25, 25]);
        // A group that was not charged with all that is freed.
        groups.charge(TreeId(257), (0, 9));
        assert_eq!(all(&groups), [0, 20, 0, 16, 16]);
        groups.create(TreeId(300));
        groups.inherit_groups(TreeId(300), TreeId(256));
        groups.charge(TreeId(300), (1, 0));
        assert_eq!(all(&groups), [0, 20, 0, 17, 17]);
        let dirty = groups.take_dirty(Generation(9));
        let new: Vec<_> = dirty.iter().filter(|group| group.is_new).collect();
        assert_eq!(new[0].above, [GROUP, 2 * GROUP].into());
    }
}
