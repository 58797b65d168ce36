//! Files whose contents were taken out of the cache, and not yet out of the mapping.

use std::collections::BTreeSet;

use platter_block::lock::{Condvar, Mutex};

/// The truncations, and the punches of holes, of a filesystem that are at such a moment: the mapping has what was there
/// before the contents that the cache had were written, and a writeback finds nothing to write. What makes the mapping
/// durable, or copies it, waits for them after its writeback.
#[derive(Debug, Default)]
pub struct Invalidations {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many were begun.
    begun: u64,
    /// Those that have not ended, by how many were begun before.
    under_way: BTreeSet<u64>,
}

/// One that has begun, and ends when this is dropped.
#[derive(Debug)]
pub struct Invalidation<'i> {
    all: &'i Invalidations,
    number: u64,
}

impl Invalidations {
    /// Begins one, before the cache loses anything.
    #[must_use]
    pub fn begin(&self) -> Invalidation<'_> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.under_way.insert(number);
        Invalidation { all: self, number }
    }

    /// Waits for those that have begun. Others may begin meanwhile. The caller has no handle, and no lock that a
    /// truncation takes.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        let begun = state.begun;
        while state.under_way.first().is_some_and(|&first| first < begun) {
            self.ended.wait(&mut state);
        }
    }
}

impl Drop for Invalidation<'_> {
    fn drop(&mut self) {
        self.all.state.lock().under_way.remove(&self.number);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn those_that_have_begun_are_waited_for() {
        let all = Invalidations::default();
        all.wait();
        let first = all.begin();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| all.wait());
            thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            let later = all.begin();
            drop(first);
            waiting.join().unwrap();
            drop(later);
        });
        all.wait();
    }
}
