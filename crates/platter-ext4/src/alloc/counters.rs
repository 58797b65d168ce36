//! What is free and promised in the whole filesystem.

use std::mem::offset_of;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::Reserve;

/// The counts that every change of space touches, each on cache lines of its own: what is only read
/// never shares one with them.
///
/// # Invariants
/// `available` is what is free on the medium less what is taken and not recorded yet, less what is
/// promised to data that has no place yet, less what lies in groups that cannot be used.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Counters {
    /// Clusters that neither belong to anything nor are promised. Those that the running
    /// transaction frees count: they can be had after its commit.
    available: CachePadded<AtomicI64>,
    /// Clusters that are free by the descriptors.
    pub(super) free: Count,
    /// Clusters promised to data that has no place yet.
    delayed: Count,
    /// Clusters that were freed and may not be used yet.
    pub(super) pending: Count,
    /// How often freed clusters came to be used again.
    pub(super) returned: Count,
    /// Clusters kept for files that grow. They count as available.
    pub(super) kept: Count,
    /// The number of the next window.
    windows: Count,
    /// Inodes that are free by the descriptors.
    pub(super) free_inodes: Count,
    /// Directories, by the descriptors.
    pub(super) directories: Count,
    floors: Floors,
}

/// How much each kind of request has to leave available, in clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Floors {
    /// Kept for the superuser.
    pub(super) reserved: u64,
    /// Kept for the metadata of promised data.
    pub(super) split: u64,
}

/// A count alone on its cache lines.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct Count(CachePadded<AtomicU64>);

const LINE: usize = align_of::<CachePadded<AtomicU64>>();
const _: () = assert!(offset_of!(Counters, free) - offset_of!(Counters, available) == LINE);
const _: () = assert!(offset_of!(Counters, delayed) - offset_of!(Counters, free) == LINE);
const _: () = assert!(offset_of!(Counters, pending) - offset_of!(Counters, delayed) == LINE);
const _: () = assert!(offset_of!(Counters, returned) - offset_of!(Counters, pending) == LINE);
const _: () = assert!(offset_of!(Counters, kept) - offset_of!(Counters, returned) == LINE);
const _: () = assert!(offset_of!(Counters, windows) - offset_of!(Counters, kept) == LINE);
const _: () = assert!(offset_of!(Counters, free_inodes) - offset_of!(Counters, windows) == LINE);
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
            windows: Count::default(),
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

    /// Takes as many of `want` clusters out of the count as a request of this kind may have.
    pub(super) fn claim(&self, want: u32, from: Reserve) -> u32 {
        let wanted = u64::from(want);
        let granted = if from == Reserve::Promised {
            take_up_to(&self.delayed.0, wanted)
        } else {
            self.claim_available(wanted, 1, from)
        };
        u32::try_from(granted).unwrap_or(want)
    }

    /// Gives back what was claimed.
    pub(super) fn unclaim(&self, count: u64, from: Reserve) {
        if from == Reserve::Promised {
            self.delayed.add(count);
        } else {
            self.release(count);
        }
    }

    /// What [`claim`](Self::claim) would give at most.
    pub(super) fn claimable(&self, from: Reserve) -> u64 {
        if from == Reserve::Promised {
            return self.delayed.get();
        }
        let left = self.available.load(Ordering::Acquire) - self.floor(from);
        u64::try_from(left).unwrap_or(0)
    }

    /// Promises `count` clusters to data, all or none, and tells whether it did.
    pub(super) fn promise(&self, count: u64, from: Reserve) -> bool {
        if count == 0 || self.claim_available(count, count, from) == count {
            self.delayed.add(count);
            return true;
        }
        false
    }

    /// Promises what is released right after this.
    pub(super) fn renew(&self, count: u64) {
        self.write_off(count);
        self.delayed.add(count);
    }

    /// Takes back a promise.
    pub(super) fn withdraw(&self, count: u64) {
        let withdrawn = take_up_to(&self.delayed.0, count);
        debug_assert_eq!(withdrawn, count, "what is withdrawn was promised");
        self.release(withdrawn);
    }

    /// Counts clusters as available that were not.
    pub(super) fn release(&self, count: u64) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.available.fetch_add(count, Ordering::AcqRel);
    }

    /// Counts clusters as lost: their group cannot be used.
    pub(super) fn write_off(&self, count: u64) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.available.fetch_sub(count, Ordering::AcqRel);
    }

    /// A number that no window had yet.
    pub(super) fn next_window(&self) -> u64 {
        self.windows.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Clusters free for anything: neither taken nor promised.
    pub(super) fn available(&self) -> u64 {
        u64::try_from(self.available.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Clusters free for anybody.
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
            Reserve::Split | Reserve::Promised => 0,
        };
        i64::try_from(floor).unwrap_or(i64::MAX)
    }
}

/// Takes up to `want` out of a count.
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
    fn promise_is_given_whole_and_kept() {
        let counters = counters();
        assert!(!counters.promise(71, Reserve::Ordinary));
        assert!(counters.promise(70, Reserve::Ordinary));
        assert!(!counters.promise(1, Reserve::Ordinary));
        assert_eq!(counters.claim(1000, Reserve::Split), 30);
        assert_eq!(counters.claim(60, Reserve::Promised), 60);
        assert_eq!(counters.claim(60, Reserve::Promised), 10);
        counters.unclaim(5, Reserve::Promised);
        counters.withdraw(5);
        assert_eq!((counters.delayed(), counters.available()), (0, 5));
    }

    #[test]
    fn lost_groups_may_take_more_than_there_is() {
        let counters = counters();
        counters.write_off(150);
        assert_eq!(counters.available(), 0);
        assert_eq!(counters.claim(1, Reserve::Split), 0);
        counters.release(60);
        assert_eq!(counters.claim(100, Reserve::Split), 10);
    }
}
