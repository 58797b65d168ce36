//! Every target returns for the pieces of good images and for thousands of corrupt ones.

use testkit::fs_type::FsType;
use testkit::prng::Prng;

use super::TARGETS;
use crate::seeds::{self, Seed};

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
        let own: Vec<&Seed> = seeds
            .iter()
            .filter(|seed| seed.fs_type == format_of(name))
            .collect();
        let mut prng = Prng::named(name.as_bytes());
        for _ in 0..PIECES {
            // A piece of another format is seldom more than a wrong magic number.
            let of_any = prng.below(8) == 0;
            let seed = if of_any {
                &seeds[below(&mut prng, seeds.len())]
            } else {
                own[below(&mut prng, own.len())]
            };
            target(&corrupt_piece(seed, &mut prng));
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

/// The format that a target decodes.
fn format_of(target: &str) -> FsType {
    match target.split('_').next() {
        Some("btrfs") => FsType::Btrfs,
        Some("xfs") => FsType::Xfs,
        _ => FsType::Ext4,
    }
}

fn corrupt_piece(seed: &Seed, prng: &mut Prng) -> Vec<u8> {
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
