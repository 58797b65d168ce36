//! The log of a filesystem that is written: committed transactions are collected in a checkpoint, which is
//! written to the log as one; what is in the log is written to its place later, so that the tail moves on.
//!
//! The design is on the page `docs/design/xfs-log.md`.

mod headers;
mod record;
mod item;
mod lists;
mod grant;
mod write_back;
mod write;

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use platter_block::BlockDevice;
use platter_block::lock::{Condvar, Mutex, rank};
use platter_cache::BufferCache;
use platter_vfs::{Condition, Error, Result, Unsupported};

use crate::ondisk::features::Features;
use crate::ondisk::log::RecordHeader;
use crate::ondisk::{FsSize, Geometry, InodeNr, Lsn};
use crate::txn::{LogDevice, LogPosition, LogState};
use crate::xfs_mount::Padded;

use grant::{Grants, Head};
use lists::Lists;
use record::Shape;
use write::Position;

pub(super) use grant::Ticket;
pub use headers::{BlockType, Header, HeaderVerifier};
pub(super) use item::{Content, Dirty, ItemKey};
pub use item::{InodePlace, InodeVersion};
pub(super) use lists::Change;

/// A transaction reserves no more than one of so many parts of the log, unless it takes more.
const USUAL_PARTS: u64 = 16;
/// A checkpoint is written once it would take one of so many parts of the log.
const CHECKPOINT_PARTS: u64 = 8;
/// Active items that are written back although no thread waits for space.
const MAINTAINED_ITEMS_MIN: usize = 2048;
/// A waiter for space has one of so many parts of the active items written back.
const WRITE_BACK_PARTS: usize = 4;

/// The log of a filesystem that is written.
///
/// # Invariants
/// - A checkpoint holds whole transactions, and is durable as a whole or not at all.
/// - Nothing is written to its place before the checkpoint that holds it is durable.
/// - No block is part of a checkpoint, or written to its place, that its verifier does not accept.
/// - After a failure nothing is written any more.
///
/// # Locks
/// `reserve_turn` or `regrant_turn`, then `writing_back`, then `force`, then `position`, then `lists`, then `grants`.
/// The turns, `writing_back` and `position` are held over I/O: others wait for that I/O.
pub struct Log {
    device: LogDevice,
    data: Arc<dyn BlockDevice>,
    buffers: Arc<BufferCache>,
    /// For sizes; how far the filesystem reaches [grows](Self::grow) with that of the mount.
    geometry: Geometry,
    shape: Shape,
    /// Bytes that may be in use.
    capacity: u64,
    failure: OnceLock<Error>,
    /// Commits; hot next to the lists, whose lock is held then.
    changes: Padded<AtomicU32>,
    /// The committed and the active items.
    lists: Padded<Mutex<Lists, { rank(11, 5) }>>,
    /// Space of the log.
    grants: Padded<Mutex<Grants, { rank(11, 6) }>>,
    /// Notified when space is given back.
    space: Padded<Condvar>,
    /// The turn to wait for space, of transactions that begin.
    reserve_turn: Padded<Mutex<(), { rank(10, 1) }>>,
    /// The turn to wait for space, of transactions that roll.
    regrant_turn: Padded<Mutex<(), { rank(10, 1) }>>,
    /// Which checkpoints are durable.
    force: Padded<Mutex<Force, { rank(11, 3) }>>,
    forced: Padded<Condvar>,
    /// Where the log is written next. Held over the writing of a checkpoint.
    position: Padded<Mutex<Position, { rank(11, 4) }>>,
    /// The turn to write blocks back, over its I/O.
    writing_back: Padded<Mutex<(), { rank(10, 2) }>>,
}

platter_cache::layout!(
    /// Of the log.
    pub LAYOUT: Log {
        ReadOnly: device, data, buffers, geometry, shape, capacity;
        Rare: failure;
        Hot: changes, lists, grants, space, reserve_turn, regrant_turn, force, forced, position, writing_back;
    }
);

/// Which checkpoints are durable.
#[derive(Debug, Default)]
struct Force {
    durable: u64,
    is_writing: bool,
    /// What was durable when the items were looked up that are being written back.
    written_back_after: Option<u64>,
}

impl Log {
    /// Opens a log that ends with an unmount record, or was never written.
    ///
    /// # Errors
    /// `Unsupported` for a dirty log, and for one of version 1.
    pub fn open(
        device: LogDevice,
        data: Arc<dyn BlockDevice>,
        buffers: Arc<BufferCache>,
        geometry: &Geometry,
        position: &LogPosition,
    ) -> Result<Self> {
        if position.state == LogState::Dirty || position.torn {
            return Err(refused("writing with a dirty log", "recover it first"));
        }
        let shape = Shape::of(&device);
        Self::open_with(shape, device, data, buffers, geometry, position)
    }

    fn open_with(
        shape: Shape,
        device: LogDevice,
        data: Arc<dyn BlockDevice>,
        buffers: Arc<BufferCache>,
        geometry: &Geometry,
        position: &LogPosition,
    ) -> Result<Self> {
        Self::check_version(&device, &geometry.features)?;
        let capacity = device.capacity_bytes();
        let grants = Grants::new(device.sectors(), capacity, position.head_lsn());
        Ok(Self {
            data,
            buffers,
            geometry: geometry.clone(),
            shape,
            capacity,
            failure: OnceLock::new(),
            changes: Padded::default(),
            lists: Padded(Mutex::new(Lists::new(shape))),
            grants: Padded(Mutex::new(grants)),
            space: Padded::default(),
            reserve_turn: Padded::default(),
            regrant_turn: Padded::default(),
            force: Padded::default(),
            forced: Padded::default(),
            position: Padded(Mutex::new(Position::new(position))),
            writing_back: Padded::default(),
            device,
        })
    }

    /// Refuses logs that are not written here.
    ///
    /// # Errors
    /// `Unsupported` for one of version 1, and for that of a filesystem of version 4.
    pub fn check_version(device: &LogDevice, features: &Features) -> Result<()> {
        if device.version() == 2 && features.is_v5() {
            return Ok(());
        }
        Err(refused(
            "writing version 4",
            "kernels no longer mount it; it can be read",
        ))
    }

    /// Opens a log whose items are in their places but for open intents: until its tail is
    /// [released](Self::release_tail), records to come keep all of it, and have the size of its first. Sectors after its
    /// end are clear.
    ///
    /// # Errors
    /// `Unsupported` for a log of version 1, and for one whose first record is of a size that no log buffer has.
    pub fn open_replayed(
        device: LogDevice,
        data: Arc<dyn BlockDevice>,
        buffers: Arc<BufferCache>,
        geometry: &Geometry,
        position: &LogPosition,
    ) -> Result<Self> {
        let first = device.read(position.tail, 1)?;
        let size = RecordHeader::decode(&first, device.locus(position.tail))?.size;
        let shape = Shape::following(&device, size).ok_or_else(|| {
            let feature = format!("writing a log with buffers of {size} bytes");
            refused(&feature, "mount read-only, or let the kernel recover it")
        })?;
        let log = Self::open_with(shape, device, data, buffers, geometry, position)?;
        let tail = position.tail_lsn();
        log.lists.lock().keep_tail(Some(tail));
        log.grants.lock().keep_tail(tail);
        Ok(log)
    }

    /// What the log held when it was opened is not needed any more.
    pub fn release_tail(&self) {
        let mut lists = self.lists.lock();
        lists.keep_tail(None);
        self.grants.lock().release_tail(lists.tail());
    }

    /// The metadata buffers.
    pub(super) fn buffers(&self) -> &BufferCache {
        &self.buffers
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What is logged is verified by this size from now on: also by a smaller one, of an image that becomes shorter or where
    /// growth failed. No other transaction commits.
    pub(crate) fn grow(&self, size: FsSize) {
        self.geometry.growth.begin().set(size);
    }

    /// The newest committed version of an inode, unless it is the one on the disk.
    #[must_use]
    pub fn inode(&self, number: InodeNr) -> Option<InodeVersion> {
        self.lists.lock().inode(number)
    }

    /// The end of the log: no record to come begins before it.
    pub(super) fn head(&self) -> Lsn {
        self.grants.lock().head()
    }

    /// Whether something is logged, or to be logged, under this key.
    pub(super) fn has_item(&self, key: ItemKey) -> bool {
        self.lists.lock().has(key)
    }

    /// The number of the running checkpoint: [forcing](Self::force) it makes all that was committed durable.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.lists.lock().sequence()
    }

    /// Whether a checkpoint and all before it are durable.
    #[must_use]
    pub fn is_durable(&self, sequence: u64) -> bool {
        self.force.lock().durable >= sequence
    }

    /// Whether blocks that a checkpoint freed may be overwritten with data: the checkpoint is durable, and no
    /// thread writes blocks back that it looked up before.
    #[must_use]
    pub fn is_reusable(&self, sequence: u64) -> bool {
        sequence <= self.reusable()
    }

    /// The last checkpoint whose freed blocks are [reusable](Self::is_reusable).
    #[must_use]
    pub fn reusable(&self) -> u64 {
        let force = self.force.lock();
        let written_back_after = force.written_back_after.unwrap_or(force.durable);
        force.durable.min(written_back_after)
    }

    /// Makes all that was committed durable, and returns when all blocks that it freed are
    /// [reusable](Self::is_reusable).
    pub fn force_freed(&self) -> Result<()> {
        self.force_all()?;
        drop(self.writing_back.lock());
        Ok(())
    }

    /// The failure that ended all writing, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// How many items are in the log and not in their places, and how many in the running checkpoint.
    #[must_use]
    pub fn items(&self) -> (usize, usize) {
        self.lists.lock().len()
    }

    /// Reserves space for a transaction whose items take up to `bytes`, and which rolls up to `count` times
    /// before it has to wait again. Waits while there is none; the caller holds no lock.
    pub(super) fn reserve(&self, bytes: u64, count: u32) -> Result<Ticket> {
        let ticket = Ticket::new(self.shape.reservation(bytes), count);
        let limit = self.capacity / CHECKPOINT_PARTS;
        let (sequence, pending) = {
            let lists = self.lists.lock();
            (lists.sequence(), lists.pending_bytes())
        };
        if pending > limit {
            self.force(sequence)?;
        }
        self.wait_for_space(Head::Reserve, |grants| grants.reserve(&ticket))?;
        Ok(ticket)
    }

    /// The most that a transaction reserves without knowing that it takes as much.
    #[must_use]
    pub fn usual_max(&self) -> u64 {
        self.capacity / USUAL_PARTS
    }

    /// Has a ticket last for items of `bytes`, as far as there is space now.
    pub(super) fn extend(&self, ticket: &mut Ticket, bytes: u64) -> bool {
        let need = self.shape.reservation(bytes);
        need <= ticket.left() || self.grants.lock().extend(ticket, need)
    }

    /// Begins the next unit of a ticket. Waits for space, where all were used; the caller may hold locks, but
    /// none of the log.
    pub(super) fn regrant(&self, ticket: &mut Ticket) -> Result<()> {
        let has_unit = self.grants.lock().next_unit(ticket);
        self.space.notify_all();
        if has_unit {
            return self.check();
        }
        self.wait_for_space(Head::Write, |grants| grants.regrant(ticket))
    }

    /// Ends a ticket.
    pub(super) fn release(&self, ticket: &Ticket) {
        self.grants.lock().release(ticket);
        self.space.notify_all();
    }

    fn wait_for_space(&self, head: Head, mut take: impl FnMut(&mut Grants) -> bool) -> Result<()> {
        let _turn = match head {
            Head::Reserve => self.reserve_turn.lock(),
            Head::Write => self.regrant_turn.lock(),
        };
        loop {
            self.check()?;
            if take(&mut self.grants.lock()) {
                return Ok(());
            }
            if self.make_space()? {
                continue;
            }
            let mut grants = self.grants.lock();
            // A failure is announced under this lock.
            self.check()?;
            if take(&mut grants) {
                return Ok(());
            }
            if grants.is_alone(head) && grants.is_empty() {
                return Err(Unsupported {
                    filesystem: "xfs",
                    feature: "a transaction of this size".to_owned(),
                    reason: Some("the log is too small"),
                }
                .into());
            }
            self.space.wait(&mut grants);
        }
    }

    /// Moves the tail; false if nothing is left that could move it.
    fn make_space(&self) -> Result<bool> {
        let oldest = self.lists.lock().oldest(WRITE_BACK_PARTS);
        if let Some(oldest) = oldest
            && write_back::run(self, oldest)? > 0
        {
            return Ok(true);
        }
        let (sequence, pending) = {
            let lists = self.lists.lock();
            (lists.sequence(), lists.pending_bytes())
        };
        if pending > 0 {
            self.force(sequence)?;
        }
        Ok(pending > 0)
    }

    /// Adds what a transaction changed to the running checkpoint. Returns its number.
    ///
    /// # Errors
    /// That the transaction has not reserved as much; nothing is added.
    pub(super) fn commit(
        &self,
        ticket: &mut Ticket,
        mut changes: Vec<Change>,
        done: Vec<(ItemKey, Arc<[Vec<u8>]>)>,
    ) -> Result<u64> {
        self.check()?;
        let mut lists = self.lists.lock();
        let growth = lists.growth(&mut changes, &done, &self.geometry);
        if !self.grants.lock().spend(ticket, growth) {
            drop(lists);
            let (left, unit) = (ticket.left(), ticket.unit());
            let error = std::io::Error::other(format!(
                "transaction takes {growth} bytes of the log, and has {left} of {unit} left"
            ));
            return Err(self.fail(
                platter_block::IoError::new(
                    self.data.name(),
                    platter_block::Operation::Write,
                    0,
                    0,
                    error,
                )
                .into(),
            ));
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        let (sequence, before) = lists.commit(changes, done);
        drop(lists);
        // Versions that are gone are freed without the lock.
        drop(before);
        Ok(sequence)
    }

    /// Returns when a checkpoint and all before it are durable. Of several callers one writes for all.
    ///
    /// # Errors
    /// Those of the devices; then, and from then on, that of the failure.
    pub fn force(&self, sequence: u64) -> Result<()> {
        self.force_and_flush(sequence).map(drop)
    }

    /// Makes a checkpoint and all before it durable, and the data that was written before the call.
    ///
    /// # Errors
    /// Those of [`force`](Self::force).
    pub fn force_with_data(&self, sequence: u64) -> Result<()> {
        if self.force_and_flush(sequence)? {
            return Ok(());
        }
        self.check()?;
        // The thread that wrote the checkpoint may have flushed the device before the data was written. A later
        // flush that succeeds does not bring back what a failed one lost.
        let flushed = self.data.flush();
        flushed.map_err(|error| self.fail(error.into()))
    }

    /// [Forces](Self::force) the log. Returns whether the data device was flushed since the call began.
    fn force_and_flush(&self, sequence: u64) -> Result<bool> {
        let mut force = self.force.lock();
        loop {
            if force.durable >= sequence {
                return Ok(false);
            }
            self.check()?;
            if !force.is_writing {
                break;
            }
            self.forced.wait(&mut force);
        }
        force.is_writing = true;
        drop(force);
        let written = self.write_checkpoint();
        let written = written.map_err(|error| self.fail(error));
        let mut force = self.force.lock();
        force.is_writing = false;
        if let Ok((durable, _)) = written {
            force.durable = durable;
        }
        drop(force);
        self.forced.notify_all();
        self.space.notify_all();
        // All that was committed before is in a checkpoint that was closed.
        written.map(|(_, is_flushed)| is_flushed)
    }

    /// Makes all that was committed durable.
    pub fn force_all(&self) -> Result<()> {
        self.force(self.running())
    }

    /// Makes all that was committed durable, and brings it to its place.
    pub fn quiesce(&self) -> Result<()> {
        self.force_all()?;
        write_back::run(self, Lsn(u64::MAX))?;
        let flushed = self.data.flush();
        flushed.map_err(|error| self.fail(error.into()))
    }

    /// Brings everything to its place, and writes an unmount record: nothing is to be recovered until there is
    /// another checkpoint. No transaction runs.
    pub fn mark_clean(&self) -> Result<()> {
        self.quiesce()?;
        self.write_unmount_record()
            .map_err(|error| self.fail(error))
    }

    /// [Marks](Self::mark_clean) the log as clean, and ends it.
    pub fn unmount(&self) -> Result<()> {
        self.mark_clean()?;
        self.shut_down();
        Ok(())
    }

    /// Brings the oldest items to their places, if there are many: called now and then.
    pub fn maintain(&self) -> Result<()> {
        let (active, _) = self.items();
        if active < MAINTAINED_ITEMS_MIN {
            return Ok(());
        }
        let oldest = self.lists.lock().oldest(WRITE_BACK_PARTS);
        if let Some(oldest) = oldest {
            write_back::run(self, oldest)?;
        }
        Ok(())
    }

    /// A count that grows with each commit; it may wrap.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Writes nothing any more.
    pub fn shut_down(&self) {
        self.fail(Condition::ReadOnly.into());
    }

    /// Whether nothing is written any more.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.failure.get().is_some()
    }

    fn check(&self) -> Result<()> {
        self.failure
            .get()
            .map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Writes nothing any more, for the reason of `error`, which is returned.
    pub fn fail(&self, error: Error) -> Error {
        let _ = self.failure.set(error.clone());
        // Those that wait look at the failure under these locks.
        drop(self.grants.lock());
        self.space.notify_all();
        drop(self.force.lock());
        self.forced.notify_all();
        error
    }
}

#[cfg(test)]
impl Log {
    /// A log that is written with log buffers of so many bytes.
    pub(crate) fn with_buffers(
        bytes: u32,
        device: LogDevice,
        data: Arc<dyn BlockDevice>,
        buffers: Arc<BufferCache>,
        geometry: &Geometry,
        position: &LogPosition,
    ) -> Self {
        let shape = Shape::following(&device, bytes).unwrap();
        Self::open_with(shape, device, data, buffers, geometry, position).unwrap()
    }
}

fn refused(feature: &str, reason: &'static str) -> Error {
    Unsupported {
        filesystem: "xfs",
        feature: feature.to_owned(),
        reason: Some(reason),
    }
    .into()
}

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Log")
            .field("device", &self.device)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
