//! Forks of inodes under change: their mappings, in the inode or in a B-tree. Spec: `xfs/data_extents`.

mod inode;
mod tree;
mod attrs;
#[cfg(test)]
pub(crate) mod tests;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Result, Unsupported};
use zerocopy::IntoBytes;

use crate::ag::Groups;
use crate::ondisk::btree::{BtreeBlock, BtreeKind, BtreeRule, BuiltBlock, DiskMapping};
use crate::ondisk::extent::{ExtentDevice, MAPPING_LEN_MAX, Mapping, MappingRule};
use crate::ondisk::inode::edit::StoredFork;
use crate::ondisk::{FileBlock, Fork, ForkFormat, ForkKind, FsBlock, Geometry, InodeNr};
use crate::tree::{self as records, Node, TreeBlocks, TreeHost};

pub use attrs::{Attr, AttrEdit, AttrKey};
pub use inode::InodeEdit;
pub(crate) use tree::alloc_by;

/// Which B-tree the mappings are in.
const KIND: BtreeKind = BtreeKind::Bmap;
/// The root in the pointers of the tree.
const ROOT: u64 = u64::MAX;

/// A fork under change.
#[derive(Debug)]
pub struct ForkEdit {
    owner: InodeNr,
    kind: ForkKind,
    /// Where what is mapped lies. Blocks of a B-tree are on the data device.
    device: ExtentDevice,
    form: Form,
    /// Number of mappings.
    extents: u64,
    /// Bytes of the inode that it fills.
    len: usize,
    /// Blocks that were added, less those removed.
    blocks: i64,
    /// A mapping was changed.
    is_changed: bool,
}

#[derive(Debug)]
enum Form {
    /// Mappings in the inode.
    Extents(Vec<Mapping>),
    /// The root of a B-tree.
    Tree(Node<DiskMapping>),
}

impl ForkEdit {
    /// The fork of an inode.
    ///
    /// # Errors
    /// `Unsupported` for a fork without mappings.
    pub fn open(fork: &Fork<'_>, owner: InodeNr, geometry: &Geometry) -> Result<Self> {
        Self::open_on(ExtentDevice::Data, fork, owner, geometry)
    }

    /// Opens a fork whose mappings are of blocks on `device`.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_on(
        device: ExtentDevice,
        fork: &Fork<'_>,
        owner: InodeNr,
        geometry: &Geometry,
    ) -> Result<Self> {
        let mut edit = Self {
            device,
            extents: fork.extents,
            ..Self::empty(fork.kind, owner, fork.bytes.len())
        };
        match fork.format {
            ForkFormat::Extents => {
                let mut mappings: Vec<Mapping> = Vec::new();
                for disk in fork.mappings() {
                    let mapping = edit.checked(disk, geometry)?;
                    if mappings
                        .last()
                        .is_some_and(|last| last.end() > mapping.offset)
                    {
                        return Err(edit.broken(MappingRule::Order));
                    }
                    mappings.push(mapping);
                }
                edit.form = Form::Extents(mappings);
            }
            ForkFormat::Btree => {
                let rule = |rule: BtreeRule| Corrupt::new(Locus::inode(owner.get()), rule);
                let root = BtreeBlock::decode_root(fork.bytes, KIND).map_err(rule)?;
                let pointers = tree::pointers(&root, owner, geometry).map_err(rule)?;
                edit.form = Form::Tree(Node::new(ROOT, &root, pointers));
            }
            ForkFormat::Device | ForkFormat::Local | ForkFormat::MetaBtree => {
                return Err(Unsupported {
                    filesystem: "xfs",
                    feature: format!("changing the mappings of inode {owner}, which has none"),
                    reason: None,
                }
                .into());
            }
        }
        Ok(edit)
    }

    /// Where what is mapped lies.
    #[must_use]
    pub const fn device(&self) -> ExtentDevice {
        self.device
    }

    /// A fork without mappings that fills so many bytes of an inode.
    #[must_use]
    pub fn empty(kind: ForkKind, owner: InodeNr, len: usize) -> Self {
        Self {
            owner,
            kind,
            device: ExtentDevice::Data,
            form: Form::Extents(Vec::new()),
            extents: 0,
            len,
            blocks: 0,
            is_changed: false,
        }
    }

    fn broken(&self, rule: MappingRule) -> platter_vfs::Error {
        Corrupt::new(Locus::inode(self.owner.get()), rule).into()
    }

    fn checked(&self, disk: &DiskMapping, geometry: &Geometry) -> Result<Mapping> {
        let mapping = Mapping::unpack(disk);
        let checked = mapping.check(geometry, self.device);
        checked.map_err(|rule| self.broken(rule))?;
        Ok(mapping)
    }

    /// The most mappings in the inode.
    fn inline_max(&self) -> usize {
        self.len / size_of::<DiskMapping>()
    }

    /// The first mapping that ends after a file block.
    pub fn lookup(&mut self, groups: &mut Groups, at: FileBlock) -> Result<Option<Mapping>> {
        let before = match self.before(groups, at.0.saturating_add(1))? {
            Some(before) if before.end() > at => return Ok(Some(before)),
            before => before,
        };
        let from = before.map_or(0, |before| before.offset.0.saturating_add(1));
        let found = self.from(groups, from)?;
        if found.is_some_and(|found| found.end() <= at) {
            return Err(self.broken(MappingRule::Order));
        }
        Ok(found)
    }

    /// The last mapping that begins before a file block.
    pub fn last_before(&mut self, groups: &mut Groups, at: FileBlock) -> Result<Option<Mapping>> {
        self.before(groups, at.0)
    }

    fn before(&mut self, groups: &mut Groups, at: u64) -> Result<Option<Mapping>> {
        if let Form::Extents(mappings) = &self.form {
            let after = mappings.partition_point(|mapping| mapping.offset.0 < at);
            let before = after.checked_sub(1);
            return Ok(before.and_then(|before| mappings.get(before)).copied());
        }
        let found = records::lookup_lt(&self.tree(groups), KIND, (at, 0, 0))?;
        found
            .map(|disk| self.checked(&disk, groups.geometry()))
            .transpose()
    }

    /// The first mapping that begins at or after a file block.
    fn from(&mut self, groups: &mut Groups, at: u64) -> Result<Option<Mapping>> {
        if let Form::Extents(mappings) = &self.form {
            let after = mappings.partition_point(|mapping| mapping.offset.0 < at);
            return Ok(mappings.get(after).copied());
        }
        let found = records::lookup_ge(&self.tree(groups), KIND, (at, 0, 0))?;
        found
            .map(|disk| self.checked(&disk, groups.geometry()))
            .transpose()
    }

    /// Maps file blocks that are not mapped, as one mapping with those next to it.
    pub fn map(&mut self, groups: &mut Groups, new: Mapping) -> Result<()> {
        let checked = new.check(groups.geometry(), self.device);
        checked.map_err(|rule| self.broken(rule))?;
        let left = self.before(groups, new.end().0)?;
        if left.is_some_and(|left| left.end() > new.offset) {
            return Err(self.broken(MappingRule::Order));
        }
        let right = self.from(groups, new.end().0)?;
        // Realtime groups may follow each other without a gap, but no mapping is in two of them.
        let (device, geometry) = (self.device, groups.geometry());
        let joins = |left: &Mapping, right: &Mapping| {
            let both = Mapping {
                count: left.count.saturating_add(right.count),
                ..*left
            };
            joins(left, right) && both.check(geometry, device).is_ok()
        };
        let mut merged = new;
        if let Some(left) = left.filter(|left| joins(left, &merged)) {
            merged = Mapping {
                count: left.count + merged.count,
                ..left
            };
        }
        let has_left = merged.offset != new.offset;
        let right = right.filter(|right| joins(&merged, right));
        merged.count += right.map_or(0, |right| right.count);
        match right {
            Some(right) if has_left => {
                self.remove(groups, right.offset)?;
                self.replace(groups, merged.offset, merged)?;
            }
            Some(right) => self.replace(groups, right.offset, merged)?,
            None if has_left => self.replace(groups, merged.offset, merged)?,
            None => self.insert(groups, merged)?,
        }
        self.blocks = self.blocks.saturating_add_unsigned(new.count);
        self.fit(groups)
    }

    /// Removes the mappings of file blocks, and returns them.
    pub fn unmap(
        &mut self,
        groups: &mut Groups,
        first: FileBlock,
        count: u64,
    ) -> Result<Vec<Mapping>> {
        let end = FileBlock(first.0.saturating_add(count));
        let mut gone = Vec::new();
        // Of no blocks, the mapping that they would lie in must not become two.
        while first < end
            && let Some(found) = self
                .lookup(groups, first)?
                .filter(|found| found.offset < end)
        {
            let head = first.0.saturating_sub(found.offset.0);
            let tail = found.end().0.saturating_sub(end.0);
            let middle = part(&found, head, found.count - head - tail);
            let (before, after) = (
                part(&found, 0, head),
                part(&found, found.count - tail, tail),
            );
            match (head > 0, tail > 0) {
                (false, false) => self.remove(groups, found.offset)?,
                (false, true) => self.replace(groups, found.offset, after)?,
                (true, false) => self.replace(groups, found.offset, before)?,
                (true, true) => {
                    self.replace(groups, found.offset, before)?;
                    self.insert(groups, after)?;
                }
            }
            self.blocks = self.blocks.saturating_sub_unsigned(middle.count);
            gone.push(middle);
            // Before the last block of the tree is empty.
            self.fit(groups)?;
        }
        Ok(gone)
    }

    fn insert(&mut self, groups: &mut Groups, new: Mapping) -> Result<()> {
        self.is_changed = true;
        self.extents += 1;
        if let Form::Extents(mappings) = &mut self.form {
            let at = mappings.partition_point(|mapping| mapping.offset < new.offset);
            mappings.insert(at, new);
            if mappings.len() > self.inline_max() {
                return self.plant(groups);
            }
            return Ok(());
        }
        let disk = self.packed(&new)?;
        records::insert(&mut self.tree(groups), KIND, disk)
    }

    /// Changes the mapping at a file block to one that begins between its neighbours.
    fn replace(&mut self, groups: &mut Groups, at: FileBlock, new: Mapping) -> Result<()> {
        self.is_changed = true;
        if let Form::Extents(mappings) = &mut self.form {
            let same = mappings.iter_mut().find(|mapping| mapping.offset == at);
            if let Some(same) = same {
                *same = new;
            }
            return Ok(());
        }
        let disk = self.packed(&new)?;
        records::replace(&mut self.tree(groups), KIND, (at.0, 0, 0), disk)
    }

    fn remove(&mut self, groups: &mut Groups, at: FileBlock) -> Result<()> {
        self.is_changed = true;
        self.extents = self.extents.saturating_sub(1);
        if let Form::Extents(mappings) = &mut self.form {
            mappings.retain(|mapping| mapping.offset != at);
            return Ok(());
        }
        records::remove::<DiskMapping>(&mut self.tree(groups), KIND, (at.0, 0, 0))?;
        Ok(())
    }

    fn packed(&self, mapping: &Mapping) -> Result<DiskMapping> {
        mapping
            .pack()
            .ok_or_else(|| self.broken(MappingRule::Length))
    }

    /// Moves the mappings to the first leaf of a new tree.
    fn plant(&mut self, groups: &mut Groups) -> Result<()> {
        self.is_changed = true;
        let Form::Extents(mappings) = &mut self.form else {
            return Ok(());
        };
        let mappings = std::mem::take(mappings);
        let records = mappings.iter().map(|mapping| self.packed(mapping));
        let leaf = Node {
            at: ROOT,
            level: 0,
            left: None,
            right: None,
            records: records.collect::<Result<_>>()?,
            keys: Vec::new(),
            pointers: Vec::new(),
        };
        self.tree(groups).grow_root(KIND, leaf)
    }

    /// Moves the mappings of a tree back to the inode if they fit.
    fn fit(&mut self, groups: &mut Groups) -> Result<()> {
        self.is_changed = true;
        let is_tree = matches!(self.form, Form::Tree(_));
        if !is_tree || self.extents > self.inline_max() as u64 {
            return Ok(());
        }
        let (mappings, blocks) = self.contents(groups)?;
        for block in blocks {
            self.tree(groups).free(KIND, block.0)?;
        }
        self.form = Form::Extents(mappings);
        Ok(())
    }

    /// All mappings, and the blocks of the tree.
    pub fn contents(&mut self, groups: &mut Groups) -> Result<(Vec<Mapping>, Vec<FsBlock>)> {
        if let Form::Extents(mappings) = &self.form {
            return Ok((mappings.clone(), Vec::new()));
        }
        let (mut records, mut blocks) = (Vec::new(), Vec::new());
        let most = groups.geometry().data_blocks();
        records::walk::<DiskMapping>(&self.tree(groups), KIND, most, |_| true, &mut |node| {
            records.extend_from_slice(&node.records);
            blocks.extend(Some(FsBlock(node.at)).filter(|block| block.0 != ROOT));
            Ok(())
        })?;
        let mappings = records
            .iter()
            .map(|disk| self.checked(disk, groups.geometry()));
        let mappings: Vec<Mapping> = mappings.collect::<Result<_>>()?;
        let is_sorted = mappings.is_sorted_by(|one, next| one.end() <= next.offset);
        if !is_sorted || mappings.len() as u64 != self.extents {
            return Err(self.broken(MappingRule::Count));
        }
        Ok((mappings, blocks))
    }

    /// Makes the fork fill so many bytes of the inode from now on.
    pub fn resize(&mut self, groups: &mut Groups, len: usize) -> Result<()> {
        self.is_changed = true;
        self.len = len;
        match &self.form {
            Form::Extents(mappings) if mappings.len() > self.inline_max() => self.plant(groups),
            Form::Extents(_) => Ok(()),
            Form::Tree(root) => {
                let root = root.clone();
                if root.len() > self.tree(groups).entries_max(KIND, &root) {
                    return self.tree(groups).grow_root(KIND, root);
                }
                Ok(())
            }
        }
    }

    /// Stores the fork in its inode.
    pub fn store(self, inode: &mut InodeEdit) -> Result<()> {
        if self.is_changed && self.kind == ForkKind::Data {
            inode.note_remapped();
        }
        let mut bytes = vec![0; self.len];
        let format = match &self.form {
            Form::Extents(mappings) => {
                let slots = bytes.chunks_exact_mut(size_of::<DiskMapping>());
                for (slot, mapping) in slots.zip(mappings) {
                    slot.copy_from_slice(self.packed(mapping)?.as_bytes());
                }
                ForkFormat::Extents
            }
            Form::Tree(root) => {
                let encoded = built(self.owner, root).encode_root(&mut bytes);
                encoded.ok_or_else(|| self.broken(MappingRule::Count))?;
                ForkFormat::Btree
            }
        };
        let fork = StoredFork {
            kind: self.kind,
            format,
            extents: self.extents,
            bytes: &bytes,
        };
        inode.set_fork(&fork, self.blocks)
    }
}

/// A block of the tree, or its root, as it is stored.
fn built(owner: InodeNr, node: &Node<DiskMapping>) -> BuiltBlock<'_> {
    BuiltBlock {
        kind: KIND,
        owner: owner.get(),
        level: node.level,
        left: node.left,
        right: node.right,
        entries: node.entries(),
        count: node.len(),
        pointers: &node.pointers,
    }
}

/// Whether two mappings may be one.
fn joins(left: &Mapping, right: &Mapping) -> bool {
    left.end() == right.offset
        && left.start.checked_add(left.count) == Some(right.start)
        && left.is_unwritten == right.is_unwritten
        && left.count + right.count <= MAPPING_LEN_MAX
}

/// A part of a mapping.
fn part(mapping: &Mapping, skipped: u64, count: u64) -> Mapping {
    Mapping {
        offset: FileBlock(mapping.offset.0.saturating_add(skipped)),
        start: mapping.start.saturating_add(skipped),
        count,
        is_unwritten: mapping.is_unwritten,
    }
}
