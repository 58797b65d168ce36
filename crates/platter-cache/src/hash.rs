//! The hash of numbers for tables.

/// A folded multiplication: neighbouring numbers land far apart, in all bits.
#[expect(clippy::cast_possible_truncation, reason = "the low half is wanted")]
pub(crate) fn spread(number: u64) -> u64 {
    let product = u128::from(number ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    let low = product as u64;
    let high = (product >> 64) as u64;
    low ^ high
}
