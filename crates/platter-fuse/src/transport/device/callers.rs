//! How many callers send requests at the same time.

/// How many callers are known at a time.
const KNOWN_MAX: usize = 8;
/// A caller is one of several if it comes back after another one, within so many requests.
const RETURN_MAX: u64 = 16;
/// For how many requests it is then counted.
const COUNTED: u64 = 32;

/// The callers of the last requests. Processes that follow one another, each with many requests, are one at a time.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// Requests so far.
    requests: u64,
    known: [Known; KNOWN_MAX],
    /// The index of the caller of the last request.
    last: usize,
    /// When one last came back.
    last_return: u64,
}

/// A caller, by its thread id.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    caller: u32,
    /// Its last request.
    seen: u64,
    /// Its last request that came after one of another caller; 0 before.
    returned: u64,
}

impl Callers {
    /// Records a request; `caller` is 0 for those of the kernel itself, which are left out.
    pub(crate) fn record(&mut self, caller: u32) {
        if caller == 0 {
            return;
        }
        self.requests += 1;
        let now = self.requests;
        if self.known[self.last].caller != caller {
            let found = self.known.iter().position(|known| known.caller == caller);
            if let Some(at) = found {
                self.last = at;
                if now - self.known[at].seen <= RETURN_MAX {
                    self.known[at].returned = now;
                    self.last_return = now;
                }
            } else {
                let oldest = (0..KNOWN_MAX).min_by_key(|&at| self.known[at].seen);
                self.last = oldest.unwrap_or(0);
                self.known[self.last].caller = caller;
                self.known[self.last].returned = 0;
            }
        }
        self.known[self.last].seen = now;
    }

    /// Returns the number of callers at the same time, 1 at least.
    pub(crate) fn at_a_time(&self) -> usize {
        let is_recent = |at: u64| at != 0 && self.requests - at < COUNTED;
        if !is_recent(self.last_return) {
            return 1;
        }
        let counted = self.known.iter().filter(|known| is_recent(known.returned));
        counted.count().max(1)
    }

    /// Counts one caller until others come back again.
    pub(crate) fn forget(&mut self) {
        self.last_return = 0;
        for known in &mut self.known {
            known.returned = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(requests: impl IntoIterator<Item = u32>) -> Callers {
        let mut callers = Callers::default();
        for caller in requests {
            callers.record(caller);
        }
        callers
    }

    #[test]
    fn processes_one_after_another_are_one_caller() {
        assert_eq!(after([]).at_a_time(), 1);
        assert_eq!(
            after((1..100).flat_map(|caller| [caller; 5])).at_a_time(),
            1
        );
        assert_eq!(
            after([7, 0, 7, 0, 7]).at_a_time(),
            1,
            "requests of the kernel"
        );
    }

    #[test]
    fn callers_that_take_turns_are_counted() {
        for callers in 2..=KNOWN_MAX {
            let numbers = u32::try_from(callers).unwrap();
            let turns = (0..3).flat_map(|_| (1..=numbers).flat_map(|caller| [caller; 2]));
            assert_eq!(after(turns).at_a_time(), callers);
        }
        let many = (0..4).flat_map(|_| 1..40);
        assert_eq!(after(many).at_a_time(), 1, "more than are known");
    }

    #[test]
    fn callers_that_went_are_not_counted_for_long() {
        let mut callers = after([1, 2, 1, 2, 1, 2]);
        assert_eq!(callers.at_a_time(), 2);
        callers.forget();
        assert_eq!(callers.at_a_time(), 1);
        callers.record(1);
        callers.record(2);
        assert_eq!(callers.at_a_time(), 2);
        for _ in 0..COUNTED {
            callers.record(2);
        }
        assert_eq!(callers.at_a_time(), 1);
        callers.record(1);
        assert_eq!(callers.at_a_time(), 1, "one that comes seldom");
    }
}
