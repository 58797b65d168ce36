//! Where the data of sparse files lies in an archive, in all forms of GNU tar. Spec: GNU tar manual,
//! "Storing Sparse Files".

use std::fs::File;
use std::ops::Range;

use super::super::broken;
use super::walk::{BLOCK_BYTES, Entry, header_number, read_at};
use crate::{Cause, Result};

/// The longest map of a sparse file that is read, in bytes.
const MAP_BYTES_MAX: u64 = 16 << 20;
/// The longest file that Linux has.
const SIZE_BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// The pieces of a file with their places in the archive.
pub(super) type Pieces = Vec<(Range<u64>, u64)>;

/// The size and the pieces of a member's file.
pub(super) fn pieces(archive: &File, entry: &Entry) -> Result<(u64, Pieces), Cause> {
    let (place, len) = (entry.place, entry.len_bytes);
    let sparse = &entry.records.sparse;
    if entry.header.entry_type() == tar::EntryType::GNUSparse {
        let (size_bytes, map) = gnu_map(archive, entry)?;
        return Ok((size_bytes, packed(&map, size_bytes, place, len)?));
    }
    let Some(real_size) = sparse.real_size else {
        return Ok((len, whole(len, place)));
    };
    if !sparse.is_first {
        return Ok((real_size, packed(&sparse.map, real_size, place, len)?));
    }
    let (map, skipped) = read_map(archive, place, len)?;
    let left = len.checked_sub(skipped).ok_or_else(broken_map)?;
    Ok((real_size, packed(&map, real_size, place + skipped, left)?))
}

/// A file all of whose bytes lie in a row.
fn whole(size_bytes: u64, place: u64) -> Pieces {
    let range = 0..size_bytes;
    if range.is_empty() {
        return Vec::new();
    }
    vec![(range, place)]
}

/// A file of which the parts in `map` lie in a row, in `len` bytes at `place`.
fn packed(map: &[u64], size_bytes: u64, place: u64, len: u64) -> Result<Pieces, Cause> {
    let (mut pieces, mut at, mut end) = (Vec::new(), 0u64, 0);
    if size_bytes > SIZE_BYTES_MAX {
        return Err(broken_map());
    }
    for part in map.chunks(2) {
        let &[offset, part] = part else {
            return Err(broken_map());
        };
        let range = offset..offset.checked_add(part).ok_or_else(broken_map)?;
        if range.start < end || range.end > size_bytes {
            return Err(broken_map());
        }
        end = range.end;
        if part > 0 {
            pieces.push((range, place + at));
            at = at.checked_add(part).ok_or_else(broken_map)?;
        }
        if at > len {
            return Err(broken_map());
        }
    }
    Ok(pieces)
}

/// The map of form 1.0: numbers, one a line, filled up to whole blocks. Returns also how long it is
/// with that.
fn read_map(archive: &File, place: u64, len: u64) -> Result<(Vec<u64>, u64), Cause> {
    let mut text = Vec::new();
    let mut numbers: Vec<u64> = Vec::new();
    let mut number: Option<u64> = None;
    let mut at = 0;
    loop {
        if at == text.len() {
            if at as u64 >= len.min(MAP_BYTES_MAX) {
                return Err(broken_map());
            }
            let mut block = *tar::Header::new_old().as_bytes();
            read_at(archive, &mut block, place + at as u64)?;
            text.extend_from_slice(&block);
        }
        match text[at] {
            b'\n' => numbers.push(number.take().ok_or_else(broken_map)?),
            digit @ b'0'..=b'9' => {
                let sum = number.unwrap_or(0).checked_mul(10);
                let sum = sum.and_then(|sum| sum.checked_add(u64::from(digit - b'0')));
                number = Some(sum.ok_or_else(broken_map)?);
            }
            _ => return Err(broken_map()),
        }
        at += 1;
        let wanted = numbers.first().map(|count| count.saturating_mul(2));
        if wanted == Some(numbers.len() as u64 - u64::from(!numbers.is_empty())) {
            break;
        }
    }
    numbers.remove(0);
    Ok((numbers, (at as u64).next_multiple_of(BLOCK_BYTES)))
}

/// GNU tar's own form: the map is in the header and in blocks after it.
fn gnu_map(archive: &File, entry: &Entry) -> Result<(u64, Vec<u64>), Cause> {
    let gnu = entry.header.as_gnu().ok_or_else(broken_map)?;
    let mut map = Vec::new();
    let mut add = |part: &tar::GnuSparseHeader| -> Result<(), Cause> {
        if !part.is_empty() {
            map.extend([header_number(part.offset())?, header_number(part.length())?]);
        }
        Ok(())
    };
    gnu.sparse.iter().try_for_each(&mut add)?;
    let mut place = entry.header_place + BLOCK_BYTES;
    while place < entry.place {
        let mut extended = tar::GnuExtSparseHeader::new();
        read_at(archive, extended.as_mut_bytes(), place)?;
        extended.sparse.iter().try_for_each(&mut add)?;
        place += BLOCK_BYTES;
    }
    Ok((header_number(gnu.real_size())?, map))
}

fn broken_map() -> Cause {
    broken("the map of a sparse file is broken")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_sparse_file_lie_in_a_row() {
        let pieces = packed(&[0, 10, 4096, 20, 8192, 0], 8192, 100, 30).unwrap();
        assert_eq!(pieces, [(0..10, 100), (4096..4116, 110)]);
        for broken in [&[0, 10, 5, 5][..], &[0], &[8000, 1000], &[0, 30, 40, 1]] {
            assert!(packed(broken, 8192, 0, 30).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn no_size_or_place_overflows() {
        for (map, size) in [
            (&[0, 10][..], u64::MAX),
            (&[u64::MAX, 1], u64::MAX),
            (&[0, 1, u64::MAX - 1, 1], SIZE_BYTES_MAX),
        ] {
            assert!(packed(map, size, 0, 30).is_err(), "{map:?}");
        }
        let most = packed(&[SIZE_BYTES_MAX - 1, 1], SIZE_BYTES_MAX, 0, 30);
        assert!(most.is_ok());
    }
}
