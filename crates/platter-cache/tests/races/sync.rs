//! The caches' primitives as the model checker has them: every access is a point where another
//! thread may run, and the epoch frees as early as it may.

pub(crate) use platter_block::lock::rank;

use platter_block::lock::LEAF;
pub(crate) use shuttle::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
pub(crate) use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A lock without poisoning, as the product's.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T, const RANK: u16 = LEAF>(shuttle::sync::Mutex<T>);

impl<T, const RANK: u16> Mutex<T, RANK> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// A condition variable that takes the guard by value, as the product's.
#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap()
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A readers-writer lock without poisoning, as the product's.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T, const RANK: u16 = LEAF>(shuttle::sync::RwLock<T>);

impl<T, const RANK: u16> RwLock<T, RANK> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap()
    }

    pub(crate) fn read_nth(&self, _: u64) -> RwLockReadGuard<'_, T> {
        self.read()
    }

    pub(crate) fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
        self.read()
    }

    pub(crate) fn write_nth(&self, _: u64) -> RwLockWriteGuard<'_, T> {
        self.write()
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }
}

thread_local! {
    /// What was freed in this execution: a later reader finds its last contents.
    static FREED: std::cell::RefCell<Vec<Box<dyn std::any::Any>>> = std::cell::RefCell::default();
}

/// Keeps what was freed until the execution ends.
pub(crate) fn free<T: 'static>(memory: Box<T>) {
    FREED.with_borrow_mut(|freed| freed.push(memory));
}

/// An epoch scheme that runs what was deferred the moment the last older pin ends: the earliest
/// that a real one could.
pub(crate) mod epoch {
    use std::cell::RefCell;

    type Deferred = Box<dyn FnOnce()>;

    #[derive(Default)]
    struct State {
        next_pin: u64,
        pins: Vec<u64>,
        garbage: Vec<(Vec<u64>, Deferred)>,
    }

    thread_local! {
        /// All threads of a model run on one real thread, one model after the other.
        static STATE: RefCell<State> = RefCell::default();
    }

    /// Begins a new execution: what a failed one left is forgotten.
    pub(crate) fn reset() {
        let freed = super::FREED.take();
        drop(freed);
        STATE.with_borrow_mut(|state| {
            state.pins.clear();
            state.garbage.clear();
        });
    }

    /// How much waits for pins to end.
    pub(crate) fn garbage_len() -> usize {
        STATE.with_borrow(|state| state.garbage.len())
    }

    #[derive(Debug)]
    pub(crate) struct Guard(u64);

    pub(crate) fn pin() -> Guard {
        STATE.with_borrow_mut(|state| {
            state.next_pin += 1;
            state.pins.push(state.next_pin);
            Guard(state.next_pin)
        })
    }

    impl Guard {
        pub(crate) fn defer(&self, action: impl FnOnce() + Send + 'static) {
            debug_assert_ne!(self.0, 0, "pins are counted from one");
            STATE.with_borrow_mut(|state| {
                let pins = state.pins.clone();
                state.garbage.push((pins, Box::new(action)));
            });
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            let free = STATE.with_borrow_mut(|state| {
                state.pins.retain(|&pin| pin != self.0);
                for (pins, _) in &mut state.garbage {
                    pins.retain(|&pin| pin != self.0);
                }
                let unreachable = |(pins, _): &mut (Vec<u64>, Deferred)| pins.is_empty();
                state
                    .garbage
                    .extract_if(.., unreachable)
                    .collect::<Vec<_>>()
            });
            for (_, action) in free {
                action();
            }
        }
    }
}
