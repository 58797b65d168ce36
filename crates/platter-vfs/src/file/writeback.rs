//! Dirty pages on their way to the device: over the blocks they have, or into new ones, which are mapped
//! once the data is there.

use std::io::IoSlice;
use std::ops::Range;

use super::{Allocation, Backing, FileBlocks, FileRun, Request, Target, blocks_of};
use crate::Result;

/// Writes consecutive dirty bytes of a file run by run: what
/// [`write_folios`](platter_cache::page::WritableSpace::write_folios) of a driver's file does.
///
/// # Errors
/// Those of the device and of the driver.
pub fn write_runs<F: FileBlocks>(file: &F, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
    let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
    let end = offset + len;
    let request = Request { offset, end, bufs };
    let blocks = blocks_of(file, &(offset..end));
    let _mapping = file.data().mapping.read();
    let delayed = file.next_delayed(blocks.start);
    let is_delayed = delayed.is_some_and(|delayed| delayed.start < blocks.end);
    let takes_blocks = is_delayed || file.copies_on_write();
    let mut placement = takes_blocks.then(|| file.data().placement.lock());
    let bits = file.block_bits();
    let mut at = blocks.start;
    while at < blocks.end {
        let (target, count) = file.write_target(at..blocks.end)?;
        let run = |start| FileRun {
            first: at,
            count,
            backing: Backing::Written(start),
        };
        let count = match (target, &mut placement) {
            // What became dirty only now is written when its pages are.
            (Target::Nothing, _) | (Target::New | Target::Unwritten(_), None) => count,
            (Target::Overwrite(start), _) => {
                file.overwrite(&request, &run(start))?;
                count
            }
            (Target::Unwritten(start), Some(_)) => {
                let run = run(start);
                file.overwrite(&request, &run)?;
                file.convert_written(&run, request.end_within(&run, bits))?;
                count
            }
            (Target::New, Some(placement)) => {
                write_new(file, &request, at..at + count, &mut **placement)?
            }
        };
        at += count;
    }
    file.extend_on_disk(file.data().end().at(end))
}

/// Allocates the first blocks of a range, writes and maps them. Returns how many.
fn write_new<F: FileBlocks>(
    file: &F,
    request: &Request<'_>,
    mut blocks: Range<u64>,
    placement: &mut F::Placement,
) -> Result<u64> {
    let journaled_max = file.journaled_blocks_max();
    if let Some(count_max) = journaled_max {
        blocks.end = blocks.end.min(blocks.start.saturating_add(count_max));
    }
    let mut allocation = file.allocate(blocks, request, placement)?;
    let run = allocation.run();
    let bits = file.block_bits();
    let written = match (journaled_max, run.backing) {
        (None, Backing::Written(start)) => {
            file.write_device(start, &request.stored(&allocation, bits))
        }
        _ => Ok(()),
    };
    let journaled = journaled_max.map(|_| request);
    let end = request.end_within(&run, bits);
    let written = written.and_then(|()| file.map_written(&mut allocation, end, journaled));
    if let Err(error) = written {
        file.give_back(allocation)?;
        return Err(error);
    }
    file.note_placed(placement, &run);
    Ok(run.count)
}
