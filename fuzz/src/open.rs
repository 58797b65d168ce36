//! Bytes as images, with small caches and a clock that stands still.

use std::ops::Range;
use std::sync::Arc;

use platter::block::{BlockDevice, Geometry, IoError, MemoryDevice, Operation};
use platter::{DeviceRole, Image, ImageSet, MemoryBudget, MountOptions};
use platter_block::device::check_range;
use platter_vfs::{FixedClock, Timestamp};

use crate::contents::Contents;

/// The image that `bytes` are.
#[must_use]
pub fn image(bytes: Vec<u8>) -> Image {
    Image::new("mutant", Arc::new(MemoryDevice::new("mutant", bytes)))
}

/// The images that lie one after the other in `contents`, for reading.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn images(contents: &Contents, devices: &[Range<usize>]) -> ImageSet {
    let contents = Arc::new(contents.clone());
    let mut images = (0..).zip(devices).map(|(number, range)| {
        let name: Arc<str> = format!("mutant {number}").into();
        let device = ContentsDevice {
            name: Arc::clone(&name),
            contents: Arc::clone(&contents),
            range: range.clone(),
        };
        Image::new(name, Arc::new(device))
    });
    let first = ImageSet::new(images.next().expect("an image has a device"));
    images.fold(first, |set, image| set.with(DeviceRole::Data, image))
}

/// How images are opened here.
#[must_use]
pub fn options(cache_bytes: u64) -> MountOptions {
    MountOptions::new()
        .budget(Arc::new(MemoryBudget::new(cache_bytes)))
        .clock(Arc::new(FixedClock::new(Timestamp::default(), 0)))
}

/// A range of contents as a device that is only read.
#[derive(Debug)]
struct ContentsDevice {
    name: Arc<str>,
    contents: Arc<Contents>,
    range: Range<usize>,
}

impl BlockDevice for ContentsDevice {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.range.len() as u64,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            read_only: true,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        check_range(self, Operation::Read, offset, buf.len())?;
        let within = usize::try_from(offset).unwrap_or(usize::MAX);
        self.contents.read(self.range.start + within, buf);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let len_bytes = buf.len() as u64;
        Err(IoError::read_only(
            &self.name,
            Operation::Write,
            offset,
            len_bytes,
        ))
    }

    fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        let len_bytes = range.end.saturating_sub(range.start);
        Err(IoError::read_only(
            &self.name,
            Operation::Discard,
            range.start,
            len_bytes,
        ))
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        let start = self.range.start;
        let within = usize::try_from(offset).unwrap_or(usize::MAX);
        let held = self.contents.next_held(start.saturating_add(within));
        let held = held.filter(|held| held.start < self.range.end);
        Ok(held.map(|held| {
            let end = held.end.min(self.range.end);
            (held.start - start) as u64..(end - start) as u64
        }))
    }
}
