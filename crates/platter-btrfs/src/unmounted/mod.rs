//! Commands on the devices of a filesystem that is not mounted.

#[cfg(test)]
mod scrub_tests;
#[cfg(test)]
mod balance_tests;
#[cfg(test)]
mod compact_tests;
#[cfg(test)]
#[cfg(feature = "bench")]
mod index_tests;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::devices::{Balance, Moved, Moving, Scrubbed};
use platter_vfs::{CheckSink, Clock, Condition, Result};

use crate::block_group::Ranges;
use crate::mount::{self, MountOptions, open_for_writing};
use crate::ondisk::chunk_item::ChunkItem;
use crate::ondisk::{DeviceAddr, DeviceId, Generation, Superblock};
use crate::pool::{self, BalanceArgs, check_device, unsupported};
use crate::scrub::{Distrusted, ScrubReport, scrub_opened};
use crate::txn::{WriteContext, WriteOptions, devices, superblocks};

/// What is copied at once.
const COPY_BYTES: usize = 1 << 20;
/// What is copied at once of what cannot be read as a whole.
const SECTOR_BYTES: usize = 4096;
/// How far the generation of a device may lag although it has all that others have.
const GENERATION_LAG_MAX: u64 = 1;

/// A filesystem whose devices are changed.
#[derive(Debug, Clone)]
pub struct PoolRequest {
    /// Its devices.
    pub devices: Vec<Arc<dyn BlockDevice>>,
    /// How it is opened.
    pub options: MountOptions,
    /// Where its caches take their memory.
    pub budget: Arc<MemoryBudget>,
    /// Time and random numbers.
    pub clock: Arc<dyn Clock>,
}

impl PoolRequest {
    /// Opens the filesystem for writing.
    fn open(&self) -> Result<WriteContext> {
        let writing = WriteOptions::default();
        let clock = Arc::clone(&self.clock);
        open_for_writing(&self.devices, &self.options, writing, &self.budget, clock)
    }

    /// Reads every copy of all metadata and data on devices that are present, and reports what is bad. With `repairs`,
    /// rewrites it from good copies or parity; parity too, and superblocks. Devices that missed commits are whole then.
    ///
    /// # Errors
    /// What keeps the filesystem from being opened, or from being read on: nothing is known of what follows.
    pub fn scrub(&self, repairs: bool, sink: &mut dyn CheckSink) -> Result<Scrubbed> {
        Ok(self.scrub_report(repairs, sink)?.named(repairs))
    }

    fn scrub_report(&self, repairs: bool, sink: &mut dyn CheckSink) -> Result<ScrubReport> {
        let mut options = self.options.clone();
        options.rescue.skips_log = true;
        let context = mount::open(&self.devices, &options, &self.budget)?;
        let newest = context.superblock.generation;
        let members = context.blocks.store().members();
        let stale = members.iter().filter(|member| {
            let generation = member.generation.unwrap_or(newest);
            generation.0.saturating_add(GENERATION_LAG_MAX) < newest.0
        });
        let stale: Vec<_> = stale.map(|member| member.id).collect();
        drop(members);
        let distrusted = Distrusted {
            stale: stale.clone(),
            not_copied: None,
        };
        scrub_opened(&context, distrusted, stale, repairs, sink)
    }

    /// Places chunks anew, each in a commit of its own.
    ///
    /// # Errors
    /// `Unsupported` for words that are not known; `ENOSPC` where the devices have no space for a chunk: those before it
    /// were moved.
    pub fn balance(&self, words: &Balance, moving: Moving<'_>) -> Result<Moved> {
        let args = BalanceArgs::parse(words)?;
        pool::balance(&self.open()?, &args, moving)
    }

    /// Adds a device, whose contents are lost. Returns its number.
    ///
    /// # Errors
    /// Those of opening the filesystem for writing; `Unsupported` for a device that is too short.
    pub fn add_device(&self, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        pool::add_device(&self.open()?, device, self.clock.random_uuid())
    }

    /// Moves what is on a device to the others, and removes it. It may be missing.
    ///
    /// # Errors
    /// `ENOSPC` where the others have no space, or are too few for a profile: what was moved before stays so.
    pub fn remove_device(&self, device: DeviceId, moving: Moving<'_>) -> Result<Moved> {
        pool::remove_device(&self.open()?, device, moving)
    }

    /// Changes the length of a device, whose file becomes longer with it. What is beyond a shorter one is moved.
    ///
    /// # Errors
    /// `ENOSPC` where there is no space for it, or for a length beyond the device.
    pub fn resize_device(
        &self,
        device: DeviceId,
        total_bytes: u64,
        moving: Moving<'_>,
    ) -> Result<Moved> {
        pool::resize_device(&self.open()?, device, total_bytes, moving)
    }

    /// Puts another device in the place of one, which may be missing. What is on it is copied, and made again from other
    /// copies or parity where it cannot be read. The new one counts once it has everything: until then it is a device
    /// that missed commits, which a scrub makes whole. Where something has no copy that can be read, the old one keeps
    /// its superblock.
    ///
    /// # Errors
    /// `InvalidArgument` for a device that is too short; those of a scrub.
    pub fn replace_device(
        &self,
        device: DeviceId,
        target: &Arc<dyn BlockDevice>,
        sink: &mut dyn CheckSink,
    ) -> Result<Scrubbed> {
        // What is in a log is lost otherwise: it is replayed now.
        let fs = self.open()?;
        check_device(&fs, device)?;
        fs.sync()?;
        let newest = fs.superblock();
        let chunks = devices::chunks_on(&fs, device);
        let item = devices::item(&fs, device)?;
        let members = fs.blocks().store().members();
        drop(fs);
        let old = members.iter().find(|member| member.id == device);
        let old = old.ok_or(Condition::NotFound)?;
        let total_bytes = old.total_bytes.unwrap_or_default();
        if target.geometry().len_bytes < total_bytes {
            return Err(unsupported(
                format!(
                    "{}, a device shorter than {total_bytes} bytes,",
                    target.name()
                ),
                Some("the one that it replaces is longer"),
            ));
        }
        let others = || members.iter().filter(|member| member.id != device);
        let source = old.device.clone();
        // A superblock by which the device is known to have nothing yet.
        let mut present = others().chain([old]).filter_map(|it| it.device.as_ref());
        let first = present.next().ok_or(Condition::NotFound)?;
        let (durable, template) = superblocks::stored(&**first, newest.metadata_uuid)?;
        let stale = Superblock {
            generation: Generation(1),
            dev_item: item,
            ..newest
        };
        superblocks::clear(&**target)?;
        let mut not_copied = Ranges::default();
        if let Some(source) = &source {
            for chunk in &chunks {
                copy_stripes(&**source, &**target, (chunk, device), &mut not_copied)?;
            }
        } else {
            not_copied.add(0..u64::MAX);
        }
        superblocks::write(&**target, &stale, &template, total_bytes)?;
        let mut devices: Vec<_> = others().filter_map(|it| it.device.clone()).collect();
        // With one device alone there is nothing else to know the filesystem by.
        let is_alone = devices.is_empty();
        if is_alone {
            let whole = Superblock {
                generation: durable.generation,
                ..stale
            };
            superblocks::write(&**target, &whole, &template, total_bytes)?;
        }
        // A filesystem is known by the first superblock of the device that is named first.
        devices.push(Arc::clone(target));
        devices.sort_by_key(|device| mount::identify(&**device).is_err());
        let mut options = self.options.clone();
        options.degraded |= old.device.is_none();
        let context = mount::open(&devices, &options, &self.budget)?;
        let distrusted = Distrusted {
            stale: Vec::new(),
            not_copied: Some((device, not_copied)),
        };
        let stale = if is_alone { vec![] } else { vec![device] };
        let scrubbed = scrub_opened(&context, distrusted, stale, true, sink)?;
        if let Some(source) = source
            && !scrubbed.report.cancelled
            && scrubbed.is_whole
        {
            superblocks::clear(&*source)?;
        }
        Ok(scrubbed.named(true))
    }
}

/// Copies the stripes of a chunk on a device. Adds to `failed` what of them cannot be read.
fn copy_stripes(
    source: &dyn BlockDevice,
    target: &dyn BlockDevice,
    (chunk, device): (&ChunkItem, DeviceId),
    failed: &mut Ranges,
) -> Result<()> {
    let mut bytes = vec![0; COPY_BYTES];
    for stripe in chunk.stripes.iter().filter(|it| it.device == device) {
        let DeviceAddr(start) = stripe.offset;
        let end = start.saturating_add(chunk.stripe_len_bytes());
        let readable_end = end.min(source.geometry().len_bytes);
        let mut at = start;
        while at < readable_end {
            let left = usize::try_from(readable_end - at).unwrap_or(COPY_BYTES);
            let piece = bytes.get_mut(..left.min(COPY_BYTES)).unwrap_or_default();
            if source.read_at(at, piece).is_ok() {
                target.write_at(at, piece)?;
            } else {
                copy_sectors(source, target, at, piece, failed)?;
            }
            at = at.saturating_add(piece.len() as u64);
        }
        add(failed, at..end);
    }
    Ok(())
}

/// Copies the sectors of a range, into which `bytes` fit. Adds to `failed` those that cannot be read.
fn copy_sectors(
    source: &dyn BlockDevice,
    target: &dyn BlockDevice,
    start: u64,
    bytes: &mut [u8],
    failed: &mut Ranges,
) -> Result<()> {
    let mut at = start;
    for sector in bytes.chunks_mut(SECTOR_BYTES) {
        let end = at.saturating_add(sector.len() as u64);
        if source.read_at(at, sector).is_ok() {
            target.write_at(at, sector)?;
        } else {
            add(failed, at..end);
        }
        at = end;
    }
    Ok(())
}

/// Adds a range of which a part may be there: stripes of an image may overlap.
fn add(ranges: &mut Ranges, range: Range<u64>) {
    if range.start < range.end {
        ranges.exclude(&range);
        ranges.add(range);
    }
}
