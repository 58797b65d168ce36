//! How far an operation that takes long has come, and its cancellation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Cause;

/// How far an operation has come. Clones share it, so that another thread can look at it, or cancel.
///
/// ```
/// use platter::{FormatOptions, Image, Progress};
/// let progress = Progress::new();
/// let image = Image::in_memory(4 << 20);
/// FormatOptions::default().progress(progress.clone()).format(&image)?;
/// assert_eq!((progress.files(), progress.bytes()), (0, 0));
/// # Ok::<(), platter::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Progress {
    state: Arc<State>,
    is_cancelled: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    files: AtomicU64,
    bytes: AtomicU64,
    listener: Option<Box<Listener>>,
}

/// Called with bytes and files that were added.
type Listener = dyn Fn(Advance) + Send + Sync;

/// How much was done since the listener was last called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Advance {
    /// Files of all kinds.
    pub files: u64,
    /// Bytes of contents, holes left out.
    pub bytes: u64,
}

impl Progress {
    /// The progress of an operation that has done nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`new`](Self::new), with a function that is called whenever something was done, by the thread that did it.
    #[must_use]
    pub fn listening(listener: impl Fn(Advance) + Send + Sync + 'static) -> Self {
        Self {
            state: Arc::new(State {
                listener: Some(Box::new(listener)),
                ..State::default()
            }),
            is_cancelled: Arc::default(),
        }
    }

    /// The same progress, cancelled while `flag` is set, which is all that a signal handler can do.
    /// [`cancel`](Self::cancel) sets the flag, too. Clones that were made before are not cancelled by it.
    #[must_use]
    pub fn cancelled_by(mut self, flag: Arc<AtomicBool>) -> Self {
        self.is_cancelled = flag;
        self
    }

    /// Files of all kinds.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.state.files.load(Ordering::Relaxed)
    }

    /// Bytes of contents, holes left out. Where contents are written several times to find a size, each counts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::Relaxed)
    }

    /// Makes the operation end with [`Cause::Cancelled`] soon: after the file or the piece of one that it is at.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Refuses to go on once it was cancelled.
    pub(crate) fn check(&self) -> Result<(), Cause> {
        if self.is_cancelled() {
            return Err(Cause::Cancelled);
        }
        Ok(())
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.state.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.report(Advance { files: 0, bytes });
    }

    pub(crate) fn add_file(&self) {
        self.state.files.fetch_add(1, Ordering::Relaxed);
        self.report(Advance { files: 1, bytes: 0 });
    }

    fn report(&self, advance: Advance) {
        if let Some(listener) = &self.state.listener {
            listener(advance);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Progress")
            .field("files", &self.files())
            .field("bytes", &self.bytes())
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}
