//! Directories: looking a name up, listing names, and what all changes of names share.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::RwLockWriteGuard;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::lock_rank::Ranked;
use platter_vfs::{Condition, DirCursor, DirSink, Name, Result, Timestamp};

use super::{Core, Node};
use crate::Volume;
use crate::directory::{Directory, DirectoryMut, Slot, Vacancy};
use crate::inode::InodeNumberRule;
use crate::mapping::BlockSource;
use crate::ondisk::features::RoCompat;
use crate::ondisk::{Geometry, InodeFlags, InodeNr};
use crate::txn::Handle;

/// The most names of one file, and the most links of a directory that are counted.
pub(super) const LINKS_MAX: u32 = 65_000;

impl Node {
    pub(super) fn lookup_name(&self, name: Name<'_>) -> Result<Arc<Self>> {
        let _order = self.order.read();
        let found = self.core.read().directory(self.volume())?.lookup(name)?;
        let named = self.tree.named(found.inode);
        if named.is_err() && self.core.read().inode.links == 0 {
            // What was above a directory that was removed may be gone as well.
            return Err(Condition::NotFound.into());
        }
        named
    }

    pub(super) fn list_names(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        let _order = self.order.read();
        let core = self.core.read();
        let directory = core.directory(self.volume())?;
        if core.inode.links == 0 {
            // It was removed, and has not even the two names that all have.
            return Ok(());
        }
        directory.read(from, sink)
    }

    /// What `name`, which is neither `.` nor `..`, names in this directory. The caller holds its
    /// order lock.
    pub(super) fn child(&self, name: Name<'_>) -> Result<Arc<Self>> {
        Ok(self.child_at(name)?.0)
    }

    /// As [`child`](Self::child), with the place of the name.
    pub(super) fn child_at(&self, name: Name<'_>) -> Result<(Arc<Self>, Slot)> {
        let slot = self.core.read().directory(self.volume())?.locate(name)?;
        let number = slot.found().inode;
        if number == self.number {
            let locus = Locus::inode(u64::from(self.number.get()));
            return Err(Corrupt::new(locus, InodeNumberRule::Itself).into());
        }
        Ok((self.tree.named(number)?, slot))
    }

    /// Where `name` may be added to this directory. The caller holds its order lock.
    ///
    /// # Errors
    /// `Exists`; `NotFound` for a directory that was removed; `NotPermitted` where nothing may be
    /// changed; `NoKey` where names are encrypted.
    pub(super) fn vacancy(&self, name: Name<'_>) -> Result<Vacancy> {
        let core = self.core.read();
        let vacancy = core.directory(self.volume())?.vacancy(name)?;
        if core.inode.links == 0 {
            return Err(Condition::NotFound.into());
        }
        core.refuse_immutable()?;
        Ok(vacancy)
    }

    /// This directory and those above it. The caller keeps directories where they are.
    ///
    /// # Errors
    /// `NotFound` for a directory that was removed.
    pub(super) fn ancestors(self: &Arc<Self>) -> Result<HashSet<InodeNr>> {
        let mut all = HashSet::from([self.number]);
        let mut at = Arc::clone(self);
        let dotdot = Name::new(b"..")?;
        while at.number != InodeNr::ROOT {
            if at.core.read().inode.links == 0 {
                return Err(Condition::NotFound.into());
            }
            let above = at.lookup_name(dotdot)?;
            if !all.insert(above.number) {
                let locus = Locus::inode(u64::from(above.number.get()));
                return Err(Corrupt::new(locus, InodeNumberRule::Itself).into());
            }
            at = above;
        }
        Ok(all)
    }
}

impl Core {
    pub(super) fn directory<'c>(&'c self, volume: &'c Volume) -> Result<Directory<'c>> {
        Directory::open(volume, &self.inode, &self.map)
    }

    pub(super) fn directory_mut<'c, 'h>(
        &'c mut self,
        volume: &'c Volume,
        space: &'c dyn BlockSource,
        handle: &'c mut Handle<'h>,
    ) -> Result<DirectoryMut<'c, 'h>> {
        DirectoryMut::open(volume, space, handle, &mut self.inode, &mut self.map)
    }

    /// Nothing of an immutable file changes.
    pub(super) fn refuse_immutable(&self) -> Result<()> {
        self.refuse_flags(InodeFlags::IMMUTABLE)
    }

    /// Nothing is taken from an immutable file, or from one that only grows.
    pub(super) fn refuse_append_only(&self) -> Result<()> {
        self.refuse_flags(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
    }

    fn refuse_flags(&self, flags: InodeFlags) -> Result<()> {
        if self.inode.flags.intersects(flags) {
            return Err(Condition::NotPermitted.into());
        }
        Ok(())
    }

    /// Notes that names of this directory changed.
    pub(super) fn touch_names(&mut self, now: Timestamp) {
        let now = self.inode.storable(now);
        (self.inode.modified, self.inode.changed) = (now, now);
        self.inode.version = self.inode.version.wrapping_add(1);
    }

    /// Notes that attributes changed.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.inode.changed = self.inode.storable(now);
        self.inode.version = self.inode.version.wrapping_add(1);
    }

    /// Whether one more directory may be in this one.
    pub(super) fn prove_room_for_directory(&self, geometry: &Geometry) -> Result<()> {
        let ro_compat = geometry.features.ro_compat;
        let may_lose_count =
            ro_compat.contains(RoCompat::DIR_NLINK) && self.inode.flags.contains(InodeFlags::INDEX);
        if self.inode.links >= LINKS_MAX && !may_lose_count {
            return Err(Condition::TooManyLinks.into());
        }
        Ok(())
    }

    /// Counts a directory that came into this one. More than can be counted are told as one link.
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
    held: Vec<(InodeNr, Ranked<RwLockWriteGuard<'n, Core>>)>,
}

impl<'n> Cores<'n> {
    /// Each of `nodes` may be there more than once.
    pub(super) fn lock(nodes: &[&'n Node]) -> Self {
        let mut nodes = nodes.to_vec();
        nodes.sort_by_key(|node| node.number);
        nodes.dedup_by_key(|node| node.number);
        let held = (0..).zip(nodes);
        let held = held.map(|(nth, node)| (node.number, node.core.write_nth(nth)));
        Self {
            held: held.collect(),
        }
    }

    /// The state of one of them.
    pub(super) fn of(&mut self, node: &Node) -> &mut Core {
        let held = self.held.iter_mut();
        let mut found = held.filter(|(number, _)| *number == node.number);
        let (_, core) = found.next().expect("it was among those to lock");
        core
    }

    /// Files of other projects stay out of a directory that hands its own down.
    pub(super) fn refuse_other_project(&mut self, dir: &Node, file: &Node) -> Result<()> {
        let dir = &self.of(dir).inode;
        let project = dir
            .flags
            .contains(InodeFlags::PROJECT_INHERIT)
            .then_some(dir.project);
        if project.is_some_and(|project| project != self.of(file).inode.project) {
            return Err(Condition::CrossDevice.into());
        }
        Ok(())
    }

    /// Takes all of them into their tables.
    pub(super) fn store(&mut self, volume: &Volume, handle: &mut Handle<'_>) -> Result<()> {
        for (_, core) in &mut self.held {
            core.store_data(volume, handle)?;
        }
        Ok(())
    }
}

const _: () = assert!(LINKS_MAX < u16::MAX as u32);
