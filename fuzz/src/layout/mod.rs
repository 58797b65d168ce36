//! Where the structures of an undamaged image lie, and how their checksums are put right after
//! a change: a second, trusting reading of the format that shares no code with the driver.

mod bytes;
mod format;
mod parts;
mod journal;
mod seal;
mod still;

pub use format::Format;
pub use parts::{Kind, Part};

use anyhow::Result;

/// The parts of one image.
#[derive(Debug, Clone)]
pub struct Layout {
    /// What the superblock says.
    pub format: Format,
    /// Every structure, in the order of the image.
    pub parts: Vec<Part>,
}

impl Layout {
    /// Reads an image that is known to be good.
    pub fn read(image: &[u8]) -> Result<Self> {
        let format = Format::read(image)?;
        let mut parts = parts::find(image, &format);
        parts.sort_by_key(|part| part.range.start);
        Ok(Self { format, parts })
    }

    /// The parts that overlap bytes from `start` to `end`.
    pub fn touched(&self, start: usize, end: usize) -> impl Iterator<Item = &Part> {
        let overlaps = move |part: &&Part| part.range.start < end && start < part.range.end;
        self.parts.iter().filter(overlaps)
    }

    /// Puts the checksums of `parts`, and of what covers those checksums, right again.
    pub fn seal(&self, image: &mut [u8], parts: &[Part]) {
        seal::seal(image, &self.format, &self.parts, parts);
    }

    /// Puts every checksum right, after setting all times to one moment: what a tool left of the
    /// time it ran at goes.
    pub fn make_still(&self, image: &mut [u8]) {
        still::set_times(image, self);
        self.seal(image, &self.parts);
    }
}

#[cfg(test)]
mod tests;
