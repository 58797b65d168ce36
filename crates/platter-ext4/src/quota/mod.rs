//! Usage and limits of users, groups and projects: in memory, and in their entries of the quota files.
//!
//! An inode counts for three owners, with the space of its `i_blocks` and as one inode, and one more for
//! each of its EA inodes. What it [counts for](Charge) changes in the transaction that stores it.

mod dquot;
mod held;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use platter_block::lock::{Mutex, rank};
use platter_ondisk::verify::Unverified;
use platter_vfs::{Clock, Condition, Result};
use zerocopy::IntoBytes;

use crate::ondisk::quota::{DiskQuotaEntry, DiskQuotaHead, QuotaKind};
use crate::ondisk::{BlockNr, Inode};
use crate::txn::Handle;

pub use dquot::{Dquot, Limits};
pub use held::Held;

/// Number of inodes with different owners that one handle changes the usage of at most.
const INODES_PER_HANDLE: u32 = 4;

/// The user, group and project of an inode.
pub type Owners = [u32; 3];

/// What an inode counts for, and for which owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charge {
    /// The owners.
    pub owners: Owners,
    /// Space in bytes.
    pub space_bytes: u64,
    /// Itself and its EA inodes.
    pub inodes: u64,
}

impl Charge {
    /// Returns the charge of an inode with so many EA inodes.
    #[must_use]
    pub fn of(inode: &Inode, ea_inodes: u64) -> Self {
        Self {
            owners: owners_of(inode),
            space_bytes: inode.sectors << 9,
            inodes: 1 + ea_inodes,
        }
    }

    /// Returns the charge of nothing for the same owners.
    #[must_use]
    pub fn nothing(&self) -> Self {
        Self {
            owners: self.owners,
            ..Self::default()
        }
    }
}

/// Returns the owners of an inode.
#[must_use]
pub fn owners_of(inode: &Inode) -> Owners {
    [inode.uid, inode.gid, inode.project]
}

/// The location of an entry on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPlace {
    /// The block.
    pub block: BlockNr,
    /// The offset of the entry in it.
    pub offset: usize,
}

/// Usage by id of one kind.
#[derive(Debug)]
pub struct KindUsage {
    /// Grace periods of space and inodes in seconds.
    grace: (u64, u64),
    is_enforced: bool,
    dquots: BTreeMap<u32, Dquot>,
}

impl KindUsage {
    /// Returns the usage that a quota file with this header and these entries has.
    #[must_use]
    pub fn new(head: &DiskQuotaHead, dquots: BTreeMap<u32, Dquot>) -> Self {
        let grace = (head.space_grace.get(), head.inode_grace.get());
        Self {
            grace: (grace.0.into(), grace.1.into()),
            is_enforced: false,
            dquots,
        }
    }
}

/// The usage of all owners of a filesystem with the `quota` feature.
#[derive(Debug)]
pub struct QuotaTable {
    /// Usage by kind of owner.
    kinds: Mutex<[Option<KindUsage>; 3], { rank(8, 5) }>,
    credits: u32,
    is_enforced: bool,
    clock: Arc<dyn Clock>,
}

impl QuotaTable {
    /// Returns the table of these kinds, which enforces the limits of some.
    #[must_use]
    pub fn new(
        mut kinds: [Option<KindUsage>; 3],
        enforced: [bool; 3],
        clock: Arc<dyn Clock>,
    ) -> Self {
        let count = kinds.iter().flatten().count();
        for (kind, enforced) in kinds.iter_mut().zip(enforced) {
            if let Some(kind) = kind {
                kind.is_enforced = enforced;
            }
        }
        Self {
            kinds: Mutex::new(kinds),
            credits: INODES_PER_HANDLE * u32::try_from(count).unwrap_or(3),
            is_enforced: enforced.contains(&true),
            clock,
        }
    }

    /// Returns the credits that every handle needs in addition to those of what it changes.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Returns the ids among `owners` that have no entry in their quota file yet.
    #[must_use]
    pub fn missing(&self, owners: &Owners) -> Vec<(QuotaKind, u32)> {
        let kinds = self.kinds.lock();
        let all = QuotaKind::ALL.into_iter().zip(&*kinds).zip(owners);
        let missing = all.filter(|((_, usage), id)| {
            let dquots = usage.as_ref().map(|usage| &usage.dquots);
            dquots.is_some_and(|dquots| dquots.get(id).is_none_or(|dquot| dquot.place.is_none()))
        });
        missing.map(|((kind, _), &id)| (kind, id)).collect()
    }

    /// Records that an id has an entry, in a block that is part of the transaction, and sets it.
    ///
    /// # Errors
    /// Those of changing the block.
    pub fn add_entry(
        &self,
        handle: &mut Handle<'_>,
        kind: QuotaKind,
        id: u32,
        place: EntryPlace,
    ) -> Result<()> {
        let mut kinds = self.kinds.lock();
        let Some(usage) = kinds.get_mut(kind.index()).and_then(Option::as_mut) else {
            return Ok(());
        };
        let dquot = usage.dquots.entry(id).or_default();
        dquot.place = Some(place);
        dquot.write(handle, id)
    }

    /// Returns the ids of one kind whose entries record nothing.
    #[must_use]
    pub fn unused(&self, kind: QuotaKind) -> Vec<u32> {
        let kinds = self.kinds.lock();
        let usage = kinds.get(kind.index()).and_then(Option::as_ref);
        let dquots = usage.into_iter().flat_map(|usage| &usage.dquots);
        let unused = dquots.filter(|(_, dquot)| dquot.place.is_some() && dquot.is_unused());
        unused.map(|(&id, _)| id).collect()
    }

    /// Forgets an id whose entry was removed.
    pub fn remove_entry(&self, kind: QuotaKind, id: u32) {
        let mut kinds = self.kinds.lock();
        if let Some(usage) = kinds.get_mut(kind.index()).and_then(Option::as_mut) {
            usage.dquots.remove(&id);
        }
    }

    /// Returns the record of an id; `None` if its kind is not counted.
    #[must_use]
    pub fn get(&self, kind: QuotaKind, id: u32) -> Option<Dquot> {
        let kinds = self.kinds.lock();
        let usage = kinds.get(kind.index())?.as_ref()?;
        Some(usage.dquots.get(&id).copied().unwrap_or_default())
    }

    /// Returns the record of an id; `None` if limits of its kind are not enforced.
    #[must_use]
    pub fn enforced(&self, kind: QuotaKind, id: u32) -> Option<Dquot> {
        let kinds = self.kinds.lock();
        let usage = kinds.get(kind.index())?.as_ref()?;
        let dquot = usage.dquots.get(&id).copied().unwrap_or_default();
        usage.is_enforced.then_some(dquot)
    }

    /// Returns the records of all ids of one kind.
    #[must_use]
    pub fn all(&self, kind: QuotaKind) -> Vec<(u32, Dquot)> {
        let kinds = self.kinds.lock();
        let usage = kinds.get(kind.index()).and_then(Option::as_ref);
        let dquots = usage.into_iter().flat_map(|usage| &usage.dquots);
        dquots.map(|(&id, &dquot)| (id, dquot)).collect()
    }

    /// Changes what an inode counts for. Of what is added, `claimed_bytes` were
    /// [reserved](Self::reserve) for the new owners.
    ///
    /// # Errors
    /// Those of changing the entries: usage and entries no longer agree.
    pub fn change(
        &self,
        handle: &mut Handle<'_>,
        from: &Charge,
        to: &Charge,
        claimed_bytes: u64,
    ) -> Result<()> {
        if from == to && claimed_bytes == 0 {
            return Ok(());
        }
        self.join(handle, &from.owners)?;
        if from.owners != to.owners {
            self.join(handle, &to.owners)?;
        }
        let now = self.now();
        let mut kinds = self.kinds.lock();
        for (index, usage) in kinds.iter_mut().enumerate() {
            let Some(usage) = usage else { continue };
            let (old, new) = (from.owners[index], to.owners[index]);
            if old == new && from.space_bytes == to.space_bytes && from.inodes == to.inodes {
                usage
                    .dquots
                    .entry(new)
                    .or_default()
                    .release(claimed_bytes, 0);
                continue;
            }
            let grace = usage.grace;
            let dquot = usage.dquots.entry(old).or_default();
            dquot.subtract(from.space_bytes, from.inodes);
            if old != new {
                dquot.end_grace();
                dquot.write(handle, old)?;
            }
            let dquot = usage.dquots.entry(new).or_default();
            dquot.release(claimed_bytes, 0);
            dquot.add(to.space_bytes, to.inodes);
            if usage.is_enforced {
                dquot.begin_grace(now, grace);
            }
            dquot.end_grace();
            dquot.write(handle, new)?;
        }
        Ok(())
    }

    /// Reserves space and inodes for owners, as far as their limits allow. If `may_exceed`, they do not
    /// apply.
    ///
    /// # Errors
    /// `QuotaExceeded`: nothing is reserved.
    pub fn reserve(
        &self,
        owners: &Owners,
        space_bytes: u64,
        inodes: u64,
        may_exceed: bool,
    ) -> Result<()> {
        if space_bytes == 0 && inodes == 0 {
            return Ok(());
        }
        let now = self.now();
        let mut kinds = self.kinds.lock();
        if !may_exceed {
            for (usage, id) in kinds.iter().zip(owners) {
                let enforced = usage.as_ref().filter(|usage| usage.is_enforced);
                let dquot = enforced.and_then(|usage| usage.dquots.get(id));
                if dquot.is_some_and(|dquot| dquot.is_exceeded_by(space_bytes, inodes, now)) {
                    return Err(Condition::QuotaExceeded.into());
                }
            }
        }
        for (usage, id) in kinds.iter_mut().zip(owners) {
            let Some(usage) = usage else { continue };
            let grace = usage.grace;
            let dquot = usage.dquots.entry(*id).or_default();
            dquot.reserve(space_bytes, inodes);
            if usage.is_enforced {
                // It is stored with the usage.
                dquot.begin_grace(now, grace);
            }
        }
        Ok(())
    }

    /// Checks that the limits of `owners` allow them to get an inode and so much reserved space. Owners
    /// that have it already are left out.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub fn check_transfer(&self, charge: &Charge, owners: &Owners, reserved: u64) -> Result<()> {
        let now = self.now();
        let space_bytes = charge.space_bytes.saturating_add(reserved);
        let kinds = self.kinds.lock();
        for ((usage, new), old) in kinds.iter().zip(owners).zip(&charge.owners) {
            let enforced = usage
                .as_ref()
                .filter(|usage| usage.is_enforced && new != old);
            let dquot = enforced.and_then(|usage| usage.dquots.get(new));
            if dquot.is_some_and(|dquot| dquot.is_exceeded_by(space_bytes, charge.inodes, now)) {
                return Err(Condition::QuotaExceeded.into());
            }
        }
        Ok(())
    }

    /// Releases what was [reserved](Self::reserve).
    pub fn release(&self, owners: &Owners, space_bytes: u64, inodes: u64) {
        let mut kinds = self.kinds.lock();
        for (usage, id) in kinds.iter_mut().zip(owners) {
            let dquot = usage.as_mut().and_then(|usage| usage.dquots.get_mut(id));
            if let Some(dquot) = dquot {
                dquot.release(space_bytes, inodes);
                dquot.end_grace();
            }
        }
    }

    /// As [`reserve`](Self::reserve), until the result is dropped.
    ///
    /// # Errors
    /// Those of `reserve`.
    pub fn hold(
        self: &Arc<Self>,
        owners: Owners,
        space_bytes: u64,
        inodes: u64,
        may_exceed: bool,
    ) -> Result<Held> {
        let mut held = Held::nothing(Arc::clone(self), owners);
        held.add(space_bytes, inodes, may_exceed)?;
        Ok(held)
    }

    /// Sets the limits of an id that has an entry.
    ///
    /// # Errors
    /// Those of changing the entry.
    pub fn set_limits(
        &self,
        handle: &mut Handle<'_>,
        kind: QuotaKind,
        id: u32,
        limits: &Limits,
    ) -> Result<()> {
        let mut owners = Owners::default();
        owners[kind.index()] = id;
        self.join(handle, &owners)?;
        let now = self.now();
        let mut kinds = self.kinds.lock();
        let usage = kinds.get_mut(kind.index()).and_then(Option::as_mut);
        let usage = usage.ok_or(Condition::NotSupported)?;
        let grace = usage.grace;
        let dquot = usage.dquots.entry(id).or_default();
        dquot.limits = *limits;
        dquot.begin_grace(now, grace);
        dquot.end_grace();
        dquot.write(handle, id)
    }

    /// Whether limits apply.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.is_enforced
    }

    /// Makes the blocks of the entries of `owners` part of the transaction, so that they are in memory
    /// when the lock is held.
    fn join(&self, handle: &mut Handle<'_>, owners: &Owners) -> Result<()> {
        let mut places = [None; 3];
        {
            let kinds = self.kinds.lock();
            for ((place, usage), id) in places.iter_mut().zip(&*kinds).zip(owners) {
                let dquot = usage.as_ref().and_then(|usage| usage.dquots.get(id));
                *place = dquot.and_then(|dquot| dquot.place);
            }
        }
        places
            .into_iter()
            .flatten()
            .try_for_each(|place| handle.edit(place.block, &Unverified, |_| Ok(())))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().seconds).unwrap_or(0)
    }
}

/// Sets an entry in its block.
pub(crate) fn write_entry(
    handle: &mut Handle<'_>,
    place: EntryPlace,
    entry: DiskQuotaEntry,
) -> Result<()> {
    handle.edit(place.block, &Unverified, |bytes| {
        let slot = bytes.get_mut(place.offset..).unwrap_or_default();
        for (to, from) in slot.iter_mut().zip(entry.as_bytes()) {
            *to = *from;
        }
        Ok(())
    })
}
