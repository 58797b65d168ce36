//! Inodes that hold values: made, counted by those who use them, and freed. Their blocks are written
//! as metadata, so that they are there when the entry that names them is.

use std::ops::{ControlFlow, Range};

use platter_ondisk::Locus;
use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, Error, FileKind, Result, Timestamp};

use super::XattrChange;
use crate::Volume;
use crate::alloc::{FREE_INODE_CREDITS, RECORD_CREDITS};
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{Backing, BlockMap, MapChange, Piece, Run};
use crate::ondisk::corrupt::Corrupt;
use crate::ondisk::features::Incompat;
use crate::ondisk::xattr::{AttributeValue, entry_hash_of_inode, value_hash};
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags, InodeNr};
use crate::xattr::value_inode::ValueInodeRule;

/// Permission bits of an inode that holds a value: nobody ever opens it.
const PERMISSIONS: u32 = 0o600;
/// Pieces of a value's map that are freed at once; a map with more is no value's.
const PIECES_MAX: usize = 4096;

/// A value that needs an inode.
#[derive(Debug)]
pub(super) struct Wanted<'v> {
    value: &'v [u8],
    hash: u32,
    entry_hash: u32,
}

/// An inode that was made for a value.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) number: InodeNr,
    /// What the owner of the attribute takes more.
    pub(super) owner_sectors: u64,
    blocks: Vec<Range<BlockNr>>,
}

/// A value in an inode that is used less.
#[derive(Debug)]
pub(super) struct Dropped {
    number: InodeNr,
    owner_sectors: u64,
    /// Others go on using it as before.
    is_kept: bool,
}

impl<'v> Wanted<'v> {
    pub(super) fn new(volume: &Volume, name: &[u8], value: &'v [u8]) -> Self {
        let hash = value_hash(volume.geometry.checksum_seed, value);
        Self {
            value,
            hash,
            entry_hash: entry_hash_of_inode(name, hash),
        }
    }

    /// The value as an entry has it, when it lies in the inode `number`.
    pub(super) fn value_in(&self, number: InodeNr) -> AttributeValue {
        AttributeValue::Inode {
            number,
            size_bytes: u32::try_from(self.value.len()).unwrap_or(u32::MAX),
            hash: self.entry_hash,
        }
    }
}

impl XattrChange<'_, '_> {
    /// What a value of this inode takes of its space, which is counted there.
    fn owner_sectors(&self, size_bytes: u64) -> u64 {
        size_bytes.next_multiple_of(self.cluster_bytes().max(1)) >> 9
    }

    /// Makes an inode that holds a value.
    pub(super) fn make_value(&mut self, wanted: &Wanted<'_>) -> Result<Made> {
        let random = self.generation.into();
        let number = self.space.alloc_inode(
            self.volume,
            self.handle,
            self.inode,
            FileKind::Regular,
            random,
        )?;
        let mut made = Made {
            number,
            owner_sectors: self.owner_sectors(wanted.value.len() as u64),
            blocks: Vec::new(),
        };
        if let Err(error) = self.take_blocks(&mut made, wanted.value.len()) {
            return Err(self.unmake_value(&made, error));
        }
        let written = self.write_value(&made, wanted);
        written.map_err(|error| self.abort(error))?;
        Ok(made)
    }

    fn take_blocks(&mut self, made: &mut Made, len_bytes: usize) -> Result<()> {
        let mut left = len_bytes.div_ceil(self.volume.geometry.block_bytes as usize);
        let mut goal = self.goal();
        while left > 0 {
            // The block itself, and those of the map that it may need.
            if !self.ensure(RECORD_CREDITS + u32::try_from(left).unwrap_or(u32::MAX)) {
                return Err(Condition::NoSpace.into());
            }
            let want = u32::try_from(left).unwrap_or(u32::MAX);
            let (volume, from) = (self.volume, self.from);
            let taken = self.space.alloc(volume, self.handle, goal, want, from)?;
            let count = taken.end.0.saturating_sub(taken.start.0);
            left = left.saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
            goal = taken.end;
            made.blocks.push(taken);
        }
        Ok(())
    }

    fn write_value(&mut self, made: &Made, wanted: &Wanted<'_>) -> Result<()> {
        let geometry = &self.volume.geometry;
        let extra_bytes = self.volume.superblock.inode_extra_bytes;
        let kind = FileKind::Regular;
        let mut holder = Inode::new(made.number, kind, self.generation, extra_bytes, geometry);
        holder.permissions = PERMISSIONS;
        (holder.uid, holder.gid) = (self.inode.uid, self.inode.gid);
        holder.links = 1;
        holder.size_bytes = wanted.value.len() as u64;
        holder.flags = InodeFlags::EA_INODE;
        holder.flags.set(
            InodeFlags::EXTENTS,
            geometry.features.incompat.contains(Incompat::EXTENTS),
        );
        holder.modified = self.now;
        holder.created = Some(self.now);
        set_hash(&mut holder, wanted.hash);
        set_reference_count(&mut holder, 1);
        let mut map = BlockMap::begin(self.volume, &mut holder);
        let (mut first, mut chunks) = (0, wanted.value.chunks(geometry.block_bytes as usize));
        for blocks in &made.blocks {
            for block in blocks.start.0..blocks.end.0 {
                let mut bytes = chunks.next().unwrap_or_default().to_vec();
                bytes.resize(geometry.block_bytes as usize, 0);
                self.handle.create(BlockNr(block), &Unverified, bytes)?;
            }
            first = self.map_blocks(&mut map, &mut holder, first, blocks)?;
        }
        let clusters = made.blocks.iter().map(|blocks| {
            let count = blocks.end.0.saturating_sub(blocks.start.0);
            count.div_ceil(geometry.cluster_blocks.into())
        });
        let sectors = clusters
            .sum::<u64>()
            .saturating_mul(self.cluster_bytes() >> 9);
        holder.sectors = holder.sectors.saturating_add(sectors);
        inode::initialize(self.volume, self.handle, &holder)
    }

    /// Maps blocks from the file block `first` on; gives the one behind them.
    fn map_blocks(
        &mut self,
        map: &mut BlockMap,
        holder: &mut Inode,
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
            let mut change = MapChange {
                volume: self.volume,
                space: self.space,
                handle: self.handle,
                inode: holder,
            };
            let count = map.insert(&mut change, run)?;
            if count == 0 {
                return Err(Condition::NoSpace.into());
            }
            at = at.saturating_add(count);
            start = start.saturating_add(count.into());
        }
        Ok(at)
    }

    /// Gives back what was taken for a value that nothing was written of, because of `error`.
    pub(super) fn unmake_value(&mut self, made: &Made, error: Error) -> Error {
        for blocks in &made.blocks {
            self.handle.forget(blocks.clone());
            let freed = self.space.free(self.volume, self.handle, blocks.clone());
            if let Err(error) = freed {
                return self.abort(error);
            }
        }
        let freed = self.erase(made.number);
        let freed = freed.and_then(|()| self.free_inode(made.number));
        match freed {
            Ok(()) => error,
            Err(error) => self.abort(error),
        }
    }

    /// What dropping a value will take, if it lies in an inode. Whether that can be done is seen
    /// here, before anything is changed.
    pub(super) fn dropped(
        &mut self,
        value: &AttributeValue,
        is_kept: bool,
    ) -> Result<Option<Dropped>> {
        let AttributeValue::Inode {
            number, size_bytes, ..
        } = *value
        else {
            return Ok(None);
        };
        if !is_kept {
            let holder = read_holder(self.volume, number)?;
            let pieces = pieces(self.volume, &holder)?.len();
            let runs = u32::try_from(pieces).unwrap_or(u32::MAX);
            let groups = self.volume.geometry.groups_count;
            let runs = runs.saturating_mul(2).min(groups);
            let credits = runs.saturating_mul(2);
            let credits = credits.saturating_add(FREE_INODE_CREDITS + STORE_CREDITS);
            let others = super::change_credits(self.volume);
            if !self.ensure(credits.saturating_add(others)) {
                return Err(Condition::NoSpace.into());
            }
        }
        Ok(Some(Dropped {
            number,
            owner_sectors: self.owner_sectors(size_bytes.into()),
            is_kept,
        }))
    }

    /// Has this inode use a value no more; the last who does frees it.
    pub(super) fn drop_value(&mut self, dropped: &Dropped) -> Result<()> {
        self.inode.sectors = self.inode.sectors.saturating_sub(dropped.owner_sectors);
        if dropped.is_kept || self.remove_reference(dropped.number)? {
            return Ok(());
        }
        let holder = read_holder(self.volume, dropped.number)?;
        for blocks in pieces(self.volume, &holder)? {
            self.handle.forget(blocks.clone());
            self.space.free(self.volume, self.handle, blocks)?;
        }
        self.erase(dropped.number)?;
        self.free_inode(dropped.number)
    }

    /// Leaves nothing of an inode but that it was deleted.
    fn erase(&mut self, number: InodeNr) -> Result<()> {
        let geometry = &self.volume.geometry;
        let extra_bytes = self.volume.superblock.inode_extra_bytes;
        let kind = FileKind::Regular;
        let deleted = Inode::new(number, kind, self.generation, extra_bytes, geometry);
        inode::initialize(self.volume, self.handle, &deleted)?;
        // Zero would say that it is in use.
        let seconds = self.now.seconds.clamp(1, u32::MAX.into());
        let seconds = u32::try_from(seconds).unwrap_or(1);
        inode::store_deleted(self.volume, self.handle, number, seconds)
    }

    fn free_inode(&mut self, number: InodeNr) -> Result<()> {
        let (volume, was_dir) = (self.volume, false);
        self.space.free_inode(volume, self.handle, number, was_dir)
    }

    /// Counts one user more of a value.
    pub(super) fn add_reference(&mut self, number: InodeNr) -> Result<()> {
        inode::edit(self.volume, self.handle, number, |holder| {
            prove_holder(holder)?;
            let count = reference_count(holder).saturating_add(1);
            set_reference_count(holder, count);
            Ok(())
        })
    }

    /// Counts one user less of a value, if there are others.
    pub(super) fn remove_reference(&mut self, number: InodeNr) -> Result<bool> {
        inode::edit(self.volume, self.handle, number, |holder| {
            prove_holder(holder)?;
            let Some(others @ 1..) = reference_count(holder).checked_sub(1) else {
                return Ok(false);
            };
            set_reference_count(holder, others);
            Ok(true)
        })
    }
}

fn read_holder(volume: &Volume, number: InodeNr) -> Result<Inode> {
    let holder = inode::read(volume, number)?;
    prove_holder(&holder)?;
    Ok(holder)
}

fn prove_holder(holder: &Inode) -> Result<()> {
    if holder.kind == FileKind::Regular && holder.flags.contains(InodeFlags::EA_INODE) {
        return Ok(());
    }
    let locus = Locus::inode(u64::from(holder.number.get()));
    Err(Corrupt::new(locus, ValueInodeRule::Flag).into())
}

/// The blocks of a value and of its map.
fn pieces(volume: &Volume, holder: &Inode) -> Result<Vec<Range<BlockNr>>> {
    let map = BlockMap::decode(volume, holder)?;
    let mut pieces = Vec::new();
    map.visit(volume, &mut |piece| {
        let (start, count) = match piece {
            Piece::Node(_, block) => (block, 1),
            Piece::Run(run) => match run.backing {
                Backing::Written(start) | Backing::Unwritten(start) => (start, run.count),
                Backing::Hole => return ControlFlow::Continue(()),
            },
        };
        pieces.push(start..BlockNr(start.0.saturating_add(count.into())));
        if pieces.len() > PIECES_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    if pieces.len() > PIECES_MAX {
        let locus = Locus::inode(u64::from(holder.number.get()));
        return Err(Corrupt::new(locus, ValueInodeRule::Size).into());
    }
    Ok(pieces)
}

/// The hash of the value takes the place of the access time.
fn set_hash(holder: &mut Inode, hash: u32) {
    holder.accessed = Timestamp {
        seconds: i64::from(hash.cast_signed()),
        nanoseconds: 0,
    };
}

/// How many attributes have this value: the low half takes the place of the version, the high one
/// that of the time of change.
fn reference_count(holder: &Inode) -> u64 {
    let low = holder.version & u64::from(u32::MAX);
    let high = holder.changed.seconds.cast_unsigned() & u64::from(u32::MAX);
    high << 32 | low
}

fn set_reference_count(holder: &mut Inode, count: u64) {
    holder.version = count & u64::from(u32::MAX);
    let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
    holder.changed = Timestamp {
        seconds: i64::from(high.cast_signed()),
        nanoseconds: 0,
    };
}
