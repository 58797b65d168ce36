//! Devices that are added, removed, replaced, and made longer or shorter.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::{CheckReport, CheckSink, Condition, Result};

use super::{Moved, Moving, PoolRequest, check_device, move_chunks};
use crate::mount::{self, open_for_writing, unsupported};
use crate::ondisk::chunk_item::ChunkItem;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use crate::ondisk::{DeviceAddr, DeviceId, Generation, Superblock};
use crate::scrub::{ScrubCounts, scrub_opened};
use crate::txn::{Placing, WriteContext, WriteOptions, devices, restripe, superblocks};

/// The shortest device.
const DEVICE_BYTES_MIN: u64 = 16 << 20;
/// The shortest length that a device is made, as in the kernel.
const SHRUNK_BYTES_MIN: u64 = 256 << 20;
/// What is copied at once.
const COPY_BYTES: usize = 1 << 20;

impl PoolRequest {
    /// Opens the filesystem for writing.
    pub(super) fn open(&self) -> Result<WriteContext> {
        let writing = WriteOptions::default();
        let clock = Arc::clone(&self.clock);
        open_for_writing(&self.devices, &self.options, writing, &self.budget, clock)
    }

    /// Adds a device, whose contents are lost. Returns its number.
    ///
    /// # Errors
    /// Those of opening the filesystem for writing; `InvalidArgument` for a device that is too short.
    pub fn add_device(&self, device: &Arc<dyn BlockDevice>) -> Result<u64> {
        let fs = self.open()?;
        let superblock = fs.superblock();
        let sector = superblock.sector_bytes;
        let len_bytes = device.geometry().len_bytes;
        let total_bytes = len_bytes - len_bytes % u64::from(sector);
        if total_bytes < DEVICE_BYTES_MIN {
            return Err(unsupported(
                format!("a device of {len_bytes} bytes"),
                Some("it is too short"),
            ));
        }
        let members = fs.blocks().store().members();
        let last = members.iter().map(|member| member.id.0).max();
        let id = last.and_then(|last| last.checked_add(1));
        let id = id.ok_or(Condition::InvalidArgument)?;
        let item = DevItem {
            id: DeviceId(id),
            total_bytes,
            bytes_used: 0,
            generation: Generation(0),
            sector_bytes: sector,
            io: (sector, sector),
            kind: 0,
            start_offset: 0,
            hints: (0, 0, 0),
            uuid: self.clock.random_uuid(),
            fsid: superblock.metadata_uuid,
        };
        devices::add(&fs, device, item)?;
        Ok(id)
    }

    /// Moves what is on a device to the others, and removes it. It may be missing.
    ///
    /// # Errors
    /// `ENOSPC` where the others have no space, or are too few for a profile: what was moved before stays so.
    pub fn remove_device(&self, device: DeviceId, moving: Moving<'_>) -> Result<Moved> {
        let fs = self.open()?;
        check_device(&fs, device)?;
        if fs.blocks().store().members().iter().count() < 2 {
            return Err(unsupported("removing the only device".to_owned(), None));
        }
        restripe::set_placing(
            &fs,
            Placing {
                without: vec![device],
                ..Placing::default()
            },
        );
        let wanted = |chunk: &ChunkItem, _: u64| {
            let is_on = chunk.stripes.iter().any(|stripe| stripe.device == device);
            is_on.then_some(chunk.profile)
        };
        let moved = move_chunks(&fs, moving, &wanted, &|_| u64::MAX)?;
        if !moved.is_cancelled && devices::chunks_on(&fs, device).is_empty() {
            devices::remove(&fs, device)?;
        }
        Ok(moved)
    }

    /// Changes the length of a device. What is beyond a shorter one is moved.
    ///
    /// # Errors
    /// `ENOSPC` where there is no space for it; `InvalidArgument` for a length beyond the device.
    pub fn resize_device(
        &self,
        device: DeviceId,
        total_bytes: u64,
        moving: Moving<'_>,
    ) -> Result<Moved> {
        let fs = self.open()?;
        check_device(&fs, device)?;
        let sector = u64::from(fs.superblock().sector_bytes);
        let total_bytes = total_bytes - total_bytes % sector;
        let members = fs.blocks().store().members();
        let member = members.iter().find(|member| member.id == device);
        let member = member.ok_or(Condition::NotFound)?;
        let before = member.total_bytes.unwrap_or_default();
        let present = member.device.as_ref().ok_or(Condition::NotFound)?;
        if total_bytes > present.geometry().len_bytes {
            return Err(Condition::NoSpace.into());
        }
        if total_bytes < before && total_bytes < SHRUNK_BYTES_MIN {
            let feature = format!("a device of {total_bytes} bytes");
            return Err(unsupported(feature, Some("256 MiB is the least")));
        }
        let mut moved = Moved::default();
        if total_bytes < before {
            restripe::set_placing(
                &fs,
                Placing {
                    limits: vec![(device, total_bytes)],
                    ..Placing::default()
                },
            );
            let wanted = |chunk: &ChunkItem, _: u64| {
                let len_bytes = chunk.stripe_len_bytes();
                let is_beyond = chunk.stripes.iter().any(|stripe| {
                    let end = stripe.offset.0.saturating_add(len_bytes);
                    stripe.device == device && end > total_bytes
                });
                is_beyond.then_some(chunk.profile)
            };
            moved = move_chunks(&fs, moving, &wanted, &|_| u64::MAX)?;
        }
        if !moved.is_cancelled && total_bytes != before {
            devices::set_size(&fs, device, total_bytes)?;
        }
        Ok(moved)
    }

    /// Puts another device in the place of one, which may be missing. What is on it is copied, and made again from other
    /// copies or parity where it cannot be read. The new one counts once it has everything: until then it is a device
    /// that missed commits, which a scrub makes whole.
    ///
    /// # Errors
    /// `InvalidArgument` for a device that is too short; those of a scrub.
    pub fn replace_device(
        &self,
        device: DeviceId,
        target: &Arc<dyn BlockDevice>,
        sink: &mut dyn CheckSink,
    ) -> Result<(ScrubCounts, CheckReport)> {
        // What is in a log is lost otherwise: it is replayed now.
        let fs = self.open()?;
        check_device(&fs, device)?;
        fs.sync()?;
        let newest = fs.superblock();
        let chunks = devices::chunks_on(&fs, device);
        let item = devices::item(&fs, device)?;
        let members = fs.blocks().store().members().clone();
        drop(fs);
        let old = members.iter().find(|member| member.id == device);
        let old = old.ok_or(Condition::NotFound)?;
        let total_bytes = old.total_bytes.unwrap_or_default();
        if target.geometry().len_bytes < total_bytes {
            return Err(unsupported(
                format!("a device shorter than {total_bytes} bytes"),
                Some("the one that it replaces is longer"),
            ));
        }
        let others = || members.iter().filter(|member| member.id != device);
        let source = old.device.clone();
        // A superblock by which the device is known to have nothing yet.
        let mut present = others().chain([old]).filter_map(|it| it.device.as_ref());
        let first = present.next().ok_or(Condition::NotFound)?;
        let mut bytes = [0; SUPERBLOCK_BYTES];
        first.read_at(SUPERBLOCK_OFFSETS[0], &mut bytes)?;
        let template: DiskSuperblock = zerocopy::transmute!(bytes);
        let stale = Superblock {
            generation: Generation(1),
            dev_item: item,
            ..newest
        };
        superblocks::clear(&**target)?;
        let mut is_copied = source.is_some();
        if let Some(source) = &source {
            for chunk in &chunks {
                is_copied &= copy_stripes(&**source, &**target, chunk, device)?;
            }
        }
        superblocks::write(&**target, &stale, &template, total_bytes)?;
        let mut devices: Vec<_> = others().filter_map(|it| it.device.clone()).collect();
        // With one device alone there is nothing else to know the filesystem by.
        let is_alone = devices.is_empty();
        if is_alone {
            let whole = Superblock {
                generation: newest_generation(&template)?,
                ..stale
            };
            superblocks::write(&**target, &whole, &template, total_bytes)?;
        }
        devices.push(Arc::clone(target));
        let mut options = self.options.clone();
        options.degraded |= old.device.is_none();
        let context = mount::open(&devices, &options, &self.budget)?;
        let distrusted = if is_copied { vec![] } else { vec![device] };
        let stale = if is_alone { vec![] } else { vec![device] };
        let scrubbed = scrub_opened(&context, distrusted, stale, true, sink)?;
        let (counts, report) = &scrubbed;
        if let Some(source) = source
            && !report.cancelled
            && counts.uncorrectable_errors == 0
        {
            superblocks::clear(&*source)?;
        }
        Ok(scrubbed)
    }
}

fn newest_generation(template: &DiskSuperblock) -> Result<Generation> {
    Ok(Superblock::decode(template, SUPERBLOCK_OFFSETS[0])?.generation)
}

/// Copies the stripes of a chunk on a device. Returns whether all of it could be read.
fn copy_stripes(
    source: &dyn BlockDevice,
    target: &dyn BlockDevice,
    chunk: &ChunkItem,
    device: DeviceId,
) -> Result<bool> {
    let mut bytes = vec![0; COPY_BYTES];
    let mut is_whole = true;
    for stripe in chunk.stripes.iter().filter(|it| it.device == device) {
        let DeviceAddr(start) = stripe.offset;
        let end = start.saturating_add(chunk.stripe_len_bytes());
        let mut at = start;
        while at < end {
            let len = usize::try_from(end - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            let piece = bytes.get_mut(..len).unwrap_or_default();
            if source.read_at(at, piece).is_ok() {
                target.write_at(at, piece)?;
            } else {
                is_whole = false;
            }
            at = at.saturating_add(len as u64);
        }
    }
    Ok(is_whole)
}
