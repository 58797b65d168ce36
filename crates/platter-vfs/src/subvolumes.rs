//! Subvolumes: trees of inodes of their own in one filesystem, and snapshots of them.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::{IoError, Operation};
use platter_ondisk::Uuid;

use crate::{Condition, Context, Inode, InodeId, Name, Result, Timestamp};

/// A subvolume, as `btrfs subvolume show` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subvolume {
    /// The number of its tree.
    pub id: u64,
    /// The subvolume that its name is in; `None` for the top-level one, and for one without a name.
    pub parent: Option<u64>,
    /// The number of the directory in it that has its name.
    pub parent_dir: Option<u64>,
    /// Its path from the top-level subvolume, without a leading slash; empty for that itself.
    pub path: Vec<u8>,
    /// Its UUID.
    pub uuid: Uuid,
    /// Of a snapshot, the subvolume that it was made of.
    pub parent_uuid: Option<Uuid>,
    /// Of a received subvolume, the one that was sent.
    pub received_uuid: Option<Uuid>,
    /// The transaction that changed its tree last.
    pub generation: u64,
    /// The transaction that changed a file in it last, as its root item says.
    pub changed_generation: u64,
    /// When that was.
    pub changed: Timestamp,
    /// The transaction that made it.
    pub created_generation: u64,
    /// When it was made.
    pub created: Timestamp,
    /// Whether it refuses changes.
    pub read_only: bool,
    /// Of a received subvolume, when the original was sent.
    pub sent: Option<Transfer>,
    /// Of a received subvolume, when it was received.
    pub received: Option<Transfer>,
}

/// When a subvolume was sent or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The transaction, there or here.
    pub generation: u64,
    /// The time.
    pub time: Timestamp,
}

/// Takes subvolumes until it breaks.
pub type SubvolumeSink<'a> = dyn FnMut(Subvolume) -> ControlFlow<()> + 'a;

/// A request to cancel an operation of another thread.
pub trait Cancellation: Debug + Send + Sync {
    /// Whether it is to end. It is asked often.
    fn is_cancelled(&self) -> bool;
}

/// What to send of a subvolume.
#[derive(Debug, Clone, Default)]
pub struct SendOptions {
    /// Send what changed since this one, which the receiver has.
    pub parent: Option<u64>,
    /// Others that the receiver has, whose extents may be referred to.
    pub clone_sources: Vec<u64>,
    /// The version of the stream; `None` for the newest that can be made.
    pub version: Option<u32>,
    /// Compressed extents as they are stored, in streams from version 2 on.
    pub compressed: bool,
    /// Which ranges of files differ, without their data.
    pub no_data: bool,
    /// Ends the stream early, also where nothing is written for long.
    pub cancellation: Option<Arc<dyn Cancellation>>,
}

impl SendOptions {
    /// Refuses to go on with a stream that is cancelled.
    ///
    /// # Errors
    /// That of an output that is closed.
    pub fn refuse_if_cancelled(&self) -> Result<()> {
        let cancellation = self.cancellation.as_ref();
        if cancellation.is_some_and(|it| it.is_cancelled()) {
            let closed = io::ErrorKind::BrokenPipe;
            let name = "send stream".into();
            return Err(IoError::new(&name, Operation::Write, 0, 0, closed).into());
        }
        Ok(())
    }
}

/// A subvolume that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The number of its tree.
    pub id: u64,
    /// Its name in the directory that it was received into.
    pub name: Vec<u8>,
    /// How many commands it was made by.
    pub commands: u64,
}

fn not_supported<T>() -> Result<T> {
    Err(Condition::NotSupported.into())
}

/// The subvolumes of a filesystem that has them. Changing operations default to `NotSupported`.
pub trait Subvolumes: Send + Sync + Debug {
    /// Passes all subvolumes to `sink`, in the order of their numbers, until it breaks.
    fn list(&self, sink: &mut SubvolumeSink<'_>) -> Result<()>;

    /// The subvolume of this number.
    ///
    /// # Errors
    /// `NotFound` where there is none.
    fn get(&self, id: u64) -> Result<Subvolume>;

    /// The subvolume with the least number that is `id` or greater; `None` where there is none.
    fn next(&self, id: u64) -> Result<Option<Subvolume>>;

    /// The identity of the root directory of a subvolume.
    ///
    /// # Errors
    /// `NotFound` where there is no such subvolume.
    fn root(&self, id: u64) -> Result<InodeId>;

    /// The subvolume that is mounted where none is asked for.
    fn default_id(&self) -> Result<u64>;

    /// Makes another one the default.
    fn set_default(&self, id: u64) -> Result<()> {
        let _ = id;
        not_supported()
    }

    /// Makes an empty subvolume named `name` in the directory `parent`. Returns its root directory.
    fn create(&self, context: &Context, parent: InodeId, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        let _ = (context, parent, name);
        not_supported()
    }

    /// Makes a snapshot of the subvolume `source`, named `name`, in the directory `parent`. Returns its
    /// root directory.
    fn snapshot(
        &self,
        context: &Context,
        source: u64,
        parent: InodeId,
        name: Name<'_>,
        read_only: bool,
    ) -> Result<Arc<dyn Inode>> {
        let _ = (context, source, parent, name, read_only);
        not_supported()
    }

    /// Deletes the subvolume that `name` in the directory `parent` names. Its space is freed in the
    /// background. A caller that looked at it before says with `root` which root directory it saw.
    ///
    /// # Errors
    /// `Stale` where the name has another subvolume than `root` by now.
    fn delete(
        &self,
        context: &Context,
        parent: InodeId,
        name: Name<'_>,
        root: Option<InodeId>,
    ) -> Result<()> {
        let _ = (context, parent, name, root);
        not_supported()
    }

    /// Has a subvolume refuse changes, or take them.
    fn set_read_only(&self, id: u64, read_only: bool) -> Result<()> {
        let _ = (id, read_only);
        not_supported()
    }

    /// Receives the subvolumes of send streams into the directory `parent`: each is read-only when it is
    /// complete. After an error, the one that was begun is deleted; those before it stay.
    fn receive(
        &self,
        context: &Context,
        parent: InodeId,
        input: &mut dyn Read,
        sink: &mut dyn FnMut(Received),
    ) -> Result<()> {
        let _ = (context, parent, input, sink);
        not_supported()
    }

    /// Records which subvolume was received into this one, by its UUID and generation there.
    fn set_received(&self, id: u64, uuid: Uuid, generation: u64) -> Result<()> {
        let _ = (id, uuid, generation);
        not_supported()
    }

    /// Writes a read-only subvolume to `out` as a send stream. Others go on meanwhile, also while `out` waits; the
    /// subvolumes that the stream is made from are neither deleted nor made writable.
    ///
    /// # Errors
    /// `NotPermitted` where one of them is not read-only; `NotFound`; those of `out`; `WouldBlock` where one of them
    /// changed while it was sent, by what began before it was read-only, or is a snapshot that is being made: it can be
    /// sent again.
    fn send(&self, id: u64, options: &SendOptions, out: &mut dyn Write) -> Result<()> {
        let _ = (id, options, out);
        not_supported()
    }
}
