//! The suites, each on a newly made filesystem through the mount.

mod pjdfstest;
mod fsx;
mod dbench;
mod fio;
mod build;
mod kill;

use anyhow::Result;

use super::cells::Cell;
use super::stage::Stage;

/// One suite.
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Whether its promise needs a journal.
    needs_journal: bool,
    /// Runs it; leaves nothing mounted. The number is that of seeds. Gives what was done.
    pub(super) run: fn(&Stage, u64) -> Result<String>,
}

impl Suite {
    /// Whether the suite is run on a cell.
    pub(super) fn fits(&self, cell: &Cell) -> bool {
        !self.needs_journal || cell.generation() != "ext2"
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
        name: "kill",
        needs_journal: true,
        run: kill::kill,
    },
];

const fn on_all(name: &'static str, run: fn(&Stage, u64) -> Result<String>) -> Suite {
    Suite {
        name,
        needs_journal: false,
        run,
    }
}
