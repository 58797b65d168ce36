//! Contents of files: filled from the device run by run, and described as data and holes.

mod limit;
#[cfg(test)]
mod tests;

use std::io::IoSliceMut;
use std::ops::{ControlFlow, Range};

use platter_cache::AddressSpace;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::file::{BlockRuns, FileMap, FileRun, Piece, RunBudget, Sources, TooManyBlocks};
use platter_vfs::writing::RangeSet;
use platter_vfs::{Condition, Error, Extent, ExtentSink, Result, SeekTarget, file};

use crate::FsContext;
use crate::mapping::{Backing, BlockMap, InlineData, Run};
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags};

pub use limit::size_bytes_max;

rules! {
    /// What a whole map must hold to.
    pub enum BlockMapRule of "block map" {
        /// It takes no more blocks than the filesystem has: no two file blocks share one, nor do two
        /// of its own blocks.
        TooManyBlocks => "takes more blocks than the filesystem has",
    }
}

/// One file's contents, as the page cache and others read them.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// The filesystem.
    pub fs: &'a FsContext,
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

    /// Fills `bufs` with the file's bytes from `offset` on, zeros after its end.
    fn fill(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let sources = self.sources(offset, len_bytes, self.inode.size_bytes)?;
        sources.read(&**self.fs.device(), bufs)
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
            InlineData::decode(self.inode, &self.fs.geometry)?.read_at(offset, &mut bytes);
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
    /// size claims after that is a hole.
    fn inline_end(&self) -> Result<u64> {
        let data = InlineData::decode(self.inode, &self.fs.geometry)?;
        let held = data.first.len().saturating_add(data.rest.len());
        Ok(self.inode.size_bytes.min(held as u64))
    }

    /// The longest piece from byte `offset` on, of at most `len_max` bytes: neighbouring runs that
    /// are neighbours on the device too are one piece.
    fn piece(&self, offset: u64, len_max: u64) -> Result<Piece> {
        let bits = self.fs.geometry.block_bits;
        let inside = offset & (u64::from(self.fs.geometry.block_bytes) - 1);
        let Ok(first) = u32::try_from(offset >> bits) else {
            return Ok(Piece {
                len_bytes: len_max,
                device: None,
            });
        };
        let run = self.map.lookup(self.fs, FileBlock(first))?;
        let mut blocks = u64::from(run.count);
        loop {
            let len_bytes = (blocks << bits) - inside;
            if len_bytes >= len_max {
                break;
            }
            let next = u32::try_from(u64::from(first) + blocks).ok();
            // A file block that cannot be looked up is reported when it is read.
            let next = next.and_then(|next| self.map.lookup(self.fs, FileBlock(next)).ok());
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

    /// Passes the runs of `blocks` to `sink` in order, holes included, until it breaks.
    pub fn runs(
        &self,
        blocks: Range<FileBlock>,
        sink: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut budget = RunBudget::new(self.fs.geometry.blocks_count);
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
        let run = self.map.lookup(self.fs, block)?;
        let spent = budget.spend(run.backing == Backing::Hole, u64::from(run.count));
        spent.map_err(|TooManyBlocks| self.too_many_blocks())?;
        Ok(run)
    }
}

impl Contents<'_> {
    /// See [`file::seek`]. The file ends at `size` with the `delayed` blocks.
    pub fn seek(
        &self,
        offset: u64,
        target: SeekTarget,
        size: u64,
        delayed: &RangeSet<u32>,
    ) -> Result<u64> {
        if offset >= size || !self.inode.flags.contains(InodeFlags::INLINE_DATA) {
            return file::seek(&self.mapped(delayed), offset, target, size);
        }
        let end = self.inline_end()?.min(size);
        match target {
            SeekTarget::Data if offset < end => Ok(offset),
            SeekTarget::Data => Err(Condition::NoSuchAddress.into()),
            SeekTarget::Hole => Ok(end.max(offset)),
        }
    }

    /// See [`file::extents`].
    pub fn extents(
        &self,
        range: Range<u64>,
        delayed: &RangeSet<u32>,
        sink: &mut ExtentSink<'_>,
    ) -> Result<()> {
        if range.is_empty() || !self.inode.flags.contains(InodeFlags::INLINE_DATA) {
            return file::extents(&self.mapped(delayed), range, sink);
        }
        let inline = range.start..range.end.min(self.inline_end()?);
        if !inline.is_empty() {
            let _ = sink(Extent {
                inline: true,
                ..Extent::of(inline)
            });
        }
        Ok(())
    }

    /// See [`file::announce`].
    pub fn announce(&self, range: Range<u64>, delayed: &RangeSet<u32>) {
        if self.inode.flags.contains(InodeFlags::INLINE_DATA) {
            return;
        }
        let device = self.fs.device();
        file::announce(&self.mapped(delayed), range, &mut |place, length| {
            device.will_need(place.offset..place.offset + length);
        });
    }

    fn mapped<'m>(&'m self, delayed: &'m RangeSet<u32>) -> Mapped<'m> {
        Mapped {
            contents: self,
            delayed,
        }
    }

    fn too_many_blocks(&self) -> Error {
        let locus = Locus::inode(u64::from(self.inode.number.get()));
        Corrupt::new(locus, BlockMapRule::TooManyBlocks).into()
    }
}

/// A file's block mapping with its delayed blocks.
struct Mapped<'a> {
    contents: &'a Contents<'a>,
    delayed: &'a RangeSet<u32>,
}

impl BlockRuns for Mapped<'_> {
    fn block_bits(&self) -> u32 {
        self.contents.fs.geometry.block_bits
    }

    fn run(&self, block: u64) -> Result<Option<FileRun>> {
        let Some(block) = file_block(block) else {
            return Ok(None);
        };
        let run = self.contents.map.lookup(self.contents.fs, block)?;
        Ok(Some(file_run(&run, self.block_bits())))
    }

    fn next_delayed(&self, block: u64) -> Option<Range<u64>> {
        next_delayed(self.delayed, block)
    }
}

impl FileMap for Mapped<'_> {
    fn filesystem_blocks(&self) -> u64 {
        self.contents.fs.geometry.blocks_count
    }

    fn too_many_blocks(&self) -> Error {
        self.contents.too_many_blocks()
    }
}

/// A block that a file may have.
pub(crate) fn file_block(block: u64) -> Option<FileBlock> {
    let block = u32::try_from(block).ok().map(FileBlock);
    block.filter(|&block| block != FileBlock::MAX)
}

/// A run with its location on the device in bytes.
pub(crate) fn file_run(run: &Run, block_bits: u32) -> FileRun {
    FileRun {
        first: u64::from(run.first.0),
        count: u64::from(run.count),
        backing: match run.backing {
            Backing::Hole => file::Backing::Hole,
            Backing::Written(start) => file::Backing::Written(start.0 << block_bits),
            Backing::Unwritten(start) => file::Backing::Unwritten(start.0 << block_bits),
        },
    }
}

/// The first of the `delayed` blocks that end after `block`, from `block` on.
pub(crate) fn next_delayed(delayed: &RangeSet<u32>, block: u64) -> Option<Range<u64>> {
    let found = delayed.next(u32::try_from(block).ok()?)?;
    Some(u64::from(found.start)..u64::from(found.end))
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
