//! A flush whose first failure is reported forever.

use std::io;
use std::sync::Arc;

use crate::lock::{Mutex, rank};

/// Serialises flushes and reports the first failure again on every later call.
///
/// Linux reports a failed writeback once and marks the lost pages clean, so the next `fdatasync`
/// succeeds without the data: a success after a failure would confirm writes that are lost. Flushes
/// are serialised because the kernel reports the failure to only one of two concurrent calls.
#[derive(Debug, Default)]
pub(super) struct StickyFlush {
    /// The failure of the last flush, held over a flush.
    failure: Mutex<Option<Arc<io::Error>>, { rank(16, 6) }>,
}

impl StickyFlush {
    /// Runs `sync` unless an earlier one failed.
    pub(super) fn run(&self, sync: impl FnOnce() -> io::Result<()>) -> Result<(), Arc<io::Error>> {
        let mut failure = self.failure.lock();
        if let Some(error) = &*failure {
            return Err(Arc::clone(error));
        }
        sync().map_err(|error| Arc::clone(failure.insert(Arc::new(error))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_flush_stays_reported() {
        let flush = StickyFlush::default();
        flush.run(|| Ok(())).unwrap();
        let failed = || Err(io::Error::from(rustix::io::Errno::IO));
        assert_eq!(flush.run(failed).unwrap_err().raw_os_error(), Some(5));
        let mut ran = false;
        let again = flush.run(|| {
            ran = true;
            Ok(())
        });
        assert_eq!(again.unwrap_err().raw_os_error(), Some(5));
        assert!(!ran);
    }
}
