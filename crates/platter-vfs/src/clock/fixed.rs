//! A clock that stands still until it is moved, and random numbers from a seed.

use std::time::Duration;

use platter_block::lock::Mutex;

use super::Clock;
use crate::{Condition, Result, Timestamp};

/// Time that moves only on request, and the same random numbers for the same seed.
#[derive(Debug)]
pub struct FixedClock {
    /// The time.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    now: Timestamp,
    monotonic: Duration,
    random: u64,
}

impl FixedClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn new(now: Timestamp, seed: u64) -> Self {
        let state = State {
            now,
            monotonic: Duration::ZERO,
            random: seed,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// A clock that stands at the value of `SOURCE_DATE_EPOCH`: decimal seconds since 1970.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else.
    pub fn from_source_date_epoch(value: &str, seed: u64) -> Result<Self> {
        let seconds = value.trim().parse();
        let seconds = seconds.map_err(|_| Condition::InvalidArgument)?;
        let now = Timestamp {
            seconds,
            nanoseconds: 0,
        };
        Ok(Self::new(now, seed))
    }

    /// Moves both times forward.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state.lock();
        state.monotonic = state.monotonic.saturating_add(by);
        let nanoseconds = state.now.nanoseconds + by.subsec_nanos();
        let whole = by.as_secs() + u64::from(nanoseconds / 1_000_000_000);
        state.now.nanoseconds = nanoseconds % 1_000_000_000;
        state.now.seconds = state.now.seconds.saturating_add_unsigned(whole);
    }
}

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        self.state.lock().now
    }

    fn monotonic(&self) -> Duration {
        self.state.lock().monotonic
    }

    /// splitmix64: a counter with a mixing function over it.
    fn random_u64(&self) -> u64 {
        let mut state = self.state.lock();
        state.random = state.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers() {
        let clocks = [7, 7, 8].map(|seed| FixedClock::new(Timestamp::default(), seed));
        let [first, again, other] = clocks.map(|clock| [clock.random_u64(), clock.random_u64()]);
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert_ne!(first[0], first[1]);
    }

    #[test]
    fn time_stands_until_it_is_moved() {
        let clock = FixedClock::from_source_date_epoch("1700000000", 0).unwrap();
        assert_eq!(clock.now(), clock.now());
        clock.advance(Duration::from_millis(1_600));
        clock.advance(Duration::from_millis(600));
        let expected = Timestamp {
            seconds: 1_700_000_002,
            nanoseconds: 200_000_000,
        };
        assert_eq!(clock.now(), expected);
        assert_eq!(clock.monotonic(), Duration::from_millis(2_200));
    }

    #[test]
    fn a_date_that_is_no_number_is_refused() {
        assert!(FixedClock::from_source_date_epoch("yesterday", 0).is_err());
    }
}
