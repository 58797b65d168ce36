//! Integers at offsets of an image. A range outside the image reads as zeros and takes nothing: what
//! is read of a mutant may lead there.

use std::borrow::Cow;

use crate::contents::Contents;

pub(super) fn slice(image: &Contents, at: usize, length: usize) -> Cow<'_, [u8]> {
    image.slice(at, length)
}

fn array<const N: usize>(image: &Contents, at: usize) -> [u8; N] {
    image.slice(at, N).as_ref().try_into().unwrap_or([0; N])
}

pub(super) fn byte(image: &Contents, at: usize) -> u8 {
    let [byte] = array(image, at);
    byte
}

pub(super) fn le16(image: &Contents, at: usize) -> u16 {
    u16::from_le_bytes(array(image, at))
}

pub(super) fn le32(image: &Contents, at: usize) -> u32 {
    u32::from_le_bytes(array(image, at))
}

pub(super) fn le64(image: &Contents, at: usize) -> u64 {
    u64::from_le_bytes(array(image, at))
}

pub(super) fn be16(image: &Contents, at: usize) -> u16 {
    u16::from_be_bytes(array(image, at))
}

pub(super) fn be64(image: &Contents, at: usize) -> u64 {
    u64::from_be_bytes(array(image, at))
}

pub(super) fn be32(image: &Contents, at: usize) -> u32 {
    u32::from_be_bytes(array(image, at))
}

pub(super) fn put(image: &mut Contents, at: usize, value: &[u8]) {
    image.put(at, value);
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
