//! Making files, with a name and without one, and further names.

use std::sync::Arc;

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, PosixAcl};
use platter_vfs::creation::NewFile;
use platter_vfs::namei::NewInode;
use platter_vfs::{Condition, CreateKind, Error, FileKind, Name, Result};

use super::names::{NAME_COST, change_directory};
use super::state::{Times, set_links, touch};
use super::{Inode, SuperBlock, attr_fork, link, parents, sync, xattrs};
use crate::change::{self, Change, Cost};
use crate::context::FsContext;
use crate::directory::NamePlace;
use crate::directory::change::{DirectoryChange, NewEntry};
use crate::fork::InodeEdit;
use crate::inode;
use crate::ondisk::inode::edit::{self, FreshInode, StoredFork};
use crate::ondisk::inode::{InodeFlags, InodeFlags2, SYMLINK_BYTES_MAX};
use crate::ondisk::{ForkFormat, ForkKind, InodeNr};
use crate::xattr::Attributes;

/// Blocks that the trees of inodes and of mappings grow by when a file is made.
pub(super) const TREE_BLOCKS: u32 = 4;
/// What all inodes inherit of the flags of their directory.
pub(super) const INHERITED: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NODEFRAG)
    .union(InodeFlags::FILESTREAM);
/// What directories inherit in addition to that.
pub(super) const INHERITED_BY_DIRECTORIES: InodeFlags = InodeFlags::PROJINHERIT
    .union(InodeFlags::RTINHERIT)
    .union(InodeFlags::EXTSZINHERIT);

/// A file about to be made.
pub(super) struct Blueprint<'a> {
    pub(super) new: NewInode<'a>,
    pub(super) file: NewFile,
    pub(super) default_acl: Option<PosixAcl>,
}

impl Blueprint<'_> {
    fn kind(&self) -> FileKind {
        self.new.kind.file_kind()
    }

    /// What making it takes, in addition to its name.
    pub(super) fn cost(&self, inode: &Inode) -> Cost {
        let geometry = inode.context().geometry();
        let made = Cost {
            extents: 3,
            forks: 1,
            inodes: 2,
            bytes: 8192,
            // A chunk of inodes, a block of entries and one of their index, and what their trees grow by.
            blocks: geometry.chunk_blocks() + 2 * geometry.dir_block_blocks() + TREE_BLOCKS,
            ..Cost::default()
        };
        match (&self.file.access_acl, &self.default_acl) {
            (None, None) => made,
            _ => made.and(xattrs::new_acl_cost(inode)),
        }
    }
}

/// What a file made in a directory takes from it and from its maker.
///
/// # Errors
/// `NameTooLong`, `NotFound` and `InvalidArgument` for targets of links that cannot be, `NotPermitted` where the directory
/// takes none.
pub(super) fn plan<'a>(directory: &Inode, new: NewInode<'a>) -> Result<Blueprint<'a>> {
    if let CreateKind::Symlink(target) = new.kind {
        if target.is_empty() {
            return Err(Condition::NotFound.into());
        }
        if target.len() as u64 >= SYMLINK_BYTES_MAX {
            return Err(Condition::NameTooLong.into());
        }
        if target.contains(&0) {
            return Err(Condition::InvalidArgument.into());
        }
    }
    let state = directory.state.read();
    let takes_links = !state.inode.flags.contains(InodeFlags::NOSYMLINKS);
    if new.kind.file_kind() == FileKind::Symlink && !takes_links {
        return Err(Condition::NotPermitted.into());
    }
    let default_acl = default_acl(directory.context(), &state.inode)?;
    let attr = inode::attr(&state.inode, directory.context().geometry());
    let file = NewFile::in_directory(
        &attr,
        default_acl.as_ref(),
        new.context,
        new.kind.file_kind(),
        new.permissions,
    );
    let default_acl = default_acl.filter(|_| file.inherits_default_acl);
    Ok(Blueprint {
        new,
        file,
        default_acl,
    })
}

/// The access control list that files made in a directory begin with, if it has one.
pub(super) fn default_acl(
    context: &FsContext,
    directory: &crate::ondisk::Inode,
) -> Result<Option<PosixAcl>> {
    if directory.attr_fork().is_none() {
        return Ok(None);
    }
    let attributes = Attributes::open(context, directory)?;
    match attributes.get(ACL_DEFAULT_NAME) {
        Ok(value) => Ok(Some(PosixAcl::decode(&value)?)),
        Err(Error::Condition(Condition::NoAttribute)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a file; one without a name is put on a list of unlinked inodes. `name` comes with the place where a search for
/// it ended; the caller has held the inode lock since then.
pub(super) fn file(
    directory: &Inode,
    name: Option<(Name<'_>, NamePlace)>,
    new: NewInode<'_>,
) -> Result<Arc<Inode>> {
    let superblock = &directory.superblock;
    let blueprint = plan(directory, new)?;
    let cost = NAME_COST.and(blueprint.cost(directory));
    let cost = cost.and(parents::cost(&superblock.context, 1));
    let is_directory = blueprint.kind() == FileKind::Directory;
    let number = superblock.change(&cost, &[directory], |changing, states| {
        let links = u32::from(name.is_some());
        let parent = states.inode(directory);
        let number = make(superblock, changing, parent, &blueprint, links)?;
        let Some((name, place)) = name else {
            let mut edit = changing.inode(number)?;
            changing.add_unlinked(&mut edit)?;
            changing.put(edit);
            return Ok(number);
        };
        let entry = NewEntry {
            name: &name,
            inode: number,
            kind: blueprint.kind(),
        };
        change_directory(changing, (directory, states.map(directory)), |dir| {
            dir.insert_at(&entry, &place)?;
            let edit = dir.inode_mut();
            if is_directory {
                let links = edit.inode().links.saturating_add(1);
                set_links(edit, links)?;
            }
            touch(edit, Times::of_contents(superblock.clock.now()))
        })?;
        parents::add(changing, number, (directory.number, &name))?;
        Ok(number)
    })?;
    superblock.adopt(number, name.is_none())
}

/// Adds a name of `file` to a directory, where a search for it ended at `place`. The caller holds both inode locks, that
/// of the directory since.
pub(super) fn link(
    directory: &Inode,
    (name, place): (Name<'_>, NamePlace),
    file: &Arc<Inode>,
) -> Result<()> {
    let superblock = &directory.superblock;
    let cost = NAME_COST.and(Cost {
        inodes: 3,
        ..parents::cost(&superblock.context, 1)
    });
    let now = superblock.clock.now();
    let entry = NewEntry {
        name: &name,
        inode: file.number,
        kind: file.kind,
    };
    let links = superblock.change(&cost, &[directory, file], |changing, states| {
        change_directory(changing, (directory, states.map(directory)), |dir| {
            dir.insert_at(&entry, &place)?;
            touch(dir.inode_mut(), Times::of_contents(now))
        })?;
        let mut edit = changing.inode_at(&file.place()?)?;
        let links = edit.inode().links;
        if links == 0 {
            changing.remove_unlinked(&mut edit)?;
        }
        set_links(&mut edit, links.saturating_add(1))?;
        touch(&mut edit, Times::of_attributes(now))?;
        changing.put(edit);
        parents::add(changing, file.number, (directory.number, &name))?;
        states.of(file).may_get_first_name = false;
        Ok(links)
    })?;
    if links == 0 {
        // Now that it can be found, what was written to it before has to be.
        sync::mark_dirty(file);
    }
    Ok(())
}

/// Makes an inode in a directory with what is in it from the start.
pub(super) fn make(
    superblock: &SuperBlock,
    changing: &mut Change<'_>,
    directory: &crate::ondisk::Inode,
    blueprint: &Blueprint<'_>,
    links: u32,
) -> Result<InodeNr> {
    let kind = blueprint.kind();
    let parent = directory.number;
    let now = superblock.clock.now();
    let mut flags = directory.flags & INHERITED;
    if kind == FileKind::Directory {
        flags |= directory.flags & INHERITED_BY_DIRECTORIES;
    }
    let inherits_size = directory.flags.contains(InodeFlags::EXTSZINHERIT);
    let takes_size = matches!(kind, FileKind::Regular | FileKind::Directory) && inherits_size;
    if takes_size && kind == FileKind::Regular {
        flags |= InodeFlags::EXTSIZE;
    }
    let takes_project = directory.flags.contains(InodeFlags::PROJINHERIT);
    let takes_cow = directory.flags2.contains(InodeFlags2::COWEXTSIZE)
        && matches!(kind, FileKind::Regular | FileKind::Directory);
    let links = if kind == FileKind::Directory {
        2
    } else {
        links
    };
    let mode = kind.mode_bits() | blueprint.file.permissions;
    let fresh = FreshInode {
        mode: u16::try_from(mode).unwrap_or_default(),
        data_format: match kind {
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => ForkFormat::Extents,
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                ForkFormat::Device
            }
        },
        uid: blueprint.file.uid,
        gid: blueprint.file.gid,
        project: if takes_project { directory.project } else { 0 },
        links,
        now,
        flags,
        flags2: if takes_cow {
            InodeFlags2::COWEXTSIZE
        } else {
            InodeFlags2::empty()
        },
        extent_size: if takes_size { directory.extent_size } else { 0 },
        cow_extent_size: if takes_cow {
            directory.cow_extent_size
        } else {
            0
        },
    };
    let edit = allocate(superblock, changing, (parent, kind), &fresh)?;
    let number = edit.inode().number;
    fill(changing, edit, parent, blueprint)?;
    if let Some(acl) = &blueprint.file.access_acl {
        xattrs::set_acl(changing, number, ACL_ACCESS_NAME, acl)?;
    }
    if let Some(acl) = &blueprint.default_acl {
        xattrs::set_acl(changing, number, ACL_DEFAULT_NAME, acl)?;
    }
    Ok(number)
}

/// An inode for a file of a directory, where it has the fork for its pointers to directories.
pub(super) fn allocate(
    superblock: &SuperBlock,
    changing: &mut Change<'_>,
    (parent, kind): (InodeNr, FileKind),
    fresh: &FreshInode,
) -> Result<InodeEdit> {
    let [g0, g1, g2, g3, ..] = superblock.clock.random_u64().to_le_bytes();
    let mut edit = changing.alloc_inode(&change::NewInode {
        parent,
        kind,
        generation: u32::from_le_bytes([g0, g1, g2, g3]),
        fresh,
    })?;
    if changing.geometry().features.has_parent() {
        // Before anything fills the inode.
        attr_fork::add(changing, &mut edit)?;
    }
    Ok(edit)
}

/// Stores a new inode with its first contents.
fn fill(
    changing: &mut Change<'_>,
    mut edit: InodeEdit,
    parent: InodeNr,
    blueprint: &Blueprint<'_>,
) -> Result<()> {
    match blueprint.new.kind {
        CreateKind::Regular => {}
        CreateKind::Directory => {
            return DirectoryChange::make(changing, edit, parent)?.finish();
        }
        CreateKind::Symlink(target) => link::fill(changing, &mut edit, target)?,
        CreateKind::CharDevice(device) | CreateKind::BlockDevice(device) => {
            let stored = edit::stored_device(*device).ok_or(Condition::InvalidArgument)?;
            fill_local(&mut edit, ForkFormat::Device, &stored.to_be_bytes())?;
        }
        CreateKind::Fifo | CreateKind::Socket => {
            fill_local(&mut edit, ForkFormat::Device, &[0; 4])?;
        }
    }
    changing.put(edit);
    Ok(())
}

fn fill_local(edit: &mut InodeEdit, format: ForkFormat, bytes: &[u8]) -> Result<()> {
    let stored = StoredFork {
        kind: ForkKind::Data,
        format,
        extents: 0,
        bytes,
    };
    edit.set_fork(&stored, 0)
}
