//! The gate that data writes pass on their way to the device, until the mount ends.

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_utils::CachePadded;
use platter_block::lock::{RwLock, rank};

use crate::{Condition, Result};

/// Lets data writes through until it is closed, which waits for those in progress: the blocks may be
/// another mount's then.
#[derive(Debug, Default)]
pub struct WriteGate {
    /// Held shared while data is written to the device, exclusively once to end that.
    in_flight: CachePadded<RwLock<(), { rank(5, 6) }>>,
    is_closed: AtomicBool,
}

impl WriteGate {
    /// Calls `write`, which writes data to the device.
    ///
    /// # Errors
    /// `ReadOnly` when the gate is closed; else those of `write`.
    pub fn write<T>(&self, write: impl FnOnce() -> Result<T>) -> Result<T> {
        let _in_flight = self.in_flight.read();
        if self.is_closed() {
            return Err(Condition::ReadOnly.into());
        }
        write()
    }

    /// Whether the gate is closed: nothing is written any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Closes the gate for good, and returns when no write is in progress.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        drop(self.in_flight.write());
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn closing_waits_for_writes_and_refuses_later_ones() {
        let gate = WriteGate::default();
        let is_written = AtomicBool::new(false);
        thread::scope(|scope| {
            gate.write(|| {
                scope.spawn(|| {
                    gate.close();
                    assert!(is_written.load(Ordering::Acquire));
                });
                while !gate.is_closed() {
                    thread::yield_now();
                }
                is_written.store(true, Ordering::Release);
                Ok(())
            })
            .unwrap();
        });
        assert!(gate.write(|| Ok(())).is_err());
    }
}
