//! The check of a whole filesystem: reads all metadata and checks its consistency.
//!
//! Rules of single structures belong to their decoders; this module checks those that involve
//! several structures: block claims, directory entries and link counts, bitmaps and free counts.

mod claims;
mod inode_states;
mod rules;
mod paths;
mod superblock;
mod groups;
mod backups;
mod resize;
mod attributes;
mod quota;
mod contents;
mod inodes;
mod journal;
mod orphan_file;
mod index;
mod directories;
mod tree;
mod bitmaps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use platter_ondisk::Locus;
use platter_ondisk::verify::Unverified;
use platter_vfs::check::{CheckReport, CheckReporter, CheckSink, Flow};

use crate::ondisk::{BlockNr, GroupDesc, Inode, InodeNr};
use crate::{Ext4, FsContext};
use attributes::AttributeUses;
use claims::Claims;
use inode_states::InodeStates;
use paths::Paths;
use quota::Usages;

pub use rules::*;

impl Ext4 {
    /// Checks the filesystem as a mount sees it: with the journal replayed, unless that was
    /// skipped. Nothing is written.
    pub fn check(&self, sink: &mut dyn CheckSink) -> CheckReport {
        let was_replayed = self.recovery().is_some();
        check(self.fs(), &self.orphans().all(), was_replayed, sink)
    }
}

/// Checks the filesystem. `orphans` are the inodes to be deleted or truncated; `was_replayed` says
/// that the filesystem was not cleanly unmounted.
///
/// The volume has its journal replayed, as in a mount.
fn check(
    fs: &FsContext,
    orphans: &BTreeSet<InodeNr>,
    was_replayed: bool,
    sink: &mut dyn CheckSink,
) -> CheckReport {
    let mut checker = Checker {
        fs,
        orphans,
        was_replayed,
        report: CheckReporter::new(sink),
        claims: Claims::default(),
        groups: Vec::new(),
        inodes: InodeStates::default(),
        directories: Vec::new(),
        dotdots: HashMap::new(),
        dir_blocks_left: fs.geometry.blocks_count.saturating_mul(2),
        shared_left: fs.geometry.blocks_count.saturating_mul(2),
        is_blind: false,
        attributes: AttributeUses::default(),
        usages: Usages::default(),
        paths: Paths::default(),
    };
    // A cancelled check returns a report, too.
    let _ = checker.run();
    checker.report.finish()
}

struct Checker<'a> {
    fs: &'a FsContext,
    orphans: &'a BTreeSet<InodeNr>,
    was_replayed: bool,
    report: CheckReporter<'a>,
    claims: Claims,
    /// The descriptors; `None` if one is corrupt or its inode table is multiply claimed.
    groups: Vec<Option<GroupDesc>>,
    inodes: InodeStates,
    /// The directories, in ascending order.
    directories: Vec<InodeNr>,
    /// The inode of each directory's `..` entry.
    dotdots: HashMap<InodeNr, InodeNr>,
    /// Remaining directory blocks before their total exceeds the filesystem.
    dir_blocks_left: u64,
    /// Remaining multiply-claimed blocks to be followed, which bounds the work.
    shared_left: u64,
    /// A block mapping is corrupt, so blocks in use may be unknown.
    is_blind: bool,
    attributes: AttributeUses,
    usages: Usages,
    paths: Paths,
}

impl Checker<'_> {
    fn run(&mut self) -> Flow {
        superblock::check(self)?;
        groups::check(self)?;
        backups::check(self)?;
        journal::check(self)?;
        inodes::check(self)?;
        attributes::check_counts(self)?;
        orphan_file::check(self)?;
        directories::check(self)?;
        paths::report_waiting(self)?;
        tree::check(self)?;
        inodes::check_links(self)?;
        quota::check(self)?;
        bitmaps::check(self)
    }

    /// Reads an inode even if its checksum or its group's does not match. Returns `None` if it is
    /// corrupt, which was reported with its table.
    fn inode(&self, number: InodeNr) -> Option<Inode> {
        let fs = self.fs;
        let geometry = &fs.geometry;
        let (group, index) = geometry.group_of_inode(number)?;
        let desc = self.groups.get(group.0 as usize)?.as_ref()?;
        let block = BlockNr(desc.inode_table.0 + u64::from(index / geometry.inodes_per_block));
        let buffer = fs.read_block(block, &Unverified).ok()?;
        let offset = (index % geometry.inodes_per_block) as usize;
        let bytes = buffer.get(offset * usize::from(geometry.inode_bytes)..)?;
        Inode::decode_unsummed(bytes, number, geometry).ok()
    }

    /// Whether an inode is unknown because its table was not found.
    fn is_lost(&self, number: InodeNr) -> bool {
        let place = self.fs.geometry.group_of_inode(number);
        place.is_some_and(|(group, _)| matches!(self.groups.get(group.0 as usize), Some(None)))
    }
}

fn locus_of(inode: InodeNr) -> Locus {
    Locus::inode(u64::from(inode.get()))
}
