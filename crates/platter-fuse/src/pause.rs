//! Pauses between requests to a filesystem that is not ready.

use std::thread;
use std::time::Duration;

/// A pause that gets longer each time, up to a limit.
#[derive(Debug)]
pub(crate) struct Pause {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Pause {
    /// A pause that begins with `min`.
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        let next = min;
        Self { min, max, next }
    }

    /// Waits, twice as long the next time.
    pub(crate) fn wait(&mut self) {
        thread::sleep(self.next);
        self.next = (self.next * 2).min(self.max);
    }

    /// Makes the next pause the shortest one.
    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_get_longer_up_to_their_limit() {
        let micros = Duration::from_micros;
        let mut pause = Pause::new(micros(1), micros(3));
        for expected in [1, 2, 3, 3] {
            assert_eq!(pause.next, micros(expected));
            pause.wait();
        }
        pause.reset();
        assert_eq!(pause.next, micros(1));
    }
}
