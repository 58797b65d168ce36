//! The runs of a file that were found last, so that neighbouring reads need no descent.

use parking_lot::Mutex;

use super::{Backing, Run};
use crate::ondisk::{BlockNr, FileBlock};

/// How many runs are kept for each file.
const RUNS_MAX: usize = 8;

/// A few runs, the oldest replaced first. Most inodes in memory are looked at and never read: they
/// have no place for runs.
#[derive(Debug, Default)]
pub(super) struct RecentRuns {
    slots: Mutex<Option<Box<Slots>>>,
}

#[derive(Debug)]
struct Slots {
    runs: [Run; RUNS_MAX],
    next: usize,
}

impl Default for Slots {
    fn default() -> Self {
        let empty = Run {
            first: FileBlock(0),
            count: 0,
            backing: Backing::Written(BlockNr(0)),
        };
        Self {
            runs: [empty; RUNS_MAX],
            next: 0,
        }
    }
}

impl RecentRuns {
    /// The run that holds `block`, whole.
    pub(super) fn find(&self, block: FileBlock) -> Option<Run> {
        let slots = self.slots.lock();
        let slots = slots.as_deref()?;
        let holds = |run: &&Run| block.0.wrapping_sub(run.first.0) < run.count;
        slots.runs.iter().find(holds).copied()
    }

    pub(super) fn insert(&self, run: Run) {
        let mut slots = self.slots.lock();
        let slots = slots.get_or_insert_default();
        let at = slots.next;
        slots.runs[at] = run;
        slots.next = (at + 1) % RUNS_MAX;
    }
}
