//! The state of inodes while they change: one transaction for each change.

use std::ops::Range;
use std::sync::Arc;

use platter_block::lock::RwLockWriteGuard;
use platter_vfs::file::{Backing, BlockRuns, FileRun};
use platter_vfs::namei::LinkState;
use platter_vfs::{Result, Timestamp};

use super::Inode;
use super::delayed::{Delayed, MappingTree};
use crate::change::ChangedInodes;
use crate::context::FsContext;
use crate::directory::Directory;
use crate::file::Contents;
use crate::fork::InodeEdit;
use crate::inode;
use crate::mapping::ForkMap;
use crate::ondisk::btree::DiskMapping;
use crate::ondisk::inode::InodeFlags2;
use crate::ondisk::inode::edit::core_mut;
use crate::ondisk::{ForkFormat, InodeFlags, InodeNr};

/// Which times of an inode change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) accessed: Option<Timestamp>,
    pub(super) modified: Option<Timestamp>,
    pub(super) changed: Option<Timestamp>,
}

impl Times {
    /// A change of contents or names.
    pub(super) fn of_contents(now: Timestamp) -> Self {
        Self {
            accessed: None,
            modified: Some(now),
            changed: Some(now),
        }
    }

    /// A change of attributes.
    pub(super) fn of_attributes(now: Timestamp) -> Self {
        Self {
            changed: Some(now),
            ..Self::default()
        }
    }
}

/// Sets times of an inode, and counts the change.
pub(super) fn touch(edit: &mut InodeEdit, times: Times) -> Result<()> {
    edit.touch([times.accessed, times.modified, times.changed])
}

/// Changes the number of names.
pub(super) fn set_links(edit: &mut InodeEdit, links: u32) -> Result<()> {
    edit.change(|bytes| {
        core_mut(bytes)?.core.links.set(links);
        Some(())
    })
}

/// What the disk holds of an inode.
pub(super) struct InodeState {
    pub(super) inode: Arc<crate::ondisk::Inode>,
    pub(super) map: ForkMap,
    /// What of the contents has no place on the device yet.
    pub(super) delayed: Delayed,
    /// It was created without a name, and may still get its first.
    pub(super) may_get_first_name: bool,
    /// The last checkpoint that has a change of the inode.
    pub(super) sync: u64,
    /// The last checkpoint that has a change of what leads to its contents.
    pub(super) data_sync: u64,
}

impl InodeState {
    /// The directory that the inode is.
    pub(super) fn directory<'s>(&'s self, context: &'s FsContext) -> Result<Directory<'s>> {
        Directory::open(context, &self.inode, &self.map)
    }

    /// The contents of the file that the inode is.
    pub(super) fn contents<'s>(&'s self, context: &'s FsContext) -> Contents<'s> {
        Contents {
            context,
            inode: &self.inode,
            map: &self.map,
            dirty: Some(self.delayed.dirty()),
        }
    }

    /// The run that a block lies in.
    pub(super) fn run(&self, context: &FsContext, block: u64) -> Result<FileRun> {
        let run = self.contents(context).run(block)?;
        Ok(run.unwrap_or(FileRun {
            first: block,
            count: 1,
            backing: Backing::Hole,
        }))
    }

    /// Takes over what a change that was committed made of the inode, and of the mappings of its data fork.
    fn committed(
        &mut self,
        context: &FsContext,
        inode: Arc<crate::ondisk::Inode>,
        is_remapped: bool,
    ) -> Result<()> {
        let is_same_fork = self.inode.is_realtime() == inode.is_realtime()
            && self.inode.data_fork() == inode.data_fork();
        if is_remapped || !is_same_fork {
            self.map = ForkMap::of_data(context, &inode)?;
        }
        self.inode = inode;
        Ok(())
    }

    /// The B-tree of the mappings.
    pub(super) fn mapping_tree(&self, context: &FsContext) -> MappingTree {
        MappingTree::new(&self.map, context.geometry())
    }

    /// Whether writeback may allocate another number of blocks than is reserved to contents: those of a B-tree of
    /// mappings, and what an extent size hint asks for; where blocks are shared, those of other files come back.
    pub(super) fn has_estimated_space(&self) -> bool {
        if self.delayed.dirty().is_empty() {
            return false;
        }
        let inode = &self.inode;
        let has_hint = inode.flags.contains(InodeFlags::EXTSIZE);
        if has_hint || inode.flags2.contains(InodeFlags2::REFLINK) || inode.is_realtime() {
            return true;
        }
        let fork = inode.data_fork();
        let capacity = (fork.bytes.len() / size_of::<DiskMapping>()) as u64;
        let count = fork.extents.saturating_add(self.delayed.new_mappings_max());
        fork.format != ForkFormat::Extents || count > capacity
    }

    /// Takes out blocks that are on the device, or are not to be written any more. Returns the reserved blocks that
    /// are not needed any more.
    pub(super) fn forget(&mut self, context: &FsContext, blocks: Range<u64>) -> u64 {
        if self.delayed.is_empty() {
            return 0;
        }
        let tree = self.mapping_tree(context);
        self.delayed.forget(blocks, &tree)
    }

    pub(super) fn link_state(&self, context: &FsContext) -> LinkState {
        LinkState {
            links: self.inode.links,
            may_get_first_name: self.may_get_first_name,
            flags: inode::attr(&self.inode, context.geometry()).flags,
            project: self.inode.project,
        }
    }
}

/// The states of several inodes, locked in the order of their numbers.
pub(super) struct States<'n> {
    held: Vec<(InodeNr, RwLockWriteGuard<'n, InodeState>)>,
}

impl<'n> States<'n> {
    /// Each of `inodes` may be there more than once.
    pub(super) fn lock(inodes: &[&'n Inode]) -> Self {
        if let &[inode] = inodes {
            let held = vec![(inode.number, inode.state.write_nth(0))];
            return Self { held };
        }
        let mut inodes = inodes.to_vec();
        inodes.sort_by_key(|inode| inode.number);
        inodes.dedup_by_key(|inode| inode.number);
        let held = (0..).zip(inodes);
        let held = held.map(|(nth, inode)| (inode.number, inode.state.write_nth(nth)));
        Self {
            held: held.collect(),
        }
    }

    /// The state of one of them.
    pub(super) fn of(&mut self, inode: &Inode) -> &mut InodeState {
        let mut held = self.held.iter_mut();
        let found = held.find(|(number, _)| *number == inode.number);
        let (_, state) = found.expect("it was among those to lock");
        state
    }

    /// What the disk holds of one of them, before the change.
    pub(super) fn inode(&self, inode: &Inode) -> &crate::ondisk::Inode {
        &self.get(inode).inode
    }

    /// The mappings of one of them, before the change.
    pub(super) fn map(&self, inode: &Inode) -> &ForkMap {
        &self.get(inode).map
    }

    fn get(&self, inode: &Inode) -> &InodeState {
        let mut held = self.held.iter();
        let found = held.find(|(number, _)| *number == inode.number);
        found
            .map(|(_, state)| &**state)
            .expect("it was among those to lock")
    }

    /// Takes over what a change that was committed made of them. With an error nothing is written any more: their states
    /// are not those of the disk.
    pub(super) fn committed(
        &mut self,
        context: &FsContext,
        sequence: u64,
        changed: &ChangedInodes,
    ) -> Result<()> {
        for (number, state) in &mut self.held {
            state.sync = sequence;
            state.data_sync = sequence;
            let inode = Arc::clone(changed.get(*number).unwrap_or(&state.inode));
            let known = state.committed(context, inode, changed.is_remapped(*number));
            known.map_err(|error| match context.log() {
                Some(log) => log.fail(error),
                None => error,
            })?;
        }
        Ok(())
    }
}
