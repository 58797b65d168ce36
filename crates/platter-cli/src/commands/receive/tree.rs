//! Files of a subvolume by the paths of a stream, which lead through its directories alone.
//!
//! Files are opened without side effects first: a stream may name a device, or a symbolic link to anywhere.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use platter_fuse::Control;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};
use rustix::io::Errno;

/// A subvolume, and what was used last in it: commands come in runs.
#[derive(Debug)]
pub(super) struct SubvolumeTree {
    root: Rc<OwnedFd>,
    /// The number of its tree.
    id: u64,
    dir: Option<(Vec<u8>, Rc<OwnedFd>)>,
    writer: Option<(Vec<u8>, Rc<File>)>,
}

impl SubvolumeTree {
    /// The subvolume at a path in a directory.
    ///
    /// # Errors
    /// `EINVAL` where there is none.
    pub(super) fn open(dir: impl AsFd, path: &[u8]) -> io::Result<Self> {
        let root = open_dir(dir, path)?;
        let id = Control::open(&path_of(&root))?.subvolume_id()?;
        Ok(Self {
            root: Rc::new(root),
            id,
            dir: None,
            writer: None,
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Its root directory, to ask for what concerns it as a whole.
    pub(super) fn control(&self) -> io::Result<Control> {
        Control::open(&path_of(&self.root))
    }

    /// Closes the file that was written to last, after a name was added or one of a file was removed.
    pub(super) fn forget_writer(&mut self) {
        self.writer = None;
    }

    /// Closes what was used last, after a name was changed.
    pub(super) fn forget(&mut self) {
        self.writer = None;
        self.dir = None;
    }

    /// The directory that a path is in, and the name there; `.` of the root directory.
    pub(super) fn parent<'p>(&mut self, path: &'p [u8]) -> io::Result<(Rc<OwnedFd>, &'p [u8])> {
        if path.is_empty() {
            return Ok((Rc::clone(&self.root), &b"."[..]));
        }
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let (dir, name) = match slash {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&[][..], path),
        };
        if dir.is_empty() {
            return Ok((Rc::clone(&self.root), name));
        }
        if let Some((known, opened)) = &self.dir
            && known == dir
        {
            return Ok((Rc::clone(opened), name));
        }
        let opened = Rc::new(open_dir(&self.root, dir)?);
        self.dir = Some((dir.to_vec(), Rc::clone(&opened)));
        Ok((opened, name))
    }

    /// Finds a file of any kind.
    pub(super) fn find(&mut self, path: &[u8]) -> io::Result<Found> {
        let (dir, name) = self.parent(path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Found(openat(&dir, name, flags, Mode::empty())?))
    }

    /// Opens a regular file to read it.
    ///
    /// # Errors
    /// `EXDEV` for a file of a subvolume in this one.
    pub(super) fn reader(&mut self, path: &[u8]) -> io::Result<File> {
        let found = self.find(path)?;
        if found.kind()? != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let file = found.open(OFlags::RDONLY)?;
        if Control::subvolume_of(&file)? != self.id {
            return Err(Errno::XDEV.into());
        }
        Ok(file)
    }

    /// Opens a regular file to change its contents.
    pub(super) fn writer(&mut self, path: &[u8]) -> io::Result<Rc<File>> {
        if let Some((known, opened)) = &self.writer
            && known == path
        {
            return Ok(Rc::clone(opened));
        }
        self.writer = None;
        let found = self.find(path)?;
        if found.kind()? != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let opened = Rc::new(found.open(OFlags::WRONLY)?);
        self.writer = Some((path.to_vec(), Rc::clone(&opened)));
        Ok(opened)
    }
}

/// A file that was found, and not opened.
#[derive(Debug)]
pub(super) struct Found(OwnedFd);

impl Found {
    pub(super) fn kind(&self) -> io::Result<FileType> {
        Ok(FileType::from_raw_mode(fstat(&self.0)?.st_mode))
    }

    /// A path that leads to it as long as this is kept, also to a symbolic link itself.
    pub(super) fn path(&self) -> PathBuf {
        path_of(&self.0)
    }

    /// Opens what is a regular file or a directory.
    pub(super) fn open(&self, flags: OFlags) -> io::Result<File> {
        Ok(open(self.path(), flags | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}

/// Opens a directory, to look up names in it. Symbolic links are not followed.
fn open_dir(dir: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    Ok(openat2(dir, path, flags, Mode::empty(), resolve)?)
}

fn path_of(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
