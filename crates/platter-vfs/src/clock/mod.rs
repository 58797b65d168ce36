//! Time and randomness come in from outside, so that runs can be repeated byte for byte.

mod fixed;
mod system;

use std::fmt::Debug;
use std::time::Duration;

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
}
