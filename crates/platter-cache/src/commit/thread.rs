//! The thread that commits transactions that are full.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::{CommitRequests, TransactionId};

/// What a [`CommitThread`] serves.
pub trait FullCommits: Send + Sync + 'static {
    /// The requests to it.
    fn requests(&self) -> &CommitRequests;

    /// Commits a transaction. The thread has no handle and holds no lock; an error is kept for the
    /// threads that wait for the transaction.
    fn commit_full(&self, full: TransactionId);

    /// Called when the thread serves no request any more: threads that wait for it commit themselves.
    fn ended(&self);
}

/// The running thread; it ends when this is dropped, which waits for the commit in progress.
#[derive(Debug)]
pub struct CommitThread<S: FullCommits> {
    served: Arc<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S: FullCommits> CommitThread<S> {
    /// Starts the thread under this name.
    ///
    /// # Errors
    /// Those of the system where it starts no thread.
    pub fn start(name: &str, served: Arc<S>) -> io::Result<Self> {
        let serving = Arc::clone(&served);
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || serve(&*serving))?;
        Ok(Self {
            served,
            thread: Some(thread),
        })
    }
}

impl<S: FullCommits> Drop for CommitThread<S> {
    fn drop(&mut self) {
        end(&*self.served);
        if let Some(thread) = self.thread.take() {
            // When it panicked, that was reported.
            let _ = thread.join();
        }
    }
}

/// Commits transactions that are full until the requests [end](CommitRequests::end), as the thread does.
pub fn serve<S: FullCommits + ?Sized>(served: &S) {
    let _ending = Ending(served);
    while let Some(full) = served.requests().wait() {
        served.commit_full(full);
    }
}

/// Ends the service, now or as soon as it begins. From then on the handles that find a full transaction
/// commit it.
pub fn end<S: FullCommits + ?Sized>(served: &S) {
    served.requests().end();
    served.ended();
}

/// Ends the service, however the thread ends.
struct Ending<'s, S: FullCommits + ?Sized>(&'s S);

impl<S: FullCommits + ?Sized> Drop for Ending<'_, S> {
    fn drop(&mut self) {
        end(self.0);
    }
}
