//! Block mapping: from logical blocks of a file to physical blocks, by extents or indirect blocks.

mod change;
mod extents;
mod indirect;
mod inline;
mod recent;
mod fill;
#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, Range};

use platter_vfs::{Condition, FileKind, Result};

use crate::FsContext;
use crate::ondisk::extent::Extent;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags, InodeNr};
use extents::ExtentMap;
use indirect::IndirectMap;
use recent::RecentRuns;

pub use change::{BlockSource, MapChange, Progress, ReservedSource, SPACE_CREDITS};
pub use indirect::{IndirectRule, blocks_of_leaf, leaf_of};
pub use inline::{INLINE_DATA_NAME, InlineData, InlineDataRule, store_inline};

/// The mapping of a run of file blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: the run reads as zeros.
    Hole,
    /// Contiguous physical blocks from this one.
    Written(BlockNr),
    /// Contiguous physical blocks from this one, which read as zeros.
    Unwritten(BlockNr),
}

impl Backing {
    /// Returns the first physical block; `None` for a hole.
    #[must_use]
    pub fn start(self) -> Option<BlockNr> {
        match self {
            Self::Hole => None,
            Self::Written(start) | Self::Unwritten(start) => Some(start),
        }
    }
}

/// Contiguous file blocks with one kind of mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub first: FileBlock,
    /// Number of blocks, at least 1.
    pub count: u32,
    /// Their mapping.
    pub backing: Backing,
}

impl Run {
    /// Returns a hole from `first` to `end`, or to the last possible file block.
    fn hole(first: FileBlock, end: Option<FileBlock>) -> Self {
        let end = end.unwrap_or(FileBlock::MAX);
        Self {
            first,
            count: end.0.saturating_sub(first.0).max(1),
            backing: Backing::Hole,
        }
    }

    /// Returns the first block after the run.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0.saturating_add(self.count))
    }

    /// Returns the rest of the run from `block` on, which is part of it.
    #[must_use]
    pub fn starting_at(&self, block: FileBlock) -> Self {
        let skipped = block.0.saturating_sub(self.first.0).min(self.count);
        let at = |start: BlockNr| BlockNr(start.0.saturating_add(u64::from(skipped)));
        Self {
            first: block,
            count: self.count - skipped,
            backing: match self.backing {
                Backing::Hole => Backing::Hole,
                Backing::Written(start) => Backing::Written(at(start)),
                Backing::Unwritten(start) => Backing::Unwritten(at(start)),
            },
        }
    }

    /// Returns the physical blocks of a written run one by one; none for other runs.
    pub fn places(&self) -> impl Iterator<Item = BlockNr> {
        let written = match self.backing {
            Backing::Written(start) => start.0..start.0.saturating_add(u64::from(self.count)),
            Backing::Hole | Backing::Unwritten(_) => 0..0,
        };
        written.map(BlockNr)
    }

    /// Limits the run to `count` blocks.
    #[must_use]
    pub fn truncated(mut self, count: u32) -> Self {
        self.count = self.count.min(count);
        self
    }
}

/// A part of a mapping, as passed by [`BlockMap::visit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A metadata block of the mapping. All file blocks below it are at or after this one.
    Node(FileBlock, BlockNr),
    /// A run of data blocks; never a hole.
    Run(Run),
}

/// Receives the parts of a mapping until it breaks.
pub type PieceSink<'a> = dyn FnMut(Piece) -> ControlFlow<()> + 'a;

/// Receives the parts of a mapping, and errors in place of the parts below them.
type Visitor<'a> = dyn FnMut(Result<Piece>) -> ControlFlow<()> + 'a;

/// The block mapping of one inode, with a cache of recent runs.
#[derive(Debug)]
pub struct BlockMap {
    form: Form,
    recent: RecentRuns,
    /// The block at which the file was truncated; blocks from here on are not part of it.
    end: Option<FileBlock>,
}

#[derive(Debug)]
enum Form {
    /// Nothing is mapped: inline data, or none.
    Empty,
    Extents(ExtentMap),
    Indirect(IndirectMap),
}

impl BlockMap {
    /// Decodes the mapping of an inode.
    pub fn decode(fs: &FsContext, inode: &Inode) -> Result<Self> {
        let form = if !has_blocks(fs, inode) {
            Form::Empty
        } else if inode.flags.contains(InodeFlags::EXTENTS) {
            Form::Extents(ExtentMap::decode(fs, inode)?)
        } else {
            Form::Indirect(IndirectMap::decode(inode.number, &inode.block))
        };
        Ok(Self {
            form,
            recent: RecentRuns::default(),
            end: None,
        })
    }

    /// Hides all blocks from `end` on.
    pub fn cut(&mut self, end: FileBlock) {
        self.end = Some(end);
        self.recent = RecentRuns::default();
    }

    /// Returns the run that contains `block`, from `block` on. A hole may continue after the run.
    pub fn lookup(&self, fs: &FsContext, block: FileBlock) -> Result<Run> {
        if let Some(run) = self.recent.find(block) {
            return Ok(run.starting_at(block));
        }
        let mut run = match &self.form {
            Form::Empty => Run::hole(block, None),
            _ if self.end.is_some_and(|end| block >= end) => Run::hole(block, None),
            Form::Extents(map) => map.lookup(fs, block)?,
            Form::Indirect(map) => map.lookup(fs, block)?,
        };
        if let Some(end) = self.end.filter(|&end| run.first < end) {
            run = run.truncated(end.0 - run.first.0);
        }
        self.recent.insert(run);
        Ok(run.starting_at(block))
    }

    /// Returns the physical block of one file block; `None` for a hole or an unwritten block.
    pub fn block(&self, fs: &FsContext, block: FileBlock) -> Result<Option<BlockNr>> {
        Ok(match self.lookup(fs, block)?.backing {
            Backing::Written(start) => Some(start),
            Backing::Hole | Backing::Unwritten(_) => None,
        })
    }

    /// Passes every metadata block and every run to `sink`, in file order and parents first, until
    /// it breaks or an error occurs.
    pub fn visit(&self, fs: &FsContext, sink: &mut PieceSink<'_>) -> Result<()> {
        let mut broken = Ok(());
        self.visit_sound(fs, &mut |found| match found {
            Ok(piece) => sink(piece),
            Err(error) => {
                broken = Err(error);
                ControlFlow::Break(())
            }
        });
        broken
    }

    /// Like [`visit`](Self::visit), but continues after errors: the visitor receives each error in
    /// place of the parts below it.
    pub fn visit_sound(
        &self,
        fs: &FsContext,
        visitor: &mut dyn FnMut(Result<Piece>) -> ControlFlow<()>,
    ) {
        // The visitor knows whether it broke.
        let _ = match &self.form {
            Form::Empty => ControlFlow::Continue(()),
            Form::Extents(map) => map.visit(fs, visitor),
            Form::Indirect(map) => map.visit(fs, visitor),
        };
    }

    /// Returns the indirect mapping of 15 block numbers, regardless of the inode's other fields.
    #[must_use]
    pub fn indirect(number: InodeNr, block: &[u8; BLOCK_AREA_BYTES]) -> Self {
        Self {
            form: Form::Indirect(IndirectMap::decode(number, block)),
            recent: RecentRuns::default(),
            end: None,
        }
    }
}

/// Changes. The caller stores the inode afterwards, whose `i_block` and `i_blocks` are updated.
impl BlockMap {
    /// Creates the mapping of a new inode, and initializes its `i_block`.
    #[must_use]
    pub fn begin(fs: &FsContext, inode: &mut Inode) -> Self {
        let form = if !has_blocks(fs, inode) {
            Form::Empty
        } else if inode.flags.contains(InodeFlags::EXTENTS) {
            let map = ExtentMap::empty(inode.number, inode.checksum_seed);
            inode.block = map.root();
            Form::Extents(map)
        } else {
            inode.block = [0; BLOCK_AREA_BYTES];
            Form::Indirect(IndirectMap::decode(inode.number, &inode.block))
        };
        Self {
            form,
            recent: RecentRuns::default(),
            end: None,
        }
    }

    /// Converts an extent tree to block numbers in the inode, if it is a single run of written
    /// blocks among the first twelve. Returns whether it was converted; else nothing is changed.
    pub fn leave_extents(&mut self, fs: &FsContext, inode: &mut Inode) -> Result<bool> {
        if !matches!(self.form, Form::Extents(_)) || self.end.is_some() {
            return Ok(false);
        }
        let (mut only, mut is_more) = (None, false);
        self.visit(fs, &mut |piece| match piece {
            Piece::Run(run) if only.is_none() => {
                only = Some(run);
                ControlFlow::Continue(())
            }
            Piece::Run(_) | Piece::Node(..) => {
                is_more = true;
                ControlFlow::Break(())
            }
        })?;
        let Some(map) = IndirectMap::direct(inode.number, only).filter(|_| !is_more) else {
            return Ok(false);
        };
        inode.block = map.area();
        inode.flags.remove(InodeFlags::EXTENTS);
        self.form = Form::Indirect(map);
        self.recent = RecentRuns::default();
        Ok(true)
    }

    /// Whether no block is mapped or allocated for the mapping.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.form {
            Form::Empty => true,
            Form::Extents(map) => map.is_empty(),
            Form::Indirect(map) => map.is_empty(),
        }
    }

    /// Returns the credits of one step of any change below, without the inode and the allocation of
    /// data blocks. A handle with fewer makes no progress.
    #[must_use]
    pub fn step_credits(&self) -> u32 {
        let tree = match &self.form {
            Form::Empty => 0,
            // The tree may grow by a level before the handle begins.
            Form::Extents(map) => extents::splice_credits(map.depth().saturating_add(1)),
            Form::Indirect(_) => indirect::STEP_CREDITS,
        };
        tree + SPACE_CREDITS
    }

    /// Returns how far a run from `first` can be mapped in one step.
    #[must_use]
    pub fn step_end(&self, fs: &FsContext, first: FileBlock) -> FileBlock {
        match &self.form {
            Form::Empty => first,
            Form::Extents(_) => FileBlock(first.0.saturating_add(Extent::count_max(true))),
            Form::Indirect(_) => {
                let leaf = leaf_of(&fs.geometry, first);
                FileBlock(blocks_of_leaf(&fs.geometry, leaf).end)
            }
        }
    }

    /// Returns how many indirect blocks mapping a block would allocate; zero for extents, whose
    /// blocks come from a reserve.
    pub fn missing_nodes(&self, fs: &FsContext, block: FileBlock) -> Result<u32> {
        match &self.form {
            Form::Empty | Form::Extents(_) => Ok(0),
            Form::Indirect(map) => map.missing_nodes(fs, block),
        }
    }

    /// Whether `count` more extents fit in the inode, so that none needs a tree block; true for block numbers.
    #[must_use]
    pub fn fits_in_root(&self, count: u64) -> bool {
        match &self.form {
            Form::Empty | Form::Indirect(_) => true,
            Form::Extents(map) => count <= map.free_in_root() as u64,
        }
    }

    /// Returns a mapped block of the file in this logical cluster, and its physical block.
    pub fn place_in_cluster(
        &self,
        fs: &FsContext,
        cluster: u32,
    ) -> Result<Option<(FileBlock, BlockNr)>> {
        let ratio = fs.geometry.cluster_blocks;
        if ratio == 1 {
            return Ok(None);
        }
        let first = cluster.saturating_mul(ratio);
        let end = first.saturating_add(ratio);
        let mut at = FileBlock(first);
        while at.0 < end {
            let run = self.lookup(fs, at)?;
            if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
                return Ok(Some((at, start)));
            }
            at = run.end();
        }
        Ok(None)
    }

    /// Whether all mapped blocks can be shifted up by `count` blocks.
    pub fn has_space_above(&self, fs: &FsContext, count: u32) -> Result<bool> {
        match &self.form {
            Form::Empty => Ok(true),
            Form::Extents(map) => Ok(extents::end(map, fs)?.checked_add(count).is_some()),
            Form::Indirect(_) => Ok(false),
        }
    }

    /// Maps the first blocks of `run`, which are a hole, as many as one step can. Returns how many.
    ///
    /// # Errors
    /// `NoSpace` before anything is changed, and `FileTooLarge` beyond the last block of the
    /// format.
    pub fn insert(&mut self, change: &mut MapChange<'_, '_>, run: Run) -> Result<u32> {
        let (start, unwritten) = match run.backing {
            Backing::Hole => return Ok(run.count),
            Backing::Written(start) => (start, false),
            Backing::Unwritten(start) => (start, true),
        };
        self.recent = RecentRuns::default();
        match &mut self.form {
            Form::Empty => Err(Condition::InvalidArgument.into()),
            Form::Extents(map) => {
                let count = run.count.min(Extent::count_max(unwritten));
                let extent = Extent {
                    first: run.first,
                    count,
                    start,
                    unwritten,
                };
                extents::insert(map, change, extent).map(|()| count)
            }
            Form::Indirect(_) if unwritten => Err(Condition::NotSupported.into()),
            Form::Indirect(map) => map.insert(change, run.first, start, run.count),
        }
    }

    /// Marks the mapped blocks in a range as written, or as unwritten. Holes are skipped. Runs from
    /// the start to the end.
    ///
    /// # Errors
    /// `NoSpace` before a step.
    pub fn convert(
        &mut self,
        change: &mut MapChange<'_, '_>,
        range: Range<FileBlock>,
        unwritten: bool,
    ) -> Result<Progress> {
        self.recent = RecentRuns::default();
        match &mut self.form {
            Form::Empty | Form::Indirect(_) => Ok(Progress::Done),
            Form::Extents(map) => extents::convert(map, change, range, unwritten),
        }
    }

    /// Unmaps and frees the blocks of a range, from the end to the start.
    ///
    /// # Errors
    /// `NoSpace` before a step.
    pub fn remove(
        &mut self,
        change: &mut MapChange<'_, '_>,
        range: Range<FileBlock>,
    ) -> Result<Progress> {
        self.recent = RecentRuns::default();
        match &mut self.form {
            Form::Empty => Ok(Progress::Done),
            Form::Extents(map) => extents::remove(map, change, range),
            Form::Indirect(map) => map.remove(change, range),
        }
    }

    /// Shifts all mapped blocks from `from` on down by `count` blocks, which are a hole. Runs from
    /// the start to the end.
    pub fn shift_down(
        &mut self,
        change: &mut MapChange<'_, '_>,
        from: FileBlock,
        count: u32,
    ) -> Result<Progress> {
        self.recent = RecentRuns::default();
        match &mut self.form {
            Form::Empty => Ok(Progress::Done),
            Form::Extents(map) => extents::shift_down(map, change, from, count),
            Form::Indirect(_) => Err(Condition::NotSupported.into()),
        }
    }

    /// Splits the run that contains `at`, so that the blocks from there on can be shifted without
    /// allocation. One step.
    ///
    /// # Errors
    /// `NoSpace` before anything is changed.
    pub fn part(&mut self, change: &mut MapChange<'_, '_>, at: FileBlock) -> Result<()> {
        self.recent = RecentRuns::default();
        match &mut self.form {
            Form::Empty => Ok(()),
            Form::Extents(map) => extents::part(map, change, at),
            Form::Indirect(_) => Err(Condition::NotSupported.into()),
        }
    }

    /// Shifts the mapped blocks of `range` up by `count` blocks; an extent that begins before the
    /// range is split. Runs from the end to the start.
    ///
    /// # Errors
    /// `NoSpace` before a step.
    pub fn shift_up(
        &mut self,
        change: &mut MapChange<'_, '_>,
        range: Range<FileBlock>,
        count: u32,
    ) -> Result<Progress> {
        self.recent = RecentRuns::default();
        match &mut self.form {
            Form::Empty => Ok(Progress::Done),
            Form::Extents(map) => extents::shift_up(map, change, range.start, range.end, count),
            Form::Indirect(_) => Err(Condition::NotSupported.into()),
        }
    }
}

fn has_blocks(fs: &FsContext, inode: &Inode) -> bool {
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    match inode.kind {
        FileKind::Regular | FileKind::Directory => true,
        FileKind::Symlink => !inode.has_target_inside(&fs.geometry),
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => false,
    }
}
