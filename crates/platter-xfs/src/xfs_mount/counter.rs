//! Counters that threads change without sharing a cache line, and that are exact where it matters: near
//! the limits that a caller compares them with.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicI64, Ordering as Atomic};

use platter_block::lock::Mutex;
use platter_vfs::stripes::stripe_of_thread;

use super::classes::{Classed, classed};
use super::padded::Padded;

/// What a stripe holds while nothing may be added to it.
const SEALED: i64 = i64::MIN;
const STRIPES_MAX: usize = 64;

/// A counter in stripes, one for each of so many threads, and a total that stripes are folded into.
///
/// # Invariants
/// - The value is the total and what the stripes hold. A stripe that is not sealed holds less than a batch
///   either way.
/// - The total changes under the lock only. While stripes are not sealed it is at least
///   [two reaches](Self::reach) above `exact_below`; so the value is at least one above, whatever the stripes
///   hold, and a small amount may be taken without a look at the others.
/// - While they are sealed, the total is the value.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct StripedCounter {
    stripes: Box<[Padded<AtomicI64>]>,
    batch: i64,
    folded: Padded<Folded>,
}

#[derive(Debug)]
struct Folded {
    total: AtomicI64,
    /// The total, and whether stripes are sealed.
    mode: Mutex<Mode>,
}

#[derive(Debug)]
struct Mode {
    is_sealed: bool,
    exact_below: i64,
}

classed!(StripedCounter {
    ReadOnly: stripes, batch;
    Apart: folded;
});
const _: () = assert!(StripedCounter::LAYOUT.is_parted());

impl StripedCounter {
    /// A counter whose stripes hold less than `batch`, and which is exact where it is below `exact_below`.
    ///
    /// # Panics
    /// If `batch` is not positive.
    #[must_use]
    pub fn new(value: i64, batch: i64, exact_below: i64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let stripes = threads.next_power_of_two().min(STRIPES_MAX);
        Self::with_stripes(stripes, value, batch, exact_below)
    }

    fn with_stripes(stripes: usize, value: i64, batch: i64, exact_below: i64) -> Self {
        assert!(batch > 0, "a stripe holds something");
        let counter = Self {
            stripes: (0..stripes.max(1)).map(|_| Padded::default()).collect(),
            batch,
            folded: Padded(Folded {
                total: AtomicI64::new(value),
                mode: Mutex::new(Mode {
                    is_sealed: false,
                    exact_below,
                }),
            }),
        };
        counter.set_exact_below(|| exact_below);
        counter
    }

    /// The most that all stripes together may hold.
    #[must_use]
    pub fn reach(&self) -> i64 {
        i64::try_from(self.stripes.len())
            .unwrap_or(i64::MAX)
            .saturating_mul(self.batch)
    }

    /// Sets the value below which the counter is exact. The closure is called with the lock held, so that the last
    /// call stores the newest limit.
    pub fn set_exact_below(&self, exact_below: impl FnOnce() -> i64) {
        let mut mode = self.folded.mode.lock();
        mode.exact_below = exact_below();
        self.seal_if_near(&mut mode);
    }

    /// Raises the value below which the counter is exact to `exact_below`, if it is lower.
    pub fn raise_exact_below(&self, exact_below: i64) {
        let mut mode = self.folded.mode.lock();
        mode.exact_below = mode.exact_below.max(exact_below);
        self.seal_if_near(&mut mode);
    }

    /// Adds an amount, which may be negative.
    pub fn add(&self, amount: i64) {
        if self.add_to_stripe(amount) {
            return;
        }
        let mut mode = self.folded.mode.lock();
        self.fold_own(&mode);
        self.add_to_total(amount);
        self.seal_if_near(&mut mode);
    }

    /// Subtracts `amount` if at least `floor` is left. If `floor` exceeds the limit set by
    /// [`set_exact_below`](Self::set_exact_below), the limit is raised to it when the total is compared. A
    /// subtraction that the stripe of the thread can hold is not compared.
    #[must_use]
    pub fn try_sub(&self, amount: i64, floor: i64) -> bool {
        debug_assert!(amount >= 0);
        if self.add_to_stripe(-amount) {
            return true;
        }
        let mut mode = self.folded.mode.lock();
        // The floor may have been raised before `set_exact_below` was called.
        mode.exact_below = mode.exact_below.max(floor);
        self.seal(&mut mode);
        let left = self.total().saturating_sub(amount);
        let is_enough = left >= floor;
        if is_enough {
            self.folded.total.store(left, Atomic::Relaxed);
        }
        self.seal_if_near(&mut mode);
        is_enough
    }

    /// Compares the value with a limit: by the total alone where no stripe can matter, else exactly. The
    /// batch is the counter's own: a comparison with another one would be wrong by what the stripes hold.
    #[must_use]
    pub fn compare(&self, limit: i64) -> Ordering {
        let total = self.total();
        if total.abs_diff(limit) > self.reach().unsigned_abs() {
            return total.cmp(&limit);
        }
        self.sum().cmp(&limit)
    }

    /// The value; exact if no other thread changes it meanwhile.
    #[must_use]
    pub fn sum(&self) -> i64 {
        let _mode = self.folded.mode.lock();
        let held = self
            .stripes
            .iter()
            .map(|stripe| stripe.load(Atomic::Relaxed));
        let held = held.filter(|&held| held != SEALED);
        held.fold(self.total(), i64::saturating_add)
    }

    fn total(&self) -> i64 {
        self.folded.total.load(Atomic::Relaxed)
    }

    fn add_to_total(&self, amount: i64) {
        let total = self.total().saturating_add(amount);
        self.folded.total.store(total, Atomic::Relaxed);
    }

    fn own_stripe(&self) -> &AtomicI64 {
        &self.stripes[stripe_of_thread() % self.stripes.len()]
    }

    /// Adds to the stripe of this thread, unless that would hold a batch then, or is sealed.
    fn add_to_stripe(&self, amount: i64) -> bool {
        let grown = |held: i64| {
            let sum = held.checked_add(amount)?;
            (held != SEALED && sum.unsigned_abs() < self.batch.unsigned_abs()).then_some(sum)
        };
        let stripe = self.own_stripe();
        stripe
            .fetch_update(Atomic::Relaxed, Atomic::Relaxed, grown)
            .is_ok()
    }

    fn fold_own(&self, mode: &Mode) {
        if !mode.is_sealed {
            let held = self.own_stripe().swap(0, Atomic::Relaxed);
            self.add_to_total(held);
        }
    }

    fn seal(&self, mode: &mut Mode) {
        if mode.is_sealed {
            return;
        }
        for stripe in &self.stripes {
            let held = stripe.swap(SEALED, Atomic::Relaxed);
            self.add_to_total(held);
        }
        mode.is_sealed = true;
    }

    /// Seals the stripes if the total has come near what the counter is exact below, and opens them if it is
    /// far above.
    fn seal_if_near(&self, mode: &mut Mode) {
        let near = mode.exact_below.saturating_add(2 * self.reach());
        if self.total() < near {
            self.seal(mode);
        } else if mode.is_sealed && self.total() >= near.saturating_add(self.reach()) {
            mode.is_sealed = false;
            for stripe in &self.stripes {
                stripe.store(0, Atomic::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn sum_is_exact_once_threads_are_done() {
        let counter = StripedCounter::with_stripes(4, 1_000_000, 64, 0);
        std::thread::scope(|scope| {
            for thread in 0..6_i64 {
                let counter = &counter;
                scope.spawn(move || {
                    for step in 0..5_000_i64 {
                        counter.add((step * 7 + thread) % 31 - 15);
                    }
                });
            }
        });
        let one = |thread: i64| (0..5_000_i64).map(move |step| (step * 7 + thread) % 31 - 15);
        let expected: i64 = 1_000_000 + (0..6).flat_map(one).sum::<i64>();
        assert_eq!(counter.sum(), expected);
    }

    /// What the kernel's 8c1903d3081a repaired: stripes were filled in batches of one size, and the
    /// comparison took another one for granted.
    #[test]
    fn comparison_counts_what_the_stripes_hold() {
        let counter = StripedCounter::with_stripes(8, 10_000, 128, -100_000);
        // Each thread leaves less than a batch in its stripe: the total still says 10,000.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| counter.add(-120));
            }
        });
        let value = 10_000 - 8 * 120;
        assert_eq!(counter.sum(), value);
        assert_eq!(counter.compare(value), Ordering::Equal);
        assert_eq!(counter.compare(value + 1), Ordering::Less);
        assert_eq!(counter.compare(value - 1), Ordering::Greater);
        assert_eq!(counter.compare(20_000), Ordering::Less);
        assert_eq!(counter.compare(0), Ordering::Greater);
    }

    #[test]
    fn threads_take_exactly_what_is_there() {
        let (start, floor) = (20_000, 37);
        let counter = StripedCounter::with_stripes(4, start, 32, floor);
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_i64 {
                let (counter, taken) = (&counter, &taken);
                scope.spawn(move || {
                    let mut refused = 0;
                    while refused < 50 {
                        let amount = 1 + thread;
                        if counter.try_sub(amount, floor) {
                            taken.fetch_add(amount.unsigned_abs(), Atomic::Relaxed);
                            assert!(counter.compare(floor) != Ordering::Less);
                        } else {
                            refused += 1;
                        }
                    }
                });
            }
        });
        let taken = i64::try_from(taken.into_inner()).unwrap();
        assert_eq!(counter.sum(), start - taken);
        assert_eq!(
            counter.sum(),
            floor,
            "the thread that takes one takes the last"
        );
    }

    #[test]
    fn sealed_stripes_open_once_there_is_enough() {
        let counter = StripedCounter::with_stripes(2, 10, 8, 0);
        assert!(!counter.try_sub(11, 0) && counter.try_sub(10, 0));
        assert_eq!(counter.stripes[0].load(Atomic::Relaxed), SEALED);
        counter.add(1_000);
        assert_eq!(counter.sum(), 1_000);
        assert_eq!(counter.stripes[0].load(Atomic::Relaxed), 0);
        assert!(counter.try_sub(3, 0));
        assert_eq!((counter.total(), counter.sum()), (1_000, 997));
        counter.set_exact_below(|| 990);
        assert_eq!((counter.total(), counter.sum()), (997, 997));
    }
}
