//! An inode that holds a value: how it is told, its blocks, and the fields that mean something else
//! in it. Spec: `ext4/attributes` (attribute value inodes).

use std::ops::{ControlFlow, Range};

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result, Timestamp};

use crate::Volume;
use crate::inode;
use crate::mapping::{Backing, BlockMap, Piece};
use crate::ondisk::{BlockNr, Inode, InodeFlags, InodeNr};
use crate::xattr::value_inode::ValueInodeRule;

/// Pieces of a value's map that are freed at once; a map with more is no value's.
const PIECES_MAX: usize = 4096;

pub(super) fn read_holder(volume: &Volume, number: InodeNr) -> Result<Inode> {
    let holder = inode::read(volume, number)?;
    prove_holder(&holder)?;
    Ok(holder)
}

pub(super) fn prove_holder(holder: &Inode) -> Result<()> {
    if holder.kind == FileKind::Regular && holder.flags.contains(InodeFlags::EA_INODE) {
        return Ok(());
    }
    let locus = Locus::inode(u64::from(holder.number.get()));
    Err(Corrupt::new(locus, ValueInodeRule::Flag).into())
}

/// The blocks of a value and of its map.
pub(super) fn pieces(volume: &Volume, holder: &Inode) -> Result<Vec<Range<BlockNr>>> {
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
pub(super) fn set_hash(holder: &mut Inode, hash: u32) {
    holder.accessed = Timestamp {
        seconds: i64::from(hash.cast_signed()),
        nanoseconds: 0,
    };
}

/// How many attributes have this value: the low half takes the place of the version, the high one
/// that of the time of change.
pub(super) fn reference_count(holder: &Inode) -> u64 {
    let low = holder.version & u64::from(u32::MAX);
    let high = holder.changed.seconds.cast_unsigned() & u64::from(u32::MAX);
    high << 32 | low
}

pub(super) fn set_reference_count(holder: &mut Inode, count: u64) {
    holder.version = count & u64::from(u32::MAX);
    let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
    holder.changed = Timestamp {
        seconds: i64::from(high.cast_signed()),
        nanoseconds: 0,
    };
}
