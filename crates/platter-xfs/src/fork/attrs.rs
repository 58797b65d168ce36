//! All attributes of an inode, read and written as a whole: in the inode, in leaves below nodes, and with
//! values in blocks of their own. Spec: `xfs/extended_attributes`; parent pointers:
//! `xfs-headers/xfs_da_format.h`.

use std::collections::HashSet;

use platter_ondisk::{Corrupt, Locus, Rule};
use platter_vfs::{Error, Result, Unsupported};

use super::tree::alloc;
use super::{ForkEdit, InodeEdit};
use crate::ag::Groups;
use crate::ondisk::attr::leaf::AttrLeaf;
use crate::ondisk::attr::remote::{self, AttrRemoteRule};
use crate::ondisk::attr::{AttrEntry, AttrValue, Namespace, build, short};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::da::{self, DaKind, DaLinks, DaNode, DaNodeRule};
use crate::ondisk::extent::Mapping;
use crate::ondisk::inode::edit::StoredFork;
use crate::ondisk::{FileBlock, ForkFormat, ForkKind, FsBlock, InodeNr, Site};

/// The most bytes of names and values that are changed at once.
const BYTES_MAX: usize = 32 << 20;

/// An attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

impl Attr {
    /// The hash of the name; pointers to parents of one name differ by the parent.
    fn hash(&self) -> u32 {
        let hash = da::hash(&self.name);
        let parent = self
            .value
            .first_chunk()
            .filter(|_| self.namespace == Namespace::Parent);
        let parent = parent.map_or(0, |parent| u64::from_be_bytes(*parent));
        let half = |half: u64| u32::try_from(half & u64::from(u32::MAX)).unwrap_or_default();
        hash ^ half(parent >> 32) ^ half(parent)
    }
}

/// All attributes of an inode, those that were being written excepted.
#[derive(Debug, Default)]
pub struct AttrSet(pub Vec<Attr>);

/// The attribute fork while it is read or written.
struct Blocks<'g> {
    groups: &'g mut Groups,
    fork: ForkEdit,
    owner: InodeNr,
}

impl AttrSet {
    /// Reads the attributes of an inode.
    ///
    /// # Errors
    /// `Unsupported` for more than 32 MiB of them.
    pub fn read(groups: &mut Groups, inode: &InodeEdit) -> Result<Self> {
        let number = inode.inode().number;
        let fork = inode.fork(ForkKind::Attr)?;
        let mut set = Self::default();
        if fork.format == ForkFormat::Local {
            let corrupt = |rule| broken(number, rule);
            for attr in short::entries(fork.bytes).map_err(corrupt)? {
                let attr = attr.map_err(corrupt)?;
                if let AttrValue::Local(value) = attr.value {
                    set.push(&attr, value.to_vec());
                }
            }
            return Ok(set);
        }
        let fork = ForkEdit::open(&fork, number, groups.geometry())?;
        if fork.extents > 0 {
            let owner = number;
            Blocks {
                groups,
                fork,
                owner,
            }
            .read_leaves(&mut set)?;
        }
        Ok(set)
    }

    fn push(&mut self, attr: &AttrEntry<'_>, value: Vec<u8>) {
        if attr.flags.is_complete() {
            self.0.push(Attr {
                namespace: attr.namespace,
                name: attr.name.to_vec(),
                value,
            });
        }
    }

    /// Writes the attributes of an inode of version 3 in the place of those that it has.
    pub fn write(&self, groups: &mut Groups, inode: &mut InodeEdit) -> Result<()> {
        let owner = inode.inode().number;
        let old = inode.fork(ForkKind::Attr)?;
        let len = old.bytes.len();
        let mut fork = if old.format == ForkFormat::Local {
            ForkEdit::empty(ForkKind::Attr, owner, len)
        } else {
            ForkEdit::open(&old, owner, groups.geometry())?
        };
        free_all(&mut fork, groups, owner)?;
        let short = self.0.iter().map(|attr| AttrEntry {
            flags: attr.namespace.flag(),
            namespace: attr.namespace,
            name: &attr.name,
            value: AttrValue::Local(&attr.value),
        });
        let short = build::short(&short.collect::<Vec<_>>());
        if let Some(bytes) = short.filter(|bytes| bytes.len() <= len && !self.0.is_empty()) {
            let stored = StoredFork {
                kind: ForkKind::Attr,
                format: ForkFormat::Local,
                extents: 0,
                bytes: &bytes,
            };
            return inode.set_fork(&stored, fork.blocks);
        }
        let mut blocks = Blocks {
            groups,
            fork,
            owner,
        };
        if !self.0.is_empty() {
            blocks.write_leaves(&self.0)?;
        }
        blocks.fork.store(inode)
    }
}

fn broken<R: Rule>(inode: InodeNr, rule: R) -> Error {
    Corrupt::new(Locus::inode(inode.get()), rule).into()
}

/// Frees all blocks of a fork.
fn free_all(fork: &mut ForkEdit, groups: &mut Groups, inode: InodeNr) -> Result<()> {
    let geometry = groups.geometry().clone();
    for gone in fork.unmap(groups, FileBlock(0), FileBlock::MAX.0)? {
        for step in 0..gone.count {
            let at = geometry.byte_offset(FsBlock(gone.start.saturating_add(step)));
            groups.blocks_mut().forget(at, geometry.block_bytes());
        }
        let (ag, start) = geometry.split(FsBlock(gone.start));
        let count = u32::try_from(gone.count).unwrap_or(u32::MAX);
        let mut group = groups.get(ag)?;
        group.fill_free_list()?;
        group.remove_owner(&Owner {
            count,
            offset: gone.offset.0,
            is_attr_fork: true,
            ..Owner::special(start, count, RmapOwner(inode.get()))
        })?;
        group.free_extent(start, count)?;
    }
    Ok(())
}

impl Blocks<'_> {
    fn broken<R: Rule>(&self, rule: R) -> Error {
        broken(self.owner, rule)
    }

    /// Where a block of the fork lies.
    fn locate(&mut self, block: u32) -> Result<FsBlock> {
        let at = FileBlock(block.into());
        let found = self.fork.lookup(self.groups, at)?;
        let found = found.filter(|found| found.offset <= at && !found.is_unwritten);
        let found = found.ok_or_else(|| self.broken(DaNodeRule::Missing))?;
        Ok(FsBlock(found.start + (at.0 - found.offset.0)))
    }

    fn read(&mut self, block: u32) -> Result<(Vec<u8>, FsBlock)> {
        let at = self.locate(block)?;
        let geometry = self.groups.geometry();
        let offset = geometry.byte_offset(at);
        Ok((
            self.groups.blocks().read(offset, geometry.block_bytes())?,
            at,
        ))
    }

    fn read_leaves(&mut self, set: &mut AttrSet) -> Result<()> {
        let geometry = self.groups.geometry().clone();
        let owner = self.owner.get();
        let site = |at| Site::new(&geometry, geometry.basic_block(at), owner);
        let mut next = Some(self.first_leaf()?);
        let mut seen = HashSet::new();
        let mut bytes_read = 0_usize;
        while let Some(block) = next {
            if !seen.insert(block) {
                return Err(self.broken(DaNodeRule::Cycle));
            }
            let (bytes, at) = self.read(block)?;
            let leaf = AttrLeaf::decode(&bytes, &site(at)).map_err(|rule| self.broken(rule))?;
            for entry in leaf.entries {
                let attr = leaf.attr(entry).map_err(|rule| self.broken(rule))?;
                if !attr.flags.is_complete() {
                    continue;
                }
                let value = match attr.value {
                    AttrValue::Local(value) => value.to_vec(),
                    AttrValue::Remote { block, len } => self.read_value(block, len)?,
                };
                bytes_read += attr.name.len() + value.len();
                if bytes_read > BYTES_MAX {
                    return Err(Unsupported {
                        filesystem: "xfs",
                        feature: format!(
                            "changing more than 32 MiB of attributes of inode {owner}"
                        ),
                        reason: Some("mount read-only with norecovery"),
                    }
                    .into());
                }
                set.push(&attr, value);
            }
            next = leaf.links.next;
        }
        Ok(())
    }

    /// The leaf with the smallest hashes.
    fn first_leaf(&mut self) -> Result<u32> {
        let geometry = self.groups.geometry().clone();
        let (mut block, mut above) = (0, u16::MAX);
        loop {
            let (bytes, at) = self.read(block)?;
            if DaKind::of(&bytes, geometry.features.is_v5()) != Some(DaKind::Node) {
                return Ok(block);
            }
            let site = Site::new(&geometry, geometry.basic_block(at), self.owner.get());
            let node = DaNode::decode(&bytes, &site).map_err(|rule| self.broken(rule))?;
            let first = node.entries.first().filter(|_| node.level < above);
            let first = first.ok_or_else(|| self.broken(DaNodeRule::Level))?;
            (block, above) = (first.child.get(), node.level);
        }
    }

    fn read_value(&mut self, first: u32, len: u32) -> Result<Vec<u8>> {
        let geometry = self.groups.geometry().clone();
        let capacity = remote::capacity(&geometry).max(1);
        let mut value = Vec::new();
        for step in 0..len.div_ceil(capacity) {
            let (bytes, at) = self.read(first.saturating_add(step))?;
            let site = Site::new(&geometry, geometry.basic_block(at), self.owner.get());
            let offset = step.saturating_mul(capacity);
            let part = remote::decode(&bytes, offset, len.saturating_sub(offset), &site);
            value.extend_from_slice(part.map_err(|rule| self.broken(rule))?);
        }
        Ok(value)
    }

    /// Allocates and maps blocks of the fork.
    fn add(&mut self, first: u32, count: u32) -> Result<()> {
        let mut done = 0;
        while done < count {
            let (ag, start, found) = alloc(self.groups, self.owner, count - done)?;
            let offset = u64::from(first) + u64::from(done);
            self.groups.get(ag)?.add_owner(&Owner {
                offset,
                is_attr_fork: true,
                ..Owner::special(start, found, RmapOwner(self.owner.get()))
            })?;
            let mapping = Mapping {
                offset: FileBlock(offset),
                start: self.groups.geometry().fs_block(ag, start).0,
                count: found.into(),
                is_unwritten: false,
            };
            self.fork.map(self.groups, mapping)?;
            done += found;
        }
        Ok(())
    }

    fn write(
        &mut self,
        block: u32,
        built: impl FnOnce(&Site<'_>) -> Option<Vec<u8>>,
    ) -> Result<()> {
        let at = self.locate(block)?;
        let geometry = self.groups.geometry().clone();
        let site = Site::new(&geometry, geometry.basic_block(at), self.owner.get());
        let bytes = built(&site).ok_or_else(|| self.broken(DaNodeRule::Count))?;
        let offset = geometry.byte_offset(at);
        self.groups.blocks_mut().create(offset, bytes);
        Ok(())
    }

    /// Leaves by ascending hash, the nodes above them, then the values that have blocks of their own.
    fn write_leaves(&mut self, attrs: &[Attr]) -> Result<()> {
        let geometry = self.groups.geometry().clone();
        let mut sorted: Vec<(u32, &Attr)> = attrs.iter().map(|attr| (attr.hash(), attr)).collect();
        sorted.sort_by_key(|(hash, _)| *hash);
        let mut values: Vec<&[u8]> = Vec::new();
        let mut value_blocks = 0_u32;
        let mut leaves: Vec<Vec<(u32, AttrEntry<'_>)>> = vec![Vec::new()];
        let mut space = build::leaf_space(&geometry);
        for (hash, attr) in sorted {
            let mut entry = AttrEntry {
                flags: attr.namespace.flag(),
                namespace: attr.namespace,
                name: &attr.name,
                value: AttrValue::Local(&attr.value),
            };
            if !build::is_local(&attr.name, &attr.value, &geometry) {
                let len = u32::try_from(attr.value.len()).unwrap_or(u32::MAX);
                // Counted from the first of them until the leaves are counted.
                entry.value = AttrValue::Remote {
                    block: value_blocks,
                    len,
                };
                value_blocks += len.div_ceil(remote::capacity(&geometry).max(1));
                values.push(&attr.value);
            }
            let size = build::leaf_bytes(&entry);
            if size > space {
                leaves.push(Vec::new());
                space = build::leaf_space(&geometry);
            }
            space = space.saturating_sub(size);
            if let Some(last) = leaves.last_mut() {
                last.push((hash, entry));
            }
        }
        let levels = levels(leaves.len(), build::node_entries_max(&geometry));
        let nodes: usize = levels.iter().sum();
        let first_value = u32::try_from(leaves.len() + nodes).unwrap_or(u32::MAX);
        self.add(0, first_value)?;
        self.add(first_value, value_blocks)?;
        let first_leaf = u32::from(!levels.is_empty());
        let count = leaves.len();
        let mut below = Vec::new();
        for (index, leaf) in leaves.iter_mut().enumerate() {
            for (_, attr) in leaf.iter_mut() {
                if let AttrValue::Remote { block, .. } = &mut attr.value {
                    *block = block.saturating_add(first_value);
                }
            }
            let block = first_leaf + u32::try_from(index).unwrap_or(u32::MAX);
            let hash = leaf.last().map_or(0, |(hash, _)| *hash);
            below.push((hash, block));
            let links = links(first_leaf, index, count);
            self.write(block, |site| build::leaf(leaf, links, site))?;
        }
        self.write_nodes(&levels, below)?;
        self.write_values(&values, first_value)
    }

    fn write_nodes(&mut self, levels: &[usize], mut below: Vec<(u32, u32)>) -> Result<()> {
        let most = build::node_entries_max(self.groups.geometry()).max(1);
        let mut next = u32::try_from(below.len() + 1).unwrap_or(u32::MAX);
        for (level, &count) in (1_u16..).zip(levels) {
            let is_root = usize::from(level) == levels.len();
            let first = if is_root { 0 } else { next };
            let mut above = Vec::new();
            for (index, children) in below.chunks(most).enumerate() {
                let block = first + u32::try_from(index).unwrap_or(u32::MAX);
                let links = links(first, index, count);
                self.write(block, |site| build::node(children, level, links, site))?;
                above.extend(children.last().map(|(hash, _)| (*hash, block)));
            }
            if !is_root {
                next = next.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
            }
            below = above;
        }
        Ok(())
    }

    fn write_values(&mut self, values: &[&[u8]], first: u32) -> Result<()> {
        let capacity = remote::capacity(self.groups.geometry()).max(1);
        let mut block = first;
        for value in values {
            let parts = value.chunks(usize::try_from(capacity).unwrap_or(usize::MAX));
            let mut offset = 0_u32;
            for part in parts {
                self.write(block, |site| build::remote(part, offset, site))
                    .map_err(|_| self.broken(AttrRemoteRule::Length))?;
                offset = offset.saturating_add(capacity);
                block = block.saturating_add(1);
            }
        }
        Ok(())
    }
}

/// Nodes on each level above so many leaves, the root's level last; none above a single leaf.
pub(super) fn levels(leaves: usize, most: usize) -> Vec<usize> {
    let mut levels = Vec::new();
    let mut count = leaves;
    while count > 1 {
        count = count.div_ceil(most.max(2));
        levels.push(count);
    }
    levels
}

/// The neighbours of one of `count` blocks in a row.
fn links(first: u32, index: usize, count: usize) -> DaLinks {
    let at = |index: usize| first.saturating_add(u32::try_from(index).unwrap_or(u32::MAX));
    DaLinks {
        next: (index + 1 < count).then(|| at(index + 1)),
        previous: index.checked_sub(1).map(at),
    }
}
