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

impl FormatOptions {
    /// Makes the shortest image of those that are longer than another by a hundredth, or by 4 KiB.
    pub(super) fn make_smallest(&self, draft: &Draft) -> Result<()> {
        let mut full = None;
        for class in self.new.driver().length_classes() {
            match self.make_smallest_of(draft, &class) {
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
    fn make_smallest_of(&self, draft: &Draft, class: &Range<u64>) -> Result<()> {
        let data = self
            .content
            .as_ref()
            .map_or(Ok(0), |content| content.data_bytes())?;
        if data >= class.end.saturating_mul(2) {
            return Err(super::full(&draft.clear(0)?));
        }
        let needed = self.measure(draft, class)?;
        let mut len = self.first_with(draft, needed, class)?;
        let mut fits = self.try_size(draft, len);
        for _ in 0..STEPS_MAX {
            match fits {
                Err(error) if is_full(&error) => {}
                fits => {
                    fits?;
                    return self.make_shorter(draft, len, class);
                }
            }
            // Fragmented free space needed more of itself for its records.
            len += step(len);
            fits = self.try_size(draft, len);
        }
        fits
    }

    /// Goes down from a length that is enough until the next step is too short.
    fn make_shorter(&self, draft: &Draft, mut len: u64, class: &Range<u64>) -> Result<()> {
        for _ in 0..STEPS_MAX {
            let shorter = len.saturating_sub(step(len));
            if shorter < class.start {
                break;
            }
            let trial = draft.sibling()?;
            match self.try_size(&trial, shorter) {
                Ok(()) => len = shorter,
                Err(error) if is_full(&error) => break,
                Err(error) => return Err(error),
            }
            draft.replace_by(trial)?;
        }
        Ok(())
    }

    /// The bytes that the content takes in images of lengths in `class`.
    fn measure(&self, draft: &Draft, class: &Range<u64>) -> Result<u64> {
        let mut len = self.likely_bytes()?.max(class.start);
        for _ in 0..SIZES_MAX {
            len = len.min(class.end - UNIT_BYTES);
            let before = self.free_bytes(draft, len)?;
            match self.try_size(draft, len) {
                Err(error) if is_full(&error) && len + UNIT_BYTES < class.end => {
                    len = (len + len / 4).next_multiple_of(UNIT_BYTES);
                }
                made => {
                    made?;
                    let left = self.free_bytes_of(&draft.open()?)?;
                    return Ok(before.unwrap_or(0).saturating_sub(left));
                }
            }
        }
        Err(super::full(&draft.open()?))
    }

    /// The first length in `class` at which `needed` bytes are free.
    fn first_with(&self, draft: &Draft, needed: u64, class: &Range<u64>) -> Result<u64> {
        let unit = UNIT_BYTES.max(self.new.driver().length_unit_bytes());
        let mut len = needed.max(class.start).next_multiple_of(unit);
        for _ in 0..LENGTHS_MAX {
            let free = self.free_bytes(draft, len)?;
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
        Err(super::full(&draft.open()?))
    }

    /// What is free in an empty image; `None` where it is too short for one.
    fn free_bytes(&self, draft: &Draft, len: u64) -> Result<Option<u64>> {
        let image = draft.clear(len)?;
        match self.make_empty(
            &ImageSet::from(&image),
            OnDevice::Zeros,
            &*self.fresh_clock(),
        ) {
            Err(error) if is_full(&error) => Ok(None),
            made => {
                made?;
                self.free_bytes_of(&image).map(Some)
            }
        }
    }

    fn free_bytes_of(&self, image: &Image) -> Result<u64> {
        let free = self.new.driver().free_bytes(image.device());
        free.map_err(|error| Error::new(image.name(), error))
    }
}

fn step(len: u64) -> u64 {
    let part = len / STEP_PART;
    (part - part % UNIT_BYTES).max(UNIT_BYTES)
}
