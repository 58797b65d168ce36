//! The space that files take, and how much of it they share: what `btrfs filesystem du` counts.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_vfs::writing::RangeSet;
use platter_vfs::{ExtentSink, FileKind, InodeId, Place, TreeWalk, Visited, WalkEvent, WalkOrder};

use crate::volume::place::join;
use crate::{Error, File, Result};

/// Space that contents take. A compressed extent counts with the bytes that it stands for; contents inside metadata
/// do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Bytes of data, counted as often as files refer to them.
    pub total_bytes: u64,
    /// Bytes of data that the whole filesystem refers to once.
    pub exclusive_bytes: u64,
}

/// A file and the space of its contents, or a directory and that of all files below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The path of the file.
    pub path: Vec<u8>,
    /// The type of the file.
    pub kind: FileKind,
    /// The space.
    pub space: Space,
    /// Bytes of data that the file refers to and that are referred to more than once: below a directory each byte counted once, of a file as
    /// often as it refers to it. Only of the file that was asked for, not of those below it.
    pub set_shared_bytes: Option<u64>,
}

/// The usage of a file and all below it, what is in a directory before the directory itself; see [`File::usage`].
pub struct Usages {
    top: File,
    walk: TreeWalk,
    /// Files with several names, which count once.
    linked: HashSet<InodeId>,
    counter: UsageCounter,
}

/// Counts the space of a file and all below it, which are passed on in the order of a walk.
#[derive(Debug, Default)]
pub struct UsageCounter {
    /// The space below each directory that the walk is in.
    levels: Vec<Space>,
    shared: SharedSpace,
    shared_bytes: u64,
}

/// Space that is referred to more than once, by the member that it lies on.
#[derive(Debug, Default)]
struct SharedSpace(BTreeMap<u16, RangeSet<u64>>);

impl SharedSpace {
    /// Adds a range. Returns how many bytes of it were not there.
    fn insert(&mut self, Place { member, offset }: Place, len_bytes: u64) -> u64 {
        let range = offset..offset.saturating_add(len_bytes);
        self.0.entry(member).or_default().insert(range)
    }

    /// Adds all of another one. Returns how many bytes of it were not there.
    fn merge(&mut self, other: &Self) -> u64 {
        let mut new_bytes = 0;
        for (&member, ranges) in &other.0 {
            for range in ranges.within(0..u64::MAX) {
                let place = Place {
                    member,
                    offset: range.start,
                };
                new_bytes += self.insert(place, range.end - range.start);
            }
        }
        new_bytes
    }
}

impl File {
    /// The space that it takes, and if it is a directory, that of all directories and regular files below. What
    /// cannot be read is an error, and the rest follows.
    #[must_use]
    pub fn usage(&self) -> Usages {
        let fs = Arc::clone(self.volume().filesystem());
        Usages {
            top: self.clone(),
            walk: TreeWalk::new(fs, Arc::clone(self.inode()), WalkOrder::Name),
            linked: HashSet::new(),
            counter: UsageCounter::default(),
        }
    }
}

impl Usages {
    fn path_of(&self, below: &[u8]) -> Vec<u8> {
        match below {
            b"" => self.top.path().to_vec(),
            below => join(self.top.path(), below),
        }
    }

    fn error(&self, below: &[u8], error: platter_vfs::Error) -> Error {
        Error::at_path(self.top.volume().name(), &self.path_of(below), error)
    }

    fn visit(&mut self, visited: &Visited) -> Option<Result<Usage>> {
        let (inode, kind) = (&visited.inode, visited.attr.kind);
        let is_counted = match kind {
            FileKind::Directory => {
                self.counter.enter_directory();
                return None;
            }
            FileKind::Regular => visited.attr.links < 2 || self.linked.insert(inode.id()),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => visited.path.is_empty(),
        };
        if !is_counted {
            return None;
        }
        let path = self.path_of(&visited.path);
        let counted = self.counter.count(path, kind, |sink| {
            if kind == FileKind::Regular {
                inode.extents(0..u64::MAX, sink)
            } else {
                Ok(())
            }
        });
        Some(counted.map_err(|error| self.error(&visited.path, error)))
    }
}

impl UsageCounter {
    /// What follows is in a directory, until that is left.
    pub fn enter_directory(&mut self) {
        self.levels.push(Space::default());
    }

    /// Returns the usage of the directory that was entered last.
    pub fn leave_directory(&mut self, path: Vec<u8>) -> Usage {
        let space = self.levels.pop().unwrap_or_default();
        self.usage(path, FileKind::Directory, space)
    }

    /// Counts a file that is no directory. `list` passes its extents on; nothing of a file counts for which that fails.
    pub fn count<E>(
        &mut self,
        path: Vec<u8>,
        kind: FileKind,
        list: impl FnOnce(&mut ExtentSink<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Usage, E> {
        let mut space = Space::default();
        let mut shared = SharedSpace::default();
        list(&mut |extent| {
            if extent.inline || extent.delayed {
                return ControlFlow::Continue(());
            }
            let len_bytes = extent.file.end - extent.file.start;
            space.total_bytes = space.total_bytes.saturating_add(len_bytes);
            match extent.physical {
                Some(place) if extent.shared => {
                    shared.insert(place, len_bytes);
                }
                _ => space.exclusive_bytes = space.exclusive_bytes.saturating_add(len_bytes),
            }
            ControlFlow::Continue(())
        })?;
        self.shared_bytes += self.shared.merge(&shared);
        Ok(self.usage(path, kind, space))
    }

    /// The usage of a file, whose space counts for the directory that it is in.
    fn usage(&mut self, path: Vec<u8>, kind: FileKind, space: Space) -> Usage {
        let is_top = self.levels.is_empty();
        if let Some(above) = self.levels.last_mut() {
            above.total_bytes = above.total_bytes.saturating_add(space.total_bytes);
            above.exclusive_bytes = above.exclusive_bytes.saturating_add(space.exclusive_bytes);
        }
        let set_shared_bytes = if kind == FileKind::Directory {
            self.shared_bytes
        } else {
            space.total_bytes - space.exclusive_bytes
        };
        Usage {
            path,
            kind,
            space,
            set_shared_bytes: is_top.then_some(set_shared_bytes),
        }
    }
}

impl Iterator for Usages {
    type Item = Result<Usage>;

    fn next(&mut self) -> Option<Result<Usage>> {
        loop {
            match self.walk.next()? {
                WalkEvent::Visit(visited) => {
                    if let Some(found) = self.visit(&visited) {
                        return Some(found);
                    }
                }
                WalkEvent::Leave(visited) => {
                    let path = self.path_of(&visited.path);
                    return Some(Ok(self.counter.leave_directory(path)));
                }
                WalkEvent::Failed { path, error } => return Some(Err(self.error(&path, error))),
            }
        }
    }
}

impl fmt::Debug for Usages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Usages")
            .field("top", &self.top)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_of_each_member_counts_once() {
        let place = |member, offset| Place { member, offset };
        let mut first = SharedSpace::default();
        assert_eq!(first.insert(place(0, 4096), 8192), 8192);
        assert_eq!(first.insert(place(1, 4096), 8192), 8192);
        assert_eq!(first.insert(place(1, 8192), 8192), 4096);
        let mut all = SharedSpace::default();
        all.insert(place(0, 0), 8192);
        assert_eq!(all.merge(&first), 4096 + 12_288);
        assert_eq!(all.merge(&first), 0);
    }
}
