//! A writable mount, how it is frozen, and the order in which it ends: `umount(8)`, a shutdown, or a drop.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::lock::{Mutex, rank};

use super::FreezeGate;
use crate::{Condition, Result};

/// A filesystem that is mounted for writing.
pub trait WritableMount: Send + Sync {
    /// The threads that run concurrently with callers, such as the flusher. They end when this is dropped.
    type Workers: Send;
    /// What keeps other hosts from the device.
    type Guard: Send;

    /// The gate that changes pass before they take a lock.
    fn writers(&self) -> &FreezeGate;

    /// Makes everything durable that was done so far.
    ///
    /// # Errors
    /// Those of the device and of the driver.
    fn sync(&self) -> Result<()>;

    /// Has transactions of the driver itself wait as well, and leaves nothing on the device to be recovered
    /// (`freeze_fs`). No writer is inside the gate, and all is synced.
    ///
    /// # Errors
    /// Those of the device and of the driver.
    fn suspend(&self) -> Result<()>;

    /// Lets transactions begin again (`unfreeze_fs`), also after a [`suspend`](Self::suspend) that failed: then some
    /// may run.
    ///
    /// # Errors
    /// Those of the device and of the driver, after which nothing is written any more.
    fn resume(&self) -> Result<()>;

    /// Writes all that is not written yet, and marks the filesystem clean.
    ///
    /// # Errors
    /// Those of the device and of the driver; the filesystem is then not marked clean.
    fn mark_clean(&self) -> Result<()>;

    /// Ends all writing, and returns when neither data nor a commit is in progress. What was not written is
    /// lost, as by a crash. Transactions that wait for a [`resume`](Self::resume) fail.
    fn end_writes(&self);

    /// Lets other hosts have the device.
    ///
    /// # Errors
    /// Those of the device.
    fn release(&self, guard: Self::Guard) -> Result<()>;
}

/// A writable mount until its end.
pub struct MountEnd<M: WritableMount> {
    mount: M,
    /// Present until the end.
    running: Mutex<Option<Running<M>>>,
    /// Held while it ends, so that other callers wait.
    ending: Mutex<(), { rank(0, 1) }>,
    /// All changes were ended before the unmount, which leaves the device as it is.
    is_shut_down: AtomicBool,
}

struct Running<M: WritableMount> {
    workers: Option<M::Workers>,
    guard: Option<M::Guard>,
}

impl<M: WritableMount> MountEnd<M> {
    /// The end of a mount whose workers run.
    pub fn new(mount: M, workers: M::Workers, guard: Option<M::Guard>) -> Self {
        Self {
            mount,
            running: Mutex::new(Some(Running {
                workers: Some(workers),
                guard,
            })),
            ending: Mutex::default(),
            is_shut_down: AtomicBool::new(false),
        }
    }

    /// Makes everything durable, and has changes wait for the [thaw](Self::thaw). Nothing on the device is to be
    /// recovered then.
    ///
    /// # Errors
    /// `Busy` if it is frozen; `ReadOnly` once it was shut down or has ended; those of writing, and it is not
    /// frozen.
    pub fn freeze(&self) -> Result<()> {
        let _only = self.ending.lock();
        if self.has_ended() || self.is_shut_down.load(Ordering::Acquire) {
            return Err(Condition::ReadOnly.into());
        }
        self.mount.writers().freeze()?;
        if let Err(error) = self.mount.sync() {
            self.mount.writers().thaw()?;
            return Err(error);
        }
        let suspended = self.mount.suspend();
        if suspended.is_err() {
            // An error of that as well ends all writing.
            let _ = self.resume();
        }
        suspended
    }

    /// Lets changes go on.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not frozen; those of the device, after which nothing is written any more.
    pub fn thaw(&self) -> Result<()> {
        let _only = self.ending.lock();
        if !self.mount.writers().is_frozen() {
            return Err(Condition::InvalidArgument.into());
        }
        self.resume()
    }

    fn resume(&self) -> Result<()> {
        let resumed = self.mount.resume();
        self.mount.writers().thaw()?;
        resumed
    }

    /// Thaws the filesystem if it is frozen: workers and callers may wait for that.
    fn end_freeze(&self) {
        if self.mount.writers().is_frozen() {
            // After an error nothing is written, which the next step reports.
            let _ = self.resume();
        }
    }

    /// Ends the workers, writes all that is not written yet, marks the filesystem clean, ends all writing,
    /// and releases the device. After an error the next mount recovers the filesystem. Once it has ended,
    /// nothing is done. One that is frozen is thawed.
    ///
    /// # Errors
    /// Those of the first step that failed.
    pub fn unmount(&self) -> Result<()> {
        let _only = self.ending.lock();
        let Some(running) = self.running.lock().take() else {
            return Ok(());
        };
        self.end_freeze();
        drop(running.workers);
        let ended = if self.is_shut_down.load(Ordering::Acquire) {
            Ok(())
        } else {
            let ended = self.mount.mark_clean();
            self.mount.end_writes();
            ended
        };
        match running.guard {
            Some(guard) => ended.and(self.mount.release(guard)),
            None => ended,
        }
    }

    /// Makes everything durable and ends all changes. The filesystem stays to be recovered. One that is frozen is
    /// thawed.
    ///
    /// # Errors
    /// Those of the sync.
    pub fn shut_down(&self) -> Result<()> {
        let _only = self.ending.lock();
        if self.has_ended() || self.is_shut_down.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.end_freeze();
        let synced = self.mount.sync();
        let workers = self
            .running
            .lock()
            .as_mut()
            .map(|running| running.workers.take());
        drop(workers);
        self.mount.end_writes();
        synced
    }

    /// Ends all writing and then the workers, and leaves the filesystem as it is: a mount that is dropped.
    pub fn abandon(&self) {
        // Nothing is written any more when another host may take the device.
        self.mount.end_writes();
        // Frozen, it stays on the device as it is.
        let _ = self.mount.writers().thaw();
        let running = self.running.lock().take();
        drop(running);
    }

    /// Whether it was unmounted or abandoned.
    pub fn has_ended(&self) -> bool {
        self.running.lock().is_none()
    }
}

impl<M: WritableMount> fmt::Debug for MountEnd<M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MountEnd")
            .field("has_ended", &self.has_ended())
            .field("is_shut_down", &self.is_shut_down)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Condition, Error};

    /// The steps that were taken.
    #[derive(Clone, Default)]
    struct Steps(Arc<Mutex<Vec<&'static str>>>);

    impl Steps {
        fn take(&self, step: &'static str) {
            self.0.lock().push(step);
        }

        fn all(&self) -> Vec<&'static str> {
            std::mem::take(&mut *self.0.lock())
        }
    }

    struct Mounted {
        writers: FreezeGate,
        steps: Steps,
        fails: bool,
        sync_fails: bool,
    }

    /// Records that it is dropped.
    struct Workers(Steps);

    impl Drop for Workers {
        fn drop(&mut self) {
            self.0.take("workers end");
        }
    }

    impl WritableMount for Mounted {
        type Workers = Workers;
        type Guard = ();

        fn writers(&self) -> &FreezeGate {
            &self.writers
        }

        fn sync(&self) -> Result<()> {
            self.steps.take("sync");
            if self.sync_fails {
                return Err(Condition::NoSpace.into());
            }
            Ok(())
        }

        fn suspend(&self) -> Result<()> {
            self.steps.take("suspend");
            if self.fails {
                return Err(Condition::NoSpace.into());
            }
            Ok(())
        }

        fn resume(&self) -> Result<()> {
            self.steps.take("resume");
            Ok(())
        }

        fn mark_clean(&self) -> Result<()> {
            self.steps.take("mark clean");
            if self.fails {
                return Err(Condition::ReadOnly.into());
            }
            Ok(())
        }

        fn end_writes(&self) {
            self.steps.take("end writes");
        }

        fn release(&self, (): ()) -> Result<()> {
            self.steps.take("release");
            Ok(())
        }
    }

    fn mounted(fails: bool) -> (MountEnd<Mounted>, Steps) {
        let steps = Steps::default();
        let mount = Mounted {
            writers: FreezeGate::default(),
            steps: steps.clone(),
            fails,
            sync_fails: false,
        };
        let workers = Workers(steps.clone());
        (MountEnd::new(mount, workers, Some(())), steps)
    }

    #[test]
    fn unmount_takes_its_steps_in_order_and_once() {
        let (end, steps) = mounted(false);
        end.unmount().unwrap();
        let expected = ["workers end", "mark clean", "end writes", "release"];
        assert_eq!(steps.all(), expected);
        assert!(end.has_ended());
        end.unmount().unwrap();
        end.shut_down().unwrap();
        assert!(steps.all().is_empty());
    }

    #[test]
    fn failed_unmount_ends_writes_and_releases_the_device() {
        let (end, steps) = mounted(true);
        let failed = end.unmount();
        assert!(matches!(failed, Err(Error::Condition(Condition::ReadOnly))));
        let expected = ["workers end", "mark clean", "end writes", "release"];
        assert_eq!(steps.all(), expected);
    }

    #[test]
    fn unmount_after_a_shutdown_leaves_the_filesystem() {
        let (end, steps) = mounted(false);
        end.shut_down().unwrap();
        assert_eq!(steps.all(), ["sync", "workers end", "end writes"]);
        end.shut_down().unwrap();
        end.unmount().unwrap();
        assert_eq!(steps.all(), ["release"]);
    }

    #[test]
    fn frozen_mount_is_thawed_once() {
        let (end, steps) = mounted(false);
        end.freeze().unwrap();
        assert_eq!(steps.all(), ["sync", "suspend"]);
        assert!(end.mount.writers.try_enter().is_none());
        let busy = end.freeze();
        assert!(matches!(busy, Err(Error::Condition(Condition::Busy))));
        end.thaw().unwrap();
        assert_eq!(steps.all(), ["resume"]);
        assert!(end.mount.writers.try_enter().is_some());
        let open = end.thaw();
        assert!(matches!(
            open,
            Err(Error::Condition(Condition::InvalidArgument))
        ));
    }

    #[test]
    fn mount_that_cannot_be_frozen_goes_on() {
        let (end, steps) = mounted(true);
        let failed = end.freeze();
        assert!(matches!(failed, Err(Error::Condition(Condition::NoSpace))));
        assert_eq!(steps.all(), ["sync", "suspend", "resume"]);
        assert!(end.mount.writers.try_enter().is_some());
    }

    #[test]
    fn mount_that_cannot_be_synced_is_not_suspended() {
        let (mut end, steps) = mounted(false);
        end.mount.sync_fails = true;
        let failed = end.freeze();
        assert!(matches!(failed, Err(Error::Condition(Condition::NoSpace))));
        assert_eq!(steps.all(), ["sync"]);
        assert!(end.mount.writers.try_enter().is_some());
    }

    #[test]
    fn unmount_thaws_before_its_workers_end() {
        let (end, steps) = mounted(false);
        end.freeze().unwrap();
        end.unmount().unwrap();
        let expected = ["resume", "workers end", "mark clean"];
        assert_eq!(steps.all()[2..5], expected);
        assert!(end.mount.writers.try_enter().is_some());
        let ended = end.freeze();
        assert!(matches!(ended, Err(Error::Condition(Condition::ReadOnly))));
    }

    #[test]
    fn frozen_mount_that_is_abandoned_stays_as_it_is() {
        let (end, steps) = mounted(false);
        end.freeze().unwrap();
        end.abandon();
        assert_eq!(steps.all()[2..], ["end writes", "workers end"]);
        assert!(end.mount.writers.try_enter().is_some());
    }

    #[test]
    fn abandoned_mount_writes_nothing() {
        let (end, steps) = mounted(false);
        end.abandon();
        assert_eq!(steps.all(), ["end writes", "workers end"]);
    }
}
