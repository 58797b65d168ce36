//! The gate that changes of the memory filesystem pass, and that a freeze shuts.

use platter_block::lock::{Condvar, Mutex, RwLock, RwLockReadGuard, rank};

use crate::{Condition, Result};

/// Keeps changes out while the filesystem is frozen.
#[derive(Debug, Default)]
pub(super) struct FreezeGate {
    /// Held shared by each change, exclusively to wait for those that began before the freeze.
    changes: RwLock<(), { rank(2, 0) }>,
    /// Whether the gate is shut.
    is_frozen: Mutex<bool>,
    thawed: Condvar,
}

/// A change, until it is dropped. A thread makes one at a time.
pub(super) type Entered<'g> = RwLockReadGuard<'g, ()>;

impl FreezeGate {
    /// Passes the gate; waits while it is shut.
    pub(super) fn enter(&self) -> Entered<'_> {
        loop {
            let entered = self.changes.read();
            if !*self.is_frozen.lock() {
                return entered;
            }
            drop(entered);
            let mut is_frozen = self.is_frozen.lock();
            while *is_frozen {
                self.thawed.wait(&mut is_frozen);
            }
        }
    }

    /// Shuts the gate, and returns when no change is in progress.
    ///
    /// # Errors
    /// `Busy` if it is shut.
    pub(super) fn freeze(&self) -> Result<()> {
        if std::mem::replace(&mut *self.is_frozen.lock(), true) {
            return Err(Condition::Busy.into());
        }
        drop(self.changes.write());
        Ok(())
    }

    /// Waits for the changes in progress.
    pub(super) fn wait_for_changes(&self) {
        drop(self.changes.write());
    }

    /// Opens the gate.
    ///
    /// # Errors
    /// `InvalidArgument` if it is open.
    pub(super) fn thaw(&self) -> Result<()> {
        if !std::mem::replace(&mut *self.is_frozen.lock(), false) {
            return Err(Condition::InvalidArgument.into());
        }
        self.thawed.notify_all();
        Ok(())
    }
}
