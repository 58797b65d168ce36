//! Sparse members in GNU tar's format 1.0: the map of the data comes first, then the data packed.
//! Spec: GNU tar manual, "Storing Sparse Files", PAX format, version 1.0.

use super::pax::append_decimal;
use super::ustar::BLOCK_BYTES;
use crate::data_map::DataMap;

/// The map as text, filled up with zeros to whole blocks: the number of entries, then offset and
/// length of each, one number a line. An empty last entry marks the size, as GNU tar writes it for
/// a file that ends in a hole.
pub(super) fn encode_map(map: &DataMap) -> Vec<u8> {
    let (data, size_bytes) = (map.data(), map.size_bytes());
    let ends_in_hole = data.last().is_none_or(|last| last.end < size_bytes);
    let tail = ends_in_hole.then_some(size_bytes..size_bytes);
    let mut text = Vec::new();
    append_decimal(&mut text, (data.len() + usize::from(ends_in_hole)) as u64);
    text.push(b'\n');
    for range in data.iter().chain(&tail) {
        append_decimal(&mut text, range.start);
        text.push(b'\n');
        append_decimal(&mut text, range.end - range.start);
        text.push(b'\n');
    }
    text.resize(text.len().next_multiple_of(BLOCK_BYTES), 0);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_whole_blocks_and_marks_the_end() {
        let mut map = DataMap::hole(10_000);
        map.push(4096..8192);
        let text = encode_map(&map);
        assert_eq!(text.len(), BLOCK_BYTES);
        assert!(text.starts_with(b"2\n4096\n4096\n10000\n0\n\0"));
        assert!(encode_map(&DataMap::hole(9)).starts_with(b"1\n9\n0\n\0"));
        assert!(encode_map(&DataMap::dense(9)).starts_with(b"1\n0\n9\n\0"));
    }
}
