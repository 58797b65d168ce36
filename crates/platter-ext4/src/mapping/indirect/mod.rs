//! Indirect mapping, as in ext2 and ext3: twelve block numbers in the inode, then trees of indirect
//! blocks, one, two and three levels deep. Zero is a hole. Spec: `ext4/ifork`, "Direct/Indirect".

mod change;

use std::ops::{ControlFlow, Range};

use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;
use zerocopy::{FromBytes, FromZeros};

use super::{Backing, Piece, Run, Visitor};

use crate::FsContext;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::{BlockNr, FileBlock, Geometry, InodeNr};
pub(super) use change::STEP_CREDITS;

/// Number of direct blocks.
const DIRECT_COUNT: u32 = 12;
/// Number of block numbers in the inode: the last three are roots of trees.
const POINTERS: usize = 15;

rules! {
    /// The rules of a block number in an indirect mapping.
    pub enum IndirectRule of "indirect map" {
        /// It is within the filesystem.
        Outside => "illegal block number",
    }
}

/// The mapping of one inode.
#[derive(Debug)]
pub(super) struct IndirectMap {
    pointers: [Le32; POINTERS],
    inode: InodeNr,
}

/// One of the trees, or the direct blocks as a tree without levels.
#[derive(Debug, Clone, Copy)]
struct IndirectTree {
    /// Its first file block.
    first: u64,
    /// Number of levels of indirect blocks.
    levels: u32,
}

impl IndirectMap {
    pub(super) fn decode(inode: InodeNr, block: &[u8; BLOCK_AREA_BYTES]) -> Self {
        let pointers = <[Le32; POINTERS]>::read_from_bytes(block);
        Self {
            pointers: pointers.unwrap_or_else(|_| FromZeros::new_zeroed()),
            inode,
        }
    }

    /// Returns the mapping of one run within the direct blocks; `None` if it is not.
    pub(super) fn direct(inode: InodeNr, run: Option<Run>) -> Option<Self> {
        let mut pointers = <[Le32; POINTERS]>::new_zeroed();
        if let Some(run) = run {
            let Backing::Written(start) = run.backing else {
                return None;
            };
            if run.end().0 > DIRECT_COUNT {
                return None;
            }
            for (file_block, block) in (run.first.0..run.end().0).zip(start.0..) {
                let pointer = pointers.get_mut(file_block as usize)?;
                pointer.set(u32::try_from(block).ok()?);
            }
        }
        Some(Self { pointers, inode })
    }

    /// Returns `i_block`.
    pub(super) fn area(&self) -> [u8; BLOCK_AREA_BYTES] {
        zerocopy::transmute!(self.pointers)
    }

    /// Whether all numbers in the inode are zero.
    pub(super) fn is_empty(&self) -> bool {
        self.pointers.iter().all(|pointer| pointer.get() == 0)
    }

    /// Returns the run from `block` on, within one indirect block; a hole extends over adjacent
    /// zeros in it.
    pub(super) fn lookup(&self, fs: &FsContext, block: FileBlock) -> Result<Run> {
        let geometry = &fs.geometry;
        let (direct, roots) = self.pointers.split_at(DIRECT_COUNT as usize);
        if block.0 < DIRECT_COUNT {
            return self.run(fs, direct, block.0 as usize, block, None);
        }
        let per_block = u64::from(geometry.block_bytes / 4);
        let Some((tree, root)) = trees(per_block)
            .zip(roots)
            .find(|(tree, _)| u64::from(block.0) < tree.end(per_block))
        else {
            return Ok(Run::hole(block, None));
        };
        let mut pointer = *root;
        // Adjacent zeros, from `pointer` on if it is one.
        let mut zeros = 1;
        let mut inside = u64::from(block.0) - tree.first;
        for level in (0..tree.levels).rev() {
            let below = per_block.pow(level);
            if pointer.get() == 0 {
                let rest = zeros * per_block.pow(level + 1) - inside;
                return Ok(hole(block, rest));
            }
            let at = self.validate(fs, pointer, None)?;
            let buffer = fs.read_block(at, &Unverified)?;
            let numbers = <[Le32]>::ref_from_bytes(&buffer).unwrap_or_default();
            let index = usize::try_from(inside / below).unwrap_or(usize::MAX);
            if level == 0 {
                return self.run(fs, numbers, index, block, Some(at));
            }
            inside %= below;
            let tail = numbers.get(index..).unwrap_or_default();
            pointer = tail.first().copied().unwrap_or_default();
            zeros = tail.iter().take_while(|next| next.get() == 0).count() as u64;
        }
        Ok(Run::hole(block, None))
    }

    /// Returns the run from `numbers[index]` on.
    fn run(
        &self,
        fs: &FsContext,
        numbers: &[Le32],
        index: usize,
        block: FileBlock,
        place: Option<BlockNr>,
    ) -> Result<Run> {
        let rest = numbers.get(index..).unwrap_or_default();
        let Some(&number) = rest.first().filter(|number| number.get() != 0) else {
            let holes = rest.iter().take_while(|number| number.get() == 0).count();
            return Ok(hole(block, holes as u64));
        };
        let start = self.validate(fs, number, place)?;
        let in_a_row = (start.0..).zip(rest).take_while(|(expected, number)| {
            *expected == u64::from(number.get()) && fs.geometry.contains(BlockNr(*expected), 1)
        });
        Ok(Run {
            first: block,
            count: u32::try_from(in_a_row.count()).unwrap_or(1).max(1),
            backing: Backing::Written(start),
        })
    }

    fn validate(&self, fs: &FsContext, number: Le32, place: Option<BlockNr>) -> Result<BlockNr> {
        let block = BlockNr(u64::from(number.get()));
        if fs.geometry.contains(block, 1) {
            return Ok(block);
        }
        let inode = Locus::inode(u64::from(self.inode.get()));
        let locus = place.map_or(inode, |place| inode.at_block(place.0));
        Err(Corrupt::new(locus, IndirectRule::Outside).into())
    }

    /// See [`super::BlockMap::visit_sound`].
    pub(super) fn visit(&self, fs: &FsContext, visitor: &mut Visitor<'_>) -> ControlFlow<()> {
        let (direct, roots) = self.pointers.split_at(DIRECT_COUNT as usize);
        self.visit_runs(fs, direct, 0, None, visitor)?;
        let per_block = u64::from(fs.geometry.block_bytes / 4);
        for (tree, &root) in trees(per_block).zip(roots) {
            self.visit_tree(fs, root, tree, visitor)?;
        }
        ControlFlow::Continue(())
    }

    /// Recurses at most three levels: each call has one level less.
    fn visit_tree(
        &self,
        fs: &FsContext,
        root: Le32,
        tree: IndirectTree,
        visitor: &mut Visitor<'_>,
    ) -> ControlFlow<()> {
        // A tree that begins beyond the last possible file block is ignored.
        let first = u32::try_from(tree.first).ok().filter(|_| root.get() != 0);
        let Some(first) = first.map(FileBlock) else {
            return ControlFlow::Continue(());
        };
        let at = match self.validate(fs, root, None) {
            Ok(at) => at,
            Err(error) => return visitor(Err(error)),
        };
        visitor(Ok(Piece::Node(first, at)))?;
        let buffer = match fs.read_block(at, &Unverified) {
            Ok(buffer) => buffer,
            Err(error) => return visitor(Err(error)),
        };
        let numbers = <[Le32]>::ref_from_bytes(&buffer).unwrap_or_default();
        if tree.levels == 1 {
            return self.visit_runs(fs, numbers, first.0, Some(at), visitor);
        }
        let per_block = u64::from(fs.geometry.block_bytes / 4);
        let below = per_block.pow(tree.levels - 1);
        for (index, &number) in (0u64..).zip(numbers) {
            let child = IndirectTree {
                first: tree.first + index * below,
                levels: tree.levels - 1,
            };
            self.visit_tree(fs, number, child, visitor)?;
        }
        ControlFlow::Continue(())
    }

    fn visit_runs(
        &self,
        fs: &FsContext,
        numbers: &[Le32],
        first: u32,
        place: Option<BlockNr>,
        visitor: &mut Visitor<'_>,
    ) -> ControlFlow<()> {
        let mut index = 0;
        while index < numbers.len() {
            let skipped = u32::try_from(index).unwrap_or(u32::MAX);
            let Some(block) = FileBlock(first).checked_add(skipped) else {
                break;
            };
            match self.run(fs, numbers, index, block, place) {
                Ok(run) => {
                    if run.backing != Backing::Hole {
                        visitor(Ok(Piece::Run(run)))?;
                    }
                    index += run.count as usize;
                }
                Err(error) => {
                    visitor(Err(error))?;
                    index += 1;
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// Returns a hole of at most `count` blocks from `block` on.
fn hole(block: FileBlock, count: u64) -> Run {
    let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    Run::hole(block, block.checked_add(count))
}

/// Returns the index of the leaf array with the number of a block: 0 for the direct blocks, then the
/// lowest-level indirect blocks in file order.
#[must_use]
pub fn leaf_of(geometry: &Geometry, block: FileBlock) -> u32 {
    let beyond = block.0.checked_sub(DIRECT_COUNT);
    beyond.map_or(0, |beyond| 1 + beyond / (geometry.block_bytes / 4))
}

/// Returns the file blocks of a leaf array.
#[must_use]
pub fn blocks_of_leaf(geometry: &Geometry, leaf: u32) -> Range<u32> {
    let per_block = geometry.block_bytes / 4;
    match leaf.checked_sub(1) {
        Some(beyond) => {
            let first = beyond
                .saturating_mul(per_block)
                .saturating_add(DIRECT_COUNT);
            first..first.saturating_add(per_block)
        }
        None => 0..DIRECT_COUNT,
    }
}

impl IndirectTree {
    /// Returns the first file block after it.
    fn end(&self, per_block: u64) -> u64 {
        self.first + per_block.pow(self.levels)
    }
}

/// Returns the three trees, in file order. With 64 KiB blocks the last one ends at 2^42 blocks.
fn trees(per_block: u64) -> impl Iterator<Item = IndirectTree> {
    (1..=3).scan(u64::from(DIRECT_COUNT), move |next, levels| {
        let tree = IndirectTree {
            first: *next,
            levels,
        };
        *next = tree.end(per_block);
        Some(tree)
    })
}
