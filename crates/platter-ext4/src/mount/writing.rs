//! A mount for writing: what is refused, how it begins, and how it comes to rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_cache::commit::{BackgroundWorker, CommitThread};
use platter_vfs::{Clock, Condition, Result};

use super::lifetime::Lifetime;
use super::{DataMode, MountOptions, OnError, Opened, Recovery, flusher, mmp, unsupported};
use crate::Volume;
use crate::alloc::Space;
use crate::ondisk::Creator;
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::jbd2::Sequence;
use crate::ops::Tree;
use crate::orphan::Orphans;
use crate::recovery::open_journal;
use crate::superblock;
use crate::txn::{Journal, Log};
use crate::volume::Sharing;

/// What a mount for writing keeps up, and ends.
#[derive(Debug)]
pub(super) struct Writing {
    tree: Arc<Tree>,
    lifetime: Arc<Lifetime>,
    /// Present until the end.
    running: Mutex<Option<Running>>,
    /// Held while it ends, for who would end it, too.
    ending: Mutex<()>,
    /// All changes were ended before the unmount, which leaves the device as it is.
    is_shut_down: AtomicBool,
}

#[derive(Debug)]
struct Running {
    flusher: Option<BackgroundWorker>,
    commit_thread: Option<CommitThread<Log>>,
    guard: Option<mmp::Guard>,
}

impl Running {
    fn take_threads(&mut self) -> (Option<BackgroundWorker>, Option<CommitThread<Log>>) {
        (self.flusher.take(), self.commit_thread.take())
    }
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
    // Usage would have to be counted; a kernel without quotas refuses it, too.
    if features.ro_compat.contains(RoCompat::QUOTA) {
        names.push("quota".into());
    }
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
    volume: Volume,
    options: &MountOptions,
    budget: Arc<MemoryBudget>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<Tree>> {
    let features = volume.geometry.features;
    let volume = if features.has_journal() && !options.unjournaled {
        let journal = open_empty_journal(&volume, options)?;
        let clock = Arc::clone(&clock);
        volume.try_writable(|buffers| Log::with_journal(buffers, journal, &features, clock))?
    } else {
        volume.writable(Log::without_journal)
    };
    let data_mode = DataMode::of_superblock(&volume.superblock);
    let mut volume = volume.with_data_mode(options.data_mode.unwrap_or(data_mode));
    if let Some(design) = options.mbcache {
        volume = volume.with_sharing(Sharing::new(design, &budget));
    }
    let space = Arc::new(Space::open(&volume)?.with_share(options.share));
    let on_error = options
        .on_error
        .unwrap_or(OnError::of_superblock(volume.superblock.errors));
    let now = clock.now();
    superblock::rewrite(&volume, |disk| disk.begin_mount(now))?;
    let orphans = Orphans::default();
    let tree = Tree::new(volume, Some(space), orphans, budget, clock, on_error);
    tree.finish_orphans()?;
    Ok(tree)
}

/// Opens the journal of a recovered volume.
pub(super) fn open_empty_journal(volume: &Volume, options: &MountOptions) -> Result<Journal> {
    let mut journal = open_journal(volume, options.journal.as_ref())?;
    if journal.needs_recovery() {
        // Nobody asked for a replay, so the journal is stale. Its transactions have numbers that no
        // later one gets.
        let stale = journal.superblock();
        let next = stale.sequence.0.wrapping_add(stale.len_blocks);
        journal.mark_empty(Sequence(next))?;
    }
    Ok(journal)
}

impl Writing {
    /// Starts what a mount for writing needs beside its callers.
    pub(super) fn start(
        tree: &Arc<Tree>,
        options: &MountOptions,
        mut guard: Option<mmp::Guard>,
        lifetime: Arc<Lifetime>,
    ) -> Result<Self> {
        if let Some(guard) = &mut guard {
            guard.keep(tree)?;
        }
        let (flusher, commit_thread) = match (options.commit_interval, tree.volume.shared_log()) {
            (Some(interval), Some(log)) => {
                let flusher = flusher::start(tree, &lifetime, interval)?;
                let thread = CommitThread::start("ext4-journal", log);
                (
                    Some(flusher),
                    Some(thread.map_err(|_| Condition::WouldBlock)?),
                )
            }
            _ => (None, None),
        };
        Ok(Self {
            tree: Arc::clone(tree),
            lifetime,
            running: Mutex::new(Some(Running {
                flusher,
                commit_thread,
                guard,
            })),
            ending: Mutex::default(),
            is_shut_down: AtomicBool::new(false),
        })
    }

    /// Writes all that is not written yet, and marks the filesystem as being at rest. What was left
    /// undone by an error stays so, for the next mount to recover.
    pub(super) fn end(&self) -> Result<()> {
        let _only = self.ending.lock();
        let Some(running) = self.running.lock().take() else {
            return Ok(());
        };
        drop(running.flusher);
        drop(running.commit_thread);
        if self.is_shut_down.load(Ordering::Acquire) {
            return running.guard.map_or(Ok(()), mmp::Guard::release);
        }
        let ended = self.come_to_rest();
        self.tree.cut();
        match running.guard {
            Some(guard) => ended.and(guard.release()),
            None => ended,
        }
    }

    /// Makes everything durable and ends all changes. The journal stays to be recovered, and a
    /// filesystem without one to be checked.
    pub(super) fn shut_down(&self) -> Result<()> {
        let _only = self.ending.lock();
        if self.has_ended() || self.is_shut_down.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = self.tree.sync();
        let threads = self.running.lock().as_mut().map(Running::take_threads);
        drop(threads);
        self.tree.cut();
        synced
    }

    /// Ends what runs beside its callers, and leaves the filesystem as it is.
    pub(super) fn stop(&self) {
        // Nothing is written any more when another host may take the filesystem.
        self.tree.cut();
        let running = self.running.lock().take();
        drop(running);
    }

    /// Whether it came to its end.
    pub(super) fn has_ended(&self) -> bool {
        self.running.lock().is_none()
    }

    fn come_to_rest(&self) -> Result<()> {
        let tree = &self.tree;
        let volume = &tree.volume;
        tree.sync()?;
        tree.close_orphans()?;
        if let Some(log) = volume.log() {
            log.close()?;
        }
        let was_clean = volume.superblock.state.is_clean();
        let now = tree.clock.now();
        superblock::rewrite(volume, |disk| {
            self.lifetime.note(disk, tree.clock.monotonic());
            disk.end_mount(now, was_clean);
        })
    }
}
