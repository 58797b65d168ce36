//! EA inodes: creating, reference counting, and freeing them. Their data blocks are written as
//! metadata, so that they are durable together with the entry.

use std::ops::Range;

use platter_cache::mbcache::Removal;
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, FileKind, Result};

use super::block::WAITS_MAX;
use super::ea_inode::{
    pieces, read_ea_inode, reference_count, set_hash, set_reference_count, validate_ea_inode,
};
use super::share::Left;
use super::{XattrChange, value_credits};
use crate::alloc::{FREE_INODE_CREDITS, RECORD_CREDITS, SpaceRule};
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{Backing, BlockMap, MapChange, Run};
use crate::ondisk::features::Incompat;
use crate::ondisk::xattr::{AttributeValue, entry_hash_of_inode, value_hash};
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags, InodeNr};
use crate::txn::Edit;
use crate::xattr::ea_inode::{EaInodeRule, stored_hash};
use crate::xattr::owner_sectors;
use crate::{FsContext, alloc};

/// Permission bits of an EA inode, which is never opened.
const PERMISSIONS: u32 = 0o600;
/// Credits of a block of an EA inode's mapping: many runs need one.
const MAPPING_CREDITS: u32 = 1 + RECORD_CREDITS;

/// A value that needs an EA inode.
#[derive(Debug)]
pub(super) struct Wanted<'v> {
    pub(super) value: &'v [u8],
    pub(super) hash: u32,
    entry_hash: u32,
}

/// An EA inode with a reference for this attribute.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) number: InodeNr,
    pub(super) hash: u32,
    /// Sectors added to the owner's `i_blocks`.
    pub(super) owner_sectors: u64,
    /// The attribute is in a block.
    pub(super) is_outside: bool,
    /// The blocks of a newly created one.
    made: Option<Vec<Range<BlockNr>>>,
}

/// A value in an EA inode whose reference is dropped.
#[derive(Debug)]
pub(super) struct Dropped {
    pub(super) number: InodeNr,
    pub(super) owner_sectors: u64,
    /// The attribute was in a block.
    pub(super) was_outside: bool,
}

impl<'v> Wanted<'v> {
    pub(super) fn new(fs: &FsContext, name: &[u8], value: &'v [u8]) -> Self {
        let hash = value_hash(fs.geometry.checksum_seed, value);
        Self {
            value,
            hash,
            entry_hash: entry_hash_of_inode(name, hash),
        }
    }

    /// Returns the value as stored in an entry, for the EA inode `number`.
    pub(super) fn value_in(&self, number: InodeNr) -> AttributeValue {
        AttributeValue::Inode {
            number,
            size_bytes: u32::try_from(self.value.len()).unwrap_or(u32::MAX),
            hash: self.entry_hash,
        }
    }
}

/// Returns the reference for a value in the EA inode `number`.
pub(super) fn reference(
    change: &XattrChange<'_, '_>,
    number: InodeNr,
    wanted: &Wanted<'_>,
) -> Taken {
    Taken {
        number,
        hash: wanted.hash,
        owner_sectors: owner_sectors(change.fs, wanted.value.len() as u64),
        is_outside: false,
        made: None,
    }
}

/// Creates an EA inode, as part of a change that has `credits`.
pub(super) fn make(
    change: &mut XattrChange<'_, '_>,
    wanted: &Wanted<'_>,
    credits: u32,
) -> Result<Taken> {
    let kind = FileKind::Regular;
    let number = alloc::alloc_inode(
        change.space,
        change.fs,
        change.handle,
        change.inode,
        kind,
        0,
    )?;
    let mut blocks = Vec::new();
    if let Err(error) = take_blocks(change, &mut blocks, wanted.value.len(), credits) {
        return Err(unmake(change, number, &blocks, error));
    }
    let written = write(change, number, &blocks, wanted);
    written.map_err(|error| change.abort(error))?;
    Ok(Taken {
        made: Some(blocks),
        ..reference(change, number, wanted)
    })
}

/// Allocates blocks for a value. The handle is extended for more runs than expected.
fn take_blocks(
    change: &mut XattrChange<'_, '_>,
    blocks: &mut Vec<Range<BlockNr>>,
    len_bytes: usize,
    credits: u32,
) -> Result<()> {
    let count = len_bytes.div_ceil(change.fs.geometry.block_bytes as usize);
    let all = u32::try_from(count).unwrap_or(u32::MAX);
    // What follows: the contents of all blocks, their mapping, the inode, and the rest of the change.
    let rest = credits.saturating_sub(value_credits(change.fs));
    let later = all
        .saturating_add(MAPPING_CREDITS + STORE_CREDITS)
        .saturating_add(rest);
    // With each block a run of its own.
    let needed = all
        .saturating_mul(RECORD_CREDITS)
        .saturating_add(MAPPING_CREDITS);
    let mut left = all;
    let mut goal = change.goal();
    while left > 0 {
        let next = later.saturating_add(RECORD_CREDITS);
        change.ensure_or_ask(next, credits.saturating_add(needed))?;
        let (fs, from) = (change.fs, change.from);
        let taken = alloc::alloc_blocks(change.space, fs, change.handle, goal, left, from)?;
        let count = taken.end.0.saturating_sub(taken.start.0);
        left = left.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        goal = taken.end;
        blocks.push(taken);
    }
    Ok(())
}

fn write(
    change: &mut XattrChange<'_, '_>,
    number: InodeNr,
    blocks: &[Range<BlockNr>],
    wanted: &Wanted<'_>,
) -> Result<()> {
    let geometry = &change.fs.geometry;
    let extra_bytes = change.fs.superblock.inode_extra_bytes;
    let kind = FileKind::Regular;
    let [b0, b1, b2, b3, ..] = change.clock.random_u64().to_le_bytes();
    let generation = u32::from_le_bytes([b0, b1, b2, b3]);
    let mut ea_inode = Inode::new(number, kind, generation, extra_bytes, geometry);
    ea_inode.permissions = PERMISSIONS;
    (ea_inode.uid, ea_inode.gid) = (change.inode.uid, change.inode.gid);
    ea_inode.links = 1;
    ea_inode.size_bytes = wanted.value.len() as u64;
    ea_inode.flags = InodeFlags::EA_INODE;
    ea_inode.flags.set(
        InodeFlags::EXTENTS,
        geometry.features.incompat.contains(Incompat::EXTENTS),
    );
    ea_inode.modified = change.now;
    ea_inode.created = Some(change.now);
    set_hash(&mut ea_inode, wanted.hash);
    set_reference_count(&mut ea_inode, 1);
    let mut map = BlockMap::begin(change.fs, &mut ea_inode);
    let (mut first, mut chunks) = (0, wanted.value.chunks(geometry.block_bytes as usize));
    for blocks in blocks {
        for block in blocks.start.0..blocks.end.0 {
            let mut bytes = chunks.next().unwrap_or_default().to_vec();
            bytes.resize(geometry.block_bytes as usize, 0);
            change.handle.create(BlockNr(block), &Unverified, bytes)?;
        }
        first = map_blocks(change, &mut map, &mut ea_inode, first, blocks)?;
    }
    let clusters = blocks.iter().map(|blocks| {
        let count = blocks.end.0.saturating_sub(blocks.start.0);
        count.div_ceil(geometry.cluster_blocks.into())
    });
    let sectors = clusters
        .sum::<u64>()
        .saturating_mul(change.cluster_bytes() >> 9);
    ea_inode.sectors = ea_inode.sectors.saturating_add(sectors);
    inode::initialize(change.fs, change.handle, &ea_inode)
}

/// Maps blocks from the file block `first` on; returns the next one.
fn map_blocks(
    change: &mut XattrChange<'_, '_>,
    map: &mut BlockMap,
    ea_inode: &mut Inode,
    first: u32,
    blocks: &Range<BlockNr>,
) -> Result<u32> {
    let (mut at, mut start) = (first, blocks.start.0);
    while start < blocks.end.0 {
        let run = Run {
            first: FileBlock(at),
            count: u32::try_from(blocks.end.0.saturating_sub(start)).unwrap_or(u32::MAX),
            backing: Backing::Written(BlockNr(start)),
        };
        let mut mapping = MapChange {
            fs: change.fs,
            space: change.space,
            handle: change.handle,
            inode: ea_inode,
        };
        let count = map.insert(&mut mapping, run)?;
        if count == 0 {
            return Err(Condition::NoSpace.into());
        }
        at = at.saturating_add(count);
        start = start.saturating_add(count.into());
    }
    Ok(at)
}

/// Releases a value that got no attribute because of `error`.
pub(super) fn give_back(change: &mut XattrChange<'_, '_>, taken: &Taken, error: Error) -> Error {
    match &taken.made {
        Some(blocks) => unmake(change, taken.number, blocks, error),
        None => match drop_value(change, taken.number) {
            Ok(()) => error,
            Err(error) => change.abort(error),
        },
    }
}

/// Frees an EA inode without references, and its blocks.
fn unmake(
    change: &mut XattrChange<'_, '_>,
    number: InodeNr,
    blocks: &[Range<BlockNr>],
    error: Error,
) -> Error {
    match free_ea_inode(change, number, blocks) {
        Ok(()) => error,
        Err(error) => {
            // It is not to be tried again.
            change.needed = None;
            change.abort(error)
        }
    }
}

/// Returns the drop of an attribute's value, if it is in an EA inode.
///
/// # Errors
/// It is corrupt.
pub(super) fn dropped(
    change: &XattrChange<'_, '_>,
    value: &AttributeValue,
    was_outside: bool,
) -> Result<Option<Dropped>> {
    let AttributeValue::Inode {
        number, size_bytes, ..
    } = *value
    else {
        return Ok(None);
    };
    read_ea_inode(change.fs, number)?;
    Ok(Some(Dropped {
        number,
        owner_sectors: owner_sectors(change.fs, size_bytes.into()),
        was_outside,
    }))
}

/// Returns the credits of [`drop_value`] if this is the last reference.
/// Corruption is detected here, before anything is changed.
pub(super) fn drop_credits(change: &XattrChange<'_, '_>, number: InodeNr) -> Result<u32> {
    let ea_inode = read_ea_inode(change.fs, number)?;
    let pieces = pieces(change.fs, &ea_inode)?;
    if reference_count(&ea_inode) <= 1 {
        let mut freed: Vec<_> = pieces
            .iter()
            .map(|blocks| (blocks.start.0, blocks.end.0))
            .collect();
        freed.sort_unstable();
        if let Some(pair) = freed.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            let locus = Locus::block(pair[1].0);
            return Err(Corrupt::new(locus, SpaceRule::BlockFreedTwice).into());
        }
        for blocks in &pieces {
            alloc::check_freeable(change.space, change.fs, blocks)?;
        }
        alloc::check_inode_freeable(change.space, change.fs, number, false)?;
    }
    let runs = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
    let groups = change.fs.geometry.groups_count;
    let runs = runs.saturating_mul(2).min(groups);
    let credits = runs.saturating_mul(2);
    Ok(credits.saturating_add(FREE_INODE_CREDITS + STORE_CREDITS))
}

/// Drops one reference to a value; the last one frees it.
pub(super) fn drop_value(change: &mut XattrChange<'_, '_>, number: InodeNr) -> Result<()> {
    match leave(change, number)? {
        Left::Others => Ok(()),
        Left::None => {
            let ea_inode = read_ea_inode(change.fs, number)?;
            let blocks = pieces(change.fs, &ea_inode)?;
            free_ea_inode(change, number, &blocks)
        }
    }
}

fn free_ea_inode(
    change: &mut XattrChange<'_, '_>,
    number: InodeNr,
    blocks: &[Range<BlockNr>],
) -> Result<()> {
    for blocks in blocks {
        change.handle.forget(blocks.clone());
        alloc::free_blocks(change.space, change.fs, change.handle, blocks.clone())?;
    }
    erase(change, number)?;
    let (fs, was_dir) = (change.fs, false);
    alloc::free_inode(change.space, fs, change.handle, number, was_dir)
}

/// Clears an inode, leaving only its deletion time.
fn erase(change: &mut XattrChange<'_, '_>, number: InodeNr) -> Result<()> {
    let geometry = &change.fs.geometry;
    let extra_bytes = change.fs.superblock.inode_extra_bytes;
    let kind = FileKind::Regular;
    let deleted = Inode::new(number, kind, 0, extra_bytes, geometry);
    inode::initialize(change.fs, change.handle, &deleted)?;
    // Zero would mean that it is in use.
    let seconds = change.now.seconds.clamp(1, u32::MAX.into());
    let seconds = u32::try_from(seconds).unwrap_or(1);
    inode::store_deleted(change.fs, change.handle, number, seconds)
}

/// Adds a reference to a value that has some.
pub(super) fn add_reference(change: &mut XattrChange<'_, '_>, number: InodeNr) -> Result<()> {
    inode::edit(change.fs, change.handle, number, |ea_inode| {
        validate_ea_inode(ea_inode)?;
        let count = reference_count(ea_inode);
        let more = count.checked_add(1).filter(|_| count > 0);
        set_reference_count(ea_inode, more.ok_or_else(|| broken_count(number))?);
        Ok(())
    })
}

/// Drops one reference to a value, if there are others. If not, the value can no longer be
/// shared, and the caller frees it.
fn leave(change: &mut XattrChange<'_, '_>, number: InodeNr) -> Result<Left> {
    let fs = change.fs;
    let place = u64::from(number.get());
    for _ in 0..WAITS_MAX {
        let left = inode::edit_or_keep(fs, change.handle, number, |ea_inode| {
            validate_ea_inode(ea_inode)?;
            if let Some(others @ 1..) = reference_count(ea_inode).checked_sub(1) {
                set_reference_count(ea_inode, others);
                return Ok(Edit::Changed(Ok(Left::Others)));
            }
            let sharing = fs.sharing();
            let removal =
                sharing.map(|cache| cache.values.delete_or_get(stored_hash(ea_inode), place));
            Ok(Edit::Kept(match removal {
                None | Some(Removal::Deleted) => Ok(Left::None),
                Some(Removal::InUse(entry)) => Err(entry),
            }))
        })?;
        match left {
            Ok(left) => return Ok(left),
            // The other thread holds no lock that this one holds, and waits for no other
            // thread.
            Err(entry) => entry.wait_unused(),
        }
    }
    Err(broken_count(number).into())
}

fn broken_count(number: InodeNr) -> Corrupt<EaInodeRule> {
    let locus = Locus::inode(u64::from(number.get()));
    Corrupt::new(locus, EaInodeRule::References)
}
