//! The gate that writers pass and a freeze shuts. A writer is counted exactly as long as it has its guard,
//! which it gets only from an open gate: it cannot be counted and wait for the thaw.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use platter_block::lock::{Condvar, Mutex};
use platter_vfs::{Condition, Result};

use super::classes::{Classed, classed};
use super::counter::stripe_of_thread;
use super::padded::Padded;

const STRIPES: usize = 16;

/// Counts writers in stripes, and keeps them out while the filesystem is frozen.
///
/// # Invariants
/// A writer adds itself to a stripe before it looks whether the gate is shut; a freeze shuts the gate before
/// it looks at the stripes; all of it in one total order. So a freeze sees every writer that found the gate
/// open, and waits for it.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct FreezeGate {
    is_shut: AtomicBool,
    stripes: [Padded<AtomicU32>; STRIPES],
    waiting: Padded<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Whether a freeze holds the gate, or waits for writers to end.
    is_frozen: Mutex<bool>,
    /// Notified when the gate opens, and when a writer ends while it is shut.
    changed: Condvar,
}

classed!(FreezeGate {
    Rare: is_shut;
    Apart: stripes, waiting;
});
const _: () = assert!(FreezeGate::LAYOUT.is_parted());

/// A writer inside the gate, until it is dropped. A thread has one at a time: a second one would wait for a
/// freeze that waits for the first.
#[derive(Debug)]
#[must_use]
pub struct Writer<'g> {
    gate: &'g FreezeGate,
    stripe: usize,
}

/// The filesystem is frozen, until this is dropped: no writer is inside.
#[derive(Debug)]
#[must_use]
pub struct Frozen<'g> {
    gate: &'g FreezeGate,
}

impl Default for FreezeGate {
    fn default() -> Self {
        Self {
            is_shut: AtomicBool::new(false),
            stripes: Default::default(),
            waiting: Padded::default(),
        }
    }
}

impl FreezeGate {
    /// Passes the gate; waits while it is shut.
    pub fn enter(&self) -> Writer<'_> {
        loop {
            if let Some(writer) = self.try_enter() {
                return writer;
            }
            let mut is_frozen = self.waiting.is_frozen.lock();
            while *is_frozen {
                self.waiting.changed.wait(&mut is_frozen);
            }
        }
    }

    /// Passes the gate if it is open.
    #[must_use]
    pub fn try_enter(&self) -> Option<Writer<'_>> {
        let stripe = stripe_of_thread() % STRIPES;
        self.stripes[stripe].fetch_add(1, Ordering::SeqCst);
        // It leaves again if the gate is shut.
        let writer = Writer { gate: self, stripe };
        (!self.is_shut.load(Ordering::SeqCst)).then_some(writer)
    }

    /// Shuts the gate and waits for the writers inside.
    ///
    /// # Errors
    /// `Busy` if another freeze has shut it.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        let mut is_frozen = self.waiting.is_frozen.lock();
        if *is_frozen {
            return Err(Condition::Busy.into());
        }
        *is_frozen = true;
        self.is_shut.store(true, Ordering::SeqCst);
        while self.writers() > 0 {
            self.waiting.changed.wait(&mut is_frozen);
        }
        Ok(Frozen { gate: self })
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
            drop(gate.waiting.is_frozen.lock());
            gate.waiting.changed.notify_all();
        }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let gate = self.gate;
        let mut is_frozen = gate.waiting.is_frozen.lock();
        gate.is_shut.store(false, Ordering::SeqCst);
        *is_frozen = false;
        drop(is_frozen);
        gate.waiting.changed.notify_all();
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
                let frozen = gate.freeze().unwrap();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
                assert!(gate.freeze().is_err() && gate.try_enter().is_none());
                drop(frozen);
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
                let frozen = gate.freeze().unwrap();
                assert!(is_done.load(Ordering::SeqCst));
                drop(frozen);
            });
            while !gate.is_shut.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert!(gate.try_enter().is_none());
            is_done.store(true, Ordering::SeqCst);
            drop(writer);
        });
        assert!(gate.try_enter().is_some());
    }
}
