//! The thread that commits transactions that are full.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use platter_vfs::{Condition, Result};

use crate::ops::Tree;

/// The running thread; it ends when this is dropped, which waits for the commit it is at.
#[derive(Debug)]
pub(super) struct Committer {
    tree: Arc<Tree>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the thread.
    ///
    /// # Errors
    /// `WouldBlock` where the system gives none.
    pub(super) fn start(tree: &Arc<Tree>) -> Result<Self> {
        let served = Arc::clone(tree);
        let thread = thread::Builder::new()
            .name("ext4-journal".into())
            .spawn(move || {
                if let Some(log) = served.volume.log() {
                    log.serve();
                }
            })
            .map_err(|_| Condition::WouldBlock)?;
        Ok(Self {
            tree: Arc::clone(tree),
            thread: Some(thread),
        })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if let Some(log) = self.tree.volume.log() {
            log.end_service();
        }
        if let Some(thread) = self.thread.take() {
            // When it panicked, that was told.
            let _ = thread.join();
        }
    }
}
