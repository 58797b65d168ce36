//! A mount for writing: what is refused, how it begins, and how it comes to rest.

use std::sync::{Arc, Weak};
use std::time::Duration;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_cache::commit::{BackgroundWorker, CommitDue};
use platter_vfs::writing::{Flushed, FreezeGate, MountEnd, WritableMount, start_flusher};
use platter_vfs::{Clock, Condition, Error, Result};

use super::members;
use super::options::MountOptions;
use super::subvolume;
use super::write::open_for_writing;
use crate::ondisk::features::Incompat;
use crate::ops::{SuperBlock, dead_subvolumes, orphans, sync};
use crate::pool::unsupported;
use crate::txn::{WriteContext, unused};

/// A mount for writing.
pub(super) type Writing = MountEnd<Mounted>;

/// Sectors have the size of pages.
const SECTOR_BYTES: u32 = 4096;

/// What a mount for writing keeps.
#[derive(Debug)]
pub(super) struct Mounted {
    fs: Arc<SuperBlock>,
}

/// How long subvolumes are dropped before other work of the flusher is looked at.
const DROPPING: Duration = Duration::from_millis(500);

/// Generations that leave space for those of commits.
const GENERATION_MAX: u64 = u64::MAX >> 1;

/// The threads of a mount.
#[derive(Debug)]
pub(super) struct Workers {
    _flusher: Option<BackgroundWorker>,
}

/// What keeps files from being written, by name, though transactions would work.
fn refuse_unwritable(writing: &WriteContext) -> Result<()> {
    let superblock = &writing.context().superblock;
    let reason = Some("mount read-only");
    if superblock.generation.0 > GENERATION_MAX {
        let feature = format!("writing at generation {}", superblock.generation.0);
        return Err(unsupported(feature, None));
    }
    if superblock.sector_bytes != SECTOR_BYTES {
        let feature = format!("writing with sectors of {} bytes", superblock.sector_bytes);
        return Err(unsupported(feature, reason));
    }
    // A name may not fit where others were removed for it already. An edit of an image fails as a whole then.
    let incompat = superblock.features.incompat;
    if !incompat.contains(Incompat::EXTENDED_IREF) && !writing.is_one_transaction() {
        let feature = "writing without the feature extref".to_owned();
        return Err(unsupported(feature, reason));
    }
    Ok(())
}

/// Opens the filesystem on devices for writing, and deletes the orphans that a crash left.
pub(super) fn begin(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    budget: Arc<MemoryBudget>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<SuperBlock>> {
    if devices.iter().any(|device| device.geometry().read_only) {
        return Err(Condition::ReadOnly.into());
    }
    let transactions = options.transactions;
    // As the kernel, which has mount(8) mount it read-only. An edit of an image fails by name.
    let found = members::find(devices, options.superblock_offset)?;
    if members::is_seed(&found.superblock) && !transactions.one_transaction {
        return Err(Condition::ReadOnly.into());
    }
    let writing = open_for_writing(devices, options, transactions, &budget, Arc::clone(&clock))?;
    refuse_unwritable(&writing)?;
    let context = writing.context();
    let root = subvolume::choose(context, &options.subvolume)?;
    let others = context.subvolumes()?;
    let fs = SuperBlock::writable(writing, &root, &others, budget, clock, options.data);
    match orphans::clean_up(&fs) {
        // Those left are deleted by a later mount: this one can make space.
        Err(Error::Condition(Condition::NoSpace)) if fs.can_write() => {}
        deleted => deleted?,
    }
    dead_subvolumes::queue_all(&fs)?;
    Ok(fs)
}

/// Makes changes durable at least once in every interval.
struct Flusher(Weak<SuperBlock>);

impl Flushed for Flusher {
    fn changes(&self) -> Option<u32> {
        Some(self.0.upgrade()?.change_count())
    }

    fn flush(&self, _: CommitDue) {
        if let Some(fs) = self.0.upgrade() {
            // An error is kept for the next sync.
            let _ = sync::sync_fs(&fs);
        }
    }

    /// Drops subvolumes that were deleted, and removes block groups that became empty, as soon as what was in them is
    /// not pinned any more.
    fn maintain(&self) {
        let Some(fs) = self.0.upgrade() else { return };
        let begin = fs.clock().monotonic();
        // After an error, the next call goes on with another one, unless writing has ended.
        while let Ok(true) = dead_subvolumes::drop_some(&fs)
            && fs.clock().monotonic().saturating_sub(begin) < DROPPING
        {}
        if let Some(writing) = fs.writing().filter(|_| fs.can_write()) {
            // An error has ended all writing.
            let _ = unused::remove_groups(writing);
        }
    }
}

/// Starts the thread that a mount for writing needs.
pub(super) fn start(fs: &Arc<SuperBlock>, interval: Option<Duration>) -> Result<Writing> {
    let flusher = match interval {
        Some(interval) => {
            let flusher = Flusher(Arc::downgrade(fs));
            let clock = Arc::clone(fs.clock());
            Some(start_flusher("btrfs-flusher", flusher, clock, interval)?)
        }
        None => None,
    };
    if interval.is_none() {
        fs.dead_subvolumes.drop_in_syncs();
    }
    let fs = Arc::clone(fs);
    let workers = Workers { _flusher: flusher };
    Ok(MountEnd::new(Mounted { fs }, workers, None))
}

impl WritableMount for Mounted {
    type Workers = Workers;
    type Guard = ();

    fn writers(&self) -> &FreezeGate {
        &self.fs.writers
    }

    fn sync(&self) -> Result<()> {
        sync::sync_all(&self.fs)
    }

    /// Every commit leaves the filesystem clean, with no log.
    fn suspend(&self) -> Result<()> {
        sync::write_unnamed(&self.fs)?;
        self.fs.writing().map_or(Ok(()), WriteContext::freeze)
    }

    fn resume(&self) -> Result<()> {
        if let Some(writing) = self.fs.writing() {
            writing.thaw();
        }
        Ok(())
    }

    /// Every commit leaves the filesystem clean.
    fn mark_clean(&self) -> Result<()> {
        sync::sync_all(&self.fs)
    }

    fn end_writes(&self) {
        sync::end_writes(&self.fs);
    }

    fn release(&self, (): ()) -> Result<()> {
        Ok(())
    }
}
