//! A walk over files of a mount, by their names.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use platter_fuse::Control;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use super::mounted::{named, parent};

/// A file that was found.
#[derive(Debug, Clone)]
pub(super) struct MountFile {
    /// Where, without symbolic links.
    pub(super) path: PathBuf,
    pub(super) found: Metadata,
}

/// What a walk comes upon.
#[derive(Debug)]
pub(super) enum MountEvent {
    /// A file; a directory comes before what is in it.
    Visit(MountFile),
    /// All of a directory was visited.
    Leave(PathBuf),
    /// Something could not be read. The walk goes on with what comes after it.
    Failed { path: PathBuf, error: io::Error },
}

/// Walks an operand and all below it by name, but not what is mounted there. What is removed meanwhile is left out.
#[derive(Debug)]
pub(super) struct MountWalk {
    /// The operand.
    given: PathBuf,
    /// What it names, and where that is.
    top: MountFile,
    /// What comes later, in the reverse order.
    waiting: Vec<Step>,
    /// The directory that was visited last: what is in it comes next.
    entered: Option<MountFile>,
}

#[derive(Debug)]
enum Step {
    Look(PathBuf),
    Leave(PathBuf),
}

impl MountWalk {
    /// A walk that begins with an operand, which may be a symbolic link; those below it are not followed.
    pub(super) fn new(given: &Path) -> io::Result<Self> {
        let path = given.canonicalize()?;
        let found = path.metadata()?;
        Ok(Self {
            given: given.to_owned(),
            waiting: vec![Step::Look(path.clone())],
            top: MountFile { path, found },
            entered: None,
        })
    }

    /// What the operand names.
    pub(super) fn top(&self) -> &Metadata {
        &self.top.found
    }

    /// A directory to ask the filesystem by.
    pub(super) fn control(&self) -> io::Result<Control> {
        let top = &self.top;
        Control::open(if top.found.is_dir() {
            &top.path
        } else {
            parent(&top.path)
        })
    }

    /// A path as it is below the operand.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.top.path) {
            Ok(below) if !below.as_os_str().is_empty() => self.given.join(below),
            _ => self.given.clone(),
        }
    }

    /// An error of a file that was found.
    pub(super) fn named(&self, path: &Path, error: &io::Error) -> platter::Error {
        named(&self.shown(path), error)
    }

    /// Skips the contents of the directory visited last. Its `Leave` event is omitted, too.
    pub(super) fn skip_contents(&mut self) {
        self.entered = None;
    }

    /// Looks up what comes next. `None` for what is gone, or elsewhere.
    fn look(&self, path: PathBuf) -> Option<MountEvent> {
        match path.symlink_metadata() {
            Ok(found) if found.dev() != self.top.found.dev() => None,
            Ok(found) => Some(MountEvent::Visit(MountFile { path, found })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(MountEvent::Failed { path, error }),
        }
    }
}

impl Iterator for MountWalk {
    type Item = MountEvent;

    fn next(&mut self) -> Option<MountEvent> {
        if let Some(dir) = self.entered.take() {
            self.waiting.push(Step::Leave(dir.path.clone()));
            match dir.names() {
                Ok(names) => self.waiting.extend(names.into_iter().map(Step::Look)),
                Err(error) => {
                    let path = dir.path;
                    return Some(MountEvent::Failed { path, error });
                }
            }
        }
        loop {
            match self.waiting.pop()? {
                Step::Leave(dir) => return Some(MountEvent::Leave(dir)),
                Step::Look(path) => {
                    let Some(event) = self.look(path) else {
                        continue;
                    };
                    if let MountEvent::Visit(file) = &event
                        && file.found.is_dir()
                    {
                        self.entered = Some(file.clone());
                    }
                    return Some(event);
                }
            }
        }
    }
}

impl MountFile {
    /// Opens it for reading, and leaves its time of access as it is. `None` if something else has the name now, which
    /// is not waited for, as a FIFO would be.
    pub(super) fn open(&self, flags: OFlags) -> io::Result<Option<File>> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::open(&self.path, flags, Mode::empty());
        let opened = match open(flags | OFlags::NOATIME) {
            // Of files of others.
            Err(Errno::PERM) => open(flags),
            opened => opened,
        };
        let file = match opened {
            Ok(file) => File::from(file),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let now = file.metadata()?;
        let is_same = (now.dev(), now.ino()) == (self.found.dev(), self.found.ino());
        Ok(is_same.then_some(file))
    }

    /// The paths in a directory, the last name first.
    fn names(&self) -> io::Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        let Some(dir) = self.open(OFlags::DIRECTORY)? else {
            return Ok(names);
        };
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(self.path.join(OsStr::from_bytes(name)));
            }
        }
        names.sort_unstable_by(|one, other| other.cmp(one));
        Ok(names)
    }
}
