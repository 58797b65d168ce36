//! Blocks of entries of a directory: their regions, and the table of the longest free ones. Spec:
//! `xfs/directories`.

use platter_ondisk::Locus;
use zerocopy::FromBytes;

use super::directories::DirScan;
use super::{Checker, DirectoryUseRule, Flow, directories};
use crate::ondisk::dir::DataPointer;
use crate::ondisk::dir::data::{DataKind, DirData, DiskDirHeaderV5, Region};
use platter_vfs::check::Checking as _;

/// Reads a block of entries.
pub(super) fn check(
    checker: &mut Checker<'_>,
    scan: &mut DirScan<'_>,
    number: u32,
    kind: DataKind,
) -> Flow {
    let locus = scan.locus();
    let read = scan.directory.data_block(number, kind);
    let block = match checker.tolerate("directory block", locus, read)? {
        Some(Some(block)) => block,
        Some(None) => {
            scan.is_whole = false;
            return checker.found(locus, crate::directory::DirectoryRule::Missing);
        }
        None => {
            scan.is_whole = false;
            scan.corrupt += 1;
            checker.misses_entries = true;
            return Ok(());
        }
    };
    note_lsn(checker, &block, locus);
    let view = scan.directory.view_data(&block, kind);
    let Some(data) = checker.tolerate("directory block", locus, view)? else {
        scan.is_whole = false;
        checker.misses_entries = true;
        return Ok(());
    };
    let mut free = Vec::new();
    let mut is_after_free = false;
    let mut nth = 0;
    let geometry = checker.context.geometry();
    for region in data.regions(geometry) {
        match region {
            Ok(Region::Free { offset, len }) => {
                if is_after_free {
                    checker.found(locus, DirectoryUseRule::AdjacentFree)?;
                }
                is_after_free = true;
                free.push((len, offset));
            }
            Ok(Region::Entry(entry)) => {
                is_after_free = false;
                if let Some(pointer) = DataPointer::new(geometry, number, entry.offset) {
                    let hash = scan.directory.hash(entry.name);
                    scan.entries.push((hash, pointer.0));
                }
                let is_first_block = number == 0;
                let position = if is_first_block { Some(nth) } else { None };
                directories::take_entry(
                    checker,
                    scan,
                    entry.name,
                    entry.inode,
                    entry.kind,
                    position,
                )?;
                nth += 1;
            }
            Err(rule) => {
                scan.is_whole = false;
                checker.misses_entries = true;
                return checker.found(locus, rule);
            }
        }
    }
    let best = check_best_free(checker, &data, &mut free, locus)?;
    scan.bests.push((number, best));
    if kind == DataKind::Single {
        scan.leaves.extend(data.leaves.iter().filter_map(|leaf| {
            let pointer = leaf.pointer()?;
            Some((leaf.hash.get(), pointer.0))
        }));
        let stale = data.leaves.iter().filter(|leaf| leaf.pointer().is_none());
        if stale.count() != data.stale as usize {
            checker.found(locus, DirectoryUseRule::Stale)?;
        }
        if !data.leaves.is_sorted_by_key(|leaf| leaf.hash.get()) {
            checker.found(locus, DirectoryUseRule::Order)?;
        }
    }
    Ok(())
}

/// The header of a block names its longest free regions, longest first.
fn check_best_free(
    checker: &mut Checker<'_>,
    data: &DirData<'_>,
    free: &mut [(usize, usize)],
    locus: Locus,
) -> Flow<u16> {
    free.sort_unstable_by(|a, b| b.cmp(a));
    let length = |nth: usize| free.get(nth).map_or(0, |&(len, _)| len);
    let mut offsets = Vec::new();
    let is_sound = data.best_free.iter().enumerate().all(|(nth, best)| {
        let len = usize::from(best.length.get());
        let offset = usize::from(best.offset.get());
        let exists = len == 0 && offset == 0 || free.contains(&(len, offset));
        let is_new = len == 0 || !offsets.contains(&offset);
        offsets.push(offset);
        len == length(nth) && exists && is_new
    });
    if !is_sound {
        checker.found(locus, DirectoryUseRule::BestFree)?;
    }
    Ok(u16::try_from(length(0)).unwrap_or(u16::MAX))
}

/// Remembers the log sequence number of a block of entries or a free index.
pub(super) fn note_lsn(checker: &mut Checker<'_>, bytes: &[u8], locus: Locus) {
    if checker.context.geometry().features.is_v5()
        && let Ok((header, _)) = DiskDirHeaderV5::ref_from_prefix(bytes)
    {
        checker.note_lsn(header.lsn.get(), locus);
    }
}
