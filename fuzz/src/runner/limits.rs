//! What one mutant may take.

use std::time::Duration;

/// Limits for each image, and for each operation.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// What the caches may hold.
    pub cache_bytes: u64,
    /// How much memory the process may grow by, above the caches.
    pub memory_bytes: u64,
    /// How much memory the process may take above its seeds: what takes more is refused it, and dies.
    pub process_bytes: u64,
    /// After this, the image counts as a hang.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cache_bytes: 8 << 20,
            memory_bytes: 64 << 20,
            process_bytes: 256 << 20,
            time: Duration::from_secs(20),
        }
    }
}
