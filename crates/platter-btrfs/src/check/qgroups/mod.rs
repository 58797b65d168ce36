//! Usage of quota groups: bytes of the extents that their subvolumes reach, and of those that no others
//! do.
//!
//! Blocks are taken level by level, so that a block is looked at when it is known which subvolumes reach
//! it. The sets of subvolumes are few, and are numbered.

mod simple;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use platter_ondisk::Locus;
use platter_vfs::Result;
use platter_vfs::check::Checking as _;

use super::leaves::data_claims;
use super::walked::{Block, Walked};
use super::{Checker, Flow, QgroupUseRule};
use crate::ondisk::header::LEVEL_MAX;
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::QgroupFlags;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::qgroup::{CountingLimits, Set, Sets, Stored, level_of};
use crate::tree::Tree;

/// Comparisons of subvolumes and of relations of groups; with more, usage is not counted.
const COMPARISONS_MAX: usize = 1 << 28;

/// A block that is to be looked at.
#[derive(Debug, Clone, Copy)]
struct Pending {
    set: Set,
    walked: Walked,
    generation: Generation,
}

/// Bytes referred to, and exclusively.
type Usage = (u64, u64);

/// Compares the usage of quota groups with what it should be.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let Some(item) = checker.roots.item(TreeId::QUOTA) else {
        return Ok(());
    };
    let tree = Tree {
        id: TreeId::QUOTA,
        root: item.root,
    };
    let locus = Locus::tree(TreeId::QUOTA.0);
    // What cannot be read was reported.
    let items_max = CountingLimits::DEFAULT.items_max;
    let Ok(stored) = Stored::read(&checker.context.blocks, tree, items_max) else {
        return Ok(());
    };
    let Some(status) = stored.status else {
        return Ok(());
    };
    if !status.flags.contains(QgroupFlags::ON) || checker.is_blind {
        return Ok(());
    }
    if stored.is_truncated {
        uncounted(checker, stored.infos.len());
        return Ok(());
    }
    for (group, members) in &stored.members {
        for member in members {
            let both = [group, member];
            if !both.into_iter().all(|id| stored.infos.contains_key(id)) {
                let key = Key::new(*member, ItemKind::QGROUP_RELATION, *group);
                checker.found(locus.at_key(key.into()), QgroupUseRule::Relation)?;
            }
        }
    }
    let unsure = QgroupFlags::INCONSISTENT | QgroupFlags::RESCAN;
    if status.flags.intersects(unsure) {
        return checker.noticed(locus, QgroupUseRule::Inconsistent);
    }
    if status.flags.contains(QgroupFlags::SIMPLE_MODE) {
        return simple::check(checker, &stored, status.enable_generation);
    }
    if status.generation != checker.context.superblock.generation {
        // The kernel takes usage for inconsistent then.
        checker.noticed(locus, QgroupUseRule::Generation)?;
    }
    let Ok(Some(usages)) = usages(checker, &stored) else {
        uncounted(checker, stored.infos.len());
        return Ok(());
    };
    for (id, info) in &stored.infos {
        let usage = usages.get(id).copied().unwrap_or_default();
        if usage != (info.referenced.0, info.exclusive.0) {
            let key = Key::new(0, ItemKind::QGROUP_INFO, *id);
            checker.found(locus.at_key(key.into()), QgroupUseRule::Counts)?;
        }
    }
    let live: Vec<TreeId> = checker.roots.live().map(|(id, _)| *id).collect();
    for id in live.iter().filter(|id| !stored.infos.contains_key(&id.0)) {
        let key = Key::new(0, ItemKind::QGROUP_INFO, id.0);
        checker.noticed(locus.at_key(key.into()), QgroupUseRule::Missing)?;
    }
    Ok(())
}

/// Counts groups whose usage is not compared.
pub(super) fn uncounted(checker: &mut Checker<'_>, groups: usize) {
    checker.report.count("uncounted qgroups", groups as u64);
}

/// The usage of each quota group; `None` if there are too many sets of subvolumes.
fn usages(checker: &Checker<'_>, stored: &Stored) -> Result<Option<BTreeMap<u64, Usage>>> {
    let mut sets = Sets::default();
    let Some(bytes) = bytes_of_sets(checker, &mut sets)? else {
        return Ok(None);
    };
    Ok(usages_of(stored, &sets, &bytes))
}

/// How many bytes are reached by each set of subvolumes, by the number of the set; `None` if there are too
/// many.
fn bytes_of_sets(checker: &Checker<'_>, sets: &mut Sets) -> Result<Option<Vec<u64>>> {
    let mut levels: Vec<BTreeMap<LogicalAddr, Pending>> =
        vec![BTreeMap::new(); usize::from(LEVEL_MAX)];
    for walked in checker.roots.walks() {
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
    let node_bytes = u64::from(checker.context.superblock.node_bytes);
    while let Some(blocks) = levels.pop() {
        let level = u8::try_from(levels.len()).unwrap_or_default();
        for (logical, pending) in blocks {
            let sum = bytes.entry(pending.set).or_default();
            *sum = sum.saturating_add(node_bytes);
            let below = levels.last_mut();
            let seen = look_at(checker, logical, level, &pending, below, &mut data, sets)?;
            if seen.is_none() {
                return Ok(None);
            }
        }
    }
    for (start, set) in data {
        let len_bytes = checker
            .extents
            .get(start)
            .map_or(0, |extent| extent.len_bytes);
        let sum = bytes.entry(set).or_default();
        *sum = sum.saturating_add(len_bytes);
    }
    let of_set = |number: usize| {
        let set = Set::try_from(number).unwrap_or(Set::MAX);
        bytes.get(&set).copied().unwrap_or_default()
    };
    Ok(Some((0..sets.iter().count()).map(of_set).collect()))
}

/// Adds what a block refers to; `None` if there are too many sets.
fn look_at(
    checker: &Checker<'_>,
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
    let read = checker.context.blocks.read(logical, &expected)?;
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
        for claim in data_claims(walked, &block, &items, checker.format.sector_bytes) {
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

/// The usage of each quota group; `None` if that takes too many comparisons.
fn usages_of(stored: &Stored, sets: &Sets, bytes: &[u64]) -> Option<BTreeMap<u64, Usage>> {
    let mut usages: BTreeMap<u64, Usage> = BTreeMap::new();
    for (set, bytes) in sets.iter().zip(bytes) {
        for id in set {
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
        left = left.checked_sub(sets.member_count())?;
        let (mut referenced, mut exclusive) = (0u64, 0u64);
        for (set, bytes) in sets.iter().zip(bytes) {
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
    use crate::ondisk::types::QGROUP_LEVEL_ONE;

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
