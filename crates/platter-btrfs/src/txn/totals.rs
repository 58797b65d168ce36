//! What the commits of a mount came to.

use super::CommitReport;
use crate::block_group::BlockGroupCounters;
use crate::delayed_refs::DelayedRefCounters;

/// What the commits since the mount did, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitTotals {
    /// How many there were.
    pub commits: u64,
    /// The updates of block groups.
    pub groups: BlockGroupCounters,
    /// Heads that were run.
    pub heads_run: u64,
    /// Tree blocks that were written.
    pub blocks_written: u64,
    /// Requests that they took, copies not counted.
    pub requests: u64,
    /// The time when no handle could begin.
    pub critical_nanoseconds: u64,
    /// The time that they took after that.
    pub unblocked_nanoseconds: u64,
    /// The time that the longest one took.
    pub longest_nanoseconds: u64,
    /// What was queued and run.
    pub references: DelayedRefCounters,
    /// Leaves of the extent tree that were searched from its root, to be changed.
    pub extent_searches: u64,
    /// Tree blocks that were copied.
    pub blocks_copied: u64,
}

impl CommitTotals {
    pub(super) fn add(&mut self, report: &CommitReport) {
        self.commits += 1;
        self.groups += report.groups_before;
        self.groups += report.groups;
        self.heads_run += report.heads_run;
        self.blocks_written += report.blocks_written;
        self.requests += report.requests;
        self.critical_nanoseconds += report.critical_nanoseconds;
        self.unblocked_nanoseconds += report.unblocked_nanoseconds;
        let took = report.critical_nanoseconds + report.unblocked_nanoseconds;
        self.longest_nanoseconds = self.longest_nanoseconds.max(took);
        self.references = self.references.plus(&report.references);
        self.extent_searches += report.extent_searches;
        self.blocks_copied += report.blocks_copied;
    }

    /// The counts with their names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 24] {
        let Self {
            groups, references, ..
        } = self;
        [
            ("commits", self.commits),
            ("groups_dirty", groups.dirty),
            ("groups_skipped", groups.skipped),
            ("groups_written", groups.written),
            ("groups_inserted", groups.inserted),
            ("groups_rounds", groups.rounds),
            ("groups_blocks_copied", groups.blocks_copied),
            ("groups_refs_created", groups.refs_created),
            ("groups_nanoseconds", groups.nanoseconds),
            ("heads_inserted", references.heads),
            ("heads_merged", references.merged_heads),
            ("heads_run", self.heads_run),
            ("heads_forgotten", references.forgotten),
            ("refs_created", references.refs),
            ("refs_merged", references.merged_refs),
            ("refs_cancelled", references.cancelled),
            ("refs_run", references.run),
            ("extent_searches", self.extent_searches),
            ("blocks_copied", self.blocks_copied),
            ("blocks_written", self.blocks_written),
            ("block_writes", self.requests),
            ("critical_nanoseconds", self.critical_nanoseconds),
            ("unblocked_nanoseconds", self.unblocked_nanoseconds),
            ("longest_nanoseconds", self.longest_nanoseconds),
        ]
    }
}
