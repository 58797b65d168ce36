//! The CPU affinity of a queue's thread.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On the processor of its queue, with its caller, which waits.
    Home,
    /// On another one: its caller continues meanwhile.
    Away,
}

/// The affinity of the current thread, within the processors of the process.
#[derive(Debug)]
pub(super) struct Seat {
    home: CpuSet,
    away: CpuSet,
    /// `None` if the thread cannot be moved.
    place: Option<Place>,
    /// The last request was long.
    was_long: bool,
}

impl Seat {
    /// Binds this thread to the processor of a queue, if permitted.
    pub(super) fn take(queue: u16) -> Self {
        let queue = usize::from(queue);
        let given = sched_getaffinity(None).unwrap_or_default();
        let mut seat = Self {
            home: CpuSet::new(),
            away: given,
            place: None,
            was_long: false,
        };
        seat.away.unset(queue);
        if given.is_set(queue) {
            seat.home.set(queue);
            let is_home = sched_setaffinity(None, &seat.home).is_ok();
            seat.place = (is_home && seat.away.count() > 0).then_some(Place::Home);
        }
        seat
    }

    /// Moves the thread to the best processor for the next request. Only the second of two long
    /// requests is worth moving.
    pub(super) fn finish(&mut self, is_long: bool) {
        let was_long = std::mem::replace(&mut self.was_long, is_long);
        let place = if is_long && was_long {
            Place::Away
        } else {
            Place::Home
        };
        if self.place.is_none_or(|now| now == place) {
            return;
        }
        let processors = match place {
            Place::Home => &self.home,
            Place::Away => &self.away,
        };
        if sched_setaffinity(None, processors).is_ok() {
            self.place = Some(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_moves_for_consecutive_long_requests() {
        let given = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&number| given.is_set(number));
        let queue = u16::try_from(first.unwrap()).unwrap();
        let now = || sched_getaffinity(None).unwrap();
        let (mut home, mut away) = (CpuSet::new(), given);
        home.set(usize::from(queue));
        away.unset(usize::from(queue));
        let mut seat = Seat::take(queue);
        assert_eq!(now(), home);
        seat.finish(true);
        assert_eq!(now(), home, "the caller does not continue meanwhile");
        seat.finish(true);
        assert_eq!(now(), if away.count() > 0 { away } else { home });
        seat.finish(false);
        assert_eq!(now(), home);
        let mut elsewhere = Seat::take(u16::try_from(CpuSet::MAX_CPU - 1).unwrap());
        elsewhere.finish(true);
        elsewhere.finish(true);
        assert_eq!(now(), home, "a processor that is not there is left alone");
    }
}
