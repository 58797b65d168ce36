//! Copies of the blocks that lead to extents, and the references that change with them.
//!
//! A copy that several trees may have is marked as relocated, and what it refers to is referred to by parent: trees look up
//! its count before they change it, though it is younger than their last snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::graph::{Graph, Member, place_of};
use super::{CopiedData, Moving, WriteContext};
use crate::delayed_refs::{Action, Change, ExtentKind, ExtentOp, RefKey};
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::extent_item::{ExtentFlags, ExtentRef};
use crate::ondisk::file_extent::{self, ExtentPlace};
use crate::ondisk::header::{HEADER_BYTES, Header, HeaderFlags};
use crate::ondisk::leaf::Leaf;
use crate::ondisk::leaf_edit::LeafMut;
use crate::ondisk::node::{KeyPointer, Node};
use crate::ondisk::node_edit::NodeMut;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::txn::{chunks, data_extents, extents, trees};

/// How a block refers to what is below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As part of a tree.
    Tree(TreeId),
    /// By itself.
    Parent(LogicalAddr),
}

impl Form {
    fn of_block(self) -> RefKey {
        match self {
            Self::Tree(tree) => RefKey::TreeBlock { tree },
            Self::Parent(parent) => RefKey::SharedBlock { parent },
        }
    }

    fn of_data(self, key: Key, place: &ExtentPlace) -> RefKey {
        match self {
            Self::Tree(tree) => RefKey::Data {
                tree,
                inode: key.object,
                offset: key.offset.wrapping_sub(place.offset),
            },
            Self::Parent(parent) => RefKey::SharedData { parent },
        }
    }
}

struct Replacing<'r> {
    fs: &'r WriteContext,
    generation: Generation,
    graph: &'r Graph,
    /// Where copies of blocks are.
    copies: BTreeMap<LogicalAddr, LogicalAddr>,
    /// Where copies of data are.
    data: BTreeMap<LogicalAddr, LogicalAddr>,
    /// Copies that have their first reference.
    inserted: BTreeSet<LogicalAddr>,
}

/// Replaces all blocks of a graph. No reference is queued, and no handle is open.
///
/// # Errors
/// Those of the trees: the transaction is to be aborted.
pub(super) fn all(
    fs: &WriteContext,
    generation: Generation,
    graph: &Graph,
    moving: &mut Moving,
) -> Result<()> {
    let copied = match moving {
        Moving::Blocks(_) => &mut [],
        Moving::Data(copied) => &mut copied[..],
    };
    let copied = copied.iter_mut();
    let copied: Vec<_> = copied.filter(|it| graph.data.contains(&it.from)).collect();
    let mut replacing = Replacing {
        fs,
        generation,
        graph,
        copies: BTreeMap::new(),
        data: copied.iter().map(|it| (it.from, it.to)).collect(),
        inserted: BTreeSet::new(),
    };
    for copied in copied {
        insert_checksums(fs, generation, copied)?;
        copied.is_referred_to = true;
    }
    for (logical, member) in &graph.members {
        if !member.is_own {
            let bytes = fs.node_bytes();
            let kind = BlockGroupFlags::METADATA;
            let copy = chunks::allocate_space(fs, kind, bytes, bytes)?;
            replacing.copies.insert(*logical, copy);
        }
    }
    // Readers find copies from the moment that a block in place refers to them, or a root.
    let (own, others): (Vec<_>, Vec<_>) = graph.members.iter().partition(|(_, it)| it.is_own);
    for (logical, member) in others {
        replacing.copy(*logical, member)?;
    }
    // All references are queued before a block refers to a copy: a search for its users finds all of them.
    for (_, member) in &own {
        let form = Replacing::old_form(member);
        replacing.change_below(member, (form, form))?;
    }
    for (logical, member) in own {
        replacing.change_in_place(*logical, member)?;
    }
    for (logical, member) in &graph.members {
        if let (Some(tree), Some(copy)) = (member.root_of, replacing.copies.get(logical)) {
            let root = RootPointer {
                logical: *copy,
                generation,
                level: member.block.level(),
            };
            trees::move_root(fs, generation, tree, root)?;
        }
    }
    Ok(())
}

fn insert_checksums(fs: &WriteContext, generation: Generation, copied: &CopiedData) -> Result<()> {
    let format = fs.item_format();
    let mut runs: Vec<(u64, u64, Vec<u8>)> = Vec::new();
    for (at, checksum) in &copied.checksums {
        let end = at + u64::from(format.sector_bytes);
        match runs.last_mut().filter(|(_, last_end, _)| last_end == at) {
            Some((_, last_end, bytes)) => {
                *last_end = end;
                bytes.extend_from_slice(checksum);
            }
            None => runs.push((*at, end, checksum.clone())),
        }
    }
    for (at, _, bytes) in runs {
        data_extents::insert_checksums_in(fs, generation, LogicalAddr(at), bytes)?;
    }
    Ok(())
}

impl Replacing<'_> {
    /// How a block refers to what is below it now.
    fn old_form(member: &Member) -> Form {
        if member.is_full {
            Form::Parent(member.block.logical())
        } else {
            Form::Tree(member.header.owner)
        }
    }

    /// How its copy does.
    fn new_form(&self, logical: LogicalAddr, member: &Member) -> Form {
        match (member.only_in, self.copies.get(&logical)) {
            (Some(tree), _) => Form::Tree(tree),
            (None, Some(copy)) => Form::Parent(*copy),
            (None, None) => Self::old_form(member),
        }
    }

    fn queue(&self, change: &Change) -> Result<()> {
        // Each extent is in the same subvolumes as before: quota groups do not change.
        Ok(self.fs.refs.queue(change)?)
    }

    fn change_block(
        &self,
        (logical, level): (LogicalAddr, u8),
        reference: RefKey,
        action: Action,
    ) -> Change {
        Change {
            address: logical,
            len_bytes: self.fs.node_bytes(),
            kind: ExtentKind::TreeBlock {
                level,
                is_system: false,
            },
            reference,
            count: 1,
            action,
            allocates: false,
            op: None,
        }
    }

    /// Replaces a block by a copy: what refers to it refers to that, and what it refers to is referred to by that.
    fn copy(&mut self, logical: LogicalAddr, member: &Member) -> Result<()> {
        let Some(&copy) = self.copies.get(&logical) else {
            return Ok(());
        };
        let fs = self.fs;
        let form = self.new_form(logical, member);
        let header = Header {
            logical: copy,
            generation: self.generation,
            ..member.header
        };
        let header = match form {
            Form::Tree(tree) => Header {
                owner: tree,
                flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF,
                ..header
            },
            Form::Parent(_) => Header {
                flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF | HeaderFlags::RELOC,
                ..header
            },
        };
        self.refer_to_copy(copy, member, form)?;
        for reference in &member.refs {
            let key = match *reference {
                ExtentRef::TreeBlock { tree } => RefKey::TreeBlock { tree },
                ExtentRef::SharedBlock { parent } => RefKey::SharedBlock { parent },
                ExtentRef::Data { .. } | ExtentRef::SharedData { .. } | ExtentRef::Owner { .. } => {
                    continue;
                }
            };
            let at = (logical, member.block.level());
            self.queue(&self.change_block(at, key, Action::Drop))?;
        }
        self.change_below(member, (Self::old_form(member), form))?;
        let mut bytes: Box<[u8]> = member.block.bytes().into();
        if let Some(front) = bytes.get_mut(..HEADER_BYTES) {
            front.copy_from_slice(header.encode().as_bytes());
        }
        self.rewrite(&mut bytes, member)?;
        fs.new_blocks.lock().insert(copy);
        fs.blocks().create(copy, bytes)?;
        fs.copied.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Adds the references to a copy.
    fn refer_to_copy(&self, copy: LogicalAddr, member: &Member, form: Form) -> Result<()> {
        let of_parent = |parent: &LogicalAddr| {
            let member = self.graph.members.get(parent)?;
            Some(self.new_form(*parent, member).of_block())
        };
        let by_tree = member.root_of.map(|tree| RefKey::TreeBlock { tree });
        let keys = member.parents.iter().filter_map(of_parent).chain(by_tree);
        let flags = match form {
            Form::Tree(_) => ExtentFlags::empty(),
            Form::Parent(_) => ExtentFlags::FULL_BACKREF,
        };
        let first_key = match member.block.level() {
            0 => member.block.leaf().key(0),
            _ => member.block.node().pointer(0).map(|it| it.key),
        };
        let is_skinny = extents::is_skinny(self.fs);
        let op = ExtentOp {
            key: first_key.or(Some(Key::MIN)).filter(|_| !is_skinny),
            flags,
        };
        let op = (op != ExtentOp::default()).then_some(op);
        for (number, key) in keys.enumerate() {
            let at = (copy, member.block.level());
            self.queue(&Change {
                allocates: number == 0,
                op: op.filter(|_| number == 0),
                ..self.change_block(at, key, Action::Add)
            })?;
        }
        Ok(())
    }

    /// Changes the references of a block to what is below it, but for blocks that are copied, which have all of theirs
    /// changed.
    fn change_below(&mut self, member: &Member, (old, new): (Form, Form)) -> Result<()> {
        let Some(below) = member.block.level().checked_sub(1) else {
            return self.change_data(member, (old, new));
        };
        if old == new {
            return Ok(());
        }
        for pointer in member.block.node().iter() {
            if self.copies.contains_key(&pointer.logical) {
                continue;
            }
            let at = (pointer.logical, below);
            self.queue(&self.change_block(at, new.of_block(), Action::Add))?;
            self.queue(&self.change_block(at, old.of_block(), Action::Drop))?;
        }
        Ok(())
    }

    fn change_data(&mut self, member: &Member, (old, new): (Form, Form)) -> Result<()> {
        for (key, item) in member.block.leaf().iter() {
            let Some(place) = place_of(self.fs, key, item)? else {
                continue;
            };
            let to = self.data.get(&place.logical).copied();
            if old == new && to.is_none() {
                continue;
            }
            let change = |address, reference, action| Change {
                address,
                len_bytes: place.disk_bytes,
                kind: ExtentKind::Data,
                reference,
                count: 1,
                action,
                allocates: false,
                op: None,
            };
            let allocates = to.is_some_and(|to| self.inserted.insert(to));
            let address = to.unwrap_or(place.logical);
            self.queue(&Change {
                allocates,
                ..change(address, new.of_data(key, &place), Action::Add)
            })?;
            let dropped = old.of_data(key, &place);
            self.queue(&change(place.logical, dropped, Action::Drop))?;
        }
        Ok(())
    }

    /// Makes a block of this transaction refer to copies.
    fn change_in_place(&self, logical: LogicalAddr, member: &Member) -> Result<()> {
        let fs = self.fs;
        let tree = fs.tree(member.header.owner)?;
        let _alone = tree.lock();
        fs.blocks().edit(logical, self.generation, |bytes| {
            self.rewrite(bytes, member)
        })?
    }

    /// Replaces the addresses of what was copied in the bytes of a block.
    fn rewrite(&self, bytes: &mut [u8], member: &Member) -> Result<()> {
        if member.block.level() > 0 {
            let pointers = Node::new(bytes).iter().enumerate();
            let copied = pointers.filter_map(|(index, pointer)| {
                let copy = self.copies.get(&pointer.logical)?;
                let pointer = KeyPointer {
                    logical: *copy,
                    generation: self.generation,
                    ..pointer
                };
                Some((index, pointer))
            });
            let copied: Vec<_> = copied.collect();
            let mut node = NodeMut::new(bytes);
            for (index, pointer) in copied {
                node.set(index, pointer);
            }
            return Ok(());
        }
        if self.data.is_empty() {
            return Ok(());
        }
        let mut moved = Vec::new();
        for (index, (key, item)) in Leaf::new(bytes).iter().enumerate() {
            let place = place_of(self.fs, key, item)?;
            let to = place.and_then(|place| self.data.get(&place.logical));
            moved.extend(to.map(|to| (index, *to)));
        }
        let mut leaf = LeafMut::new(bytes);
        for (index, to) in moved {
            if let Some(item) = leaf.data_mut(index) {
                file_extent::set_logical(item, to);
            }
        }
        Ok(())
    }
}
