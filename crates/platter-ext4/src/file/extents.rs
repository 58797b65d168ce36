//! What backs a file, as `FIEMAP` tells it, with neighbours on the device made one.

use std::ops::{ControlFlow, Range};

use platter_vfs::writing::RangeSet;
use platter_vfs::{Extent, ExtentSink, Place, Result};

use super::Contents;
use crate::mapping::{Backing, Run};
use crate::ondisk::{FileBlock, InodeFlags};

impl Contents<'_> {
    /// Gives what backs `range` to `sink` in order, until it breaks; space behind the end of the
    /// file included, holes left out. Of holes, what is `pending` in the cache has space promised.
    pub fn extents(
        &self,
        range: Range<u64>,
        pending: &RangeSet<u32>,
        sink: &mut ExtentSink<'_>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if self.inode.flags.contains(InodeFlags::INLINE_DATA) {
            let file = range.start..range.end.min(self.inline_end()?);
            if !file.is_empty() {
                let _ = sink(inline(file));
            }
            return Ok(());
        }
        let bits = self.volume.geometry.block_bits;
        let block = |offset: u64| FileBlock(u32::try_from(offset).unwrap_or(u32::MAX));
        let blocks = block(range.start >> bits)..block(range.end.div_ceil(1 << bits));
        let mut last: Option<Extent> = None;
        let mut is_done = false;
        let mut add = |extent: Extent| {
            match &mut last {
                Some(before) if continues(before, &extent) => before.file.end = extent.file.end,
                _ => {
                    is_done = last
                        .replace(extent)
                        .is_some_and(|done| sink(done).is_break());
                }
            }
            if is_done {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        self.runs(blocks, &mut |run| match extent(&run, bits, &range) {
            Some(extent) => add(extent),
            None => pending
                .within(run.first.0..run.end().0)
                .try_for_each(|blocks| add(delayed(&blocks, bits, &range))),
        })?;
        if is_done {
            return Ok(());
        }
        if let Some(last) = last {
            let _ = sink(last);
        }
        Ok(())
    }
}

fn inline(file: Range<u64>) -> Extent {
    Extent {
        inline: true,
        ..Extent::of(file)
    }
}

/// Blocks of a hole that space is promised to.
fn delayed(blocks: &Range<u32>, bits: u32, range: &Range<u64>) -> Extent {
    let start = (u64::from(blocks.start) << bits).max(range.start);
    let end = (u64::from(blocks.end) << bits).min(range.end);
    Extent {
        delayed: true,
        ..Extent::of(start..end)
    }
}

fn extent(run: &Run, bits: u32, range: &Range<u64>) -> Option<Extent> {
    let (block, unwritten) = match run.backing {
        Backing::Hole => return None,
        Backing::Written(block) => (block, false),
        Backing::Unwritten(block) => (block, true),
    };
    let first = u64::from(run.first.0) << bits;
    let start = first.max(range.start);
    let end = first + (u64::from(run.count) << bits);
    Some(Extent {
        place: Some(Place {
            member: 0,
            offset: (block.0 << bits) + (start - first),
        }),
        unwritten,
        ..Extent::of(start..end.min(range.end))
    })
}

fn continues(before: &Extent, after: &Extent) -> bool {
    let length = before.file.end - before.file.start;
    let end = before.place.map(|Place { member, offset }| Place {
        member,
        offset: offset + length,
    });
    before.file.end == after.file.start
        && before.delayed == after.delayed
        && before.unwritten == after.unwritten
        && end == after.place
}
