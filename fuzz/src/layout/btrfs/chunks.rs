//! From logical addresses to places in the image of one device. Spec: `btrfs/chunk`.

use std::ops::Range;

use super::super::bytes::{le16, le64};

/// A chunk without its stripes, and each stripe.
const CHUNK_LEN: usize = 48;
const STRIPE_LEN: usize = 32;
/// A key.
const KEY_LEN: usize = 17;

/// A run of logical addresses, and where its copies begin on the device.
#[derive(Debug)]
struct Chunk {
    logical: Range<u64>,
    places: Vec<u64>,
}

/// All chunks.
#[derive(Debug)]
pub(super) struct Chunks {
    device: u64,
    chunks: Vec<Chunk>,
}

impl Chunks {
    pub(super) fn new(device: u64) -> Self {
        Self {
            device,
            chunks: Vec::new(),
        }
    }

    /// Adds the chunks of the array in the superblock.
    pub(super) fn add_array(&mut self, image: &[u8], array: Range<usize>) {
        let mut at = array.start;
        while at + KEY_LEN + CHUNK_LEN <= array.end {
            let stripes = usize::from(le16(image, at + KEY_LEN + 44));
            self.add(image, le64(image, at + 9), at + KEY_LEN);
            at += KEY_LEN + CHUNK_LEN + stripes * STRIPE_LEN;
        }
    }

    /// Adds the chunk item at `at` of the image, whose key has the logical address.
    pub(super) fn add(&mut self, image: &[u8], logical: u64, at: usize) {
        if self
            .chunks
            .iter()
            .any(|chunk| chunk.logical.start == logical)
        {
            return;
        }
        let stripes = usize::from(le16(image, at + 44));
        let stripe = |index: usize| at + CHUNK_LEN + index * STRIPE_LEN;
        let here = (0..stripes).filter(|&index| le64(image, stripe(index)) == self.device);
        self.chunks.push(Chunk {
            logical: logical..logical + le64(image, at),
            places: here.map(|index| le64(image, stripe(index) + 8)).collect(),
        });
    }

    /// The places of every copy of a logical address.
    pub(super) fn places(&self, logical: u64) -> Vec<usize> {
        let chunk = self
            .chunks
            .iter()
            .find(|chunk| chunk.logical.contains(&logical));
        let Some(chunk) = chunk else {
            return Vec::new();
        };
        let within = logical - chunk.logical.start;
        let places = chunk.places.iter();
        places
            .filter_map(|place| usize::try_from(place + within).ok())
            .collect()
    }
}
