//! The primary superblock beyond what a mount checks, its copies, and its counters against what was
//! counted. Spec: `xfs/allocation_groups`, "Superblocks".

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::check::{Checking as _, Finding};

use super::{BackupRule, Checker, Flow, SuperblockUseRule, TotalsRule};
use crate::ondisk::{AgNr, DiskSuperblock, InodeNr, Superblock};

/// Checks what the primary superblock says beyond what a mount checks.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let superblock = &checker.context.superblock;
    let geometry = checker.context.geometry();
    let locus = Locus::group(0);
    checker.note_lsn(superblock.lsn.0, locus);
    if superblock.features.needs_repair() {
        checker.found(locus, SuperblockUseRule::NeedsRepair)?;
    }
    // mkfs allocates them one after the other, and nothing moves them.
    let root = superblock.root_inode.get();
    let follows = |inode: Option<InodeNr>, distance: u64| {
        inode.map(InodeNr::get) == root.checked_add(distance)
    };
    let is_placed =
        follows(superblock.rt_bitmap_inode, 1) && follows(superblock.rt_summary_inode, 2);
    if !is_placed && !superblock.features.has_metadir() {
        checker.found(locus, SuperblockUseRule::RealtimeInodes)?;
    }
    if superblock.free_inodes > superblock.inode_count {
        checker.found(locus, SuperblockUseRule::InodeCounts)?;
    }
    if superblock.free_data_blocks > geometry.data_blocks() {
        checker.found(locus, SuperblockUseRule::FreeBlocks)?;
    }
    Ok(())
}

/// Compares the superblocks of the other groups with the primary one.
pub(super) fn check_backups(checker: &mut Checker<'_>) -> Flow {
    let Some(primary) = read_raw(checker, AgNr(0))? else {
        return Ok(());
    };
    for ag in checker.context.geometry().groups() {
        check_backup(checker, ag, &primary)?;
    }
    Ok(())
}

fn check_backup(checker: &mut Checker<'_>, ag: AgNr, primary: &DiskSuperblock) -> Flow {
    let locus = Locus::group(ag.0.into());
    let sector = checker.context.read_superblock(ag);
    let Some(sector) = checker.tolerate("superblock", locus, sector)? else {
        return Ok(());
    };
    let decoded = if ag.0 == 0 {
        Superblock::decode(&sector, locus)
    } else {
        Superblock::decode_backup(&sector, locus)
    };
    match decoded {
        Ok(decoded) if !decoded.features.unreadable().is_empty() => {
            return checker.found(locus, BackupRule::Features);
        }
        // Nothing compares the position of a copy with the log.
        Ok(_) => {}
        Err(corrupt) => return checker.report_finding(Finding::error(corrupt.into())),
    }
    let Some(copy) = DiskSuperblock::of_sector(&sector) else {
        return Ok(());
    };
    if copy.feature_masks() != primary.feature_masks() {
        checker.found(locus, BackupRule::Masks)?;
    }
    if ag.0 != 0 && copy.shared_fields() != primary.shared_fields() {
        checker.found(locus, BackupRule::Geometry)?;
    } else if copy.uuid != primary.uuid {
        let corrupt = Corrupt::new(locus, BackupRule::Uuid);
        checker.report_finding(Finding::notice(corrupt.into()))?;
    }
    if sector.iter().skip(copy.used_bytes()).any(|&byte| byte != 0) {
        checker.found(locus, BackupRule::Garbage)?;
    }
    Ok(())
}

fn read_raw(checker: &mut Checker<'_>, ag: AgNr) -> Flow<Option<DiskSuperblock>> {
    let sector = checker.context.read_superblock(ag);
    let sector = checker.tolerate("superblock", Locus::group(ag.0.into()), sector)?;
    Ok(sector.and_then(|sector| DiskSuperblock::of_sector(&sector).copied()))
}

/// Compares the counters with the sums of the groups.
pub(super) fn check_totals(checker: &mut Checker<'_>) -> Flow {
    let superblock = &checker.context.superblock;
    let mut sums = super::groups::Totals::default();
    for state in checker.groups.values() {
        let Some(totals) = state.totals else {
            return Ok(());
        };
        sums.free_blocks += totals.free_blocks;
        sums.inodes += totals.inodes;
        sums.free_inodes += totals.free_inodes;
    }
    let locus = Locus::group(0);
    for (stored, found, rule) in [
        (superblock.inode_count, sums.inodes, TotalsRule::Inodes),
        (
            superblock.free_inodes,
            sums.free_inodes,
            TotalsRule::FreeInodes,
        ),
        (
            superblock.free_data_blocks,
            sums.free_blocks,
            TotalsRule::FreeBlocks,
        ),
    ] {
        if stored != found {
            checker.found(locus, rule)?;
        }
    }
    Ok(())
}
