//! Which images are corrupted, and the run over them, on as many threads as there are processors.

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;

use platter_fuzz::mutation::{Change, mutate_once};
use platter_fuzz::seeds::{self, Seed};
use testkit::fixtures::{Fill, Fixture, Place, catalogue};

use crate::judges::{Desk, Judged};

/// The fixtures that are corrupted: clean ones whose bytes are the same on every machine.
pub(crate) struct Corpus {
    fixtures: Vec<&'static Fixture>,
}

/// The outcome of one corrupt image.
pub(crate) struct Outcome {
    pub(crate) number: u64,
    fixture: &'static str,
    changes: Vec<Change>,
    pub(crate) is_sealed: bool,
    pub(crate) judged: Judged,
}

impl Corpus {
    pub(crate) fn find() -> Self {
        let is_wanted = |fixture: &&Fixture| {
            let is_reproducible = matches!(fixture.fill, Fill::Nothing | Fill::Directory(_));
            is_reproducible && fixture.place == Place::Whole && !fixture.name.contains("dirty")
        };
        Self {
            fixtures: catalogue::all().filter(is_wanted).collect(),
        }
    }

    /// Judges an image; the number determines the fixture and the mutation.
    pub(crate) fn examine(&self, number: u64) -> Outcome {
        let index = usize::try_from(number).unwrap() % self.fixtures.len();
        let seed = seeds::seed(self.fixtures[index]).unwrap();
        examine(
            &seed,
            &Desk::new(&seed.contents.to_vec(0..seed.contents.len())).unwrap(),
            number,
        )
    }

    /// The images of these numbers, in order.
    pub(crate) fn examine_all(&self, numbers: Range<u64>) -> Vec<Outcome> {
        let next = Mutex::new(self.fixtures.iter().enumerate());
        let outcomes = Mutex::new(Vec::new());
        let work = || {
            loop {
                let Some((index, fixture)) = next.lock().unwrap().next() else {
                    return;
                };
                let seed = seeds::seed(fixture).unwrap();
                let intact = seed.contents.to_vec(0..seed.contents.len());
                let desk = Desk::new(&intact).unwrap();
                for number in numbers.clone() {
                    if number % self.fixtures.len() as u64 != index as u64 {
                        continue;
                    }
                    let outcome = examine(&seed, &desk, number);
                    outcomes.lock().unwrap().push(outcome);
                }
            }
        };
        let threads = std::thread::available_parallelism().unwrap().get();
        std::thread::scope(|scope| {
            for index in 0..threads {
                let thread = std::thread::Builder::new().name(format!("judge {index}"));
                thread.spawn_scoped(scope, work).unwrap();
            }
        });
        let mut outcomes = outcomes.into_inner().unwrap();
        outcomes.sort_by_key(|outcome| outcome.number);
        outcomes
    }
}

fn examine(seed: &Seed, desk: &Desk<'_>, number: u64) -> Outcome {
    let mutant = mutate_once(seed, number);
    Outcome {
        number,
        fixture: seed.name,
        judged: desk.judge(mutant.first_image()).unwrap(),
        changes: mutant.changes,
        is_sealed: mutant.is_sealed,
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sealed = if self.is_sealed { ", sealed" } else { "" };
        let says = |is_clean| if is_clean { "clean" } else { "not clean" };
        write!(
            out,
            "image {} of {}{sealed}: platter says {}, e2fsck says {}: {:?}",
            self.number,
            self.fixture,
            says(self.judged.platter_is_clean()),
            says(self.judged.e2fsck_is_clean()),
            self.changes
        )
    }
}
