//! Records of names, and the inodes that lose their last one.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, FileKind, Name, Result, Unsupported};

use super::apply::{Apply, Mapped, without_extents};
use crate::FsContext;
use crate::alloc::{self, FREE_INODE_CREDITS, Reserve};
use crate::directory::{CHANGE_CREDITS, Directory, DirectoryMut, insert_credits};
use crate::inode::{self, STORE_CREDITS};
use crate::ondisk::jbd2::fast_commit::{Entry, FastCommitRule};
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};
use crate::orphan::ORPHAN_CREDITS;
use crate::xattr::{self, Holding, Released, XattrChange};

impl<'f> Apply<'f> {
    pub(super) fn create(&mut self, entry: &Entry<'_>, name: Name<'_>) -> Result<()> {
        if self.gone.contains(&entry.inode) {
            return Ok(());
        }
        let Some(inode) = self.find(entry.inode)? else {
            let locus = Locus::inode(u64::from(entry.inode.get()));
            return Err(Corrupt::new(locus, FastCommitRule::Missing).into());
        };
        if self.directory(entry.parent)?.is_none() {
            return Ok(());
        }
        let kind = inode.kind;
        self.touch(entry.inode)?;
        self.take_inode(entry.inode, kind == FileKind::Directory)?;
        if kind == FileKind::Directory {
            self.begin_directory(inode, entry.parent)?;
            self.relinked.insert(entry.inode);
            self.relinked.insert(entry.parent);
        } else {
            self.edit(entry.inode, |inode| inode.links = 1)?;
        }
        self.insert_name(entry, name, kind).map(|_| ())
    }

    pub(super) fn link(&mut self, entry: &Entry<'_>, name: Name<'_>) -> Result<()> {
        let Some(inode) = self.find_or_unnamed(entry.inode)? else {
            return Ok(());
        };
        if self.incomplete.contains(&entry.inode) {
            return Err(without_extents(entry.inode));
        }
        if !self.insert_name(entry, name, inode.kind)? {
            return Ok(());
        }
        if inode.kind == FileKind::Directory {
            self.relinked.insert(entry.parent);
            return Ok(());
        }
        if inode.links == 0 {
            self.touch(entry.inode)?;
            self.ensure(ORPHAN_CREDITS)?;
            let (fs, handle) = (self.fs, &mut self.handle);
            self.register.remove(fs, handle, entry.inode)?;
        }
        self.edit(entry.inode, |inode| {
            inode.links = inode.links.saturating_add(1);
        })
    }

    pub(super) fn unlink(&mut self, entry: &Entry<'_>, name: Name<'_>) -> Result<()> {
        let Some(inode) = self.find(entry.inode)? else {
            return Ok(());
        };
        let Some(parent) = self.directory(entry.parent)? else {
            return Ok(());
        };
        refuse_encrypted(&parent)?;
        self.touch(entry.parent)?;
        let mut dir = Mapped::new(self.fs, parent)?;
        let slot = match Directory::open(self.fs, &dir.inode, &dir.map)?.locate(name) {
            Err(Error::Condition(Condition::NotFound)) => return Ok(()),
            slot => slot?,
        };
        // A name that refers to another inode by now was reused.
        let is_same = slot.found().inode == entry.inode;
        if is_same {
            self.ensure(CHANGE_CREDITS + STORE_CREDITS)?;
            self.names(&mut dir)?.remove_at(&slot)?;
            inode::store(self.fs, &mut self.handle, &dir.inode)?;
        }
        if inode.kind != FileKind::Directory {
            return self.drop_link(inode);
        }
        self.relinked.insert(entry.parent);
        let removed = Mapped::new(self.fs, inode)?;
        let is_empty = Directory::open(self.fs, &removed.inode, &removed.map)?.is_empty()?;
        if !is_same || !is_empty {
            return Ok(());
        }
        self.delete(removed.inode)
    }

    /// Begins a new directory, unless it is begun already.
    fn begin_directory(&mut self, inode: Inode, parent: InodeNr) -> Result<()> {
        let mut dir = Mapped::new(self.fs, inode)?;
        if has_dots(self.fs, &dir)? {
            return Ok(());
        }
        self.remove(&mut dir, FileBlock(0)..FileBlock::MAX)?;
        dir.inode.size_bytes = 0;
        dir.inode.flags.remove(InodeFlags::INDEX);
        self.ensure(insert_credits(&dir.map) + STORE_CREDITS)?;
        self.names(&mut dir)?.begin(parent)?;
        inode::store(self.fs, &mut self.handle, &dir.inode)
    }

    /// Adds a name, unless it or its directory is missing. Returns whether it was added.
    fn insert_name(&mut self, entry: &Entry<'_>, name: Name<'_>, kind: FileKind) -> Result<bool> {
        let Some(parent) = self.directory(entry.parent)? else {
            return Ok(false);
        };
        refuse_encrypted(&parent)?;
        self.touch(entry.parent)?;
        let mut dir = Mapped::new(self.fs, parent)?;
        self.ensure(insert_credits(&dir.map) + STORE_CREDITS)?;
        match self.names(&mut dir)?.insert(name, entry.inode, kind) {
            Err(Error::Condition(Condition::Exists)) => return Ok(false),
            inserted => inserted?,
        }
        inode::store(self.fs, &mut self.handle, &dir.inode)?;
        Ok(true)
    }

    fn drop_link(&mut self, inode: Inode) -> Result<()> {
        if inode.links <= 1 {
            return self.delete(inode);
        }
        self.edit(inode.number, |inode| inode.links -= 1)
    }

    /// Deletes an inode without a name.
    fn delete(&mut self, inode: Inode) -> Result<()> {
        let (number, kind) = (inode.number, inode.kind);
        // The time of deletion is not recorded; that of the last change is the nearest.
        let time = u32::try_from(inode.changed.seconds).unwrap_or(u32::MAX);
        self.touch(number)?;
        let mut inode = self.empty(inode)?;
        (inode.links, inode.size_bytes, inode.sectors) = (0, 0, 0);
        self.ensure(ORPHAN_CREDITS + STORE_CREDITS + FREE_INODE_CREDITS)?;
        let (fs, handle) = (self.fs, &mut self.handle);
        self.register
            .remove_deleted(fs, handle, &inode, time.max(1))?;
        if self.space.is_inode_in_use(fs, number)? {
            alloc::free_inode(self.space, fs, handle, number, false)?;
        }
        if kind == FileKind::Directory {
            self.count_group_of(number);
        }
        Ok(())
    }

    /// Frees all blocks and attributes of an inode.
    pub(super) fn empty(&mut self, inode: Inode) -> Result<Inode> {
        let mut file = Mapped::new(self.fs, inode)?;
        self.remove(&mut file, FileBlock(0)..FileBlock::MAX)?;
        let mut inode = file.inode;
        let mut credits = xattr::change_credits(self.fs);
        while inode.has_attributes() {
            self.ensure(credits + STORE_CREDITS)?;
            let released = XattrChange {
                fs: self.fs,
                space: self.space,
                handle: &mut self.handle,
                now: inode.changed,
                inode: &mut inode,
                from: Reserve::Split,
                clock: self.clock,
                holding: Holding::default(),
            }
            .release()?;
            inode::store(self.fs, &mut self.handle, &inode)?;
            match released {
                Released::All => break,
                Released::Some { credits: needed } => credits = needed,
            }
        }
        Ok(inode)
    }

    fn names<'a>(&'a mut self, dir: &'a mut Mapped) -> Result<DirectoryMut<'a, 'f>> {
        let (inode, map) = (&mut dir.inode, &mut dir.map);
        DirectoryMut::open(self.fs, self.space, &mut self.handle, inode, map)
    }
}

/// Whether a directory begins with `.` and `..`.
fn has_dots(fs: &FsContext, dir: &Mapped) -> Result<bool> {
    let looked_up = Directory::open(fs, &dir.inode, &dir.map).and_then(|view| {
        let dot = view.lookup(Name::new(b".")?)?;
        view.lookup(Name::new(b"..")?)?;
        Ok(dot.inode == dir.inode.number)
    });
    match looked_up {
        Err(Error::Corrupt(_)) => Ok(false),
        looked_up => looked_up,
    }
}

/// The kernel does not record names of encrypted directories any more; before, they were not encrypted.
fn refuse_encrypted(directory: &Inode) -> Result<()> {
    if !directory.is_encrypted() {
        return Ok(());
    }
    let unsupported = Unsupported {
        filesystem: "ext4",
        feature: "fast commit to an encrypted directory".into(),
        reason: Some("its records have names that are not encrypted"),
    };
    Err(unsupported.into())
}
