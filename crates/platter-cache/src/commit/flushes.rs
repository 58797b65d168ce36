//! Flushes of one device, and which of them made a write durable.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use platter_block::{BlockDevice, IoError};

use super::CommitCounters;

/// The flushes of a device.
///
/// # Invariants
/// Once one has failed, none succeeds: no later one makes durable what was written before it.
#[derive(Debug)]
pub struct DeviceFlushes {
    device: Arc<dyn BlockDevice>,
    counters: Arc<CommitCounters>,
    begun: AtomicU64,
    /// The last of those that succeeded, by when they began.
    done: AtomicU64,
    failure: OnceLock<IoError>,
}

/// A moment between two flushes: writes that had ended by then are durable once a flush that
/// [began later](DeviceFlushes::succeeded_since) has succeeded.
#[derive(Debug, Clone, Copy)]
pub struct FlushTicket(u64);

impl DeviceFlushes {
    /// The flushes of `device`, counted in `counters`.
    #[must_use]
    pub fn of(device: Arc<dyn BlockDevice>, counters: Arc<CommitCounters>) -> Self {
        Self {
            device,
            counters,
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Makes everything that was written before durable.
    ///
    /// # Errors
    /// The device's, and then and from then on the same one.
    pub fn flush(&self) -> Result<(), IoError> {
        let ticket = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.counters.flushes.add(1);
        if let Err(error) = self.device.flush() {
            let _ = self.failure.set(error);
        }
        if let Some(error) = self.failure.get() {
            return Err(error.clone());
        }
        self.done.fetch_max(ticket, Ordering::SeqCst);
        Ok(())
    }

    /// The present moment.
    pub fn ticket(&self) -> FlushTicket {
        FlushTicket(self.begun.load(Ordering::SeqCst))
    }

    /// Whether a flush that began after `ticket` has succeeded.
    pub fn succeeded_since(&self, ticket: FlushTicket) -> bool {
        self.done.load(Ordering::SeqCst) > ticket.0
    }
}

#[cfg(test)]
mod tests {
    use platter_block::MemoryDevice;
    use platter_block::Operation;
    use platter_block::sim::{Effect, Fault, FaultDevice, When};

    use super::*;

    #[test]
    fn no_flush_succeeds_after_one_that_failed() {
        let memory = Arc::new(MemoryDevice::new("memory", vec![0; 512]));
        let device = Arc::new(FaultDevice::new(memory));
        device.arm(Fault {
            operation: Operation::Flush,
            when: When::Nth(2),
            effect: Effect::Tear { seed: 0 },
        });
        let flushes = DeviceFlushes::of(device, Arc::default());
        let before = flushes.ticket();
        assert!(!flushes.succeeded_since(before));
        flushes.flush().unwrap();
        assert!(flushes.succeeded_since(before));
        let after = flushes.ticket();
        assert!(!flushes.succeeded_since(after));
        assert!(flushes.flush().is_err());
        assert!(
            flushes.flush().is_err(),
            "the device would say that it succeeded"
        );
        assert!(!flushes.succeeded_since(after));
    }
}
