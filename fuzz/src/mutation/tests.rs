//! Mutation is reproducible, and changes something.

use super::*;
use crate::seeds;

#[test]
fn number_makes_the_image() {
    let seeds = seeds::all().unwrap();
    let mut sealed = 0;
    for number in 0..200 {
        let (first, second) = (mutate(&seeds, number), mutate(&seeds, number));
        assert!(first.contents == second.contents && first.changes == second.changes);
        sealed += u32::from(first.is_sealed);
    }
    assert!((80..=120).contains(&sealed), "{sealed} of 200 are sealed");
}

#[test]
fn most_numbers_change_the_image() {
    let seeds = seeds::all().unwrap();
    let mut changed = 0;
    for number in 0..200 {
        let mutant = mutate(&seeds, number);
        let seed = seeds.iter().find(|seed| seed.name == mutant.seed).unwrap();
        changed += u32::from(mutant.contents != seed.contents || mutant.devices != seed.devices);
    }
    assert!(changed > 180, "{changed} of 200 are changed");
}

#[test]
fn mutants_hold_little_more_than_what_was_changed() {
    const BYTES_MAX: usize = 2 << 20;
    let seeds = seeds::all().unwrap();
    for number in 0..200 {
        let mutant = mutate(&seeds, number);
        let held = mutant.contents.changed_bytes();
        assert!(held <= BYTES_MAX, "{number}: {held}");
    }
}
