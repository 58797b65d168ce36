//! What is asked for on the command line.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use testkit::subject::{Scene, scenes};

pub(crate) const USAGE: &str = "\
usage: soak crash {SEEDS | --states N | --seed SEED} [OPTION]... [WHAT]...
       soak {unflushed | faults | threads | full | edits} {SEEDS | --seed SEED} [OPTION]... [WHAT]...
       soak scenes

  crash         cut the power of random workloads, and judge every state that this can leave
  unflushed     the same with a device that drops its flushes, which must be noticed
  faults        fail each request of a workload, and of mounts after a power failure
  threads       run two threads against a model, with remounts
  full          run workloads without space: what is accepted is durable after a sync
  edits         edit images with the command line, and kill every third command
  scenes        list the filesystems, each with its mode, and how many states of others one of it stands for
  SEEDS         so many workloads of each scene; of threads fifty times as many, of edits one
                session for twenty
  --states N    workloads until there are N distinct states of each mode, spread over its scenes; a fourth
                of them of some
  --seed SEED   the one workload of that seed; every state of it is judged by all checkers
  --seeds A..B  the workloads of these seeds, of each scene
  --scene NAME  this scene alone, where a generation or a mode is called the same
  --threads N   so many workloads of crash, states of unflushed, or scenes of the others, at once;
                one for each processor without it
  --record FILE write counts and failures to FILE, as JSON, and the states next to it
  WHAT          a mode (ordered, journal, writeback, ext3, unjournaled, xfs-features, xfs-log, btrfs-single,
                btrfs-copies, btrfs-stripes, btrfs-log), a generation (ext2, ext3, ext4, btrfs, xfs) or a
                scene; everything without it";

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Crash,
    Unflushed,
    Faults,
    Threads,
    Full,
    Edits,
}

/// How much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    /// As many seeds as that stands for, from the kind's first on.
    Seeds(u64),
    /// Workloads until there are so many states.
    States(usize),
    /// One workload, looked at in full.
    Seed(u64),
    /// The seeds that [`Request::seeds`] names.
    Range,
}

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) amount: Amount,
    /// The seeds, where they are named.
    pub(crate) seeds: Option<Range<u64>>,
    pub(crate) threads: usize,
    pub(crate) record: Option<PathBuf>,
    pub(crate) scenes: Vec<&'static Scene>,
}

impl Request {
    pub(crate) fn parse(words: &[String]) -> Result<Self> {
        let mut words = words.iter().map(String::as_str);
        let kind = match words.next().context("what?")? {
            "crash" => Kind::Crash,
            "unflushed" => Kind::Unflushed,
            "faults" => Kind::Faults,
            "threads" => Kind::Threads,
            "full" => Kind::Full,
            "edits" => Kind::Edits,
            other => bail!("what is {other}?"),
        };
        let mut amount = None;
        let mut request = Self {
            kind,
            amount: Amount::Range,
            seeds: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            record: None,
            scenes: Vec::new(),
        };
        let mut is_named = false;
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} takes a value"))
            };
            match word {
                "--states" => amount = Some(Amount::States(usize::try_from(number(value()?)?)?)),
                "--seed" => amount = Some(Amount::Seed(number(value()?)?)),
                "--seeds" => request.seeds = Some(range(value()?)?),
                "--scene" => {
                    is_named = true;
                    let name = value()?;
                    request.add(name, |scene| scene.name == name)?;
                }
                "--threads" => request.threads = usize::try_from(number(value()?)?)?,
                "--record" => request.record = Some(value()?.into()),
                _ if word.starts_with(|first: char| first.is_ascii_digit()) => {
                    amount = Some(Amount::Seeds(number(word)?));
                }
                _ => {
                    is_named = true;
                    request.add(word, |scene| is_meant(scene, word))?;
                }
            }
        }
        request.amount = match (amount, &request.seeds) {
            (Some(amount), _) => amount,
            (None, Some(_)) => Amount::Range,
            (None, None) => bail!("how many?"),
        };
        request.validate()?;
        if !is_named {
            request.scenes.extend(scenes());
        }
        Ok(request)
    }

    fn validate(&self) -> Result<()> {
        let is_empty = self.seeds.as_ref().is_some_and(Range::is_empty);
        ensure!(
            !matches!(self.amount, Amount::Seeds(0) | Amount::States(0)) && !is_empty,
            "nothing to do"
        );
        ensure!(self.threads > 0, "no threads do nothing");
        ensure!(
            self.kind == Kind::Crash || !matches!(self.amount, Amount::States(_)),
            "only power failures have states"
        );
        ensure!(
            self.seeds.is_none() || matches!(self.amount, Amount::States(_) | Amount::Range),
            "the seeds are named twice"
        );
        Ok(())
    }

    /// Adds the scenes that are meant by a word.
    fn add(&mut self, word: &str, is_meant: impl Fn(&Scene) -> bool) -> Result<()> {
        let found: Vec<_> = scenes().filter(|scene| is_meant(scene)).collect();
        ensure!(
            !found.is_empty(),
            "no mode, generation or scene is called {word}"
        );
        for scene in found {
            if !self.scenes.iter().any(|known| known.name == scene.name) {
                self.scenes.push(scene);
            }
        }
        Ok(())
    }
}

fn number(text: &str) -> Result<u64> {
    text.parse().with_context(|| format!("how many is {text}?"))
}

fn range(text: &str) -> Result<Range<u64>> {
    let (first, end) = text
        .split_once("..")
        .with_context(|| format!("{text} is no range of seeds A..B"))?;
    Ok(number(first)?..number(end)?)
}

fn is_meant(scene: &Scene, word: &str) -> bool {
    let generation = scene.name.split('_').next();
    scene.name == word || scene.mode.name() == word || generation == Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::subject::Mode;

    fn parse(line: &str) -> Result<Request> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Request::parse(&words)
    }

    #[test]
    fn scenes_are_meant_by_mode_generation_and_name() {
        assert_eq!(parse("crash 3").unwrap().scenes.len(), scenes().count());
        for mode in Mode::ALL {
            let scenes = parse(&format!("crash 3 {}", mode.name())).unwrap().scenes;
            assert!(!scenes.is_empty(), "{mode:?}");
            assert!(scenes.iter().all(|scene| scene.mode == mode));
        }
        for name in ["ext2", "ext3", "ext4"] {
            assert!(parse(&format!("crash 3 {name}")).unwrap().scenes.len() > 1);
            let scenes = parse(&format!("crash 3 --scene {name}")).unwrap().scenes;
            assert_eq!(scenes.len(), 1);
            assert_eq!(scenes[0].name, name);
        }
        let request = parse("crash --states 20000 ext4_4k journal ext4_4k").unwrap();
        assert_eq!(request.scenes.len(), 1 + Mode::Journal.scenes().count());
        assert_eq!(request.amount, Amount::States(20_000));
        assert_eq!(
            parse("threads --seed 7 ext2").unwrap().amount,
            Amount::Seed(7)
        );
    }

    #[test]
    fn seeds_may_be_named_for_states_and_by_themselves() {
        let request = parse("crash --states 700 --seeds 5..9 --threads 1 ext3").unwrap();
        assert_eq!(request.amount, Amount::States(700));
        assert_eq!((request.seeds, request.threads), (Some(5..9), 1));
        let request = parse("threads --seeds 5..9 --record a.json ext3").unwrap();
        assert_eq!(request.amount, Amount::Range);
        assert_eq!(request.record, Some("a.json".into()));
    }

    #[test]
    fn what_asks_for_nothing_is_refused() {
        for line in [
            "",
            "crash",
            "cuts 3",
            "crash 0",
            "crash --states 0",
            "crash --states",
            "crash many",
            "crash -1",
            "faults --states 5",
            "crash 3 ext5",
            "crash 3 ext4 ext5",
            "threads ext4",
            "crash --seeds 5",
            "crash --seeds 5..5",
            "crash 3 --seeds 5..9",
            "crash --seed 3 --seeds 5..9",
            "crash 3 --threads 0",
            "crash 3 --record",
            "crash 3 --scene ordered",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
