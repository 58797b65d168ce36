//! The hash tree of attributes: leaves and nodes split and merge, and the root stays in the first block.
//! Spec: `xfs/dabtrees`.

use std::collections::HashSet;

use platter_vfs::{Condition, Result};

use super::Stored;
use super::blocks::Blocks;
use crate::ondisk::BlockKind;
use crate::ondisk::attr::build;
use crate::ondisk::attr::leaf::AttrLeaf;
use crate::ondisk::da::{DA_LEVELS_MAX, DaKind, DaLinks, DaNode, DaNodeRule};

const ROOT: u32 = 0;
/// A block that is alone on its level.
const NO_LINKS: DaLinks = DaLinks {
    next: None,
    previous: None,
};
/// A leaf that is filled less than this, in percent, merges with a neighbour if both fill less than the other.
const MERGED_BELOW: usize = 37;
const MERGED_UP_TO: usize = 75;

/// A leaf in memory.
#[derive(Debug, Clone)]
struct Leaf {
    at: u32,
    links: DaLinks,
    attrs: Vec<Stored>,
}

/// A node in memory, and the child that a search went to.
#[derive(Debug, Clone)]
struct Step {
    at: u32,
    level: u16,
    links: DaLinks,
    /// The greatest hash below each child, and the child.
    children: Vec<(u32, u32)>,
    index: usize,
}

/// The nodes from the root to a leaf.
#[derive(Debug)]
pub(super) struct Path {
    steps: Vec<Step>,
    leaf: Leaf,
}

impl Path {
    /// An attribute of the leaf.
    pub(super) fn attr(&self, index: usize) -> Option<&Stored> {
        self.leaf.attrs.get(index)
    }
}

fn size_of_all(attrs: &[Stored]) -> usize {
    attrs
        .iter()
        .map(|attr| build::leaf_bytes(&attr.entry()))
        .sum()
}

fn greatest(attrs: &[Stored]) -> u32 {
    attrs.last().map_or(0, |last| last.hash)
}

/// Where to split attributes so that both parts fit a leaf, as even as may be.
fn split_at(attrs: &[Stored], space: usize) -> Option<usize> {
    let total = size_of_all(attrs);
    let mut left = 0;
    let mut best: Option<(usize, usize)> = None;
    for (index, attr) in attrs.iter().enumerate() {
        if index > 0 {
            let larger = left.max(total - left);
            if larger <= space && best.is_none_or(|(size, _)| larger < size) {
                best = Some((larger, index));
            }
        }
        left += build::leaf_bytes(&attr.entry());
    }
    best.map(|(_, index)| index)
}

impl Blocks<'_> {
    fn read_leaf(&mut self, at: u32) -> Result<Leaf> {
        let bytes = self.read(at, BlockKind::AttrLeaf)?;
        let leaf = AttrLeaf::decode(&bytes, &self.verified());
        let leaf = leaf.map_err(|rule| self.broken(rule))?;
        let mut attrs = Vec::with_capacity(leaf.entries.len());
        for entry in leaf.entries {
            let attr = leaf.attr(entry).map_err(|rule| self.broken(rule))?;
            attrs.push(Stored::of(entry.hash.get(), &attr));
        }
        Ok(Leaf {
            at,
            links: leaf.links,
            attrs,
        })
    }

    fn read_node(&mut self, at: u32) -> Result<Step> {
        let bytes = self.read(at, BlockKind::DaNode)?;
        let node = DaNode::decode(&bytes, &self.verified());
        let node = node.map_err(|rule| self.broken(rule))?;
        let children = node.entries.iter();
        let children = children.map(|entry| (entry.hash.get(), entry.child.get()));
        Ok(Step {
            at,
            level: node.level,
            links: node.links,
            children: children.collect(),
            index: 0,
        })
    }

    fn write_leaf(&mut self, at: u32, attrs: &[Stored], links: DaLinks) -> Result<()> {
        let entries = attrs.iter().map(|attr| (attr.hash, attr.entry()));
        let entries: Vec<_> = entries.collect();
        self.write(at, |site| build::leaf(&entries, links, site))
    }

    fn write_node(&mut self, step: &Step) -> Result<()> {
        self.write(step.at, |site| {
            build::node(&step.children, step.level, step.links, site)
        })
    }

    /// Makes the first block of a fork without blocks a leaf without attributes.
    pub(super) fn plant(&mut self) -> Result<()> {
        let root = self.add_block()?;
        self.write_leaf(root, &[], NO_LINKS)
    }

    /// Frees the first block, which is the only one.
    pub(super) fn drop_root(&mut self) -> Result<()> {
        self.drop_blocks(ROOT, 1)
    }

    /// The attributes of the only leaf, if the tree has no more.
    pub(super) fn only_leaf(&mut self) -> Result<Option<Vec<Stored>>> {
        if self.kind(ROOT)? != DaKind::AttrLeaf {
            return Ok(None);
        }
        Ok(Some(self.read_leaf(ROOT)?.attrs))
    }

    /// The path to the first leaf that may have a hash, or to the last leaf.
    fn descend(&mut self, hash: u32) -> Result<Path> {
        let mut steps: Vec<Step> = Vec::new();
        let mut at = ROOT;
        loop {
            match self.kind(at)? {
                DaKind::AttrLeaf => {
                    let leaf = self.read_leaf(at)?;
                    return Ok(Path { steps, leaf });
                }
                DaKind::Node => {}
                DaKind::DirLeaf1 | DaKind::DirLeafN => {
                    return Err(self.broken(DaNodeRule::Kind));
                }
            }
            let mut step = self.read_node(at)?;
            let above = steps.last().map_or(DA_LEVELS_MAX + 1, |above| above.level);
            if step.level >= above {
                return Err(self.broken(DaNodeRule::Level));
            }
            let index = step.children.partition_point(|child| child.0 < hash);
            step.index = index.min(step.children.len().saturating_sub(1));
            let Some(&(_, child)) = step.children.get(step.index) else {
                return Err(self.broken(DaNodeRule::Count));
            };
            at = child;
            steps.push(step);
        }
    }

    /// Goes on to the next leaf; false after the last.
    fn advance(&mut self, path: &mut Path) -> Result<bool> {
        while let Some(step) = path.steps.last_mut() {
            if step.index + 1 < step.children.len() {
                step.index += 1;
                break;
            }
            path.steps.pop();
        }
        let Some(step) = path.steps.last() else {
            return Ok(false);
        };
        let mut next = step.children.get(step.index).map(|&(_, child)| child);
        while let Some(at) = next {
            if self.kind(at)? != DaKind::Node {
                path.leaf = self.read_leaf(at)?;
                return Ok(true);
            }
            let step = self.read_node(at)?;
            let above = path.steps.last().map_or(0, |above| above.level);
            if step.level >= above {
                break;
            }
            next = step.children.first().map(|&(_, child)| child);
            path.steps.push(step);
        }
        Err(self.broken(DaNodeRule::Level))
    }

    /// The leaf and the position in it of the attribute of a hash that is looked for.
    pub(super) fn find(
        &mut self,
        hash: u32,
        is_it: impl Fn(&Stored) -> bool,
    ) -> Result<Option<(Path, usize)>> {
        let mut path = self.descend(hash)?;
        let mut seen = HashSet::new();
        loop {
            let found = path
                .leaf
                .attrs
                .iter()
                .position(|attr| attr.hash == hash && is_it(attr));
            if let Some(index) = found {
                return Ok(Some((path, index)));
            }
            // Names of one hash may go on in the next leaf.
            if greatest(&path.leaf.attrs) > hash {
                return Ok(None);
            }
            // Several blocks of the fork may be one.
            if !seen.insert(self.locate(path.leaf.at)?) {
                return Err(self.broken(DaNodeRule::Cycle));
            }
            if !self.advance(&mut path)? {
                return Ok(None);
            }
        }
    }

    /// Changes the link of a neighbour on the same level.
    fn relink(&mut self, at: Option<u32>, change: impl FnOnce(&mut DaLinks)) -> Result<()> {
        let Some(at) = at else {
            return Ok(());
        };
        if self.kind(at)? == DaKind::Node {
            let mut node = self.read_node(at)?;
            change(&mut node.links);
            return self.write_node(&node);
        }
        let mut leaf = self.read_leaf(at)?;
        change(&mut leaf.links);
        self.write_leaf(at, &leaf.attrs, leaf.links)
    }

    /// Adds an attribute.
    pub(super) fn insert(&mut self, attr: Stored) -> Result<()> {
        let space = build::leaf_space(self.geometry());
        let Path { steps, mut leaf } = self.descend(attr.hash)?;
        let at = leaf.attrs.partition_point(|old| old.hash <= attr.hash);
        let old = leaf.attrs.clone();
        leaf.attrs.insert(at, attr.clone());
        if size_of_all(&leaf.attrs) <= space {
            self.write_leaf(leaf.at, &leaf.attrs, leaf.links)?;
            return self.store_steps(steps, greatest(&leaf.attrs));
        }
        if let Some(split) = split_at(&leaf.attrs, space) {
            return self.split_leaf(steps, leaf, split);
        }
        // Between two large ones it goes to a leaf of its own, once they are in two.
        if at == 0 || at >= old.len() {
            return Err(self.broken(DaNodeRule::Count));
        }
        leaf.attrs = old;
        self.split_leaf(steps, leaf, at)?;
        self.insert(attr)
    }

    /// Moves the attributes from a position on to a new leaf.
    fn split_leaf(&mut self, mut steps: Vec<Step>, mut leaf: Leaf, split: usize) -> Result<()> {
        // A root that is a leaf moves to a block of its own below a new root.
        if steps.is_empty() {
            let at = self.add_block()?;
            steps.push(Step {
                at: leaf.at,
                level: 1,
                links: NO_LINKS,
                children: vec![(0, at)],
                index: 0,
            });
            leaf.at = at;
        }
        let new = self.add_block()?;
        let right = leaf.attrs.split_off(split);
        let (left_links, right_links) = split_links(leaf.links, leaf.at, new);
        self.write_leaf(leaf.at, &leaf.attrs, left_links)?;
        self.write_leaf(new, &right, right_links)?;
        self.relink(leaf.links.next, |links| links.previous = Some(new))?;
        self.insert_child(steps, [greatest(&leaf.attrs), greatest(&right)], new)
    }

    /// The last child of a path was split: it has the first of two greatest hashes, and `new` the second.
    fn insert_child(&mut self, mut steps: Vec<Step>, hashes: [u32; 2], new: u32) -> Result<()> {
        let Some(mut step) = steps.pop() else {
            return Err(self.broken(DaNodeRule::Level));
        };
        if let Some(child) = step.children.get_mut(step.index) {
            child.0 = hashes[0];
        }
        let after = (step.index + 1).min(step.children.len());
        step.children.insert(after, (hashes[1], new));
        if step.children.len() <= build::node_entries_max(self.geometry()) {
            self.write_node(&step)?;
            let greatest = step.children.last().map_or(0, |last| last.0);
            return self.store_steps(steps, greatest);
        }
        if steps.is_empty() {
            if step.level >= DA_LEVELS_MAX {
                return Err(Condition::NoSpace.into());
            }
            let at = self.add_block()?;
            steps.push(Step {
                at: step.at,
                level: step.level + 1,
                links: NO_LINKS,
                children: vec![(0, at)],
                index: 0,
            });
            step.at = at;
        }
        let at = self.add_block()?;
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
        self.write_node(&step)?;
        self.write_node(&right)?;
        self.relink(next, |links| links.previous = Some(at))?;
        let hashes = [&step.children, &right.children];
        let hashes = hashes.map(|part| part.last().map_or(0, |last| last.0));
        self.insert_child(steps, hashes, at)
    }

    /// Brings the greatest hashes of a path up to date.
    fn store_steps(&mut self, mut steps: Vec<Step>, mut greatest: u32) -> Result<()> {
        while let Some(mut step) = steps.pop() {
            let Some(child) = step.children.get_mut(step.index) else {
                return Err(self.broken(DaNodeRule::Count));
            };
            if child.0 == greatest {
                return Ok(());
            }
            child.0 = greatest;
            self.write_node(&step)?;
            greatest = step.children.last().map_or(0, |last| last.0);
        }
        Ok(())
    }

    /// Takes an attribute out of a leaf.
    pub(super) fn remove(&mut self, path: Path, index: usize) -> Result<()> {
        let Path { steps, mut leaf } = path;
        if index < leaf.attrs.len() {
            leaf.attrs.remove(index);
        }
        if steps.is_empty() {
            return self.write_leaf(leaf.at, &leaf.attrs, leaf.links);
        }
        if leaf.attrs.is_empty() {
            self.unlink(leaf.at, leaf.links)?;
            return self.remove_child(steps);
        }
        self.write_leaf(leaf.at, &leaf.attrs, leaf.links)?;
        let space = build::leaf_space(self.geometry());
        if size_of_all(&leaf.attrs) * 100 < space * MERGED_BELOW
            && let Some(pair) = self.neighbour(&steps, &leaf, space)?
        {
            return self.merge(steps, pair);
        }
        self.store_steps(steps, greatest(&leaf.attrs))
    }

    /// Two leaves that merge, with the position of the first one: a leaf and its neighbour below the same node.
    fn neighbour(
        &mut self,
        steps: &[Step],
        leaf: &Leaf,
        space: usize,
    ) -> Result<Option<(usize, Leaf, Leaf)>> {
        let Some(step) = steps.last() else {
            return Ok(None);
        };
        for first in [Some(step.index), step.index.checked_sub(1)] {
            let Some(first) = first else { continue };
            let other = if first == step.index {
                first + 1
            } else {
                first
            };
            let Some(&(_, other)) = step.children.get(other) else {
                continue;
            };
            let other = self.read_leaf(other)?;
            let size = size_of_all(&leaf.attrs) + size_of_all(&other.attrs);
            if size * 100 <= space * MERGED_UP_TO {
                return Ok(Some(if first == step.index {
                    (first, leaf.clone(), other)
                } else {
                    (first, other, leaf.clone())
                }));
            }
        }
        Ok(None)
    }

    fn merge(
        &mut self,
        mut steps: Vec<Step>,
        (first, mut left, right): (usize, Leaf, Leaf),
    ) -> Result<()> {
        left.attrs.extend(right.attrs);
        self.unlink(right.at, right.links)?;
        left.links.next = right.links.next;
        self.write_leaf(left.at, &left.attrs, left.links)?;
        if let Some(step) = steps.last_mut() {
            if let Some(child) = step.children.get_mut(first) {
                child.0 = greatest(&left.attrs);
            }
            step.index = first + 1;
        }
        self.remove_child(steps)
    }

    /// Takes a block out of its level, and frees it.
    fn unlink(&mut self, at: u32, links: DaLinks) -> Result<()> {
        self.relink(links.previous, |other| other.next = links.next)?;
        self.relink(links.next, |other| other.previous = links.previous)?;
        self.drop_blocks(at, 1)
    }

    /// The last child of a path is gone.
    fn remove_child(&mut self, mut steps: Vec<Step>) -> Result<()> {
        let Some(mut step) = steps.pop() else {
            return Err(self.broken(DaNodeRule::Level));
        };
        if step.index < step.children.len() {
            step.children.remove(step.index);
        }
        let Some(&(greatest, only)) = step.children.last() else {
            if steps.is_empty() {
                return Err(self.broken(DaNodeRule::Count));
            }
            self.unlink(step.at, step.links)?;
            return self.remove_child(steps);
        };
        if steps.is_empty() && step.children.len() == 1 {
            return self.raise(only);
        }
        self.write_node(&step)?;
        self.store_steps(steps, greatest)
    }

    /// Moves the only child of the root to the root's block, as long as there is one.
    fn raise(&mut self, mut only: u32) -> Result<()> {
        for _ in 0..=DA_LEVELS_MAX {
            if self.kind(only)? != DaKind::Node {
                let leaf = self.read_leaf(only)?;
                self.write_leaf(ROOT, &leaf.attrs, NO_LINKS)?;
                return self.drop_blocks(only, 1);
            }
            let node = self.read_node(only)?;
            self.write_node(&Step {
                at: ROOT,
                links: NO_LINKS,
                ..node.clone()
            })?;
            self.drop_blocks(only, 1)?;
            match node.children[..] {
                [(_, below)] => only = below,
                _ => return Ok(()),
            }
        }
        Err(self.broken(DaNodeRule::Level))
    }
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

#[cfg(test)]
impl Blocks<'_> {
    pub(super) fn all(&mut self) -> Result<Vec<Stored>> {
        let mut path = self.descend(0)?;
        let mut all: Vec<Stored> = Vec::new();
        let mut previous = None;
        loop {
            assert_eq!(path.leaf.links.previous, previous);
            for step in &path.steps {
                assert!(greatest(&path.leaf.attrs) <= step.children[step.index].0);
            }
            if let Some(step) = path.steps.last() {
                assert_eq!(greatest(&path.leaf.attrs), step.children[step.index].0);
            }
            all.extend(path.leaf.attrs.iter().cloned());
            previous = Some(path.leaf.at);
            let next = path.leaf.links.next;
            if !self.advance(&mut path)? {
                assert_eq!(next, None);
                assert!(all.is_sorted_by_key(|attr| attr.hash));
                return Ok(all);
            }
            assert_eq!(next, Some(path.leaf.at));
        }
    }
}
