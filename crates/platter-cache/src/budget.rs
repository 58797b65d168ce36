//! One ceiling for all cached bytes of the process.

/// How many bytes the caches that share it may hold together.
#[derive(Debug)]
pub struct MemoryBudget {
    limit_bytes: u64,
}

impl MemoryBudget {
    /// A budget of `limit_bytes`.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes }
    }

    /// The ceiling in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }
}
