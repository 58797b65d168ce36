//! The check of a whole filesystem: reads all metadata and checks its consistency, as `xfs_repair -n`
//! does.
//!
//! Rules of single structures belong to their decoders; this module checks those that involve several:
//! owners of blocks against the B-trees of the groups, entries against inodes, counters against what is
//! counted.

mod rules;
mod claims;
mod inode_states;
mod blocks;
mod trees;
mod groups;
mod superblock;
mod free_space;
mod inode_trees;
mod realtime;
mod forks;
mod symlinks;
mod unlinked;
mod directories;
mod dir_blocks;
mod dir_index;
mod attributes;
mod links;
mod owners;
mod references;
mod quota;
mod inodes;
mod log;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Locus;
use platter_vfs::check::{CheckReport, CheckReporter, CheckSink, Checking, Finding, Flow};
use platter_vfs::{Error, Result};
use zerocopy::FromBytes;

use crate::context::FsContext;
use crate::ondisk::da::DiskDaHeaderV5;
use crate::ondisk::{AgNr, FsBlock, Inode, InodeNr, Lsn};
use crate::{MountOptions, Recovery, Xfs, inode};
use blocks::BlockSet;
use claims::Claims;
use groups::GroupState;
use inode_states::InodeStates;
use quota::Usages;
use realtime::RtExtents;

pub use rules::*;

/// Checks the filesystem on `device`, with the log replayed in memory unless that is to be skipped.
/// Nothing is written.
///
/// # Errors
/// What keeps the filesystem from being opened.
pub fn check(
    device: &Arc<dyn BlockDevice>,
    options: &MountOptions,
    budget: &Arc<MemoryBudget>,
    sink: &mut dyn CheckSink,
) -> Result<CheckReport> {
    let mount =
        |options: &MountOptions| Xfs::mount(Arc::clone(device), options, Arc::clone(budget));
    let (xfs, failure) = match mount(options) {
        Ok(xfs) => (xfs, None),
        // A log that cannot be replayed keeps a kernel from mounting; the rest can still be checked.
        Err(Error::Corrupt(corruption)) if options.recovery == Recovery::InMemory => {
            let mut options = options.clone();
            options.recovery = Recovery::Skip;
            (mount(&options)?, Some(*corruption))
        }
        Err(error) => return Err(error),
    };
    let device_len = device.geometry().len_bytes;
    let log = log::LogFindings {
        failure,
        recovery: xfs.recovery(),
    };
    Ok(Checker::run_all(xfs.context(), device_len, &log, sink))
}

struct Checker<'a> {
    context: &'a FsContext,
    report: CheckReporter<'a>,
    claims: Claims,
    /// The metadata blocks that were walked: each is walked once.
    walked: BlockSet,
    /// What is known of each group.
    groups: BTreeMap<u32, GroupState>,
    inodes: InodeStates,
    /// The directories, in ascending order.
    directories: Vec<InodeNr>,
    /// The directory that holds each directory's entry.
    parents: HashMap<InodeNr, InodeNr>,
    /// The inode of each directory's `..` entry.
    dotdots: HashMap<InodeNr, InodeNr>,
    /// Inodes that may share blocks.
    sharing: HashSet<InodeNr>,
    /// For each inode, a sum over its entries in directories, less one over its parent pointers.
    parent_sums: HashMap<InodeNr, u64>,
    usages: Usages,
    rt_extents: RtExtents,
    /// Blocks of directories and attributes that may still be read before their total exceeds the
    /// filesystem.
    blocks_left: u64,
    /// A fork or an inode could not be read, so that not all blocks in use are known.
    is_blind: bool,
    /// A directory could not be read, so that not all entries are known.
    misses_entries: bool,
    /// The greatest log sequence number found, and where.
    lsn_max: Option<(Lsn, Locus)>,
}

impl<'a> Checker<'a> {
    fn run_all(
        context: &'a FsContext,
        device_len: u64,
        log: &log::LogFindings<'_>,
        sink: &'a mut dyn CheckSink,
    ) -> CheckReport {
        let mut checker = Self {
            context,
            report: CheckReporter::new(sink),
            claims: Claims::default(),
            walked: BlockSet::default(),
            groups: BTreeMap::new(),
            inodes: InodeStates::default(),
            directories: Vec::new(),
            parents: HashMap::new(),
            dotdots: HashMap::new(),
            sharing: HashSet::new(),
            parent_sums: HashMap::new(),
            usages: Usages::default(),
            rt_extents: RtExtents::default(),
            blocks_left: context.geometry().data_blocks().saturating_mul(2),
            is_blind: false,
            misses_entries: false,
            lsn_max: None,
        };
        // A cancelled check returns a report, too.
        let _ = checker.run(device_len, log);
        checker.report.finish()
    }

    fn run(&mut self, device_len: u64, log: &log::LogFindings<'_>) -> Flow {
        log::check(self, log)?;
        if let Err(corrupt) = self.context.superblock.check_device(device_len) {
            return self.report_finding(Finding::error(corrupt.into()));
        }
        superblock::check(self)?;
        superblock::check_backups(self)?;
        groups::check(self)?;
        inodes::check(self)?;
        unlinked::check(self)?;
        directories::check(self)?;
        links::check(self)?;
        owners::check(self)?;
        superblock::check_totals(self)?;
        quota::check(self)?;
        realtime::check(self)?;
        log::check_lsn(self, log)
    }

    /// Remembers a log sequence number that metadata has.
    fn note_lsn(&mut self, lsn: u64, locus: Locus) {
        let lsn = Lsn(lsn);
        let is_greatest = self.lsn_max.is_none_or(|(greatest, _)| greatest < lsn);
        if lsn != Lsn::NULL && lsn.0 != 0 && is_greatest {
            self.lsn_max = Some((lsn, locus));
        }
    }

    /// Remembers the log sequence number of a block of a hash tree.
    fn note_da_lsn(&mut self, bytes: &[u8], locus: Locus) {
        if self.context.geometry().features.is_v5()
            && let Ok((header, _)) = DiskDaHeaderV5::ref_from_prefix(bytes)
        {
            self.note_lsn(header.lsn.get(), locus);
        }
    }

    /// Not all inodes of a group are known: neither are all blocks and entries.
    fn lose_chunks(&mut self) {
        self.is_blind = true;
        self.misses_entries = true;
    }

    /// An inode by its number; `None` if it is free or corrupt, which was reported before.
    fn inode(&self, number: InodeNr) -> Option<Arc<Inode>> {
        inode::find(self.context, number).ok().flatten()
    }

    /// Checks that blocks lie in a group.
    fn is_in_group(&self, ag: AgNr, start: u32, count: u32) -> bool {
        let end = u64::from(start) + u64::from(count);
        count > 0 && start > 0 && end <= u64::from(self.context.geometry().ag_len(ag))
    }

    /// The location of a block of a group.
    fn locus_in(&self, ag: AgNr, block: u32) -> Locus {
        let geometry = self.context.geometry();
        let block = u64::from(ag.0) * u64::from(geometry.ag_blocks) + u64::from(block);
        Locus::group(ag.0.into()).at_block(block)
    }

    /// The location of a block.
    fn locus_at(&self, block: FsBlock) -> Locus {
        let (ag, within) = self.context.geometry().split(block);
        self.locus_in(ag, within.0)
    }
}

impl Checking for Checker<'_> {
    fn report_finding(&mut self, finding: Finding) -> Flow {
        self.report.finding(finding)
    }
}

fn locus_of(inode: InodeNr) -> Locus {
    Locus::inode(inode.get())
}
