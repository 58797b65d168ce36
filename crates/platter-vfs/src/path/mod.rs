//! Finding the file that a path names: POSIX path resolution inside one filesystem.
//!
//! The walk never leaves the filesystem. Absolute symbolic links and `..` at the root resolve to its
//! own root, and `..` goes back to where the walk came from, so a corrupt `..` entry has no effect.

mod components;

use std::sync::Arc;

use self::components::{Component, Components};
use crate::dentry::{DentryCache, Recall, Remembered};
use crate::permission::{Access, check_access};
use crate::{
    Attr, Condition, Credentials, Error, FileKind, Filesystem, Inode, Name, NameBuf, Result,
};

/// The longest path or link target in bytes, a closing NUL included (`PATH_MAX`).
pub const PATH_MAX: usize = 4096;

/// How many symbolic links one walk follows, as in Linux.
pub const LINKS_FOLLOWED_MAX: usize = 40;

/// `FS_CASEFOLD_FL`: names in the directory are equal when they differ in case only.
const CASEFOLD: u32 = 0x4000_0000;

/// A way to resolve paths of one filesystem.
#[derive(Debug, Clone, Copy)]
pub struct PathWalk<'a> {
    fs: &'a dyn Filesystem,
    dentries: Option<&'a DentryCache>,
    credentials: Option<&'a Credentials>,
    path_len_max: usize,
}

/// What a path names, seen from the directory that holds it.
#[derive(Debug, Clone)]
pub struct Located {
    /// The directory.
    pub parent: Arc<dyn Inode>,
    /// The last component.
    pub last: LastComponent,
    /// Slashes follow the last component, so it can only be a directory.
    pub trailing_slash: bool,
}

/// The last component of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastComponent {
    /// A name.
    Name(NameBuf),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// There is none: the path is `/`.
    Root,
}

/// How far a walk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// To the file itself, or the target of the link it is.
    Follow,
    /// To the file itself, be it a link.
    NoFollow,
    /// To the directory that holds the last component.
    Parent,
}

impl<'a> PathWalk<'a> {
    /// Walks in `fs`, without permission checks.
    #[must_use]
    pub fn new(fs: &'a dyn Filesystem) -> Self {
        Self {
            fs,
            dentries: None,
            credentials: None,
            path_len_max: PATH_MAX - 1,
        }
    }

    /// Caches names in `dentries`, which must be notified of every change.
    #[must_use]
    pub fn with_dentries(mut self, dentries: &'a DentryCache) -> Self {
        self.dentries = Some(dentries);
        self
    }

    /// Walks only through directories that `credentials` may search.
    #[must_use]
    pub fn acting_as(mut self, credentials: &'a Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Takes paths of any length. Names and link targets stay bounded.
    #[must_use]
    pub fn with_long_paths(mut self) -> Self {
        self.path_len_max = usize::MAX;
        self
    }

    /// The file `path` names, from the root of the filesystem; a symbolic link at its end is
    /// followed.
    ///
    /// # Errors
    /// `NotFound` also for an empty path; `NotDirectory` where a component or a slash at the end
    /// asks for a directory; `TooManyLinksFollowed` after [`LINKS_FOLLOWED_MAX`] links;
    /// `NameTooLong` for a component, link target or path that is too long; `InvalidArgument` for
    /// a NUL in it; `AccessDenied` for a directory that may not be searched.
    pub fn resolve(&self, path: &[u8]) -> Result<Arc<dyn Inode>> {
        self.walk(path, Goal::Follow).map(Walked::into_file)
    }

    /// As [`resolve`](Self::resolve), but a symbolic link at the end is itself the answer, unless a
    /// slash follows it.
    pub fn resolve_no_follow(&self, path: &[u8]) -> Result<Arc<dyn Inode>> {
        self.walk(path, Goal::NoFollow).map(Walked::into_file)
    }

    /// The directory in which the last component of `path` is to be looked up, made or removed.
    /// The last component itself is not looked at.
    pub fn resolve_parent(&self, path: &[u8]) -> Result<Located> {
        let walked = self.walk(path, Goal::Parent)?;
        let parent = walked.dirs.into_last();
        let (last, trailing_slash) = walked.last;
        Ok(Located {
            parent,
            last,
            trailing_slash,
        })
    }

    fn walk(&self, path: &[u8], goal: Goal) -> Result<Walked> {
        if path.is_empty() {
            return Err(Condition::NotFound.into());
        }
        if path.len() > self.path_len_max {
            return Err(Condition::NameTooLong.into());
        }
        let mut components = Components::new(path);
        let mut walked = Walked {
            dirs: DirStack::new(self.root()?),
            file: None,
            last: (LastComponent::Root, true),
        };
        let mut links_followed = 0;
        while let Some(step) = components.next() {
            self.may_search(walked.dirs.last())?;
            if step.is_last && goal == Goal::Parent {
                walked.last = (step.component.to_last()?, step.trailing_slash);
                break;
            }
            let name = match step.component {
                Component::Dot => continue,
                Component::DotDot => {
                    walked.dirs.pop();
                    continue;
                }
                Component::Name(name) => Name::new(name)?,
            };
            let inode = self.child(walked.dirs.last(), name)?;
            let attr = inode.attr()?;
            let ends_here = step.is_last && !step.trailing_slash;
            if attr.kind == FileKind::Directory {
                walked.dirs.push(Dir { inode, attr });
            } else if attr.kind == FileKind::Symlink && !(ends_here && goal == Goal::NoFollow) {
                links_followed += 1;
                if links_followed > LINKS_FOLLOWED_MAX {
                    return Err(Condition::TooManyLinksFollowed.into());
                }
                let target = link_target(&*inode)?;
                if target.starts_with(b"/") {
                    walked.dirs.truncate_to_root();
                }
                components.follow(target);
            } else if ends_here {
                walked.file = Some(inode);
            } else {
                return Err(Condition::NotDirectory.into());
            }
        }
        Ok(walked)
    }

    fn root(&self) -> Result<Dir> {
        let inode = self.fs.root()?;
        let attr = inode.attr()?;
        if attr.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        Ok(Dir { inode, attr })
    }

    fn may_search(&self, dir: &Dir) -> Result<()> {
        self.credentials.map_or(Ok(()), |credentials| {
            check_access(&*dir.inode, &dir.attr, credentials, Access::EXECUTE)
        })
    }

    /// The file that `name` names, out of memory where it is remembered.
    fn child(&self, dir: &Dir, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        // Where names fold, several name one file, and a change of one changes the others.
        let dentries = self.dentries.filter(|_| dir.attr.flags & CASEFOLD == 0);
        let Some(dentries) = dentries else {
            return dir.inode.lookup(name);
        };
        let id = dir.inode.id();
        let ticket = match dentries.recall(id, name) {
            Recall::Known(Remembered::Missing) => return Err(Condition::NotFound.into()),
            Recall::Known(Remembered::File(file)) => {
                let inode = self.fs.inode(file);
                // The name may have gone in between, and the number to another file.
                if inode.is_ok() && dentries.recalls(id, name, file) {
                    return inode;
                }
                return dir.inode.lookup(name);
            }
            Recall::Unknown(ticket) => ticket,
        };
        let found = dir.inode.lookup(name);
        match &found {
            Ok(file) => dentries.remember(&ticket, id, name, Remembered::File(file.id())),
            Err(Error::Condition(Condition::NotFound)) => {
                dentries.remember(&ticket, id, name, Remembered::Missing);
            }
            Err(_) => {}
        }
        found
    }
}

/// The target of a link, if it can be a path at all.
fn link_target(link: &dyn Inode) -> Result<Vec<u8>> {
    let target = link.read_link()?;
    if target.is_empty() {
        return Err(Condition::NotFound.into());
    }
    if target.len() >= PATH_MAX {
        return Err(Condition::NameTooLong.into());
    }
    Ok(target)
}

/// Where a walk ended.
struct Walked {
    dirs: DirStack,
    /// The file, where it is no directory.
    file: Option<Arc<dyn Inode>>,
    last: (LastComponent, bool),
}

impl Walked {
    fn into_file(self) -> Arc<dyn Inode> {
        self.file.unwrap_or_else(|| self.dirs.into_last())
    }
}

/// A directory of a walk.
struct Dir {
    inode: Arc<dyn Inode>,
    attr: Attr,
}

/// The directories from the root to where the walk stands.
struct DirStack {
    root: Dir,
    below: Vec<Dir>,
}

impl DirStack {
    fn new(root: Dir) -> Self {
        let below = Vec::new();
        Self { root, below }
    }

    fn last(&self) -> &Dir {
        self.below.last().unwrap_or(&self.root)
    }

    fn into_last(mut self) -> Arc<dyn Inode> {
        self.below.pop().unwrap_or(self.root).inode
    }

    fn push(&mut self, dir: Dir) {
        self.below.push(dir);
    }

    /// Goes up; above the root is the root.
    fn pop(&mut self) {
        self.below.pop();
    }

    fn truncate_to_root(&mut self) {
        self.below.clear();
    }
}

impl Located {
    /// The name under which a file is to be made here.
    ///
    /// # Errors
    /// `Exists` where the path can only name a directory that is there already.
    pub fn name_to_create(&self) -> Result<Name<'_>> {
        self.name_or(Condition::Exists)
    }

    /// The name to remove a directory by.
    ///
    /// # Errors
    /// `InvalidArgument` for `.`, `NotEmpty` for `..` and `Busy` for the root, as `rmdir(2)`.
    pub fn name_to_remove_dir(&self) -> Result<Name<'_>> {
        self.name_or(match self.last {
            LastComponent::Dot => Condition::InvalidArgument,
            LastComponent::DotDot => Condition::NotEmpty,
            LastComponent::Name(_) | LastComponent::Root => Condition::Busy,
        })
    }

    /// The name to unlink a file by.
    ///
    /// # Errors
    /// `IsDirectory` for `.`, `..` and the root, as `unlink(2)`.
    pub fn name_to_unlink(&self) -> Result<Name<'_>> {
        self.name_or(Condition::IsDirectory)
    }

    /// The name to rename from or to.
    ///
    /// # Errors
    /// `Busy` for `.`, `..` and the root, as `rename(2)`.
    pub fn name_to_rename(&self) -> Result<Name<'_>> {
        self.name_or(Condition::Busy)
    }

    fn name_or(&self, otherwise: Condition) -> Result<Name<'_>> {
        match &self.last {
            LastComponent::Name(name) => Ok(name.as_name()),
            LastComponent::Dot | LastComponent::DotDot | LastComponent::Root => {
                Err(otherwise.into())
            }
        }
    }
}
