//! The usage and the limits of one id.

use platter_vfs::Result;

use super::{EntryPlace, write_entry};
use crate::ondisk::quota::DiskQuotaEntry;
use crate::txn::Handle;

/// The limits of an id; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Space in bytes that cannot be exceeded.
    pub space_hard: u64,
    /// Space in bytes that can be exceeded for the grace period.
    pub space_soft: u64,
    /// Inodes that cannot be exceeded.
    pub inodes_hard: u64,
    /// Inodes that can be exceeded for the grace period.
    pub inodes_soft: u64,
}

impl Limits {
    /// Returns the limit of space that is reached first; `None` if there is none.
    #[must_use]
    pub fn space(&self) -> Option<u64> {
        first_of(self.space_soft, self.space_hard)
    }

    /// Returns the limit of inodes that is reached first; `None` if there is none.
    #[must_use]
    pub fn inodes(&self) -> Option<u64> {
        first_of(self.inodes_soft, self.inodes_hard)
    }
}

fn first_of(soft: u64, hard: u64) -> Option<u64> {
    [soft, hard].into_iter().filter(|&limit| limit != 0).min()
}

/// The record of an id (`struct dquot`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dquot {
    /// Its limits.
    pub limits: Limits,
    /// Space in use in bytes.
    pub space_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// When the grace period of space ends, in seconds; 0 if it has not begun.
    pub space_time: u64,
    /// When the grace period of inodes ends.
    pub inode_time: u64,
    /// Space that is reserved and not in use yet.
    pub(super) reserved_bytes: u64,
    pub(super) reserved_inodes: u64,
    /// Where its entry is; `None` if it has none yet.
    pub place: Option<EntryPlace>,
}

impl Dquot {
    /// Returns the record that an entry contains.
    #[must_use]
    pub fn decode(entry: &DiskQuotaEntry, place: EntryPlace) -> Self {
        Self {
            limits: Limits {
                space_hard: entry.space_hard.get(),
                space_soft: entry.space_soft.get(),
                inodes_hard: entry.inodes_hard.get(),
                inodes_soft: entry.inodes_soft.get(),
            },
            space_bytes: entry.space_bytes.get(),
            inodes: entry.inodes.get(),
            space_time: entry.space_time.get(),
            inode_time: entry.inode_time.get(),
            reserved_bytes: 0,
            reserved_inodes: 0,
            place: Some(place),
        }
    }

    /// Returns its entry.
    #[must_use]
    pub fn encode(&self, id: u32) -> DiskQuotaEntry {
        let entry = DiskQuotaEntry {
            id: id.into(),
            padding: 0.into(),
            inodes_hard: self.limits.inodes_hard.into(),
            inodes_soft: self.limits.inodes_soft.into(),
            inodes: self.inodes.into(),
            space_hard: self.limits.space_hard.into(),
            space_soft: self.limits.space_soft.into(),
            space_bytes: self.space_bytes.into(),
            space_time: self.space_time.into(),
            inode_time: self.inode_time.into(),
        };
        entry.marked()
    }

    /// Whether it uses nothing and has no limits.
    pub(super) fn is_unused(&self) -> bool {
        let reserved = (self.reserved_bytes, self.reserved_inodes);
        let in_use = (self.space_bytes, self.inodes);
        in_use == (0, 0) && reserved == (0, 0) && self.limits == Limits::default()
    }

    /// Whether so much more exceeds a hard limit, or a soft one whose grace period is over.
    pub(super) fn is_exceeded_by(&self, space_bytes: u64, inodes: u64, now: u64) -> bool {
        let limits = &self.limits;
        let space = self.space_with_reserved().saturating_add(space_bytes);
        let count = self.inodes_with_reserved().saturating_add(inodes);
        space_bytes > 0
            && exceeds(
                space,
                limits.space_hard,
                limits.space_soft,
                self.space_time,
                now,
            )
            || inodes > 0
                && exceeds(
                    count,
                    limits.inodes_hard,
                    limits.inodes_soft,
                    self.inode_time,
                    now,
                )
    }

    /// Begins the grace periods of soft limits that are exceeded now.
    pub(super) fn begin_grace(&mut self, now: u64, (of_space, of_inodes): (u64, u64)) {
        let begins = |used, soft, time| soft != 0 && used > soft && time == 0;
        if begins(
            self.space_with_reserved(),
            self.limits.space_soft,
            self.space_time,
        ) {
            self.space_time = now.saturating_add(of_space);
        }
        if begins(
            self.inodes_with_reserved(),
            self.limits.inodes_soft,
            self.inode_time,
        ) {
            self.inode_time = now.saturating_add(of_inodes);
        }
    }

    /// Ends the grace periods of soft limits that are not exceeded any more.
    pub(super) fn end_grace(&mut self) {
        if self.space_with_reserved() <= self.limits.space_soft || self.limits.space_soft == 0 {
            self.space_time = 0;
        }
        if self.inodes_with_reserved() <= self.limits.inodes_soft || self.limits.inodes_soft == 0 {
            self.inode_time = 0;
        }
    }

    pub(super) fn add(&mut self, space_bytes: u64, inodes: u64) {
        self.space_bytes = self.space_bytes.saturating_add(space_bytes);
        self.inodes = self.inodes.saturating_add(inodes);
    }

    pub(super) fn subtract(&mut self, space_bytes: u64, inodes: u64) {
        self.space_bytes = self.space_bytes.saturating_sub(space_bytes);
        self.inodes = self.inodes.saturating_sub(inodes);
    }

    pub(super) fn reserve(&mut self, space_bytes: u64, inodes: u64) {
        self.reserved_bytes = self.reserved_bytes.saturating_add(space_bytes);
        self.reserved_inodes = self.reserved_inodes.saturating_add(inodes);
    }

    pub(super) fn release(&mut self, space_bytes: u64, inodes: u64) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(space_bytes);
        self.reserved_inodes = self.reserved_inodes.saturating_sub(inodes);
    }

    /// Sets its entry, if it has one.
    pub(super) fn write(&self, handle: &mut Handle<'_>, id: u32) -> Result<()> {
        match self.place {
            Some(place) => write_entry(handle, place, self.encode(id)),
            None => Ok(()),
        }
    }

    /// Returns the space in use and reserved in bytes.
    #[must_use]
    pub fn space_with_reserved(&self) -> u64 {
        self.space_bytes.saturating_add(self.reserved_bytes)
    }

    /// Returns the inodes in use and reserved.
    #[must_use]
    pub fn inodes_with_reserved(&self) -> u64 {
        self.inodes.saturating_add(self.reserved_inodes)
    }
}

/// Whether a usage exceeds the hard limit, or the soft one after the end of its grace period.
fn exceeds(used: u64, hard: u64, soft: u64, grace_end: u64, now: u64) -> bool {
    hard != 0 && used > hard || soft != 0 && used > soft && grace_end != 0 && now >= grace_end
}
