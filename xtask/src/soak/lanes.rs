//! Portions side by side: each processor takes the next one of the first step that has one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::plan::{Portion, Step};
use super::record::{Outcome, Records};

/// The run, as the lanes share it.
pub(super) struct Lanes<'a> {
    plan: &'a [Step],
    state: Mutex<State>,
    finished: Condvar,
}

struct State {
    records: Records,
    /// Portions under way, by step.
    running: BTreeMap<&'static str, usize>,
    /// Those that were begun in this run, by step and place.
    begun: BTreeSet<(usize, usize)>,
    error: Option<anyhow::Error>,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Progress {
    pub(super) done: usize,
    pub(super) portions: usize,
    pub(super) failed: usize,
    /// Estimated time to the end.
    pub(super) seconds_left: f64,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(plan: &'a [Step], records: Records) -> Self {
        let state = State {
            records,
            running: BTreeMap::new(),
            begun: BTreeSet::new(),
            error: None,
        };
        Self {
            plan,
            state: Mutex::new(state),
            finished: Condvar::new(),
        }
    }

    /// Runs every portion that has no outcome, `count` at once, keeps each outcome, and shows it.
    pub(super) fn run(
        &self,
        count: usize,
        run: impl Fn(&Step, &Portion, &Path) -> Outcome + Sync,
        show: impl Fn(&Step, &Portion, &Outcome, Progress) + Sync,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            for _ in 0..count.max(1) {
                scope.spawn(|| {
                    while let Some((step, portion)) = self.take() {
                        let record = self.lock().records.of_portion(&step.name, &portion.name);
                        let outcome = run(step, portion, &record);
                        let progress = self.finish(step, portion, outcome.clone(), count);
                        show(step, portion, &outcome, progress);
                    }
                });
            }
        });
        self.lock().error.take().map_or(Ok(()), Err)
    }

    /// The records, when all has run.
    pub(super) fn into_records(self) -> Records {
        let state = self.state.into_inner();
        state.unwrap_or_else(PoisonError::into_inner).records
    }

    pub(super) fn progress(&self, count: usize) -> Progress {
        progress(self.plan, &self.lock().records, count)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next portion; `None` when none is left. Waits where a step may not run more at once.
    fn take(&self) -> Option<(&'a Step, &'a Portion)> {
        let mut state = self.lock();
        loop {
            if state.error.is_some() {
                return None;
            }
            let mut is_waiting = false;
            for (number, step) in self.plan.iter().enumerate() {
                let next = step.portions.iter().enumerate().find(|(place, portion)| {
                    !state.begun.contains(&(number, *place))
                        && state.records.outcome(&step.name, &portion.name).is_none()
                });
                let Some((place, portion)) = next else {
                    continue;
                };
                let running = state.running.entry(step.group).or_default();
                if *running < step.at_once {
                    *running += 1;
                    state.begun.insert((number, place));
                    return Some((step, portion));
                }
                is_waiting = true;
            }
            if !is_waiting {
                return None;
            }
            let waited = self.finished.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, step: &Step, portion: &Portion, outcome: Outcome, count: usize) -> Progress {
        let mut state = self.lock();
        if let Some(running) = state.running.get_mut(step.group) {
            *running -= 1;
        }
        if let Err(error) = state.records.keep(&step.name, &portion.name, outcome) {
            state.error = Some(error);
        }
        self.finished.notify_all();
        progress(self.plan, &state.records, count)
    }
}

/// How far the records are, with `count` portions at once.
fn progress(plan: &[Step], records: &Records, count: usize) -> Progress {
    let mut progress = Progress {
        done: 0,
        portions: 0,
        failed: 0,
        seconds_left: 0.0,
    };
    let mut longest = 0.0_f64;
    for step in plan {
        let done = records.of_step(&step.name).count();
        let failed = records.of_step(&step.name);
        progress.failed += failed.filter(|(_, it)| !it.failures.is_empty()).count();
        progress.done += done;
        progress.portions += step.portions.len();
        let mean = records.mean_seconds(&step.name);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (left, at_once, count) = (
            step.portions.len().saturating_sub(done) as f64,
            step.at_once as f64,
            count.max(1) as f64,
        );
        let seconds = left * mean.unwrap_or(step.seconds);
        progress.seconds_left += seconds / count;
        longest = longest.max(seconds / at_once.min(count));
    }
    progress.seconds_left = progress.seconds_left.max(longest);
    progress
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::plan::tests::step;
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let name = format!("xtask-lanes-{}-{name}", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn outcome(failures: Vec<String>) -> Outcome {
        Outcome {
            seconds: 10.0,
            failures,
            ..Outcome::default()
        }
    }

    #[test]
    fn finished_portions_are_skipped_despite_failures() {
        let dir = dir("resume");
        let plan = [step("a", 3), step("b", 2)];
        let ran = Mutex::new(Vec::new());
        let run = |step: &Step, portion: &Portion, _: &Path| {
            let name = format!("{}/{}", step.name, portion.name);
            let failures = if name == "a/1" {
                vec!["lost".to_owned()]
            } else {
                Vec::new()
            };
            ran.lock().unwrap().push(name);
            outcome(failures)
        };
        let mut records = Records::open(&dir, &plan).unwrap();
        records.keep("a", "0", outcome(Vec::new())).unwrap();
        let lanes = Lanes::new(&plan, records);
        lanes.run(2, run, |_, _, _, _| {}).unwrap();
        let mut names = std::mem::take(&mut *ran.lock().unwrap());
        names.sort();
        assert_eq!(names, ["a/1", "a/2", "b/0", "b/1"]);
        assert_eq!(lanes.progress(2).failed, 1);
        // Again: only what failed, and only when asked.
        let lanes = Lanes::new(&plan, Records::open(&dir, &plan).unwrap());
        lanes.run(2, run, |_, _, _, _| {}).unwrap();
        assert!(ran.lock().unwrap().is_empty());
        let mut records = lanes.into_records();
        records.forget_failures();
        let lanes = Lanes::new(&plan, records);
        lanes.run(2, run, |_, _, _, _| {}).unwrap();
        assert_eq!(*ran.lock().unwrap(), ["a/1"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn steps_of_a_group_keep_to_what_may_run_at_once() {
        let dir = dir("at-once");
        let mut plan = [step("a", 4), step("b", 4), step("c", 6)];
        for step in &mut plan[..2] {
            step.at_once = 1;
            step.group = "alone";
        }
        let (alone, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let run = |step: &Step, _: &Portion, _: &Path| {
            if step.group == "alone" {
                most.fetch_max(alone.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(2));
                alone.fetch_sub(1, Ordering::SeqCst);
            }
            outcome(Vec::new())
        };
        let lanes = Lanes::new(&plan, Records::open(&dir, &plan).unwrap());
        lanes.run(3, run, |_, _, _, _| {}).unwrap();
        assert_eq!(most.load(Ordering::SeqCst), 1);
        let progress = lanes.progress(3);
        assert_eq!((progress.done, progress.portions), (14, 14));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_estimate_knows_what_ran_and_what_may_not_run_at_once() {
        let dir = dir("estimate");
        let mut plan = [step("a", 3), step("b", 4)];
        plan[0].at_once = 1;
        let mut records = Records::open(&dir, &plan).unwrap();
        let left = |records: &Records, plan: &[Step]| progress(plan, records, 2).seconds_left;
        assert!((left(&records, &plan) - 3.5).abs() < 0.01);
        records.keep("a", "0", outcome(Vec::new())).unwrap();
        assert!((left(&records, &plan) - 20.0).abs() < 0.01);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
