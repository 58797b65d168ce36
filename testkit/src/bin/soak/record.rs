//! What a run came to, in a file for the program that started it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use testkit::crash::{Counts, FaultCounts};
use testkit::edits;

/// Counts by name, and failures. Written as JSON.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Record {
    counts: BTreeMap<String, u64>,
    failures: Vec<String>,
    /// Distinct states: a line with the filesystem's name and a fingerprint for each.
    #[serde(skip)]
    states: Vec<String>,
}

impl Record {
    /// Adds to a count.
    pub(crate) fn add(&mut self, name: impl Into<String>, count: u64) {
        *self.counts.entry(name.into()).or_default() += count;
    }

    /// Adds what another thread recorded.
    pub(crate) fn merge(&mut self, other: Self) {
        for (name, count) in other.counts {
            self.add(name, count);
        }
        self.failures.extend(other.failures);
        self.states.extend(other.states);
    }

    pub(crate) fn add_failure(&mut self, failure: String) {
        self.failures.push(failure);
    }

    /// Adds the states of a filesystem that were judged.
    pub(crate) fn add_states(&mut self, scene: &str, counts: &Counts) {
        self.add("workloads", counts.workloads as u64);
        self.add("operations", counts.operations as u64);
        self.add("states", counts.states as u64);
        self.add("again", counts.again as u64);
        self.add("by_fsck", counts.by_fsck as u64);
        self.add("by_kernel", counts.by_kernel as u64);
        self.add("recoveries", counts.recoveries as u64);
        for (kind, &count) in &counts.cuts {
            self.add(format!("cut_at_{}", kind.replace(' ', "_")), count as u64);
        }
        let contents = counts.contents.iter();
        self.states
            .extend(contents.map(|contents| format!("{scene} {contents:032x}")));
    }

    pub(crate) fn add_faults(&mut self, counts: &FaultCounts) {
        self.add("writes", counts.writes);
        self.add("flushes", counts.flushes);
        self.add("faults", counts.runs as u64);
        self.add("reported", counts.reported as u64);
    }

    pub(crate) fn add_edits(&mut self, counts: &edits::Counts) {
        self.add("made", u64::from(counts.made));
        self.add("refused", u64::from(counts.refused));
        let killed = counts.killed_before + counts.killed_after;
        self.add("killed", u64::from(killed));
    }

    /// Writes the record to `path`, and the states, if there are any, next to it.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let name = || path.display().to_string();
        if !self.states.is_empty() {
            let text = self.states.join("\n") + "\n";
            std::fs::write(path.with_extension("states"), text).with_context(name)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(self)?).with_context(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_states_lie_next_to_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("portion.json");
        let mut record = Record::default();
        for contents in [vec![1, 2], vec![0xab]] {
            let counts = Counts {
                states: contents.len(),
                by_kernel: 1,
                contents,
                ..Counts::default()
            };
            record.add_states("ext2", &counts);
        }
        let mut other = Record::default();
        other.add("by_kernel", 3);
        other.add_failure("a failure".to_owned());
        record.merge(other);
        record.write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["counts"]["states"], 3);
        assert_eq!(json["counts"]["by_kernel"], 5);
        assert_eq!(json["failures"][0], "a failure");
        let states = std::fs::read_to_string(dir.path().join("portion.states")).unwrap();
        assert_eq!(states.lines().count(), 3);
        assert!(states.ends_with("ext2 000000000000000000000000000000ab\n"));
    }
}
