//! One change of an image.

use std::ops::Range;

use testkit::prng::Prng;

use super::{Mutant, pick};
use crate::layout::{Kind, Part};
use crate::seeds::Seed;

/// The longest run of noise.
const NOISE_BYTES_MAX: usize = 64;

/// What is done to an image, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// One bit is flipped.
    Flip {
        /// Of this byte.
        at: usize,
        /// This bit.
        bit: u8,
    },
    /// A field of a structure gets a value.
    Field {
        /// The structure.
        kind: Kind,
        /// Where the field lies.
        at: usize,
        /// Its new bytes.
        value: Vec<u8>,
    },
    /// A run of bytes is filled with one value.
    Fill {
        /// The run.
        range: Range<usize>,
        /// The value.
        value: u8,
    },
    /// A run of bytes is replaced by bytes that this number makes.
    Noise {
        /// The run.
        range: Range<usize>,
        /// The number.
        number: u64,
    },
    /// A run of bytes is copied over another place.
    Copy {
        /// From here.
        source: Range<usize>,
        /// To here.
        target: usize,
    },
    /// A device ends here.
    Truncate {
        /// The first byte that it no longer has.
        at: usize,
    },
}

impl Change {
    /// Chooses a change for an image made from `seed`.
    pub(super) fn choose(prng: &mut Prng, seed: &Seed) -> Self {
        let block = seed.layout.units.block_bytes;
        let length = seed.contents.len();
        match prng.below(100) {
            0..10 => Self::Flip {
                at: place(prng, seed),
                bit: bit(prng),
            },
            10..30 => Self::Flip {
                at: place_in_part(prng, seed).1,
                bit: bit(prng),
            },
            30..85 => Self::choose_field(prng, seed),
            85..88 => Self::Fill {
                range: part(prng, seed).range.clone(),
                value: if prng.below(2) == 0 { 0 } else { 0xff },
            },
            88..90 => {
                let (_, start) = place_in_part(prng, seed);
                let len = 1 + pick(prng, NOISE_BYTES_MAX);
                Self::Noise {
                    range: start..(start + len).min(length),
                    number: prng.next_u64(),
                }
            }
            90..94 => {
                let class = class(prng, seed);
                let [source, target] = [(); 2].map(|()| &member(prng, seed, class).range);
                let len = source.len().min(target.len());
                Self::Copy {
                    source: source.start..source.start + len,
                    target: target.start,
                }
            }
            94..97 => {
                let start = place(prng, seed).min(length - block) / block * block;
                let target = part(prng, seed).range.start / block * block;
                Self::Copy {
                    source: start..start + block,
                    target,
                }
            }
            _ => Self::Truncate {
                at: pick(prng, length),
            },
        }
    }

    fn choose_field(prng: &mut Prng, seed: &Seed) -> Self {
        let (kind, place) = place_in_part(prng, seed);
        let width = 1_usize << prng.below(4);
        let at = place / width * width;
        let value = interesting(prng, seed);
        let bytes = value.to_le_bytes();
        let mut value = bytes[..width].to_vec();
        if kind.is_big_endian() {
            value.reverse();
        }
        Self::Field { kind, at, value }
    }

    /// Makes the change; returns the range it touched.
    pub(super) fn apply(&self, mutant: &mut Mutant) -> Range<usize> {
        let contents = &mut mutant.contents;
        match self {
            Self::Flip { at, bit } => {
                let mut byte = contents.to_vec(*at..at + 1);
                for byte in &mut byte {
                    *byte ^= 1 << bit;
                }
                contents.put(*at, &byte);
                *at..at + 1
            }
            Self::Field { at, value, .. } => {
                contents.put(*at, value);
                *at..*at + value.len()
            }
            Self::Fill { range, value } => {
                contents.put(range.start, &vec![*value; range.len()]);
                range.clone()
            }
            Self::Noise { range, number } => {
                contents.put(range.start, &Prng::new(*number).bytes(range.len()));
                range.clone()
            }
            Self::Copy { source, target } => {
                let bytes = contents.to_vec(source.clone());
                contents.put(*target, &bytes);
                *target..target + source.len()
            }
            Self::Truncate { at } => {
                let devices = &mut mutant.devices;
                if let Some(device) = devices.iter_mut().find(|device| device.contains(at)) {
                    device.end = *at;
                }
                *at..*at
            }
        }
    }
}

fn bit(prng: &mut Prng) -> u8 {
    u8::try_from(prng.below(8)).unwrap_or(0)
}

/// A byte of the image, mostly where it is not empty.
fn place(prng: &mut Prng, seed: &Seed) -> usize {
    if prng.below(4) == 0 {
        return pick(prng, seed.contents.len());
    }
    let held: Vec<_> = seed.contents.held().collect();
    let range = held[pick(prng, held.len())].clone();
    range.start + pick(prng, range.len())
}

/// A class of structures, each as likely as the others, but for plain contents.
fn class<'s>(prng: &mut Prng, seed: &'s Seed) -> &'s [usize] {
    let classes = &seed.layout.classes;
    &classes[pick(prng, classes.len())]
}

/// A structure of a class.
fn member<'s>(prng: &mut Prng, seed: &'s Seed, class: &[usize]) -> &'s Part {
    &seed.layout.parts[class[pick(prng, class.len())]]
}

/// A structure of any class.
fn part<'s>(prng: &mut Prng, seed: &'s Seed) -> &'s Part {
    let class = class(prng, seed);
    member(prng, seed, class)
}

/// A byte of a structure; the first ones, where most fields are, more often.
fn place_in_part(prng: &mut Prng, seed: &Seed) -> (Kind, usize) {
    let Part { kind, range, .. } = part(prng, seed);
    let length = if prng.below(3) > 0 {
        range.len().min(160)
    } else {
        range.len()
    };
    (*kind, range.start + pick(prng, length))
}

/// A value that is at an edge, means another place of the image, or is anything at all.
fn interesting(prng: &mut Prng, seed: &Seed) -> u64 {
    let units = &seed.layout.units;
    match prng.below(12) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => 1 << prng.below(64),
        4 => (1 << prng.below(64)) - 1,
        5 => units.addresses - prng.below(3),
        6 => units.addresses + prng.below(3),
        7 => prng.below(units.inodes + 2),
        8 => prng.below(16),
        9 | 10 => part(prng, seed).address,
        _ => prng.next_u64(),
    }
}
