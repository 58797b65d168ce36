//! Mutation is reproducible, and changes something.

use super::*;
use crate::seeds;

#[test]
fn number_makes_the_image() {
    let seeds = seeds::all().unwrap();
    let mut sealed = 0;
    for number in 0..200 {
        let (first, second) = (mutate(&seeds, number), mutate(&seeds, number));
        assert!(first.image == second.image && first.changes == second.changes);
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
        changed += u32::from(mutant.image != seed.image);
    }
    assert!(changed > 180, "{changed} of 200 are changed");
}
