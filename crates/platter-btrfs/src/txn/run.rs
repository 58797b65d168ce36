//! Running of delayed references: changes of the extent tree and what follows from them.

use std::sync::atomic::Ordering;

use platter_vfs::Result;

use super::extents::Extent;
use super::free_space::GroupSpace;
use super::{Editor, WriteContext, checksums};
use crate::block_group::BlockGroup;
use crate::delayed_refs::{Action, ExtentKind, FinishedHead, RunStep, Running};
use crate::ondisk::item::ItemFormat;
use crate::ondisk::{Generation, LogicalAddr, TreeId};

impl WriteContext {
    /// Runs up to `count` heads, in order of address. Returns how many were run.
    ///
    /// # Errors
    /// Those of the trees. The transaction is to be aborted.
    pub fn run_refs(&self, generation: Generation, count: usize) -> Result<usize> {
        let mut run = 0;
        while run < count
            && let Some(running) = self.refs.select()
        {
            run += 1;
            // The head's extent may be in a group that was added for it.
            if let Err(error) = self.create_groups(generation) {
                self.refs.unselect(running);
                return Err(error);
            }
            if !self.run_head(generation, running)? {
                // Others wait for the same walk.
                break;
            }
        }
        Ok(run)
    }

    /// Runs a head to its end. Returns `false` if it has to wait for a walk.
    fn run_head(&self, generation: Generation, running: Running) -> Result<bool> {
        let mut running = running;
        loop {
            match self.run_steps(generation, &running) {
                Ok(true) => {}
                Ok(false) => {
                    self.refs.unselect(running);
                    return Ok(false);
                }
                Err(error) => {
                    self.refs.unselect(running);
                    return Err(error);
                }
            }
            match self.refs.finish(running) {
                Ok(finished) => {
                    self.finished(generation, &finished)?;
                    return Ok(true);
                }
                Err(again) => running = again,
            }
        }
    }

    fn run_steps(&self, generation: Generation, running: &Running) -> Result<bool> {
        loop {
            let step = self.refs.next_step(running)?;
            match step {
                RunStep::Done => return Ok(true),
                RunStep::Blocked => return Ok(false),
                RunStep::Op {
                    op,
                    len_bytes,
                    kind,
                } => {
                    let extent = Extent {
                        address: running.address(),
                        len_bytes,
                        kind,
                    };
                    self.edit_extents(generation, |editor| extent.set(editor, op))?;
                }
                RunStep::Reference { .. } => self.run_reference(generation, running, &step)?,
            }
        }
    }

    fn run_reference(
        &self,
        generation: Generation,
        running: &Running,
        step: &RunStep,
    ) -> Result<()> {
        let &RunStep::Reference {
            key,
            count,
            action,
            must_insert,
            op,
            len_bytes,
            kind,
        } = step
        else {
            return Ok(());
        };
        let extent = Extent {
            address: running.address(),
            len_bytes,
            kind,
        };
        if must_insert {
            let op = op.unwrap_or_default();
            self.edit_extents(generation, |editor| {
                extent.insert(editor, key, count, op, generation, self.is_skinny())
            })?;
            return self.allocated(generation, &extent);
        }
        match action {
            Action::Add => {
                let node_bytes = self.context.superblock.node_bytes;
                self.edit_extents(generation, |editor| {
                    extent.add(editor, key, count, op, node_bytes)
                })
            }
            Action::Drop => {
                let is_last = self
                    .edit_extents(generation, |editor| extent.drop_ref(editor, key, count, op))?;
                if is_last {
                    self.freed(generation, &extent)?;
                }
                Ok(())
            }
        }
    }

    /// Changes the extent tree, with one search for it counted.
    fn edit_extents<R>(
        &self,
        generation: Generation,
        change: impl FnOnce(&mut Editor<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        self.extent_searches.fetch_add(1, Ordering::Relaxed);
        self.edit(generation, TreeId::EXTENT, change)
    }

    /// An extent got its item.
    fn allocated(&self, generation: Generation, extent: &Extent) -> Result<()> {
        let (address, len_bytes) = (extent.address, extent.len_bytes);
        self.change_free_space(generation, address, len_bytes, |space| {
            space.remove(&(address.0..address.0 + len_bytes))
        })?;
        self.groups.commit_allocation(address, len_bytes)?;
        self.written(extent.kind, address, len_bytes);
        Ok(())
    }

    /// An extent lost its item.
    fn freed(&self, generation: Generation, extent: &Extent) -> Result<()> {
        let (address, len_bytes) = (extent.address, extent.len_bytes);
        let range = address.0..address.0 + len_bytes;
        if extent.kind == ExtentKind::Data {
            self.delete_checksums(generation, address, len_bytes)?;
        }
        self.change_free_space(generation, address, len_bytes, |space| space.add(&range))?;
        self.groups.free(address, len_bytes)?;
        self.pinned.lock().add(range);
        Ok(())
    }

    /// A head is gone. An extent that never got an item is freed without a change of the extent tree.
    fn finished(&self, generation: Generation, head: &FinishedHead) -> Result<()> {
        if !head.must_insert {
            return Ok(());
        }
        let (address, len_bytes) = (head.address, head.len_bytes);
        if head.kind == ExtentKind::Data {
            self.delete_checksums(generation, address, len_bytes)?;
        }
        self.groups.pin_allocation(address, len_bytes)?;
        self.written(head.kind, address, len_bytes);
        self.pinned.lock().add(address.0..address.0 + len_bytes);
        Ok(())
    }

    /// Lets no data be written to an extent any more.
    fn written(&self, kind: ExtentKind, address: LogicalAddr, len_bytes: u64) {
        if kind == ExtentKind::Data {
            let range = address.0..address.0 + len_bytes;
            self.new_data.lock().exclude(&range);
        }
    }

    /// What the rules of items depend on.
    pub(super) fn item_format(&self) -> ItemFormat {
        ItemFormat {
            sector_bytes: self.context.superblock.sector_bytes,
            checksum_kind: self.context.superblock.checksum_kind,
        }
    }

    fn delete_checksums(
        &self,
        generation: Generation,
        address: LogicalAddr,
        len_bytes: u64,
    ) -> Result<()> {
        let format = self.item_format();
        let range = address.0..address.0 + len_bytes;
        self.edit(generation, TreeId::CSUM, |editor| {
            checksums::delete(editor, &range, format)
        })
    }

    /// Changes the free space tree, if there is one. What the last commit says of the group is read before.
    fn change_free_space(
        &self,
        generation: Generation,
        address: LogicalAddr,
        len_bytes: u64,
        change: impl FnOnce(&mut GroupSpace<'_, '_, '_>) -> Result<()>,
    ) -> Result<()> {
        let group = self.groups.find(address, len_bytes)?;
        group.load(&|group: &BlockGroup| self.read_free_space(group))?;
        if !self.has_free_space_tree() {
            return Ok(());
        }
        let sector_bytes = self.context.superblock.sector_bytes.into();
        self.edit(generation, TreeId::FREE_SPACE, |editor| {
            change(&mut GroupSpace {
                editor,
                group: &group,
                sector_bytes,
            })
        })
    }
}
