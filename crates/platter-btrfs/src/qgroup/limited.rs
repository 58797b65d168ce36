//! Limits of quota groups, and what is reserved of them.

use std::sync::Arc;

use super::groups::Groups;
use crate::ondisk::TreeId;
use crate::ondisk::qgroup::{LimitFlags, QgroupLimit};

/// Groups in all lists of groups that are remembered.
const REMEMBERED_MAX: usize = 1 << 20;

/// A group with limits.
#[derive(Debug, Default)]
pub(super) struct LimitedGroup {
    limit: QgroupLimit,
    /// Bytes that are reserved and not allocated yet.
    reserved: u64,
    /// Bytes that the running transaction allocated, which are not in its usage yet.
    allocated: u64,
}

/// A limit would be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// A commit may make it fit: the running transaction changed what the group has.
    pub can_change: bool,
}

impl LimitedGroup {
    /// Its limits.
    #[must_use]
    pub(super) fn limit(&self) -> QgroupLimit {
        self.limit
    }

    /// Whether `bytes` more are within the limits of a group with this usage.
    fn has_place(&self, (referenced, exclusive): (u64, u64), bytes: u64) -> bool {
        let more = self.reserved.saturating_add(self.allocated);
        let more = more.saturating_add(bytes);
        let flags = LimitFlags::from_bits_retain(self.limit.flags);
        let is_within =
            |flag, usage: u64, most| !flags.contains(flag) || usage.saturating_add(more) <= most;
        is_within(
            LimitFlags::REFERENCED,
            referenced,
            self.limit.referenced_max,
        ) && is_within(LimitFlags::EXCLUSIVE, exclusive, self.limit.exclusive_max)
    }
}

impl Groups {
    /// Whether a group has limits.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        !self.limited.is_empty()
    }

    /// Sets the limits of a group.
    pub(super) fn limit(&mut self, id: u64, limit: QgroupLimit) {
        let old = self.limited.remove(&id);
        if limit.flags != 0 {
            let group = LimitedGroup {
                limit,
                ..old.unwrap_or_default()
            };
            self.limited.insert(id, group);
        }
        self.limited_of.clear();
    }

    /// Reserves bytes for a subvolume in all groups that it is in, if `spare` more would be within their limits.
    ///
    /// # Errors
    /// They would not; nothing is reserved.
    pub fn reserve(&mut self, tree: TreeId, bytes: u64, spare: u64) -> Result<(), Exceeded> {
        let groups = self.limited_of(tree);
        for id in &*groups {
            let (Some(group), Some(info)) = (self.limited.get(id), self.infos.get(id)) else {
                continue;
            };
            let usage = (info.referenced.0, info.exclusive.0);
            if !group.has_place(usage, bytes.saturating_add(spare)) {
                return Err(Exceeded {
                    can_change: group.allocated > 0,
                });
            }
        }
        self.reserve_beyond(tree, bytes);
        Ok(())
    }

    /// Reserves bytes for a subvolume, be it beyond the limits.
    pub fn reserve_beyond(&mut self, tree: TreeId, bytes: u64) {
        let groups = self.limited_of(tree);
        self.each_limited(&groups, |group| {
            group.reserved = group.reserved.saturating_add(bytes);
        });
    }

    /// Whether something is reserved in a group with limits that a subvolume is in.
    #[must_use]
    pub fn has_reserved(&mut self, tree: TreeId) -> bool {
        let groups = self.limited_of(tree);
        let mut groups = groups.iter().filter_map(|id| self.limited.get(id));
        groups.any(|group| group.reserved > 0)
    }

    /// Returns a reservation.
    pub fn release(&mut self, tree: TreeId, bytes: u64) {
        let groups = self.limited_of(tree);
        self.each_limited(&groups, |group| {
            group.reserved = group.reserved.saturating_sub(bytes);
        });
    }

    /// Counts what a subvolume allocated until the transaction is counted.
    pub fn hold_allocated(&mut self, tree: TreeId, bytes: u64) {
        let groups = self.limited_of(tree);
        self.each_limited(&groups, |group| {
            group.allocated = group.allocated.saturating_add(bytes);
        });
    }

    /// Says that all that was allocated is in the usage of groups.
    pub fn drop_allocated(&mut self) {
        for group in self.limited.values_mut() {
            group.allocated = 0;
        }
    }

    fn each_limited(&mut self, groups: &[u64], change: impl Fn(&mut LimitedGroup)) {
        for id in groups {
            if let Some(group) = self.limited.get_mut(id) {
                change(group);
            }
        }
    }

    /// The groups with limits among that of a subvolume and all above it.
    fn limited_of(&mut self, tree: TreeId) -> Arc<[u64]> {
        if let Some(known) = self.limited_of.get(&tree) {
            return Arc::clone(known);
        }
        let above = self.all_above(tree).into_iter();
        let limited: Arc<[u64]> = above.filter(|id| self.limited.contains_key(id)).collect();
        let remembered: usize = self.limited_of.values().map(|it| it.len() + 1).sum();
        if remembered > REMEMBERED_MAX {
            self.limited_of.clear();
        }
        // A subvolume without a group may get one.
        if self.infos.contains_key(&tree.0) {
            self.limited_of.insert(tree, Arc::clone(&limited));
        }
        limited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::qgroup::QgroupInfo;
    use crate::ondisk::types::QGROUP_LEVEL_ONE;
    use crate::qgroup::Stored;

    const GROUP: u64 = QGROUP_LEVEL_ONE;
    const ONE: TreeId = TreeId(256);
    const OTHER: TreeId = TreeId(257);
    const EXCEEDED: Exceeded = Exceeded { can_change: false };

    fn limit(flags: LimitFlags, most: u64) -> QgroupLimit {
        QgroupLimit {
            flags: flags.bits(),
            referenced_max: most,
            exclusive_max: most,
            ..QgroupLimit::default()
        }
    }

    /// Two subvolumes of 20 bytes, 5 of them exclusive, in a group of 40 bytes.
    fn groups(limits: &[(u64, QgroupLimit)]) -> Groups {
        let mut stored = Stored::default();
        for (id, referenced, exclusive) in [(256, 20, 5), (257, 20, 5), (GROUP, 40, 40)] {
            let info = QgroupInfo {
                referenced: (referenced, referenced),
                exclusive: (exclusive, exclusive),
                ..QgroupInfo::default()
            };
            stored.infos.insert(id, info);
        }
        stored.members.insert(GROUP, [256, 257].into());
        stored.limits.extend(limits.iter().copied());
        Groups::new(stored)
    }

    #[test]
    fn reservations_stay_within_each_limit() {
        let mut groups = groups(&[(256, limit(LimitFlags::REFERENCED, 30))]);
        assert_eq!(groups.reserve(ONE, 11, 0), Err(EXCEEDED));
        assert_eq!(groups.reserve(ONE, 10, 1), Err(EXCEEDED));
        assert_eq!(groups.reserve(OTHER, 1000, 0), Ok(()));
        assert_eq!(groups.reserve(ONE, 10, 0), Ok(()));
        assert_eq!(groups.reserve(ONE, 1, 0), Err(EXCEEDED));
        assert!(groups.has_reserved(ONE) && !groups.has_reserved(OTHER));
        groups.hold_allocated(ONE, 10);
        groups.release(ONE, 10);
        assert!(!groups.has_reserved(ONE));
        let can_change = Exceeded { can_change: true };
        assert_eq!(groups.reserve(ONE, 1, 0), Err(can_change));
        groups.drop_allocated();
        assert_eq!(groups.reserve(ONE, 10, 0), Ok(()));
    }

    #[test]
    fn exclusive_usage_and_groups_above_are_limited() {
        let exclusive = (256, limit(LimitFlags::EXCLUSIVE, 9));
        let above = (GROUP, limit(LimitFlags::REFERENCED, 46));
        let mut groups = groups(&[exclusive, above]);
        assert_eq!(groups.reserve(ONE, 5, 0), Err(EXCEEDED));
        assert_eq!(groups.reserve(ONE, 4, 0), Ok(()));
        assert!(groups.reserve(OTHER, 3, 0).is_err());
        assert_eq!(groups.reserve(OTHER, 2, 0), Ok(()));
        // Other subvolumes, and those without a group, are not limited.
        assert_eq!(groups.reserve(TreeId(999), 1000, 0), Ok(()));
    }

    #[test]
    fn flags_that_limit_nothing_are_ignored() {
        let reserved = LimitFlags::from_bits_retain(0xfc);
        let mut groups = groups(&[(256, limit(reserved, 0))]);
        assert!(groups.has_limits());
        assert_eq!(groups.reserve(ONE, 1000, 0), Ok(()));
    }

    #[test]
    fn snapshot_has_the_limits_of_its_source() {
        let mut groups = groups(&[(256, limit(LimitFlags::REFERENCED, 30))]);
        let (first, second) = (TreeId(300), TreeId(301));
        groups.create(first);
        assert_eq!(groups.reserve(first, 1000, 0), Ok(()));
        groups.inherit_limits(first, ONE);
        assert_eq!(groups.reserve(first, 31, 0), Err(EXCEEDED));
        groups.create(second);
        groups.inherit_limits(second, OTHER);
        assert_eq!(groups.reserve(second, 1000, 0), Ok(()));
        // A group that was there before has its limits replaced, and stored.
        groups.take_dirty(crate::ondisk::Generation(1));
        groups.inherit_limits(first, OTHER);
        assert_eq!(groups.reserve(first, 1000, 0), Ok(()));
        let dirty = groups.take_dirty(crate::ondisk::Generation(2));
        assert_eq!(dirty[0].limit, Some(QgroupLimit::default()));
        assert!(!dirty[0].is_new);
    }
}
