//! Requests to commit transactions that are full, to a thread that does nothing else: the handles that
//! filled one go on with the next as soon as it is closed, while it is written.

use platter_block::lock::{Condvar, Mutex, rank};

use super::TransactionId;

/// What the commit thread is asked for, if there is one.
#[derive(Debug, Default)]
pub struct CommitRequests {
    /// Which transaction is to be committed.
    state: Mutex<State, { rank(11, 3) }>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_served: bool,
    is_ending: bool,
    /// The transaction to be committed.
    full: Option<TransactionId>,
}

impl CommitRequests {
    /// Asks for a transaction to be committed. Returns whether a thread is there to do it.
    pub fn ask(&self, full: TransactionId) -> bool {
        let mut state = self.state.lock();
        if state.is_served {
            state.full = Some(full);
            self.changed.notify_all();
        }
        state.is_served
    }

    /// Waits for the next transaction to commit; `None` at the end. For the commit thread.
    pub fn wait(&self) -> Option<TransactionId> {
        let mut state = self.state.lock();
        state.is_served = !state.is_ending;
        while state.full.is_none() && !state.is_ending {
            self.changed.wait(&mut state);
        }
        state.full.take().filter(|_| !state.is_ending)
    }

    /// Ends the commit thread's work: it gets no request any more.
    pub fn end(&self) {
        let mut state = self.state.lock();
        (state.is_served, state.is_ending) = (false, true);
        self.changed.notify_all();
    }
}
