//! Steps of a workload, and what they are drawn from.

use testkit::prng::Prng;

/// One step of a workload. Files, names and values go by number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Create(u64),
    Unlink(u64),
    Set { file: u64, name: u64, value: u64 },
    Remove { file: u64, name: u64 },
    Read { file: u64, name: u64 },
    Write { file: u64, length: u64 },
}

/// What a workload is drawn from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) files: u64,
    pub(super) names: u64,
    pub(super) values: u64,
    pub(super) steps: u64,
    /// Lengths of values go up to one of these.
    pub(super) lengths: &'static [u64],
}

impl Scale {
    /// That many sets of one attribute, with values of 64 bytes.
    pub(super) const fn of_sets(files: u64, values: u64, steps: u64) -> Self {
        Self {
            files,
            names: 1,
            values,
            steps,
            lengths: &[64],
        }
    }
}

pub(super) fn name_of(number: u64) -> String {
    let number = usize::try_from(number).unwrap();
    let prefix = ["user.", "trusted.", "security."][number % 3];
    format!(
        "{prefix}name{number:x<length$}",
        length = 3 + number * 7 % 20
    )
}

pub(super) fn file_of(number: u64) -> String {
    format!("file{number}")
}

impl Scale {
    pub(super) fn value_of(&self, number: u64) -> Vec<u8> {
        let limit = self.lengths[usize::try_from(number % self.lengths.len() as u64).unwrap()];
        let mut random = Prng::new(number);
        let length = if self.lengths.len() == 1 {
            limit
        } else {
            random.below(limit)
        };
        random.bytes(usize::try_from(length).unwrap())
    }

    /// Sets alone, on files that are there from the start.
    pub(super) fn sets(&self, random: &mut Prng) -> Vec<Step> {
        let creates = (0..self.files).map(Step::Create);
        let sets = (0..self.steps).map(|_| Step::Set {
            file: random.below(self.files),
            name: random.below(self.names),
            value: random.below(self.values),
        });
        creates.chain(sets).collect()
    }

    /// All kinds of steps.
    pub(super) fn mixed(&self, random: &mut Prng) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.files).map(Step::Create).collect();
        for _ in 0..self.steps {
            let file = random.below(self.files);
            let name = random.below(self.names);
            steps.push(match random.below(20) {
                0 => Step::Unlink(file),
                1 | 2 => Step::Create(file),
                3 | 4 => Step::Remove { file, name },
                5 => Step::Read { file, name },
                6 => Step::Write {
                    file,
                    length: random.below(200),
                },
                _ => Step::Set {
                    file,
                    name,
                    value: random.below(self.values),
                },
            });
        }
        steps
    }
}
