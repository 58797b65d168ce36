//! From blocks of a file to blocks of the device: by extents or by indirect blocks.

mod change;
mod extents;
mod indirect;
mod inline;
mod recent;
#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, Range};

use platter_vfs::{Condition, FileKind, Result};

use crate::Volume;
use crate::ondisk::extent::Extent;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags, InodeNr};
use extents::ExtentMap;
use indirect::IndirectMap;
use recent::RecentRuns;

pub use change::{BlockSource, MapChange, Progress, PromisedSource, SPACE_CREDITS};
pub use indirect::{IndirectRule, blocks_of_row, row_of};
pub use inline::{INLINE_DATA_NAME, InlineData, InlineDataRule, store_inline};

/// What backs a run of file blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: the run reads as zeros.
    Hole,
    /// Device blocks in a row from this one.
    Written(BlockNr),
    /// Device blocks in a row from this one, which read as zeros.
    Unwritten(BlockNr),
}

/// File blocks in a row with one kind of backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub first: FileBlock,
    /// Number of blocks, at least 1.
    pub count: u32,
    /// What backs them.
    pub backing: Backing,
}

impl Run {
    /// A hole from `first` to `end`, or to the end of all files.
    fn hole(first: FileBlock, end: Option<FileBlock>) -> Self {
        let end = end.unwrap_or(FileBlock::MAX);
        Self {
            first,
            count: end.0.saturating_sub(first.0).max(1),
            backing: Backing::Hole,
        }
    }

    /// The first block behind the run.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0.saturating_add(self.count))
    }

    /// The run from `block`, which lies in it, on.
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

    /// The device blocks that hold data, one by one; none of a hole or an unwritten run.
    pub fn places(&self) -> impl Iterator<Item = BlockNr> {
        let written = match self.backing {
            Backing::Written(start) => start.0..start.0.saturating_add(u64::from(self.count)),
            Backing::Hole | Backing::Unwritten(_) => 0..0,
        };
        written.map(BlockNr)
    }

    /// At most `count` blocks of the run.
    #[must_use]
    pub fn truncated(mut self, count: u32) -> Self {
        self.count = self.count.min(count);
        self
    }
}

/// A piece of a file's map, as [`BlockMap::visit`] meets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A metadata block of the map. Everything below it is at or behind this file block.
    Node(FileBlock, BlockNr),
    /// Blocks of the file; never a hole.
    Run(Run),
}

/// Takes the pieces of a map until it breaks.
pub type PieceSink<'a> = dyn FnMut(Piece) -> ControlFlow<()> + 'a;

/// Takes what is met in a map: pieces, and errors in the place of what lies below them.
type Visitor<'a> = dyn FnMut(Result<Piece>) -> ControlFlow<()> + 'a;

/// The map of one inode, with the runs found last.
#[derive(Debug)]
pub struct BlockMap {
    form: Form,
    recent: RecentRuns,
    /// Where the file was cut off; what lies behind is not the file's any more.
    end: Option<FileBlock>,
}

#[derive(Debug)]
enum Form {
    /// Nothing is mapped: contents are inline, or there are none.
    Empty,
    Extents(ExtentMap),
    Indirect(IndirectMap),
}

impl BlockMap {
    /// The map of an inode.
    pub fn decode(volume: &Volume, inode: &Inode) -> Result<Self> {
        let form = if !has_blocks(volume, inode) {
            Form::Empty
        } else if inode.flags.contains(InodeFlags::EXTENTS) {
            Form::Extents(ExtentMap::decode(volume, inode)?)
        } else {
            Form::Indirect(IndirectMap::decode(inode.number, &inode.block))
        };
        Ok(Self {
            form,
            recent: RecentRuns::default(),
            end: None,
        })
    }

    /// Takes what lies at `end` and behind it out of the map.
    pub fn cut(&mut self, end: FileBlock) {
        self.end = Some(end);
        self.recent = RecentRuns::default();
    }

    /// The run that `block` lies in, from `block` on. A hole may go on behind the run's end.
    pub fn lookup(&self, volume: &Volume, block: FileBlock) -> Result<Run> {
        if let Some(run) = self.recent.find(block) {
            return Ok(run.starting_at(block));
        }
        let mut run = match &self.form {
            Form::Empty => Run::hole(block, None),
            _ if self.end.is_some_and(|end| block >= end) => Run::hole(block, None),
            Form::Extents(map) => map.lookup(volume, block)?,
            Form::Indirect(map) => map.lookup(volume, block)?,
        };
        if let Some(end) = self.end.filter(|&end| run.first < end) {
            run = run.truncated(end.0 - run.first.0);
        }
        self.recent.insert(run);
        Ok(run.starting_at(block))
    }

    /// The device block of one file block; `None` where the file has none or only an unwritten one.
    pub fn block(&self, volume: &Volume, block: FileBlock) -> Result<Option<BlockNr>> {
        Ok(match self.lookup(volume, block)?.backing {
            Backing::Written(start) => Some(start),
            Backing::Hole | Backing::Unwritten(_) => None,
        })
    }

    /// Gives every metadata block and every run of the map to `sink`, in file order and parents
    /// first, until it breaks or the map does.
    pub fn visit(&self, volume: &Volume, sink: &mut PieceSink<'_>) -> Result<()> {
        let mut broken = Ok(());
        self.visit_sound(volume, &mut |met| match met {
            Ok(piece) => sink(piece),
            Err(error) => {
                broken = Err(error);
                ControlFlow::Break(())
            }
        });
        broken
    }

    /// As [`visit`](Self::visit), but goes on behind what is broken: the visitor is told of each
    /// error, in the place of the pieces below it.
    pub fn visit_sound(
        &self,
        volume: &Volume,
        visitor: &mut dyn FnMut(Result<Piece>) -> ControlFlow<()>,
    ) {
        // How the visit ended is known to the visitor.
        let _ = match &self.form {
            Form::Empty => ControlFlow::Continue(()),
            Form::Extents(map) => map.visit(volume, visitor),
            Form::Indirect(map) => map.visit(volume, visitor),
        };
    }

    /// The map that 15 block numbers make, whatever else the inode says of itself.
    #[must_use]
    pub fn indirect(number: InodeNr, block: &[u8; BLOCK_AREA_BYTES]) -> Self {
        Self {
            form: Form::Indirect(IndirectMap::decode(number, block)),
            recent: RecentRuns::default(),
            end: None,
        }
    }
}

/// Changes. The caller stores the inode afterwards, whose block area and space they keep right.
impl BlockMap {
    /// The map of a new inode, whose block area is made to fit.
    #[must_use]
    pub fn begin(volume: &Volume, inode: &mut Inode) -> Self {
        let form = if !has_blocks(volume, inode) {
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

    /// Has extents become block numbers in the inode, where there is no more than one run, of written
    /// blocks among the first twelve. Returns whether that was so; else nothing is changed.
    pub fn leave_extents(&mut self, volume: &Volume, inode: &mut Inode) -> Result<bool> {
        if !matches!(self.form, Form::Extents(_)) || self.end.is_some() {
            return Ok(false);
        }
        let (mut only, mut is_more) = (None, false);
        self.visit(volume, &mut |piece| match piece {
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

    /// Whether no block is mapped, and none taken for the map.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.form {
            Form::Empty => true,
            Form::Extents(map) => map.is_empty(),
            Form::Indirect(map) => map.is_empty(),
        }
    }

    /// Credits of one step of any change below, but for the inode and for space of the file that is
    /// taken. A handle with fewer makes no progress.
    #[must_use]
    pub fn step_credits(&self) -> u32 {
        let tree = match &self.form {
            Form::Empty => 0,
            // It may have grown by a level until the handle has begun.
            Form::Extents(map) => extents::splice_credits(map.depth().saturating_add(1)),
            Form::Indirect(_) => indirect::STEP_CREDITS,
        };
        tree + SPACE_CREDITS
    }

    /// How far a run from `first` can reach to be mapped in one step.
    #[must_use]
    pub fn step_end(&self, volume: &Volume, first: FileBlock) -> FileBlock {
        match &self.form {
            Form::Empty => first,
            Form::Extents(_) => FileBlock(first.0.saturating_add(Extent::count_max(true))),
            Form::Indirect(_) => {
                let row = row_of(&volume.geometry, first);
                FileBlock(blocks_of_row(&volume.geometry, row).end)
            }
        }
    }

    /// How many blocks of its own the map would need to map a block, where that can be told: a map of
    /// extents takes them from what is kept for it.
    pub fn missing_nodes(&self, volume: &Volume, block: FileBlock) -> Result<u32> {
        match &self.form {
            Form::Empty | Form::Extents(_) => Ok(0),
            Form::Indirect(map) => map.missing_nodes(volume, block),
        }
    }

    /// A block of the file in this cluster of it that has a place, and that.
    pub fn place_in_cluster(
        &self,
        volume: &Volume,
        cluster: u32,
    ) -> Result<Option<(FileBlock, BlockNr)>> {
        let ratio = volume.geometry.cluster_blocks;
        if ratio == 1 {
            return Ok(None);
        }
        let first = cluster.saturating_mul(ratio);
        let end = first.saturating_add(ratio);
        let mut at = FileBlock(first);
        while at.0 < end {
            let run = self.lookup(volume, at)?;
            if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
                return Ok(Some((at, start)));
            }
            at = run.end();
        }
        Ok(None)
    }

    /// Whether all that is mapped can move up by `count` blocks.
    pub fn has_room_above(&self, volume: &Volume, count: u32) -> Result<bool> {
        match &self.form {
            Form::Empty => Ok(true),
            Form::Extents(map) => Ok(map.end(volume)?.checked_add(count).is_some()),
            Form::Indirect(_) => Ok(false),
        }
    }

    /// Maps the first blocks of `run`, which are a hole, as many as one step can. Gives how many.
    ///
    /// # Errors
    /// `NoSpace` before anything is changed, and `FileTooLarge` for blocks that no map has room
    /// for.
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
                map.insert(change, extent).map(|()| count)
            }
            Form::Indirect(_) if unwritten => Err(Condition::NotSupported.into()),
            Form::Indirect(map) => map.insert(change, run.first, start, run.count),
        }
    }

    /// Has what is mapped in a range read as what was written to its blocks, or as zeros where it
    /// is to be `unwritten`. Holes stay. Goes from the start to the end.
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
            Form::Extents(map) => map.convert(change, range, unwritten),
        }
    }

    /// Takes the blocks of a range out of the map and gives them back, from the end to the start.
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
            Form::Extents(map) => map.remove(change, range),
            Form::Indirect(map) => map.remove(change, range),
        }
    }

    /// Moves what is mapped from `from` on down by `count` blocks, which are a hole. Goes from the
    /// start to the end.
    pub fn shift_down(
        &mut self,
        change: &mut MapChange<'_, '_>,
        from: FileBlock,
        count: u32,
    ) -> Result<Progress> {
        self.recent = RecentRuns::default();
        match &mut self.form {
            Form::Empty => Ok(Progress::Done),
            Form::Extents(map) => map.shift_down(change, from, count),
            Form::Indirect(_) => Err(Condition::NotSupported.into()),
        }
    }

    /// Has a run begin at `at`, if that lies within one: then what is mapped from there on can be
    /// moved without any space. One step.
    ///
    /// # Errors
    /// `NoSpace` before anything is changed.
    pub fn part(&mut self, change: &mut MapChange<'_, '_>, at: FileBlock) -> Result<()> {
        self.recent = RecentRuns::default();
        match &mut self.form {
            Form::Empty => Ok(()),
            Form::Extents(map) => map.part(change, at),
            Form::Indirect(_) => Err(Condition::NotSupported.into()),
        }
    }

    /// Moves what is mapped of `range` up by `count` blocks; an extent that begins before the range
    /// is parted. Goes from the end to the start.
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
            Form::Extents(map) => map.shift_up(change, range.start, range.end, count),
            Form::Indirect(_) => Err(Condition::NotSupported.into()),
        }
    }
}

fn has_blocks(volume: &Volume, inode: &Inode) -> bool {
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    match inode.kind {
        FileKind::Regular | FileKind::Directory => true,
        FileKind::Symlink => !inode.has_target_inside(&volume.geometry),
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => false,
    }
}
