//! Integers at offsets of an image. A range outside the image reads as zeros and takes nothing:
//! mutation may have cut it off.

pub(super) fn slice(image: &[u8], at: usize, length: usize) -> &[u8] {
    image.get(at..at + length).unwrap_or_default()
}

pub(super) fn le16(image: &[u8], at: usize) -> u16 {
    slice(image, at, 2).try_into().map_or(0, u16::from_le_bytes)
}

pub(super) fn le32(image: &[u8], at: usize) -> u32 {
    slice(image, at, 4).try_into().map_or(0, u32::from_le_bytes)
}

pub(super) fn le64(image: &[u8], at: usize) -> u64 {
    slice(image, at, 8).try_into().map_or(0, u64::from_le_bytes)
}

pub(super) fn be16(image: &[u8], at: usize) -> u16 {
    slice(image, at, 2).try_into().map_or(0, u16::from_be_bytes)
}

pub(super) fn be64(image: &[u8], at: usize) -> u64 {
    slice(image, at, 8).try_into().map_or(0, u64::from_be_bytes)
}

pub(super) fn be32(image: &[u8], at: usize) -> u32 {
    slice(image, at, 4).try_into().map_or(0, u32::from_be_bytes)
}

pub(super) fn put(image: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = image.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// The low half of a 32-bit checksum.
pub(super) fn low(checksum: u32) -> [u8; 2] {
    let [first, second, ..] = checksum.to_le_bytes();
    [first, second]
}

/// The high half of a 32-bit checksum.
pub(super) fn high(checksum: u32) -> [u8; 2] {
    let [.., third, fourth] = checksum.to_le_bytes();
    [third, fourth]
}
