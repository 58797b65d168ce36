//! Contents of files: filled from the device run by run, and described as data and holes.

mod extents;
mod limit;
mod seek;
mod sources;
#[cfg(test)]
mod tests;

use std::io::IoSliceMut;
use std::ops::{ControlFlow, Range};

use platter_cache::AddressSpace;
use platter_ondisk::{Corrupt, Locus, Rule};
use platter_vfs::{Condition, Error, Result};

use crate::Volume;
use crate::mapping::{Backing, BlockMap, InlineData, Run};
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags};

pub use limit::size_bytes_max;
pub use sources::{Piece, Sources};

/// What a whole map must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockMapRule {
    /// It takes no more blocks than the filesystem has: no two file blocks share one, nor do two
    /// of its own blocks.
    TooManyBlocks,
}

impl Rule for BlockMapRule {
    const STRUCTURE: &'static str = "block map";

    fn text(self) -> &'static str {
        match self {
            Self::TooManyBlocks => "takes more blocks than the filesystem has",
        }
    }
}

/// One file's contents, as the page cache and others read them.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// The filesystem.
    pub volume: &'a Volume,
    /// The file.
    pub inode: &'a Inode,
    /// Its map.
    pub map: &'a BlockMap,
}

impl Contents<'_> {
    /// Reads up to `buf.len()` bytes at `offset` from the device. Returns how many there were
    /// before the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = self.inode.size_bytes.saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        self.fill(offset, &mut [IoSliceMut::new(&mut buf[..count])])?;
        Ok(count)
    }

    /// Fills `bufs` with the file's bytes from `offset` on, zeros behind its end.
    fn fill(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let sources = self.sources(offset, sources::total_len(bufs), self.inode.size_bytes)?;
        sources.read(&**self.volume.device(), bufs)
    }

    /// Where the bytes of a file that ends at `size` lie, `len_bytes` from `offset` on.
    ///
    /// # Errors
    /// `NoKey` for encrypted ones.
    pub fn sources(&self, offset: u64, len_bytes: u64, size: u64) -> Result<Sources> {
        if self.inode.is_encrypted() {
            return Err(Condition::NoKey.into());
        }
        let size = self.inode.size_bytes.min(size);
        let wanted = size.saturating_sub(offset).min(len_bytes);
        if self.inode.flags.contains(InodeFlags::INLINE_DATA) {
            let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(usize::MAX)];
            InlineData::decode(self.inode, &self.volume.geometry)?.read_at(offset, &mut bytes);
            return Ok(Sources::Inline(bytes));
        }
        let first = self.piece(offset, wanted)?;
        let mut rest = Vec::new();
        let mut done = first.len_bytes;
        while done < wanted {
            let piece = self.piece(offset + done, wanted - done)?;
            done += piece.len_bytes;
            rest.push(piece);
        }
        Ok(Sources::Pieces { first, rest })
    }

    /// Where the inline contents end: at the size, or where the inode holds no more. What a larger
    /// size claims behind that is a hole.
    fn inline_end(&self) -> Result<u64> {
        let data = InlineData::decode(self.inode, &self.volume.geometry)?;
        let held = data.first.len().saturating_add(data.rest.len());
        Ok(self.inode.size_bytes.min(held as u64))
    }

    /// The longest piece from byte `offset` on, of at most `len_max` bytes: neighbouring runs that
    /// are neighbours on the device too are one piece.
    fn piece(&self, offset: u64, len_max: u64) -> Result<Piece> {
        let bits = self.volume.geometry.block_bits;
        let inside = offset & (u64::from(self.volume.geometry.block_bytes) - 1);
        let Ok(first) = u32::try_from(offset >> bits) else {
            return Ok(Piece {
                len_bytes: len_max,
                device: None,
            });
        };
        let run = self.map.lookup(self.volume, FileBlock(first))?;
        let mut blocks = u64::from(run.count);
        loop {
            let len_bytes = (blocks << bits) - inside;
            if len_bytes >= len_max {
                break;
            }
            let next = u32::try_from(u64::from(first) + blocks).ok();
            // A file block that cannot be looked up is for whoever reads it to tell.
            let next = next.and_then(|next| self.map.lookup(self.volume, FileBlock(next)).ok());
            let Some(next) = next.filter(|next| follows(&run, blocks, next)) else {
                break;
            };
            blocks += u64::from(next.count);
        }
        Ok(Piece {
            len_bytes: ((blocks << bits) - inside).min(len_max),
            device: match run.backing {
                Backing::Written(start) => Some((start.0 << bits) + inside),
                Backing::Hole | Backing::Unwritten(_) => None,
            },
        })
    }

    /// Gives the runs of `blocks` to `sink` in order, holes included, until it breaks.
    pub fn runs(
        &self,
        blocks: Range<FileBlock>,
        sink: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut budget = RunBudget::new(self.volume.geometry.blocks_count);
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.counted_run(at, &mut budget)?;
            if sink(run.truncated(blocks.end.0 - at.0)).is_break() {
                break;
            }
            at = run.end();
        }
        Ok(())
    }

    /// The run that `block` lies in, from `block` on, within what `budget` allows.
    fn counted_run(&self, block: FileBlock, budget: &mut RunBudget) -> Result<Run> {
        let run = self.map.lookup(self.volume, block)?;
        budget.spend(&run).map_err(|rule| {
            let locus = Locus::inode(u64::from(self.inode.number.get()));
            Corrupt::new(locus, rule)
        })?;
        Ok(run)
    }
}

/// What a walk over the runs of one file may still meet before they are more than a sound file has.
#[derive(Debug, Clone, Copy)]
struct RunBudget {
    /// Blocks of the file that are taken: never more than the filesystem has.
    blocks: u64,
    /// Holes. Each ends at a block that is taken, by the file or by its map, or at the end of a
    /// block of the map or of one of its four parts.
    holes: u64,
}

impl RunBudget {
    fn new(filesystem_blocks: u64) -> Self {
        Self {
            blocks: filesystem_blocks,
            holes: filesystem_blocks.saturating_mul(2).saturating_add(4),
        }
    }

    fn spend(&mut self, run: &Run) -> Result<(), BlockMapRule> {
        let (left, cost) = match run.backing {
            Backing::Hole => (&mut self.holes, 1),
            Backing::Written(_) | Backing::Unwritten(_) => (&mut self.blocks, run.count.into()),
        };
        *left = left.checked_sub(cost).ok_or(BlockMapRule::TooManyBlocks)?;
        Ok(())
    }
}

impl RunBudget {
    /// Takes back what was spent on all but `count` blocks of a run, or on a hole that was met in
    /// part.
    fn give_back(&mut self, run: &Run, count: u32) {
        match run.backing {
            Backing::Hole => self.holes += 1,
            Backing::Written(_) | Backing::Unwritten(_) => {
                self.blocks += u64::from(run.count - count);
            }
        }
    }
}

/// Whether `next` goes on where `run`, grown to `blocks`, ends.
fn follows(run: &Run, blocks: u64, next: &Run) -> bool {
    let reads_as_zeros = |backing| !matches!(backing, Backing::Written(_));
    match (run.backing, next.backing) {
        (Backing::Written(BlockNr(start)), Backing::Written(BlockNr(next))) => {
            start.checked_add(blocks) == Some(next)
        }
        (before, after) => reads_as_zeros(before) && reads_as_zeros(after),
    }
}

impl AddressSpace for Contents<'_> {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.inode.size_bytes
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.fill(offset, bufs)
    }
}
