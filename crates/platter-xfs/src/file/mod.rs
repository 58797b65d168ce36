//! Contents of files: where their bytes are on the device, and which of their blocks are shared.

mod sharing;
#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, Range};

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::file::{self, Backing, BlockRuns, FileMap, FileRun, Piece, Sources};
use platter_vfs::writing::RangeSet;
use platter_vfs::{Error, Extent, ExtentSink, Place, Result};

use crate::context::FsContext;
use crate::mapping::{self, ForkMap};
use crate::ondisk::extent::{ExtentDevice, Mapping};
use crate::ondisk::{FileBlock, Inode, InodeFlags2};

/// The largest size of a file, as a power of two.
const SIZE_BITS_MAX: u32 = 63;

pub use sharing::{group_block, is_shared};

rules! {
    /// What the whole of a fork must hold to.
    pub enum ForkRule of "fork" {
        /// Its mappings cover no more blocks than the inode counts.
        TooManyBlocks => "maps more blocks than the inode counts",
    }
}

/// One file's contents, as the page cache and others read them.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// The filesystem.
    pub context: &'a FsContext,
    /// The file.
    pub inode: &'a Inode,
    /// The mappings of its data fork.
    pub map: &'a ForkMap,
    /// Dirty blocks that have no written ones, of a filesystem that is written.
    pub dirty: Option<&'a RangeSet<u64>>,
}

impl Contents<'_> {
    /// Where the bytes of the file lie, `len_bytes` from `offset` on; after its end there are zeros.
    pub fn sources(&self, offset: u64, len_bytes: u64) -> Result<Sources> {
        let wanted = self.inode.size_bytes.saturating_sub(offset).min(len_bytes);
        let mut pieces: Vec<Piece> = Vec::new();
        let mut first = Piece {
            len_bytes: 0,
            device: None,
        };
        let mut done = 0;
        while done < wanted {
            let piece = self.piece(offset + done, wanted - done)?;
            let last = pieces.last_mut().unwrap_or(&mut first);
            let end = last
                .device
                .map(|start| start.saturating_add(last.len_bytes));
            if done == 0 {
                first = piece;
            } else if end == piece.device {
                last.len_bytes += piece.len_bytes;
            } else {
                pieces.push(piece);
            }
            done += piece.len_bytes;
        }
        Ok(Sources::Pieces {
            first,
            rest: pieces,
        })
    }

    /// The piece from byte `offset` on, of at most `len_max` bytes.
    fn piece(&self, offset: u64, len_max: u64) -> Result<Piece> {
        let bits = self.block_bits();
        let inside = offset & (u64::from(self.context.geometry().block_bytes()) - 1);
        let Some(run) = self.run(offset >> bits)? else {
            return Ok(Piece {
                len_bytes: len_max,
                device: None,
            });
        };
        let len = (run.count << bits) - inside;
        Ok(Piece {
            len_bytes: len.min(len_max),
            device: match run.backing {
                Backing::Written(start) => Some(start + inside),
                Backing::Hole | Backing::Unwritten(_) => None,
            },
        })
    }

    /// Reports what backs `range` to `sink` in order, until it breaks; space beyond the end of the
    /// file included, holes left out.
    pub fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        let may_share = self.inode.flags2.contains(InodeFlags2::REFLINK)
            && self.map.device() == ExtentDevice::Data;
        if !may_share {
            return file::extents(self, range, sink);
        }
        let mut failure = None;
        file::extents(
            self,
            range,
            &mut |extent| match sharing::split(self.context, &extent, sink) {
                Ok(flow) => flow,
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            },
        )?;
        failure.map_or(Ok(()), Err)
    }

    /// First byte of a block on the device of the fork.
    fn device_offset(&self, start: u64) -> u64 {
        let mapping = Mapping {
            offset: FileBlock(0),
            start,
            count: 1,
            is_unwritten: false,
        };
        mapping.byte_offset(self.context.geometry(), self.map.device())
    }
}

impl BlockRuns for Contents<'_> {
    fn block_bits(&self) -> u32 {
        self.context.geometry().block_bits.into()
    }

    fn run(&self, block: u64) -> Result<Option<FileRun>> {
        let end = 1 << (SIZE_BITS_MAX - self.block_bits());
        if block >= end {
            return Ok(None);
        }
        let run = self.map.lookup(self.context, FileBlock(block))?;
        Ok(Some(FileRun {
            first: block,
            count: run.count.min(end - block),
            backing: match run.backing {
                mapping::Backing::Hole => Backing::Hole,
                mapping::Backing::Written(start) => Backing::Written(self.device_offset(start)),
                mapping::Backing::Unwritten(start) => Backing::Unwritten(self.device_offset(start)),
            },
        }))
    }

    fn next_delayed(&self, block: u64) -> Option<Range<u64>> {
        self.dirty?.next(block)
    }
}

impl FileMap for Contents<'_> {
    fn filesystem_blocks(&self) -> u64 {
        let dirty = self.dirty.map_or(0, RangeSet::count);
        self.inode.blocks.saturating_add(dirty)
    }

    fn place(&self, address: u64) -> Option<Place> {
        Some(Place {
            member: self.context.member_of(self.map.device()),
            offset: address,
        })
    }

    fn too_many_blocks(&self) -> Error {
        let locus = Locus::inode(self.inode.number.get());
        Corrupt::new(locus, ForkRule::TooManyBlocks).into()
    }
}

/// A part of an extent.
fn part(extent: &Extent, file: Range<u64>, shared: bool) -> Extent {
    let skipped = file.start - extent.file.start;
    let moved = |place: Place| Place {
        offset: place.offset + skipped,
        ..place
    };
    Extent {
        place: extent.place.map(moved),
        physical: extent.physical.map(moved),
        shared,
        file,
        ..extent.clone()
    }
}
