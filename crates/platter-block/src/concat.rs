//! Several devices concatenated into one.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use crate::device::{
    check_range, check_range_vectored, check_span, read_in_turn, total_len, write_in_turn,
};
use crate::{BlockDevice, Geometry, IoError, Operation};

/// A linear concatenation of devices.
///
/// Errors of a device below name that device and the offset on it.
#[derive(Debug)]
pub struct ConcatDevice {
    name: Arc<str>,
    geometry: Geometry,
    /// Ascending, none empty, contiguous from 0 to the length.
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    start: u64,
    end: u64,
    device: Arc<dyn BlockDevice>,
}

/// The bytes of a request that are in one part.
struct Piece<'a> {
    device: &'a dyn BlockDevice,
    /// Byte range on that device.
    place: Range<u64>,
    /// Byte range in the request's buffer.
    bytes: Range<usize>,
}

impl ConcatDevice {
    /// Concatenates `parts` in the given order. The device is read-only unless all parts are
    /// writable. Without parts its length is zero.
    ///
    /// # Panics
    /// If the total length exceeds `u64::MAX`.
    #[must_use]
    pub fn new(name: &str, parts: Vec<Arc<dyn BlockDevice>>) -> Self {
        let mut geometry = Geometry {
            len_bytes: 0,
            logical_block_bytes: 1,
            physical_block_bytes: 1,
            read_only: false,
        };
        let mut joined = Vec::with_capacity(parts.len());
        for device in parts {
            let part = device.geometry();
            let start = geometry.len_bytes;
            let end = start.checked_add(part.len_bytes);
            let end = end.expect("the total length fits in 64 bits");
            geometry = Geometry {
                len_bytes: end,
                logical_block_bytes: geometry.logical_block_bytes.max(part.logical_block_bytes),
                physical_block_bytes: geometry.physical_block_bytes.max(part.physical_block_bytes),
                read_only: geometry.read_only || part.read_only,
            };
            if start < end {
                joined.push(Part { start, end, device });
            }
        }
        Self {
            name: name.into(),
            geometry,
            parts: joined,
        }
    }

    /// Returns the parts that overlap a range, which is within the device.
    fn touched(&self, range: &Range<u64>) -> &[Part] {
        let first = self.parts.partition_point(|part| part.end <= range.start);
        let end = self.parts.partition_point(|part| part.start < range.end);
        self.parts.get(first..end).unwrap_or_default()
    }

    /// Returns the part that contains the whole request, and the offset on it.
    fn part_of(&self, offset: u64, len: usize) -> Option<(&dyn BlockDevice, u64)> {
        match self.touched(&(offset..offset + len as u64)) {
            [part] => Some((&*part.device, offset - part.start)),
            _ => None,
        }
    }

    /// Splits a request, which is within the device, into its parts.
    fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece<'_>> {
        let range = offset..offset + len as u64;
        let in_request = move |at: u64| usize::try_from(at.saturating_sub(offset)).unwrap_or(len);
        self.touched(&range).iter().map(move |part| {
            let (start, end) = (range.start.max(part.start), range.end.min(part.end));
            Piece {
                device: &*part.device,
                place: start - part.start..end - part.start,
                bytes: in_request(start)..in_request(end),
            }
        })
    }
}

impl BlockDevice for ConcatDevice {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        check_range(self, Operation::Read, offset, buf.len())?;
        for piece in self.pieces(offset, buf.len()) {
            piece
                .device
                .read_at(piece.place.start, &mut buf[piece.bytes])?;
        }
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Read, offset, bufs)?;
        if let Some((device, offset)) = self.part_of(offset, total_len(bufs)) {
            return device.read_vectored_at(offset, bufs);
        }
        read_in_turn(self, offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        check_range(self, Operation::Write, offset, buf.len())?;
        for piece in self.pieces(offset, buf.len()) {
            piece
                .device
                .write_at(piece.place.start, &buf[piece.bytes])?;
        }
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Write, offset, bufs)?;
        if let Some((device, offset)) = self.part_of(offset, total_len(bufs)) {
            return device.write_vectored_at(offset, bufs);
        }
        write_in_turn(self, offset, bufs)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.parts.iter().try_for_each(|part| part.device.flush())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        check_span(self, Operation::Discard, &range)?;
        self.touched(&range).iter().try_for_each(|part| {
            let (start, end) = (range.start.max(part.start), range.end.min(part.end));
            part.device.discard(start - part.start..end - part.start)
        })
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        let first = self.parts.partition_point(|part| part.end <= offset);
        for part in &self.parts[first..] {
            let from = offset.saturating_sub(part.start);
            if let Some(data) = part.device.next_data(from)? {
                return Ok(Some(part.start + data.start..part.start + data.end));
            }
        }
        Ok(None)
    }

    fn will_need(&self, range: Range<u64>) {
        for part in self.touched(&range) {
            let (start, end) = (range.start.max(part.start), range.end.min(part.end));
            part.device.will_need(start - part.start..end - part.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn device() -> (Vec<Arc<MemoryDevice>>, ConcatDevice) {
        let part = |len| Arc::new(MemoryDevice::new("part", vec![0; len]));
        let parts: Vec<_> = [1000, 0, 512, 3000].map(part).into();
        let devices = parts.iter().map(|part| {
            let part: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(part);
            part
        });
        let joined = ConcatDevice::new("joined", devices.collect());
        (parts, joined)
    }

    #[test]
    fn parts_are_concatenated_in_order() {
        let (parts, joined) = device();
        assert_eq!(joined.geometry().len_bytes, 4512);
        let mut expected = vec![0; 4512];
        for (offset, len, byte) in [
            (0, 4512, 1),
            (999, 2, 2),
            (990, 600, 3),
            (1000, 512, 4),
            (1511, 1, 5),
            (1512, 3000, 6),
            (4000, 0, 7),
        ] {
            joined.write_at(offset as u64, &vec![byte; len]).unwrap();
            expected[offset..offset + len].fill(byte);
            let mut found = vec![9; 4512];
            joined.read_at(0, &mut found).unwrap();
            assert!(found == expected, "{offset}");
        }
        let below: Vec<u8> = parts.iter().flat_map(|part| part.snapshot()).collect();
        assert!(below == expected);
        joined.flush().unwrap();
    }

    #[test]
    fn vectored_requests_cross_part_boundaries() {
        let (_, joined) = device();
        let (one, two) = ([1; 700], [2; 900]);
        for offset in [0, 500, 1512, 2912] {
            let bufs = [IoSlice::new(&one), IoSlice::new(&two)];
            joined.write_vectored_at(offset, &bufs).unwrap();
            let (mut first, mut second) = ([0; 800], [0; 800]);
            let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            joined.read_vectored_at(offset, &mut bufs).unwrap();
            assert!(first[..700] == one && first[700..] == two[..100] && second == two[100..]);
        }
    }

    #[test]
    fn requests_beyond_the_end_are_refused() {
        let (_, joined) = device();
        let mut buf = [0; 2];
        assert!(joined.read_at(4511, &mut buf).is_err());
        assert!(joined.read_at(u64::MAX, &mut buf).is_err());
        assert!(joined.write_at(4511, &buf).is_err());
        assert!(joined.discard(0..4513).is_err());
        joined.will_need(4000..u64::MAX);
    }

    #[test]
    fn holes_of_each_part_are_reported() {
        let (_, joined) = device();
        joined.write_at(0, &[1; 4512]).unwrap();
        let data = joined.next_data(1200).unwrap().unwrap();
        assert_eq!(data, 1200..1512);
        assert_eq!(joined.next_data(4512).unwrap(), None);
        assert_eq!(joined.next_data(u64::MAX).unwrap(), None);
        joined.discard(900..1600).unwrap();
        let mut found = [9; 800];
        joined.read_at(850, &mut found).unwrap();
        assert!(found[..50] == [1; 50] && found[50..750] == [0; 700] && found[750..] == [1; 50]);
    }
}
