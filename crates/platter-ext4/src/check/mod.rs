//! The check of a whole filesystem: reads all metadata and compares it with itself.
//!
//! What a decoder proves of one structure is not repeated here; this is about what only shows
//! across structures: who claims a block, who names an inode, what the counts and bitmaps say.

mod claims;
mod inode_states;
mod rules;
mod superblock;
mod groups;
mod contents;
mod attributes;
mod inodes;
mod index;
mod directories;
mod tree;
mod bitmaps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use platter_ondisk::{Corruption, Locus};
use platter_vfs::check::{CheckReport, CheckReporter, CheckSink, Finding};
use platter_vfs::{Error, Result};

use crate::ondisk::corrupt::{Corrupt, Rule};
use crate::ondisk::{GroupDesc, InodeNr};
use crate::{Ext4, Volume};
use attributes::AttributeBlock;
use claims::Claims;
use directories::Parents;
use inode_states::InodeStates;

pub use rules::*;

impl Ext4 {
    /// Checks everything, as the mount sees it: with the journal replayed, unless that was
    /// skipped. Nothing is written.
    pub fn check(&self, sink: &mut dyn CheckSink) -> CheckReport {
        let was_replayed = self.recovery().is_some();
        check(self.volume(), &self.orphans().all(), was_replayed, sink)
    }
}

/// Checks everything. `orphans` are the inodes that wait to be deleted or truncated;
/// `was_replayed` says that there was no clean unmount.
///
/// The volume is as a mount sees it: with its journal replayed.
fn check(
    volume: &Volume,
    orphans: &BTreeSet<InodeNr>,
    was_replayed: bool,
    sink: &mut dyn CheckSink,
) -> CheckReport {
    let mut checker = Checker {
        volume,
        orphans,
        was_replayed,
        report: CheckReporter::new(sink),
        claims: Claims::default(),
        groups: Vec::new(),
        inodes: InodeStates::default(),
        directories: Vec::new(),
        parents: HashMap::new(),
        attribute_blocks: HashMap::new(),
        attribute_values: HashMap::new(),
        attribute_holders: HashMap::new(),
    };
    // A cancelled check has a report, too.
    let _ = checker.run();
    checker.report.finish()
}

/// The listener broke off.
#[derive(Debug)]
struct Cancelled;

type Flow<T = ()> = std::result::Result<T, Cancelled>;

struct Checker<'a> {
    volume: &'a Volume,
    orphans: &'a BTreeSet<InodeNr>,
    was_replayed: bool,
    report: CheckReporter<'a>,
    claims: Claims,
    /// The descriptors; `None` where one is broken or its inode table is someone else's.
    groups: Vec<Option<GroupDesc>>,
    inodes: InodeStates,
    /// The directories, in ascending order.
    directories: Vec<InodeNr>,
    parents: HashMap<InodeNr, Parents>,
    attribute_blocks: HashMap<u64, AttributeBlock>,
    /// References found to inodes that hold attribute values.
    attribute_values: HashMap<InodeNr, u64>,
    /// The references that those inodes say they have.
    attribute_holders: HashMap<InodeNr, u64>,
}

impl Checker<'_> {
    fn run(&mut self) -> Flow {
        self.check_superblock()?;
        self.check_groups()?;
        self.check_inodes()?;
        self.check_attribute_counts()?;
        self.check_directories()?;
        self.check_tree()?;
        self.check_links()?;
        self.check_bitmaps()
    }

    fn found<R: Rule>(&mut self, locus: Locus, rule: R) -> Flow {
        self.report_finding(Finding::error(Corrupt::new(locus, rule).into()))
    }

    fn noticed<R: Rule>(&mut self, locus: Locus, rule: R) -> Flow {
        self.report_finding(Finding::notice(Corrupt::new(locus, rule).into()))
    }

    fn report_finding(&mut self, finding: Finding) -> Flow {
        if self.report.finding(finding).is_break() {
            return Err(Cancelled);
        }
        Ok(())
    }

    fn progress(&mut self, pass: &'static str, done: u64, total: u64) -> Flow {
        if self.report.progress(pass, done, total).is_break() {
            return Err(Cancelled);
        }
        Ok(())
    }

    /// What was read of `structure`, or a finding and nothing.
    fn tolerate<T>(
        &mut self,
        structure: &'static str,
        locus: Locus,
        read: Result<T>,
    ) -> Flow<Option<T>> {
        let finding = match read {
            Ok(value) => return Ok(Some(value)),
            Err(Error::Corrupt(mut corruption)) => {
                corruption.locus.inode = corruption.locus.inode.or(locus.inode);
                corruption.locus.group = corruption.locus.group.or(locus.group);
                Finding::error(*corruption)
            }
            Err(Error::Io(error)) => Finding::unreadable(structure, locus, &error),
            Err(error @ (Error::Condition(_) | Error::Unsupported(_))) => {
                Finding::error(Corruption::new(structure, locus, error.to_string()))
            }
        };
        self.report_finding(finding)?;
        Ok(None)
    }
}

fn locus_of(inode: InodeNr) -> Locus {
    Locus::inode(u64::from(inode.get()))
}
