//! Threads that run a task again and again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use platter_block::lock::{Condvar, Mutex, rank};

/// A running thread; it ends when this is dropped, which waits for the run in progress.
#[derive(Debug)]
pub struct BackgroundWorker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Lets a [`BackgroundWorker`] run before its time.
#[derive(Debug, Clone)]
pub struct WorkerWake(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Whether the thread runs, and what it is asked for.
    state: Mutex<State, { rank(11, 3) }>,
    changed: Condvar,
    /// A wake lets the next run begin early.
    listens: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    is_ending: bool,
    is_woken: bool,
}

/// When the next run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRun {
    /// After this time.
    In(Duration),
    /// After this time, or when it is [woken](WorkerWake).
    WhenWokenOrIn(Duration),
    /// Never: the thread ends.
    Never,
}

impl BackgroundWorker {
    /// Starts a thread called `name` that calls `run` when `first` says, and later when each call does.
    ///
    /// # Errors
    /// Those of the system where it starts no thread.
    pub fn start(
        name: &str,
        first: NextRun,
        mut run: impl FnMut() -> NextRun + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let waiting = Arc::clone(&shared);
        let mut next = first;
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            while waiting.wait(next) {
                next = run();
            }
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// What lets it run early.
    #[must_use]
    pub fn wake(&self) -> WorkerWake {
        WorkerWake(Arc::clone(&self.shared))
    }
}

impl Drop for BackgroundWorker {
    fn drop(&mut self) {
        self.shared.state.lock().is_ending = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // When it panicked, that was reported.
            let _ = thread.join();
        }
    }
}

impl WorkerWake {
    /// Lets the next run begin now, if the worker [waits](NextRun::WhenWokenOrIn) that way. Costs one
    /// load otherwise.
    pub fn wake(&self) {
        let Self(shared) = self;
        if shared.listens.load(Ordering::Relaxed) && shared.listens.swap(false, Ordering::AcqRel) {
            shared.state.lock().is_woken = true;
            shared.changed.notify_all();
        }
    }
}

impl Shared {
    /// Waits for the next run. Returns whether there is one.
    fn wait(&self, next: NextRun) -> bool {
        let (interval, listens) = match next {
            NextRun::In(interval) => (interval, false),
            NextRun::WhenWokenOrIn(interval) => (interval, true),
            NextRun::Never => return false,
        };
        self.listens.store(listens, Ordering::Release);
        let mut state = self.state.lock();
        if !state.is_ending && !state.is_woken {
            self.changed.wait_for(&mut state, interval);
        }
        state.is_woken = false;
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
    fn worker_runs_until_it_is_dropped() {
        let count = Arc::new(AtomicU32::new(0));
        let (counted, (sender, runs)) = (Arc::clone(&count), channel());
        let next = NextRun::In(Duration::from_millis(1));
        let worker = BackgroundWorker::start("runs", next, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            sender.send(()).unwrap();
            next
        })
        .unwrap();
        for _ in 0..3 {
            runs.recv().unwrap();
        }
        // The next one may come before it ends.
        drop(worker);
        let ended_at = count.load(Ordering::Relaxed);
        assert!(ended_at >= 3);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn worker_ends_without_waiting_for_its_next_run() {
        let worker = BackgroundWorker::start("runs", NextRun::In(LONG), || NextRun::Never).unwrap();
        drop(worker);
    }

    #[test]
    fn a_tick_comes_early_when_it_is_woken_for() {
        let (sender, runs) = channel();
        let worker = BackgroundWorker::start("runs", NextRun::In(Duration::ZERO), move || {
            sender.send(()).unwrap();
            NextRun::WhenWokenOrIn(LONG)
        })
        .unwrap();
        let wake = worker.wake();
        for _ in 0..3 {
            runs.recv().unwrap();
            // It may not listen yet.
            while !wake.0.listens.load(Ordering::Acquire) {
                thread::yield_now();
            }
            wake.wake();
        }
        drop(worker);
    }
}
