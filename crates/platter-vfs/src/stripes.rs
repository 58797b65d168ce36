//! Which stripe of a counter belongs to a thread, where threads count apart so that they share no cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of this thread among those that asked; taken modulo the number of stripes, neighbours in it are
/// apart.
#[must_use]
pub fn stripe_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    STRIPE.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        STRIPE.set(Some(number));
        number
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripe_stays_with_its_thread() {
        let own = stripe_of_thread();
        assert_eq!(stripe_of_thread(), own);
        let other = std::thread::scope(|scope| scope.spawn(stripe_of_thread).join().unwrap());
        assert_ne!(other, own);
    }
}
