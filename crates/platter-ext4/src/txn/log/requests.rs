//! Requests to commit transactions that are full, to a thread that does nothing else: those who filled
//! one go on with the next as soon as it is closed, while it is written.

use parking_lot::{Condvar, Mutex};

use super::Log;
use crate::ondisk::jbd2::Sequence;

/// What the thread is asked for, if there is one.
#[derive(Debug, Default)]
pub(super) struct Requests {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_served: bool,
    is_ending: bool,
    /// The transaction to be committed.
    full: Option<Sequence>,
}

impl Requests {
    /// Asks for a transaction to be committed. Whether somebody is there to do it.
    pub(super) fn ask(&self, full: Sequence) -> bool {
        let mut state = self.state.lock();
        if state.is_served {
            state.full = Some(full);
            self.rung.notify_all();
        }
        state.is_served
    }

    /// The next transaction to commit; `None` at the end.
    fn wait(&self) -> Option<Sequence> {
        let mut state = self.state.lock();
        state.is_served = !state.is_ending;
        while state.full.is_none() && !state.is_ending {
            self.rung.wait(&mut state);
        }
        state.full.take().filter(|_| !state.is_ending)
    }

    fn end(&self) {
        let mut state = self.state.lock();
        (state.is_served, state.is_ending) = (false, true);
        self.rung.notify_all();
    }
}

/// That somebody serves, however it ends.
struct Service<'l> {
    log: &'l Log,
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        self.log.end_service();
    }
}

impl Log {
    /// Commits transactions that are full, until [`end_service`](Self::end_service): for a thread of
    /// its own, which has no handle and holds no lock.
    pub fn serve(&self) {
        let _service = Service { log: self };
        while let Some(full) = self.requests.wait() {
            // Why it failed is kept for everybody.
            let _ = self.commit(full);
        }
    }

    /// Has [`serve`](Self::serve) return when it is done with its commit, now or as soon as it is
    /// called. From then on a full transaction is committed by who wants room.
    pub fn end_service(&self) {
        self.requests.end();
        // Who waits for the thread does it himself now.
        drop(self.state.lock());
        self.changed.notify_all();
    }
}
