//! A mount for writing: what is refused, how it begins, and how it comes to rest.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_cache::commit::{BackgroundWorker, CommitDue};
use platter_vfs::writing::{Flushed, FreezeGate, MountEnd, WritableMount, start_flusher};
use platter_vfs::{Clock, Condition, Result, Unsupported};

use super::{Logging, MountOptions, Recovery};
use crate::ag::{refcount, reserved_blocks, tree_limits};
use crate::change::{Change, Cost};
use crate::context::FsContext;
use crate::ondisk::{AgNr, Geometry, Superblock, superblock};
use crate::ops::{SuperBlock, eof_blocks, finish_unlinked, free_inactive, free_waiting};
use crate::preallocation::Preallocation;
use crate::recovery::{Counters, RecoveryReport, recover_in_place};
use crate::superblock as primary;
use crate::txn::{self, Log, LogDevice, LogPosition, LogState};

/// A mount for writing.
pub(super) type Writing = MountEnd<Mounted>;

/// What a mount for writing keeps.
#[derive(Debug)]
pub(super) struct Mounted {
    superblock: Arc<SuperBlock>,
}

/// The threads of a mount.
#[derive(Debug)]
pub(super) struct Workers {
    _flusher: Option<BackgroundWorker>,
}

/// What keeps a filesystem from being written, by name.
pub(crate) fn refuse_unwritable(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    options: &MountOptions,
) -> Result<()> {
    if device.geometry().read_only {
        return Err(Condition::ReadOnly.into());
    }
    let refused = |feature: String, reason| Unsupported {
        filesystem: "xfs",
        feature,
        reason: Some(reason),
    };
    if options.superblock_offset.is_some() {
        let reason = "only reading is, until it is repaired";
        return Err(refused("a copy of the superblock".to_owned(), reason).into());
    }
    if options.recovery == Recovery::Skip {
        let reason = "only reading is, until the log is replayed";
        return Err(refused("norecovery".to_owned(), reason).into());
    }
    let features = &superblock.features;
    let geometry = Geometry::new(superblock);
    let mut names = features.unwritable();
    // After a crash the log could not be replayed.
    names.extend(features.unreplayable());
    let mut refuse = |is_there: bool, name: &str| {
        if is_there {
            names.push(name.to_owned());
        }
    };
    refuse(!features.is_v5(), "version 4");
    refuse(
        superblock.rt_blocks > 0 || superblock.rt_group_count > 0,
        "realtime",
    );
    refuse(features.has_metadir(), "metadir");
    refuse(features.has_ascii_ci(), "ascii-ci");
    refuse(!features.has_lazy_count(), "counters that are not lazy");
    refuse(
        // A cluster of one block is aligned anyway.
        geometry.inode_alignment.max(1) < geometry.cluster_blocks(),
        "inode chunks without alignment",
    );
    // A part of a chunk is whole clusters, which are written as such.
    refuse(
        features.has_sparse_inodes()
            && geometry.sparse_inode_alignment.max(1) != geometry.cluster_blocks(),
        "parts of inode chunks that are not clusters",
    );
    if names.is_empty() {
        return Ok(());
    }
    Err(refused(format!("writing {}", names.join(", ")), "only reading is").into())
}

/// Opens the filesystem on a device for writing: recovers it, and frees what a crash left.
pub(super) fn begin(
    device: Arc<dyn BlockDevice>,
    options: &MountOptions,
    budget: Arc<MemoryBudget>,
    clock: Arc<dyn Clock>,
) -> Result<(Arc<SuperBlock>, RecoveryReport)> {
    let found = primary::read(&*device)?;
    primary::refuse_unreadable(&found.features)?;
    refuse_unwritable(&*device, &found, options)?;
    found.check_device(device.geometry().len_bytes)?;
    let report = recover_in_place(&device, options.log.as_ref())?;
    // The log may hold another superblock.
    let mut found = primary::read(&*device)?;
    primary::refuse_unreadable(&found.features)?;
    refuse_unwritable(&*device, &found, options)?;
    found.check_device(device.geometry().len_bytes)?;
    let log = LogDevice::open(&found, &device, options.log.as_ref())?;
    // A change of the UUID was interrupted where the last record has none.
    let may_differ = report.position.state == LogState::Dirty
        || !txn::has_own_last_uuid(&log, &report.position)?
        || !primary::is_first_copy_current(&*device, &found);
    if may_differ {
        // Copies do not matter while the primary superblock is sound.
        let _ = primary::renew_copies(&*device, &found);
    }
    let geometry = Geometry::new(&found);
    Counters::read(&*device, &geometry)?.set(&mut found);
    let log = log.limited(options.log_bytes_max);
    let position = txn::find_position(&log, true)?.after_recovery(&report.position);
    let context = FsContext::new(device, None, found, Arc::clone(&budget));
    open_log(&context, log, position, options.logging)?;
    // Nothing else grows while an image is made or edited, and it may be filled.
    let (preallocation, pool) = match options.logging {
        Logging::Logged => (options.preallocation, reserve_pool(&context)),
        Logging::New | Logging::Scratch => (Preallocation::Off, 0),
    };
    keep_blocks(&context, pool)?;
    reset_superblock(&context)?;
    let superblock = SuperBlock::new(context, budget, clock, preallocation);
    finish_unlinked(&superblock)?;
    free_staged(&superblock.context)?;
    Ok((superblock, report))
}

/// Opens the log, which is clean.
fn open_log(
    context: &FsContext,
    log: LogDevice,
    position: LogPosition,
    logging: Logging,
) -> Result<()> {
    if logging == Logging::Logged {
        context.open_log(log, &position)?;
        return Ok(());
    }
    if logging == Logging::Scratch {
        context.space().keep_old();
    }
    let first = LogPosition {
        tail: 0,
        head: 0,
        cycle: 1,
        last: 0,
        ..position
    };
    context.open_log(log.unwritten(position.last_lsn()), &first)?;
    Ok(())
}

/// The largest reserve pool in blocks; that of a small filesystem is a twentieth of it (`xfs_default_resblks`).
const RESERVE_POOL_BLOCKS_MAX: u64 = 8192;

/// Returns the size of the reserve pool in blocks. Changes take from it what trees of mappings need for which nothing was
/// reserved, as when unwritten blocks are written in a full filesystem, and what removing names takes.
fn reserve_pool(context: &FsContext) -> i64 {
    let blocks = (context.geometry().data_blocks() / 20).min(RESERVE_POOL_BLOCKS_MAX);
    i64::try_from(blocks).unwrap_or(i64::MAX)
}

/// Keeps free blocks for the B-trees of all groups, and a reserve pool of `pool` blocks.
fn keep_blocks(context: &FsContext, pool: i64) -> Result<()> {
    let geometry = context.geometry();
    let mut kept = 0_u64;
    for ag in geometry.groups() {
        let (agf, agi) = (context.agf(ag)?, context.agi(ag)?);
        let limits = tree_limits(geometry, agf.length);
        kept = kept.saturating_add(reserved_blocks(&agf, &agi, &limits));
    }
    let kept = i64::try_from(kept).unwrap_or(i64::MAX);
    let space = context.space();
    space.add_to_floor(kept);
    space.keep_pool(pool);
    let free_blocks = context.mount().free_blocks();
    free_blocks.set_exact_below(|| space.floor());
    Ok(())
}

/// Says in the superblock that quotas are not up to date, since changes here do not count in them: a kernel that has
/// them on counts anew. One without quotas does the same. And that the log, which was recovered, has nothing that kernels
/// may not know.
fn reset_superblock(context: &FsContext) -> Result<()> {
    let superblock = &context.superblock;
    if superblock.quota_flags.is_empty() && superblock.features.log_incompat.is_empty() {
        return Ok(());
    }
    let len = context.geometry().sector_bytes();
    let cost = Cost {
        bytes: 2 * u64::from(len),
        ..Cost::default()
    };
    let reset = |change: &mut Change<'_>| {
        // The superblock is changed by the thread that has the first group.
        change.groups.get(AgNr(0))?;
        let mut sector = change.groups.blocks().read(0, len)?;
        superblock::reset_quota_flags(&mut sector);
        superblock::clear_log_incompat(&mut sector);
        change.groups.blocks_mut().write(0, sector);
        Ok(())
    };
    context.change(&cost, || (), |change, ()| reset(change))?;
    Ok(())
}

/// Frees what copy on write left staged, extent by extent.
fn free_staged(context: &FsContext) -> Result<()> {
    if !context.geometry().features.has_reflink() {
        return Ok(());
    }
    let cost = Cost {
        extents: 3,
        ..Cost::default()
    };
    for ag in context.geometry().groups() {
        loop {
            let step =
                |change: &mut Change<'_>| refcount::free_first_staged(&mut change.groups.get(ag)?);
            if !context
                .change(&cost, || (), |change, ()| step(change))?
                .result
            {
                break;
            }
        }
    }
    Ok(())
}

/// Makes changes durable at least once in every interval.
struct Flusher {
    superblock: Weak<SuperBlock>,
    idle: IdleLog,
}

/// Since when nothing is committed.
#[derive(Debug, Default)]
struct IdleLog {
    changes: AtomicU32,
    since_nanoseconds: AtomicU64,
    /// After how many changes the log was covered.
    covered: AtomicU32,
}

/// The log is covered when nothing was committed for so long, as in Linux.
const COVER_AFTER: Duration = Duration::from_secs(30);

impl IdleLog {
    /// Whether the log is to be covered, after so many changes.
    fn is_due(&self, changes: u32, now: Duration) -> bool {
        if self.changes.swap(changes, Ordering::Relaxed) != changes {
            self.begin(now);
            return false;
        }
        let since = Duration::from_nanos(self.since_nanoseconds.load(Ordering::Relaxed));
        let is_covered = self.covered.load(Ordering::Relaxed) == changes;
        now.saturating_sub(since) >= COVER_AFTER && !is_covered
    }

    /// Waits as long as after a change.
    fn begin(&self, now: Duration) {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.since_nanoseconds.store(now, Ordering::Relaxed);
    }
}

impl Flushed for Flusher {
    fn changes(&self) -> Option<u32> {
        let superblock = self.superblock.upgrade()?;
        let log = superblock.context.log()?;
        Some(log.changes())
    }

    fn flush(&self, _: CommitDue) {
        if let Some(superblock) = self.superblock.upgrade() {
            // An error is kept for the next sync.
            let _ = superblock.sync();
        }
    }

    fn maintain(&self) {
        let Some(superblock) = self.superblock.upgrade() else {
            return;
        };
        eof_blocks::free_idle(&superblock);
        // What cannot be freed is left on its list.
        let _ = free_inactive(&superblock);
        if let Some(log) = superblock.context.log() {
            // A failure shuts the log down.
            let _ = log.maintain();
            let changes = log.changes();
            let now = superblock.clock.monotonic();
            if self.idle.is_due(changes, now) {
                self.idle.begin(now);
                // What is frozen stays as it is.
                let writer = superblock.writers.try_enter();
                if writer.is_some() && cover(&superblock.context, log).is_ok() {
                    // Where something else was committed meanwhile, it is covered later.
                    let covered = changes.wrapping_add(1);
                    self.idle.covered.store(covered, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Covers the log (`xfs_log_cover`): brings everything to its place, and has the log end with a record that says so. A recovery
/// finds no more than the superblock to replay.
pub(super) fn cover(context: &FsContext, log: &Log) -> Result<()> {
    log.quiesce()?;
    let touch = |change: &mut Change<'_>| change.touch_superblock();
    context.change(&superblock_cost(context), || (), |change, ()| touch(change))?;
    log.force_all()
}

/// Starts the thread that a mount for writing needs.
pub(super) fn start(superblock: &Arc<SuperBlock>, options: &MountOptions) -> Result<Writing> {
    let flusher = match options.commit_interval {
        Some(interval) => {
            let flusher = Flusher {
                superblock: Arc::downgrade(superblock),
                idle: IdleLog::default(),
            };
            let clock = Arc::clone(&superblock.clock);
            Some(start_flusher("xfs-flusher", flusher, clock, interval)?)
        }
        None => None,
    };
    let mounted = Mounted {
        superblock: Arc::clone(superblock),
    };
    Ok(MountEnd::new(mounted, Workers { _flusher: flusher }, None))
}

impl WritableMount for Mounted {
    type Workers = Workers;
    type Guard = ();

    fn writers(&self) -> &FreezeGate {
        &self.superblock.writers
    }

    fn sync(&self) -> Result<()> {
        self.superblock.sync()
    }

    fn suspend(&self) -> Result<()> {
        self.superblock.write_unnamed()?;
        eof_blocks::trim(&self.superblock);
        // What cannot be freed is left on its list.
        let _ = free_waiting(&self.superblock);
        self.superblock.context.mount().freeze()?;
        self.quiesce()
    }

    fn resume(&self) -> Result<()> {
        self.superblock.context.mount().thaw()
    }

    fn mark_clean(&self) -> Result<()> {
        eof_blocks::end_preallocation(&self.superblock);
        // What cannot be freed is left on its list.
        let _ = free_waiting(&self.superblock);
        self.superblock.sync()?;
        self.quiesce()?;
        if let Some(log) = self.superblock.context.log() {
            log.shut_down();
        }
        Ok(())
    }

    fn end_writes(&self) {
        self.superblock.cut();
    }

    fn release(&self, (): ()) -> Result<()> {
        Ok(())
    }
}

impl Mounted {
    /// Brings everything to its place, and says so in the log, if the next mount has nothing to do. No other
    /// transaction runs.
    fn quiesce(&self) -> Result<()> {
        let context = &self.superblock.context;
        let Some(log) = context.log() else {
            return Ok(());
        };
        store_counters(context)?;
        if has_unlinked(context)? {
            return log.quiesce();
        }
        log.mark_clean()
    }
}

/// Whether inodes have no name and are not freed: they are in use, or freeing them failed. Their log gets no
/// unmount record, since Linux looks at the lists of unlinked inodes only when it recovers a log.
pub(super) fn has_unlinked(context: &FsContext) -> Result<bool> {
    for ag in context.geometry().groups() {
        if context.agi(ag)?.has_unlinked() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Stores the counters in the superblock, as part of the log.
fn store_counters(context: &FsContext) -> Result<()> {
    context.change_frozen(&superblock_cost(context), count_all)
}

fn superblock_cost(context: &FsContext) -> Cost {
    Cost {
        bytes: 2 * u64::from(context.geometry().sector_bytes()),
        ..Cost::default()
    }
}

fn count_all(change: &mut Change<'_>) -> Result<()> {
    let geometry = change.geometry();
    let mut counters = Counters::default();
    for ag in geometry.groups() {
        let counts = change.groups.counts(ag)?;
        let count = |count: i64| u64::try_from(count).unwrap_or_default();
        counters.inodes += count(counts.inodes);
        counters.free_inodes += count(counts.free_inodes);
        counters.free_blocks += count(counts.free_blocks);
    }
    let len = geometry.sector_bytes();
    let mut sector = change.groups.blocks().read(0, len)?;
    superblock::set_counters(
        &mut sector,
        [counters.inodes, counters.free_inodes, counters.free_blocks],
    );
    change.groups.blocks_mut().write(0, sector);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_covered_once_it_is_idle() {
        let idle = IdleLog::default();
        let second = Duration::from_secs(1);
        assert!(!idle.is_due(5, second));
        assert!(!idle.is_due(5, 30 * second));
        assert!(idle.is_due(5, 31 * second));
        idle.covered.store(6, Ordering::Relaxed);
        assert!(!idle.is_due(6, 32 * second) && !idle.is_due(6, 100 * second));
        assert!(!idle.is_due(7, 101 * second) && idle.is_due(7, 131 * second));
    }
}
