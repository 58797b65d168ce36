//! From logical addresses to places in the image, which has the devices one after the other. Spec:
//! `btrfs/chunk`.

use std::ops::Range;

use super::super::bytes::{le16, le64};
use crate::contents::Contents;

/// A chunk without its stripes, and each stripe.
const CHUNK_LEN: usize = 48;
const STRIPE_LEN: usize = 32;
/// A key.
const KEY_LEN: usize = 17;
/// What lies in one piece on a device where a profile stripes.
const STRIPE_BYTES: u64 = 64 << 10;

const RAID0: u64 = 1 << 3;
const RAID10: u64 = 1 << 6;
const RAID5: u64 = 1 << 7;
const RAID6: u64 = 1 << 8;

/// A run of logical addresses, and where its stripes begin in the image; `None` on an unknown device.
#[derive(Debug, Clone)]
struct Chunk {
    logical: Range<u64>,
    profile: u64,
    stripes: Vec<Option<u64>>,
}

/// All chunks.
#[derive(Debug, Clone)]
pub(super) struct Chunks {
    /// The number of each device, and where it begins in the image.
    devices: Vec<(u64, u64)>,
    chunks: Vec<Chunk>,
}

impl Chunks {
    pub(super) fn new(devices: Vec<(u64, u64)>) -> Self {
        Self {
            devices,
            chunks: Vec::new(),
        }
    }

    /// Adds the chunks of the array in the superblock.
    pub(super) fn add_array(&mut self, image: &Contents, array: Range<usize>) {
        let mut at = array.start;
        while at + KEY_LEN + CHUNK_LEN <= array.end {
            let stripes = usize::from(le16(image, at + KEY_LEN + 44));
            self.add(image, le64(image, at + 9), at + KEY_LEN);
            at += KEY_LEN + CHUNK_LEN + stripes * STRIPE_LEN;
        }
    }

    /// Adds the chunk item at `at` of the image, whose key has the logical address.
    pub(super) fn add(&mut self, image: &Contents, logical: u64, at: usize) {
        if self
            .chunks
            .iter()
            .any(|chunk| chunk.logical.start == logical)
        {
            return;
        }
        let stripes = 0..usize::from(le16(image, at + 44));
        let place = |index: usize| {
            let stripe = at + CHUNK_LEN + index * STRIPE_LEN;
            let number = le64(image, stripe);
            let device = self.devices.iter().find(|(known, _)| *known == number);
            device.map(|(_, start)| start + le64(image, stripe + 8))
        };
        let stripes = stripes.map(place).collect();
        self.chunks.push(Chunk {
            logical: logical..logical + le64(image, at),
            profile: le64(image, at + 24),
            stripes,
        });
    }

    /// The places of every copy of a logical address, parity aside, and for how many bytes on they hold.
    pub(super) fn places(&self, logical: u64) -> (Vec<usize>, usize) {
        let mut chunks = self.chunks.iter();
        chunks
            .find(|chunk| chunk.logical.contains(&logical))
            .map_or_else(Default::default, |chunk| chunk.places(logical))
    }
}

impl Chunk {
    fn places(&self, logical: u64) -> (Vec<usize>, usize) {
        let inside = logical - self.logical.start;
        let count = self.stripes.len() as u64;
        let (number, within) = (inside / STRIPE_BYTES, inside % STRIPE_BYTES);
        let (stripes, row) = match self.profile & (RAID0 | RAID10 | RAID5 | RAID6) {
            RAID0 => (number % count..number % count + 1, number / count),
            RAID10 => {
                let pairs = count / 2;
                let first = number % pairs * 2;
                (first..first + 2, number / pairs)
            }
            parity @ (RAID5 | RAID6) => {
                let data = count - if parity == RAID5 { 1 } else { 2 };
                let row = number / data;
                let stripe = (number % data + row) % count;
                (stripe..stripe + 1, row)
            }
            _ => return (self.at(0..count, inside), usize::MAX),
        };
        let left = usize::try_from(STRIPE_BYTES - within).unwrap_or(0);
        (self.at(stripes, row * STRIPE_BYTES + within), left)
    }

    /// The places so many bytes into these stripes.
    fn at(&self, stripes: Range<u64>, offset: u64) -> Vec<usize> {
        let stripe = |index: u64| *self.stripes.get(usize::try_from(index).ok()?)?;
        let places = stripes.filter_map(stripe);
        places
            .filter_map(|start| usize::try_from(start + offset).ok())
            .collect()
    }
}
