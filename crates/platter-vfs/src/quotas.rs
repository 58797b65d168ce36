//! Limits on the space and the inodes of users, groups, projects and subvolumes.

use std::fmt::Debug;
use std::ops::ControlFlow;

use crate::{Condition, Result};

/// Whose use is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaOwner {
    /// A user.
    User(u32),
    /// A group.
    Group(u32),
    /// A project.
    Project(u32),
    /// A qgroup of btrfs, by level and number.
    Qgroup(u16, u64),
}

/// What an owner uses and may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Of a qgroup, bytes that nothing else uses.
    pub exclusive_bytes: Option<u64>,
    /// Inodes in use.
    pub inodes: u64,
    /// Bytes beyond which the grace period begins.
    pub soft_bytes: Option<u64>,
    /// Bytes that cannot be exceeded.
    pub hard_bytes: Option<u64>,
    /// Inodes beyond which the grace period begins.
    pub soft_inodes: Option<u64>,
    /// Inodes that cannot be exceeded.
    pub hard_inodes: Option<u64>,
}

/// Takes owners with their quota until it breaks.
pub type QuotaSink<'a> = dyn FnMut(QuotaOwner, Quota) -> ControlFlow<()> + 'a;

/// The quotas of a filesystem that counts them.
pub trait Quotas: Send + Sync + Debug {
    /// What an owner uses and may use.
    fn get(&self, owner: QuotaOwner) -> Result<Quota>;

    /// Passes all owners that use something or have limits to `sink`, in their order, until it breaks.
    fn report(&self, sink: &mut QuotaSink<'_>) -> Result<()>;

    /// Sets the limits of an owner; what is used is left out.
    fn set_limits(&self, owner: QuotaOwner, limits: &Quota) -> Result<()> {
        let _ = (owner, limits);
        Err(Condition::NotSupported.into())
    }
}
