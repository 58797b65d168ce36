//! Copies of tree blocks: space for them, and references to what they refer to.

use std::sync::atomic::Ordering;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;

use super::{WriteContext, chunks, extents, refs};
use crate::delayed_refs::{Action, Change, ExtentKind, ExtentOp, RefKey};
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::extent_item::ExtentFlags;
use crate::ondisk::file_extent::{FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::Leaf;
use crate::ondisk::node::Node;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::TreeBlock;
use crate::tree::edit::{CopyOnWrite, TreeState};

rules! {
    /// The rules of the reference counts of tree blocks.
    pub(super) enum RefCountRule of "tree block" {
        /// A block that is referred to has a reference in the extent tree.
        NoRefs => "no references to a block that is in use",
    }
}

/// Copy-on-write in the running transaction.
#[derive(Debug, Clone, Copy)]
pub struct Cow<'f> {
    pub(super) fs: &'f WriteContext,
    generation: Generation,
}

impl<'f> Cow<'f> {
    pub(super) fn new(fs: &'f WriteContext, generation: Generation) -> Self {
        Self { fs, generation }
    }

    pub(super) fn change(
        &self,
        logical: LogicalAddr,
        level: u8,
        key: RefKey,
        action: Action,
        is_system: bool,
    ) -> Change {
        Change {
            address: logical,
            len_bytes: self.fs.node_bytes(),
            kind: ExtentKind::TreeBlock { level, is_system },
            reference: key,
            count: 1,
            action,
            allocates: false,
            op: None,
        }
    }

    /// References and flags of a tree block, with what is queued.
    pub(super) fn extent_info(
        &self,
        logical: LogicalAddr,
        level: u8,
    ) -> Result<(u64, ExtentFlags)> {
        let fs = self.fs;
        let extent_tree = fs.tree(TreeId::EXTENT)?;
        loop {
            let tree = extent_tree.lock();
            let pending = fs.refs.pending(logical);
            let Ok(pending) = pending else {
                drop(tree);
                fs.refs.wait_for(logical);
                continue;
            };
            let item = extents::find_tree_block(fs, &tree.now.tree, logical, level)?;
            drop(tree);
            let (refs, flags) = item.map_or((0, ExtentFlags::empty()), |(_, item)| {
                (item.refs, item.flags)
            });
            let pending = pending.unwrap_or_default();
            let refs = refs.checked_add_signed(pending.net_change.into());
            let locus = Locus::block(logical.0);
            let refs = refs.filter(|refs| *refs > 0);
            let refs = refs.ok_or(Corrupt::new(locus, RefCountRule::NoRefs))?;
            return Ok((refs, flags | pending.flags));
        }
    }

    /// Whether a block that a tree refers to may have other references.
    fn can_be_shared(tree: &TreeState, block: &TreeBlock, is_root: bool) -> bool {
        let is_old = block.generation() <= tree.last_snapshot;
        tree.is_shareable && !is_root && (is_old || block.is_relocated())
    }

    /// Adds or drops the references of a block to what it refers to, as by `tree` or by `parent`.
    pub(super) fn change_children(
        &self,
        bytes: &[u8],
        level: u8,
        tree: TreeId,
        parent: Option<LogicalAddr>,
        action: Action,
    ) -> Result<()> {
        let Some(below) = level.checked_sub(1) else {
            return self.change_data(bytes, tree, parent, action);
        };
        for pointer in Node::new(bytes).iter() {
            let key = match parent {
                Some(parent) => RefKey::SharedBlock { parent },
                None => RefKey::TreeBlock { tree },
            };
            let change = self.change(pointer.logical, below, key, action, false);
            refs::queue(self.fs, &change)?;
        }
        Ok(())
    }

    fn change_data(
        &self,
        bytes: &[u8],
        tree: TreeId,
        parent: Option<LogicalAddr>,
        action: Action,
    ) -> Result<()> {
        let sector_bytes = self.fs.context.superblock.sector_bytes;
        for (key, data) in Leaf::new(bytes).iter() {
            if key.kind != ItemKind::EXTENT_DATA {
                continue;
            }
            let locus = Locus::tree(tree.0).at_key(key.into());
            let extent = FileExtent::decode(data, key.offset, sector_bytes, locus)?;
            let (FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place)) = extent.kind
            else {
                continue;
            };
            let reference = match parent {
                Some(parent) => RefKey::SharedData { parent },
                None => RefKey::Data {
                    tree,
                    inode: key.object,
                    offset: key.offset.wrapping_sub(place.offset),
                },
            };
            refs::queue(
                self.fs,
                &Change {
                    address: place.logical,
                    len_bytes: place.disk_bytes,
                    kind: ExtentKind::Data,
                    reference,
                    count: 1,
                    action,
                    allocates: false,
                    op: None,
                },
            )?;
        }
        Ok(())
    }
}

impl CopyOnWrite for Cow<'_> {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn allocate(
        &self,
        tree: &TreeState,
        level: u8,
        first_key: Key,
        _near: LogicalAddr,
    ) -> Result<LogicalAddr> {
        let fs = self.fs;
        let is_system = tree.id() == TreeId::CHUNK;
        let kind = if is_system {
            BlockGroupFlags::SYSTEM
        } else {
            BlockGroupFlags::METADATA
        };
        let len_bytes = fs.node_bytes();
        let logical = chunks::allocate_space(fs, kind, len_bytes, len_bytes)?;
        let key = RefKey::TreeBlock { tree: tree.id() };
        refs::queue(
            fs,
            &Change {
                allocates: true,
                op: (!extents::is_skinny(fs)).then_some(ExtentOp {
                    key: Some(first_key),
                    flags: ExtentFlags::empty(),
                }),
                ..self.change(logical, level, key, Action::Add, is_system)
            },
        )?;
        fs.new_blocks.lock().insert(logical);
        fs.transactions.change(0, |running| running.blocks += 1);
        Ok(logical)
    }

    fn copied(&self, tree: &TreeState, old: &TreeBlock, new: &[u8], is_root: bool) -> Result<()> {
        let fs = self.fs;
        let (logical, level, id) = (old.logical(), old.level(), tree.id());
        let owner = old.header().map(|header| header.owner);
        let is_system = id == TreeId::CHUNK;
        // Trees that share the block count its references and drop theirs one after the other.
        let counting = Self::can_be_shared(tree, old, is_root).then(|| fs.shared.lock(logical));
        if counting.is_some() {
            let (refs, flags) = self.extent_info(logical, level)?;
            let is_full = flags.contains(ExtentFlags::FULL_BACKREF);
            let by_parent = Some(logical);
            if refs > 1 && owner == Some(id) && !is_full {
                // What it refers to is from now on referred to by the block, of which others go on.
                self.change_children(old.bytes(), level, id, by_parent, Action::Add)?;
                let kind = ExtentKind::TreeBlock { level, is_system };
                let op = ExtentOp {
                    key: None,
                    flags: ExtentFlags::FULL_BACKREF,
                };
                fs.refs.queue_op(logical, fs.node_bytes(), kind, op)?;
            } else if refs > 1 || is_full {
                self.change_children(new, level, id, None, Action::Add)?;
                if refs == 1 {
                    self.change_children(old.bytes(), level, id, by_parent, Action::Drop)?;
                }
            }
        }
        let key = RefKey::TreeBlock { tree: id };
        refs::queue(
            fs,
            &self.change(logical, level, key, Action::Drop, is_system),
        )?;
        fs.copied.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn freed(&self, tree: &TreeState, logical: LogicalAddr, level: u8) -> Result<()> {
        let fs = self.fs;
        let is_system = tree.id() == TreeId::CHUNK;
        let key = RefKey::TreeBlock { tree: tree.id() };
        refs::queue(
            fs,
            &self.change(logical, level, key, Action::Drop, is_system),
        )?;
        fs.new_blocks.lock().remove(&logical);
        fs.blocks().forget(logical);
        if fs
            .refs
            .forget(logical)
            .is_some_and(|freed| freed.must_insert)
        {
            fs.groups.release(logical, fs.node_bytes())?;
        }
        Ok(())
    }
}
