//! A cache of a file's recent runs, so that adjacent reads need no tree lookup.

use platter_block::lock::Mutex;

use super::{Backing, Run};
use crate::ondisk::{BlockNr, FileBlock};

/// Number of runs cached for each file.
const RUNS_MAX: usize = 8;

/// A small cache, the oldest run replaced first. It is allocated on first use, since most inodes in
/// memory are never read.
#[derive(Debug, Default)]
pub(super) struct RecentRuns {
    /// Mappings that were looked up last.
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
    /// Returns the cached run that contains `block`.
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
