//! Seeded mutations: the same number makes the same corrupt image.

mod change;
#[cfg(test)]
mod tests;

use std::ops::Range;

use platter::ImageSet;
use testkit::fs_type::FsType;
use testkit::prng::Prng;

use crate::contents::Contents;
use crate::open;
use crate::seeds::Seed;
pub use change::Change;

/// The most changes one image takes.
const CHANGES_MAX: u64 = 6;

/// A mutated image.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// Its number, which makes it again.
    pub number: u64,
    /// The seed it was.
    pub seed: &'static str,
    /// Its format.
    pub fs_type: FsType,
    /// Its contents, over those of the seed.
    pub contents: Contents,
    /// Where its devices lie in them.
    pub devices: Vec<Range<usize>>,
    /// The mutations, in order.
    pub changes: Vec<Change>,
    /// Whether the checksums of the changed structures were updated.
    pub is_sealed: bool,
}

impl Mutant {
    /// Its images.
    #[must_use]
    pub fn images(&self) -> ImageSet {
        open::images(&self.contents, &self.devices)
    }

    /// All bytes of the first image.
    #[must_use]
    pub fn first_image(&self) -> Vec<u8> {
        self.contents.to_vec(self.devices[0].clone())
    }
}

/// Makes image `number`: half of them have their checksums updated.
#[must_use]
pub fn mutate(seeds: &[Seed], number: u64) -> Mutant {
    let mut prng = Prng::new(number);
    let seed = &seeds[pick(&mut prng, seeds.len())];
    mutate_seed(seed, CHANGES_MAX, number, prng)
}

/// Makes image `number` of one seed by one change, so that what comes of it can be explained.
#[must_use]
pub fn mutate_once(seed: &Seed, number: u64) -> Mutant {
    mutate_seed(seed, 1, number, Prng::new(number))
}

fn mutate_seed(seed: &Seed, changes_max: u64, number: u64, mut prng: Prng) -> Mutant {
    let is_sealed = prng.below(2) == 0;
    let mut mutant = Mutant {
        number,
        seed: seed.name,
        fs_type: seed.fs_type,
        contents: seed.contents.clone(),
        devices: seed.devices.clone(),
        changes: Vec::new(),
        is_sealed,
    };
    let mut touched = Vec::new();
    for _ in 0..=prng.below(changes_max) {
        let change = Change::choose(&mut prng, seed);
        let range = change.apply(&mut mutant);
        touched.extend(seed.layout.touched(range.start, range.end).cloned());
        mutant.changes.push(change);
    }
    if is_sealed {
        seed.layout.seal(&mut mutant.contents, &touched);
    }
    mutant
}

/// A number below `length`.
fn pick(prng: &mut Prng, length: usize) -> usize {
    usize::try_from(prng.below(length as u64)).unwrap_or(0)
}
