//! Fields and blocks of an EA inode, some of whose fields have another meaning. Spec:
//! `ext4/attributes` (attribute value inodes).

use std::ops::{ControlFlow, Range};

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result, Timestamp};

use crate::Volume;
use crate::inode;
use crate::mapping::{Backing, BlockMap, Piece};
use crate::ondisk::{BlockNr, Inode, InodeFlags, InodeNr};
use crate::xattr::ea_inode::EaInodeRule;

/// Maximum number of runs of a value's mapping that are freed at once; a mapping with more is
/// corrupt.
const PIECES_MAX: usize = 4096;

pub(super) fn read_ea_inode(volume: &Volume, number: InodeNr) -> Result<Inode> {
    let holder = inode::read(volume, number)?;
    validate_ea_inode(&holder)?;
    Ok(holder)
}

pub(super) fn validate_ea_inode(holder: &Inode) -> Result<()> {
    if holder.kind == FileKind::Regular && holder.flags.contains(InodeFlags::EA_INODE) {
        return Ok(());
    }
    let locus = Locus::inode(u64::from(holder.number.get()));
    Err(Corrupt::new(locus, EaInodeRule::Flag).into())
}

/// Returns the blocks of a value and of its mapping.
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
        return Err(Corrupt::new(locus, EaInodeRule::Size).into());
    }
    Ok(pieces)
}

/// Stores the hash of the value in the access time.
pub(super) fn set_hash(holder: &mut Inode, hash: u32) {
    holder.accessed = Timestamp {
        seconds: i64::from(hash.cast_signed()),
        nanoseconds: 0,
    };
}

/// Returns the reference count: the low half is stored in `i_version`, the high half in `i_ctime`.
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
