//! A thread that does something now and then.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use platter_vfs::{Condition, Result};

/// A running thread; it ends when this is dropped, which waits for what it is doing.
#[derive(Debug)]
pub(super) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_ending: Mutex<bool>,
    ending: Condvar,
}

impl Ticker {
    /// Starts a thread called `name` that calls `tick` with `interval` before and between the calls,
    /// until that gives `false`.
    ///
    /// # Errors
    /// `WouldBlock` where the system gives no thread.
    pub(super) fn start(
        name: &str,
        interval: Duration,
        mut tick: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let waiting = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || while !waiting.ends_within(interval) && tick() {})
            .map_err(|_| Condition::WouldBlock)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        *self.shared.is_ending.lock() = true;
        self.shared.ending.notify_all();
        if let Some(thread) = self.thread.take() {
            // When it panicked, that was told.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Waits for the end, at most for `interval`.
    fn ends_within(&self, interval: Duration) -> bool {
        let mut is_ending = self.is_ending.lock();
        if !*is_ending {
            self.ending.wait_for(&mut is_ending, interval);
        }
        *is_ending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn ticks_come_until_it_is_dropped() {
        let count = Arc::new(AtomicU32::new(0));
        let (counted, (sender, ticks)) = (Arc::clone(&count), channel());
        let ticker = Ticker::start("ticks", Duration::from_millis(1), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            sender.send(()).is_ok()
        })
        .unwrap();
        for _ in 0..3 {
            ticks.recv().unwrap();
        }
        drop(ticker);
        let ended_at = count.load(Ordering::Relaxed);
        assert!(ended_at >= 3);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn its_end_does_not_wait_for_the_next_tick() {
        let ticker = Ticker::start("ticks", Duration::from_hours(1), || true).unwrap();
        drop(ticker);
    }
}
