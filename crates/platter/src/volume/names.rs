//! Names that come, go and move, as `std::fs` has it.

use std::io::SeekFrom;

use platter_vfs::permission::{check_create, check_delete, prepare_set_attr};
use platter_vfs::{
    Condition, Context, CreateKind, Credentials, Error, FileKind, Inode, Located, RenameMode,
    SetAttr,
};

use super::place::{Place, check_link};
use super::{File, OpenOptions, Volume};
use crate::{AsPath, Cause, Result};

/// The longest file that is read into memory as a whole, in bytes: an image may claim any size.
pub const WHOLE_FILE_BYTES_MAX: usize = 1 << 30;

impl Volume {
    /// Opens a file for writing: one that is not there is created, one that is there is truncated.
    pub fn create(&self, path: impl AsPath) -> Result<File> {
        let options = OpenOptions::new().write(true).create(true).truncate(true);
        self.open_with(path, options)
    }

    /// Creates a file and opens it for reading and writing.
    ///
    /// # Errors
    /// `Exists` where something has the name, be it a symbolic link to nothing.
    pub fn create_new(&self, path: impl AsPath) -> Result<File> {
        let options = OpenOptions::new().read(true).write(true).create_new(true);
        self.open_with(path, options)
    }

    /// Writes the whole contents of a file: one that is not there is created, one that is there is
    /// truncated.
    pub fn write(&self, path: impl AsPath, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_at(0, contents.as_ref())
    }

    /// The contents of a file.
    ///
    /// # Errors
    /// `FileTooLarge` for more than [`WHOLE_FILE_BYTES_MAX`].
    pub fn read(&self, path: impl AsPath) -> Result<Vec<u8>> {
        self.open(path)?.read_all(WHOLE_FILE_BYTES_MAX)
    }

    /// The contents of a file that is UTF-8.
    ///
    /// # Errors
    /// `InvalidArgument` where it is not; `FileTooLarge` for more than [`WHOLE_FILE_BYTES_MAX`].
    pub fn read_to_string(&self, path: impl AsPath) -> Result<String> {
        let file = self.open(path)?;
        let bytes = file.read_all(WHOLE_FILE_BYTES_MAX)?;
        String::from_utf8(bytes).map_err(|_| file.error(Condition::InvalidArgument))
    }

    /// Copies contents and permission bits of a file over another one, which is created if it is not there.
    /// Extents are shared where the format can. Returns how many bytes.
    ///
    /// # Errors
    /// [`Cause::SameFile`] for a file and itself.
    pub fn copy(&self, from: impl AsPath, to: impl AsPath) -> Result<u64> {
        let source = self.open(from)?;
        let attr = source.attr()?;
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(source.error(Condition::IsDirectory)),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => return Err(source.error(Condition::InvalidArgument)),
        }
        let to = to.path_bytes();
        if let Ok(there) = self.walker().resolve(to)
            && there.id() == source.inode().id()
        {
            return Err(self.error(to, Cause::SameFile));
        }
        let options = OpenOptions::new().write(true).create(true).truncate(true);
        let target = self.open_with(to, options.mode(attr.permissions))?;
        let mut copied = 0;
        while copied < attr.size_bytes {
            let range = copied..attr.size_bytes;
            let copy = target.inode().copy_range(&**source.inode(), range, copied);
            match copy.map_err(|error| target.error(error))? {
                0 => break,
                len => copied += len,
            }
        }
        target.set_permissions(attr.permissions)?;
        Ok(copied)
    }

    /// Whether a path names something, following symbolic links.
    ///
    /// # Errors
    /// All but `NotFound`.
    pub fn exists(&self, path: impl AsPath) -> Result<bool> {
        let path = path.path_bytes();
        match self.walker().resolve(path) {
            Err(Error::Condition(Condition::NotFound)) => self.named(path, Ok(false)),
            found => self.named(path, found.map(|_| true)),
        }
    }

    /// Creates a directory.
    pub fn create_dir(&self, path: impl AsPath) -> Result<()> {
        let path = path.path_bytes();
        self.create_at_path(path, CreateKind::Directory, true)
    }

    /// Creates a directory and those above it, as far as they are not there.
    ///
    /// # Errors
    /// `Exists` or `NotDirectory` for what is there and is no directory.
    pub fn create_dir_all(&self, path: impl AsPath) -> Result<()> {
        let path = path.path_bytes();
        let is_end = |end: &usize| {
            let after = path.get(*end).is_none_or(|&byte| byte == b'/');
            after && path[*end - 1] != b'/'
        };
        let ends: Vec<usize> = (1..=path.len()).filter(is_end).collect();
        // As in `std::fs`, the whole path is tried first.
        let mut missing = 0;
        for (index, &end) in ends.iter().enumerate().rev() {
            match self.create_dir(&path[..end]) {
                Err(error) if error.is(Condition::NotFound) && index > 0 => {}
                created => {
                    self.or_is_dir(&path[..end], created)?;
                    missing = index + 1;
                    break;
                }
            }
        }
        for &end in ends.iter().skip(missing) {
            self.or_is_dir(&path[..end], self.create_dir(&path[..end]))?;
        }
        Ok(())
    }

    /// Creates a symbolic link with this text.
    pub fn symlink(&self, original: impl AsPath, link: impl AsPath) -> Result<()> {
        let (text, link) = (original.path_bytes(), link.path_bytes());
        let wrong = match text.len() {
            0 => Some(Condition::NotFound),
            len if len >= platter_vfs::path::PATH_MAX => Some(Condition::NameTooLong),
            _ => None,
        };
        if let Some(condition) = wrong {
            return Err(self.error(link, Error::from(condition)));
        }
        self.create_at_path(link, CreateKind::Symlink(text.to_vec()), false)
    }

    /// Makes a hard link to a file. A symbolic link at the end of `original` is not followed.
    pub fn hard_link(&self, original: impl AsPath, link: impl AsPath) -> Result<()> {
        let file = self.open_no_follow(original)?;
        let link = link.path_bytes();
        let linked = self.vacant(link, false).and_then(|located| {
            let name = located.name_to_create()?;
            check_link(&file.inode().attr()?)?;
            located.parent.link(self.context(), name, file.inode().id())
        });
        self.named(link, linked)
    }

    /// Removes a name of a file that is no directory.
    pub fn remove_file(&self, path: impl AsPath) -> Result<()> {
        let path = path.path_bytes();
        let removed = self.walker().resolve_parent(path).and_then(|located| {
            let name = located.name_to_unlink()?;
            let victim = located.parent.lookup(name)?.attr()?;
            if located.trailing_slash && victim.kind != FileKind::Directory {
                return Err(Condition::NotDirectory.into());
            }
            Self::may_remove(&located, &victim)?;
            located.parent.unlink(self.context(), name)
        });
        self.named(path, removed)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsPath) -> Result<()> {
        let path = path.path_bytes();
        let removed = self.walker().resolve_parent(path).and_then(|located| {
            let name = located.name_to_remove_dir()?;
            let victim = located.parent.lookup(name)?.attr()?;
            Self::may_remove(&located, &victim)?;
            located.parent.remove_dir(self.context(), name)
        });
        self.named(path, removed)
    }

    /// Removes a directory with all below it, or a symbolic link itself.
    pub fn remove_dir_all(&self, path: impl AsPath) -> Result<()> {
        let path = path.path_bytes();
        let found = self.walker().resolve_parent(path).and_then(|located| {
            let name = located.name_to_remove_dir()?;
            let victim = located.parent.lookup(name)?;
            let kind = victim.attr()?.kind;
            let name = name.to_owned();
            Ok((located, name, victim, kind))
        });
        let (located, name, victim, kind) = self.named(path, found)?;
        match kind {
            FileKind::Directory => {
                let place = Place {
                    dir: located.parent,
                    name,
                    is_directory: located.trailing_slash,
                    path: path.to_vec(),
                };
                self.remove_tree(place, victim)
            }
            FileKind::Symlink => self.remove_file(path),
            FileKind::Regular
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => Err(self.error(path, Error::from(Condition::NotDirectory))),
        }
    }

    /// Renames a file or directory, and replaces a file or an empty directory that has the name.
    pub fn rename(&self, from: impl AsPath, to: impl AsPath) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// As [`rename`](Self::rename), with the flags of `renameat2(2)`.
    pub fn rename_with(&self, from: impl AsPath, to: impl AsPath, mode: RenameMode) -> Result<()> {
        let (from, to) = (from.path_bytes(), to.path_bytes());
        let source = self.named(from, self.walker().resolve_parent(from))?;
        let target = self.named(to, self.walker().resolve_parent(to))?;
        let renamed = source.name_to_rename().and_then(|name| {
            let new_name = target.name_to_rename()?;
            let moved = source.parent.lookup(name)?;
            let is_dir = moved.attr()?.kind == FileKind::Directory;
            let slash =
                source.trailing_slash || target.trailing_slash && mode != RenameMode::Exchange;
            if slash && !is_dir {
                return Err(Condition::NotDirectory.into());
            }
            Self::may_rename(&source, &*moved, &target, mode)?;
            let (parent, new_parent) = (&source.parent, target.parent.id());
            parent.rename(self.context(), name, new_parent, new_name, mode)
        });
        self.named(from, renamed)
    }

    /// Sets the permission bits, following symbolic links.
    pub fn set_permissions(&self, path: impl AsPath, permissions: u32) -> Result<()> {
        self.open(path)?.set_permissions(permissions)
    }

    /// Sets owner and group, as far as they are given, following symbolic links.
    pub fn chown(&self, path: impl AsPath, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.open(path)?.chown(uid, gid)
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> Result<()> {
        self.of_all(|| self.filesystem().sync())
    }

    /// Makes everything done so far durable, and has changes wait until it is [thawed](Self::thaw). Nothing on
    /// the devices is to be recovered meanwhile: they can be copied.
    ///
    /// # Errors
    /// `Busy` where it is frozen; `ReadOnly` where nothing is written.
    pub fn freeze(&self) -> Result<()> {
        self.of_all(|| self.filesystem().freeze())
    }

    /// Has changes go on. Closing the volume does, too.
    ///
    /// # Errors
    /// `InvalidArgument` where it is not frozen.
    pub fn thaw(&self) -> Result<()> {
        self.of_all(|| self.filesystem().thaw())
    }

    fn of_all(&self, call: impl FnOnce() -> platter_vfs::Result<()>) -> Result<()> {
        self.check_live().map_err(|cause| self.error(b"", cause))?;
        call().map_err(|error| crate::Error::new(self.name(), error))
    }

    /// Another thread, or an earlier call, may have created it.
    fn or_is_dir(&self, path: &[u8], created: Result<()>) -> Result<()> {
        match created {
            Err(error) if self.directory(path).is_none() => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Where a name may be created.
    fn vacant(&self, path: &[u8], is_directory: bool) -> platter_vfs::Result<Located> {
        let located = self.walker().resolve_parent(path)?;
        let name = located.name_to_create()?;
        if located.trailing_slash && !is_directory {
            located.parent.lookup(name)?;
            return Err(Condition::Exists.into());
        }
        if located.parent.lookup(name).is_ok() {
            return Err(Condition::Exists.into());
        }
        let parent = &*located.parent;
        check_create(parent, &parent.attr()?, &Credentials::root())?;
        Ok(located)
    }

    fn create_at_path(&self, path: &[u8], kind: CreateKind, is_directory: bool) -> Result<()> {
        let created = self.vacant(path, is_directory).and_then(|located| {
            let name = located.name_to_create()?;
            located.parent.create(self.context(), name, kind, 0o777)
        });
        self.named(path, created).map(drop)
    }

    fn may_remove(from: &Located, victim: &platter_vfs::Attr) -> platter_vfs::Result<()> {
        let dir = &*from.parent;
        check_delete(dir, &dir.attr()?, victim, &Credentials::root())
    }

    /// Whether flags of the directories and of the files let a name move.
    fn may_rename(
        from: &Located,
        moved: &dyn Inode,
        to: &Located,
        mode: RenameMode,
    ) -> platter_vfs::Result<()> {
        let there = match to.parent.lookup(to.name_to_rename()?) {
            Ok(there) => Some(there),
            Err(Error::Condition(Condition::NotFound)) => None,
            Err(error) => return Err(error),
        };
        match there {
            // Nothing moves.
            Some(there) if there.id() == moved.id() => Ok(()),
            Some(_) if mode == RenameMode::NoReplace => Err(Condition::Exists.into()),
            Some(there) => {
                Self::may_remove(from, &moved.attr()?)?;
                Self::may_remove(to, &there.attr()?)
            }
            None => {
                Self::may_remove(from, &moved.attr()?)?;
                check_create(&*to.parent, &to.parent.attr()?, &Credentials::root())
            }
        }
    }

    /// Changes attributes as the superuser may.
    pub(crate) fn set_attr_of(inode: &dyn Inode, changes: &SetAttr) -> platter_vfs::Result<()> {
        let root = Credentials::root();
        let changes = prepare_set_attr(inode, &inode.attr()?, &root, changes)?;
        inode.set_attr(&Context::root(), &changes).map(drop)
    }
}

/// The offset that a seek leads to.
pub(super) fn offset_of(target: SeekFrom, position: u64, len: u64) -> Option<u64> {
    let (base, distance) = match target {
        SeekFrom::Start(offset) => (offset, 0),
        SeekFrom::Current(distance) => (position, distance),
        SeekFrom::End(distance) => (len, distance),
    };
    base.checked_add_signed(distance)
}
