//! Directories: looking a name up, listing names, and what all changes of names share.

use std::sync::Arc;

use platter_block::lock::RwLockWriteGuard;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::inode::{InodeLock, RenameLock};
use platter_vfs::namei::{LinkState, NamedInode, NewInode, Rename};
use platter_vfs::{
    Condition, Context, DirCursor, DirSink, Error, FileKind, InodeId, Name, Result, Timestamp,
};

use super::{Ext4Inode, InodeState, SuperBlock, rename};
use crate::FsContext;
use crate::directory::{Directory, DirectoryMut, LINKS_MAX, Slot, Vacancy};
use crate::inode::InodeNumberRule;
use crate::mapping::BlockSource;
use crate::ondisk::features::RoCompat;
use crate::ondisk::{InodeFlags, InodeNr};
use crate::txn::Handle;

impl Ext4Inode {
    pub(super) fn lookup_name(&self, name: Name<'_>) -> Result<Arc<Self>> {
        let _order = self.order.read();
        let found = self.state.read().directory(self.fs())?.lookup(name)?;
        let named = self.sb.named(found.inode);
        if named.is_err() && self.state.read().inode.links == 0 {
            // What was above a directory that was removed may be gone as well.
            return Err(Condition::NotFound.into());
        }
        named
    }

    pub(super) fn list_names(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        let _order = self.order.read();
        let state = self.state.read();
        let directory = state.directory(self.fs())?;
        if state.inode.links == 0 {
            // It was removed, and has not even the two names that all have.
            return Ok(());
        }
        directory.read(from, sink)
    }

    /// What `name`, which is neither `.` nor `..`, names in this directory, and its slot.
    fn child_at(&self, name: Name<'_>) -> Result<(Arc<Self>, Slot)> {
        let slot = self.state.read().directory(self.fs())?.locate(name)?;
        let number = slot.found().inode;
        if number == self.number {
            return Err(self.own_ancestor());
        }
        Ok((self.sb.named(number)?, slot))
    }
}

impl NamedInode for Ext4Inode {
    type Slot = Slot;
    type Vacancy = Vacancy;
    type Space = SuperBlock;

    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn kind(&self) -> FileKind {
        self.kind
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn rename_lock(&self) -> &RenameLock {
        &self.sb.renames
    }

    fn link_state(&self) -> LinkState {
        self.state.read().link_state()
    }

    fn space(&self) -> Result<&SuperBlock> {
        self.sb.space()?;
        Ok(&self.sb)
    }

    fn links_max(&self) -> u32 {
        LINKS_MAX
    }

    /// With `dir_nlink`, a directory with an index may have more than can be counted.
    fn takes_directory(&self) -> bool {
        let state = self.state.read();
        let ro_compat = self.fs().geometry.features.ro_compat;
        let may_lose_count = ro_compat.contains(RoCompat::DIR_NLINK)
            && state.inode.flags.contains(InodeFlags::INDEX);
        state.inode.links < LINKS_MAX || may_lose_count
    }

    fn in_use(&self, id: InodeId) -> Result<Option<Arc<Self>>> {
        self.sb.in_use(id)
    }

    fn child(&self, name: Name<'_>) -> Result<(Arc<Self>, Slot)> {
        self.child_at(name)
    }

    fn vacancy(&self, name: Name<'_>) -> Result<Vacancy> {
        self.state.read().directory(self.fs())?.vacancy(name)
    }

    fn is_root(&self) -> bool {
        self.number == InodeNr::ROOT
    }

    fn parent(&self) -> Result<Arc<Self>> {
        self.lookup_name(Name::new(b"..")?)
    }

    fn own_ancestor(&self) -> Error {
        let locus = Locus::inode(u64::from(self.number.get()));
        Corrupt::new(locus, InodeNumberRule::Itself).into()
    }

    fn is_empty_directory(&self) -> Result<bool> {
        self.state.read().directory(self.fs())?.is_empty()
    }

    fn create_child(
        &self,
        name: Name<'_>,
        vacancy: Vacancy,
        new: NewInode<'_>,
    ) -> Result<Arc<Self>> {
        self.create_at(name, vacancy, new)
    }

    fn create_without_name(&self, new: NewInode<'_>) -> Result<Arc<Self>> {
        self.create_orphan(new)
    }

    fn link_child(
        &self,
        context: &Context,
        name: Name<'_>,
        vacancy: Vacancy,
        target: &Arc<Self>,
    ) -> Result<()> {
        self.add_link(context, name, vacancy, target)
    }

    fn remove_child(&self, slot: &Slot, victim: &Arc<Self>) -> Result<()> {
        self.take_name(slot, victim)
    }

    fn rename_child(rename: &Rename<'_, Self>) -> Result<()> {
        rename::apply(rename)
    }
}

impl InodeState {
    pub(super) fn directory<'c>(&'c self, fs: &'c FsContext) -> Result<Directory<'c>> {
        Directory::open(fs, &self.inode, &self.map)
    }

    pub(super) fn directory_mut<'c, 'h>(
        &'c mut self,
        fs: &'c FsContext,
        space: &'c dyn BlockSource,
        handle: &'c mut Handle<'h>,
    ) -> Result<DirectoryMut<'c, 'h>> {
        DirectoryMut::open(fs, space, handle, &mut self.inode, &mut self.map)
    }

    pub(super) fn link_state(&self) -> LinkState {
        LinkState {
            links: self.inode.links,
            may_get_first_name: self.may_get_first_name,
            flags: self.inode.flags.bits(),
            project: self.inode.project,
        }
    }

    /// Records that names of this directory changed.
    pub(super) fn touch_names(&mut self, now: Timestamp) {
        let now = self.inode.storable(now);
        (self.inode.modified, self.inode.changed) = (now, now);
        self.inode.version = self.inode.version.wrapping_add(1);
    }

    /// Records that attributes changed.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.inode.changed = self.inode.storable(now);
        self.inode.version = self.inode.version.wrapping_add(1);
    }

    /// Counts a directory added to this one. More than can be counted are stored as one link.
    pub(super) fn count_directory(&mut self) {
        let links = self.inode.links.saturating_add(1);
        self.inode.links = match links {
            0..=2 => 1,
            3..=LINKS_MAX => links,
            _ => 1,
        };
    }

    /// Counts a directory that left this one.
    pub(super) fn discount_directory(&mut self) {
        if self.inode.links > 2 {
            self.inode.links -= 1;
        }
    }
}

/// The states of several inodes, locked in the order of their numbers.
pub(super) struct Cores<'n> {
    held: Vec<(InodeNr, RwLockWriteGuard<'n, InodeState>)>,
}

impl<'n> Cores<'n> {
    /// Each of `nodes` may be there more than once.
    pub(super) fn lock(nodes: &[&'n Ext4Inode]) -> Self {
        let mut nodes = nodes.to_vec();
        nodes.sort_by_key(|node| node.number);
        nodes.dedup_by_key(|node| node.number);
        let held = (0..).zip(nodes);
        let held = held.map(|(nth, node)| (node.number, node.state.write_nth(nth)));
        Self {
            held: held.collect(),
        }
    }

    /// The state of one of them.
    pub(super) fn of(&mut self, node: &Ext4Inode) -> &mut InodeState {
        let held = self.held.iter_mut();
        let mut found = held.filter(|(number, _)| *number == node.number);
        let (_, state) = found.next().expect("it was among those to lock");
        state
    }

    /// Takes all of them into their tables.
    pub(super) fn store(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        for (_, state) in &mut self.held {
            state.store_data(fs, handle)?;
        }
        Ok(())
    }
}

const _: () = assert!(LINKS_MAX < u16::MAX as u32);
