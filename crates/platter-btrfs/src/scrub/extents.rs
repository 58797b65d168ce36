//! The extents, in order of address.

use std::ops::Range;

use platter_ondisk::Locus;

use super::doubts::KnownUnits;
use super::units::{Kind, Unit};
use super::{Flow, Row, Scrubber, doubts, units};
use crate::block_group::Ranges;
use crate::chunk::{ParityCheck, Placement, RowDoubts, Source, WrongParity};
use crate::context::ListedExtent;
use crate::data::Checksums;
use crate::ondisk::chunk_item::STRIPE_BYTES;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, LogicalAddr};
use crate::txn::WriteContext;

/// Data that is read at once.
const READ_BYTES: u64 = 1 << 20;

/// Reads the extents that begin in a range.
pub(super) fn scrub(scrubber: &mut Scrubber<'_>, range: Range<u64>) -> Flow {
    let mut left = range;
    loop {
        let extents = ListedExtent::next_of(scrubber.context, &mut left)?;
        if extents.is_empty() {
            return Ok(());
        }
        // What a transaction allocated that is not durable is written by now, or will be.
        let durable = scrubber.mounted.map(WriteContext::committed);
        for extent in extents {
            scrubber.done = scrubber.done.saturating_add(extent.len_bytes);
            if durable.is_some_and(|durable| extent.generation > durable) {
                continue;
            }
            if extent.is_tree_block {
                scrub_block(scrubber, extent.start, extent.generation)?;
            } else {
                scrub_data(scrubber, extent.start, extent.len_bytes)?;
            }
            scrubber.report_progress()?;
        }
    }
}

fn scrub_block(scrubber: &mut Scrubber<'_>, at: LogicalAddr, generation: Generation) -> Flow {
    scrubber.counts.tree_extents += 1;
    let expected = Expected {
        generation: Some(generation),
        ..Expected::default()
    };
    let len_bytes = u64::from(scrubber.context.superblock.node_bytes);
    enter_rows(scrubber, at, len_bytes)?;
    let unit = Unit {
        at,
        len_bytes,
        kind: Kind::Block(expected),
    };
    units::scrub_unit(scrubber, &unit)
}

fn scrub_data(scrubber: &mut Scrubber<'_>, start: LogicalAddr, len_bytes: u64) -> Flow {
    scrubber.counts.data_extents += 1;
    let mut at = start;
    let end = LogicalAddr(start.0.saturating_add(len_bytes));
    while at < end {
        let map = scrubber.store().map();
        let chunk = map.find(at)?;
        let segment = chunk.segment(at, (end.0 - at.0).min(READ_BYTES));
        let len_bytes = segment.len_bytes.max(1);
        enter_rows(scrubber, at, len_bytes)?;
        let sums = Checksums::read(scrubber.context, at, len_bytes)?;
        units::scrub_run(scrubber, at, len_bytes, &sums)?;
        at.0 = at.0.saturating_add(len_bytes);
    }
    Ok(())
}

/// Says that what follows is in the rows of a range: those before are complete.
fn enter_rows(scrubber: &mut Scrubber<'_>, at: LogicalAddr, len_bytes: u64) -> Flow {
    let mut at = at;
    let mut left = len_bytes;
    while left > 0 {
        let map = scrubber.store().map();
        let chunk = map.find(at)?;
        let segment = chunk.segment(at, left);
        if let Placement::Parity { row, .. } = segment.placement {
            let known = scrubber.row.as_ref().map(|row| (row.chunk, row.number));
            if known != Some((chunk.start, row)) {
                finish_row(scrubber)?;
                scrubber.row = Some(Row {
                    at,
                    chunk: chunk.start,
                    number: row,
                    columns: Ranges::default(),
                    is_lost: false,
                });
            }
            let start = segment.offset % STRIPE_BYTES;
            let columns = start..start + segment.len_bytes;
            if let Some(row) = &mut scrubber.row {
                row.columns.exclude(&columns);
                row.columns.add(columns);
            }
        } else {
            finish_row(scrubber)?;
        }
        let step = segment.len_bytes.max(1);
        at.0 = at.0.saturating_add(step);
        left = left.saturating_sub(step);
    }
    Ok(())
}

/// Compares the parity of the row that was read last.
pub(super) fn finish_row(scrubber: &mut Scrubber<'_>) -> Flow {
    let Some(row) = scrubber.row.take().filter(|row| !row.is_lost) else {
        return Ok(());
    };
    let Parity {
        mut wrong,
        uncompared,
    } = check_parity(scrubber, &row)?;
    // One that could not be rewritten everywhere is not corrected.
    wrong.sort_unstable_by_key(|it| (it.device, it.is_rewritten));
    wrong.dedup_by_key(|it| it.device);
    for WrongParity {
        device,
        is_rewritten,
    } in wrong
    {
        scrubber.counts.parity_errors += 1;
        let is_corrected = is_rewritten || !scrubber.repairs;
        scrubber.counts.add_outcome(is_corrected);
        let locus = Locus::block(row.at.0).on_member(device.0);
        scrubber.found("parity", locus, 0, "is not that of the data")?;
    }
    for Uncompared { data, is_doubted } in uncompared {
        scrubber.counts.read_errors += 1;
        scrubber.counts.add_outcome(false);
        scrubber.undoubted += u64::from(!is_doubted);
        let locus = data.data.map_or(Locus::UNKNOWN, |at| Locus::block(at.0));
        let locus = locus.on_member(data.device.0).at_offset(data.place.0);
        let text = "cannot be read, and parity cannot be compared with it";
        scrubber.found("data", locus, 0, text)?;
    }
    Ok(())
}

/// What became of the parity of a row.
#[derive(Default)]
struct Parity {
    wrong: Vec<WrongParity>,
    uncompared: Vec<Uncompared>,
}

/// A sector of data that cannot be read, though what is in use of its row was read or rewritten.
struct Uncompared {
    data: Source,
    /// What else of the row is not known to be right may be out of date.
    is_doubted: bool,
}

fn check_parity(scrubber: &Scrubber<'_>, row: &Row) -> Flow<Parity> {
    let unit = doubts::unit_bytes(scrubber, row)?;
    let check = |columns: &Range<u64>| -> Flow<ParityCheck> {
        let known = match unit {
            Some(_) => Some(KnownUnits::read(scrubber, row, columns)?),
            None => None,
        };
        let doubts = known.as_ref().map(|known| -> &dyn RowDoubts { known });
        let store = scrubber.store();
        Ok(store.check_parity(row.at, columns, scrubber.repairs, doubts)?)
    };
    let step = unit.unwrap_or_else(|| scrubber.context.sector_bytes().into());
    let mut parity = Parity::default();
    for columns in row.columns.iter() {
        if unit.is_none()
            && let ParityCheck::Compared(wrong) = check(&columns)?
        {
            parity.wrong.extend(wrong);
            continue;
        }
        let mut at = columns.start;
        while at < columns.end {
            let end = columns.end.min(at + step);
            match check(&(at..end))? {
                ParityCheck::Compared(wrong) => parity.wrong.extend(wrong),
                ParityCheck::Unreadable { data, others } => {
                    let is_doubted =
                        is_any_doubted(scrubber, data.iter().chain(&others), end - at)?;
                    let uncompared = data.into_iter().map(|data| Uncompared { data, is_doubted });
                    parity.uncompared.extend(uncompared);
                }
            }
            at = end;
        }
    }
    Ok(parity)
}

/// Whether any of the parts of a row may be out of date, of which data that is in use was read or rewritten.
fn is_any_doubted<'p>(
    scrubber: &Scrubber<'_>,
    parts: impl Iterator<Item = &'p Source>,
    len_bytes: u64,
) -> Flow<bool> {
    for part in parts.filter(|part| units::is_doubted(scrubber, part, len_bytes)) {
        let is_in_use = match part.data {
            Some(at) => {
                let range = at.0..at.0.saturating_add(len_bytes);
                ListedExtent::is_any_in(scrubber.context, &range)?
            }
            None => false,
        };
        if !is_in_use {
            return Ok(true);
        }
    }
    Ok(false)
}
