//! A thread that does something now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Has a [`Ticker`] tick before its time.
#[derive(Debug, Clone)]
pub(super) struct Bell(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The next tick is to come early when the bell rings.
    listens: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    is_ending: bool,
    is_rung: bool,
}

/// When the next tick comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// After this time.
    In(Duration),
    /// After this time, or when the [bell](Bell) rings.
    WhenRungOrIn(Duration),
    /// Never: the thread ends.
    Never,
}

impl Ticker {
    /// Starts a thread called `name` that calls `tick` as `first` and later each call says.
    ///
    /// # Errors
    /// `WouldBlock` where the system gives no thread.
    pub(super) fn start(
        name: &str,
        first: Next,
        mut tick: impl FnMut() -> Next + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let waiting = Arc::clone(&shared);
        let mut next = first;
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                while waiting.wait(next) {
                    next = tick();
                }
            })
            .map_err(|_| Condition::WouldBlock)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// What makes it tick early.
    pub(super) fn bell(&self) -> Bell {
        Bell(Arc::clone(&self.shared))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.state.lock().is_ending = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // When it panicked, that was told.
            let _ = thread.join();
        }
    }
}

impl Bell {
    /// Has the next tick come now, if it is [waited for](Next::WhenRungOrIn) that way. Costs next to
    /// nothing otherwise.
    pub(super) fn ring(&self) {
        let Self(shared) = self;
        if shared.listens.load(Ordering::Relaxed) && shared.listens.swap(false, Ordering::AcqRel) {
            shared.state.lock().is_rung = true;
            shared.changed.notify_all();
        }
    }
}

impl Shared {
    /// Waits for the next tick. Returns whether there is one.
    fn wait(&self, next: Next) -> bool {
        let (interval, listens) = match next {
            Next::In(interval) => (interval, false),
            Next::WhenRungOrIn(interval) => (interval, true),
            Next::Never => return false,
        };
        self.listens.store(listens, Ordering::Release);
        let mut state = self.state.lock();
        if !state.is_ending && !state.is_rung {
            self.changed.wait_for(&mut state, interval);
        }
        state.is_rung = false;
        self.listens.store(false, Ordering::Release);
        !state.is_ending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    #[test]
    fn ticks_come_until_it_is_dropped() {
        let count = Arc::new(AtomicU32::new(0));
        let (counted, (sender, ticks)) = (Arc::clone(&count), channel());
        let next = Next::In(Duration::from_millis(1));
        let ticker = Ticker::start("ticks", next, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            sender.send(()).unwrap();
            next
        })
        .unwrap();
        for _ in 0..3 {
            ticks.recv().unwrap();
        }
        // The next one may come before it ends.
        drop(ticker);
        let ended_at = count.load(Ordering::Relaxed);
        assert!(ended_at >= 3);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn its_end_does_not_wait_for_the_next_tick() {
        let ticker = Ticker::start("ticks", Next::In(LONG), || Next::Never).unwrap();
        drop(ticker);
    }

    #[test]
    fn a_tick_comes_early_when_it_is_rung_for() {
        let (sender, ticks) = channel();
        let ticker = Ticker::start("ticks", Next::In(Duration::ZERO), move || {
            sender.send(()).unwrap();
            Next::WhenRungOrIn(LONG)
        })
        .unwrap();
        let bell = ticker.bell();
        for _ in 0..3 {
            ticks.recv().unwrap();
            // It may not listen yet.
            while !bell.0.listens.load(Ordering::Acquire) {
                thread::yield_now();
            }
            bell.ring();
        }
        drop(ticker);
    }
}
