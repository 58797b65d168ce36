//! A walk over everything below a file, which goes on after errors and ends on any image.

mod listing;
mod read_ahead;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use hashbrown::HashSet;
use platter_ondisk::{Corruption, Locus};

pub use self::listing::DirListing;
pub use self::read_ahead::{DirReadAhead, ListingOrder};
use crate::{Attr, Condition, Error, FileKind, Filesystem, Inode, InodeId};

/// How deep a walk goes below its start by default.
pub const DEPTH_MAX: usize = 4096;

/// The entries a walk holds in memory at once, over all directories it is in, in bytes. The share
/// of one directory is half of what those above it leave.
const LISTED_BYTES_MAX: usize = 32 << 20;

/// Order in which a walk visits the entries of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WalkOrder {
    /// As the driver lists them, which costs the fewest reads.
    #[default]
    Driver,
    /// By name, as bytes. A directory too large to hold comes in several runs, each ordered; where
    /// one ends is the same each time.
    Name,
}

/// What a walk comes upon.
#[derive(Debug)]
pub enum WalkEvent {
    /// A file; a directory comes before what is in it.
    Visit(Visited),
    /// All of a directory was visited.
    Leave(Visited),
    /// Something could not be read. The walk goes on with what comes after it.
    Failed {
        /// The file, or the directory whose listing broke off, relative to the start.
        path: Vec<u8>,
        /// Why.
        error: Error,
    },
}

/// A file on a walk.
#[derive(Debug, Clone)]
pub struct Visited {
    /// Its path relative to the start, which itself has the empty path.
    pub path: Vec<u8>,
    /// The file.
    pub inode: Arc<dyn Inode>,
    /// Its attributes.
    pub attr: Attr,
}

/// Walks a tree of files, parents first.
///
/// Memory is bounded, and so is time: a directory is entered once, whatever names lead to it, so
/// that neither loops nor doubled links in a corrupt image make a walk longer than the image.
pub struct TreeWalk {
    fs: Arc<dyn Filesystem>,
    order: WalkOrder,
    depth_max: usize,
    /// The directories from the start to where the walk is.
    levels: Vec<Level>,
    path: Vec<u8>,
    entered: HashSet<InodeId>,
    listed_bytes_left: usize,
    next: Next,
}

/// A directory the walk is in.
struct Level {
    inode: Arc<dyn Inode>,
    attr: Attr,
    /// How much of the walk's path is its own.
    path_len: usize,
    listing: DirListing,
}

enum Next {
    Start(Arc<dyn Inode>),
    /// Go into the directory that was just visited.
    Enter(Arc<dyn Inode>, Attr),
    GoOn,
}

impl TreeWalk {
    /// A walk over `start` and all below it.
    #[must_use]
    pub fn new(fs: Arc<dyn Filesystem>, start: Arc<dyn Inode>, order: WalkOrder) -> Self {
        Self {
            fs,
            order,
            depth_max: DEPTH_MAX,
            levels: Vec::new(),
            path: Vec::new(),
            entered: HashSet::new(),
            listed_bytes_left: LISTED_BYTES_MAX,
            next: Next::Start(start),
        }
    }

    /// Goes at most `depth_max` directories deep. What lies deeper is reported as failed.
    #[must_use]
    pub fn with_depth_max(mut self, depth_max: usize) -> Self {
        self.depth_max = depth_max;
        self
    }

    /// Skips the contents of the directory visited last. Its `Leave` event is omitted, too.
    pub fn skip_contents(&mut self) {
        if let Next::Enter(..) = self.next {
            self.next = Next::GoOn;
        }
    }

    /// How many directories deep the file visited last lies below the start.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    fn visit(&mut self, inode: Arc<dyn Inode>) -> WalkEvent {
        let attr = match inode.attr() {
            Ok(attr) => attr,
            Err(error) => return self.failed(error),
        };
        if attr.kind == FileKind::Directory {
            if self.levels.len() > self.depth_max {
                return self.failed(Condition::NameTooLong.into());
            }
            if !self.entered.insert(inode.id()) {
                return self.failed(second_name(inode.id()).into());
            }
        }
        if attr.kind == FileKind::Directory {
            self.next = Next::Enter(Arc::clone(&inode), attr.clone());
        }
        WalkEvent::Visit(Visited {
            path: self.path.clone(),
            inode,
            attr,
        })
    }

    fn failed(&self, error: Error) -> WalkEvent {
        WalkEvent::Failed {
            path: self.path.clone(),
            error,
        }
    }

    fn enter(&mut self, inode: Arc<dyn Inode>, attr: Attr) {
        let share = self.listed_bytes_left / 2;
        self.listed_bytes_left -= share;
        let listing = DirListing::new(Arc::clone(&inode), share, self.order);
        self.levels.push(Level {
            inode,
            attr,
            path_len: self.path.len(),
            listing,
        });
    }

    fn go_on(&mut self) -> Option<WalkEvent> {
        let level = self.levels.last_mut()?;
        self.path.truncate(level.path_len);
        match level.listing.next() {
            Some(Ok(entry)) => {
                if !self.path.is_empty() {
                    self.path.push(b'/');
                }
                self.path.extend_from_slice(&entry.name);
                Some(match self.fs.inode(entry.id) {
                    Ok(inode) => self.visit(inode),
                    Err(error) => self.failed(error),
                })
            }
            Some(Err(error)) => Some(self.failed(error)),
            None => self.leave(),
        }
    }

    fn leave(&mut self) -> Option<WalkEvent> {
        let level = self.levels.pop()?;
        self.listed_bytes_left += level.listing.share_bytes();
        Some(WalkEvent::Leave(Visited {
            path: self.path.clone(),
            inode: level.inode,
            attr: level.attr,
        }))
    }
}

/// The report of a directory that more than one entry names, which makes it a loop or shared.
#[must_use]
pub fn second_name(id: InodeId) -> Corruption {
    let locus = Locus::inode(id.number);
    Corruption::new("directory", locus, "more than one entry names it")
}

impl Iterator for TreeWalk {
    type Item = WalkEvent;

    fn next(&mut self) -> Option<WalkEvent> {
        match std::mem::replace(&mut self.next, Next::GoOn) {
            Next::Start(start) => return Some(self.visit(start)),
            Next::Enter(inode, attr) => self.enter(inode, attr),
            Next::GoOn => {}
        }
        self.go_on()
    }
}

impl fmt::Debug for TreeWalk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TreeWalk")
            .field("path", &self.path.escape_ascii().to_string())
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}
