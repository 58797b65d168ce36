//! Which logs a thread has a handle of, known to debug builds: to begin another one, or to commit,
//! would be to wait for a commit that waits for the first.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::Log;

thread_local! {
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Says that this thread has a handle of a log, which stays on the thread.
#[derive(Debug)]
pub(super) struct Held {
    log: usize,
    /// Not to be sent to another thread.
    thread: PhantomData<*const ()>,
}

impl Held {
    pub(super) fn note(log: &Log) -> Self {
        let log = address(log);
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| held.push(log));
        }
        Self {
            log,
            thread: PhantomData,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| {
                if let Some(index) = held.iter().position(|log| *log == self.log) {
                    held.swap_remove(index);
                }
            });
        }
    }
}

/// Asserts that this thread may wait for a commit of `log`.
pub(super) fn assert_none_of(log: &Log) {
    debug_assert!(
        HELD.with_borrow(|held| !held.contains(&address(log))),
        "who holds a handle waits for no commit"
    );
}

fn address(log: &Log) -> usize {
    std::ptr::from_ref(log).addr()
}
