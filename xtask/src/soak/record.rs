//! What portions came to, kept as they finish, so that a run that is killed goes on where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::plan::Step;

/// Counts by their names.
pub(super) type Counts = BTreeMap<String, u64>;

/// The count of distinct states, which no portion knows by itself.
pub(super) const DISTINCT: &str = "distinct states";

/// What one portion came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// The commit that was run.
    pub(super) commit: String,
    pub(super) seconds: f64,
    #[serde(default)]
    pub(super) counts: Counts,
    #[serde(default)]
    pub(super) failures: Vec<String>,
    /// What runs it again.
    pub(super) reproduce: String,
}

/// The outcomes of a step, by the names of its portions.
type Outcomes = BTreeMap<String, Outcome>;

/// The outcomes of all steps of a run.
#[derive(Debug)]
pub(super) struct Records {
    dir: PathBuf,
    steps: BTreeMap<String, Outcomes>,
}

impl Records {
    /// Reads what is in `dir`, of portions that are in the plan.
    pub(super) fn open(dir: &Path, plan: &[Step]) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut steps = BTreeMap::new();
        for step in plan {
            let path = dir.join(format!("{}.json", step.name));
            if !path.exists() {
                continue;
            }
            let name = || path.display().to_string();
            let text = std::fs::read_to_string(&path).with_context(name)?;
            let mut outcomes: Outcomes = serde_json::from_str(&text).with_context(name)?;
            outcomes.retain(|name, _| step.portions.iter().any(|portion| portion.name == *name));
            steps.insert(step.name.clone(), outcomes);
        }
        let dir = dir.to_owned();
        Ok(Self { dir, steps })
    }

    /// Forgets the portions that failed.
    pub(super) fn forget_failures(&mut self) {
        for outcomes in self.steps.values_mut() {
            outcomes.retain(|_, outcome| outcome.failures.is_empty());
        }
    }

    /// Keeps an outcome: once this returns, no kill loses it.
    pub(super) fn keep(&mut self, step: &str, portion: &str, outcome: Outcome) -> Result<()> {
        let outcomes = self.steps.entry(step.to_owned()).or_default();
        outcomes.insert(portion.to_owned(), outcome);
        let path = self.dir.join(format!("{step}.json"));
        let unfinished = path.with_extension("unfinished");
        let mut file = File::create(&unfinished)?;
        file.write_all(serde_json::to_string_pretty(outcomes)?.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&unfinished, &path).with_context(|| path.display().to_string())
    }

    pub(super) fn outcome(&self, step: &str, portion: &str) -> Option<&Outcome> {
        self.steps.get(step)?.get(portion)
    }

    /// The outcomes of a step.
    pub(super) fn of_step(&self, step: &str) -> impl Iterator<Item = (&str, &Outcome)> {
        let outcomes = self.steps.get(step).into_iter().flatten();
        outcomes.map(|(name, outcome)| (name.as_str(), outcome))
    }

    /// Seconds of a portion of the step, if one has run.
    pub(super) fn mean_seconds(&self, step: &str) -> Option<f64> {
        let seconds: Vec<f64> = self.of_step(step).map(|(_, it)| it.seconds).collect();
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let count = seconds.len() as f64;
        (count > 0.0).then(|| seconds.iter().sum::<f64>() / count)
    }

    /// The sum of a step's counts. Of states that several portions judged, each is counted once.
    pub(super) fn counts(&self, step: &str) -> Result<Counts> {
        let mut counts = Counts::new();
        let mut states = BTreeSet::new();
        for (portion, outcome) in self.of_step(step) {
            for (name, count) in &outcome.counts {
                *counts.entry(name.clone()).or_default() += count;
            }
            let path = self.states(step, portion);
            if path.exists() {
                let text = std::fs::read_to_string(&path)?;
                states.extend(text.lines().map(str::to_owned));
            }
        }
        if counts.contains_key("states") {
            counts.insert(DISTINCT.to_owned(), states.len() as u64);
        }
        Ok(counts)
    }

    /// Where a portion leaves its own record.
    pub(super) fn of_portion(&self, step: &str, portion: &str) -> PathBuf {
        self.dir.join(format!("{step}.portions/{portion}.json"))
    }

    /// Where a portion leaves the states that it judged.
    fn states(&self, step: &str, portion: &str) -> PathBuf {
        self.of_portion(step, portion).with_extension("states")
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::step;
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("xtask-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn outcome(states: u64, failures: &[&str]) -> Outcome {
        Outcome {
            commit: "abc".to_owned(),
            seconds: 3.0,
            counts: Counts::from([("states".to_owned(), states)]),
            failures: failures.iter().map(|&text| text.to_owned()).collect(),
            reproduce: "cargo".to_owned(),
        }
    }

    #[test]
    fn outcomes_survive_and_failures_are_forgotten_when_asked() {
        let dir = Directory::new("outcomes");
        let plan = [step("crash", 3), step("other", 1)];
        let mut records = Records::open(&dir.0, &plan).unwrap();
        records.keep("crash", "0", outcome(5, &[])).unwrap();
        records.keep("crash", "2", outcome(6, &["lost"])).unwrap();
        drop(records);
        // What a kill left of a file that was being written is of no account.
        std::fs::write(dir.0.join("crash.unfinished"), "{").unwrap();
        let mut records = Records::open(&dir.0, &plan).unwrap();
        assert_eq!(records.outcome("crash", "0"), Some(&outcome(5, &[])));
        assert_eq!(records.of_step("crash").count(), 2);
        assert_eq!(records.outcome("crash", "1"), None);
        assert_eq!(records.mean_seconds("crash"), Some(3.0));
        assert_eq!(records.mean_seconds("other"), None);
        records.forget_failures();
        assert_eq!(records.outcome("crash", "2"), None);
        assert_eq!(records.of_step("crash").count(), 1);
    }

    #[test]
    fn portions_that_left_the_plan_do_not_count() {
        let dir = Directory::new("plan");
        let mut records = Records::open(&dir.0, &[step("crash", 3)]).unwrap();
        for portion in ["0", "2"] {
            records.keep("crash", portion, outcome(1, &[])).unwrap();
        }
        let records = Records::open(&dir.0, &[step("crash", 2)]).unwrap();
        assert_eq!(records.counts("crash").unwrap()["states"], 1);
    }

    #[test]
    fn a_state_that_two_portions_judged_counts_once() {
        let dir = Directory::new("states");
        let mut records = Records::open(&dir.0, &[step("crash", 2)]).unwrap();
        for (portion, states) in [("0", "ext4 01\next4 02\n"), ("1", "ext4 02\next4_4k 02\n")] {
            let path = records.states("crash", portion);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, states).unwrap();
            records.keep("crash", portion, outcome(2, &[])).unwrap();
        }
        let counts = records.counts("crash").unwrap();
        assert_eq!(counts["states"], 4);
        assert_eq!(counts[DISTINCT], 3);
    }
}
