//! Transactions: the journal they go through, and the replay of those a crash left in it.
//!
//! Spec: `ext4/journal`.

pub mod journal;
pub mod log;
pub mod replay;

pub use journal::{Journal, JournalMap, JournalMapBuilder, JournalState};
pub use log::{
    CommitClient, Edit, Handle, LAYOUT as LOG_LAYOUT, Log, commit_whole, whole_blocks_max,
};
pub use replay::{ReplayReport, replay};

#[cfg(test)]
mod sample_log;
