//! Flushes of one device, which vouch for what was written before them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use platter_block::{BlockDevice, IoError};

use super::statistics::Counters;

/// The flushes of a device.
///
/// # Invariants
/// Once one has failed, none succeeds: no later one vouches for what was written before.
#[derive(Debug)]
pub(super) struct Flushes {
    device: Arc<dyn BlockDevice>,
    counters: Arc<Counters>,
    begun: AtomicU64,
    /// The last of those that succeeded, by when they began.
    done: AtomicU64,
    failure: OnceLock<IoError>,
}

/// A moment, as told by the flushes that began before.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlushTicket(u64);

impl Flushes {
    pub(super) fn of(device: Arc<dyn BlockDevice>, counters: Arc<Counters>) -> Self {
        Self {
            device,
            counters,
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Makes everything that was written before durable.
    pub(super) fn flush(&self) -> Result<(), IoError> {
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

    /// Now.
    pub(super) fn ticket(&self) -> FlushTicket {
        FlushTicket(self.begun.load(Ordering::SeqCst))
    }

    /// Whether a flush that began after `ticket` has succeeded.
    pub(super) fn succeeded_since(&self, ticket: FlushTicket) -> bool {
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
    fn no_flush_vouches_after_one_that_failed() {
        let memory = Arc::new(MemoryDevice::new("memory", vec![0; 512]));
        let device = Arc::new(FaultDevice::new(memory));
        device.arm(Fault {
            operation: Operation::Flush,
            when: When::Nth(2),
            effect: Effect::Tear { seed: 0 },
        });
        let flushes = Flushes::of(device, Arc::default());
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
