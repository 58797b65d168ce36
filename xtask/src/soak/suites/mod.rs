//! The suites, each on a newly made filesystem through the mount.

mod pjdfstest;
mod fsx;
mod dbench;
mod fio;
mod build;
mod kill;
mod unmount;

use std::ops::Range;
use std::time::Duration;

use anyhow::Result;

use super::cells::Cell;
use super::stage::Stage;

/// How much is run.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) seeds: Range<u64>,
    /// Where it is set, seeds from the first on until so much time has passed.
    pub(super) time: Option<Duration>,
}

/// What was done.
#[derive(Debug)]
pub(super) struct Done {
    /// In words.
    pub(super) text: String,
    /// In numbers.
    pub(super) counts: Vec<(&'static str, u64)>,
}

impl Done {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            counts: Vec::new(),
        }
    }

    fn count(mut self, name: &'static str, count: u64) -> Self {
        self.counts.push((name, count));
        self
    }
}

type Run = fn(&Stage, &Load) -> Result<Done>;

/// One suite.
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Whether what it demands needs a journal.
    needs_journal: bool,
    /// Whether it looks at copies of the first image alone.
    needs_one_image: bool,
    /// Runs it; leaves nothing mounted.
    pub(super) run: Run,
}

impl Suite {
    /// Whether the suite is run on a cell.
    pub(super) fn fits(&self, cell: &Cell) -> bool {
        let has_journal = cell.generation() != "ext2";
        (!self.needs_journal || has_journal) && (!self.needs_one_image || cell.devices == 1)
    }
}

/// All of them.
pub(super) const SUITES: &[Suite] = &[
    on_all("pjdfstest", pjdfstest::pjdfstest),
    on_all("fsx", fsx::fsx),
    on_all("dbench", dbench::dbench),
    on_all("fio", fio::fio),
    on_all("build", build::build),
    Suite {
        needs_one_image: true,
        ..on_all("unmount", unmount::unmount)
    },
    Suite {
        needs_journal: true,
        ..on_all("kill", kill::kill)
    },
];

const fn on_all(name: &'static str, run: Run) -> Suite {
    Suite {
        name,
        needs_journal: false,
        needs_one_image: false,
        run,
    }
}
