//! Quota: the usage of every user, group and project, compared with the quota files.

use std::collections::{BTreeMap, HashSet};

use platter_vfs::check::Checking as _;

use super::{Checker, Flow, QuotaUseRule, locus_of};
use crate::ondisk::features::RoCompat;
use crate::ondisk::quota::{DiskQuotaEntry, QuotaKind, QuotaUsage};
use crate::ondisk::{Inode, InodeFlags, InodeNr};
use crate::quota_file::QuotaFile;

/// Usage by id, for each kind of quota.
#[derive(Debug, Default)]
pub(super) struct Usages([BTreeMap<u32, QuotaUsage>; 3]);

/// Adds the usage of an inode. `ea_inodes` is the number of its EA inodes.
pub(super) fn count_usage(
    checker: &mut Checker<'_>,
    inode: &Inode,
    space_bytes: u64,
    ea_inodes: u64,
) {
    let holds_value = inode.flags.contains(InodeFlags::EA_INODE);
    if holds_value || crate::inode::is_reserved(checker.fs, inode.number) {
        return;
    }
    let ids = [inode.uid, inode.gid, inode.project];
    for (usages, id) in checker.usages.0.iter_mut().zip(ids) {
        let usage = usages.entry(id).or_default();
        usage.space_bytes = usage.space_bytes.saturating_add(space_bytes);
        usage.inodes = usage.inodes.saturating_add(1 + ea_inodes);
    }
}

/// Compares the quota files with the usage that was counted.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let fs = checker.fs;
    let ro_compat = fs.geometry.features.ro_compat;
    if !ro_compat.contains(RoCompat::QUOTA) {
        return Ok(());
    }
    let usages = std::mem::take(&mut checker.usages);
    let inodes = fs.superblock.quota_inodes;
    for ((kind, number), usages) in QuotaKind::ALL.into_iter().zip(inodes).zip(usages.0) {
        if let Some(number) = number {
            checker.report.progress("quota", 0, 0)?;
            check_file(checker, kind, number, &usages)?;
        }
    }
    Ok(())
}

fn check_file(
    checker: &mut Checker<'_>,
    kind: QuotaKind,
    number: InodeNr,
    usages: &BTreeMap<u32, QuotaUsage>,
) -> Flow {
    let fs = checker.fs;
    let locus = locus_of(number);
    // A corrupt one is reported with its table.
    let Some(inode) = checker.inode(number) else {
        return Ok(());
    };
    let file = QuotaFile::open(fs, kind, inode);
    let Some(file) = checker.tolerate("quota file", locus, file)? else {
        return Ok(());
    };
    let mut wrong = 0;
    let mut listed = HashSet::new();
    let mut stored = |entry: &DiskQuotaEntry, _| {
        let (id, stored) = (entry.id.get(), QuotaUsage::of(entry));
        let found = usages.get(&id);
        if found.is_some() {
            listed.insert(id);
        }
        // Each entry of an id counts, also a second one.
        wrong += u64::from(found.copied().unwrap_or_default() != stored);
        Ok(())
    };
    let walked = file.visit(fs, &mut stored);
    if checker.tolerate("quota file", locus, walked)?.is_none() {
        return Ok(());
    }
    // Every id in use has an entry, except root's own.
    let is_missing =
        |(id, usage): (&u32, &QuotaUsage)| *usage != QuotaUsage::default() && !listed.contains(id);
    let missing = usages.iter().any(is_missing);
    // If blocks or inodes could not be counted, the usage is incomplete.
    if checker.is_blind {
        return Ok(());
    }
    if wrong > 0 {
        checker.found(locus, QuotaUseRule::Usage)?;
    }
    if missing {
        checker.found(locus, QuotaUseRule::Missing)?;
    }
    Ok(())
}
