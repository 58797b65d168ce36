//! Whether a thread that has answered looks out for the next request before it blocks.

use std::time::Duration;

/// Maximum number of looks, with `sched_yield(2)` between two: about 50 us on an idle processor.
const LOOKS_MAX: u32 = 96;
/// A request that comes after a longer time is better waited for in the kernel: other threads want the processor, or
/// the caller has work of its own.
const SOON: Duration = Duration::from_micros(400);
/// A request that was waited for, and for no longer than this, could have been looked out for.
const WITHIN_REACH: Duration = Duration::from_micros(100);

const SCORE_MAX: u8 = 8;
/// What looking out in vain costs, where finding a request yields 1.
const VAIN: u8 = 2;

/// Requests that the thread blocks for after it was late: a yield gave the processor to another program, which costs
/// more than many sleeps. So many times more each time, until it was in time for long enough.
const PAUSE_MIN: u32 = 64;
const PAUSE_GROWTH: u32 = 8;
const PAUSE_MAX: u32 = 4096;
const IN_TIME_MIN: u32 = 256;

/// How a series of looks goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Again,
    Enough,
}

/// How often looking out found a request of late.
#[derive(Debug)]
pub(super) struct Patience {
    score: u8,
    pause: u32,
    next_pause: u32,
    /// Requests found since it was late.
    in_time: u32,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self {
            score: SCORE_MAX / 2,
            pause: 0,
            next_pause: PAUSE_MIN,
            in_time: 0,
        }
    }

    /// Whether looking out is worthwhile.
    pub(super) fn is_left(&self) -> bool {
        self.score > 0 && self.pause == 0
    }

    /// Returns whether to look again after this many looks in vain, which took `elapsed`.
    pub(super) fn after(looks: u32, elapsed: Duration) -> Look {
        if looks < LOOKS_MAX && elapsed < SOON {
            Look::Again
        } else {
            Look::Enough
        }
    }

    /// Records a request that was found by looking out for `elapsed`.
    pub(super) fn found(&mut self, elapsed: Duration) {
        if elapsed >= SOON {
            self.was_late();
            return;
        }
        self.score = (self.score + 1).min(SCORE_MAX);
        self.in_time = self.in_time.saturating_add(1);
        if self.in_time >= IN_TIME_MIN {
            self.next_pause = PAUSE_MIN;
        }
    }

    /// Records that looking out for `elapsed` found nothing.
    pub(super) fn missed(&mut self, elapsed: Duration) {
        self.score = self.score.saturating_sub(VAIN);
        if elapsed >= SOON {
            self.was_late();
        }
    }

    /// Records a request that the thread blocked for, for `elapsed` since its last answer.
    pub(super) fn blocked(&mut self, elapsed: Duration) {
        self.pause = self.pause.saturating_sub(1);
        if elapsed < WITHIN_REACH {
            self.score = (self.score + 1).min(SCORE_MAX);
        }
    }

    fn was_late(&mut self) {
        self.pause = self.next_pause;
        self.next_pause = (self.next_pause * PAUSE_GROWTH).min(PAUSE_MAX);
        self.in_time = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_millis(20);

    #[test]
    fn patience_ends_where_requests_are_sparse() {
        let mut patience = Patience::new();
        let mut in_vain = 0;
        while patience.is_left() {
            patience.missed(SHORT);
            in_vain += 1;
        }
        assert!(in_vain <= 2);
        patience.blocked(LONG);
        assert!(!patience.is_left());
        patience.blocked(SHORT);
        assert!(patience.is_left(), "it would have been found");
    }

    #[test]
    fn patience_outlasts_pauses_between_bursts() {
        let mut patience = Patience::new();
        for _ in 0..100 {
            for _ in 0..3 {
                assert!(patience.is_left());
                patience.found(SHORT);
            }
            patience.missed(SHORT);
        }
        assert!(patience.is_left());
    }

    #[test]
    fn patience_ends_where_the_processor_is_wanted() {
        assert_eq!(Patience::after(1, SHORT), Look::Again);
        assert_eq!(Patience::after(1, LONG), Look::Enough);
        assert_eq!(Patience::after(LOOKS_MAX, SHORT), Look::Enough);
        let mut patience = Patience::new();
        let mut pauses = Vec::new();
        for late in 0..5 {
            if late % 2 == 0 {
                patience.found(LONG);
            } else {
                patience.missed(LONG);
            }
            let mut pause = 0;
            while !patience.is_left() {
                patience.blocked(SHORT);
                pause += 1;
            }
            pauses.push(pause);
        }
        assert_eq!(pauses[..2], [PAUSE_MIN, PAUSE_GROWTH * PAUSE_MIN]);
        assert_eq!(pauses[4], PAUSE_MAX);
        for _ in 0..IN_TIME_MIN {
            patience.found(SHORT);
        }
        patience.found(LONG);
        assert_eq!(patience.pause, PAUSE_MIN);
    }
}
