//! Units of verification: tree blocks and sectors, each with all of its copies.

use std::io::IoSliceMut;

use platter_ondisk::Locus;

use super::{Distrusted, Flow, Scrubber};
use crate::block_group::Ranges;
use crate::chunk::Source;
use crate::data::Checksums;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{DeviceAddr, DeviceId, LogicalAddr};

/// A tree block or a sector.
#[derive(Debug)]
pub(super) struct Unit<'u> {
    pub(super) at: LogicalAddr,
    pub(super) len_bytes: u64,
    pub(super) kind: Kind<'u>,
}

/// How a unit is verified.
#[derive(Debug)]
pub(super) enum Kind<'u> {
    /// A tree block.
    Block(Expected),
    /// The sector with this number in a range with checksums.
    Sector(&'u Checksums, usize),
}

/// What is wrong with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Unreadable,
    Wrong,
    /// Nothing says that it is right, and its device missed commits.
    Distrusted,
    /// Nothing says that it is right, and there is no other copy that is as good: it is not from the device that is
    /// replaced, or has parity.
    NotCopied,
}

/// What becomes of a bad copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It was rewritten, or would be.
    Corrected,
    /// No copy is right.
    NoCopy,
    /// It could not be rewritten.
    NotWritten,
}

/// A copy that a device has as it is.
#[derive(Debug, Clone, Copy)]
struct Direct {
    copy: u16,
    device: DeviceId,
    place: DeviceAddr,
}

/// Whether a copy of a unit is right; `None` if nothing says so.
pub(super) fn verify(scrubber: &Scrubber<'_>, unit: &Unit<'_>, bytes: &[u8]) -> Option<bool> {
    match &unit.kind {
        Kind::Block(expected) => {
            let format = scrubber.context.blocks.format();
            let is_valid = format.verify(unit.at, bytes).is_ok();
            Some(is_valid && expected.check(bytes).is_ok())
        }
        Kind::Sector(sums, index) if sums.is_stored(*index) => Some(sums.matches(*index, bytes)),
        Kind::Sector(..) => None,
    }
}

/// Why a range of a device is right only if a checksum says so; `None` if it is believed.
fn doubt(
    scrubber: &Scrubber<'_>,
    device: DeviceId,
    place: DeviceAddr,
    len_bytes: u64,
) -> Option<Fault> {
    let Distrusted { stale, not_copied } = &scrubber.distrusted;
    let range = place.0..place.0.saturating_add(len_bytes);
    let is_not_copied = not_copied
        .as_ref()
        .is_some_and(|(target, ranges)| *target == device && ranges.intersects(&range));
    if is_not_copied {
        return Some(Fault::NotCopied);
    }
    stale.contains(&device).then_some(Fault::Distrusted)
}

/// Whether anything may be out of date.
pub(super) fn is_any_doubted(scrubber: &Scrubber<'_>) -> bool {
    let Distrusted { stale, not_copied } = &scrubber.distrusted;
    let missed_commits = || !scrubber.stale.is_empty();
    let is_part_copied = |(_, ranges): &(DeviceId, Ranges)| !ranges.is_empty();
    !stale.is_empty()
        || not_copied
            .as_ref()
            .map_or_else(missed_commits, is_part_copied)
}

/// Whether a part of a row may be out of date where nothing verifies it.
pub(super) fn is_doubted(scrubber: &Scrubber<'_>, part: &Source, len_bytes: u64) -> bool {
    // A replacement device holds what was copied; the rest is in `not_copied`.
    let missed_commits =
        scrubber.stale.contains(&part.device) && scrubber.distrusted.not_copied.is_none();
    missed_commits || doubt(scrubber, part.device, part.place, len_bytes).is_some()
}

/// The copies that devices have as they are.
fn directs(scrubber: &Scrubber<'_>, at: LogicalAddr, len_bytes: u64) -> (Vec<Direct>, u16) {
    let store = scrubber.store();
    let count = store.copies(at, len_bytes);
    let direct = |copy| {
        let (member, place) = store.location(at, copy)?;
        Some(Direct {
            copy,
            device: member.id,
            place,
        })
    };
    ((0..count).filter_map(direct).collect(), count)
}

/// Whether all that a copy is reconstructed from is believed: no checksum says that it is wrong, and its devices are
/// not in doubt.
fn is_from_trusted(scrubber: &Scrubber<'_>, unit: &Unit<'_>, copy: u16) -> Flow<bool> {
    for source in scrubber.store().rebuilt_from(unit.at, copy) {
        if doubt(scrubber, source.device, source.place, unit.len_bytes).is_some() {
            return Ok(false);
        }
        let Some(at) = source.data else {
            continue;
        };
        let sums = Checksums::read(scrubber.context, at, unit.len_bytes)?;
        let data = Unit {
            at,
            len_bytes: unit.len_bytes,
            kind: Kind::Sector(&sums, 0),
        };
        let is_wrong = |bytes: Vec<u8>| verify(scrubber, &data, &bytes) == Some(false);
        if sums.is_stored(0) && read(scrubber, &data, 0).is_some_and(is_wrong) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn read(scrubber: &Scrubber<'_>, unit: &Unit<'_>, copy: u16) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(unit.len_bytes).ok()?];
    let bufs = &mut [IoSliceMut::new(&mut bytes)];
    let read = scrubber.store().read(unit.at, copy, bufs);
    read.is_ok().then_some(bytes)
}

/// Reads every copy of a piece that no stripe boundary divides, and looks closer at sectors of which one is bad.
pub(super) fn scrub_run(
    scrubber: &mut Scrubber<'_>,
    start: LogicalAddr,
    len_bytes: u64,
    sums: &Checksums,
) -> Flow {
    let sector = sums.sector_bytes() as u64;
    let (directs, _) = directs(scrubber, start, len_bytes);
    let count = usize::try_from(len_bytes.div_ceil(sector)).unwrap_or_default();
    let mut is_bad = vec![false; count];
    for direct in &directs {
        let mut bytes = vec![0; usize::try_from(len_bytes).unwrap_or_default()];
        let read = scrubber
            .store()
            .read(start, direct.copy, &mut [IoSliceMut::new(&mut bytes)]);
        for (index, bytes) in bytes.chunks(sums.sector_bytes()).enumerate() {
            let place = DeviceAddr(direct.place.0.saturating_add(index as u64 * sector));
            let is_right = match (&read, sums.is_stored(index)) {
                (Err(_), _) => false,
                (Ok(()), true) => sums.matches(index, bytes),
                (Ok(()), false) => doubt(scrubber, direct.device, place, sector).is_none(),
            };
            if let Some(is_bad) = is_bad.get_mut(index) {
                *is_bad |= !is_right;
            }
        }
    }
    scrubber.counts.data_bytes += len_bytes * directs.len() as u64;
    for (index, is_bad) in is_bad.into_iter().enumerate() {
        scrubber.counts.no_csum += u64::from(!sums.is_stored(index));
        if is_bad {
            let unit = Unit {
                at: LogicalAddr(start.0 + index as u64 * sector),
                len_bytes: sector,
                kind: Kind::Sector(sums, index),
            };
            repair_unit(scrubber, &unit)?;
        }
    }
    Ok(())
}

/// Reads every copy of a tree block.
pub(super) fn scrub_unit(scrubber: &mut Scrubber<'_>, unit: &Unit<'_>) -> Flow {
    let read = repair_unit(scrubber, unit)?;
    scrubber.counts.tree_bytes += unit.len_bytes * read;
    Ok(())
}

/// Reads every copy of a unit, and rewrites those that are bad. Returns how many there are.
fn repair_unit(scrubber: &mut Scrubber<'_>, unit: &Unit<'_>) -> Flow<u64> {
    let (directs, count) = directs(scrubber, unit.at, unit.len_bytes);
    let mut good = None;
    let mut bad = Vec::new();
    for direct in &directs {
        let bytes = read(scrubber, unit, direct.copy);
        let verdict = bytes.as_deref().map(|bytes| verify(scrubber, unit, bytes));
        let doubt = doubt(scrubber, direct.device, direct.place, unit.len_bytes);
        match (verdict, doubt) {
            (None, _) => bad.push((*direct, Fault::Unreadable)),
            // It is as the new device was.
            (Some(Some(false)), Some(Fault::NotCopied)) => bad.push((*direct, Fault::NotCopied)),
            (Some(Some(false)), _) => bad.push((*direct, Fault::Wrong)),
            // With parity there is no other copy that is as good, and the parity is of what is here.
            (Some(None), Some(Fault::Distrusted)) if scrubber.row.is_some() => {
                bad.push((*direct, Fault::NotCopied));
            }
            (Some(None), Some(fault)) => bad.push((*direct, fault)),
            (Some(Some(true)), _) | (Some(None), None) => good = good.or(bytes),
        }
    }
    if bad.is_empty() {
        return Ok(directs.len() as u64);
    }
    if good.is_none() {
        let rebuilt = (0..count).filter(|copy| !directs.iter().any(|it| it.copy == *copy));
        for copy in rebuilt {
            let Some(bytes) = read(scrubber, unit, copy) else {
                continue;
            };
            let is_right = match verify(scrubber, unit, &bytes) {
                Some(is_right) => is_right,
                None => is_from_trusted(scrubber, unit, copy)?,
            };
            if is_right {
                good = Some(bytes);
                break;
            }
        }
    }
    // Of several copies of which none is trusted, one is as good as another.
    let is_lost = good.is_none() && bad.iter().any(|(_, fault)| *fault != Fault::Distrusted);
    let mut is_left = is_lost || !scrubber.repairs;
    for (direct, fault) in bad {
        let store = scrubber.store();
        let outcome = match good.as_deref() {
            None => Outcome::NoCopy,
            Some(_) if !scrubber.repairs => Outcome::Corrected,
            Some(good) => match store.repair_copy(unit.at, direct.copy, good) {
                Ok(()) => Outcome::Corrected,
                Err(_) => Outcome::NotWritten,
            },
        };
        is_left |= outcome == Outcome::NotWritten;
        report_fault(scrubber, unit, direct, fault, outcome)?;
    }
    if let Some(row) = scrubber.row.as_mut().filter(|_| is_left) {
        row.is_lost = true;
    }
    Ok(directs.len() as u64)
}

fn report_fault(
    scrubber: &mut Scrubber<'_>,
    unit: &Unit<'_>,
    direct: Direct,
    fault: Fault,
    outcome: Outcome,
) -> Flow {
    let (structure, is_data) = match unit.kind {
        Kind::Block(_) => ("tree block", false),
        Kind::Sector(..) => ("data", true),
    };
    let counts = &mut scrubber.counts;
    let (text, counter) = match (fault, outcome) {
        // It may be right, or has what it is to have by now: it is not an error.
        (Fault::Distrusted, Outcome::Corrected | Outcome::NoCopy)
        | (Fault::NotCopied, Outcome::Corrected) => return Ok(()),
        (Fault::Distrusted | Fault::NotCopied, Outcome::NotWritten) => {
            ("cannot be rewritten", &mut counts.read_errors)
        }
        (Fault::NotCopied, Outcome::NoCopy) => {
            ("has no copy that can be read", &mut counts.read_errors)
        }
        (Fault::Unreadable, _) => ("cannot be read", &mut counts.read_errors),
        (Fault::Wrong, _) if is_data => ("checksum verify failed", &mut counts.csum_errors),
        (Fault::Wrong, _) => (
            "is not the block that the extent tree has",
            &mut counts.verify_errors,
        ),
    };
    *counter += 1;
    counts.add_outcome(outcome == Outcome::Corrected);
    let locus = Locus::block(unit.at.0)
        .of_copy(direct.copy)
        .on_member(direct.device.0)
        .at_offset(direct.place.0);
    scrubber.found(structure, locus, unit.len_bytes, text)
}
