//! One change of an image.

use std::ops::Range;

use testkit::prng::Prng;

use super::pick;
use crate::layout::{Class, Kind, Part};
use crate::seeds::Seed;

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
    /// A run of bytes is copied over another place.
    Copy {
        /// From here.
        source: Range<usize>,
        /// To here.
        target: usize,
    },
    /// The image ends here.
    Truncate {
        /// Bytes left.
        length: usize,
    },
}

impl Change {
    /// Chooses a change for an image made from `seed`.
    pub(super) fn choose(prng: &mut Prng, seed: &Seed) -> Self {
        let block = seed.layout.units.block_bytes;
        let length = seed.image.len();
        match prng.below(100) {
            0..10 => Self::Flip {
                at: pick(prng, length),
                bit: bit(prng),
            },
            10..30 => Self::Flip {
                at: place_in_part(prng, seed).1,
                bit: bit(prng),
            },
            30..85 => Self::choose_field(prng, seed),
            85..91 => Self::Fill {
                range: part(prng, seed).range.clone(),
                value: if prng.below(2) == 0 { 0 } else { 0xff },
            },
            91..97 => {
                let start = pick(prng, length / block) * block;
                let target = part(prng, seed).range.start / block * block;
                Self::Copy {
                    source: start..start + block,
                    target,
                }
            }
            _ => Self::Truncate {
                length: pick(prng, length),
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

    /// Makes the change; gives the bytes it touched.
    pub(super) fn apply(&self, image: &mut Vec<u8>) -> Range<usize> {
        match self {
            Self::Flip { at, bit } => {
                if let Some(byte) = image.get_mut(*at) {
                    *byte ^= 1 << bit;
                }
                *at..at + 1
            }
            Self::Field { at, value, .. } => {
                let range = *at..at + value.len();
                if let Some(place) = image.get_mut(range.clone()) {
                    place.copy_from_slice(value);
                }
                range
            }
            Self::Fill { range, value } => {
                if let Some(place) = image.get_mut(range.clone()) {
                    place.fill(*value);
                }
                range.clone()
            }
            Self::Copy { source, target } => {
                let end = target + source.len();
                if source.end <= image.len() && end <= image.len() {
                    image.copy_within(source.clone(), *target);
                }
                *target..end
            }
            Self::Truncate { length } => {
                image.truncate(*length);
                *length..*length
            }
        }
    }
}

fn bit(prng: &mut Prng) -> u8 {
    u8::try_from(prng.below(8)).unwrap_or(0)
}

/// A structure, each kind as likely as the others, but for plain contents.
fn part<'s>(prng: &mut Prng, seed: &'s Seed) -> &'s Part {
    let parts = &seed.layout.parts;
    let mut classes: Vec<Class> = Vec::new();
    for class in parts.iter().filter_map(|part| part.kind.class()) {
        if !classes.contains(&class) {
            classes.push(class);
        }
    }
    let chosen = classes[pick(prng, classes.len())];
    let of_class: Vec<_> = parts
        .iter()
        .filter(|part| part.kind.class() == Some(chosen))
        .collect();
    of_class[pick(prng, of_class.len())]
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
