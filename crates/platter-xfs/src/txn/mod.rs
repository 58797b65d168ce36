//! Transactions: the log they go through, and the replay of those that a crash left in it.
//!
//! Spec: `xfs/journaling_log`.

pub mod log_device;
pub mod replay;
pub mod log;
pub mod transaction;
pub mod unmount;

pub use log::{
    BlockType, Header, HeaderVerifier, InodePlace, InodeVersion, LAYOUT as LOG_LAYOUT, Log,
};
pub use log_device::LogDevice;
pub use replay::{LogPosition, LogScan, LogState, ReplayReport, find_position, replay, scan};
pub use transaction::{FoundInode, NewBytes, NewImage, Transaction};
pub use unmount::{
    check_last_uuid, clear_stale_records, has_own_last_uuid, set_last_uuid, write_unmount_record,
};
