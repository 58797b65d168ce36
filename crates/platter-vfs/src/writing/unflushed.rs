//! Writes over blocks that a file has: no transaction has them flushed, so that a sync does, once.

use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_cache::Mapping;
use platter_cache::page::ErrorCursor;

use crate::{Error, Result};

/// Counts writes that no transaction has flushed, and those of them that a sync had flushed.
#[derive(Debug, Default)]
pub struct UnflushedWrites {
    written: AtomicU64,
    flushed: AtomicU64,
}

impl UnflushedWrites {
    /// Of a file that may have unflushed writes of an earlier object.
    #[must_use]
    pub fn new(may_be_unflushed: bool) -> Self {
        Self {
            written: AtomicU64::new(u64::from(may_be_unflushed)),
            flushed: AtomicU64::new(0),
        }
    }

    /// Counts a write that has ended.
    pub fn record(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all writes were flushed.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        let flushed = self.flushed.load(Ordering::Acquire);
        flushed >= self.written.load(Ordering::Acquire)
    }

    /// Makes the writes so far durable together with a transaction: by `commit` if they were flushed,
    /// else by `flush`, which flushes the device as well.
    ///
    /// # Errors
    /// Those of the call that was made.
    pub fn sync(
        &self,
        commit: impl FnOnce() -> Result<()>,
        flush: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let written = self.written.load(Ordering::Acquire);
        if self.flushed.load(Ordering::Acquire) >= written {
            return commit();
        }
        flush()?;
        self.flushed.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }
}

/// What `fsync(2)` keeps of a file.
#[derive(Debug, Default)]
pub struct FileSync {
    /// Its writes that no transaction has flushed.
    pub writes: UnflushedWrites,
    /// The last writeback error that a sync reported.
    reported: Mutex<Option<ErrorCursor>, { rank(2, 9) }>,
}

impl FileSync {
    /// Of a file that may have unflushed writes of an earlier object.
    #[must_use]
    pub fn new(may_be_unflushed: bool) -> Self {
        Self {
            writes: UnflushedWrites::new(may_be_unflushed),
            reported: Mutex::default(),
        }
    }

    /// Writes back by `write_back`, and reports an error of writeback that no sync has reported yet
    /// (`file_check_and_advance_wb_err`).
    ///
    /// # Errors
    /// That, or the one of `write_back`.
    pub fn write_back(
        &self,
        pages: &Mapping<Error>,
        write_back: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut reported = self.reported.lock();
        let cursor = reported.get_or_insert_with(|| pages.error_cursor());
        let written = write_back();
        pages.check_errors(cursor)?;
        drop(reported);
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Condition;

    #[test]
    fn unflushed_writes_are_flushed_once() {
        let writes = UnflushedWrites::default();
        let (commit, flush) = (|| Ok(()), || panic!("nothing is unflushed"));
        writes.sync(commit, flush).unwrap();
        writes.record();
        assert!(!writes.is_flushed());
        let commit = || panic!("the device has to be flushed");
        assert!(
            writes
                .sync(commit, || Err(Condition::ReadOnly.into()))
                .is_err()
        );
        assert!(!writes.is_flushed());
        writes.sync(commit, || Ok(())).unwrap();
        assert!(writes.is_flushed());
        writes.sync(|| Ok(()), || panic!("it was flushed")).unwrap();
    }
}
