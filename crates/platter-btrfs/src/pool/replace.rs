//! A device that takes the place of another one, whose number and UUID it gets.
//!
//! What is written goes to both from the beginning; what was there before is copied a chunk at a time, whose group is held.
//! Until the end the new device has no superblock, and the old one has everything: after a crash the new one is as if it
//! had never been there.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::{BlockDevice, IoError};
use platter_vfs::devices::Scrubbed;
use platter_vfs::{CheckProgress, CheckSink, Condition, Error, Result};

use super::{check_device, unsupported};
use crate::chunk::{Member, MirrorDevice, Placement};
use crate::context::ListedExtent;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem};
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use crate::ondisk::{DeviceAddr, DeviceId, LogicalAddr, Superblock};
use crate::scrub::ScrubCounts;
use crate::txn::held::HeldGroup;
use crate::txn::{WriteContext, devices, restripe, superblocks};

/// What is copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Puts `target` in the place of a device, which is not missing.
///
/// # Errors
/// `Unsupported` for a device that is missing, or a target that is shorter; `Corrupt` where no copy of something is
/// right; `ENOSPC` where other groups have no space while one is copied. The old device is in use then.
pub(crate) fn replace_device(
    fs: &WriteContext,
    device: DeviceId,
    target: &Arc<dyn BlockDevice>,
    sink: &mut dyn CheckSink,
) -> Result<Scrubbed> {
    let old = member(fs, device)?;
    let total_bytes = old.total_bytes.unwrap_or_default();
    let Some(source) = old.device else {
        return Err(unsupported(
            "replacing a missing device of a mount".to_owned(),
            Some("replace it while the filesystem is not mounted"),
        ));
    };
    if target.geometry().len_bytes < total_bytes {
        return Err(unsupported(
            format!(
                "{}, a device shorter than {total_bytes} bytes,",
                target.name()
            ),
            Some("the one that it replaces is longer"),
        ));
    }
    if is_member(fs, target) {
        let name = target.name();
        return Err(unsupported(
            format!("{name}: replacing a device by one of the same filesystem"),
            None,
        ));
    }
    superblocks::clear(&**target)?;
    let mirror = Arc::new(MirrorDevice::new(Arc::clone(&source), Arc::clone(target)));
    use_device(fs, device, Arc::<MirrorDevice>::clone(&mirror));
    let replacement = Replacement {
        fs,
        device,
        source: &source,
        target,
        mirror: &mirror,
    };
    let mut counts = ScrubCounts::default();
    let copied = copy_all(fs, device, (&*source, &**target), &mut counts, sink);
    let is_cancelled = match copied {
        Ok(true) => replacement.finish().map(|()| false)?,
        Ok(false) => replacement.give_up().map(|()| true)?,
        Err(error) => {
            // The cause is what is reported.
            let _ = replacement.give_up();
            return Err(error);
        }
    };
    Ok(counts.scrubbed(is_cancelled, true))
}

/// Whether a device is one of the filesystem, be it under another name.
fn is_member(fs: &WriteContext, target: &Arc<dyn BlockDevice>) -> bool {
    // One that was replaced, and has its superblock still, has that of an older commit.
    let generation = fs.committed();
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let read = target.read_at(SUPERBLOCK_OFFSETS[0], &mut bytes);
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    let found = Superblock::decode(&disk, SUPERBLOCK_OFFSETS[0]).ok();
    let found = found.filter(|found| read.is_ok() && found.generation >= generation);
    let members = fs.blocks().store().members();
    members.iter().any(|member| {
        let is_same = |device: &Arc<dyn BlockDevice>| Arc::ptr_eq(device, target);
        let uuid = found.as_ref().map(|found| found.dev_item.uuid);
        member.device.as_ref().is_some_and(is_same)
            || member.device.is_some() && uuid == Some(member.uuid)
    })
}

fn member(fs: &WriteContext, device: DeviceId) -> Result<Member> {
    check_device(fs, device)?;
    let members = fs.blocks().store().members();
    let found = members.iter().find(|member| member.id == device);
    Ok(found.ok_or(Condition::NotFound)?.clone())
}

/// Has all that is read and written from now on use this device.
fn use_device(fs: &WriteContext, id: DeviceId, device: Arc<dyn BlockDevice>) {
    fs.blocks().store().change_members(|members| {
        if let Some(member) = members.find_mut(id) {
            member.device = Some(device);
        }
    });
}

/// Copies what chunks have on the device. Returns `false` if the listener ended it.
fn copy_all(
    fs: &WriteContext,
    device: DeviceId,
    (source, target): (&dyn BlockDevice, &dyn BlockDevice),
    counts: &mut ScrubCounts,
    sink: &mut dyn CheckSink,
) -> Result<bool> {
    // What is allocated from now on is written to both.
    let chunks = devices::chunks_on(fs, device);
    let total = chunks.len() as u64;
    for (done, chunk) in (0..).zip(&chunks) {
        let pass = "chunks";
        if sink.progress(CheckProgress { pass, done, total }) == ControlFlow::Break(()) {
            return Ok(false);
        }
        let Some(_held) = HeldGroup::hold(fs, chunk.start)? else {
            continue;
        };
        count_extents(fs, chunk, counts)?;
        if chunk.profile.parity() > 0 {
            copy_stripes(fs, source, target, (chunk, device))?;
        } else {
            let write = |at, bytes: &[u8]| write_stripes(target, chunk, device, at, bytes);
            restripe::copy_chunk(fs, chunk, &write)?;
        }
    }
    Ok(true)
}

/// Counts what a chunk has, whose group is held.
fn count_extents(fs: &WriteContext, chunk: &ChunkItem, counts: &mut ScrubCounts) -> Result<()> {
    let mut left = chunk.start.0..chunk.start.0.saturating_add(chunk.len_bytes);
    loop {
        let extents = ListedExtent::next_of(fs.context(), &mut left)?;
        if extents.is_empty() {
            return Ok(());
        }
        for extent in extents {
            let (extents, bytes) = if extent.is_tree_block {
                (&mut counts.tree_extents, &mut counts.tree_bytes)
            } else {
                (&mut counts.data_extents, &mut counts.data_bytes)
            };
            *extents += 1;
            *bytes = bytes.saturating_add(extent.len_bytes);
        }
    }
}

/// Writes what stripes of a chunk have on a device, and no others.
fn write_stripes(
    target: &dyn BlockDevice,
    chunk: &ChunkItem,
    device: DeviceId,
    at: u64,
    bytes: &[u8],
) -> Result<()> {
    let (mut at, mut left) = (at, bytes);
    while !left.is_empty() {
        let segment = chunk.segment(LogicalAddr(at), left.len() as u64);
        let len = usize::try_from(segment.len_bytes).unwrap_or(left.len());
        let (now, later) = left.split_at(len.clamp(1, left.len()));
        if let Placement::Copies { first, count } = segment.placement {
            for index in first..first + count {
                if chunk
                    .stripes
                    .get(index)
                    .is_some_and(|it| it.device == device)
                {
                    target.write_at(chunk.device_addr(index, segment.offset).0, now)?;
                }
            }
        }
        at = at.saturating_add(now.len() as u64);
        left = later;
    }
    Ok(())
}

/// Copies the stripes of a chunk with parity on a device as they are.
fn copy_stripes(
    fs: &WriteContext,
    source: &dyn BlockDevice,
    target: &dyn BlockDevice,
    (chunk, device): (&ChunkItem, DeviceId),
) -> Result<()> {
    let mut bytes = vec![0; COPY_BYTES];
    let stripes = chunk.stripes.iter().enumerate();
    for (index, stripe) in stripes.filter(|(_, it)| it.device == device) {
        let DeviceAddr(start) = stripe.offset;
        let end = start.saturating_add(chunk.stripe_len_bytes());
        let mut at = start;
        while at < end {
            let len = usize::try_from(end - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            let piece = bytes.get_mut(..len).unwrap_or_default();
            if source.read_at(at, piece).is_ok() {
                restripe::while_thawed(fs, || Ok(target.write_at(at, piece)?))?;
            } else {
                let place = (chunk, index, at - start);
                copy_units(fs, (source, target), place, piece)?;
            }
            at = at.saturating_add(len as u64);
        }
    }
    Ok(())
}

/// Copies a part of a stripe, which cannot be read as a whole, in the units in which it is verified. Those that cannot
/// be read are reconstructed.
fn copy_units(
    fs: &WriteContext,
    (source, target): (&dyn BlockDevice, &dyn BlockDevice),
    (chunk, stripe, offset): (&ChunkItem, usize, u64),
    bytes: &mut [u8],
) -> Result<()> {
    let superblock = &fs.context().superblock;
    let unit_bytes = if chunk.flags.contains(BlockGroupFlags::DATA) {
        superblock.sector_bytes
    } else {
        superblock.node_bytes
    };
    let mut next = offset;
    for unit in bytes.chunks_mut(unit_bytes as usize) {
        let (offset, len_bytes) = (next, unit.len() as u64);
        next = next.saturating_add(len_bytes);
        let at = chunk.device_addr(stripe, offset).0;
        let restored;
        let bytes = if source.read_at(at, unit).is_ok() {
            &*unit
        } else {
            restored = restripe::restore_stripe(fs, chunk, (stripe, offset), len_bytes)?;
            let Some(restored) = &restored else {
                continue;
            };
            &restored[..]
        };
        restripe::while_thawed(fs, || Ok(target.write_at(at, bytes)?))?;
    }
    Ok(())
}

/// A device, and what is to take its place.
#[derive(Debug, Clone, Copy)]
struct Replacement<'r> {
    fs: &'r WriteContext,
    device: DeviceId,
    source: &'r Arc<dyn BlockDevice>,
    target: &'r Arc<dyn BlockDevice>,
    mirror: &'r MirrorDevice,
}

impl Replacement<'_> {
    /// Goes on with the source alone.
    ///
    /// # Errors
    /// Those of the target, which may have a superblock of the device.
    fn give_up(&self) -> Result<()> {
        self.mirror.forsake();
        use_device(self.fs, self.device, Arc::clone(self.source));
        superblocks::clear(&**self.target)
    }

    /// Makes the target the device, while no superblock is written otherwise.
    ///
    /// # Errors
    /// Those of the target, which is not the device then; that the source has a superblock left, which is no reason to
    /// use it.
    fn finish(&self) -> Result<()> {
        let synced = self.fs.sync();
        let kept = synced.and_then(|()| superblocks::keep(self.fs, 0));
        let ready = match &kept {
            Ok(_) => self.make_target_whole(),
            Err(error) => Err(error.clone()),
        };
        if let Err(error) = ready {
            // A commit waits until the target is not written any more: it must not meet its errors, nor a superblock there
            // be that of an older commit.
            let _ = self.give_up();
            return Err(error);
        }
        // From here on the target alone is the device, whatever happens.
        let cleared = superblocks::clear(&**self.source);
        use_device(self.fs, self.device, Arc::clone(self.target));
        drop(kept);
        cleared.map_err(still_has_a_superblock)
    }

    /// Makes the target hold all that the source has, also its superblocks, and relies on it.
    fn make_target_whole(&self) -> Result<()> {
        let name = self.target.name();
        let failed = || unsupported(format!("{name}: writing failed"), None);
        self.target.flush()?;
        if self.mirror.has_failed() {
            return Err(failed());
        }
        let uuid = self.fs.superblock().metadata_uuid;
        let (superblock, disk) = superblocks::stored(&**self.source, uuid)?;
        let total_bytes = superblock.dev_item.total_bytes;
        superblocks::write(&**self.target, &superblock, &disk, total_bytes)?;
        if self.mirror.rely() {
            Ok(())
        } else {
            Err(failed())
        }
    }
}

/// The error of a device that was replaced, and cannot be cleared.
fn still_has_a_superblock(error: Error) -> Error {
    let Error::Io(error) = error else {
        return error;
    };
    let reason = format!(
        "replaced; the old device still has a superblock: {}",
        error.source
    );
    let source = Arc::new(io::Error::new(error.source.kind(), reason));
    IoError { source, ..*error }.into()
}
