//! The end of a log that was recovered on the device, and finishing intents there. What [finishing](super::finish)
//! them changes in a layer above the device goes to the log as one checkpoint, with the items that say that they are
//! done. Before it is durable, recovery finds the intents; with it, what they led to.

use std::sync::Arc;

use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_cache::buffer::{Addressing, BlockSize, DeviceStore};
use platter_cache::{BufferCache, MemoryBudget};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, Result, Unsupported};

use super::{Counters, finish};
use crate::ondisk::inode::INODE_MAGIC;
use crate::ondisk::log::Intent;
use crate::ondisk::log::intent::Done;
use crate::ondisk::{AgBlock, AgNr, BasicBlock, Geometry, InodeNr};
use crate::recovery::rules::IntentRule;
use crate::superblock;
use crate::txn::{BlockType, Header, InodePlace, Log, LogDevice, LogPosition, Transaction};
use crate::xfs_mount::Mount;

/// Memory of the buffers, which are all in the checkpoint.
const BUDGET_BYTES: u64 = 8 << 20;
/// Headers of a group, each in a sector.
const HEADER_SECTORS: u64 = 4;

/// Finishes the intents of a log whose other items are in their places, and ends the log: with an unmount record, unless
/// there are unlinked inodes.
///
/// # Errors
/// `Unsupported` where the log has no space for the checkpoint, or an intent is not finished here; nothing was
/// changed then.
pub(super) fn finish_in_log(
    data: &Arc<dyn BlockDevice>,
    log: &LogDevice,
    position: &LogPosition,
    intents: &[Intent],
    has_unlinked: bool,
) -> Result<()> {
    let primary = superblock::read(&**data)?;
    let mount = Mount::new(&primary);
    let geometry = mount.geometry();
    let layer = Arc::new(OverlayDevice::new(
        Arc::clone(data),
        OverlayOptions::default(),
    ));
    let above: Arc<dyn BlockDevice> = Arc::clone(&layer) as _;
    let rt_freed = finish::finish(&above, geometry, intents)?;
    // Without a realtime section, which was refused, there is nothing to free there.
    if !rt_freed.is_empty() {
        return Err(Corrupt::new(Locus::UNKNOWN, IntentRule::Extent).into());
    }
    if geometry.features.has_lazy_count() {
        Counters::read(&*above, geometry)?.store(&*above, geometry)?;
    }
    let log = open_replayed(data, log, position, geometry)?;
    let begun = Transaction::begin(&mount, &log, u64::from(geometry.block_bytes()), 1);
    let mut transaction = begun.map_err(|error| too_large(error, intents.len()))?;
    let mut next = 0;
    for (at, bytes) in layer.held() {
        let block = u64::from(geometry.block_bytes());
        let start = (at / block * block).max(next);
        next = at
            .saturating_add(bytes.len() as u64)
            .next_multiple_of(block);
        for at in (start..next.min(geometry.len_bytes())).step_by(geometry.block_bytes() as usize) {
            add_block(&mut transaction, (&**data, &*above), geometry, at)?;
        }
    }
    for intent in intents {
        let done = Done {
            intent_kind: intent.kind(),
            id: intent.id(),
        };
        let extents = match intent {
            Intent::ExtentFree(intent) => &intent.extents[..],
            Intent::Rmap(_)
            | Intent::Refcount(_)
            | Intent::Bmap(_)
            | Intent::Attr(_)
            | Intent::Exchange(_) => &[],
        };
        transaction.log_done(intent, vec![done.encode(extents)]);
    }
    if transaction.missing_bytes().is_some() {
        return Err(no_space(intents.len()));
    }
    let sequence = transaction.commit()?;
    log.force(sequence)?;
    log.release_tail();
    if has_unlinked {
        log.quiesce()?;
        return sync_superblock(&mount, &log);
    }
    log.unmount()
}

/// Ends a log whose items are in their places, without open intents, and leaves the unlinked inodes to the next recovery:
/// Linux frees them only when it recovers a log, so it does not end with an unmount record. Sectors after its end are
/// clear.
pub(super) fn end_with_unlinked(
    data: &Arc<dyn BlockDevice>,
    log: &LogDevice,
    position: &LogPosition,
) -> Result<()> {
    let primary = superblock::read(&**data)?;
    let mount = Mount::new(&primary);
    let log = open_replayed(data, log, position, mount.geometry())?;
    log.release_tail();
    sync_superblock(&mount, &log)
}

/// Logs the superblock, unchanged, so that the log is dirty and the next mount recovers it.
fn sync_superblock(mount: &Mount, log: &Log) -> Result<()> {
    let geometry = mount.geometry();
    let size = block_size(geometry.sector_bytes())?;
    let what = BlockType::header(Header::Superblock, AgNr(0));
    let mut transaction = Transaction::begin(mount, log, geometry.sector_bytes().into(), 1)?;
    transaction.touch(BasicBlock(0), size, &what)?;
    transaction.commit()?;
    log.quiesce()?;
    log.shut_down();
    Ok(())
}

fn open_replayed(
    data: &Arc<dyn BlockDevice>,
    log: &LogDevice,
    position: &LogPosition,
    geometry: &Geometry,
) -> Result<Log> {
    let buffers = buffers(data, geometry)?;
    Log::open_replayed(log.clone(), Arc::clone(data), buffers, geometry, position)
}

fn buffers(data: &Arc<dyn BlockDevice>, geometry: &Geometry) -> Result<Arc<BufferCache>> {
    let addressing = Addressing {
        unit_bytes: 512,
        usual: block_size(geometry.block_bytes())?,
    };
    let store = Arc::new(DeviceStore::new(Arc::clone(data)));
    let budget = Arc::new(MemoryBudget::new(BUDGET_BYTES));
    Ok(Arc::new(BufferCache::over(store, addressing, budget)))
}

fn block_size(len: u32) -> Result<BlockSize> {
    BlockSize::new(len).ok_or_else(|| Condition::InvalidArgument.into())
}

/// Adds what changed in a block of the filesystem.
fn add_block(
    transaction: &mut Transaction<'_>,
    (before, after): (&dyn BlockDevice, &dyn BlockDevice),
    geometry: &Geometry,
    at: u64,
) -> Result<()> {
    let len = geometry.block_bytes() as usize;
    let (mut old, mut new) = (vec![0; len], vec![0; len]);
    before.read_at(at, &mut old)?;
    after.read_at(at, &mut new)?;
    if old == new {
        return Ok(());
    }
    let sector = u64::from(geometry.sector_bytes());
    let ag_bytes = u64::from(geometry.ag_blocks) << geometry.block_bits;
    let within = at.checked_rem(ag_bytes).unwrap_or_default();
    if within < HEADER_SECTORS * sector {
        let size = geometry.sector_bytes() as usize;
        let sectors = old.chunks(size).zip(new.chunks(size));
        for ((old, new), at) in sectors.zip((at..).step_by(size)) {
            if old != new {
                add_metadata(transaction, geometry, at, new)?;
            }
        }
        return Ok(());
    }
    if !new.starts_with(&INODE_MAGIC.to_be_bytes()) {
        return add_metadata(transaction, geometry, at, &new);
    }
    let block = u32::try_from(within >> geometry.block_bits).unwrap_or(u32::MAX);
    let ag = u32::try_from(at.checked_div(ag_bytes).unwrap_or_default()).unwrap_or(u32::MAX);
    let (ag, block) = (AgNr(ag), AgBlock(block));
    let size = geometry.inode_bytes() as usize;
    let inodes = old.chunks(size).zip(new.chunks(size));
    for ((old, new), index) in inodes.zip(0_u32..) {
        if old != new {
            let place = inode_place(geometry, ag, block, index)?;
            transaction.edit_inode(&place, |image| {
                image.copy_from_slice(new);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Adds a block: what differs, or all of it where what was there does not verify as what it is now.
fn add_metadata(
    transaction: &mut Transaction<'_>,
    geometry: &Geometry,
    at: u64,
    bytes: &[u8],
) -> Result<()> {
    let place = BasicBlock::of_byte(at);
    let what = BlockType::of_block(geometry, place, bytes);
    let what = what.ok_or_else(|| Corrupt::new(Locus::block(place.0), IntentRule::Extent))?;
    let size = block_size(u32::try_from(bytes.len()).unwrap_or(u32::MAX))?;
    let edited = transaction.edit(place, size, &what, |old| {
        old.copy_from_slice(bytes);
        Ok(())
    });
    if edited.is_err() {
        transaction.create(place, size, &what, bytes.to_vec());
    }
    Ok(())
}

/// Where an inode of a block lies, in a filesystem whose chunks of inodes are aligned.
fn inode_place(geometry: &Geometry, ag: AgNr, block: AgBlock, index: u32) -> Result<InodePlace> {
    let first = geometry.aligned_cluster(block);
    let number = geometry.first_ag_inode(block).0.checked_add(index);
    let number = number.and_then(|inode| geometry.inode_nr(ag, crate::ondisk::AgInode(inode)));
    let broken = || Corrupt::new(Locus::group(ag.0.into()), IntentRule::Inode);
    let number: InodeNr = number.ok_or_else(broken)?;
    let skipped = (block.0 - first.0) << geometry.block_bits;
    Ok(InodePlace {
        number,
        cluster: geometry.basic_block(geometry.fs_block(ag, first)),
        cluster_bytes: geometry.cluster_blocks() << geometry.block_bits,
        offset: skipped + index * geometry.inode_bytes(),
    })
}

fn too_large(error: Error, intents: usize) -> Error {
    if matches!(error, Error::Unsupported(_)) {
        return no_space(intents);
    }
    error
}

fn no_space(intents: usize) -> Error {
    Unsupported {
        filesystem: "xfs",
        feature: format!("finishing {intents} intents in a log that has no space for it"),
        reason: Some("mount read-only, or let the kernel recover it"),
    }
    .into()
}
