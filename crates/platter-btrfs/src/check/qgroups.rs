//! Usage of quota groups: bytes of the extents that their subvolumes reach, and of those that no others
//! do.
//!
//! Blocks are taken level by level, so that a block is looked at when it is known which subvolumes reach
//! it. The sets of subvolumes are few, and are numbered.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::leaves::data_claims;
use super::walk::{Block, Walked};
use super::{Checker, Flow, QgroupUseRule};
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
/// Comparisons of a quota group with a set.
const COMPARISONS_MAX: usize = 1 << 24;

/// A set of subvolumes.
type Set = u32;

/// Sets of subvolumes by number.
#[derive(Debug, Default)]
struct Sets {
    list: Vec<BTreeSet<TreeId>>,
    numbers: HashMap<BTreeSet<TreeId>, Set>,
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
    fn of(&mut self, set: BTreeSet<TreeId>) -> Set {
        if let Some(number) = self.numbers.get(&set) {
            return *number;
        }
        let number = Set::try_from(self.list.len()).unwrap_or(Set::MAX);
        self.members += set.len();
        self.list.push(set.clone());
        self.numbers.insert(set, number);
        number
    }

    fn union(&mut self, one: Set, other: Set) -> Set {
        if one == other {
            return one;
        }
        let pair = (one.min(other), one.max(other));
        if let Some(known) = self.unions.get(&pair) {
            return *known;
        }
        let members = |number: Set| self.list.get(number as usize).cloned().unwrap_or_default();
        let both = members(one).union(&members(other)).copied().collect();
        let number = self.of(both);
        self.unions.insert(pair, number);
        number
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
            // Usage of simple quotas is what was charged, which older extents do not show.
            return Ok(());
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
                // Each relation is stored in both directions.
                ItemKind::QGROUP_RELATION => {
                    let both = (key.object, key.offset);
                    let is_up = level_of(key.object) < level_of(key.offset);
                    let (group, member) = if is_up { (both.1, both.0) } else { both };
                    stored.members.entry(group).or_default().insert(member);
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
        let bytes = self.bytes_of_sets(&mut sets)?;
        let comparisons = stored.infos.len().saturating_mul(sets.list.len());
        if sets.members > MEMBERS_MAX || comparisons > COMPARISONS_MAX {
            return Ok(None);
        }
        let mut usages = BTreeMap::new();
        for id in stored.infos.keys() {
            let members = subvolumes_of(*id, &stored.members);
            let (mut referenced, mut exclusive) = (0u64, 0u64);
            for (set, bytes) in sets.list.iter().zip(&bytes) {
                if !set.is_disjoint(&members) {
                    referenced = referenced.saturating_add(*bytes);
                    if set.is_subset(&members) {
                        exclusive = exclusive.saturating_add(*bytes);
                    }
                }
            }
            usages.insert(*id, (referenced, exclusive));
        }
        Ok(Some(usages))
    }

    /// How many bytes are reached by each set of subvolumes, by the number of the set.
    fn bytes_of_sets(&self, sets: &mut Sets) -> Result<Vec<u64>> {
        let mut levels: Vec<BTreeMap<LogicalAddr, Pending>> =
            vec![BTreeMap::new(); usize::from(LEVEL_MAX)];
        for walked in self.roots.walks() {
            if !walked.id().is_subvolume() {
                continue;
            }
            let root = walked.tree.root;
            let pending = Pending {
                set: sets.of(BTreeSet::from([walked.id()])),
                walked,
                generation: root.generation,
            };
            if let Some(level) = levels.get_mut(usize::from(root.level)) {
                add(level, root.logical, pending, sets);
            }
        }
        let mut bytes: HashMap<Set, u64> = HashMap::new();
        let mut data: BTreeMap<LogicalAddr, Set> = BTreeMap::new();
        let node_bytes = u64::from(self.context.superblock.node_bytes);
        while let Some(blocks) = levels.pop() {
            let level = u8::try_from(levels.len()).unwrap_or_default();
            for (logical, pending) in blocks {
                if sets.members > MEMBERS_MAX {
                    return Ok(Vec::new());
                }
                let sum = bytes.entry(pending.set).or_default();
                *sum = sum.saturating_add(node_bytes);
                self.look_at(logical, level, &pending, levels.last_mut(), &mut data, sets)?;
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
        Ok((0..sets.list.len()).map(of_set).collect())
    }

    /// Adds what a block refers to.
    fn look_at(
        &self,
        logical: LogicalAddr,
        level: u8,
        pending: &Pending,
        below: Option<&mut BTreeMap<LogicalAddr, Pending>>,
        data: &mut BTreeMap<LogicalAddr, Set>,
        sets: &mut Sets,
    ) -> Result<()> {
        let walked = &pending.walked;
        let expected = Expected {
            level: Some(level),
            generation: Some(pending.generation),
            tree: Some(walked.id()),
            ..Expected::default()
        };
        let read = self.context.blocks.read(logical, &expected)?;
        let Some(header) = read.header() else {
            return Ok(());
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
                *set = sets.union(*set, pending.set);
            }
            return Ok(());
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
            add(below, pointer.logical, next, sets);
        }
        Ok(())
    }
}

/// Adds a block to those of its level; one that is there is reached by more subvolumes.
fn add(
    level: &mut BTreeMap<LogicalAddr, Pending>,
    logical: LogicalAddr,
    pending: Pending,
    sets: &mut Sets,
) {
    let known = level.entry(logical).or_insert(pending);
    known.set = sets.union(known.set, pending.set);
}

/// The level of a quota group; those of subvolumes have 0.
fn level_of(id: u64) -> u64 {
    id / QGROUP_LEVEL_ONE
}

/// The subvolumes of a quota group: its own, or those of its members.
fn subvolumes_of(id: u64, members: &BTreeMap<u64, BTreeSet<u64>>) -> BTreeSet<TreeId> {
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut pending = vec![id];
    while let Some(id) = pending.pop() {
        if !seen.insert(id) {
            continue;
        }
        if level_of(id) == 0 {
            found.insert(TreeId(id));
        }
        pending.extend(members.get(&id).into_iter().flatten());
    }
    found
}
