//! Transactions: the journal they go through, and the recovery of those a crash left in it.
//!
//! Spec: `ext4/journal`.

pub mod journal;
pub mod recovery;

pub use journal::{Journal, JournalMap, JournalState};
pub use recovery::{RecoveryReport, recover};

#[cfg(test)]
mod sample_log;
