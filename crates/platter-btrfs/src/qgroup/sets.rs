//! Sets of subvolumes, by number: they are few.

use std::collections::HashMap;
use std::rc::Rc;

use crate::ondisk::TreeId;

/// Subvolumes in all sets together; with more, usage is not counted.
const MEMBERS_MAX: usize = 1 << 22;
/// Sets in all unions that are remembered.
const UNION_PARTS_MAX: usize = 1 << 18;

/// A set of subvolumes.
pub type Set = u32;

/// Sets of subvolumes by number.
#[derive(Debug, Default)]
pub struct Sets {
    /// Each in ascending order.
    list: Vec<Rc<[TreeId]>>,
    numbers: HashMap<Rc<[TreeId]>, Set>,
    /// Unions by the sets that they are of, in ascending order.
    unions: HashMap<Box<[Set]>, Set>,
    union_part_count: usize,
    /// How many members all of them have.
    member_count: usize,
}

impl Sets {
    /// The number of a set; `None` if there are too many.
    pub fn of(&mut self, set: Rc<[TreeId]>) -> Option<Set> {
        if let Some(number) = self.numbers.get(&set) {
            return Some(*number);
        }
        let number = Set::try_from(self.list.len()).ok()?;
        let members = self.member_count.checked_add(set.len())?;
        if members > MEMBERS_MAX {
            return None;
        }
        self.member_count = members;
        self.list.push(Rc::clone(&set));
        self.numbers.insert(set, number);
        Some(number)
    }

    /// All sets, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &[TreeId]> {
        self.list.iter().map(|set| &**set)
    }

    /// How many members all sets have.
    #[must_use]
    pub fn member_count(&self) -> usize {
        self.member_count
    }

    /// The subvolumes of a set, in ascending order.
    #[must_use]
    pub fn members(&self, set: Set) -> &[TreeId] {
        self.list.get(set as usize).map_or(&[][..], |set| set)
    }

    /// The number of the union of two sets; `None` if there are too many.
    pub fn union(&mut self, one: Set, other: Set) -> Option<Set> {
        if one == other {
            return Some(one);
        }
        let parts = [one.min(other), one.max(other)];
        self.known_union(&parts).or_else(|| self.union_of(&parts))
    }

    /// The union of sets in ascending order, if it takes no time.
    #[must_use]
    pub fn known_union(&self, parts: &[Set]) -> Option<Set> {
        match parts {
            [one] => Some(*one),
            _ => self.unions.get(parts).copied(),
        }
    }

    /// The number of the union of sets in ascending order; `None` if there are too many. What they come to in between
    /// is no set.
    pub fn union_of(&mut self, parts: &[Set]) -> Option<Set> {
        let mut members: Vec<TreeId> = Vec::new();
        for part in parts {
            members.extend_from_slice(self.members(*part));
        }
        members.sort_unstable();
        members.dedup();
        let number = self.of(members.into())?;
        if self.union_part_count + parts.len() > UNION_PARTS_MAX {
            self.unions.clear();
            self.union_part_count = 0;
        }
        self.union_part_count += parts.len();
        self.unions.insert(parts.into(), number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: impl IntoIterator<Item = u64>) -> Rc<[TreeId]> {
        ids.into_iter().map(TreeId).collect()
    }

    #[test]
    fn sets_are_numbered_up_to_a_bound() {
        let mut sets = Sets::default();
        let (one, two) = (sets.of(set([5])).unwrap(), sets.of(set([256])).unwrap());
        let both = sets.union(two, one).unwrap();
        assert_eq!(sets.of(set([5, 256])), Some(both));
        assert_eq!((sets.union(both, one), sets.member_count), (Some(both), 4));
        let large = 1 << 20;
        for first in 0..3 {
            assert!(sets.of(set(first..first + large)).is_some());
        }
        assert_eq!(sets.of(set(9..9 + large)), None);
        assert!(sets.member_count <= MEMBERS_MAX);
        assert_eq!(sets.of(set([5])), Some(one));
    }

    #[test]
    fn union_of_many_sets_adds_one_set() {
        let mut sets = Sets::default();
        let parts: Vec<Set> = (0..3000)
            .map(|id| sets.of(set(id..id + 2)).unwrap())
            .collect();
        assert_eq!(sets.known_union(&parts), None);
        let all = sets.union_of(&parts).unwrap();
        assert_eq!(sets.members(all), &*set(0..3001));
        assert_eq!(sets.known_union(&parts), Some(all));
        assert_eq!((sets.list.len(), sets.member_count), (3001, 9001));
        assert_eq!(sets.known_union(&parts[..1]), Some(parts[0]));
    }

    #[test]
    fn unions_are_remembered_up_to_a_bound() {
        let mut sets = Sets::default();
        let parts: Vec<Set> = (0..1000).map(|id| sets.of(set([id])).unwrap()).collect();
        for first in 0..500 {
            assert!(sets.union_of(&parts[first..]).is_some());
            assert!(sets.union_part_count <= UNION_PARTS_MAX);
        }
        let kept: usize = sets.unions.keys().map(|parts| parts.len()).sum();
        assert_eq!(kept, sets.union_part_count);
        assert!(sets.unions.len() < 500);
    }
}
