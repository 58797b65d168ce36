//! Dropping of trees that are in no directory any more, in steps.
//!
//! A tree is taken apart from its end, and is a valid one after each step: nothing else has to be remembered. A
//! block that other trees refer to stays. What it refers to may be counted by this tree, which will be gone;
//! so the blocks below it that this tree owns have their references changed to those by parent before.
//!
//! Where quota groups are counted, nodes that other trees refer to are taken apart as well: as no reference of what is
//! below them would change, it is traced leaf by leaf, in steps between which a commit can count it.

use platter_vfs::Result;

use super::{Cow, Handle, delayed_inodes, orphans, quotas, refs};
use crate::delayed_refs::{Action, ExtentKind, ExtentOp, RefKey};
use crate::ondisk::extent_item::ExtentFlags;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::TreeBlock;
use crate::tree::edit::{CopyOnWrite, Cut, Pruned, TreeState, prune};

/// How much one step does: blocks that are dropped or looked at.
const STEP_BLOCKS: usize = 256;

/// How far a tree was dropped. On a valid image nothing depends on it.
#[derive(Debug, Clone, Copy, Default)]
pub struct PruneProgress {
    /// The first key of what was dropped.
    end: Option<Key>,
    disowned: Disowned,
}

/// How far the blocks of a tree below one that others share were changed, so that the next step does not look at them
/// again.
#[derive(Debug, Clone, Copy, Default)]
struct Disowned {
    top: Option<LogicalAddr>,
    done_below: Option<Key>,
}

/// A tree that is dropped.
#[derive(Debug, Clone, Copy)]
struct Doomed {
    id: TreeId,
    /// Blocks that are not younger were there before the tree was: they belong to another.
    since: Generation,
}

/// Drops blocks of a tree that is in no directory any more, all that are left of it at the end. `since` is the
/// transaction that made the tree, of a snapshot. Returns whether nothing is left of it; its root item is there
/// still.
///
/// # Errors
/// Those of the trees; the transaction is aborted.
pub(crate) fn step(
    handle: &Handle<'_>,
    id: TreeId,
    since: Generation,
    progress: &mut PruneProgress,
) -> Result<bool> {
    let doomed = Doomed { id, since };
    let fs = handle.fs;
    orphans::forget(fs, id);
    delayed_inodes::forget(fs, id)?;
    let result = prune_open(handle, doomed, progress);
    handle
        .has_changed
        .store(true, std::sync::atomic::Ordering::Relaxed);
    result.inspect_err(|error| fs.abort(error))
}

fn prune_open(handle: &Handle<'_>, doomed: Doomed, progress: &mut PruneProgress) -> Result<bool> {
    let fs = handle.fs;
    let tree = fs.tree(doomed.id)?;
    let cow = Cow::new(fs, handle.generation);
    let mut left = STEP_BLOCKS;
    let mut versions = tree.lock();
    let mut state = versions.now;
    versions.recent.forget_all();
    let pruned = {
        let mut editor = super::Editor::new(fs.blocks(), &cow, &mut versions.now);
        let mut has_dropped = false;
        let PruneProgress { end, disowned } = progress;
        prune(&mut editor, end, |block| {
            // The caller commits then. A step drops something in any case, so that there is an end.
            if has_dropped && quotas::has_many_traced(fs) {
                return Ok(Cut::Stop);
            }
            let cut = cow.cut(doomed, block, &mut left, disowned)?;
            has_dropped |= cut == Cut::Done;
            Ok(cut)
        })?
    };
    if pruned == Pruned::Partly {
        return Ok(false);
    }
    let root = versions.now.tree.root;
    let expected = Expected {
        generation: Some(root.generation),
        tree: Some(doomed.id),
        level: Some(root.level),
        ..Expected::default()
    };
    state.tree = versions.now.tree;
    let block = fs.blocks().read(root.logical, &expected)?;
    if root.level == 0 {
        cow.drop_children(doomed, &block)?;
    }
    cow.drop_block(&state, &block)?;
    Ok(true)
}

impl Cow<'_> {
    /// Drops the reference of a tree to a block, or says that it is to be entered.
    fn cut(
        &self,
        doomed: Doomed,
        block: &TreeBlock,
        left: &mut usize,
        disowned: &mut Disowned,
    ) -> Result<Cut> {
        if *left == 0 {
            return Ok(Cut::Stop);
        }
        *left -= 1;
        let state = state_of(doomed.id);
        if block.generation() == self.generation() {
            // Never shared: snapshots are made at the end of a transaction.
            if block.level() > 0 {
                return Ok(Cut::Enter);
            }
            self.drop_children(doomed, block)?;
            self.drop_block(&state, block)?;
            return Ok(Cut::Done);
        }
        let counting = self.fs.shared.lock(block.logical());
        let (refs, _) = self.extent_info(block.logical(), block.level())?;
        if block.level() > 0 && (refs == 1 || quotas::are_counted(self.fs)) {
            return Ok(Cut::Enter);
        }
        if refs == 1 {
            self.drop_children(doomed, block)?;
            self.drop_block(&state, block)?;
            return Ok(Cut::Done);
        }
        drop(counting);
        // It stays if this comes to no end: the next step begins with it again, and finds less to do.
        if !self.disown(doomed, block, left, disowned)? {
            return Ok(Cut::Stop);
        }
        let _counting = self.fs.shared.lock(block.logical());
        let (refs, _) = self.extent_info(block.logical(), block.level())?;
        if refs == 1 {
            // The others dropped it meanwhile.
            if block.level() > 0 {
                return Ok(Cut::Enter);
            }
            self.drop_children(doomed, block)?;
        }
        quotas::trace_data(self.fs, block);
        self.drop_block(&state, block)?;
        Ok(Cut::Done)
    }

    /// Drops the references of a leaf to data, or of a node to blocks, in the form that they have.
    fn drop_children(&self, doomed: Doomed, block: &TreeBlock) -> Result<()> {
        let is_new = block.generation() == self.generation();
        let flags = if is_new {
            ExtentFlags::empty()
        } else {
            self.extent_info(block.logical(), block.level())?.1
        };
        let parent = flags
            .contains(ExtentFlags::FULL_BACKREF)
            .then(|| block.logical());
        self.change_children(
            block.bytes(),
            block.level(),
            doomed.id,
            parent,
            Action::Drop,
        )
    }

    /// Drops the reference of a tree to a block.
    fn drop_block(&self, state: &TreeState, block: &TreeBlock) -> Result<()> {
        if block.generation() == self.generation() {
            return self.freed(state, block.logical(), block.level());
        }
        let key = RefKey::TreeBlock { tree: state.id() };
        let (logical, level) = (block.logical(), block.level());
        refs::queue(
            self.fs,
            &self.change(logical, level, key, Action::Drop, false),
        )?;
        Ok(())
    }

    /// Makes the blocks from `top` down that the tree owns refer to others by parent. Returns `false` if that came to
    /// no end yet.
    fn disown(
        &self,
        doomed: Doomed,
        top: &TreeBlock,
        left: &mut usize,
        disowned: &mut Disowned,
    ) -> Result<bool> {
        if disowned.top != Some(top.logical()) {
            *disowned = Disowned::default();
        }
        let mut waiting = vec![(top.logical(), Expected::default())];
        while let Some((logical, expected)) = waiting.pop() {
            let block = self.fs.blocks().read(logical, &expected)?;
            if block.header().is_none_or(|it| it.owner != doomed.id) {
                continue;
            }
            let Some(rest) = left.checked_sub(1) else {
                *disowned = Disowned {
                    top: Some(top.logical()),
                    done_below: expected.first_key,
                };
                return Ok(false);
            };
            *left = rest;
            self.refer_by_parent(doomed.id, &block)?;
            let Some(below) = block.level().checked_sub(1) else {
                continue;
            };
            let node = block.node();
            for index in (0..node.len()).rev() {
                let next = node.pointer(index + 1).map(|next| next.key);
                let Some(pointer) = node.pointer(index) else {
                    continue;
                };
                let is_done = next.is_some_and(|next| disowned.done_below >= Some(next));
                if is_done || pointer.generation <= doomed.since {
                    continue;
                }
                let expected = Expected {
                    level: Some(below),
                    generation: Some(pointer.generation),
                    first_key: Some(pointer.key),
                    ..Expected::default()
                };
                waiting.push((pointer.logical, expected));
            }
        }
        *disowned = Disowned::default();
        Ok(true)
    }

    /// Makes a block of a tree refer to others by itself, if it does not yet.
    fn refer_by_parent(&self, id: TreeId, block: &TreeBlock) -> Result<()> {
        let (logical, level) = (block.logical(), block.level());
        let _counting = self.fs.shared.lock(logical);
        let (_, flags) = self.extent_info(logical, level)?;
        if flags.contains(ExtentFlags::FULL_BACKREF) {
            return Ok(());
        }
        self.change_children(block.bytes(), level, id, Some(logical), Action::Add)?;
        self.change_children(block.bytes(), level, id, None, Action::Drop)?;
        let kind = ExtentKind::TreeBlock {
            level,
            is_system: false,
        };
        let op = ExtentOp {
            key: None,
            flags: ExtentFlags::FULL_BACKREF,
        };
        let node_bytes = self.fs.node_bytes();
        self.fs.refs.queue_op(logical, node_bytes, kind, op)?;
        Ok(())
    }
}

/// What is said of a tree whose blocks are freed.
fn state_of(id: TreeId) -> TreeState {
    TreeState {
        tree: crate::tree::Tree {
            id,
            root: crate::ondisk::superblock::RootPointer::default(),
        },
        last_snapshot: Generation(0),
        is_shareable: true,
        used_bytes: 0,
    }
}
