//! Files and names by their paths, as `std::fs` has them.

use platter_vfs::{Condition, CreateKind, Error, FileKind, RenameMode};

use super::open_options::open_inode;
use super::place::{Place, check_link};
use super::removal::remove_tree;
use super::rights::{may_remove, may_rename, vacant};
use super::{File, OpenOptions, Volume};
use crate::{AsPath, Cause, Progress, Result};

/// The longest file that is read into memory as a whole, in bytes: an image may claim any size.
pub const WHOLE_FILE_BYTES_MAX: usize = 1 << 30;

impl Volume {
    /// Opens a file as `options` say. Symbolic links are followed.
    ///
    /// # Errors
    /// Those of `open(2)`; `InvalidArgument` also for options that do not go together, and for writing to
    /// what has no contents.
    pub fn open_with(&self, path: impl AsPath, options: OpenOptions) -> Result<File> {
        let path = path.path_bytes();
        let opened = open_inode(self, path, options);
        Ok(self.file(path, opened)?.allowing(options))
    }

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
        create_at(self, path, CreateKind::Directory, true)
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
                    or_is_dir(self, &path[..end], created)?;
                    missing = index + 1;
                    break;
                }
            }
        }
        for &end in ends.iter().skip(missing) {
            or_is_dir(self, &path[..end], self.create_dir(&path[..end]))?;
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
        create_at(self, link, CreateKind::Symlink(text.to_vec()), false)
    }

    /// Makes a hard link to a file. A symbolic link at the end of `original` is not followed.
    pub fn hard_link(&self, original: impl AsPath, link: impl AsPath) -> Result<()> {
        let file = self.open_no_follow(original)?;
        let link = link.path_bytes();
        let linked = vacant(&self.walker(), link, false).and_then(|located| {
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
            may_remove(&located, &victim)?;
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
            may_remove(&located, &victim)?;
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
                remove_tree(self, place, victim, &Progress::default())
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
            may_rename(&source, &*moved, &target, mode)?;
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
}

/// What creating a directory came to: another thread, or an earlier call, may have created it.
fn or_is_dir(volume: &Volume, path: &[u8], created: Result<()>) -> Result<()> {
    match created {
        Err(error) if volume.directory(path).is_none() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Creates something at a path where nothing is.
fn create_at(volume: &Volume, path: &[u8], kind: CreateKind, is_directory: bool) -> Result<()> {
    let created = vacant(&volume.walker(), path, is_directory).and_then(|located| {
        let name = located.name_to_create()?;
        located.parent.create(volume.context(), name, kind, 0o777)
    });
    volume.named(path, created).map(drop)
}
