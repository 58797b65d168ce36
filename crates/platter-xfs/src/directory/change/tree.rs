//! The hash tree above the leaves of a directory: leaves and nodes split and leave, and the root stays in the
//! first block. Spec: `xfs/dabtrees`.

use std::collections::HashSet;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::DirectoryChange;
use super::blocks::insert_sorted;
use crate::directory::LeafPlace;
use crate::ondisk::da::{DA_LEVELS_MAX, DaKind, DaLinks, DaNode, DaNodeRule};
use crate::ondisk::dir::build::{self, HashEntry};
use crate::ondisk::dir::index;
use crate::ondisk::dir::leaf::{DirLeaf, DirLeafRule, matching};
use crate::ondisk::{BlockKind, FileBlock, FsBlock, Site, dir};

/// A block that is alone on its level.
pub(super) const NO_LINKS: DaLinks = DaLinks {
    next: None,
    previous: None,
};
const LEAF: BlockKind = BlockKind::DirLeaf(DaKind::DirLeafN);

/// A leaf in memory.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    at: u32,
    links: DaLinks,
    pub(super) entries: Vec<HashEntry>,
}

/// A node in memory, and the child that a search went to.
#[derive(Debug, Clone)]
pub(super) struct Step {
    at: u32,
    level: u16,
    links: DaLinks,
    /// The greatest hash below each child, and the child.
    children: Vec<(u32, u32)>,
    index: usize,
}

/// The nodes from the root to a leaf.
#[derive(Debug, Clone)]
pub(super) struct Path {
    steps: Vec<Step>,
    pub(super) leaf: Leaf,
    /// Where the leaves before it lie: several blocks of the fork may be one.
    seen: HashSet<FsBlock>,
}

/// The neighbours of the two parts of a block that is split.
fn split_links(links: DaLinks, at: u32, new: u32) -> (DaLinks, DaLinks) {
    let left = DaLinks {
        next: Some(new),
        ..links
    };
    let right = DaLinks {
        previous: Some(at),
        ..links
    };
    (left, right)
}

fn root(dir: &DirectoryChange<'_, '_>) -> u32 {
    u32::try_from(dir::leaf_start(dir.geometry()).0).unwrap_or(u32::MAX)
}

fn broken(dir: &DirectoryChange<'_, '_>, rule: DaNodeRule) -> platter_vfs::Error {
    Corrupt::new(Locus::inode(dir.owner().get()), rule).into()
}

fn kind_of(dir: &mut DirectoryChange<'_, '_>, at: u32) -> Result<DaKind> {
    let first = FileBlock(at.into());
    if let Some(kind) = dir.da_kind(first)? {
        return Ok(kind);
    }
    let is_mapped = dir.locate(first)?.is_some();
    Err(broken(
        dir,
        if is_mapped {
            DaNodeRule::Kind
        } else {
            DaNodeRule::Missing
        },
    ))
}

fn read_leaf(dir: &mut DirectoryChange<'_, '_>, at: u32) -> Result<Leaf> {
    let owner = dir.owner().get();
    let site = Site::verified(dir.geometry(), owner);
    let decode = |bytes: &[u8]| {
        let leaf = DirLeaf::decode(bytes, DaKind::DirLeafN, &site)?;
        let live = leaf
            .entries
            .iter()
            .filter(|entry| entry.pointer().is_some());
        let entries = live.map(|entry| (entry.hash.get(), entry.address.get()));
        Ok(Leaf {
            at,
            links: leaf.links,
            entries: entries.collect(),
        })
    };
    let leaf = dir.look_at(FileBlock(at.into()), LEAF, decode)?;
    leaf.map_err(|rule: DirLeafRule| Corrupt::new(Locus::inode(owner), rule).into())
}

fn read_node(dir: &mut DirectoryChange<'_, '_>, at: u32) -> Result<Step> {
    let site = Site::verified(dir.geometry(), dir.owner().get());
    let decode = |bytes: &[u8]| {
        let node = DaNode::decode(bytes, &site)?;
        let children = node.entries.iter();
        let children = children.map(|entry| (entry.hash.get(), entry.child.get()));
        Ok(Step {
            at,
            level: node.level,
            links: node.links,
            children: children.collect(),
            index: 0,
        })
    };
    let node = dir.look_at(FileBlock(at.into()), BlockKind::DaNode, decode)?;
    node.map_err(|rule| broken(dir, rule))
}

/// Writes a leaf of the hash tree.
pub(super) fn write_leaf(
    dir: &mut DirectoryChange<'_, '_>,
    at: u32,
    entries: &[HashEntry],
    links: DaLinks,
) -> Result<()> {
    let first = FileBlock(at.into());
    let site = dir.site(first)?;
    let bytes = build::leaf(entries, links, &site).ok_or_else(|| dir.broken())?;
    dir.write(first, LEAF, bytes)
}

fn write_node(dir: &mut DirectoryChange<'_, '_>, step: &Step) -> Result<()> {
    let first = FileBlock(step.at.into());
    let site = dir.site(first)?;
    let bytes = build::node(&step.children, step.level, step.links, &site);
    let bytes = bytes.ok_or_else(|| dir.broken())?;
    dir.write(first, BlockKind::DaNode, bytes)
}

/// The leaf entries of a hash in a leaf, and whether the next leaf may have others.
pub(super) fn entries_of_hash(
    dir: &mut DirectoryChange<'_, '_>,
    at: u32,
    hash: u32,
) -> Result<(Vec<HashEntry>, bool)> {
    let owner = dir.owner().get();
    let site = Site::verified(dir.geometry(), owner);
    let decode = |bytes: &[u8]| {
        let leaf = DirLeaf::decode(bytes, DaKind::DirLeafN, &site)?;
        let same = matching(leaf.entries, hash).map(|pointer| (hash, pointer.0));
        let last = leaf.entries.last().map(|last| last.hash.get());
        Ok((same.collect(), last == Some(hash)))
    };
    let found = dir.look_at(FileBlock(at.into()), LEAF, decode)?;
    found.map_err(|rule: DirLeafRule| Corrupt::new(Locus::inode(owner), rule).into())
}

/// The path to a leaf by these nodes.
pub(super) fn path_to(
    dir: &mut DirectoryChange<'_, '_>,
    steps: Vec<Step>,
    at: u32,
) -> Result<Path> {
    let leaf = read_leaf(dir, at)?;
    Ok(Path {
        steps,
        leaf,
        seen: HashSet::new(),
    })
}

/// The nodes to the first leaf that may have a hash, or to the last leaf, and that leaf.
pub(super) fn descend_to(dir: &mut DirectoryChange<'_, '_>, hash: u32) -> Result<(Vec<Step>, u32)> {
    let mut steps: Vec<Step> = Vec::new();
    let mut at = root(dir);
    loop {
        match kind_of(dir, at)? {
            DaKind::DirLeafN => return Ok((steps, at)),
            DaKind::Node => {}
            DaKind::DirLeaf1 | DaKind::AttrLeaf => {
                return Err(broken(dir, DaNodeRule::Kind));
            }
        }
        let mut step = read_node(dir, at)?;
        let above = steps.last().map_or(DA_LEVELS_MAX + 1, |above| above.level);
        if step.level >= above {
            return Err(broken(dir, DaNodeRule::Level));
        }
        let index = step.children.partition_point(|child| child.0 < hash);
        step.index = index.min(step.children.len().saturating_sub(1));
        let Some(&(_, child)) = step.children.get(step.index) else {
            return Err(broken(dir, DaNodeRule::Count));
        };
        at = child;
        let is_last = step.level == 1;
        steps.push(step);
        if is_last {
            // That it is a leaf is found when it is looked at.
            return Ok((steps, at));
        }
    }
}

/// The leaf that [`descend_to`] leads to, and the greatest hash that its node has of it; `None` of a leaf that is the
/// root.
pub(super) fn leaf_for(dir: &mut DirectoryChange<'_, '_>, hash: u32) -> Result<(u32, Option<u32>)> {
    let mut at = root(dir);
    let mut greatest = None;
    let mut above = DA_LEVELS_MAX + 1;
    loop {
        match kind_of(dir, at)? {
            DaKind::DirLeafN => return Ok((at, greatest)),
            DaKind::Node => {}
            DaKind::DirLeaf1 | DaKind::AttrLeaf => {
                return Err(broken(dir, DaNodeRule::Kind));
            }
        }
        let (level, child) = child_for(dir, at, hash)?;
        if level >= above {
            return Err(broken(dir, DaNodeRule::Level));
        }
        let Some((greatest_below, child)) = child else {
            return Err(broken(dir, DaNodeRule::Count));
        };
        (at, greatest, above) = (child, Some(greatest_below), level);
        if level == 1 {
            // That it is a leaf is found when it is looked at.
            return Ok((at, greatest));
        }
    }
}

/// The level of a node, and the greatest hash and the place of its child that a search for a hash goes to; `None` if
/// it has no children.
fn child_for(
    dir: &mut DirectoryChange<'_, '_>,
    at: u32,
    hash: u32,
) -> Result<(u16, Option<(u32, u32)>)> {
    let site = Site::verified(dir.geometry(), dir.owner().get());
    let decode = |bytes: &[u8]| {
        let node = DaNode::decode(bytes, &site)?;
        let index = node
            .entries
            .partition_point(|entry| entry.hash.get() < hash);
        let child = node.entries.get(index).or(node.entries.last());
        let child = child.map(|entry| (entry.hash.get(), entry.child.get()));
        Ok((node.level, child))
    };
    let found = dir.look_at(FileBlock(at.into()), BlockKind::DaNode, decode)?;
    found.map_err(|rule| broken(dir, rule))
}

/// Goes on to the next leaf; false after the last.
///
/// # Errors
/// `Corrupt` where the tree leads to a leaf again.
pub(super) fn advance(dir: &mut DirectoryChange<'_, '_>, path: &mut Path) -> Result<bool> {
    let left = dir.locate(FileBlock(path.leaf.at.into()))?;
    if !left.is_some_and(|left| path.seen.insert(left.first())) {
        return Err(broken(dir, DaNodeRule::Cycle));
    }
    let mut level = path.steps.len();
    loop {
        let Some(above) = level.checked_sub(1) else {
            return Ok(false);
        };
        level = above;
        if path.steps[level].index + 1 < path.steps[level].children.len() {
            break;
        }
    }
    path.steps[level].index += 1;
    path.steps.truncate(level + 1);
    let mut at = path.steps[level].children[path.steps[level].index].1;
    while kind_of(dir, at)? == DaKind::Node {
        let step = read_node(dir, at)?;
        let above = path.steps.last().map_or(0, |above| above.level);
        if step.level >= above {
            return Err(broken(dir, DaNodeRule::Level));
        }
        at = match step.children.first() {
            Some(&(_, child)) => child,
            None => return Err(broken(dir, DaNodeRule::Count)),
        };
        path.steps.push(step);
    }
    path.leaf = read_leaf(dir, at)?;
    Ok(true)
}

/// The entries of the only leaf, if the tree has no more.
pub(super) fn only_leaf(dir: &mut DirectoryChange<'_, '_>) -> Result<Option<Vec<HashEntry>>> {
    let root = root(dir);
    if kind_of(dir, root)? != DaKind::DirLeafN {
        return Ok(None);
    }
    Ok(Some(read_leaf(dir, root)?.entries))
}

/// Allocates a block for a leaf or node.
fn add_block(dir: &mut DirectoryChange<'_, '_>) -> Result<u32> {
    let geometry = dir.geometry();
    let each = u64::from(geometry.dir_block_blocks());
    let mut at = dir::leaf_start(geometry).0;
    let end = dir::free_start(geometry).0;
    // Whole runs of mapped blocks are passed over.
    while let Some(mapped_to) = mapped_from(dir, at)? {
        at = mapped_to;
    }
    if at + each > end {
        return Err(Condition::NoSpace.into());
    }
    dir.add_block(FileBlock(at))?;
    u32::try_from(at).map_err(|_| dir.broken())
}

/// Where the mapping that has a block ends; `None` if none has it.
fn mapped_from(dir: &mut DirectoryChange<'_, '_>, at: u64) -> Result<Option<u64>> {
    let found = dir.mapping_from(FileBlock(at))?;
    Ok(found
        .filter(|found| found.offset.0 <= at)
        .map(|found| found.end().0))
}

/// Changes the link of a neighbour on the same level.
fn relink(
    dir: &mut DirectoryChange<'_, '_>,
    at: Option<u32>,
    change: impl FnOnce(&mut DaLinks),
) -> Result<()> {
    let Some(at) = at else {
        return Ok(());
    };
    if kind_of(dir, at)? == DaKind::Node {
        let mut node = read_node(dir, at)?;
        change(&mut node.links);
        return write_node(dir, &node);
    }
    let mut leaf = read_leaf(dir, at)?;
    change(&mut leaf.links);
    write_leaf(dir, at, &leaf.entries, leaf.links)
}

/// The leaf that a hash leads to, which may be known, and the greatest hash that its node has of it.
fn leaf_at(
    dir: &mut DirectoryChange<'_, '_>,
    hash: u32,
    known: Option<LeafPlace>,
) -> Result<(u32, Option<u32>)> {
    let Some(known) = known.filter(|known| known.hash == hash) else {
        return leaf_for(dir, hash);
    };
    let known = (known.block, known.greatest);
    debug_assert!(
        leaf_for(dir, hash).ok().is_none_or(|found| found == known),
        "the directory was changed since the leaf was found"
    );
    Ok(known)
}

/// Adds a leaf entry, whose hash leads to `leaf`, where that is known.
pub(super) fn insert(
    dir: &mut DirectoryChange<'_, '_>,
    entry: HashEntry,
    leaf: Option<LeafPlace>,
) -> Result<()> {
    let (at, known) = leaf_at(dir, entry.0, leaf)?;
    let inserted = dir.edit_block(FileBlock(at.into()), LEAF, |bytes, within| {
        index::insert_in_leaf(bytes, within, entry)
    })?;
    if let Some(greatest) = inserted {
        return store_greatest(dir, entry.0, known, greatest);
    }
    let (steps, at) = descend_to(dir, entry.0)?;
    let Path {
        mut steps,
        mut leaf,
        ..
    } = path_to(dir, steps, at)?;
    insert_sorted(&mut leaf.entries, entry);
    if leaf.entries.len() <= build::leaf_entries_max(dir.geometry()) {
        write_leaf(dir, leaf.at, &leaf.entries, leaf.links)?;
        let greatest = leaf.entries.last().map_or(0, |last| last.0);
        return store_steps(dir, steps, greatest);
    }
    // A root that is a leaf moves to a block of its own below a new root.
    if steps.is_empty() {
        let at = add_block(dir)?;
        steps.push(Step {
            at: leaf.at,
            level: 1,
            links: NO_LINKS,
            children: vec![(0, at)],
            index: 0,
        });
        leaf.at = at;
    }
    let new = add_block(dir)?;
    let right = leaf.entries.split_off(leaf.entries.len() / 2);
    let (left_links, right_links) = split_links(leaf.links, leaf.at, new);
    write_leaf(dir, leaf.at, &leaf.entries, left_links)?;
    write_leaf(dir, new, &right, right_links)?;
    relink(dir, leaf.links.next, |links| links.previous = Some(new))?;
    let hashes = [&leaf.entries, &right].map(|part| part.last().map_or(0, |last| last.0));
    insert_child(dir, steps, hashes, new)
}

/// The last child of a path was split: it has the first of two greatest hashes, and `new` the second.
fn insert_child(
    dir: &mut DirectoryChange<'_, '_>,
    mut steps: Vec<Step>,
    hashes: [u32; 2],
    new: u32,
) -> Result<()> {
    let Some(mut step) = steps.pop() else {
        return Err(broken(dir, DaNodeRule::Level));
    };
    check_hashes(dir, &step, hashes)?;
    if let Some(child) = step.children.get_mut(step.index) {
        child.0 = hashes[0];
    }
    step.children.insert(step.index + 1, (hashes[1], new));
    if step.children.len() <= build::node_entries_max(dir.geometry()) {
        write_node(dir, &step)?;
        let greatest = step.children.last().map_or(0, |last| last.0);
        return store_steps(dir, steps, greatest);
    }
    if steps.is_empty() {
        if step.level >= DA_LEVELS_MAX {
            return Err(Condition::NoSpace.into());
        }
        let at = add_block(dir)?;
        steps.push(Step {
            at: step.at,
            level: step.level + 1,
            links: NO_LINKS,
            children: vec![(0, at)],
            index: 0,
        });
        step.at = at;
    }
    let at = add_block(dir)?;
    let (left_links, right_links) = split_links(step.links, step.at, at);
    let right = Step {
        at,
        level: step.level,
        links: right_links,
        children: step.children.split_off(step.children.len() / 2),
        index: 0,
    };
    let next = step.links.next;
    step.links = left_links;
    write_node(dir, &step)?;
    write_node(dir, &right)?;
    relink(dir, next, |links| links.previous = Some(at))?;
    let hashes = [&step.children, &right.children];
    let hashes = hashes.map(|part| part.last().map_or(0, |last| last.0));
    insert_child(dir, steps, hashes, at)
}

/// Checks that the greatest hashes, first and last, of what takes the place of the child that a search went to
/// lie between those of the children next to it: verifiers do not compare a block with its node.
fn check_hashes(dir: &DirectoryChange<'_, '_>, step: &Step, [first, last]: [u32; 2]) -> Result<()> {
    let before = step.index.checked_sub(1);
    let before = before.and_then(|before| step.children.get(before));
    let after = step.children.get(step.index + 1);
    let is_ordered =
        before.is_none_or(|before| before.0 <= first) && after.is_none_or(|after| last <= after.0);
    if is_ordered {
        Ok(())
    } else {
        Err(broken(dir, DaNodeRule::Order))
    }
}

/// Brings the greatest hashes above the leaf of a hash up to date, which is `greatest` now and was `known` to its node.
fn store_greatest(
    dir: &mut DirectoryChange<'_, '_>,
    hash: u32,
    known: Option<u32>,
    greatest: u32,
) -> Result<()> {
    if known.is_none_or(|known| known == greatest) {
        return Ok(());
    }
    let (steps, _) = descend_to(dir, hash)?;
    store_steps(dir, steps, greatest)
}

/// Brings the greatest hashes of a path up to date.
fn store_steps(
    dir: &mut DirectoryChange<'_, '_>,
    mut steps: Vec<Step>,
    mut greatest: u32,
) -> Result<()> {
    while let Some(mut step) = steps.pop() {
        let Some(child) = step.children.get_mut(step.index) else {
            return Err(broken(dir, DaNodeRule::Count));
        };
        if child.0 == greatest {
            return Ok(());
        }
        child.0 = greatest;
        check_hashes(dir, &step, [greatest; 2])?;
        write_node(dir, &step)?;
        greatest = step.children.last().map_or(0, |last| last.0);
    }
    Ok(())
}

/// Takes a leaf entry out, whose hash leads to `leaf`, where that is known.
pub(super) fn remove(
    dir: &mut DirectoryChange<'_, '_>,
    entry: HashEntry,
    leaf: Option<LeafPlace>,
) -> Result<()> {
    let (at, known) = leaf_at(dir, entry.0, leaf)?;
    let removed = dir.edit_block(FileBlock(at.into()), LEAF, |bytes, within| {
        index::remove_from_leaf(bytes, within, entry)
    })?;
    if let Some(greatest) = removed {
        return store_greatest(dir, entry.0, known, greatest);
    }
    let (steps, at) = descend_to(dir, entry.0)?;
    let mut path = Some(path_to(dir, steps, at)?);
    while let Some(found) = &mut path {
        if let Some(at) = found.leaf.entries.iter().position(|&other| other == entry) {
            found.leaf.entries.remove(at);
            break;
        }
        if !advance(dir, found)? {
            path = None;
        }
    }
    let Some(Path { steps, leaf, .. }) = path else {
        return Err(dir.broken());
    };
    let greatest = leaf.entries.last().map(|last| last.0);
    if greatest.is_some() || steps.is_empty() {
        write_leaf(dir, leaf.at, &leaf.entries, leaf.links)?;
        return store_steps(dir, steps, greatest.unwrap_or(0));
    }
    unlink(dir, leaf.at, leaf.links)?;
    remove_child(dir, steps)
}

/// Takes a block out of its level, and frees it.
fn unlink(dir: &mut DirectoryChange<'_, '_>, at: u32, links: DaLinks) -> Result<()> {
    relink(dir, links.previous, |other| other.next = links.next)?;
    relink(dir, links.next, |other| other.previous = links.previous)?;
    dir.drop_block(FileBlock(at.into()))
}

/// The last child of a path is gone.
fn remove_child(dir: &mut DirectoryChange<'_, '_>, mut steps: Vec<Step>) -> Result<()> {
    let Some(mut step) = steps.pop() else {
        return Err(broken(dir, DaNodeRule::Level));
    };
    // Links of a node that was changed on the way are those that it has now.
    step.links = read_node(dir, step.at)?.links;
    step.children.remove(step.index);
    let Some(&(greatest, only)) = step.children.last() else {
        unlink(dir, step.at, step.links)?;
        return remove_child(dir, steps);
    };
    if steps.is_empty() && step.children.len() == 1 {
        return raise(dir, step.at, only);
    }
    write_node(dir, &step)?;
    store_steps(dir, steps, greatest)
}

/// Moves the only child of the root to the root's block, as long as there is one.
fn raise(dir: &mut DirectoryChange<'_, '_>, root: u32, mut only: u32) -> Result<()> {
    loop {
        if kind_of(dir, only)? != DaKind::Node {
            let leaf = read_leaf(dir, only)?;
            write_leaf(dir, root, &leaf.entries, NO_LINKS)?;
            return dir.drop_block(FileBlock(only.into()));
        }
        let mut node = read_node(dir, only)?;
        dir.drop_block(FileBlock(only.into()))?;
        if let [(_, child)] = node.children[..] {
            only = child;
            continue;
        }
        node.at = root;
        node.links = NO_LINKS;
        return write_node(dir, &node);
    }
}
