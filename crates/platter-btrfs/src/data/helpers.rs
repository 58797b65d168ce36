//! Threads that help with a large read: verifying and decompressing its pieces at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use platter_block::lock::Mutex;

/// The most threads that help one filesystem's readers.
const HELPERS_MAX: usize = 7;

/// How many threads may help at the moment: one less than there are processors, for all readers of a
/// filesystem together.
#[derive(Debug)]
pub struct Helpers {
    free: AtomicUsize,
}

impl Default for Helpers {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::new((processors - 1).min(HELPERS_MAX))
    }
}

impl Helpers {
    /// So many threads at most.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            free: AtomicUsize::new(threads),
        }
    }

    /// How many threads may help at the moment.
    #[must_use]
    pub fn count(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// Does `work` with each item; several at the same time where threads are free. The items are begun
    /// in their order, and none after one that failed.
    ///
    /// # Errors
    /// That of the first item which failed.
    pub fn each<T: Send, E: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(T) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let lease = self.lease(items.len().saturating_sub(1));
        if lease.threads == 0 {
            return items.into_iter().try_for_each(work);
        }
        let queue: Mutex<_> = Mutex::new(items.into_iter().enumerate());
        let failed: Mutex<Option<(usize, E)>> = Mutex::new(None);
        let run = || {
            loop {
                let next = queue.lock().next();
                let Some((index, item)) = next else { return };
                let Err(error) = work(item) else { continue };
                queue.lock().by_ref().for_each(drop);
                let mut failed = failed.lock();
                if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                    *failed = Some((index, error));
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..lease.threads {
                let thread = thread::Builder::new().name("btrfs-read".to_owned());
                // Without the thread, this one does its part.
                let _ = thread.spawn_scoped(scope, run);
            }
            run();
        });
        match failed.into_inner() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn lease(&self, wanted: usize) -> Lease<'_> {
        let take = |free: usize| Some(free - free.min(wanted));
        let before = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = before.unwrap_or_default();
        Lease {
            helpers: self,
            threads: before.min(wanted),
        }
    }
}

/// Threads in use.
struct Lease<'h> {
    helpers: &'h Helpers,
    threads: usize,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.helpers.free.fetch_add(self.threads, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_worked_on_once() {
        for threads in [0, 1, 3] {
            let helpers = Helpers::new(threads);
            let seen: Mutex<_> = Mutex::new(vec![0; 100]);
            let result = helpers.each((0..100).collect(), |index: usize| {
                seen.lock()[index] += 1;
                Ok::<_, ()>(())
            });
            assert_eq!(result, Ok(()));
            assert_eq!(seen.into_inner(), [1; 100]);
            assert_eq!(helpers.free.into_inner(), threads);
        }
    }

    #[test]
    fn error_is_that_of_the_first_item_that_failed() {
        for threads in [0, 1, 3] {
            let helpers = Helpers::new(threads);
            let begun = AtomicUsize::new(0);
            let result = helpers.each((0..1000).collect(), |index: usize| {
                begun.fetch_add(1, Ordering::Relaxed);
                if index >= 10 { Err(index) } else { Ok(()) }
            });
            assert_eq!(result, Err(10));
            assert!(begun.into_inner() <= 10 + threads + 1);
        }
    }
}
