//! The machine's own clock and random numbers.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};

use super::Clock;
use crate::Timestamp;

/// Random numbers that are fetched with one system call.
const NUMBERS: usize = 32;

thread_local! {
    /// Numbers that were fetched and not given yet. Threads have their own, so as not to meet.
    static FETCHED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The machine's time, and random numbers from the kernel.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    /// For numbers where the kernel gives none: keys from the process start, counted on.
    spare_keys: RandomState,
    spare_count: AtomicU64,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock that owns the machine's time"
    )]
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            spare_keys: RandomState::new(),
            spare_count: AtomicU64::new(0),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock that owns the machine's time"
    )]
    fn now(&self) -> Timestamp {
        timestamp(SystemTime::now())
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    fn random_u64(&self) -> u64 {
        if let Some(number) = FETCHED.with_borrow_mut(next_fetched) {
            return number;
        }
        let count = self.spare_count.fetch_add(1, Ordering::Relaxed);
        self.spare_keys.hash_one(count)
    }
}

/// The next of the numbers, after fetching more where there is none.
fn next_fetched(fetched: &mut Vec<u64>) -> Option<u64> {
    if fetched.is_empty() {
        let mut bytes = [0; NUMBERS * size_of::<u64>()];
        if getrandom(&mut bytes, GetRandomFlags::empty()) == Ok(bytes.len()) {
            let (numbers, _) = bytes.as_chunks();
            fetched.extend(numbers.iter().map(|&number| u64::from_le_bytes(number)));
        }
    }
    fetched.pop()
}

/// `time` with its seconds rounded down, also before 1970.
fn timestamp(time: SystemTime) -> Timestamp {
    let whole = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: whole(after),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let borrow = before.subsec_nanos() > 0;
            Timestamp {
                seconds: -whole(before) - i64::from(borrow),
                nanoseconds: if borrow {
                    1_000_000_000 - before.subsec_nanos()
                } else {
                    0
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn time_before_1970_rounds_down() {
        let quarter = Duration::from_millis(250);
        for (time, seconds, nanoseconds) in [
            (UNIX_EPOCH, 0, 0),
            (UNIX_EPOCH + quarter, 0, 250_000_000),
            (UNIX_EPOCH - quarter, -1, 750_000_000),
            (UNIX_EPOCH - Duration::from_secs(2), -2, 0),
        ] {
            let expected = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(timestamp(time), expected);
        }
    }

    #[test]
    fn system_time_moves_and_numbers_differ() {
        let clock = SystemClock::default();
        assert!(clock.now().seconds > 1_600_000_000);
        let earlier = clock.monotonic();
        assert!(clock.monotonic() >= earlier);
        let numbers: HashSet<u64> = (0..3 * NUMBERS).map(|_| clock.random_u64()).collect();
        assert_eq!(numbers.len(), 3 * NUMBERS);
    }
}
