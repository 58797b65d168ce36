//! Lengths of cached metadata blocks.

/// Bytes of the smallest block, which every block is aligned to.
pub(crate) const UNIT_BYTES: u32 = 64;
const UNIT_SHIFT: u32 = UNIT_BYTES.trailing_zeros();
/// Binary logarithm of the largest length, in units.
const LOG_MAX: u32 = 10;

/// Length of a metadata block: a power of two from 64 bytes to 64 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The number of different lengths.
    pub const COUNT: usize = LOG_MAX as usize + 1;

    /// The length of `bytes`; `None` unless that is a power of two from 64 to 65,536.
    #[must_use]
    pub const fn new(bytes: u32) -> Option<Self> {
        if !bytes.is_power_of_two() {
            return None;
        }
        match bytes.trailing_zeros().checked_sub(UNIT_SHIFT) {
            Some(log) if log <= LOG_MAX => Some(Self(log)),
            Some(_) | None => None,
        }
    }

    /// The length in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        UNIT_BYTES << self.0
    }

    /// The number of this length, from 0.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}
