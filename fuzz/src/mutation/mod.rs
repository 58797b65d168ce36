//! Seeded mutations: the same number makes the same corrupt image.

mod change;
#[cfg(test)]
mod tests;

use testkit::prng::Prng;

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
    /// Its contents.
    pub image: Vec<u8>,
    /// The mutations, in order.
    pub changes: Vec<Change>,
    /// Whether the checksums of the changed structures were updated.
    pub is_sealed: bool,
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
    let mut image = seed.image.clone();
    let is_sealed = prng.below(2) == 0;
    let mut changes = Vec::new();
    let mut touched = Vec::new();
    for _ in 0..=prng.below(changes_max) {
        let change = Change::choose(&mut prng, seed);
        let range = change.apply(&mut image);
        touched.extend(seed.layout.touched(range.start, range.end).cloned());
        changes.push(change);
    }
    if is_sealed {
        seed.layout.seal(&mut image, &touched);
    }
    Mutant {
        number,
        seed: seed.name,
        image,
        changes,
        is_sealed,
    }
}

/// A number below `length`.
fn pick(prng: &mut Prng, length: usize) -> usize {
    usize::try_from(prng.below(length as u64)).unwrap_or(0)
}
