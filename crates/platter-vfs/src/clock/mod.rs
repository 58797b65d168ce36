//! Time and randomness come in from outside, so that runs can be repeated byte for byte.

mod fixed;
mod system;

use std::fmt::Debug;
use std::time::Duration;

use platter_ondisk::Uuid;

pub use self::fixed::FixedClock;
pub use self::system::SystemClock;
use crate::Timestamp;

/// Where a filesystem takes its time and its random numbers from.
pub trait Clock: Send + Sync + Debug {
    /// The current time, for timestamps on disk.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment, never going backwards, for intervals and timeouts.
    fn monotonic(&self) -> Duration;

    /// The next number of a sequence that a fixed seed repeats.
    fn random_u64(&self) -> u64;

    /// The next random UUID of that sequence (RFC 9562, version 4).
    fn random_uuid(&self) -> Uuid {
        let (low, high) = (self.random_u64(), self.random_u64());
        let random = u128::from(high) << 64 | u128::from(low);
        let version = random & !(0xf << 76) | 4 << 76;
        let variant = version & !(0b11 << 62) | 0b10 << 62;
        Uuid::from_bytes(variant.to_be_bytes())
    }
}
