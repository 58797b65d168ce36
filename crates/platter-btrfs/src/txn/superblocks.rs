//! Writing of superblocks: the end of a commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use platter_block::BlockDevice;
use platter_ondisk::Uuid;
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::{Handle, WriteContext, chunks};
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::{
    DiskSuperblock, RootBackup, RootPointer, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS,
};
use crate::ondisk::{Generation, Superblock, TreeId};

/// The superblock of a transaction that is closed, and what differs on the devices.
pub(super) struct ClosedSuperblock {
    superblock: Superblock,
    devices: Vec<ClosedDevice>,
}

/// A device, as the filesystem uses it.
struct ClosedDevice {
    device: Arc<dyn BlockDevice>,
    total_bytes: u64,
    bytes_used: u64,
}

/// What became of the logs that superblocks lead to.
struct LogRootsSet {
    /// One of them led to another log.
    is_changed: bool,
    /// All of them lead to this one.
    are_set: bool,
}

/// Sets the label, with the commit of this transaction.
///
/// # Errors
/// Those of the trees; the transaction is aborted.
pub(crate) fn set_label(handle: &Handle<'_>, label: Vec<u8>) -> Result<()> {
    handle.fs.superblock.lock().label = label;
    write_device_items(handle)
}

/// Sets the UUID that users see, with the commit of this transaction. Tree blocks keep theirs.
///
/// # Errors
/// Those of the trees; the transaction is aborted.
pub(crate) fn set_uuid(handle: &Handle<'_>, uuid: Uuid) -> Result<()> {
    let is_other = {
        let mut superblock = handle.fs.superblock.lock();
        superblock.fsid = uuid;
        uuid != superblock.metadata_uuid
    };
    let mut features = handle.fs.features.lock();
    features.incompat.set(Incompat::METADATA_UUID, is_other);
    drop(features);
    write_device_items(handle)
}

/// Writes the items of devices anew, so that the transaction is not empty.
pub(super) fn write_device_items(handle: &Handle<'_>) -> Result<()> {
    let members = handle.fs.blocks().store().members();
    let ids: Vec<_> = members.iter().map(|member| member.id).collect();
    handle.whole(|handle| {
        handle.has_changed.store(true, Ordering::Relaxed);
        let mut ids = ids.into_iter();
        ids.try_for_each(|id| {
            chunks::update_device_if_there(handle.fs, handle.generation, id).map(drop)
        })
    })
}

/// Takes what the superblocks of the running transaction will be. It is not changed any more.
pub(super) fn close(fs: &WriteContext, generation: Generation) -> Result<ClosedSuperblock> {
    let superblock = next_superblock(fs, generation)?;
    let removed = fs.chunks.removed_devices.lock().clone();
    let members = fs.blocks().store().members();
    let written = members.iter().filter(|it| !removed.contains(&it.id));
    let devices = written.filter_map(|member| {
        Some(ClosedDevice {
            device: Arc::clone(member.device.as_ref()?),
            total_bytes: member.total_bytes.unwrap_or_default(),
            bytes_used: chunks::allocated_bytes(fs, member.id),
        })
    });
    let devices = devices.collect();
    *fs.superblock.lock() = superblock.clone();
    Ok(ClosedSuperblock {
        superblock,
        devices,
    })
}

/// Makes the tree blocks durable, then the superblocks that lead to them.
pub(super) fn write_all(fs: &WriteContext, closed: &ClosedSuperblock) -> Result<()> {
    let store = fs.blocks().store();
    store.flush()?;
    for device in &closed.devices {
        write_copies(device, &closed.superblock)?;
    }
    Ok(store.flush()?)
}

/// Makes log trees durable, then the superblocks of the last commit that lead to them: on each device the first
/// copy alone, as in the kernel. No transaction is being written. Returns `false` if one of them is not that of the
/// last commit.
pub(super) fn write_log(fs: &WriteContext, log_root: RootPointer) -> Result<bool> {
    let store = fs.blocks().store();
    store.flush()?;
    let are_set = set_log_root(fs, Some(log_root))?.are_set;
    store.flush()?;
    Ok(are_set)
}

/// Writes the superblock of the last commit to the devices that it had not reached yet. All that it leads to was durable
/// on all of them before. So a commit that fails on one of them leaves that one as old as a crash between superblocks does.
///
/// # Errors
/// Those of the devices.
pub(crate) fn agree_on_commit(fs: &WriteContext) -> Result<()> {
    let store = fs.blocks().store();
    let superblock = fs.superblock();
    let is_older = |generation: Generation| generation < superblock.generation;
    let mut are_written = false;
    for member in store.members().iter() {
        let is_older = member.generation.is_some_and(is_older);
        let Some(device) = member.device.as_ref().filter(|_| is_older) else {
            continue;
        };
        let closed = ClosedDevice {
            device: Arc::clone(device),
            total_bytes: member.total_bytes.unwrap_or_default(),
            bytes_used: chunks::allocated_bytes(fs, member.id),
        };
        write_copies(&closed, &superblock)?;
        are_written = true;
    }
    if are_written {
        store.flush()?;
    }
    Ok(())
}

/// Has all devices lead to the log that is replayed, before its blocks can be written over where others do not.
///
/// # Errors
/// Those of the devices.
pub(crate) fn agree_on_log(fs: &WriteContext) -> Result<()> {
    if set_log_root(fs, fs.context.superblock.log_root)?.is_changed {
        fs.blocks().store().flush()?;
    }
    Ok(())
}

/// Sets the log of each device's first superblock, if that is of the last commit. One that is corrupt gets its
/// contents by the next commit.
fn set_log_root(fs: &WriteContext, log_root: Option<RootPointer>) -> Result<LogRootsSet> {
    let mut found = LogRootsSet {
        is_changed: false,
        are_set: true,
    };
    let generation = fs.superblock.lock().generation;
    for member in fs.blocks().store().members().iter() {
        let Some(device) = &member.device else {
            continue;
        };
        let offset = SUPERBLOCK_OFFSETS[0];
        let mut bytes = [0; SUPERBLOCK_BYTES];
        device.read_at(offset, &mut bytes)?;
        let disk: DiskSuperblock = zerocopy::transmute!(bytes);
        let old = Superblock::decode(&disk, offset).ok();
        let Some(old) = old.filter(|old| old.generation == generation) else {
            found.are_set = false;
            continue;
        };
        if old.log_root != log_root {
            let superblock = Superblock { log_root, ..old };
            let disk = superblock.encode(&disk, offset);
            device.write_at(offset, disk.as_bytes())?;
            found.is_changed = true;
        }
    }
    Ok(found)
}

/// Keeps the superblocks of the last commit as they are on the devices until the handle ends, which changes at most so
/// many tree blocks.
///
/// # Errors
/// Why nothing is written any more.
pub(crate) fn keep(fs: &WriteContext, credits: u32) -> Result<Handle<'_>> {
    // The next commit waits for it.
    let handle = fs.begin_unreserved(credits)?;
    handle.wait_for_earlier()?;
    handle.require_commit();
    fs.logs.wait();
    Ok(handle)
}

/// The superblock of this commit. Its device item is that of some device.
fn next_superblock(fs: &WriteContext, generation: Generation) -> Result<Superblock> {
    let old = fs.superblock();
    let root = |id| -> Result<RootPointer> { Ok(fs.tree(id)?.lock().now.tree.root) };
    let features = *fs.features.lock();
    let mut next = Superblock {
        generation,
        root: root(TreeId::ROOT)?,
        chunk_root: root(TreeId::CHUNK)?,
        log_root: None,
        features,
        bytes_used: fs.groups.used_bytes(),
        sys_chunks: fs.chunks.system(),
        ..old.clone()
    };
    if old.uuid_tree_generation == old.generation.0 {
        next.uuid_tree_generation = generation.0;
    }
    let backup = RootBackup {
        tree_root: next.root,
        chunk_root: next.chunk_root,
        extent_root: root(TreeId::EXTENT)?,
        fs_root: root(TreeId::FS)?,
        dev_root: root(TreeId::DEV)?,
        csum_root: root(TreeId::CSUM)?,
        total_bytes: next.total_bytes,
        bytes_used: next.bytes_used,
        device_count: next.device_count,
    };
    let is_last = |backup: &RootBackup| backup.tree_root.generation == old.generation;
    let last = old.backups.iter().rposition(is_last);
    let slot = last.map_or(0, |last| (last + 1) % old.backups.len());
    if let Some(place) = next.backups.get_mut(slot) {
        *place = backup;
    }
    Ok(next)
}

/// Writes the copies that a device has space for.
fn write_copies(closed: &ClosedDevice, superblock: &Superblock) -> Result<()> {
    let &ClosedDevice {
        ref device,
        total_bytes,
        bytes_used,
    } = closed;
    let (own, old) = stored(&**device, superblock.metadata_uuid)?;
    let superblock = Superblock {
        dev_item: DevItem {
            total_bytes,
            bytes_used,
            ..own.dev_item
        },
        ..superblock.clone()
    };
    let len_bytes = device.geometry().len_bytes;
    write_below(&**device, &superblock, &old, total_bytes.min(len_bytes))
}

/// What a device has in its place of the superblock: the newest of the other copies where the first is not whole, since
/// power failed while it was written.
pub(crate) fn stored(
    device: &dyn BlockDevice,
    metadata_uuid: Uuid,
) -> Result<(Superblock, DiskSuperblock)> {
    let [first, others @ ..] = SUPERBLOCK_OFFSETS;
    read(device, first).or_else(|error| {
        let others = others.into_iter().filter_map(|at| read(device, at).ok());
        // What was on the device before it was of this filesystem may have left copies.
        let own = others.filter(|(old, _)| old.metadata_uuid == metadata_uuid);
        own.max_by_key(|(old, _)| old.generation).ok_or(error)
    })
}

fn read(device: &dyn BlockDevice, offset: u64) -> Result<(Superblock, DiskSuperblock)> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(offset, &mut bytes)?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    Ok((Superblock::decode(&disk, offset)?, disk))
}

/// Writes the copies that end before `end`.
fn write_below(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    template: &DiskSuperblock,
    end: u64,
) -> Result<()> {
    for offset in SUPERBLOCK_OFFSETS {
        if offset + (SUPERBLOCK_BYTES as u64) < end {
            device.write_at(offset, superblock.encode(template, offset).as_bytes())?;
        }
    }
    Ok(())
}

/// Writes the copies of a superblock that a device has space for, and makes them durable.
pub(crate) fn write(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    template: &DiskSuperblock,
    total_bytes: u64,
) -> Result<()> {
    write_below(device, superblock, template, total_bytes)?;
    Ok(device.flush()?)
}

/// Clears all superblocks of a device.
pub(crate) fn clear(device: &dyn BlockDevice) -> Result<()> {
    let len_bytes = device.geometry().len_bytes;
    for offset in SUPERBLOCK_OFFSETS {
        if offset + SUPERBLOCK_BYTES as u64 <= len_bytes {
            device.write_at(offset, &[0; SUPERBLOCK_BYTES])?;
        }
    }
    Ok(device.flush()?)
}
