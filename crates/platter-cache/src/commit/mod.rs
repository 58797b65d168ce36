//! Commits of running transactions, as every journaled or copy-on-write filesystem has them: handles that
//! join a transaction, a thread that commits full ones, periodic commits, and what a flush makes durable.
//!
//! What a transaction consists of, and how it becomes durable, is the driver's.

mod gate;
mod held;
mod requests;
mod statistics;
mod flushes;
mod thread;
mod transactions;
mod worker;
mod schedule;

pub use flushes::{DeviceFlushes, FlushTicket};
pub use gate::{Blocked, HandleGate};
pub use held::HeldHandle;
pub use requests::CommitRequests;
pub use schedule::{CommitDue, CommitSchedule};
pub use statistics::{CommitCounters, CommitStatistics};
pub use thread::{CommitThread, FullCommits, end, serve};
pub use transactions::{ClosedTransaction, RunningTransaction, TransactionNumber, Transactions};
pub use worker::{BackgroundWorker, NextRun, WorkerWake};

/// Identifies a transaction: the sequence of the journal, the generation of btrfs, the checkpoint sequence of the
/// XFS log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TransactionId(pub u64);
