//! Records of names, and the inodes that lose their last one.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, FileKind, Name, Result, Unsupported};

use super::apply::{Apply, Mapped};
use super::ranges;
use crate::FsContext;
use crate::alloc::{self, FREE_INODE_CREDITS, Reserve};
use crate::directory::{CHANGE_CREDITS, Directory, DirectoryMut, insert_credits};
use crate::inode::{self, STORE_CREDITS};
use crate::ondisk::jbd2::fast_commit::{Entry, FastCommitRule};
use crate::ondisk::{FileBlock, Inode, InodeFlags, InodeNr};
use crate::orphan::ORPHAN_CREDITS;
use crate::xattr::{self, Holding, Released, XattrChange};

/// What became of a name to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Insertion {
    /// It was added.
    New,
    /// It refers to the inode already.
    Existing,
    /// It refers to another inode, or its directory is missing.
    None,
}

/// What became of a name to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// It was removed.
    Done,
    /// It refers to another inode: these records were replayed before, and a later one reused it.
    Other,
    /// There is no such name.
    None,
}

pub(super) fn create(apply: &mut Apply<'_>, entry: &Entry<'_>, name: Name<'_>) -> Result<()> {
    if apply.gone.contains(&entry.inode) {
        return Ok(());
    }
    let Some(inode) = apply.find(entry.inode)? else {
        if apply.unnamed(entry.inode)?.is_some() {
            return Ok(());
        }
        let locus = Locus::inode(u64::from(entry.inode.get()));
        return Err(Corrupt::new(locus, FastCommitRule::Missing).into());
    };
    if apply.directory(entry.parent)?.is_none() {
        return Ok(());
    }
    let kind = inode.kind;
    apply.touch(entry.inode)?;
    apply.take_inode(entry.inode, kind == FileKind::Directory)?;
    if kind == FileKind::Directory {
        begin_directory(apply, inode, entry.parent)?;
        apply.relinked.insert(entry.inode);
        apply.relinked.insert(entry.parent);
    } else {
        apply.edit(entry.inode, |inode| inode.links = 1)?;
    }
    insert_name(apply, entry, name, kind).map(|_| ())
}

pub(super) fn link(apply: &mut Apply<'_>, entry: &Entry<'_>, name: Name<'_>) -> Result<()> {
    let Some(inode) = apply.find_or_unnamed(entry.inode)? else {
        return Ok(());
    };
    // Another one by then: the kernel records no further name of a directory.
    if inode.kind == FileKind::Directory {
        return Ok(());
    }
    let has_name = match insert_name(apply, entry, name, inode.kind)? {
        Insertion::None => return Ok(()),
        Insertion::Existing => true,
        Insertion::New => false,
    };
    if has_name && inode.links > 0 {
        return Ok(());
    }
    apply.touch(entry.inode)?;
    if inode.links == 0 {
        apply.doomed.remove(&entry.inode);
        apply.ensure(ORPHAN_CREDITS)?;
        let (fs, handle) = (apply.fs, &mut apply.handle);
        apply.register.remove(fs, handle, entry.inode)?;
    }
    apply.edit(entry.inode, |inode| {
        inode.links = inode.links.saturating_add(1);
    })
}

pub(super) fn unlink(apply: &mut Apply<'_>, entry: &Entry<'_>, name: Name<'_>) -> Result<()> {
    if inode::is_reserved(apply.fs, entry.inode) {
        return Ok(());
    }
    let removed = apply.valid(entry.inode)?;
    if removed.as_ref().is_some_and(is_value) {
        return Ok(());
    }
    let Some(parent) = apply.directory(entry.parent)? else {
        return Ok(());
    };
    if removed.is_none() && parent.is_encrypted() {
        return Ok(());
    }
    let removal = remove_name(apply, entry, name, parent)?;
    let Some(inode) = removed else {
        return Ok(());
    };
    let is_in_use = apply.space.is_inode_in_use(apply.fs, inode.number)?;
    if inode.links == 0 || !is_in_use {
        // Else an interrupted replay left only some of the blocks of its deletion.
        let is_deleted = inode.links == 0 && !is_in_use;
        return if is_deleted {
            Ok(())
        } else {
            set_links(apply, inode.number, 0)
        };
    }
    match (removal, inode.kind) {
        (Removal::Done, FileKind::Directory) => {
            apply.relinked.insert(entry.parent);
            let dir = Mapped::new(apply.fs, inode)?;
            if !Directory::open(apply.fs, &dir.inode, &dir.map)?.is_empty()? {
                return Ok(());
            }
            set_links(apply, dir.inode.number, 0)
        }
        (Removal::None, _) | (Removal::Other, FileKind::Directory) => Ok(()),
        (Removal::Done | Removal::Other, _) => set_links(apply, inode.number, inode.links - 1),
    }
}

/// Sets the links that are left to an inode after one was removed.
fn set_links(apply: &mut Apply<'_>, number: InodeNr, links: u32) -> Result<()> {
    if links == 0 {
        apply.doomed.insert(number);
    }
    apply.touch(number)?;
    apply.edit(number, |inode| inode.links = links)
}

/// Begins a new directory, unless it is begun already.
fn begin_directory(apply: &mut Apply<'_>, inode: Inode, parent: InodeNr) -> Result<()> {
    let mut dir = Mapped::new(apply.fs, inode)?;
    if let Some(begun_in) = dots_parent(apply.fs, &dir)? {
        if begun_in == parent {
            return Ok(());
        }
        let locus = Locus::inode(u64::from(dir.inode.number.get()));
        return Err(Corrupt::new(locus, FastCommitRule::Parent).into());
    }
    ranges::unmap(apply, &mut dir, FileBlock(0)..FileBlock::MAX)?;
    dir.inode.size_bytes = 0;
    dir.inode.flags.remove(InodeFlags::INDEX);
    apply.ensure(insert_credits(&dir.map) + STORE_CREDITS)?;
    names(apply, &mut dir)?.begin(parent)?;
    inode::store(apply.fs, &mut apply.handle, &dir.inode)
}

/// Adds a name, unless its directory is missing.
fn insert_name(
    apply: &mut Apply<'_>,
    entry: &Entry<'_>,
    name: Name<'_>,
    kind: FileKind,
) -> Result<Insertion> {
    let Some(parent) = apply.directory(entry.parent)? else {
        return Ok(Insertion::None);
    };
    refuse_encrypted(&parent)?;
    apply.touch(entry.parent)?;
    let mut dir = Mapped::new(apply.fs, parent)?;
    apply.ensure(insert_credits(&dir.map) + CHANGE_CREDITS + STORE_CREDITS)?;
    match names(apply, &mut dir)?.insert(name, entry.inode, kind) {
        Err(Error::Condition(Condition::Exists)) => {
            let slot = Directory::open(apply.fs, &dir.inode, &dir.map)?.locate(name)?;
            if slot.found().inode != entry.inode {
                return Ok(Insertion::None);
            }
            if slot.found().kind.is_none_or(|found| found == kind) {
                return Ok(Insertion::Existing);
            }
            // It was added for an earlier inode of this number.
            names(apply, &mut dir)?.remove_at(&slot)?;
            inode::store(apply.fs, &mut apply.handle, &dir.inode)?;
            apply.ensure(insert_credits(&dir.map) + STORE_CREDITS)?;
            names(apply, &mut dir)?.insert(name, entry.inode, kind)?;
            inode::store(apply.fs, &mut apply.handle, &dir.inode)?;
            return Ok(Insertion::Existing);
        }
        inserted => inserted?,
    }
    inode::store(apply.fs, &mut apply.handle, &dir.inode)?;
    Ok(Insertion::New)
}

/// Removes a name if it refers to the inode of the entry.
fn remove_name(
    apply: &mut Apply<'_>,
    entry: &Entry<'_>,
    name: Name<'_>,
    parent: Inode,
) -> Result<Removal> {
    refuse_encrypted(&parent)?;
    apply.touch(entry.parent)?;
    let mut dir = Mapped::new(apply.fs, parent)?;
    let slot = match Directory::open(apply.fs, &dir.inode, &dir.map)?.locate(name) {
        Err(Error::Condition(Condition::NotFound)) => return Ok(Removal::None),
        slot => slot?,
    };
    if slot.found().inode != entry.inode {
        return Ok(Removal::Other);
    }
    apply.ensure(CHANGE_CREDITS + STORE_CREDITS)?;
    names(apply, &mut dir)?.remove_at(&slot)?;
    inode::store(apply.fs, &mut apply.handle, &dir.inode)?;
    Ok(Removal::Done)
}

/// Deletes an inode without a name.
pub(super) fn delete(apply: &mut Apply<'_>, inode: Inode) -> Result<()> {
    let (number, kind) = (inode.number, inode.kind);
    // The time of deletion is not recorded; that of the last change is the nearest.
    let time = u32::try_from(inode.changed.seconds).unwrap_or(u32::MAX);
    apply.touch(number)?;
    apply.incomplete.remove(&number);
    let is_in_use = apply.space.is_inode_in_use(apply.fs, number)?;
    // What the slot of a free inode maps may be another file's blocks.
    let mut inode = if is_in_use {
        empty(apply, inode)?
    } else {
        inode
    };
    (inode.links, inode.size_bytes, inode.sectors) = (0, 0, 0);
    apply.ensure(ORPHAN_CREDITS + STORE_CREDITS + FREE_INODE_CREDITS)?;
    let (fs, handle) = (apply.fs, &mut apply.handle);
    apply
        .register
        .remove_deleted(fs, handle, &inode, time.max(1))?;
    if is_in_use {
        alloc::free_inode(apply.space, fs, handle, number, false)?;
    }
    if kind == FileKind::Directory {
        apply.count_group_of(number);
    }
    Ok(())
}

/// Frees all blocks and attributes of an inode.
pub(super) fn empty(apply: &mut Apply<'_>, inode: Inode) -> Result<Inode> {
    let mut file = Mapped::new(apply.fs, inode)?;
    ranges::unmap(apply, &mut file, FileBlock(0)..FileBlock::MAX)?;
    let mut inode = file.inode;
    let mut credits = xattr::change_credits(apply.fs);
    while inode.has_attributes() {
        apply.ensure(credits + STORE_CREDITS)?;
        let released = XattrChange {
            fs: apply.fs,
            space: apply.space,
            handle: &mut apply.handle,
            now: inode.changed,
            inode: &mut inode,
            from: Reserve::Split,
            clock: apply.clock,
            holding: Holding::default(),
            needed: None,
        }
        .release()?;
        inode::store(apply.fs, &mut apply.handle, &inode)?;
        match released {
            Released::All => break,
            Released::Some { credits: needed } => credits = needed,
        }
    }
    Ok(inode)
}

fn names<'a, 'f>(apply: &'a mut Apply<'f>, dir: &'a mut Mapped) -> Result<DirectoryMut<'a, 'f>> {
    let (inode, map) = (&mut dir.inode, &mut dir.map);
    DirectoryMut::open(apply.fs, apply.space, &mut apply.handle, inode, map)
}

/// Returns the parent of a directory, if it begins with `.` and `..`.
fn dots_parent(fs: &FsContext, dir: &Mapped) -> Result<Option<InodeNr>> {
    let looked_up = Directory::open(fs, &dir.inode, &dir.map).and_then(|view| {
        let dot = view.lookup(Name::new(b".")?)?;
        let parent = view.lookup(Name::new(b"..")?)?.inode;
        Ok((dot.inode == dir.inode.number).then_some(parent))
    });
    match looked_up {
        Err(Error::Corrupt(_)) => Ok(None),
        looked_up => looked_up,
    }
}

fn is_value(inode: &Inode) -> bool {
    inode.flags.contains(InodeFlags::EA_INODE)
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
