//! The changes of an edit: of names, contents, attributes and subvolumes, as mkdir(1), rm(1), mv(1), ln(1), chmod(1),
//! chown(1), truncate(1), touch(1) and setfattr(1) make them.

use platter_vfs::xattr::{XattrAccess, check_xattr};
use platter_vfs::{
    Attr, Condition, Context, CreateKind, Credentials, FileKind, Inode, RenameMode, SetAttr,
    Subvolumes, TreeWalk, WalkEvent, WalkOrder, XattrMode,
};

use super::{
    Creation, Edit, Existing, Missing, ModeChange, Owner, Removal, Scope, SizeChange,
    SubvolumeAccess, Symlinks, Target, Times,
};
use crate::volume::place::{Place, end_of_links, join, last_name};
use crate::volume::removal::remove_tree;
use crate::volume::rights::check_writable;
use crate::{Accounts, Cause, Error, File, Result};

/// The permission bits that new directories ask for.
const DIRECTORY_PERMISSIONS: u32 = 0o777;
/// The permission bits that new files ask for.
const FILE_PERMISSIONS: u32 = 0o666;

/// Does something with a file of this path.
type Work<'a> = dyn FnMut(&[u8], &dyn Inode, &Attr) -> Result<()> + 'a;

impl Edit {
    /// Makes a directory, with permission bits changed by `mode`, whatever the umask.
    ///
    /// # Errors
    /// `Exists` for what is there.
    pub fn make_dir(&self, path: &[u8], mode: Option<&ModeChange>) -> Result<()> {
        let place = self.place(path, Condition::Exists)?;
        let kind = CreateKind::Directory;
        let made = place.create(&self.context, kind, DIRECTORY_PERMISSIONS);
        let inode = self.named(path, made)?;
        match mode {
            Some(mode) => change_mode_of(self, path, &*inode, mode),
            None => Ok(()),
        }
    }

    /// Makes a directory and those above it, as far as they are not there yet. Those above can be
    /// written and searched by their owner.
    pub fn make_dirs(&self, path: &[u8], mode: Option<&ModeChange>) -> Result<()> {
        let above = Context {
            umask: self.context.umask & !0o300,
            ..self.context.clone()
        };
        let mut end = 0;
        loop {
            let rest = &path[end..];
            let skipped = rest.iter().take_while(|&&byte| byte == b'/').count();
            let name = rest[skipped..].iter().take_while(|&&byte| byte != b'/');
            let name_len = name.count();
            if name_len == 0 {
                return Ok(());
            }
            end += skipped + name_len;
            let is_last = path[end..].iter().all(|&byte| byte == b'/');
            let part = &path[..end];
            match self.volume.walker().resolve(part) {
                Ok(found) => {
                    let kind = self.named(part, found.attr())?.kind;
                    let wrong = if is_last {
                        Condition::Exists
                    } else {
                        Condition::NotDirectory
                    };
                    if kind != FileKind::Directory {
                        return Err(self.error(part, platter_vfs::Error::from(wrong)));
                    }
                }
                Err(platter_vfs::Error::Condition(Condition::NotFound)) if is_last => {
                    self.make_dir(path, mode)?;
                }
                Err(platter_vfs::Error::Condition(Condition::NotFound)) => {
                    let place = self.place(part, Condition::Exists)?;
                    let kind = CreateKind::Directory;
                    let made = place.create(&above, kind, DIRECTORY_PERMISSIONS);
                    self.named(part, made)?;
                }
                Err(error) => return Err(self.error(part, error)),
            }
        }
    }

    /// Removes a name of a file, or a directory if `removal` is for it.
    ///
    /// # Errors
    /// `InvalidArgument` for the root, `.` and `..`.
    pub fn remove(&self, path: &[u8], removal: Removal, missing: Missing) -> Result<()> {
        let passed_over = missing == Missing::PassOver;
        let place = match self.place(path, Condition::InvalidArgument) {
            Err(error) if passed_over && is_missing(&error) => return Ok(()),
            place => place?,
        };
        let Some(victim) = self.named(path, place.find())? else {
            if passed_over {
                return Ok(());
            }
            return Err(self.error(path, platter_vfs::Error::from(Condition::NotFound)));
        };
        let attr = self.named(path, victim.attr())?;
        match (attr.kind, removal) {
            (FileKind::Directory, Removal::File) => {
                Err(self.error(path, platter_vfs::Error::from(Condition::IsDirectory)))
            }
            (FileKind::Directory, Removal::Tree) => {
                remove_tree(&self.volume, place, victim, &self.progress)
            }
            _ => self.named(path, place.remove(&*victim)),
        }
    }

    /// Moves a file to another name, or into a directory under its own.
    ///
    /// # Errors
    /// What rename(2) answers; [`Cause::SameFile`] where nothing would move.
    pub fn rename(
        &self,
        path: &[u8],
        target: &[u8],
        meaning: Target,
        existing: Existing,
    ) -> Result<()> {
        let source = self.place(path, Condition::Busy)?;
        let found = self.named(path, source.find())?;
        let missing = || self.error(path, platter_vfs::Error::from(Condition::NotFound));
        let moved = found.ok_or_else(missing)?;
        self.named(path, source.check_may_remove(&*moved))?;
        let goal = goal(self, &source.name, target, meaning, Condition::Busy)?;
        let kind = self.named(path, moved.attr())?.kind;
        let wrong =
            |condition: Condition| self.error(&goal.path, platter_vfs::Error::from(condition));
        if goal.is_directory && kind != FileKind::Directory {
            return Err(wrong(Condition::NotDirectory));
        }
        if let Some(victim) = self.named(&goal.path, goal.find())? {
            match existing {
                Existing::Refuse => return Err(wrong(Condition::Exists)),
                Existing::Keep => return Ok(()),
                Existing::Replace => {}
            }
            if victim.id() == moved.id() {
                // rename(2) would keep both names.
                return Err(self.error(path, Cause::SameFile));
            }
            self.named(&goal.path, goal.check_may_remove(&*victim))?;
        }
        self.named(&goal.path, goal.check_may_create())?;
        let renamed = source.dir.rename(
            &Context::root(),
            source.name.as_name(),
            goal.dir.id(),
            goal.name.as_name(),
            RenameMode::Replace,
        );
        self.named(&goal.path, renamed)
    }

    /// Makes a hard link to a file. A symbolic link at the end of `path` is not followed.
    pub fn link(
        &self,
        path: &[u8],
        target: &[u8],
        meaning: Target,
        existing: Existing,
    ) -> Result<()> {
        let file = self.volume.open_no_follow(path)?;
        if file.attr()?.kind == FileKind::Directory {
            return Err(self.error(path, platter_vfs::Error::from(Condition::NotPermitted)));
        }
        let name = last_name(path).unwrap_or_default();
        let goal = goal(self, name, target, meaning, Condition::Exists)?;
        if let Some(there) = self.named(&goal.path, goal.find())?
            && there.id() == file.inode().id()
            && existing == Existing::Replace
        {
            return Err(self.error(&goal.path, Cause::SameFile));
        }
        if make_way(self, &goal, existing)? {
            let linked = goal.link(&self.context, &**file.inode());
            self.named(&goal.path, linked)?;
        }
        Ok(())
    }

    /// Makes a symbolic link with this text.
    pub fn symlink(
        &self,
        text: &[u8],
        target: &[u8],
        meaning: Target,
        existing: Existing,
    ) -> Result<()> {
        let name = last_name(text).unwrap_or_default();
        let goal = goal(self, name, target, meaning, Condition::Exists)?;
        if make_way(self, &goal, existing)? {
            let kind = CreateKind::Symlink(text.to_vec());
            let made = goal.create(&self.context, kind, DIRECTORY_PERMISSIONS);
            self.named(&goal.path, made)?;
        }
        Ok(())
    }

    /// Writes the whole contents of a file, as [`std::fs::write`] does: one that is not there is
    /// made, one that is there loses what it held. A symbolic link is followed.
    ///
    /// # Errors
    /// `IsDirectory` for a directory, `InvalidArgument` for what else has no contents.
    pub fn write(&self, path: &[u8], bytes: &[u8]) -> Result<()> {
        let file = writable(self, path)?;
        self.truncate(path, SizeChange::Set(0), Creation::Never)?;
        self.named(path, file.inode().write_at(0, bytes))
    }

    /// Writes after the end of a file, as one that was opened for appending. One that is not there is
    /// made. A symbolic link is followed.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn append(&self, path: &[u8], bytes: &[u8]) -> Result<()> {
        let file = writable(self, path)?;
        self.named(path, file.inode().append(bytes)).map(drop)
    }

    /// Changes permission bits. A symbolic link is followed; those below are left alone.
    pub fn change_mode(&self, path: &[u8], mode: &ModeChange, scope: Scope) -> Result<()> {
        let file = self.volume.open(path)?;
        for_each(self, &file, scope, &mut |path, inode, attr| {
            if attr.kind == FileKind::Symlink {
                return Ok(());
            }
            change_mode_of(self, path, inode, mode)
        })
    }

    /// Changes owner and group. In a tree, symbolic links are changed themselves.
    pub fn change_owner(
        &self,
        path: &[u8],
        owner: Owner,
        symlinks: Symlinks,
        scope: Scope,
    ) -> Result<()> {
        let file = match scope {
            Scope::File => open_as(self, path, symlinks)?,
            Scope::Tree => self.volume.open_no_follow(path)?,
        };
        let changes = SetAttr {
            uid: owner.uid,
            gid: owner.gid,
            ..SetAttr::default()
        };
        for_each(self, &file, scope, &mut |path, inode, _| {
            self.drop_capability(path, inode)?;
            self.set_attr(path, inode, &changes)
        })
    }

    /// Changes the size of a file. A symbolic link is followed.
    pub fn truncate(&self, path: &[u8], change: SizeChange, creation: Creation) -> Result<()> {
        let Some(file) = open_or_create(self, path, creation)? else {
            return Ok(());
        };
        let size_bytes = change.apply(file.attr()?.size_bytes);
        let too_large = || file.error(Condition::FileTooLarge);
        let changes = SetAttr {
            size_bytes: Some(size_bytes.ok_or_else(too_large)?),
            ..SetAttr::default()
        };
        self.set_attr(path, &**file.inode(), &changes)
    }

    /// Changes times. A file is created only where a symbolic link would be followed.
    pub fn touch(
        &self,
        path: &[u8],
        times: Times,
        symlinks: Symlinks,
        creation: Creation,
    ) -> Result<()> {
        let file = match symlinks {
            Symlinks::Follow => open_or_create(self, path, creation)?,
            Symlinks::NoFollow => Some(self.volume.open_no_follow(path)?),
        };
        let changes = SetAttr {
            accessed: times.accessed,
            modified: times.modified,
            ..SetAttr::default()
        };
        match file {
            Some(file) => self.set_attr(path, &**file.inode(), &changes),
            None => Ok(()),
        }
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        symlinks: Symlinks,
    ) -> Result<()> {
        let file = xattr_file(self, path, name, symlinks)?;
        let set = file
            .inode()
            .set_xattr(&Context::root(), name, value, XattrMode::Set);
        self.named(path, set)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: &[u8], name: &[u8], symlinks: Symlinks) -> Result<()> {
        let file = xattr_file(self, path, name, symlinks)?;
        self.named(path, file.inode().remove_xattr(&Context::root(), name))
    }

    /// Returns the owner that a text means by the names of the image; see [`Owner::parse`].
    ///
    /// # Errors
    /// [`Cause::NoSuchUser`] and [`Cause::NoSuchGroup`].
    pub fn owner(&self, text: &[u8]) -> Result<Owner> {
        let accounts = Accounts::read(&self.volume);
        Owner::parse(text, &accounts).map_err(|cause| Error::new(self.volume.name(), cause))
    }

    /// The number of the subvolume whose root directory a path names.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no such directory.
    pub fn subvolume_at(&self, path: &[u8]) -> Result<u64> {
        let subvolumes = subvolumes(self)?;
        let found = self.named(path, self.volume.walker().resolve(path))?.id();
        match subvolumes.root(found.tree) {
            Ok(root) if root == found => Ok(found.tree),
            // The number of no subvolume is that of an empty directory which stands for one.
            Ok(_) | Err(platter_vfs::Error::Condition(Condition::NotFound)) => {
                let refused = Condition::InvalidArgument.because("is not a subvolume");
                Err(self.error(path, refused))
            }
            Err(error) => Err(self.error(path, error)),
        }
    }

    /// Makes an empty subvolume.
    ///
    /// # Errors
    /// `Exists` for what is there.
    pub fn create_subvolume(&self, path: &[u8]) -> Result<()> {
        let subvolumes = subvolumes(self)?;
        let place = vacant(self, path)?;
        let name = place.name.as_name();
        let made = subvolumes.create(&self.context, place.dir.id(), name);
        self.named(path, made)?;
        Ok(())
    }

    /// Makes a snapshot of the subvolume at `source`: at `path`, or in it if that is a directory. What was changed before is
    /// durable then: a snapshot is the last change of an edit that has to be whole.
    ///
    /// # Errors
    /// `InvalidArgument` where `source` is no subvolume.
    pub fn snapshot(&self, source: &[u8], path: &[u8], access: SubvolumeAccess) -> Result<()> {
        let subvolumes = subvolumes(self)?;
        let id = self.subvolume_at(source)?;
        let inside = self.is_directory(path).then(|| last_name(source)).flatten();
        let path = inside.map_or_else(|| path.to_vec(), |name| join(path, name));
        let place = vacant(self, &path)?;
        let name = place.name.as_name();
        let is_read_only = access == SubvolumeAccess::ReadOnly;
        let dir = place.dir.id();
        let made = subvolumes.snapshot(&self.context, id, dir, name, is_read_only);
        self.named(&path, made)?;
        Ok(())
    }

    /// Deletes a subvolume.
    ///
    /// # Errors
    /// `InvalidArgument` for what is none; `NotPermitted` for the default one; `NotEmpty` where it has others in it.
    pub fn delete_subvolume(&self, path: &[u8]) -> Result<()> {
        let subvolumes = subvolumes(self)?;
        self.subvolume_at(path)?;
        let place = self.place(path, Condition::InvalidArgument)?;
        let name = place.name.as_name();
        let deleted = subvolumes.delete(&Context::root(), place.dir.id(), name, None);
        self.named(path, deleted)
    }

    /// Makes a subvolume the one that is mounted where none is asked for.
    ///
    /// # Errors
    /// `NotFound` where none has the number.
    pub fn set_default_subvolume(&self, id: u64) -> Result<()> {
        let set = subvolumes(self)?.set_default(id);
        set.map_err(|error| Error::new(self.image.name(), error))
    }

    /// Has a subvolume refuse changes, or take them.
    ///
    /// # Errors
    /// `InvalidArgument` for what is none.
    pub fn set_subvolume_access(&self, path: &[u8], access: SubvolumeAccess) -> Result<()> {
        let id = self.subvolume_at(path)?;
        let is_read_only = access == SubvolumeAccess::ReadOnly;
        self.named(path, subvolumes(self)?.set_read_only(id, is_read_only))
    }
}

/// Whether something may be made in a place: what was there is gone then.
fn make_way(edit: &Edit, goal: &Place, existing: Existing) -> Result<bool> {
    let Some(there) = edit.named(&goal.path, goal.find())? else {
        return Ok(true);
    };
    let wrong = |condition: Condition| edit.error(&goal.path, platter_vfs::Error::from(condition));
    match existing {
        Existing::Keep => Ok(false),
        Existing::Refuse => Err(wrong(Condition::Exists)),
        Existing::Replace if edit.named(&goal.path, there.attr())?.kind == FileKind::Directory => {
            Err(wrong(Condition::IsDirectory))
        }
        Existing::Replace => {
            edit.named(&goal.path, goal.remove(&*there))?;
            Ok(true)
        }
    }
}

/// The place that `target` means for something called `name`.
fn goal(
    edit: &Edit,
    name: &[u8],
    target: &[u8],
    meaning: Target,
    otherwise: Condition,
) -> Result<Place> {
    if meaning == Target::Into
        && let Some(dir) = edit.directory(target)
    {
        let inside = Place::inside(dir, target, name);
        return edit.named(target, inside);
    }
    edit.place(target, otherwise)
}

/// Whether a path leads to nothing, or through something that is no directory.
fn is_missing(error: &Error) -> bool {
    let Cause::Filesystem(platter_vfs::Error::Condition(condition)) = &error.cause else {
        return false;
    };
    matches!(condition, Condition::NotFound | Condition::NotDirectory)
}

/// A regular file to write to, made if it is not there.
fn writable(edit: &Edit, path: &[u8]) -> Result<File> {
    let Some(file) = open_or_create(edit, path, Creation::IfMissing)? else {
        return Err(edit.error(path, platter_vfs::Error::from(Condition::NotFound)));
    };
    let attr = file.attr()?;
    let allowed = check_writable(&**edit.volume.filesystem(), &**file.inode(), &attr);
    edit.named(path, allowed)?;
    Ok(file)
}

/// Changes permission bits of a file.
fn change_mode_of(edit: &Edit, path: &[u8], inode: &dyn Inode, mode: &ModeChange) -> Result<()> {
    let attr = edit.named(path, inode.attr())?;
    let is_directory = attr.kind == FileKind::Directory;
    let permissions = mode.apply(attr.permissions, is_directory, edit.context.umask);
    let changes = SetAttr {
        permissions: Some(permissions),
        ..SetAttr::default()
    };
    edit.set_attr(path, inode, &changes)
}

/// Opens what a path names.
fn open_as(edit: &Edit, path: &[u8], symlinks: Symlinks) -> Result<File> {
    match symlinks {
        Symlinks::Follow => edit.volume.open(path),
        Symlinks::NoFollow => edit.volume.open_no_follow(path),
    }
}

/// A file whose extended attribute `name` may be changed.
fn xattr_file(edit: &Edit, path: &[u8], name: &[u8], symlinks: Symlinks) -> Result<File> {
    let file = open_as(edit, path, symlinks)?;
    let (root, write) = (Credentials::root(), XattrAccess::Write);
    let checked = check_xattr(&**file.inode(), &file.attr()?, &root, name, write);
    edit.named(path, checked)?;
    Ok(file)
}

/// The file that a path names, if it is there or is created.
fn open_or_create(edit: &Edit, path: &[u8], creation: Creation) -> Result<Option<File>> {
    match edit.volume.walker().resolve(path) {
        Ok(inode) => edit.volume.file(path, Ok(inode)).map(Some),
        Err(platter_vfs::Error::Condition(Condition::NotFound)) if creation == Creation::Never => {
            Ok(None)
        }
        Err(platter_vfs::Error::Condition(Condition::NotFound)) => {
            let end = edit.named(path, end_of_links(&edit.volume.walker(), path))?;
            let place = edit.place(&end, Condition::NotFound)?;
            let made = place.create(&edit.context, CreateKind::Regular, FILE_PERMISSIONS);
            edit.volume.file(path, made).map(Some)
        }
        Err(error) => Err(edit.error(path, error)),
    }
}

/// Does something with a file, or with it and all below it.
fn for_each(edit: &Edit, file: &File, scope: Scope, work: &mut Work<'_>) -> Result<()> {
    if scope == Scope::File {
        return work(file.path(), &**file.inode(), &file.attr()?);
    }
    let fs = edit.volume.filesystem().clone();
    let walk = TreeWalk::new(fs, file.inode().clone(), WalkOrder::Name);
    let path_of = |below: &[u8]| match below {
        b"" => file.path().to_vec(),
        below => join(file.path(), below),
    };
    for event in walk {
        match event {
            WalkEvent::Visit(visited) => {
                let path = path_of(&visited.path);
                let checked = edit.progress.check();
                checked.map_err(|cause| edit.error(&path, cause))?;
                work(&path, &*visited.inode, &visited.attr)?;
            }
            WalkEvent::Leave(_) => {}
            WalkEvent::Failed { path, error } => {
                return Err(edit.error(&path_of(&path), error));
            }
        }
    }
    Ok(())
}

/// The subvolumes of the filesystem that is edited.
///
/// # Errors
/// `NotSupported` where its format has none.
fn subvolumes(edit: &Edit) -> Result<&dyn Subvolumes> {
    let missing = || {
        let error = platter_vfs::Error::from(Condition::NotSupported);
        Error::new(edit.image.name(), error)
    };
    edit.volume.filesystem().subvolumes().ok_or_else(missing)
}

/// A name that is free.
fn vacant(edit: &Edit, path: &[u8]) -> Result<Place> {
    let place = edit.place(path, Condition::Exists)?;
    edit.named(path, place.check_may_create())?;
    Ok(place)
}
