//! A mount for writing: what is refused, how it begins, and how it comes to rest.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_cache::commit::{BackgroundWorker, CommitThread};
use platter_vfs::writing::{MountEnd, WritableMount};
use platter_vfs::{Clock, Condition, Result};

use super::lifetime::Lifetime;
use super::{DataMode, MountOptions, OnError, Opened, Recovery, flusher, mmp, unsupported};
use crate::Volume;
use crate::alloc::Space;
use crate::ondisk::Creator;
use crate::ondisk::features::{Compat, Incompat, RoCompat};
use crate::ondisk::jbd2::Sequence;
use crate::ops::Tree;
use crate::orphan::Orphans;
use crate::quota_file::QuotaFiles;
use crate::recovery::open_journal;
use crate::superblock;
use crate::txn::{Journal, Log};
use crate::volume::Sharing;

/// A mount for writing.
pub(super) type Writing = MountEnd<Mounted>;

/// What a mount for writing keeps.
#[derive(Debug)]
pub(super) struct Mounted {
    tree: Arc<Tree>,
    lifetime: Arc<Lifetime>,
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
    // They have no part of the quota files: e2fsck counts usage anew.
    let has_fast_commits = features.compat.contains(Compat::FAST_COMMIT);
    if features.ro_compat.contains(RoCompat::QUOTA) && has_fast_commits && opened.needs_recovery() {
        let reason = "only reading is, until e2fsck has replayed them";
        return Err(unsupported("quota after fast commits".into(), Some(reason)));
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
    let quotas = QuotaFiles::open(&volume, &space, options.quota_limits, Arc::clone(&clock))?;
    let (quota_files, quota_table) = quotas.unzip();
    if let Some(table) = quota_table {
        volume = volume.with_quotas(table);
    }
    let on_error = options
        .on_error
        .unwrap_or(OnError::of_superblock(volume.superblock.errors));
    let now = clock.now();
    superblock::rewrite(&volume, |disk| disk.begin_mount(now))?;
    let orphans = Orphans::default();
    let tree = Tree::new(
        volume,
        Some(space),
        quota_files,
        orphans,
        budget,
        clock,
        on_error,
    );
    tree.finish_orphans()?;
    Ok(tree)
}

/// Opens the journal of a recovered volume.
pub(super) fn open_empty_journal(volume: &Volume, options: &MountOptions) -> Result<Journal> {
    let mut journal = open_journal(volume, options.journal.as_ref())?;
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
    tree: &Arc<Tree>,
    options: &MountOptions,
    mut guard: Option<mmp::Guard>,
    lifetime: Arc<Lifetime>,
) -> Result<Writing> {
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
    let mounted = Mounted {
        tree: Arc::clone(tree),
        lifetime,
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

    fn sync(&self) -> Result<()> {
        self.tree.sync()
    }

    fn end_writes(&self) {
        self.tree.cut();
    }

    fn release(&self, guard: mmp::Guard) -> Result<()> {
        guard.release()
    }

    fn mark_clean(&self) -> Result<()> {
        let tree = &self.tree;
        let volume = &tree.volume;
        tree.sync()?;
        tree.remove_unused_owners()?;
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
