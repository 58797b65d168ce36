//! The gate that changes pass and a freeze shuts (`sb_start_write`, `freeze_super`). A writer is counted exactly as
//! long as it has its guard, which it gets only from an open gate: it cannot be counted and wait for the thaw.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use platter_block::lock::{Condvar, Mutex};
use platter_cache::commit::HeldHandle;

use crate::stripes::stripe_of_thread;
use crate::{Condition, Result};

const STRIPES: usize = 16;

/// Counts writers in stripes, and keeps them out while the filesystem is frozen.
///
/// # Invariants
/// A writer adds itself to a stripe before it looks whether the gate is shut; a freeze shuts the gate before
/// it looks at the stripes; all of it in one total order. So a freeze sees every writer that found the gate
/// open, and waits for it.
#[derive(Debug, Default)]
pub struct FreezeGate {
    is_shut: CachePadded<AtomicBool>,
    stripes: [CachePadded<AtomicU32>; STRIPES],
    waiting: CachePadded<Waiting>,
}

platter_cache::layout!(
    /// Of the gate: only writers of one stripe share a cache line.
    LAYOUT: FreezeGate {
        Rare: is_shut;
        Apart: stripes, waiting;
    }
);

#[derive(Debug, Default)]
struct Waiting {
    /// Whether a freeze holds the gate, or waits for writers to end.
    state: Mutex<State>,
    /// Notified when the gate opens, and when a writer ends while it is shut.
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Open,
    /// A freeze waits for the writers inside.
    Shutting,
    Frozen,
}

/// A writer inside the gate, until it is dropped. A thread has one of a gate at a time, as debug builds assert: a
/// second one would wait for a freeze that waits for the first.
#[derive(Debug)]
#[must_use]
pub struct Writer<'g> {
    gate: &'g FreezeGate,
    stripe: usize,
    _held: HeldHandle,
}

impl FreezeGate {
    /// Passes the gate; waits while it is shut.
    pub fn enter(&self) -> Writer<'_> {
        loop {
            if let Some(writer) = self.try_enter() {
                return writer;
            }
            let mut state = self.waiting.state.lock();
            while *state != State::Open {
                self.waiting.changed.wait(&mut state);
            }
        }
    }

    /// Passes the gate if it is open.
    #[must_use]
    pub fn try_enter(&self) -> Option<Writer<'_>> {
        HeldHandle::assert_none(self);
        let stripe = stripe_of_thread() % STRIPES;
        self.stripes[stripe].fetch_add(1, Ordering::SeqCst);
        // It leaves again if the gate is shut.
        let writer = Writer {
            gate: self,
            stripe,
            _held: HeldHandle::note(self),
        };
        (!self.is_shut.load(Ordering::SeqCst)).then_some(writer)
    }

    /// Shuts the gate and waits for the writers inside; the caller is none of them.
    ///
    /// # Errors
    /// `Busy` if another freeze has shut it.
    pub fn freeze(&self) -> Result<()> {
        HeldHandle::assert_none(self);
        let mut state = self.waiting.state.lock();
        if *state != State::Open {
            return Err(Condition::Busy.into());
        }
        *state = State::Shutting;
        self.is_shut.store(true, Ordering::SeqCst);
        while self.writers() > 0 {
            self.waiting.changed.wait(&mut state);
        }
        *state = State::Frozen;
        Ok(())
    }

    /// Opens the gate.
    ///
    /// # Errors
    /// `InvalidArgument` if it is open, or a freeze still waits for writers.
    pub fn thaw(&self) -> Result<()> {
        let mut state = self.waiting.state.lock();
        if *state != State::Frozen {
            return Err(Condition::InvalidArgument.into());
        }
        self.is_shut.store(false, Ordering::SeqCst);
        *state = State::Open;
        drop(state);
        self.waiting.changed.notify_all();
        Ok(())
    }

    /// Whether it is shut and no writer inside.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        *self.waiting.state.lock() == State::Frozen
    }

    /// How many writers are inside.
    #[must_use]
    pub fn writers(&self) -> u32 {
        let counts = self.stripes.iter();
        counts.fold(0, |sum, stripe| {
            sum.wrapping_add(stripe.load(Ordering::SeqCst))
        })
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let gate = self.gate;
        gate.stripes[self.stripe].fetch_sub(1, Ordering::SeqCst);
        if gate.is_shut.load(Ordering::SeqCst) {
            // A freeze that looked at the count before is waiting once the lock is free.
            drop(gate.waiting.state.lock());
            gate.waiting.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// How often the gate is shut and opened.
    const TURNS: usize = 10_000;

    #[test]
    fn gate_is_frozen_ten_thousand_times_with_writers() {
        let gate = FreezeGate::default();
        let (inside, passed, is_over) =
            (AtomicU32::new(0), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let writer = gate.enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        passed.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(writer);
                    }
                });
            }
            while passed.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            for _ in 0..TURNS {
                gate.freeze().unwrap();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                assert!(gate.freeze().is_err() && gate.try_enter().is_none());
                gate.thaw().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(passed.into_inner() >= 2);
        assert_eq!(gate.writers(), 0);
    }

    #[test]
    fn freeze_waits_for_the_writer_inside() {
        let gate = FreezeGate::default();
        let writer = gate.enter();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gate.freeze().unwrap();
                assert!(is_done.load(Ordering::SeqCst));
                gate.thaw().unwrap();
            });
            while !gate.is_shut.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert!(gate.thaw().is_err(), "it is not frozen yet");
            is_done.store(true, Ordering::SeqCst);
            drop(writer);
        });
        assert!(gate.thaw().is_err() && !gate.is_frozen());
        assert!(gate.try_enter().is_some());
    }
}
