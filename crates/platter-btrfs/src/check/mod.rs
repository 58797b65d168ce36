//! The check of a whole filesystem: reads all metadata, every copy of it, and checks its consistency.
//!
//! Rules of single structures belong to their decoders; this module checks those that involve several.
//! Each tree block is visited once, however many trees share it. References and names are not kept but
//! summed: what is stored once on each side adds a hash on one and takes it off on the other, so that
//! memory is needed for extents and shared blocks alone. Where a sum is not zero, a second pass looks
//! for the statements that have no counterpart.

mod rules;
mod paths;
mod ranges;
mod walked;
mod names;
mod extents;
mod claims;
mod superblocks;
mod devices;
mod roots;
mod uuids;
mod inodes;
mod leaves;
mod csums;
mod free_space;
mod cache;
mod backrefs;
mod extent_tree;
mod walk;
mod trees;
mod qgroups;
mod owners;
mod data;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::Result;
use platter_vfs::check::{CheckReport, CheckReporter, CheckSink, Checking, Finding, Flow};

use crate::context::FsContext;
use crate::mount::{self, Btrfs, MountOptions};
use crate::ondisk::TreeId;
use crate::ondisk::item::ItemFormat;
use csums::Csums;
use devices::Devices;
use extent_tree::Listed;
use extents::Extents;
use free_space::FreeSpace;
use names::Search;
use owners::Owners;
use paths::Paths;
use roots::Roots;
use walk::Blocks;

pub use rules::*;

impl Btrfs {
    /// Checks the filesystem on `devices` as it is at its last commit. Nothing is written.
    ///
    /// # Errors
    /// What keeps the filesystem from being opened at all.
    pub fn check(
        devices: &[Arc<dyn BlockDevice>],
        options: &MountOptions,
        budget: &Arc<MemoryBudget>,
        sink: &mut dyn CheckSink,
    ) -> Result<CheckReport> {
        let context = open(devices, options, budget)?;
        let mut checker = Checker::new(&context, sink);
        // A cancelled check returns a report, too.
        let _ = checker.run();
        Ok(checker.report.finish())
    }

    /// Reads all data that has checksums, and every copy of it, and reports what does not match.
    ///
    /// # Errors
    /// What keeps the filesystem from being opened at all.
    pub fn verify_data(
        devices: &[Arc<dyn BlockDevice>],
        options: &MountOptions,
        budget: &Arc<MemoryBudget>,
        sink: &mut dyn CheckSink,
    ) -> Result<CheckReport> {
        let context = open(devices, options, budget)?;
        let mut checker = Checker::new(&context, sink);
        let _ = data::verify(&mut checker);
        Ok(checker.report.finish())
    }
}

/// Opens the filesystem without its log, and although trees are corrupt that are not needed to find others.
fn open(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    budget: &Arc<MemoryBudget>,
) -> Result<FsContext> {
    let mut options = options.clone();
    options.rescue.skips_log = true;
    options.rescue.ignores_bad_roots = true;
    options.rescue.ignores_superblock_flags = true;
    mount::open_for_check(devices, &options, budget)
}

struct Checker<'a> {
    context: &'a FsContext,
    format: ItemFormat,
    report: CheckReporter<'a>,
    paths: Paths,
    devices: Devices,
    roots: Roots,
    extents: Extents,
    blocks: Blocks,
    csums: Csums,
    /// The extent whose references are being read.
    listed: Option<Listed>,
    free_space: FreeSpace,
    /// A tree block could not be read, so what it refers to is unknown.
    is_blind: bool,
    names: Search,
    owners: Owners,
}

impl<'a> Checker<'a> {
    fn new(context: &'a FsContext, sink: &'a mut dyn CheckSink) -> Self {
        let superblock = &context.superblock;
        Self {
            context,
            format: ItemFormat {
                sector_bytes: superblock.sector_bytes,
                checksum_kind: superblock.checksum_kind,
            },
            report: CheckReporter::new(sink),
            paths: Paths::default(),
            devices: Devices::default(),
            roots: Roots::default(),
            extents: Extents::default(),
            blocks: Blocks::default(),
            csums: Csums::default(),
            listed: None,
            free_space: FreeSpace::default(),
            is_blind: false,
            names: Search::default(),
            owners: Owners::default(),
        }
    }

    fn run(&mut self) -> Flow {
        superblocks::check(self)?;
        trees::walk_early(self, self.context.chunk_tree())?;
        trees::walk_early(self, self.context.root_tree())?;
        trees::walk_extent_tree(self)?;
        trees::walk_others(self)?;
        superblocks::check_log(self)?;
        devices::check(self)?;
        extent_tree::check(self)?;
        free_space::check(self)?;
        cache::check(self)?;
        csums::check(self)?;
        roots::check(self)?;
        uuids::check(self)?;
        qgroups::check(self)?;
        self.report.count("tree blocks", self.blocks.read);
        self.report.count("extents", self.extents.len() as u64);
        Ok(())
    }
}

impl Checking for Checker<'_> {
    /// Adds the path of the inode if there is one.
    fn report_finding(&mut self, finding: Finding) -> Flow {
        let parts = finding.corruption.locus.parts();
        let path = match (parts.tree, parts.inode) {
            (Some(tree), Some(inode)) => self.paths.path_of(self.context, TreeId(tree), inode),
            _ => None,
        };
        self.report.finding(match path {
            Some(path) => finding.at_path(path),
            None => finding,
        })
    }
}
