//! Every target returns for the pieces of good images and for thousands of corrupt ones.

use testkit::prng::Prng;

use super::TARGETS;
use crate::seeds;

/// Corrupt pieces that each target is given.
const PIECES: u64 = 3000;
/// Pieces are longer only for the target that takes whole images.
const PIECE_BYTES: usize = 4096;

#[test]
fn targets_return_for_corrupt_pieces_of_good_images() {
    let seeds = seeds::all().unwrap();
    for (name, target) in TARGETS {
        if *name == "image" {
            continue;
        }
        let mut prng = Prng::named(name.as_bytes());
        for _ in 0..PIECES {
            target(&corrupt_piece(&seeds, &mut prng));
        }
    }
}

#[test]
fn targets_return_for_short_and_uniform_bytes() {
    for (_, target) in TARGETS {
        for length in [0, 1, 2, 11, 60, 64, 128, 255, 256, 1023, 1024, 4096, 70_000] {
            for byte in [0, 1, 0x7f, 0xff] {
                target(&vec![byte; length]);
            }
        }
    }
}

fn corrupt_piece(seeds: &[seeds::Seed], prng: &mut Prng) -> Vec<u8> {
    let seed = &seeds[below(prng, seeds.len())];
    let part = &seed.layout.parts[below(prng, seed.layout.parts.len())];
    let mut bytes = seed.contents.to_vec(part.range.clone());
    if prng.below(2) == 0 {
        // Targets that choose a shape take it from the first byte.
        bytes.insert(0, u8::try_from(prng.below(256)).unwrap());
    }
    for _ in 0..prng.below(5) {
        let at = below(prng, bytes.len().min(PIECE_BYTES));
        bytes[at] = match prng.below(4) {
            0 => 0,
            1 => 0xff,
            _ => u8::try_from(prng.below(256)).unwrap(),
        };
    }
    if prng.below(8) == 0 {
        bytes.truncate(below(prng, bytes.len()));
    }
    bytes
}

fn below(prng: &mut Prng, length: usize) -> usize {
    usize::try_from(prng.below(length as u64)).unwrap()
}
