//! A new filesystem, made once and shared by all that start from it.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use platter_block::{
    Access, BlockDevice, FileDevice, Geometry, IoError, MemoryDevice, OpenOptions, ReadOnlyDevice,
};

use super::Devices;

/// Pieces of zeros that count as holes.
const PIECE_BYTES: usize = 4096;

/// A device that holds a new filesystem, takes no writes, and knows where it holds zeros.
#[derive(Debug)]
pub(super) struct Pristine {
    memory: ReadOnlyDevice,
    /// Where it does not.
    data: Vec<Range<u64>>,
}

impl Pristine {
    /// A device with these bytes, which writes sectors of this size whole or not at all.
    pub(super) fn new(bytes: Vec<u8>, sector_bytes: u32) -> Self {
        let mut data: Vec<Range<u64>> = Vec::new();
        for (at, piece) in (0..).step_by(PIECE_BYTES).zip(bytes.chunks(PIECE_BYTES)) {
            let end = at + piece.len() as u64;
            match data.last_mut() {
                _ if piece.iter().all(|&byte| byte == 0) => {}
                Some(last) if last.end == at => last.end = end,
                _ => data.push(at..end),
            }
        }
        let memory = MemoryDevice::new("image", bytes).with_blocks(sector_bytes);
        Self {
            memory: ReadOnlyDevice::new(Arc::new(memory)),
            data,
        }
    }
}

/// Reads image files into devices that take no writes, and which write sectors of this size whole or
/// not at all.
pub fn devices_of_files(images: &[&Path], sector_bytes: u32) -> Result<Devices> {
    let device = |image: &&Path| -> Result<Arc<dyn BlockDevice>> {
        Ok(Arc::new(Pristine::new(std::fs::read(image)?, sector_bytes)))
    };
    images.iter().map(device).collect()
}

/// Opens image files as devices.
pub(crate) fn open_images(images: &[&Path], access: Access) -> Result<Devices> {
    let open = |image: &&Path| -> Result<Arc<dyn BlockDevice>> {
        let options = OpenOptions {
            access,
            ..OpenOptions::default()
        };
        Ok(Arc::new(FileDevice::open(image, options)?))
    };
    images.iter().map(open).collect()
}

/// Writes what a device holds into a sparse file.
pub fn store(device: &dyn BlockDevice, image: &Path) -> Result<()> {
    let len = device.geometry().len_bytes;
    let file = File::create(image)?;
    file.set_len(len)?;
    let mut bytes = vec![0; 64 << 10];
    for at in (0..len).step_by(bytes.len()) {
        let count = usize::try_from(len - at)?.min(bytes.len());
        device.read_at(at, &mut bytes[..count])?;
        if bytes[..count].iter().any(|&byte| byte != 0) {
            file.write_all_at(&bytes[..count], at)?;
        }
    }
    Ok(())
}

impl BlockDevice for Pristine {
    fn name(&self) -> &Arc<str> {
        self.memory.name()
    }

    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.memory.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.memory.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.memory.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        self.memory.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.memory.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.memory.discard(range)
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        let next = self.data.partition_point(|data| data.end <= offset);
        Ok(self
            .data
            .get(next)
            .map(|data| data.start.max(offset)..data.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_no_data() {
        let mut bytes = vec![0; 10 * PIECE_BYTES + 100];
        bytes[PIECE_BYTES + 3] = 1;
        bytes[2 * PIECE_BYTES] = 1;
        bytes[10 * PIECE_BYTES + 99] = 1;
        let device = Pristine::new(bytes, 512);
        assert_eq!(device.next_data(0).unwrap(), Some(4096..12_288));
        assert_eq!(device.next_data(5000).unwrap(), Some(5000..12_288));
        assert_eq!(device.next_data(12_288).unwrap(), Some(40_960..41_060));
        assert_eq!(device.next_data(41_060).unwrap(), None);
        assert!(device.write_at(0, &[1]).is_err());
    }
}
