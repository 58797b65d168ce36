//! The internal journal: its inode and its superblock.

use platter_vfs::Error;
use platter_vfs::check::Checking as _;

use super::{Checker, Flow, JournalUseRule, locus_of};
use crate::ondisk::features::Incompat;
use crate::recovery::open_internal_journal;

/// Minimum length of a journal in blocks.
const LEN_BLOCKS_MIN: u64 = 1024;

/// Checks the inode and the superblock of a journal inside the filesystem.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let fs = checker.fs;
    let features = fs.geometry.features;
    let number = fs
        .superblock
        .journal_inode
        .filter(|_| features.has_journal());
    let Some(number) = number else {
        return Ok(());
    };
    let locus = locus_of(number);
    // A corrupt one is reported with its table.
    let Some(inode) = checker.inode(number) else {
        return Ok(());
    };
    let len_blocks = inode.size_bytes >> fs.geometry.block_bits;
    if len_blocks < LEN_BLOCKS_MIN {
        checker.found(locus, JournalUseRule::Length)?;
    }
    let opened = open_internal_journal(fs, &inode);
    let Some(journal) = checker.tolerate("journal", locus, opened)? else {
        return Ok(());
    };
    let supported = journal.superblock().check_supported();
    checker.tolerate("journal", locus, supported.map_err(Error::from))?;
    let superblock = journal.superblock();
    let waits = features.incompat.contains(Incompat::RECOVER);
    if superblock.start.is_some() && !waits {
        checker.found(locus, JournalUseRule::NotMarked)?;
    }
    if superblock.errno != 0 {
        checker.found(locus, JournalUseRule::Aborted)?;
    }
    Ok(())
}
