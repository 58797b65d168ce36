//! Quota: the use of every user, group and project, compared with the quota files. Spec:
//! `xfs/internal_inodes`, "Quota Inodes".

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use platter_ondisk::verify::Unverified;
use platter_vfs::check::Checking as _;
use platter_vfs::{FileKind, Result};

use super::{Checker, Flow, QuotaUseRule, locus_of};
use crate::mapping::{ForkMap, MappingSink};
use crate::ondisk::dquot::{self, DiskDquot, Dquot, DquotRule, QuotaKind};
use crate::ondisk::superblock::QuotaFlags;
use crate::ondisk::{FsBlock, Inode, InodeFlags2, InodeNr};

/// Corrupt records after which the rest is not read.
const CORRUPT_RECORDS_MAX: u32 = 32;

/// Use of one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Use {
    blocks: u64,
    rt_blocks: u64,
    inodes: u64,
}

/// Use by id, of users, groups and projects.
#[derive(Debug, Default)]
pub(super) struct Usages([BTreeMap<u32, Use>; 3]);

/// Adds what an inode uses.
pub(super) fn count(checker: &mut Checker<'_>, inode: &Inode, blocks: u64, rt_blocks: u64) {
    let superblock = &checker.context.superblock;
    // The files of the realtime section count, those of quota do not.
    let mut internal = superblock.quota_inodes.into_iter().flatten();
    let is_internal = internal.any(|number| number == inode.number);
    let has_quota = !superblock.quota_flags.is_empty();
    if is_internal || !has_quota || inode.flags2.contains(InodeFlags2::METADATA) {
        return;
    }
    let ids = [inode.uid, inode.gid, inode.project];
    for (usages, id) in checker.usages.0.iter_mut().zip(ids) {
        let usage = usages.entry(id).or_default();
        usage.blocks = usage.blocks.saturating_add(blocks);
        usage.rt_blocks = usage.rt_blocks.saturating_add(rt_blocks);
        usage.inodes = usage.inodes.saturating_add(1);
    }
}

/// Checks the quota files.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let usages = std::mem::take(&mut checker.usages);
    let kinds = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
    let flags = checker.context.superblock.quota_flags;
    let is_v5 = checker.context.geometry().features.is_v5();
    for (kind, usages) in kinds.into_iter().zip(usages.0) {
        let number = crate::quota::file(checker.context, kind);
        let root = locus_of(checker.context.superblock.root_inode);
        let Some(Some(number)) = checker.tolerate("quota file", root, number)? else {
            continue;
        };
        checker.report.progress("quota", 0, 1)?;
        let counted = match kind {
            QuotaKind::User => QuotaFlags::USERS_CHECKED,
            QuotaKind::Group | QuotaKind::Project if !is_v5 => QuotaFlags::OTHERS_CHECKED,
            QuotaKind::Group => QuotaFlags::GROUPS_CHECKED,
            QuotaKind::Project => QuotaFlags::PROJECTS_CHECKED,
        };
        let is_counted = flags.contains(counted);
        check_file(checker, kind, number, usages, is_counted)?;
    }
    Ok(())
}

fn check_file(
    checker: &mut Checker<'_>,
    kind: QuotaKind,
    number: InodeNr,
    mut usages: BTreeMap<u32, Use>,
    is_counted: bool,
) -> Flow {
    let locus = locus_of(number);
    // A corrupt one, and one that is no file, were reported.
    let Some(inode) = checker
        .inode(number)
        .filter(|inode| inode.kind == FileKind::Regular)
    else {
        return Ok(());
    };
    let map = ForkMap::of_data(checker.context, &inode);
    let Ok(map) = map else {
        return Ok(());
    };
    let mut blocks = Vec::new();
    let mut take: Box<MappingSink<'_>> = Box::new(|mapping| {
        blocks.push(mapping);
        Ok(ControlFlow::Continue(()))
    });
    let read: Result<()> = map.mappings(checker.context, &mut *take);
    drop(take);
    if read.is_err() {
        return Ok(());
    }
    let mut is_wrong = false;
    let mut corrupt = 0;
    for mapping in blocks {
        for nth in 0..mapping.count {
            if corrupt >= CORRUPT_RECORDS_MAX {
                return Ok(());
            }
            let block = FsBlock(mapping.start + nth);
            let first = mapping.offset.0.saturating_add(nth);
            let mut found = |id: u32, stored: Use| {
                is_wrong |= usages.remove(&id).unwrap_or_default() != stored;
            };
            corrupt += check_block(checker, kind, number, block, first, &mut found)?;
        }
    }
    if is_counted && !checker.is_blind {
        if is_wrong {
            checker.found(locus, QuotaUseRule::Usage)?;
        }
        if usages.values().any(|usage| *usage != Use::default()) {
            checker.found(locus, QuotaUseRule::Missing)?;
        }
    }
    Ok(())
}

/// Checks the records of a block of a quota file. Returns how many are corrupt.
fn check_block(
    checker: &mut Checker<'_>,
    kind: QuotaKind,
    number: InodeNr,
    block: FsBlock,
    file_block: u64,
    found: &mut dyn FnMut(u32, Use),
) -> Flow<u32> {
    let locus = checker.locus_at(block).of_inode(number.get());
    let read = checker.context.read_block(block, &Unverified);
    let Some(bytes) = checker.tolerate("quota file", locus, read)? else {
        return Ok(1);
    };
    let mut corrupt = 0;
    let geometry = checker.context.geometry();
    let per_block = dquot::per_block(geometry);
    for nth in 0..per_block {
        let id = file_block
            .saturating_mul(per_block.into())
            .saturating_add(nth.into());
        // The last block may have places for ids beyond the last one.
        let Ok(id) = u32::try_from(id) else {
            break;
        };
        let at = nth as usize * size_of::<DiskDquot>();
        let record = bytes.get(at..).unwrap_or_default();
        let locus = locus.at_offset(at as u64);
        match Dquot::decode(record, kind, id, geometry) {
            Ok(Some(record)) => {
                found(
                    id,
                    Use {
                        blocks: record.blocks.used,
                        rt_blocks: record.rt_blocks.used,
                        inodes: record.inodes.used,
                    },
                );
                continue;
            }
            Ok(None) => checker.found(locus, DquotRule::Magic)?,
            Err(rule) => checker.found(locus, rule)?,
        }
        corrupt += 1;
    }
    Ok(corrupt)
}
