//! Counters of free and reserved space of the whole filesystem.

use std::mem::offset_of;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::Reserve;

/// The counters that every allocation modifies, each on its own cache lines, apart from read-only
/// data.
///
/// # Invariants
/// `available` is the number of free clusters on disk, less those allocated in memory and not
/// marked in a bitmap yet, less those reserved for delayed data, less those in unusable groups.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Counters {
    /// Clusters that are neither allocated nor reserved. Includes those that the running
    /// transaction frees, which can be allocated after its commit.
    available: CachePadded<AtomicI64>,
    /// Free clusters according to the descriptors.
    pub(super) free: Count,
    /// Clusters reserved for delayed allocation.
    delayed: Count,
    /// Clusters that were freed and cannot be allocated before the commit.
    pub(super) pending: Count,
    /// How often freed clusters became allocatable.
    pub(super) returned: Count,
    /// Preallocated clusters of growing files. They count as available.
    pub(super) kept: Count,
    /// The number of the next preallocation.
    preallocations: Count,
    /// Free inodes according to the descriptors.
    pub(super) free_inodes: Count,
    /// Directories according to the descriptors.
    pub(super) directories: Count,
    floors: Floors,
}

/// The clusters that each kind of request must leave available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Floors {
    /// Reserved for the superuser.
    pub(super) reserved: u64,
    /// Reserved for the metadata of delayed data.
    pub(super) split: u64,
}

/// A counter on its own cache lines.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct Count(CachePadded<AtomicU64>);

const LINE: usize = align_of::<CachePadded<AtomicU64>>();
const _: () = assert!(offset_of!(Counters, free) - offset_of!(Counters, available) == LINE);
const _: () = assert!(offset_of!(Counters, delayed) - offset_of!(Counters, free) == LINE);
const _: () = assert!(offset_of!(Counters, pending) - offset_of!(Counters, delayed) == LINE);
const _: () = assert!(offset_of!(Counters, returned) - offset_of!(Counters, pending) == LINE);
const _: () = assert!(offset_of!(Counters, kept) - offset_of!(Counters, returned) == LINE);
const _: () = assert!(offset_of!(Counters, preallocations) - offset_of!(Counters, kept) == LINE);
const _: () =
    assert!(offset_of!(Counters, free_inodes) - offset_of!(Counters, preallocations) == LINE);
const _: () = assert!(offset_of!(Counters, floors) - offset_of!(Counters, directories) == LINE);
const _: () = assert!(align_of::<Counters>() == LINE);

impl Count {
    pub(super) fn new(count: u64) -> Self {
        Self(CachePadded::new(AtomicU64::new(count)))
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::AcqRel);
    }

    pub(super) fn sub(&self, count: u64) {
        let before = self.0.fetch_sub(count, Ordering::AcqRel);
        debug_assert!(before >= count, "a count never falls below nothing");
    }
}

impl Counters {
    pub(super) fn new(free: u64, free_inodes: u64, directories: u64, floors: Floors) -> Self {
        let available = i64::try_from(free).unwrap_or(i64::MAX);
        Self {
            available: CachePadded::new(AtomicI64::new(available)),
            free: Count::new(free),
            delayed: Count::default(),
            pending: Count::default(),
            returned: Count::default(),
            kept: Count::default(),
            preallocations: Count::default(),
            free_inodes: Count::new(free_inodes),
            directories: Count::new(directories),
            floors,
        }
    }

    pub(super) fn drop_floors(&mut self) {
        self.floors = Floors {
            reserved: 0,
            split: 0,
        };
    }

    /// Claims up to `want` clusters, as many as a request of this kind may have.
    pub(super) fn claim(&self, want: u32, from: Reserve) -> u32 {
        let wanted = u64::from(want);
        let granted = if from == Reserve::Delayed {
            take_up_to(&self.delayed.0, wanted)
        } else {
            self.claim_available(wanted, 1, from)
        };
        u32::try_from(granted).unwrap_or(want)
    }

    /// Returns claimed clusters.
    pub(super) fn unclaim(&self, count: u64, from: Reserve) {
        if from == Reserve::Delayed {
            self.delayed.add(count);
        } else {
            self.release(count);
        }
    }

    /// Returns the maximum that [`claim`](Self::claim) would return.
    pub(super) fn claimable(&self, from: Reserve) -> u64 {
        if from == Reserve::Delayed {
            return self.delayed.get();
        }
        let left = self.available.load(Ordering::Acquire) - self.floor(from);
        u64::try_from(left).unwrap_or(0)
    }

    /// Reserves `count` clusters for delayed data, all or none; returns whether it succeeded.
    pub(super) fn reserve(&self, count: u64, from: Reserve) -> bool {
        if count == 0 || self.claim_available(count, count, from) == count {
            self.delayed.add(count);
            return true;
        }
        false
    }

    /// Adds a reservation for clusters that are released immediately afterwards.
    pub(super) fn renew(&self, count: u64) {
        self.write_off(count);
        self.delayed.add(count);
    }

    /// Releases a reservation.
    pub(super) fn withdraw(&self, count: u64) {
        let withdrawn = take_up_to(&self.delayed.0, count);
        debug_assert_eq!(withdrawn, count, "withdrawn clusters were reserved");
        self.release(withdrawn);
    }

    /// Adds clusters that become available.
    pub(super) fn release(&self, count: u64) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.available.fetch_add(count, Ordering::AcqRel);
    }

    /// Removes clusters of a group that cannot be used.
    pub(super) fn write_off(&self, count: u64) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.available.fetch_sub(count, Ordering::AcqRel);
    }

    /// Returns a unique number for a preallocation.
    pub(super) fn next_preallocation(&self) -> u64 {
        self.preallocations.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the clusters that are neither allocated nor reserved.
    pub(super) fn available(&self) -> u64 {
        u64::try_from(self.available.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Returns the clusters available without privileges.
    pub(super) fn available_to_all(&self) -> u64 {
        self.claimable(Reserve::Ordinary)
    }

    #[cfg(test)]
    pub(super) fn delayed(&self) -> u64 {
        self.delayed.get()
    }

    fn claim_available(&self, want: u64, need: u64, from: Reserve) -> u64 {
        let floor = self.floor(from);
        let mut granted = 0;
        let mut claim = |available: i64| {
            granted = u64::try_from(available - floor).unwrap_or(0).min(want);
            let left = available - i64::try_from(granted).unwrap_or(0);
            (granted >= need).then_some(left)
        };
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let claimed = self.available.fetch_update(order.0, order.1, &mut claim);
        claimed.map_or(0, |_| granted)
    }

    fn floor(&self, from: Reserve) -> i64 {
        let floor = match from {
            Reserve::Ordinary => self.floors.reserved.saturating_add(self.floors.split),
            Reserve::Privileged => self.floors.split,
            Reserve::Split | Reserve::Delayed => 0,
        };
        i64::try_from(floor).unwrap_or(i64::MAX)
    }
}

/// Subtracts up to `want` from a counter.
fn take_up_to(count: &AtomicU64, want: u64) -> u64 {
    let mut taken = 0;
    let mut take = |held: u64| {
        taken = held.min(want);
        Some(held - taken)
    };
    let order = (Ordering::AcqRel, Ordering::Acquire);
    let updated = count.fetch_update(order.0, order.1, &mut take);
    updated.map_or(0, |_| taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> Counters {
        let floors = Floors {
            reserved: 20,
            split: 10,
        };
        Counters::new(100, 0, 0, floors)
    }

    #[test]
    fn each_kind_of_request_leaves_its_floor() {
        let counters = counters();
        assert_eq!(counters.claim(1000, Reserve::Ordinary), 70);
        assert_eq!(counters.claim(1, Reserve::Ordinary), 0);
        assert_eq!(counters.claim(1000, Reserve::Privileged), 20);
        assert_eq!(counters.claim(1000, Reserve::Split), 10);
        assert_eq!(counters.claim(1, Reserve::Split), 0);
        assert_eq!((counters.available(), counters.available_to_all()), (0, 0));
    }

    #[test]
    fn reservation_is_all_or_nothing() {
        let counters = counters();
        assert!(!counters.reserve(71, Reserve::Ordinary));
        assert!(counters.reserve(70, Reserve::Ordinary));
        assert!(!counters.reserve(1, Reserve::Ordinary));
        assert_eq!(counters.claim(1000, Reserve::Split), 30);
        assert_eq!(counters.claim(60, Reserve::Delayed), 60);
        assert_eq!(counters.claim(60, Reserve::Delayed), 10);
        counters.unclaim(5, Reserve::Delayed);
        counters.withdraw(5);
        assert_eq!((counters.delayed(), counters.available()), (0, 5));
    }

    #[test]
    fn lost_groups_may_exceed_available() {
        let counters = counters();
        counters.write_off(150);
        assert_eq!(counters.available(), 0);
        assert_eq!(counters.claim(1, Reserve::Split), 0);
        counters.release(60);
        assert_eq!(counters.claim(100, Reserve::Split), 10);
    }
}
