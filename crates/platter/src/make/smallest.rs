//! The shortest image that holds its content.
//!
//! How much space content takes hardly depends on the length of the image, and is known exactly once
//! it was made: what was free before, less what is left. How much there is in an image of some length
//! is known by making it empty, which is quick. So the content is made to be measured, the length is
//! computed, and the content made at that length. That a length one step below is too short is then
//! tried.

use std::ops::Range;

use super::draft::Draft;
use super::{FormatOptions, SIZES_MAX, is_full};
use crate::driver::OnDevice;
use crate::{Error, Image, ImageSet, Result};

/// What lengths are multiples of, and the smallest step between two.
const UNIT_BYTES: u64 = 4 << 10;
/// A step is this part of the length.
const STEP_PART: u64 = 100;
/// Bytes that a longer image may have free beyond what it is longer: a last group becomes worth it
/// that was too short.
const LEAP_BYTES: u64 = 256 << 10;
/// Lengths that are looked at are apart by this part of a step, where they come near.
const NEAR_PART: u64 = 4;
/// Lengths that are looked at empty.
const LENGTHS_MAX: u32 = 1 << 16;
/// Steps, up or down, from the computed length.
const STEPS_MAX: u32 = 50;

/// Makes the shortest image of those that are longer than another by a hundredth, or by 4 KiB.
pub(super) fn make_smallest(options: &FormatOptions, draft: &Draft) -> Result<()> {
    Smallest { options, draft }.make()
}

/// The search for the shortest image, in a draft.
struct Smallest<'a> {
    options: &'a FormatOptions,
    draft: &'a Draft,
}

impl Smallest<'_> {
    /// Makes the shortest image of any class of lengths.
    fn make(&self) -> Result<()> {
        let mut full = None;
        for class in self.options.new.driver().length_classes() {
            match self.make_of_class(&class) {
                Err(error) if is_full(&error) => full = Some(error),
                made => return made,
            }
        }
        full.map_or(Ok(()), Err)
    }

    /// Makes the shortest image of a length in `class`.
    ///
    /// # Errors
    /// `NoSpace` when none of them is long enough.
    fn make_of_class(&self, class: &Range<u64>) -> Result<()> {
        let data = self
            .options
            .content
            .as_ref()
            .map_or(Ok(0), |content| content.data_bytes(&self.options.progress))?;
        if data >= class.end.saturating_mul(2) {
            return Err(super::full(&self.draft.clear(0)?));
        }
        let needed = self.measure(class)?;
        let mut len = self.first_with(needed, class)?;
        let mut fits = self.options.try_size(self.draft, len);
        for _ in 0..STEPS_MAX {
            match fits {
                Err(error) if is_full(&error) => {}
                fits => {
                    fits?;
                    return self.make_shorter(len, class);
                }
            }
            // Fragmented free space needed more of itself for its records.
            len += step(len);
            fits = self.options.try_size(self.draft, len);
        }
        fits
    }

    /// Goes down from a length that is enough until the next step is too short.
    fn make_shorter(&self, mut len: u64, class: &Range<u64>) -> Result<()> {
        for _ in 0..STEPS_MAX {
            let shorter = len.saturating_sub(step(len));
            if shorter < class.start {
                break;
            }
            let trial = self.draft.sibling()?;
            match self.options.try_size(&trial, shorter) {
                Ok(()) => len = shorter,
                Err(error) if is_full(&error) => break,
                Err(error) => return Err(error),
            }
            self.draft.replace_by(trial)?;
        }
        Ok(())
    }

    /// The bytes that the content takes in images of lengths in `class`.
    fn measure(&self, class: &Range<u64>) -> Result<u64> {
        let mut len = self.options.likely_bytes()?.max(class.start);
        for _ in 0..SIZES_MAX {
            len = len.min(class.end - UNIT_BYTES);
            let before = self.free_bytes(len)?;
            match self.options.try_size(self.draft, len) {
                Err(error) if is_full(&error) && len + UNIT_BYTES < class.end => {
                    len = (len + len / 4).next_multiple_of(UNIT_BYTES);
                }
                made => {
                    made?;
                    let left = self.free_bytes_of(&self.draft.open()?)?;
                    return Ok(before.unwrap_or(0).saturating_sub(left));
                }
            }
        }
        Err(super::full(&self.draft.open()?))
    }

    /// The first length in `class` at which `needed` bytes are free.
    fn first_with(&self, needed: u64, class: &Range<u64>) -> Result<u64> {
        let unit = UNIT_BYTES.max(self.options.new.driver().length_unit_bytes());
        let mut len = needed.max(class.start).next_multiple_of(unit);
        for _ in 0..LENGTHS_MAX {
            let free = self.free_bytes(len)?;
            let missing = needed.saturating_sub(free.unwrap_or(0));
            if free.is_some() && missing == 0 {
                return Ok(len);
            }
            let sure = free.map_or(0, |_| missing.saturating_sub(LEAP_BYTES));
            let near = step(len) / NEAR_PART;
            len += sure.max(near).next_multiple_of(unit).max(unit);
            if len >= class.end {
                break;
            }
        }
        Err(super::full(&self.draft.open()?))
    }

    /// What is free in an empty image; `None` where it is too short for one.
    fn free_bytes(&self, len: u64) -> Result<Option<u64>> {
        let image = self.draft.clear(len)?;
        match self.options.make_empty(
            &ImageSet::from(&image),
            OnDevice::Zeros,
            &*self.options.fresh_clock(),
        ) {
            Err(error) if is_full(&error) => Ok(None),
            made => {
                made?;
                self.free_bytes_of(&image).map(Some)
            }
        }
    }

    fn free_bytes_of(&self, image: &Image) -> Result<u64> {
        let free = self.options.new.driver().free_bytes(image.device());
        free.map_err(|error| Error::new(image.name(), error))
    }
}

fn step(len: u64) -> u64 {
    let part = len / STEP_PART;
    (part - part % UNIT_BYTES).max(UNIT_BYTES)
}
