//! Mapping and unmapping blocks in an indirect mapping, with the indirect blocks above them.

use std::collections::BTreeSet;
use std::ops::Range;

use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::{DIRECT_COUNT, IndirectMap, IndirectTree, trees};
use crate::FsContext;
use crate::mapping::change::{MapChange, Progress, SPACE_CREDITS};
use crate::ondisk::{BlockNr, FileBlock, GroupNr};

/// Maximum number of levels of indirect blocks.
const LEVELS_MAX: u32 = 3;
/// Maximum number of blocks modified by one step: each indirect block, and the metadata of
/// allocating or freeing it.
pub(in crate::mapping) const STEP_CREDITS: u32 = LEVELS_MAX * (SPACE_CREDITS + 1) + 1;

/// One array of block numbers on the path to a file block: in the inode, or an indirect block.
#[derive(Debug)]
struct BlockArray {
    /// Its block; `None` for the inode.
    place: Option<BlockNr>,
    numbers: Vec<Le32>,
    /// Index of the number that the path follows.
    at: usize,
    /// The first file block below the number `at`.
    first: u64,
    /// Number of file blocks below each number.
    span: u64,
}

impl BlockArray {
    fn number(&self) -> Option<Le32> {
        self.numbers
            .get(self.at)
            .copied()
            .filter(|number| number.get() != 0)
    }

    fn is_empty(&self) -> bool {
        self.numbers.iter().all(|number| number.get() == 0)
    }

    /// Whether it is an empty indirect block with no file block outside a range.
    fn is_empty_within(&self, range: &Range<FileBlock>) -> bool {
        if self.place.is_none() || !self.is_empty() {
            return false;
        }
        let start = self.first.saturating_sub(self.at as u64 * self.span);
        let end = start + self.numbers.len() as u64 * self.span;
        let ends_within = range.end == FileBlock::MAX || end <= u64::from(range.end.0);
        u64::from(range.start.0) <= start && ends_within
    }
}

/// End of a path.
enum Found {
    /// Its last array contains the number of the file block, or zero.
    Whole,
    /// The last array lacks an indirect block; this many levels are missing below it.
    Missing(u32),
}

impl IndirectMap {
    /// Returns the arrays on the path to `block`; `None` after the last block of the format.
    fn way(&self, fs: &FsContext, block: FileBlock) -> Result<Option<(Vec<BlockArray>, Found)>> {
        let per_block = u64::from(fs.geometry.block_bytes / 4);
        let block = u64::from(block.0);
        let tree = trees(per_block).zip(DIRECT_COUNT as usize..);
        let mut tree = tree.filter(|(tree, _)| block < tree.end(per_block));
        let (tree, at) = if block < u64::from(DIRECT_COUNT) {
            let tree = IndirectTree {
                first: block,
                levels: 0,
            };
            (tree, usize::try_from(block).unwrap_or_default())
        } else {
            match tree.next() {
                Some(found) => found,
                None => return Ok(None),
            }
        };
        let mut chain = vec![BlockArray {
            place: None,
            numbers: self.pointers.to_vec(),
            at,
            first: tree.first,
            span: per_block.pow(tree.levels),
        }];
        for level in (0..tree.levels).rev() {
            let Some(above) = chain.last() else {
                break;
            };
            let Some(number) = above.number() else {
                return Ok(Some((chain, Found::Missing(level + 1))));
            };
            let place = self.validate(fs, number, above.place)?;
            let buffer = fs.read_block(place, &Unverified)?;
            let span = per_block.pow(level);
            let index = (block - above.first) / span;
            let first = above.first + index * span;
            chain.push(BlockArray {
                place: Some(place),
                numbers: <[Le32]>::ref_from_bytes(&buffer)
                    .unwrap_or_default()
                    .to_vec(),
                at: usize::try_from(index).unwrap_or(usize::MAX),
                first,
                span,
            });
        }
        Ok(Some((chain, Found::Whole)))
    }

    /// Returns how many indirect blocks mapping `block` would allocate.
    pub(in crate::mapping) fn missing_nodes(
        &self,
        fs: &FsContext,
        block: FileBlock,
    ) -> Result<u32> {
        Ok(match self.way(fs, block)? {
            Some((_, Found::Missing(levels))) => levels,
            Some((_, Found::Whole)) | None => 0,
        })
    }

    /// Maps blocks that are a hole, as many of `count` as one array has. Returns how many.
    pub(in crate::mapping) fn insert(
        &mut self,
        change: &mut MapChange<'_, '_>,
        first: FileBlock,
        start: BlockNr,
        count: u32,
    ) -> Result<u32> {
        let Some((mut chain, found)) = self.way(change.fs, first)? else {
            return Err(Condition::FileTooLarge.into());
        };
        let numbers = block_numbers(start, count)?;
        let Found::Missing(levels) = found else {
            let is_direct = chain.len() == 1;
            let Some(array) = chain.last_mut() else {
                return Ok(0);
            };
            let end = if is_direct {
                DIRECT_COUNT as usize
            } else {
                array.numbers.len()
            };
            let free = array.numbers.get_mut(array.at..end).unwrap_or_default();
            let free = free.iter_mut().zip(&numbers);
            let mut count = 0;
            for (slot, number) in free.take_while(|(slot, _)| slot.get() == 0) {
                *slot = *number;
                count += 1;
            }
            return self.write_last(change, &chain).map(|()| count);
        };
        let nodes = take_nodes(change, levels, start)?;
        let grown = self.grow(change, &mut chain, first, &nodes, &numbers);
        grown.map_err(|error| change.handle.abort(error))
    }

    /// Initializes `nodes`, the highest first, as the missing indirect blocks on the path to
    /// `block`.
    fn grow(
        &mut self,
        change: &mut MapChange<'_, '_>,
        chain: &mut [BlockArray],
        block: FileBlock,
        nodes: &[BlockNr],
        numbers: &[Le32],
    ) -> Result<u32> {
        let (Some(array), Some(&top)) = (chain.last_mut(), nodes.first()) else {
            return Ok(0);
        };
        let per_block = u64::from(change.fs.geometry.block_bytes / 4);
        let mut inside = u64::from(block.0) - array.first;
        let mut span = array.span;
        let mut count = 0;
        let below = nodes.iter().skip(1).copied().map(Some).chain([None]);
        for (&node, below) in nodes.iter().zip(below) {
            span /= per_block;
            let index = usize::try_from(inside / span).unwrap_or_default();
            inside %= span;
            let mut array = vec![Le32::new(0); usize::try_from(per_block).unwrap_or_default()];
            let rest = array.get_mut(index..).unwrap_or_default();
            if let Some(below) = below {
                rest.iter_mut().zip(block_numbers(below, 1)?).for_each(set);
            } else {
                count = u32::try_from(rest.len().min(numbers.len())).unwrap_or(u32::MAX);
                rest.iter_mut().zip(numbers.iter().copied()).for_each(set);
            }
            change.handle.create(node, &Unverified, array.as_bytes())?;
        }
        if let Some(slot) = array.numbers.get_mut(array.at) {
            slot.set(u32::try_from(top.0).map_err(|_| Condition::FileTooLarge)?);
        }
        self.write_last(change, chain)?;
        Ok(count)
    }

    /// Unmaps and frees the blocks of a range, and the indirect blocks that become empty. Those of the
    /// range that are empty already, as Linux may leave them when it punches a hole, are freed too. With
    /// [`Progress::More`], the blocks before the returned one are left.
    pub(in crate::mapping) fn remove(
        &mut self,
        change: &mut MapChange<'_, '_>,
        range: Range<FileBlock>,
    ) -> Result<Progress> {
        let per_block = u64::from(change.fs.geometry.block_bytes / 4);
        let capacity = trees(per_block)
            .last()
            .map_or(0, |tree| tree.end(per_block));
        let mut groups = BTreeSet::new();
        let start = u64::from(range.start.0);
        let mut end = u64::from(range.end.0).min(capacity);
        let mut is_changed = false;
        while start < end {
            let Some((mut chain, found)) = self.way(change.fs, file_block(end - 1))? else {
                break;
            };
            let Some(array) = chain.last_mut() else {
                break;
            };
            let (plan, next) = match found {
                Found::Missing(_) => (Plan::default(), array.first),
                Found::Whole => {
                    let array_start = array.first - array.at as u64;
                    let from = start.saturating_sub(array_start);
                    let from = usize::try_from(from).unwrap_or(usize::MAX);
                    let plan = self.plan(change, array, from, (&mut groups, is_changed))?;
                    let next = array_start + plan.from as u64;
                    (plan, next)
                }
            };
            let is_unused = plan.runs.is_empty() && array.is_empty_within(&range);
            if is_unused && !change.ensure(STEP_CREDITS) && is_changed {
                return Ok(Progress::More(file_block(end)));
            }
            end = next;
            if is_unused || !plan.runs.is_empty() {
                let nodes = emptied(&chain).map(|node| (node, 1));
                let mut freed: Vec<_> = nodes.chain(plan.runs.iter().copied()).collect();
                change.check_freeable(&mut freed)?;
                self.cut(change, &mut chain, &plan.runs)
                    .map_err(|error| change.handle.abort(error))?;
                is_changed = true;
            }
            if plan.is_full {
                return Ok(Progress::More(file_block(end)));
            }
        }
        Ok(Progress::Done)
    }

    /// Clears the numbers of an array from its `at` down to `from`, as far as the handle has
    /// credits for freeing their blocks, some of which are in `groups` that it has changed. The first
    /// run of a handle that has changed nothing always fits.
    fn plan(
        &self,
        change: &mut MapChange<'_, '_>,
        array: &mut BlockArray,
        from: usize,
        (groups, is_changed): (&mut BTreeSet<GroupNr>, bool),
    ) -> Result<Plan> {
        let mut plan = Plan {
            runs: Vec::new(),
            from,
            is_full: false,
        };
        let mut credits = STEP_CREDITS;
        let numbers = array.numbers.iter_mut().enumerate();
        for (at, slot) in numbers.take(array.at + 1).skip(from).rev() {
            if slot.get() == 0 {
                continue;
            }
            let block = self.validate(change.fs, *slot, array.place)?;
            let (_, group) = change.last_piece(block, 1);
            let is_new = !groups.contains(&group);
            credits += if is_new { SPACE_CREDITS } else { 0 };
            if !change.ensure(credits) && (is_changed || !plan.runs.is_empty()) {
                plan.from = at + 1;
                plan.is_full = true;
                break;
            }
            groups.insert(group);
            slot.set(0);
            match plan.runs.last_mut() {
                Some((start, count)) if start.0 == block.0 + 1 && !is_new => {
                    *start = block;
                    *count += 1;
                }
                _ => plan.runs.push((block, 1)),
            }
        }
        Ok(plan)
    }

    /// Stores the last of `chain`, which was modified; an empty indirect block is freed, and its
    /// number above cleared. Then frees the blocks of `runs`.
    fn cut(
        &mut self,
        change: &mut MapChange<'_, '_>,
        chain: &mut Vec<BlockArray>,
        runs: &[(BlockNr, u64)],
    ) -> Result<()> {
        while let Some(array) = chain.last() {
            let Some(place) = array.place.filter(|_| array.is_empty()) else {
                break;
            };
            change.free_node(place)?;
            chain.pop();
            if let Some(slot) = chain
                .last_mut()
                .and_then(|array| array.numbers.get_mut(array.at))
            {
                slot.set(0);
            }
        }
        self.write_last(change, chain)?;
        runs.iter()
            .try_for_each(|&(start, count)| change.free_data(start, count))
    }

    /// Stores the last array.
    fn write_last(&mut self, change: &mut MapChange<'_, '_>, chain: &[BlockArray]) -> Result<()> {
        let Some(array) = chain.last() else {
            return Ok(());
        };
        let bytes = array.numbers.as_bytes();
        if let Some(place) = array.place {
            return change.handle.edit(place, &Unverified, |block| {
                block
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(to, from)| *to = *from);
                Ok(())
            });
        }
        let slots = self.pointers.iter_mut().zip(&array.numbers);
        slots.for_each(|(slot, number)| *slot = *number);
        let block = change.inode.block.iter_mut().zip(bytes);
        block.for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

/// Returns the indirect blocks on a path that become empty, the lowest first, when the last array of it
/// was planned.
fn emptied(chain: &[BlockArray]) -> impl Iterator<Item = BlockNr> {
    let is_empty = |array: &&BlockArray| {
        let mut others = (0..).zip(&array.numbers);
        others.all(|(at, number)| at == array.at || number.get() == 0)
    };
    let empty = chain.iter().rev().take_while(is_empty);
    empty.map_while(|array| array.place)
}

/// Allocates `count` indirect blocks.
fn take_nodes(change: &mut MapChange<'_, '_>, count: u32, goal: BlockNr) -> Result<Vec<BlockNr>> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        let taken = change.alloc_node(goal).and_then(|block| {
            nodes.push(block);
            block_numbers(block, 1)
        });
        let Err(error) = taken else {
            continue;
        };
        for node in nodes {
            change
                .free_node(node)
                .map_err(|error| change.handle.abort(error))?;
        }
        return Err(error);
    }
    Ok(nodes)
}

/// What one step removes from an array.
#[derive(Default)]
struct Plan {
    /// Contiguous physical blocks within one group, the last ones of the file first.
    runs: Vec<(BlockNr, u64)>,
    /// The numbers from this index on were processed.
    from: usize,
    /// The handle has no credits for more.
    is_full: bool,
}

/// Returns the numbers of `count` blocks from `start`.
///
/// # Errors
/// `NoSpace` for block numbers beyond 32 bits.
fn block_numbers(start: BlockNr, count: u32) -> Result<Vec<Le32>> {
    let end = start.0.saturating_add(u64::from(count));
    if end > u64::from(u32::MAX) {
        return Err(Condition::NoSpace.into());
    }
    let number = |block| Le32::new(u32::try_from(block).unwrap_or(u32::MAX));
    Ok((start.0..end).map(number).collect())
}

fn set((slot, number): (&mut Le32, Le32)) {
    *slot = number;
}

fn file_block(block: u64) -> FileBlock {
    FileBlock(u32::try_from(block).unwrap_or(u32::MAX))
}
