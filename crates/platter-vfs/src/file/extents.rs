//! What backs a file, as `FIEMAP` reports it, with neighbours on the device joined.

use std::ops::{ControlFlow, Range};

use super::map::counted_run;
use super::{Backing, FileMap, FileRun, RunBudget};
use crate::{Extent, ExtentSink, Place, Result};

/// Extents that one hint announces to the device at most.
const ANNOUNCED_EXTENTS_MAX: u32 = 64;

/// Reports what backs `range` to `sink` in order, until it breaks; space beyond the end of the file
/// included, holes left out. Of holes, delayed blocks have space reserved.
pub fn extents<M: FileMap + ?Sized>(
    map: &M,
    range: Range<u64>,
    sink: &mut ExtentSink<'_>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let bits = map.block_bits();
    let end = range.end.div_ceil(1 << bits);
    let mut budget = RunBudget::new(map.filesystem_blocks());
    let mut joined = Joined {
        last: None,
        is_done: false,
        sink,
    };
    let mut at = range.start >> bits;
    while at < end && !joined.is_done {
        let Some(run) = counted_run(map, at, &mut budget)? else {
            break;
        };
        let run = run.truncated(end - at);
        at = run.end();
        match extent(map, &run, &range) {
            Some(extent) => joined.add(extent),
            None => add_delayed(map, &run, &range, &mut joined),
        }
    }
    joined.end();
    Ok(())
}

/// Announces to the device what of `range` will be read: `will_need` gets places and lengths. A hint: what
/// fails here fails when it is read.
pub fn announce<M: FileMap + ?Sized>(
    map: &M,
    range: Range<u64>,
    will_need: &mut dyn FnMut(Place, u64),
) {
    let mut left = ANNOUNCED_EXTENTS_MAX;
    let _ = extents(map, range, &mut |extent| {
        if let (Some(place), false) = (extent.place, extent.unwritten) {
            will_need(place, extent.file.end - extent.file.start);
        }
        left -= 1;
        if left == 0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
}

/// Joins extents before it reports them.
struct Joined<'s, 'k> {
    last: Option<Extent>,
    is_done: bool,
    sink: &'s mut ExtentSink<'k>,
}

impl Joined<'_, '_> {
    fn add(&mut self, extent: Extent) {
        if self.is_done {
            return;
        }
        match &mut self.last {
            Some(before) if continues(before, &extent) => before.file.end = extent.file.end,
            last => {
                let before = last.replace(extent);
                self.is_done = before.is_some_and(|before| (self.sink)(before).is_break());
            }
        }
    }

    fn end(self) {
        if let (Some(last), false) = (self.last, self.is_done) {
            let _ = (self.sink)(last);
        }
    }
}

/// Adds the delayed blocks of a hole.
fn add_delayed<M: FileMap + ?Sized>(
    map: &M,
    hole: &FileRun,
    range: &Range<u64>,
    joined: &mut Joined<'_, '_>,
) {
    let bits = map.block_bits();
    let mut at = hole.first;
    while let Some(found) = map
        .next_delayed(at)
        .filter(|found| found.start < hole.end())
    {
        at = found.end.min(hole.end());
        let bytes = (found.start << bits).max(range.start)..(at << bits).min(range.end);
        joined.add(Extent {
            delayed: true,
            ..Extent::of(bytes)
        });
    }
}

fn extent<M: FileMap + ?Sized>(map: &M, run: &FileRun, range: &Range<u64>) -> Option<Extent> {
    let bits = map.block_bits();
    let (address, unwritten) = match run.backing {
        Backing::Hole => return None,
        Backing::Written(address) => (address, false),
        Backing::Unwritten(address) => (address, true),
    };
    let first = run.first << bits;
    let start = first.max(range.start);
    let end = first + (run.count << bits);
    let place = map.place(address + (start - first));
    Some(Extent {
        place,
        physical: place,
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
