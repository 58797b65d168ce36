//! How long single operations take: counts in buckets that grow with what they hold.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{float, now};

/// One of so many operations is timed, so that reading the clock does not slow the fastest ones.
const SAMPLED_ONE_IN: u32 = 16;
/// Buckets for each doubling, as a power of two.
const BUCKETS_PER_OCTAVE_BITS: u32 = 2;

/// Latencies of sampled operations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Latencies {
    /// Bucket to count.
    counts: BTreeMap<u32, u64>,
    #[serde(skip)]
    since_sampled: u32,
}

impl Latencies {
    /// Does `operation`, and times it if it is its turn.
    pub(crate) fn time<T>(&mut self, operation: impl FnOnce() -> T) -> T {
        self.since_sampled += 1;
        if self.since_sampled < SAMPLED_ONE_IN {
            return operation();
        }
        self.since_sampled = 0;
        let start = now();
        let value = operation();
        self.add(start.elapsed());
        value
    }

    /// Does `operation`, and times it in any case: for operations so long, and so few, that each counts.
    pub(crate) fn time_always<T>(&mut self, operation: impl FnOnce() -> T) -> (T, Duration) {
        let start = now();
        let value = operation();
        let taken = start.elapsed();
        self.add(taken);
        (value, taken)
    }

    fn add(&mut self, taken: Duration) {
        let nanoseconds = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        *self.counts.entry(bucket(nanoseconds)).or_default() += 1;
    }

    /// Adds what another thread or run has sampled.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (&bucket, &count) in &other.counts {
            *self.counts.entry(bucket).or_default() += count;
        }
    }

    /// How many operations were sampled.
    pub(crate) fn samples(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Where buckets begin, in nanoseconds, with the share of the samples in each.
    pub(crate) fn shares(&self) -> Vec<(f64, f64)> {
        let samples = float(self.samples().max(1));
        let share = |(&bucket, &count): (&u32, &u64)| (start(bucket), float(count) / samples);
        self.counts.iter().map(share).collect()
    }

    /// The nanoseconds that this share of operations stays below, to the end of its bucket.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share * float(self.samples());
        let mut seen = 0;
        for (&bucket, &count) in &self.counts {
            seen += count;
            if float(seen) >= wanted {
                return Some(start(bucket + 1));
            }
        }
        None
    }
}

fn bucket(nanoseconds: u64) -> u32 {
    let value = nanoseconds.max(1 << BUCKETS_PER_OCTAVE_BITS);
    let octave = value.ilog2();
    let within = value >> (octave - BUCKETS_PER_OCTAVE_BITS);
    let within = u32::try_from(within).unwrap_or(0) - (1 << BUCKETS_PER_OCTAVE_BITS);
    (octave << BUCKETS_PER_OCTAVE_BITS) + within
}

/// The first nanosecond of a bucket.
fn start(bucket: u32) -> f64 {
    let octave = bucket >> BUCKETS_PER_OCTAVE_BITS;
    let parts = f64::from(1 << BUCKETS_PER_OCTAVE_BITS);
    let within = f64::from(bucket & ((1 << BUCKETS_PER_OCTAVE_BITS) - 1));
    f64::from(octave).exp2() * (1.0 + within / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_its_bucket() {
        for nanoseconds in [4, 5, 7, 8, 9, 1000, 1023, 1024, 123_456_789, u64::MAX / 3] {
            let bucket = bucket(nanoseconds);
            let value = float(nanoseconds);
            assert!(
                start(bucket) <= value && value < start(bucket + 1),
                "{nanoseconds}"
            );
        }
        assert_eq!(bucket(0), bucket(4));
    }

    #[test]
    fn one_in_sixteen_is_sampled_and_quantiles_follow() {
        let mut latencies = Latencies::default();
        for _ in 0..160 {
            latencies.time(|| ());
        }
        assert_eq!(latencies.samples(), 10);
        latencies.time_always(|| ());
        assert_eq!(latencies.samples(), 11);
        let mut known = Latencies::default();
        for microseconds in 1..=100 {
            known.add(Duration::from_micros(microseconds));
        }
        let median = known.quantile(0.5).unwrap();
        assert!((50_000.0..64_000.0).contains(&median), "{median}");
        assert!(known.quantile(1.0).unwrap() >= 100_000.0);
        assert_eq!(Latencies::default().quantile(0.5), None);
        let shares: f64 = known.shares().iter().map(|(_, share)| share).sum();
        assert!((shares - 1.0).abs() < 1e-9);
    }
}
