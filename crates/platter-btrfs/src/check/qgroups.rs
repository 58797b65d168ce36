//! Usage of quota groups: bytes of the extents that their subvolumes reach, and of those that no others
//! do.
//!
//! Blocks are taken level by level, so that a block is looked at when it is known which subvolumes reach
//! it. The sets of subvolumes are few, and are numbered.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::leaves::data_claims;
use super::walk::{Block, Walked};
use super::{Checker, Flow, QgroupUseRule};
use crate::ondisk::extent_item::{ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::header::LEVEL_MAX;
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::{QgroupFlags, QgroupInfo, QgroupStatus};
use crate::ondisk::tree_block::Expected;
use crate::ondisk::types::QGROUP_LEVEL_ONE;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::{Cursor, Tree};

/// What the quota tree says.
#[derive(Debug, Default)]
struct Stored {
    status: Option<QgroupStatus>,
    infos: BTreeMap<u64, QgroupInfo>,
    /// Groups and their members.
    members: BTreeMap<u64, BTreeSet<u64>>,
}

/// Subvolumes in all sets together; with more, usage is not counted.
const MEMBERS_MAX: usize = 1 << 22;
/// Unions that are remembered.
const UNIONS_MAX: usize = 1 << 18;
/// Comparisons of subvolumes and of relations of groups; with more, usage is not counted.
const COMPARISONS_MAX: usize = 1 << 28;

/// A set of subvolumes.
type Set = u32;

/// Sets of subvolumes by number.
#[derive(Debug, Default)]
struct Sets {
    /// Each in ascending order.
    list: Vec<Rc<[TreeId]>>,
    numbers: HashMap<Rc<[TreeId]>, Set>,
    unions: HashMap<(Set, Set), Set>,
    /// How many members all of them have.
    members: usize,
}

/// A block that is to be looked at.
#[derive(Debug, Clone, Copy)]
struct Pending {
    set: Set,
    walked: Walked,
    generation: Generation,
}

/// Bytes referred to, and exclusively.
type Usage = (u64, u64);

impl Sets {
    /// The number of a set; `None` if there are too many.
    fn of(&mut self, set: Rc<[TreeId]>) -> Option<Set> {
        if let Some(number) = self.numbers.get(&set) {
            return Some(*number);
        }
        let number = Set::try_from(self.list.len()).ok()?;
        let members = self.members.checked_add(set.len())?;
        if members > MEMBERS_MAX {
            return None;
        }
        self.members = members;
        self.list.push(Rc::clone(&set));
        self.numbers.insert(set, number);
        Some(number)
    }

    fn union(&mut self, one: Set, other: Set) -> Option<Set> {
        if one == other {
            return Some(one);
        }
        let pair = (one.min(other), one.max(other));
        if let Some(known) = self.unions.get(&pair) {
            return Some(*known);
        }
        let members = |number: Set| self.list.get(number as usize).map_or(&[][..], |set| set);
        let mut both = [members(one), members(other)].concat();
        both.sort_unstable();
        both.dedup();
        let number = self.of(both.into())?;
        if self.unions.len() >= UNIONS_MAX {
            self.unions.clear();
        }
        self.unions.insert(pair, number);
        Some(number)
    }
}

impl Checker<'_> {
    /// Compares the usage of quota groups with what it should be.
    pub(super) fn check_qgroups(&mut self) -> Flow {
        let Some(item) = self.roots.item(TreeId::QUOTA) else {
            return Ok(());
        };
        let tree = Tree {
            id: TreeId::QUOTA,
            root: item.root,
        };
        let locus = Locus::tree(TreeId::QUOTA.0);
        // What cannot be read was reported.
        let Ok(stored) = self.read_qgroups(tree) else {
            return Ok(());
        };
        let Some(status) = stored.status else {
            return Ok(());
        };
        if !status.flags.contains(QgroupFlags::ON) || self.is_blind {
            return Ok(());
        }
        for (group, members) in &stored.members {
            for member in members {
                let both = [group, member];
                if !both.into_iter().all(|id| stored.infos.contains_key(id)) {
                    let key = Key::new(*member, ItemKind::QGROUP_RELATION, *group);
                    self.found(locus.at_key(key.into()), QgroupUseRule::Relation)?;
                }
            }
        }
        let unsure = QgroupFlags::INCONSISTENT | QgroupFlags::RESCAN;
        if status.flags.intersects(unsure) {
            return self.noticed(locus, QgroupUseRule::Inconsistent);
        }
        if status.flags.contains(QgroupFlags::SIMPLE_MODE) {
            return self.check_simple(&stored, status.enable_generation);
        }
        let Ok(Some(usages)) = self.usages(&stored) else {
            self.report
                .count("uncounted qgroups", stored.infos.len() as u64);
            return Ok(());
        };
        for (id, info) in &stored.infos {
            let usage = usages.get(id).copied().unwrap_or_default();
            if usage != (info.referenced.0, info.exclusive.0) {
                let key = Key::new(0, ItemKind::QGROUP_INFO, *id);
                self.found(locus.at_key(key.into()), QgroupUseRule::Counts)?;
            }
        }
        let live: Vec<TreeId> = self.roots.live().map(|(id, _)| *id).collect();
        for id in live.iter().filter(|id| !stored.infos.contains_key(&id.0)) {
            let key = Key::new(0, ItemKind::QGROUP_INFO, id.0);
            self.noticed(locus.at_key(key.into()), QgroupUseRule::Missing)?;
        }
        Ok(())
    }

    /// Compares the usage of simple quotas with what was charged since they were enabled, in that transaction
    /// itself or not. Less is no error: older kernels did not charge the transaction that enabled them, and take
    /// its extents off when they are freed.
    fn check_simple(&mut self, stored: &Stored, enabled: Option<Generation>) -> Flow {
        let enabled = enabled.unwrap_or(Generation(0));
        // What cannot be read was reported.
        let Ok([most, least]) = self.charges(enabled) else {
            return Ok(());
        };
        let mut left = COMPARISONS_MAX;
        for (id, info) in &stored.infos {
            let Some(members) = subvolumes_of(*id, &stored.members, &mut left) else {
                self.report
                    .count("uncounted qgroups", stored.infos.len() as u64);
                return Ok(());
            };
            let sum = |charges: &BTreeMap<TreeId, u64>| {
                let charged = members.iter().filter_map(|member| charges.get(member));
                charged.fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
            };
            let (referenced, exclusive) = (info.referenced.0, info.exclusive.0);
            let key = Key::new(0, ItemKind::QGROUP_INFO, *id);
            let locus = Locus::tree(TreeId::QUOTA.0).at_key(key.into());
            if referenced > sum(&most) || referenced != exclusive {
                self.found(locus, QgroupUseRule::Counts)?;
            } else if referenced < sum(&least) {
                self.noticed(locus, QgroupUseRule::Counts)?;
            }
        }
        Ok(())
    }

    /// The bytes of extents that each subvolume allocated in this transaction and later ones, and in later ones
    /// only.
    fn charges(&self, since: Generation) -> Result<[BTreeMap<TreeId, u64>; 2]> {
        let mut charges = <[BTreeMap<TreeId, u64>; 2]>::default();
        let Some(tree) = self.context.tree(TreeId::EXTENT)? else {
            return Ok(charges);
        };
        let mut cursor = Cursor::new(&self.context.blocks, tree);
        cursor.seek(Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            if matches!(key.kind, ItemKind::EXTENT_ITEM | ItemKind::METADATA_ITEM) {
                let item = ExtentItem::decode(key, data, tree.locus(key))?;
                let is_charged = [item.generation >= since, item.generation > since];
                let charge = if is_charged[0] {
                    self.charge(key, &item)?
                } else {
                    None
                };
                if let Some((owner, bytes)) = charge.filter(|(owner, _)| owner.is_subvolume()) {
                    let counted = charges.iter_mut().zip(is_charged);
                    for (charges, _) in counted.filter(|(_, is_charged)| *is_charged) {
                        let sum = charges.entry(owner).or_default();
                        *sum = sum.saturating_add(bytes);
                    }
                }
            }
            cursor.step()?;
        }
        Ok(charges)
    }

    /// Which tree an extent is charged to, and its length; `None` for data from before simple quotas, and for
    /// blocks of other trees.
    fn charge(&self, key: Key, item: &ExtentItem) -> Result<Option<(TreeId, u64)>> {
        let ExtentKind::TreeBlock { level, .. } = item.kind else {
            let owner = item.inline.iter().find_map(|reference| {
                let ExtentRef::Owner { tree } = reference else {
                    return None;
                };
                Some(*tree)
            });
            return Ok(owner.map(|owner| (owner, key.offset)));
        };
        let is_of_others = item.inline.iter().any(
            |reference| matches!(reference, ExtentRef::TreeBlock { tree } if !tree.is_subvolume()),
        );
        if is_of_others {
            return Ok(None);
        }
        let expected = Expected {
            level: Some(level),
            generation: Some(item.generation),
            ..Expected::default()
        };
        let block = self
            .context
            .blocks
            .read(LogicalAddr(key.object), &expected)?;
        let node_bytes = u64::from(self.context.superblock.node_bytes);
        Ok(block.header().map(|header| (header.owner, node_bytes)))
    }

    fn read_qgroups(&self, tree: Tree) -> Result<Stored> {
        let mut stored = Stored::default();
        let mut cursor = Cursor::new(&self.context.blocks, tree);
        cursor.seek(Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            let locus = tree.locus(key);
            match key.kind {
                ItemKind::QGROUP_STATUS => {
                    stored.status = Some(QgroupStatus::decode(data, locus)?);
                }
                ItemKind::QGROUP_INFO => {
                    let info = QgroupInfo::decode(data, locus)?;
                    stored.infos.insert(key.offset, info);
                }
                // Each relation is stored in both directions. Like the kernel, reads that of the member.
                ItemKind::QGROUP_RELATION if key.object < key.offset => {
                    let members = stored.members.entry(key.offset).or_default();
                    members.insert(key.object);
                }
                ItemKind(_) => {}
            }
            cursor.step()?;
        }
        Ok(stored)
    }

    /// The usage of each quota group; `None` if there are too many sets of subvolumes.
    fn usages(&self, stored: &Stored) -> Result<Option<BTreeMap<u64, Usage>>> {
        let mut sets = Sets::default();
        let Some(bytes) = self.bytes_of_sets(&mut sets)? else {
            return Ok(None);
        };
        Ok(usages_of(stored, &sets, &bytes))
    }

    /// How many bytes are reached by each set of subvolumes, by the number of the set; `None` if there are too
    /// many.
    fn bytes_of_sets(&self, sets: &mut Sets) -> Result<Option<Vec<u64>>> {
        let mut levels: Vec<BTreeMap<LogicalAddr, Pending>> =
            vec![BTreeMap::new(); usize::from(LEVEL_MAX)];
        for walked in self.roots.walks() {
            if !walked.id().is_subvolume() {
                continue;
            }
            let root = walked.tree.root;
            let Some(set) = sets.of(Rc::new([walked.id()])) else {
                return Ok(None);
            };
            let pending = Pending {
                set,
                walked,
                generation: root.generation,
            };
            if let Some(level) = levels.get_mut(usize::from(root.level))
                && add(level, root.logical, pending, sets).is_none()
            {
                return Ok(None);
            }
        }
        let mut bytes: HashMap<Set, u64> = HashMap::new();
        let mut data: BTreeMap<LogicalAddr, Set> = BTreeMap::new();
        let node_bytes = u64::from(self.context.superblock.node_bytes);
        while let Some(blocks) = levels.pop() {
            let level = u8::try_from(levels.len()).unwrap_or_default();
            for (logical, pending) in blocks {
                let sum = bytes.entry(pending.set).or_default();
                *sum = sum.saturating_add(node_bytes);
                let below = levels.last_mut();
                let seen = self.look_at(logical, level, &pending, below, &mut data, sets)?;
                if seen.is_none() {
                    return Ok(None);
                }
            }
        }
        for (start, set) in data {
            let len_bytes = self.extents.get(start).map_or(0, |extent| extent.len_bytes);
            let sum = bytes.entry(set).or_default();
            *sum = sum.saturating_add(len_bytes);
        }
        let of_set = |number: usize| {
            let set = Set::try_from(number).unwrap_or(Set::MAX);
            bytes.get(&set).copied().unwrap_or_default()
        };
        Ok(Some((0..sets.list.len()).map(of_set).collect()))
    }

    /// Adds what a block refers to; `None` if there are too many sets.
    fn look_at(
        &self,
        logical: LogicalAddr,
        level: u8,
        pending: &Pending,
        below: Option<&mut BTreeMap<LogicalAddr, Pending>>,
        data: &mut BTreeMap<LogicalAddr, Set>,
        sets: &mut Sets,
    ) -> Result<Option<()>> {
        let walked = &pending.walked;
        let expected = Expected {
            level: Some(level),
            generation: Some(pending.generation),
            tree: Some(walked.id()),
            ..Expected::default()
        };
        let read = self.context.blocks.read(logical, &expected)?;
        let Some(header) = read.header() else {
            return Ok(Some(()));
        };
        let Some(below) = below else {
            let items: Vec<_> = read.leaf().iter().collect();
            let block = Block {
                logical,
                header,
                bytes: read.bytes(),
            };
            for claim in data_claims(walked, &block, &items, self.format.sector_bytes) {
                let set = data.entry(claim.extent).or_insert(pending.set);
                let Some(both) = sets.union(*set, pending.set) else {
                    return Ok(None);
                };
                *set = both;
            }
            return Ok(Some(()));
        };
        let node = read.node();
        let dropped = walked.dropped.filter(|(_, lowest)| level >= *lowest);
        let first = dropped.map_or(0, |(key, _)| node.index_for(key));
        for index in first..node.len() {
            let Some(pointer) = node.pointer(index) else {
                break;
            };
            let mut next = Pending {
                generation: pointer.generation,
                ..*pending
            };
            if index > first {
                next.walked.dropped = None;
            }
            if add(below, pointer.logical, next, sets).is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }
}

/// The usage of each quota group; `None` if that takes too many comparisons.
fn usages_of(stored: &Stored, sets: &Sets, bytes: &[u64]) -> Option<BTreeMap<u64, Usage>> {
    let mut usages: BTreeMap<u64, Usage> = BTreeMap::new();
    for (set, bytes) in sets.list.iter().zip(bytes) {
        for id in set.iter() {
            let (referenced, exclusive) = usages.entry(id.0).or_default();
            *referenced = referenced.saturating_add(*bytes);
            if set.len() == 1 {
                *exclusive = exclusive.saturating_add(*bytes);
            }
        }
    }
    let mut left = COMPARISONS_MAX;
    for id in stored.infos.keys().filter(|id| level_of(**id) > 0) {
        let members = subvolumes_of(*id, &stored.members, &mut left)?;
        left = left.checked_sub(sets.members)?;
        let (mut referenced, mut exclusive) = (0u64, 0u64);
        for (set, bytes) in sets.list.iter().zip(bytes) {
            if set.iter().any(|id| members.contains(id)) {
                referenced = referenced.saturating_add(*bytes);
                if set.iter().all(|id| members.contains(id)) {
                    exclusive = exclusive.saturating_add(*bytes);
                }
            }
        }
        usages.insert(*id, (referenced, exclusive));
    }
    Some(usages)
}

/// Adds a block to those of its level; one that is there is reached by more subvolumes. `None` if there are too
/// many sets.
fn add(
    level: &mut BTreeMap<LogicalAddr, Pending>,
    logical: LogicalAddr,
    pending: Pending,
    sets: &mut Sets,
) -> Option<()> {
    let known = level.entry(logical).or_insert(pending);
    known.set = sets.union(known.set, pending.set)?;
    // What only one of several trees refers to was not dropped.
    if pending.walked.dropped.is_none() {
        known.walked.dropped = None;
    }
    Some(())
}

/// The level of a quota group; those of subvolumes have 0.
fn level_of(id: u64) -> u64 {
    id / QGROUP_LEVEL_ONE
}

/// The subvolumes of a quota group: its own, or those of its members. Takes what it looks at off `left`; `None` if
/// that is not enough.
fn subvolumes_of(
    id: u64,
    members: &BTreeMap<u64, BTreeSet<u64>>,
    left: &mut usize,
) -> Option<HashSet<TreeId>> {
    let mut found = HashSet::new();
    let mut seen = HashSet::new();
    let mut pending = vec![id];
    while let Some(id) = pending.pop() {
        *left = left.checked_sub(1)?;
        if !seen.insert(id) {
            continue;
        }
        if level_of(id) == 0 {
            found.insert(TreeId(id));
        }
        pending.extend(members.get(&id).into_iter().flatten());
    }
    Some(found)
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
        assert_eq!((sets.union(both, one), sets.members), (Some(both), 4));
        let large = 1 << 20;
        for first in 0..3 {
            assert!(sets.of(set(first..first + large)).is_some());
        }
        assert_eq!(sets.of(set(9..9 + large)), None);
        assert!(sets.members <= MEMBERS_MAX);
        assert_eq!(sets.of(set([5])), Some(one));
    }

    #[test]
    fn chain_of_quota_groups_is_walked_within_bounds() {
        let group = |level: u64| level * QGROUP_LEVEL_ONE;
        let mut members: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        members.entry(group(1)).or_default().extend([5, 256]);
        for level in 2..100 {
            members
                .entry(group(level))
                .or_default()
                .insert(group(level - 1));
        }
        let mut left = 1000;
        let found = subvolumes_of(group(99), &members, &mut left).unwrap();
        assert_eq!(found, HashSet::from([TreeId(5), TreeId(256)]));
        assert_eq!(left, 1000 - 101);
        assert!(subvolumes_of(group(99), &members, &mut 50).is_none());
    }
}
