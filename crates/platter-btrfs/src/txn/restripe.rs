//! Chunks that are moved: their bytes go to other stripes, of the same profile or another one, and keep their addresses.
//!
//! What refers to extents refers to addresses, so nothing but the chunk itself changes, in one commit: before it the
//! filesystem is read from the old stripes, after it from the new ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::chunks::{Hole, Shape, free_of, hole};
use super::data_extents::{self, DataRule};
use super::held::HeldGroup;
use super::placing::Placing;
use super::{Handle, WriteContext, chunks};
use crate::block_group::BlockGroup;
use crate::chunk::{ChunkMap, FindVerifier, Member, Restored, RowVerifier, Unverified};
use crate::context::ListedExtent;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem, Profile, STRIPE_BYTES, Stripe};
use crate::ondisk::key::ItemKind;
use crate::ondisk::superblock::SUPERBLOCK_OFFSETS;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::types::CHUNK_OBJECT;
use crate::ondisk::{DeviceAddr, Generation, Key, LogicalAddr, TreeId};

/// Tree blocks that the change of a chunk copies at most.
const CREDITS: u32 = 256;
/// Data that is copied at once.
const COPY_BYTES: u64 = 1 << 20;

/// Chunks are placed in some way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Placed<'f>(&'f WriteContext);

/// Says where chunks are placed from now on: also those that are being planned.
#[must_use]
pub(crate) fn set_placing(fs: &WriteContext, placing: Placing) -> Placed<'_> {
    let _turn = fs.chunks.turn.lock();
    *fs.chunks.placing.lock() = placing;
    Placed(fs)
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        *self.0.chunks.placing.lock() = Placing::default();
    }
}

/// Moves the chunk of a group that is held to new stripes, of a profile. What was done is durable then. The caller has no
/// handle, and moves one at a time.
///
/// # Errors
/// `ENOSPC` where the devices have no space for it; `Corrupt` where something in it cannot be read: then nothing was
/// changed.
pub(super) fn move_held(fs: &WriteContext, held: &HeldGroup<'_>, profile: Profile) -> Result<()> {
    let moved = restripe_held(fs, held.group(), profile);
    if fs.failure().is_none() {
        fs.chunks.release_stripes();
    }
    moved
}

fn restripe_held(fs: &WriteContext, group: &BlockGroup, profile: Profile) -> Result<()> {
    let store = fs.blocks().store();
    let (old, new) = {
        let _turn = fs.chunks.turn.lock();
        let map = store.map();
        let old = map.find(group.start())?;
        let new = plan_replaced(fs, &map, old, profile);
        let new = new.or_else(|| plan_restriped(fs, &map, old, profile));
        let new = new.ok_or(Condition::NoSpace)?;
        fs.chunks.keep_stripes(&new);
        (old.clone(), new)
    };
    let write = |at: u64, bytes: &[u8]| write_restriped(fs, &new, at, bytes);
    copy_chunk(fs, &old, &write)?;
    // Blocks that were replaced meanwhile may not be copied: the trees of the last commit, which are read until the next
    // one, must not have them. All that these have here now was there to be copied, since nothing was allocated here.
    fs.sync()?;
    let handle = fs.begin_unreserved(CREDITS)?;
    if new.flags.contains(BlockGroupFlags::SYSTEM) {
        fs.chunks.replace_system(&new)?;
    }
    fs.chunks.keep_stripes(&old);
    let replaced = store.replace_chunk(new.clone());
    let readers = replaced.inspect_err(|error| fs.abort(&(*error).into()))?;
    let changed = change_chunk(fs, &handle, group, &old, &new);
    changed.inspect_err(|error| fs.abort(error))?;
    drop(handle);
    fs.sync()?;
    readers.wait();
    Ok(())
}

/// The same chunk with other stripes in the place of those that may not be where they are. `None` if there is none
/// such, or no space for it, and where all have to be written: with parity, and two copies on one device.
fn plan_replaced(
    fs: &WriteContext,
    map: &ChunkMap,
    old: &ChunkItem,
    profile: Profile,
) -> Option<ChunkItem> {
    if old.profile != profile || profile.parity() > 0 || profile == Profile::Dup {
        return None;
    }
    let placing = fs.chunks.placing.lock().clone();
    let members = fs.blocks().store().members();
    let stripe_bytes = old.stripe_len_bytes();
    let may_stay = |stripe: &Stripe| {
        let member = members.of_stripe(stripe);
        member.is_some_and(|member| {
            let end = stripe.offset.0.saturating_add(stripe_bytes);
            !placing.without.contains(&member.id) && end <= chunks::limit_of(member, &placing)
        })
    };
    let mut new = old.clone();
    for (index, stripe) in old.stripes.iter().enumerate() {
        if may_stay(stripe) {
            continue;
        }
        let is_taken = |member: &Member| {
            let others = new.stripes.iter().enumerate();
            others
                .filter(|(other, _)| *other != index)
                .any(|(_, it)| it.device == member.id)
        };
        let usable = members.iter().filter(|member| {
            let is_wanted = !placing.without.contains(&member.id);
            member.device.is_some() && is_wanted && !is_taken(member)
        });
        let best = best_hole(fs, map, usable, stripe_bytes, &placing)?;
        *new.stripes.get_mut(index)? = Stripe {
            device: best.member.id,
            offset: DeviceAddr(best.start),
            device_uuid: best.member.uuid,
        };
    }
    (new != *old).then_some(new)
}

/// The hole of so many bytes on the device with the most free space. It leaves superblocks alone.
fn best_hole<'m>(
    fs: &WriteContext,
    map: &ChunkMap,
    members: impl Iterator<Item = &'m Member>,
    len_bytes: u64,
    placing: &Placing,
) -> Option<Hole<'m>> {
    holes(fs, map, members, len_bytes, placing)
        .into_iter()
        .next()
}

/// Such holes on all devices that have one, the device with the most free space first.
fn holes<'m>(
    fs: &WriteContext,
    map: &ChunkMap,
    members: impl Iterator<Item = &'m Member>,
    len_bytes: u64,
    placing: &Placing,
) -> Vec<Hole<'m>> {
    let removed = fs.chunks.removed.lock();
    let holes = members.filter_map(|member| {
        let mut free = free_of(map, &removed, member, chunks::limit_of(member, placing));
        for offset in SUPERBLOCK_OFFSETS {
            free.exclude(&(offset..offset + STRIPE_BYTES));
        }
        hole(&free, member, len_bytes).filter(|hole| hole.len_bytes >= len_bytes)
    });
    let mut holes: Vec<_> = holes.collect();
    holes.sort_by_key(|hole| Reverse(hole.free_bytes));
    holes
}

/// A chunk of another profile with the same addresses, on as many devices as its length and they allow. Its stripes
/// leave superblocks alone: what lies at an address may be in use.
fn plan_restriped(
    fs: &WriteContext,
    map: &ChunkMap,
    old: &ChunkItem,
    profile: Profile,
) -> Option<ChunkItem> {
    let shape = Shape::of(profile);
    let placing = fs.chunks.placing.lock().clone();
    let members = fs.blocks().store().members();
    let usable =
        |member: &&Member| member.device.is_some() && !placing.without.contains(&member.id);
    let members: Vec<&Member> = members.iter().filter(usable).collect();
    let on_device = shape.on_device as u64;
    let is_striped = match profile {
        Profile::Raid0 | Profile::Raid10 | Profile::Raid5 | Profile::Raid6 => true,
        Profile::Single | Profile::Dup | Profile::Raid1 | Profile::Raid1C3 | Profile::Raid1C4 => {
            false
        }
    };
    let node_bytes = fs.context.superblock.node_bytes;
    let devices_max = shape.devices_max_of(old.flags, node_bytes);
    let most = members.len().min(devices_max);
    for count in (shape.devices_min..=most).rev() {
        if !count.is_multiple_of(shape.step) {
            continue;
        }
        let stripes = count * shape.on_device;
        let data = stripes.saturating_sub(profile.parity().into());
        let data = (data / usize::from(profile.copies())).max(1) as u64;
        if is_striped && !old.len_bytes.is_multiple_of(data * STRIPE_BYTES) {
            continue;
        }
        let stripe_bytes = old.len_bytes / data;
        let wanted = stripe_bytes * on_device;
        let mut holes = holes(fs, map, members.iter().copied(), wanted, &placing);
        if holes.len() < count {
            continue;
        }
        holes.truncate(count);
        let stripe = |hole: &Hole<'_>, number: u64| Stripe {
            device: hole.member.id,
            offset: DeviceAddr(hole.start + number * stripe_bytes),
            device_uuid: hole.member.uuid,
        };
        let stripes = holes
            .iter()
            .flat_map(|hole| (0..on_device).map(move |number| stripe(hole, number)));
        let others = old.flags.difference(BlockGroupFlags::PROFILES);
        return Some(ChunkItem {
            flags: others | profile.flags(),
            profile,
            sub_stripes: if profile == Profile::Raid10 { 2 } else { 1 },
            stripes: stripes.collect(),
            ..old.clone()
        });
    }
    None
}

/// Replaces a chunk in the trees.
fn change_chunk(
    fs: &WriteContext,
    handle: &Handle<'_>,
    group: &BlockGroup,
    old: &ChunkItem,
    new: &ChunkItem,
) -> Result<()> {
    let generation = handle.generation();
    handle.require_commit();
    let key = Key::new(CHUNK_OBJECT, ItemKind::CHUNK_ITEM, new.start.0);
    fs.edit(generation, TreeId::CHUNK, |editor| {
        editor.set(key, &new.encode())
    })?;
    let only_in = |one: &ChunkItem, other: &ChunkItem| {
        let stripes = one.stripes.iter().copied();
        let gone = stripes.filter(|stripe| !other.stripes.contains(stripe));
        gone.collect::<Vec<_>>()
    };
    for stripe in only_in(old, new) {
        let key = Key::new(stripe.device.0, ItemKind::DEV_EXTENT, stripe.offset.0);
        fs.edit(generation, TreeId::DEV, |editor| editor.remove(key))?;
    }
    chunks::insert_device_extents(fs, generation, new, &only_in(new, old))?;
    chunks::update_devices(fs, generation, old)?;
    chunks::update_devices(fs, generation, new)?;
    chunks::demand_features(fs, new.profile);
    group.set_flags(new.flags);
    fs.groups.mark_dirty(group);
    Ok(())
}

/// Takes the bytes at an address.
pub(super) type Write<'w> = &'w dyn Fn(u64, &[u8]) -> Result<()>;

/// Writes a part of a copy while the filesystem is not frozen, which a freeze waits for. The caller has no handle.
///
/// # Errors
/// Those of `write`; that the mount ends.
pub(crate) fn while_thawed(fs: &WriteContext, write: impl FnOnce() -> Result<()>) -> Result<()> {
    let _thawed = fs.begin_unreserved(0)?;
    fs.refuse_moving()?;
    write()
}

/// Passes the bytes of all extents of a chunk, whose group is held, to `write`.
pub(crate) fn copy_chunk(fs: &WriteContext, old: &ChunkItem, write: Write<'_>) -> Result<()> {
    let write: Write<'_> = &|at, bytes| while_thawed(fs, || write(at, bytes));
    let end = old.start.0.saturating_add(old.len_bytes);
    let mut left = old.start.0..end;
    loop {
        fs.refuse_moving()?;
        let extents = ListedExtent::next_of(&fs.context, &mut left)?;
        if extents.is_empty() {
            return Ok(());
        }
        for extent in extents {
            let start = extent.start.0;
            let range = start..start.saturating_add(extent.len_bytes).min(end);
            if extent.is_tree_block {
                copy_block(fs, &range, extent.generation, write)?;
            } else {
                copy_data(fs, &range, write)?;
            }
        }
    }
}

fn copy_block(
    fs: &WriteContext,
    range: &Range<u64>,
    generation: Generation,
    write: Write<'_>,
) -> Result<()> {
    let format = *fs.blocks().format();
    // A copy of a device that missed a write may be a valid older block.
    let expected = Expected {
        generation: Some(generation),
        ..Expected::default()
    };
    let is_right = |at: u64, bytes: &[u8]| {
        format.verify(LogicalAddr(at), bytes).is_ok() && expected.check(bytes).is_ok()
    };
    let bytes = read_right(fs, range, &is_right)?;
    write(range.start, &bytes)
}

/// Passes the bytes of data, each sector from a copy that is right, to `write`.
pub(super) fn copy_data(fs: &WriteContext, range: &Range<u64>, write: Write<'_>) -> Result<()> {
    let format = fs.item_format();
    let sector = u64::from(format.sector_bytes);
    let mut at = range.start;
    while at < range.end {
        let piece = at..range.end.min(at + COPY_BYTES);
        at = piece.end;
        let stored = data_extents::stored_checksums(fs, &piece)?;
        let is_right = |at: u64, bytes: &[u8]| {
            let stored = stored.get(&at);
            stored.is_none_or(|stored| format.checksum_kind.matches(bytes, stored))
        };
        let mut bytes = vec![0; usize::try_from(piece.end - piece.start).unwrap_or_default()];
        let bufs = &mut [IoSliceMut::new(&mut bytes)];
        let read = fs.blocks().store().read(LogicalAddr(piece.start), 0, bufs);
        let sectors = bytes.chunks_mut(format.sector_bytes as usize);
        for (start, place) in (piece.start..)
            .step_by(format.sector_bytes as usize)
            .zip(sectors)
        {
            if read.is_err() || !is_right(start, place) {
                let good = read_right(fs, &(start..start + sector), &is_right)?;
                place.copy_from_slice(good.get(..place.len()).unwrap_or_default());
            }
        }
        write(piece.start, &bytes)?;
    }
    Ok(())
}

/// Reads a range from a copy that is right.
fn read_right(
    fs: &WriteContext,
    range: &Range<u64>,
    is_right: &dyn Fn(u64, &[u8]) -> bool,
) -> Result<Vec<u8>> {
    let store = fs.blocks().store();
    let at = LogicalAddr(range.start);
    let len_bytes = range.end - range.start;
    let mut bytes = vec![0; usize::try_from(len_bytes).unwrap_or_default()];
    let mut failure = None;
    for copy in 0..store.copies(at, len_bytes) {
        let bufs = &mut [IoSliceMut::new(&mut bytes)];
        match store.read(at, copy, bufs) {
            Ok(()) if is_right(at.0, &bytes) => return Ok(bytes),
            Ok(()) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        Some(error) => Err(error.into()),
        None => Err(Corrupt::new(Locus::block(at.0), DataRule::NoCopy).into()),
    }
}

/// What a stripe of a chunk with parity, whose group is held, has at an offset where it cannot be read: reconstructed
/// from the rest of the row, also where it is not in use, since the parity is of that as well. `None` where it cannot
/// be reconstructed, and nothing in these columns is in use.
///
/// # Errors
/// Those of the devices, and of checksums that cannot be read; `Corrupt` where what comes of it is in use, and wrong.
pub(crate) fn restore_stripe(
    fs: &WriteContext,
    chunk: &ChunkItem,
    (stripe, offset): (usize, u64),
    len_bytes: u64,
) -> Result<Option<Vec<u8>>> {
    let (row, column) = (offset / STRIPE_BYTES, offset % STRIPE_BYTES);
    let data = chunk.data_stripes() as u64;
    let logical = |index: u64| chunk.start.0 + (row * data + index) * STRIPE_BYTES + column;
    let is_in_use = |at: u64| ListedExtent::is_any_in(&fs.context, &(at..at + len_bytes));
    let verifier: Box<dyn RowVerifier> = if chunk.flags.contains(BlockGroupFlags::DATA) {
        // Data whose checksum cannot be read is not data without one.
        let mut stored = BTreeMap::new();
        for at in (0..data).map(logical) {
            if is_in_use(at)? {
                stored.extend(data_extents::stored_checksums(fs, &(at..at + len_bytes))?);
            }
        }
        data_extents::verifier_by(fs, stored)
    } else {
        Box::new(*fs.blocks().format())
    };
    let columns = column..column + len_bytes;
    let store = fs.blocks().store();
    match store.restore(chunk, (row, stripe), &columns, &*verifier) {
        Ok(Restored { bytes, wrong }) => {
            for at in wrong {
                // What is not in use need not be a tree block.
                if is_in_use(at.0)? {
                    return Err(Corrupt::new(Locus::block(at.0), DataRule::NoCopy).into());
                }
            }
            Ok(Some(bytes))
        }
        Err(error) => {
            for at in (0..data).map(logical) {
                if is_in_use(at)? {
                    return Err(error.into());
                }
            }
            Ok(None)
        }
    }
}

/// Writes to stripes that are not read from yet.
fn write_restriped(fs: &WriteContext, new: &ChunkItem, at: u64, bytes: &[u8]) -> Result<()> {
    let find: FindVerifier<'_> = &|_| Box::new(Unverified);
    let store = fs.blocks().store();
    let map = store.map();
    let now = map.find(new.start)?;
    let stripes = new.stripes.iter().zip(&now.stripes).enumerate();
    let same = stripes.filter(|(_, (new, now))| new == now);
    let kept: Vec<usize> = same.map(|(index, _)| index).collect();
    Ok(store.write_chunk(new, LogicalAddr(at), &[IoSlice::new(bytes)], find, &kept)?)
}
