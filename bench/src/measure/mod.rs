//! Measuring: time, processors, memory, latencies, the machine, and what may be said of samples.

mod callgrind;
mod latency;
mod process;
mod machine;
mod processor;
mod sample;

use std::time::Instant;

pub(crate) use self::callgrind::{instructions_each, misses_each};
pub(crate) use self::latency::Latencies;
pub(crate) use self::machine::{Machine, Quiet};
pub(crate) use self::process::{children_cpu_seconds, cpu_seconds, peak_bytes};
pub(crate) use self::processor::stay_on_processor;
pub(crate) use self::sample::{Estimate, deviation, exponent, mean, median, ratio};

/// A number of anything that is counted here.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) const fn float(number: u64) -> f64 {
    number as f64
}

/// The time of a monotonic clock.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
