//! A device that takes the place of another one, whose number and UUID it gets.
//!
//! What is written goes to both from the beginning; what was there before is copied a chunk at a time, whose group is held.
//! Until the end the new device has no superblock, and the old one has everything: after a crash the new one is as if it
//! had never been there.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::devices::Scrubbed;
use platter_vfs::{CheckProgress, CheckSink, Condition, Result};

use super::unsupported;
use crate::chunk::{Member, MirrorDevice, Placement};
use crate::ondisk::chunk_item::ChunkItem;
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use crate::ondisk::{DeviceId, LogicalAddr, Superblock};
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
            format!("a device shorter than {total_bytes} bytes"),
            Some("the one that it replaces is longer"),
        ));
    }
    superblocks::clear(&**target)?;
    let mirror = Arc::new(MirrorDevice::new(Arc::clone(&source), Arc::clone(target)));
    use_device(fs, device, Arc::<MirrorDevice>::clone(&mirror));
    let replaced = copy_all(fs, device, &*source, &**target, sink).and_then(|is_whole| {
        let cleared = if is_whole {
            Some(finish(fs, device, &source, target, &mirror)?)
        } else {
            None
        };
        Ok(cleared)
    });
    let mut left = Ok(());
    if !matches!(replaced, Ok(Some(_))) {
        use_device(fs, device, source);
        // What is left of a superblock there would be that of the device.
        left = superblocks::clear(&**target);
    }
    let replaced = replaced?;
    left?;
    let is_cancelled = match replaced {
        // That the old one has a superblock left is an error, and no reason to use it.
        Some(cleared) => cleared.map(|()| false)?,
        None => true,
    };
    Ok(Scrubbed {
        is_cancelled,
        repairs: true,
        ..Scrubbed::default()
    })
}

fn member(fs: &WriteContext, device: DeviceId) -> Result<Member> {
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
    source: &dyn BlockDevice,
    target: &dyn BlockDevice,
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
        if chunk.profile.parity() > 0 {
            copy_stripes(source, target, chunk, device)?;
        } else {
            let write = |at, bytes: &[u8]| write_stripes(target, chunk, device, at, bytes);
            restripe::copy_chunk(fs, chunk, &write)?;
        }
    }
    Ok(true)
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

/// Copies the stripes of a chunk on a device as they are.
fn copy_stripes(
    source: &dyn BlockDevice,
    target: &dyn BlockDevice,
    chunk: &ChunkItem,
    device: DeviceId,
) -> Result<()> {
    let mut bytes = vec![0; COPY_BYTES];
    for stripe in chunk.stripes.iter().filter(|it| it.device == device) {
        let end = stripe.offset.0.saturating_add(chunk.stripe_len_bytes());
        let mut at = stripe.offset.0;
        while at < end {
            let len = usize::try_from(end - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            let piece = bytes.get_mut(..len).unwrap_or_default();
            source.read_at(at, piece)?;
            target.write_at(at, piece)?;
            at = at.saturating_add(len as u64);
        }
    }
    Ok(())
}

/// Makes the target the device, while no superblock is written otherwise. Returns whether the source has no superblock
/// any more.
///
/// # Errors
/// Those of the target, which is not the device then.
fn finish(
    fs: &WriteContext,
    device: DeviceId,
    source: &Arc<dyn BlockDevice>,
    target: &Arc<dyn BlockDevice>,
    mirror: &MirrorDevice,
) -> Result<Result<()>> {
    fs.sync()?;
    let handle = superblocks::keep(fs)?;
    target.flush()?;
    let is_whole = mirror.rely();
    if !is_whole {
        let name = target.name();
        return Err(unsupported(format!("{name}: writing failed"), None));
    }
    let mut bytes = [0; SUPERBLOCK_BYTES];
    source.read_at(SUPERBLOCK_OFFSETS[0], &mut bytes)?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    let superblock = Superblock::decode(&disk, SUPERBLOCK_OFFSETS[0])?;
    let total_bytes = superblock.dev_item.total_bytes;
    superblocks::write(&**target, &superblock, &disk, total_bytes)?;
    // From here on the target alone is the device, whatever happens.
    let cleared = superblocks::clear(&**source);
    use_device(fs, device, Arc::clone(target));
    drop(handle);
    Ok(cleared)
}
