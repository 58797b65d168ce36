//! The entries of one directory, read in runs of bounded size.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::vec::IntoIter;

use super::WalkOrder;
use crate::inode::OwnedDirEntry;
use crate::{DirCursor, Error, Inode, Result};

/// What one listed entry costs besides its name, in bytes.
const ENTRY_BYTES: usize = size_of::<OwnedDirEntry>();

/// The least a directory lists at once, in bytes, so that deep walks get on.
const RUN_BYTES_MIN: usize = 4096;

/// A directory being listed, run by run, with a bounded number of entries in memory.
///
/// It gives all entries but `.` and `..`; where the listing breaks off, the error comes after all
/// entries before it, and ends it.
pub struct DirListing {
    dir: Arc<dyn Inode>,
    order: WalkOrder,
    share_bytes: usize,
    run: IntoIter<OwnedDirEntry>,
    after_run: AfterRun,
}

/// What comes after the entries in memory.
enum AfterRun {
    More(DirCursor),
    Failed(Error),
    End,
}

impl DirListing {
    /// Lists `dir` in `order`, with entries of about `share_bytes` in memory at once.
    #[must_use]
    pub fn new(dir: Arc<dyn Inode>, share_bytes: usize, order: WalkOrder) -> Self {
        Self {
            dir,
            order,
            share_bytes,
            run: Vec::new().into_iter(),
            after_run: AfterRun::More(DirCursor::START),
        }
    }

    /// The memory it was given.
    #[must_use]
    pub fn share_bytes(&self) -> usize {
        self.share_bytes
    }

    fn list(&mut self, from: DirCursor) {
        let (mut entries, mut listed_bytes) = (Vec::new(), 0);
        let bytes_max = self.share_bytes.max(RUN_BYTES_MIN);
        let listing = self.dir.read_dir(from, &mut |entry| {
            if entry.name.is_dot_or_dotdot() {
                return ControlFlow::Continue(());
            }
            listed_bytes += ENTRY_BYTES + entry.name.len();
            entries.push(OwnedDirEntry {
                name: entry.name.to_owned(),
                id: entry.id,
                kind: entry.kind,
            });
            if listed_bytes < bytes_max {
                return ControlFlow::Continue(());
            }
            if entry.next != from {
                self.after_run = AfterRun::More(entry.next);
            }
            ControlFlow::Break(())
        });
        if let Err(error) = listing {
            self.after_run = AfterRun::Failed(error);
        }
        if self.order == WalkOrder::Name {
            entries.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        }
        self.run = entries.into_iter();
    }
}

impl Iterator for DirListing {
    type Item = Result<OwnedDirEntry>;

    fn next(&mut self) -> Option<Result<OwnedDirEntry>> {
        loop {
            if let Some(entry) = self.run.next() {
                return Some(Ok(entry));
            }
            match std::mem::replace(&mut self.after_run, AfterRun::End) {
                AfterRun::More(from) => self.list(from),
                AfterRun::Failed(error) => return Some(Err(error)),
                AfterRun::End => return None,
            }
        }
    }
}

impl fmt::Debug for DirListing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DirListing")
            .field("dir", &self.dir.id())
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}
