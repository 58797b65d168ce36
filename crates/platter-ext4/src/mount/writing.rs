//! A mount for writing: what is refused, how it begins, and how it comes to rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_cache::commit::{BackgroundWorker, CommitThread};
use platter_vfs::writing::{FreezeGate, MountEnd, WritableMount};
use platter_vfs::{Clock, Condition, Result};

use super::lifetime::Lifetime;
use super::{DataMode, MountOptions, OnError, Opened, Recovery, flusher, mmp, unsupported};
use crate::FsContext;
use crate::alloc::Allocator;
use crate::fs_context::Sharing;
use crate::ondisk::Creator;
use crate::ondisk::features::Incompat;
use crate::ondisk::jbd2::Sequence;
use crate::ondisk::superblock::DiskSuperblock;
use crate::ops::{self, SuperBlock};
use crate::orphan::Orphans;
use crate::quota_file::QuotaFiles;
use crate::recovery::open_journal;
use crate::superblock;
use crate::txn::{Journal, Log};

/// A mount for writing.
pub(super) type Writing = MountEnd<Mounted>;

/// What a mount for writing keeps.
#[derive(Debug)]
pub(super) struct Mounted {
    sb: Arc<SuperBlock>,
    lifetime: Arc<Lifetime>,
    /// What shows whether another host took the device, where hosts are kept from it.
    own: Option<mmp::Own>,
    /// The superblock says that nothing is being changed, or may say so.
    is_end_marked: AtomicBool,
}

/// The threads of a mount. They end in this order.
#[derive(Debug)]
pub(super) struct Workers {
    _flusher: Option<BackgroundWorker>,
    _commit_thread: Option<CommitThread<Log>>,
}

/// What keeps an image from being written, by name, whatever it could be read with.
///
/// # Errors
/// `Unsupported`; `ReadOnly` where the device cannot be written.
pub(super) fn refuse_unwritable(
    device: &dyn BlockDevice,
    opened: &Opened,
    options: &MountOptions,
) -> Result<()> {
    if device.geometry().read_only {
        return Err(Condition::ReadOnly.into());
    }
    let features = &opened.superblock.features;
    let mut names = features.unwritable();
    // Their fields, or their seals, lie where inodes of GNU/Hurd have others.
    if opened.geometry.creator == Creator::Hurd {
        let has = |named: bool, name: &str| named.then(|| format!("{name} of GNU/Hurd"));
        names.extend(has(features.incompat.contains(Incompat::BIT64), "64bit"));
        names.extend(has(
            features.incompat.contains(Incompat::EA_INODE),
            "ea_inode",
        ));
        names.extend(has(features.has_metadata_csum(), "metadata_csum"));
    }
    if !names.is_empty() {
        return Err(unsupported(names.join(", "), Some("only reading is")));
    }
    if options.superblock_kib.is_some_and(|kib| kib != 1) {
        let reason = "only reading is, until it is repaired";
        return Err(unsupported("a copy of the superblock".into(), Some(reason)));
    }
    if opened.needs_recovery() && options.recovery == Recovery::Skip {
        let reason = "only reading is, until the journal is replayed";
        return Err(unsupported("norecovery".into(), Some(reason)));
    }
    Ok(())
}

/// Opens a recovered volume for writing.
pub(super) fn begin(
    fs: FsContext,
    options: &MountOptions,
    budget: Arc<MemoryBudget>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<SuperBlock>> {
    let features = fs.geometry.features;
    let fs = if features.has_journal() && !options.unjournaled {
        let journal = open_empty_journal(&fs, options)?;
        let clock = Arc::clone(&clock);
        fs.try_writable(|buffers| Log::with_journal(buffers, journal, &features, clock))?
    } else {
        fs.writable(Log::without_journal)
    };
    let data_mode = DataMode::of_superblock(&fs.superblock);
    let mut fs = fs.with_data_mode(options.data_mode.unwrap_or(data_mode));
    if let Some(design) = options.mbcache {
        fs = fs.with_sharing(Sharing::new(design, &budget));
    }
    let space = Arc::new(Allocator::open(&fs)?.with_share(options.share));
    let quotas = QuotaFiles::open(&fs, &space, options.quota_limits, Arc::clone(&clock))?;
    let (quota_files, quota_table) = quotas.unzip();
    if let Some(table) = quota_table {
        fs = fs.with_quotas(table);
    }
    let on_error = options
        .on_error
        .unwrap_or(OnError::of_superblock(fs.superblock.errors));
    let now = clock.now();
    superblock::rewrite(&fs, |disk| disk.begin_mount(now))?;
    let orphans = Orphans::default();
    let sb = SuperBlock::new(
        fs,
        Some(space),
        quota_files,
        orphans,
        budget,
        clock,
        on_error,
    );
    ops::finish_orphans(&sb)?;
    Ok(sb)
}

/// Opens the journal of a recovered volume.
pub(super) fn open_empty_journal(fs: &FsContext, options: &MountOptions) -> Result<Journal> {
    let mut journal = open_journal(fs, options.journal.as_ref())?;
    if journal.needs_recovery() {
        // No replay was requested, so the journal is stale. Its transactions have numbers that no
        // later one gets.
        let stale = journal.superblock();
        let next = stale.sequence.0.wrapping_add(stale.len_blocks);
        journal.mark_empty(Sequence(next))?;
    }
    Ok(journal)
}

/// Starts the threads that a mount for writing needs.
pub(super) fn start(
    sb: &Arc<SuperBlock>,
    options: &MountOptions,
    mut guard: Option<mmp::Guard>,
    lifetime: Arc<Lifetime>,
) -> Result<Writing> {
    if let Some(guard) = &mut guard {
        guard.keep(sb)?;
    }
    let (flusher, commit_thread) = match (options.commit_interval, sb.fs.shared_log()) {
        (Some(interval), Some(log)) => {
            let flusher = flusher::start(sb, &lifetime, interval)?;
            let thread = CommitThread::start("ext4-journal", log);
            (
                Some(flusher),
                Some(thread.map_err(|_| Condition::WouldBlock)?),
            )
        }
        _ => (None, None),
    };
    let mounted = Mounted {
        sb: Arc::clone(sb),
        lifetime,
        own: guard.as_ref().map(mmp::Guard::own),
        is_end_marked: AtomicBool::new(false),
    };
    let workers = Workers {
        _flusher: flusher,
        _commit_thread: commit_thread,
    };
    Ok(MountEnd::new(mounted, workers, guard))
}

impl WritableMount for Mounted {
    type Workers = Workers;
    type Guard = mmp::Guard;

    fn writers(&self) -> &FreezeGate {
        &self.sb.writers
    }

    fn sync(&self) -> Result<()> {
        ops::sync_fs(&self.sb)
    }

    fn suspend(&self) -> Result<()> {
        let sb = &self.sb;
        ops::write_unnamed(sb)?;
        ops::close_orphans(sb)?;
        if let Some(log) = sb.fs.log() {
            log.freeze()?;
        }
        self.is_end_marked.store(true, Ordering::Relaxed);
        superblock::rewrite_cached(&sb.fs, self.end_mark())
    }

    fn resume(&self) -> Result<()> {
        let fs = &self.sb.fs;
        let Some(log) = fs.log() else { return Ok(()) };
        if let Some(error) = log.failure() {
            return Err(error);
        }
        // Otherwise transactions may change the superblock now.
        let marked = if self.is_end_marked.swap(false, Ordering::Relaxed) {
            let owned = self.own.as_ref().map_or(Ok(()), mmp::Own::check);
            owned.and_then(|()| superblock::rewrite_cached(fs, DiskSuperblock::begin_writing))
        } else {
            Ok(())
        };
        let marked = marked.inspect_err(|error| ops::end_writing(&self.sb, error));
        log.thaw();
        if marked.is_ok() {
            self.sb.note_pending();
        }
        marked
    }

    fn end_writes(&self) {
        self.sb.cut();
    }

    fn release(&self, guard: mmp::Guard) -> Result<()> {
        guard.release()
    }

    fn mark_clean(&self) -> Result<()> {
        let sb = &self.sb;
        let fs = &sb.fs;
        ops::sync_fs(sb)?;
        ops::remove_unused_owners(sb)?;
        ops::close_orphans(sb)?;
        if let Some(log) = fs.log() {
            log.close()?;
        }
        superblock::rewrite(&sb.fs, self.end_mark())
    }
}

impl Mounted {
    /// What says in the superblock that nothing is being changed any more.
    fn end_mark(&self) -> impl FnOnce(&mut DiskSuperblock) {
        let sb = &self.sb;
        let was_clean = sb.fs.superblock.state.is_clean();
        let now = sb.clock.now();
        move |disk| {
            self.lifetime.note(disk, sb.clock.monotonic());
            disk.end_mount(now, was_clean);
        }
    }
}
