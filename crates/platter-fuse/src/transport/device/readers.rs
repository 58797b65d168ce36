//! Which threads read the device, and which are parked. The kernel wakes a thread that blocks in `read(2)` for each
//! request, though another one is about to read it: so while one thread serves its callers quickly, the others are not
//! in `read(2)`. Where a request takes long, a parked thread is called in its place, by the next one that leaves no
//! other reading, or by the watch.

use super::callers::Callers;
use crate::sync::{Condvar, Mutex};

/// For how many requests no thread is parked after one had to wait for a long one.
const SPARE_LONG: u32 = 512;
/// The same after a read of data whose caller goes on meanwhile.
const SPARE_BULK: u32 = 8;

/// Calls [`Readers::watch`] repeatedly, about every millisecond, while it is set.
pub(crate) trait Alarm {
    fn set(&self);
    fn clear(&self);
    /// Calls it once more, for the last time.
    fn end(&self);
}

/// The threads of a device.
///
/// # Invariants
/// - Where a thread is parked and none reads, the alarm is set.
/// - While a thread blocks in `read(2)`, others do not begin to look out: each request would wake it for nothing.
#[derive(Debug)]
pub(crate) struct Readers<A> {
    /// The threads of the device.
    state: Mutex<State>,
    called: Condvar,
    alarm: A,
    /// Maximum number of threads that look out.
    processors: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that read, or are about to.
    reading: usize,
    /// Those of them that block in `read(2)`.
    blocked: usize,
    /// Threads with a request.
    serving: usize,
    parked: usize,
    /// Threads that were parked and are to read; counted as reading already.
    called: usize,
    /// How many of them the watch called.
    called_by_watch: usize,
    /// Requests so far.
    taken: u64,
    /// Those that the watch saw the last time.
    watched: u64,
    is_alarm_set: bool,
    /// Requests until threads are parked again.
    spare: u32,
    callers: Callers,
    /// Processors that looking threads are bound to.
    bound: Vec<usize>,
    is_over: bool,
}

/// One of the threads.
#[derive(Debug)]
pub(crate) struct Reader<'r, A: Alarm> {
    readers: &'r Readers<A>,
    phase: Phase,
    /// A request that is there at once has waited.
    has_kept_waiting: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Reading,
    Blocked,
    Serving,
    Left,
}

/// How a reading thread begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    /// By blocking in `read(2)`.
    None,
    /// By reading what is there.
    One,
    /// By looking out.
    Many,
}

/// How a thread found no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InVain {
    /// It did not look: looking out is not worthwhile.
    Impatient,
    LookedOnce,
    LookedOut,
}

/// What a thread does that found no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// It blocks in `read(2)`.
    Block,
    /// It was parked, and begins to read again.
    Called(Looks),
    /// The mount is gone.
    End,
}

/// A request that a thread has read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// The thread that sent it; 0 for the kernel itself.
    pub(crate) caller: u32,
    /// It was there at the first look.
    pub(crate) was_there: bool,
    /// It is a long read, whose caller goes on meanwhile.
    pub(crate) is_bulk: bool,
}

impl<A: Alarm> Readers<A> {
    pub(crate) fn new(alarm: A, processors: usize) -> Self {
        Self {
            state: Mutex::new(State::default()),
            called: Condvar::default(),
            alarm,
            processors,
        }
    }

    pub(crate) fn alarm(&self) -> &A {
        &self.alarm
    }

    /// Counts a thread as reading, also before it runs.
    pub(crate) fn join(&self) -> Reader<'_, A> {
        self.state.lock().reading += 1;
        Reader {
            readers: self,
            phase: Phase::Reading,
            has_kept_waiting: false,
        }
    }

    /// Has a parked thread read if no thread does and those that serve take long. Returns whether the threads go on.
    pub(crate) fn watch(&self) -> bool {
        let mut state = self.state.lock();
        if state.is_over {
            return false;
        }
        let is_unchanged = state.watched == state.taken;
        state.watched = state.taken;
        if !is_unchanged {
            return true;
        }
        if state.needs_reader() {
            state.called_by_watch += 1;
            self.call(&mut state);
        } else {
            self.alarm.clear();
            state.is_alarm_set = false;
        }
        true
    }

    /// Ends all threads that are parked, or will be.
    pub(crate) fn end(&self) {
        self.end_all(&mut self.state.lock());
    }

    /// Reserves a processor for the looking of one thread. Returns whether it was free.
    pub(crate) fn bind(&self, processor: usize) -> bool {
        let mut state = self.state.lock();
        let is_free = !state.bound.contains(&processor);
        if is_free {
            state.bound.push(processor);
        }
        is_free
    }

    /// Releases a processor.
    pub(crate) fn unbind(&self, processor: usize) {
        let mut state = self.state.lock();
        state.bound.retain(|&other| other != processor);
    }

    /// Has a parked thread read.
    fn call(&self, state: &mut State) {
        state.parked -= 1;
        state.called += 1;
        state.reading += 1;
        self.called.notify_one();
    }

    fn end_all(&self, state: &mut State) {
        if !state.is_over {
            state.is_over = true;
            self.called.notify_all();
            self.alarm.end();
        }
    }

    /// Returns how a thread begins that is counted as reading.
    fn looks(&self, state: &State) -> Looks {
        let looking_max = state.callers.at_a_time().min(self.processors).max(1);
        if state.spare > 0 {
            Looks::None
        } else if state.blocked > 0 || state.reading > looking_max {
            Looks::One
        } else {
            Looks::Many
        }
    }
}

impl State {
    /// Whether no thread reads though one could.
    fn needs_reader(&self) -> bool {
        self.reading == 0 && self.parked > 0 && !self.is_over
    }
}

impl<A: Alarm> Reader<'_, A> {
    /// Returns how the thread begins to read.
    pub(crate) fn begin(&self) -> Looks {
        self.readers.looks(&self.readers.state.lock())
    }

    /// Counts the thread, which was reading, as serving a request.
    pub(crate) fn take(&mut self, request: Taken) {
        let readers = self.readers;
        let mut state = readers.state.lock();
        state.reading -= 1;
        if self.phase == Phase::Blocked {
            state.blocked -= 1;
        }
        state.serving += 1;
        self.phase = Phase::Serving;
        state.taken += 1;
        state.callers.record(request.caller);
        let has_waited = request.was_there && request.caller != 0 && self.has_kept_waiting;
        let spare = if has_waited {
            SPARE_LONG
        } else if request.is_bulk {
            SPARE_BULK
        } else {
            0
        };
        state.spare = state.spare.saturating_sub(1).max(spare);
        if !state.needs_reader() {
            return;
        }
        if state.spare > 0 || state.serving < state.callers.at_a_time() {
            readers.call(&mut state);
        } else if !state.is_alarm_set {
            state.is_alarm_set = true;
            readers.alarm.set();
        }
    }

    /// Has another thread read, before this one waits for what the kernel does.
    pub(crate) fn before_wait(&self) {
        let mut state = self.readers.state.lock();
        if state.needs_reader() {
            self.readers.call(&mut state);
        }
    }

    /// Counts the thread, which was serving, as reading. Returns how it begins.
    pub(crate) fn come(&mut self, served_long: bool) -> Looks {
        let mut state = self.readers.state.lock();
        state.serving -= 1;
        state.reading += 1;
        self.phase = Phase::Reading;
        self.has_kept_waiting = served_long;
        self.readers.looks(&state)
    }

    /// Decides what the thread does, which found no request. Returns when it is to read again.
    pub(crate) fn rest(&mut self, found_nothing: InVain) -> Rest {
        let readers = self.readers;
        let mut state = readers.state.lock();
        if state.is_over {
            return Rest::End;
        }
        // Threads that would not look out lose nothing by several in `read(2)`.
        let reading_max = match found_nothing {
            InVain::Impatient => state.callers.at_a_time(),
            InVain::LookedOnce | InVain::LookedOut => 1,
        };
        if state.spare > 0 || state.reading <= reading_max {
            state.blocked += 1;
            self.phase = Phase::Blocked;
            return Rest::Block;
        }
        if found_nothing == InVain::LookedOut {
            // There is not enough to do for several.
            state.callers.forget();
        }
        state.reading -= 1;
        state.parked += 1;
        self.phase = Phase::Left;
        while state.called == 0 {
            if state.is_over {
                state.parked -= 1;
                return Rest::End;
            }
            state = readers.called.wait(state);
        }
        state.called -= 1;
        self.phase = Phase::Reading;
        self.has_kept_waiting = state.called_by_watch > 0;
        state.called_by_watch = state.called_by_watch.saturating_sub(1);
        Rest::Called(readers.looks(&state))
    }
}

impl<A: Alarm> Drop for Reader<'_, A> {
    fn drop(&mut self) {
        let mut state = self.readers.state.lock();
        match self.phase {
            Phase::Blocked => {
                state.blocked -= 1;
                state.reading -= 1;
            }
            Phase::Reading => state.reading -= 1,
            Phase::Serving => state.serving -= 1,
            Phase::Left => {}
        }
        if state.reading + state.serving + state.parked == 0 {
            self.readers.end_all(&mut state);
        } else if state.needs_reader() {
            self.readers.call(&mut state);
        }
    }
}
