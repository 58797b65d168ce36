//! Fields and blocks of an EA inode, some of whose fields have another meaning. Spec:
//! `ext4/attributes` (attribute value inodes).

use std::ops::{ControlFlow, Range};

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result, Timestamp};

use crate::FsContext;
use crate::inode;
use crate::mapping::{Backing, BlockMap, Piece};
use crate::ondisk::{BlockNr, Inode, InodeFlags, InodeNr};
use crate::xattr::ea_inode::EaInodeRule;

/// Maximum number of runs of a value's mapping that are freed at once; a mapping with more is
/// corrupt.
const PIECES_MAX: usize = 4096;

pub(super) fn read_ea_inode(fs: &FsContext, number: InodeNr) -> Result<Inode> {
    let ea_inode = inode::read(fs, number)?;
    validate_ea_inode(&ea_inode)?;
    Ok(ea_inode)
}

pub(super) fn validate_ea_inode(ea_inode: &Inode) -> Result<()> {
    if ea_inode.kind == FileKind::Regular && ea_inode.flags.contains(InodeFlags::EA_INODE) {
        return Ok(());
    }
    let locus = Locus::inode(u64::from(ea_inode.number.get()));
    Err(Corrupt::new(locus, EaInodeRule::Flag).into())
}

/// Returns the blocks of a value and of its mapping.
pub(super) fn pieces(fs: &FsContext, ea_inode: &Inode) -> Result<Vec<Range<BlockNr>>> {
    let map = BlockMap::decode(fs, ea_inode)?;
    let mut pieces = Vec::new();
    map.visit(fs, &mut |piece| {
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
        let locus = Locus::inode(u64::from(ea_inode.number.get()));
        return Err(Corrupt::new(locus, EaInodeRule::Size).into());
    }
    Ok(pieces)
}

/// Stores the hash of the value in the access time.
pub(super) fn set_hash(ea_inode: &mut Inode, hash: u32) {
    ea_inode.accessed = Timestamp {
        seconds: i64::from(hash.cast_signed()),
        nanoseconds: 0,
    };
}

/// Returns the reference count: the low half is stored in `i_version`, the high half in `i_ctime`.
pub(super) fn reference_count(ea_inode: &Inode) -> u64 {
    let low = ea_inode.version & u64::from(u32::MAX);
    let high = ea_inode.changed.seconds.cast_unsigned() & u64::from(u32::MAX);
    high << 32 | low
}

pub(super) fn set_reference_count(ea_inode: &mut Inode, count: u64) {
    ea_inode.version = count & u64::from(u32::MAX);
    let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
    ea_inode.changed = Timestamp {
        seconds: i64::from(high.cast_signed()),
        nanoseconds: 0,
    };
}
