//! What a long run consists of: steps, and portions that can be run, kept and repeated by themselves.

mod kinds;

use super::cells::Kind;
use super::instrumented::Instrumented;
use super::whole::Tests;

/// Of so many portions a quick run takes one.
const QUICK_ONE_IN: usize = 20;

/// One kind of test.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    /// What is tested, for the table.
    pub(super) title: &'static str,
    pub(super) portions: Vec<Portion>,
    /// Counts that all portions together have to reach.
    pub(super) goals: Vec<(String, u64)>,
    /// Of all steps of a group so many portions may run at once.
    pub(super) group: &'static str,
    pub(super) at_once: usize,
    /// How long a portion takes, before one has been measured.
    pub(super) seconds: f64,
}

/// What is run at once, and whose outcome is kept.
#[derive(Debug, Clone)]
pub(super) struct Portion {
    pub(super) name: String,
    pub(super) program: Program,
    pub(super) words: Vec<String>,
    pub(super) variables: Vec<(String, String)>,
}

/// A program as it was built from the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// Power failures, faults, threads and edits; writes a record.
    Soak,
    /// This program, for one suite or one build with instruments; writes a record.
    Xtask,
    /// Tests that have more to do than in a test run.
    Tests(Tests),
    /// The mutation runner.
    Fuzz,
}

/// A filesystem of the testkit.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) mode: String,
    /// Of the states that are demanded of each mode, one in so many is of this one.
    pub(super) states_one_in: u64,
    /// Of its states, the kernel mounts one in so many.
    pub(super) kernel_one_in: u64,
    /// The mount of one in so many is cut, too; of none, if 0.
    pub(super) recovery_one_in: u64,
    pub(super) name: String,
    /// What is written to it, each of which power failures have to fall on.
    pub(super) kinds_of_writes: Vec<String>,
    /// It has one image, which commands edit.
    pub(super) is_edited: bool,
}

impl Scene {
    /// Reads the list that the testkit's program prints.
    pub(super) fn list(text: &str) -> Vec<Self> {
        let scene = |line: &str| {
            let mut words = line.split(' ');
            Some(Self {
                mode: words.next()?.to_owned(),
                states_one_in: words.next()?.parse().ok().filter(|&count| count > 0)?,
                kernel_one_in: words.next()?.parse().ok().filter(|&count| count > 0)?,
                recovery_one_in: words.next()?.parse().ok()?,
                name: words.next()?.to_owned(),
                kinds_of_writes: words.next()?.split(',').map(str::to_owned).collect(),
                is_edited: words.next() == Some("edited"),
            })
        };
        text.lines().filter_map(scene).collect()
    }
}

/// All steps of a filesystem; of a quick run a twentieth of each.
pub(super) fn steps(scenes: &[Scene], filesystem: Kind, is_quick: bool) -> Vec<Step> {
    let of_it = |scene: &&Scene| Kind::of(&scene.name) == Some(filesystem);
    let scenes: Vec<Scene> = scenes.iter().filter(of_it).cloned().collect();
    let mut steps = kinds::all(&scenes, filesystem);
    if is_quick {
        steps.iter_mut().for_each(Step::thin);
    }
    steps
}

impl Step {
    fn new(
        name: impl Into<String>,
        title: &'static str,
        seconds: f64,
        portions: Vec<Portion>,
    ) -> Self {
        Self {
            name: name.into(),
            title,
            portions,
            goals: Vec::new(),
            group: "any",
            at_once: usize::MAX,
            seconds,
        }
    }

    /// Whether it needs compilers that look at every access to memory.
    pub(super) fn is_instrumented(&self) -> bool {
        Instrumented::named(&self.name).is_some()
    }

    fn demanding(mut self, count: impl Into<String>, least: u64) -> Self {
        self.goals.push((count.into(), least));
        self
    }

    /// Keeps one portion of so many, and demands as much less.
    fn thin(&mut self) {
        let before = self.portions.len();
        let mut place = 0..;
        self.portions
            .retain(|_| place.next().is_some_and(|place| place % QUICK_ONE_IN == 0));
        if before > 1 {
            for (_, least) in &mut self.goals {
                *least /= QUICK_ONE_IN as u64;
            }
        }
    }
}

impl Portion {
    fn new<'a>(
        name: impl Into<String>,
        program: Program,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self {
            name: name.into(),
            program,
            words: words.into_iter().map(str::to_owned).collect(),
            variables: Vec::new(),
        }
    }

    fn suite(suite: &str, cell: &str, name: String, options: &[(&str, String)]) -> Self {
        let mut portion = Self::new(name, Program::Xtask, ["soak-portion", suite, cell]);
        for (option, value) in options {
            portion.words.extend([(*option).to_owned(), value.clone()]);
        }
        portion
    }

    /// The command that runs the same from the source tree.
    pub(super) fn reproduce(&self) -> String {
        let command = match self.program {
            Program::Soak => "cargo run --package testkit --bin soak --",
            Program::Xtask => "cargo xtask",
            Program::Tests(Tests::Oracle) => "cargo test --package testkit --test oracle --",
            Program::Tests(Tests::Btrfs) => "cargo test --package platter-btrfs --lib --",
            Program::Fuzz => "cargo xtask fuzz",
        };
        let variables = self.variables.iter();
        let words = variables
            .map(|(name, value)| format!("{name}={value}"))
            .chain([command.to_owned()])
            .chain(self.words.iter().cloned());
        words.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use super::super::cells::cells_of;
    use super::super::record::DISTINCT;
    use super::super::suites::SUITES;
    use super::super::whole::WHOLE;
    use super::kinds::{STATES, STATES_PER_PORTION};
    use super::*;

    /// A step of so many portions, each of a second.
    pub(in super::super) fn step(name: &str, portions: usize) -> Step {
        let portion = |number: usize| Portion::new(number.to_string(), Program::Soak, ["crash"]);
        Step::new(name, "a test", 1.0, (0..portions).map(portion).collect())
    }

    fn of_words((name, least): (&str, u64)) -> (String, u64) {
        (name.to_owned(), least)
    }

    fn scenes() -> Vec<Scene> {
        Scene::list(
            "ordered 1 32 32 ext4 journal edited\nordered 1 32 32 ext4_4k journal,data edited\n\
             journal 1 32 32 ext4_j journal edited\next3 1 32 32 ext3 journal edited\n\
             unjournaled 1 32 0 ext2 anything edited\ncopied 4 32 32 btrfs anything edited\n\
             copied 4 32 32 btrfs_raid1 anything\nlog 1 16 32 xfs anything edited\n",
        )
    }

    fn plan(filesystem: Kind, is_quick: bool) -> Vec<Step> {
        steps(&scenes(), filesystem, is_quick)
    }

    #[test]
    fn names_of_steps_and_portions_are_unique_and_good_for_files() {
        for filesystem in Kind::ALL {
            examine_names(&plan(filesystem, false));
        }
    }

    fn examine_names(plan: &[Step]) {
        let names: BTreeSet<_> = plan.iter().map(|step| &step.name).collect();
        assert_eq!(names.len(), plan.len());
        for step in plan {
            let names: BTreeSet<_> = step.portions.iter().map(|portion| &portion.name).collect();
            assert_eq!(names.len(), step.portions.len(), "{}", step.name);
            assert!(!names.is_empty() && names.iter().all(|name| !name.contains('/')));
        }
    }

    #[test]
    fn each_mode_has_portions_with_their_own_seeds() {
        let goals = |filesystem, name: &str| {
            let plan = plan(filesystem, false);
            let step = plan.into_iter().find(|step| step.name == name);
            step.unwrap().goals
        };
        let plan = plan(Kind::Ext, false);
        let step = plan.iter().find(|step| step.name == "crash-ordered");
        let step = step.unwrap();
        assert!(step.portions.len() as u64 * STATES_PER_PORTION > STATES);
        let expected = [
            (DISTINCT, 20_000),
            ("by_kernel", 500),
            ("recoveries", 500),
            ("cut_at_data", 1),
            ("cut_at_journal", 1),
        ];
        assert_eq!(step.goals, expected.map(of_words));
        let copied = goals(Kind::Btrfs, "crash-copied");
        assert_eq!(
            copied[..2],
            [(DISTINCT, 5000), ("by_kernel", 125)].map(of_words)
        );
        let btrfs = steps(&scenes(), Kind::Btrfs, false);
        let copied = btrfs.iter().find(|step| step.name == "crash-copied");
        for portion in &copied.unwrap().portions {
            // The program takes a fourth of what is asked for.
            assert_eq!(portion.words[..3], ["crash", "--states", "2800"]);
        }
        let log = goals(Kind::Xfs, "crash-log");
        assert_eq!(
            log[..2],
            [(DISTINCT, 20_000), ("by_kernel", 1000)].map(of_words)
        );
        let words: BTreeSet<_> = step.portions.iter().map(|portion| &portion.words).collect();
        assert_eq!(words.len(), step.portions.len());
        let reproduce = step.portions[1].reproduce();
        assert!(
            reproduce.ends_with(
                "--bin soak -- crash --states 700 --seeds 101000..102000 --threads 1 --scene ext4_4k"
            ),
            "{reproduce}"
        );
    }

    #[test]
    fn a_quick_run_has_every_step_and_demands_a_twentieth() {
        let (full, quick) = (plan(Kind::Ext, false), plan(Kind::Ext, true));
        assert_eq!(full.len(), quick.len());
        for (full, quick) in full.iter().zip(&quick) {
            assert_eq!(full.name, quick.name);
            assert_eq!(quick.portions.len(), full.portions.len().div_ceil(20));
        }
        let fsx = quick.iter().find(|step| step.name == "fsx").unwrap();
        assert_eq!(fsx.goals, [of_words(("seconds", 180))]);
    }

    #[test]
    fn every_suite_runs_on_every_generation() {
        let generations = [
            (Kind::Ext, &["ext2", "ext3", "ext4"][..]),
            (Kind::Btrfs, &["btrfs"]),
            (Kind::Xfs, &["xfs"]),
        ];
        for (filesystem, generations) in generations {
            let plan = plan(filesystem, false);
            for suite in SUITES {
                let step = plan.iter().find(|step| step.name == suite.name).unwrap();
                for generation in generations {
                    let mut portions = step.portions.iter();
                    let has = portions.any(|it| it.words.iter().any(|word| word == generation));
                    let is_left_out = suite.name == "kill" && *generation == "ext2";
                    assert!(has || is_left_out, "{} {generation}", suite.name);
                }
            }
        }
    }

    #[test]
    fn suites_run_on_every_cell_and_every_whole_test_runs() {
        for filesystem in Kind::ALL {
            let plan = plan(filesystem, false);
            for cell in cells_of(filesystem) {
                for suite in ["fsx", "pjdfstest", "dbench", "fio", "build"] {
                    let step = plan.iter().find(|step| step.name == suite).unwrap();
                    let mut portions = step.portions.iter();
                    let has = portions.any(|portion| portion.words[1..3] == [suite, cell.name]);
                    let is_left_out = suite == "build" && filesystem == Kind::Ext;
                    assert!(has || is_left_out, "{suite} {}", cell.name);
                }
            }
            for whole in WHOLE.iter().filter(|it| it.filesystem == filesystem) {
                let step = plan.iter().find(|step| step.name == whole.name).unwrap();
                assert_eq!(step.portions[0].program, Program::Tests(whole.tests));
            }
        }
    }
}
