//! The devices of a filesystem that manages several, and what keeps their contents intact.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Uuid;

use crate::{CheckReport, CheckSink, Condition, Result};

/// A device of a pool, as `btrfs filesystem show` and `btrfs device stats` describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolMember {
    /// Its number in the filesystem.
    pub id: u64,
    /// Its own UUID.
    pub uuid: Uuid,
    /// Its size in bytes, as far as the filesystem uses it.
    pub size_bytes: u64,
    /// Bytes that are allocated to block groups.
    pub used_bytes: u64,
    /// It is not there.
    pub missing: bool,
    /// The errors that were counted on it.
    pub errors: MemberErrors,
}

/// Errors counted on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemberErrors {
    /// Writes that failed.
    pub writes: u64,
    /// Reads that failed.
    pub reads: u64,
    /// Flushes that failed.
    pub flushes: u64,
    /// Blocks whose checksum or contents were wrong.
    pub corruptions: u64,
    /// Blocks of an older generation than their reference says.
    pub generations: u64,
}

/// Which block groups to move: those that all given conditions hold for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BalanceFilter {
    /// Of these types and profiles, as bits of `BTRFS_BLOCK_GROUP_*`.
    pub profiles: Option<u64>,
    /// Used by so many percent.
    pub usage_percent: Option<Range<u8>>,
    /// On this device.
    pub member: Option<u64>,
    /// The profile to give them, as bits.
    pub convert: Option<u64>,
    /// So many at most.
    pub limit: Option<u32>,
}

fn not_supported<T>() -> Result<T> {
    Err(Condition::NotSupported.into())
}

/// What can be done with the devices of a filesystem. Long work reports its progress to a sink, which
/// may break it off.
pub trait Pool: Send + Sync + Debug {
    /// The devices, in the order of their numbers.
    fn members(&self) -> Result<Vec<PoolMember>>;

    /// Reads everything that is allocated, every copy of it, and repairs what does not match its
    /// checksum where another copy does and the filesystem may be written.
    fn scrub(&self, sink: &mut dyn CheckSink) -> Result<CheckReport>;

    /// Moves block groups.
    fn balance(&self, filters: &[BalanceFilter], sink: &mut dyn CheckSink) -> Result<()> {
        let _ = (filters, sink);
        not_supported()
    }

    /// Adds a device. Returns its number.
    fn add(&self, device: Arc<dyn BlockDevice>) -> Result<u64> {
        let _ = device;
        not_supported()
    }

    /// Moves everything off a device, and removes it.
    fn remove(&self, id: u64, sink: &mut dyn CheckSink) -> Result<()> {
        let _ = (id, sink);
        not_supported()
    }

    /// Copies a device, which may be missing, to another one that takes its number.
    fn replace(
        &self,
        id: u64,
        device: Arc<dyn BlockDevice>,
        sink: &mut dyn CheckSink,
    ) -> Result<()> {
        let _ = (id, device, sink);
        not_supported()
    }

    /// Sets the counted errors of a device to zero.
    fn reset_errors(&self, id: u64) -> Result<()> {
        let _ = id;
        not_supported()
    }
}
