//! The running transaction of a filesystem: handles join it, one caller commits it for all that wait, and
//! after a failure nothing is written any more.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use platter_block::lock::{Condvar, Mutex, MutexGuard, rank};

use super::{Blocked, CommitRequests, HandleGate, TransactionId};

/// A transaction is full when less than one in so many parts is left, and a handle finds no space.
const FULL_PARTS: u32 = 4;
/// The longest time that a commit waits for others to ask for it, however long the last one took.
const GATHER_MAX: Duration = Duration::from_millis(15);

/// The number of a transaction.
pub trait TransactionNumber:
    Copy + Eq + fmt::Debug + From<TransactionId> + Into<TransactionId>
{
    /// The number of the transaction before this one.
    #[must_use]
    fn previous(self) -> Self;

    /// Whether this transaction came before `other`.
    fn is_before(self, other: Self) -> bool;
}

impl TransactionNumber for TransactionId {
    fn previous(self) -> Self {
        Self(self.0 - 1)
    }

    fn is_before(self, other: Self) -> bool {
        self.0 < other.0
    }
}

/// What the handles of a driver add to.
pub trait RunningTransaction: Send {
    /// Its number.
    type Number: TransactionNumber;

    /// Its number.
    fn number(&self) -> Self::Number;

    /// An empty transaction that follows it.
    #[must_use]
    fn next(&self) -> Self;

    /// Whether it changes nothing.
    fn is_empty(&self) -> bool;

    /// The blocks that it takes in the log or in memory.
    fn len_blocks(&self) -> u32;
}

/// The transactions of a mounted filesystem.
///
/// # Invariants
/// - At most one transaction runs and at most one commits.
/// - After a failure nothing is written any more: no handle begins, and no commit.
pub struct Transactions<R: RunningTransaction, E> {
    gate: CachePadded<HandleGate>,
    /// The running transaction, and those that commit.
    state: CachePadded<Mutex<State<R, E>, { rank(11, 1) }>>,
    /// Notified when a transaction closes, a commit ends, and a handle ends that a thread waits for.
    changed: CachePadded<Condvar>,
    requests: CachePadded<CommitRequests>,
    /// There was a failure; see [`State::failure`].
    has_failed: AtomicBool,
    /// The most blocks of a transaction.
    blocks_max: u32,
    /// What is returned when nothing is written any more.
    ended: E,
}

struct State<R: RunningTransaction, E> {
    running: R,
    /// The running transaction takes no more handles: the gate is shut.
    is_closing: bool,
    is_committing: bool,
    /// How many threads asked for the running transaction to be committed, and how many are to be
    /// expected: those that waited for the last commit when it ended.
    callers: u32,
    callers_expected: u32,
    /// How long the last commit took.
    commit_took: Duration,
    /// Whether handles may begin when no transaction closes.
    admission: Admission,
    /// The last transaction that is durable.
    committed: R::Number,
    /// Why nothing is written any more.
    failure: Option<E>,
}

/// Which handles begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    Open,
    /// None until the filesystem is thawed.
    Frozen,
    /// None any more: the filesystem was unmounted.
    Closed,
}

impl<R: RunningTransaction, E> State<R, E> {
    /// Whether no handle begins even when no transaction closes.
    fn stays_shut(&self) -> bool {
        self.admission != Admission::Open || self.failure.is_some()
    }
}

/// A transaction that was closed, and how many threads asked for it to be committed.
#[derive(Debug)]
pub struct ClosedTransaction<C> {
    /// What the driver made of it.
    pub closed: C,
    callers: u32,
}

impl<R: RunningTransaction, E: Clone> Transactions<R, E> {
    /// Transactions of at most `blocks_max` blocks, `first` being the first; those before it are durable.
    /// `ended` is returned when nothing is written any more.
    pub fn new(first: R, blocks_max: u32, ended: E) -> Self {
        Self {
            gate: CachePadded::new(HandleGate::new(first.number().into())),
            state: CachePadded::new(Mutex::new(State {
                committed: first.number().previous(),
                running: first,
                is_closing: false,
                is_committing: false,
                callers: 0,
                callers_expected: 0,
                commit_took: Duration::ZERO,
                admission: Admission::Open,
                failure: None,
            })),
            changed: CachePadded::default(),
            requests: CachePadded::default(),
            has_failed: AtomicBool::new(false),
            blocks_max,
            ended,
        }
    }

    /// The most blocks of a transaction, which is the most credits of a handle.
    pub fn blocks_max(&self) -> u32 {
        self.blocks_max
    }

    /// Sets the most blocks of a transaction, before the first handle begins.
    pub fn set_blocks_max(&mut self, blocks_max: u32) {
        self.blocks_max = blocks_max;
    }

    /// The gate that handles pass.
    pub fn gate(&self) -> &HandleGate {
        &self.gate
    }

    /// The requests to the commit thread.
    pub fn requests(&self) -> &CommitRequests {
        &self.requests
    }

    /// The number of the running transaction.
    pub fn running(&self) -> R::Number {
        self.state.lock().running.number()
    }

    /// The last transaction that is durable.
    pub fn committed(&self) -> R::Number {
        self.state.lock().committed
    }

    /// The last transaction that anything was done in.
    pub fn latest(&self) -> R::Number {
        let state = self.state.lock();
        let running = state.running.number();
        if state.running.is_empty() && self.gate.handles() == 0 {
            running.previous()
        } else {
            running
        }
    }

    /// Begins a handle with `credits`, at most [`blocks_max`](Self::blocks_max), waiting for space. Without a
    /// commit thread, a full transaction is committed by `commit`. Returns the transaction.
    ///
    /// # Errors
    /// That nothing is written any more; else those of `commit`.
    ///
    /// # Panics
    /// If there are more credits than any transaction has blocks: the handle would wait for ever.
    pub fn begin(
        &self,
        credits: u32,
        commit: impl FnMut(R::Number) -> Result<(), E>,
    ) -> Result<R::Number, E> {
        assert!(credits <= self.blocks_max, "{credits} credits");
        match self.gate.enter(credits, self.blocks_max) {
            Some(transaction) => Ok(transaction.into()),
            None => self.wait_and_begin(credits, commit),
        }
    }

    fn wait_and_begin(
        &self,
        credits: u32,
        mut commit: impl FnMut(R::Number) -> Result<(), E>,
    ) -> Result<R::Number, E> {
        let mut state = self.state.lock();
        loop {
            if state.failure.is_some() || state.admission == Admission::Closed {
                return Err(self.ended.clone());
            }
            if state.is_closing || state.admission == Admission::Frozen {
                self.changed.wait(&mut state);
                continue;
            }
            let Blocked { handles } = match self.gate.enter_or_await(credits, self.blocks_max) {
                Ok(transaction) => return Ok(transaction.into()),
                Err(blocked) => blocked,
            };
            if handles > 0 && self.is_worth_waiting(&state.running, credits) {
                // Handles that end give back what they did not need.
                self.changed.wait(&mut state);
                continue;
            }
            let full = state.running.number();
            if self.requests.ask(full.into()) {
                // Until it is closed.
                self.changed.wait(&mut state);
            } else {
                MutexGuard::unlocked(&mut state, || commit(full))?;
            }
        }
    }

    /// Whether handles that end leave space for so many credits, in a transaction that has not most of what
    /// it can have: else each handle would come to wait for the one before.
    fn is_worth_waiting(&self, running: &R, credits: u32) -> bool {
        let (len, most) = (running.len_blocks(), self.blocks_max);
        len <= most / FULL_PARTS * (FULL_PARTS - 1) && len.saturating_add(credits) <= most
    }

    /// Adds credits to a handle, if that is possible now.
    pub fn extend(&self, credits: u32) -> bool {
        self.gate.extend(credits, self.blocks_max)
    }

    /// Ends a handle with so many credits left.
    pub fn end(&self, credits: u32) {
        if !self.gate.leave(credits) {
            return;
        }
        // Threads that wait are waiting by now: each looks at the gate under this lock before.
        let state = self.state.lock();
        self.gate.note_wake();
        drop(state);
        self.changed.notify_all();
    }

    /// Changes the running transaction, and counts it anew; `spent` credits are used up by that.
    pub fn change<T>(&self, spent: u32, change: impl FnOnce(&mut R) -> T) -> T {
        let running = &mut self.state.lock().running;
        let before = running.len_blocks();
        let result = change(running);
        let after = running.len_blocks();
        self.gate.resize(before.saturating_add(spent), after);
        result
    }

    /// Looks at the running transaction.
    pub fn inspect<T>(&self, look: impl FnOnce(&R) -> T) -> T {
        look(&self.state.lock().running)
    }

    /// Returns when `transaction` and all before it are durable: at once if they are or if it has no changes.
    /// Of several callers one calls `write` for all, when no handle is open any more: that
    /// [closes](Self::close_running) the transaction and makes it durable. The caller has no handle.
    ///
    /// With `now`, the monotonic clock, a commit waits for others that ask for it.
    ///
    /// # Errors
    /// Those of `write`, and then and from then on that of the failure.
    pub fn commit(
        &self,
        transaction: R::Number,
        now: Option<&dyn Fn() -> Duration>,
        write: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        if !transaction.is_before(state.running.number()) {
            state.callers += 1;
            if state.callers == state.callers_expected {
                self.changed.notify_all();
            }
        }
        loop {
            if !state.committed.is_before(transaction) {
                return Ok(());
            }
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            if !state.is_committing {
                break;
            }
            self.changed.wait(&mut state);
        }
        if self.gate.handles() == 0 && state.running.is_empty() {
            return Ok(());
        }
        state.is_committing = true;
        if let Some(now) = now {
            self.gather(&mut state, now);
        }
        state.is_closing = true;
        self.gate.shut();
        drop(state);
        let mut turn = CommitTurn {
            transactions: self,
            is_done: false,
        };
        let mut state = self.state.lock();
        while self.gate.handles() > 0 {
            self.changed.wait(&mut state);
        }
        let is_empty = state.running.is_empty();
        drop(state);
        let committed = if is_empty { Ok(()) } else { write() };
        if let Err(error) = &committed {
            self.stop(error);
        }
        turn.is_done = true;
        committed
    }

    /// Lets threads that waited for the last commit, or came meanwhile, ask for this one: those
    /// that call again and again share commits instead of taking turns. It waits no longer than a commit
    /// takes.
    fn gather(&self, state: &mut MutexGuard<'_, State<R, E>>, now: &dyn Fn() -> Duration) {
        // Others notify as well: what is left of the time counts, not each wait.
        let end = now() + state.commit_took.min(GATHER_MAX);
        while state.callers < state.callers_expected && state.failure.is_none() {
            let left = end.saturating_sub(now());
            if left.is_zero() || self.changed.wait_for(state, left) {
                break;
            }
        }
    }

    /// Takes the running transaction, of which `close` makes what is committed, and lets another one run.
    /// No handle is open.
    ///
    /// # Errors
    /// That of an earlier failure.
    pub fn close_running<C>(&self, close: impl FnOnce(R) -> C) -> Result<ClosedTransaction<C>, E> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        let next = state.running.next();
        let number = next.number().into();
        let closed = close(std::mem::replace(&mut state.running, next));
        state.is_closing = false;
        self.gate.renew(number, state.stays_shut());
        let callers = std::mem::take(&mut state.callers);
        drop(state);
        self.changed.notify_all();
        Ok(ClosedTransaction { closed, callers })
    }

    /// Says that a closed transaction is durable, which took so long.
    pub fn set_committed<C>(
        &self,
        transaction: R::Number,
        closed: &ClosedTransaction<C>,
        took: Duration,
    ) {
        let mut state = self.state.lock();
        state.committed = transaction;
        state.commit_took = took;
        state.callers_expected = closed.callers + state.callers;
    }

    /// Has nothing written any more because of `error`, unless that is so already. A commit in progress
    /// still comes to its end.
    pub fn stop(&self, error: &E) -> bool {
        {
            let mut state = self.state.lock();
            if state.failure.is_some() {
                return false;
            }
            state.failure = Some(error.clone());
            self.gate.shut();
            self.has_failed.store(true, Ordering::Release);
        }
        self.changed.notify_all();
        true
    }

    /// Returns when `transaction`, which is closed, is durable. The caller may have a handle of a later one.
    ///
    /// # Errors
    /// Why it did not become durable: nothing is written any more.
    pub fn wait_until_durable(&self, transaction: R::Number) -> Result<(), E> {
        let mut state = self.state.lock();
        while state.committed.is_before(transaction) {
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    /// Waits for a commit in progress.
    pub fn wait_for_commit(&self) {
        let mut state = self.state.lock();
        while state.is_committing {
            self.changed.wait(&mut state);
        }
    }

    /// Has handles that begin wait until they are [thawed](Self::thaw), and returns when none is open.
    /// Commits go on. The caller has no handle.
    pub fn freeze(&self) {
        let mut state = self.state.lock();
        if state.admission == Admission::Open {
            state.admission = Admission::Frozen;
        }
        self.gate.shut();
        while self.gate.handles() > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Lets handles begin again.
    pub fn thaw(&self) {
        let mut state = self.state.lock();
        if state.admission == Admission::Frozen {
            state.admission = Admission::Open;
        }
        if !state.is_closing && !state.stays_shut() {
            self.gate.open();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Lets no handle begin any more: the filesystem is unmounted.
    pub fn refuse_handles(&self) {
        let mut state = self.state.lock();
        state.admission = Admission::Closed;
        self.gate.shut();
    }

    /// Lets threads that wait for the commit thread commit themselves.
    pub fn commit_thread_ended(&self) {
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Whether nothing is written any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Why nothing is written any more, if so.
    pub fn failure(&self) -> Option<E> {
        if !self.has_failed() {
            return None;
        }
        self.state.lock().failure.clone()
    }
}

impl<R: RunningTransaction, E: fmt::Debug> fmt::Debug for Transactions<R, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        out.debug_struct("Transactions")
            .field("running", &state.running.number())
            .field("committed", &state.committed)
            .field("failure", &state.failure)
            .finish_non_exhaustive()
    }
}

/// The right and the duty to commit. Threads that wait look again when it ends, however it does.
struct CommitTurn<'t, R: RunningTransaction, E: Clone> {
    transactions: &'t Transactions<R, E>,
    /// It came to an end, be it an error.
    is_done: bool,
}

impl<R: RunningTransaction, E: Clone> Drop for CommitTurn<'_, R, E> {
    fn drop(&mut self) {
        let transactions = self.transactions;
        if !self.is_done {
            // A transaction may be neither running nor durable.
            transactions.stop(&transactions.ended);
        }
        let mut state = transactions.state.lock();
        state.is_closing = false;
        if !state.stays_shut() {
            transactions.gate.open();
        }
        state.is_committing = false;
        drop(state);
        transactions.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    /// A transaction that counts its blocks.
    struct Counted {
        number: u64,
        blocks: u32,
    }

    impl RunningTransaction for Counted {
        type Number = TransactionId;

        fn number(&self) -> TransactionId {
            TransactionId(self.number)
        }

        fn next(&self) -> Self {
            Self {
                number: self.number + 1,
                blocks: 0,
            }
        }

        fn is_empty(&self) -> bool {
            self.blocks == 0
        }

        fn len_blocks(&self) -> u32 {
            self.blocks
        }
    }

    struct Counting {
        transactions: Transactions<Counted, &'static str>,
        /// Blocks made durable.
        durable: AtomicU32,
    }

    impl Counting {
        fn new(blocks_max: u32) -> Self {
            let first = Counted {
                number: 7,
                blocks: 0,
            };
            Self {
                transactions: Transactions::new(first, blocks_max, "ended"),
                durable: AtomicU32::new(0),
            }
        }

        fn commit(&self, transaction: TransactionId) -> Result<(), &'static str> {
            self.transactions.commit(transaction, None, || {
                let closed = self.transactions.close_running(|running| running)?;
                self.durable
                    .fetch_add(closed.closed.blocks, Ordering::Relaxed);
                let number = closed.closed.number();
                self.transactions
                    .set_committed(number, &closed, Duration::ZERO);
                Ok(())
            })
        }

        /// Changes one block.
        fn change(&self) -> Result<TransactionId, &'static str> {
            let transaction = self.transactions.begin(1, |full| self.commit(full))?;
            self.transactions.change(1, |running| running.blocks += 1);
            self.transactions.end(0);
            Ok(transaction)
        }
    }

    #[test]
    fn full_transaction_is_committed_by_the_next_handle() {
        let counting = Counting::new(3);
        for _ in 0..7 {
            counting.change().unwrap();
        }
        assert_eq!(counting.durable.load(Ordering::Relaxed), 6);
        counting.commit(counting.transactions.latest()).unwrap();
        assert_eq!(counting.durable.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn concurrent_handles_and_commits_lose_nothing() {
        const ROUNDS: u32 = 500;
        let counting = Counting::new(8);
        thread::scope(|scope| {
            for thread in 0..4 {
                let counting = &counting;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let transaction = counting.change().unwrap();
                        if round % 5 == thread {
                            counting.commit(transaction).unwrap();
                        }
                    }
                });
            }
        });
        counting.commit(counting.transactions.latest()).unwrap();
        assert_eq!(counting.durable.load(Ordering::Relaxed), 4 * ROUNDS);
        assert_eq!(counting.transactions.gate().blocks(), 0);
    }

    #[test]
    fn frozen_transactions_commit_and_take_no_handle() {
        let counting = Counting::new(8);
        let transactions = &counting.transactions;
        for round in 0..100 {
            let transaction = counting.change().unwrap();
            thread::scope(|scope| {
                let freezing = scope.spawn(|| transactions.freeze());
                let committing = scope.spawn(|| counting.commit(transaction));
                freezing.join().unwrap();
                committing.join().unwrap().unwrap();
                assert!(transactions.gate().is_shut());
                assert_eq!(transactions.committed(), transaction);
                let waiting = scope.spawn(|| counting.change().unwrap());
                counting.commit(transactions.latest()).unwrap();
                assert_eq!(counting.durable.load(Ordering::Relaxed), 2 * round + 1);
                transactions.thaw();
                counting.commit(waiting.join().unwrap()).unwrap();
            });
        }
        transactions.freeze();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| counting.change());
            transactions.stop(&"broken");
            assert_eq!(waiting.join().unwrap(), Err("ended"));
        });
        transactions.thaw();
        assert_eq!(counting.change(), Err("ended"));
    }

    #[test]
    fn commit_waits_for_others_no_longer_than_one_takes() {
        let counting = Counting::new(8);
        let transaction = counting.change().unwrap();
        {
            let mut state = counting.transactions.state.lock();
            state.callers_expected = 2;
            state.commit_took = Duration::from_millis(10);
        }
        let is_done = AtomicBool::new(false);
        // Each look at the clock takes a millisecond.
        let looks = AtomicU32::new(0);
        let now = || Duration::from_millis(looks.fetch_add(1, Ordering::Relaxed).into());
        let handles = thread::scope(|scope| {
            let ending = scope.spawn(|| {
                let mut handles = 0;
                while handles < 2000 && !is_done.load(Ordering::Acquire) {
                    counting.change().unwrap();
                    counting.transactions.changed.notify_all();
                    thread::sleep(Duration::from_millis(1));
                    handles += 1;
                }
                handles
            });
            let write = || {
                let closed = counting.transactions.close_running(|running| running)?;
                let number = closed.closed.number();
                counting
                    .transactions
                    .set_committed(number, &closed, Duration::ZERO);
                Ok(())
            };
            let committed = counting.transactions.commit(transaction, Some(&now), write);
            committed.unwrap();
            is_done.store(true, Ordering::Release);
            ending.join().unwrap()
        });
        assert!(handles < 1000, "the commit waited for {handles} handles");
    }

    #[test]
    fn transaction_that_was_not_written_never_counts_as_durable() {
        let counting = Counting::new(3);
        let transaction = counting.change().unwrap();
        let failed = counting.transactions.commit(transaction, None, || {
            counting.transactions.close_running(|running| running)?;
            Err("broken")
        });
        assert_eq!(failed, Err("broken"));
        assert_eq!(counting.commit(transaction), Err("broken"));
        assert_eq!(counting.change(), Err("ended"));
    }

    #[test]
    #[should_panic(expected = "4 credits")]
    fn handle_larger_than_a_transaction_is_refused() {
        let counting = Counting::new(3);
        let _ = counting.transactions.begin(4, |full| counting.commit(full));
    }

    #[test]
    fn nothing_begins_or_commits_after_a_failure() {
        let counting = Counting::new(3);
        let transaction = counting.change().unwrap();
        assert!(counting.transactions.stop(&"broken"));
        assert!(!counting.transactions.stop(&"again"));
        assert_eq!(counting.change(), Err("ended"));
        assert_eq!(counting.commit(transaction), Err("broken"));
        assert_eq!(counting.transactions.failure(), Some("broken"));
    }

    #[test]
    fn panic_during_a_commit_ends_all_writing() {
        let counting = Counting::new(3);
        let transaction = counting.change().unwrap();
        let commit = || {
            let write = || panic!("a commit that does not end");
            counting.transactions.commit(transaction, None, write)
        };
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit));
        assert!(unwound.is_err());
        assert_eq!(counting.commit(transaction), Err("ended"));
    }
}
