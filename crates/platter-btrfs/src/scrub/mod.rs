//! Scrubbing: every copy of everything in use is read and verified, and those that are bad are rewritten from others.
//!
//! What is in use is what the extent tree has. Nothing else may write meanwhile.

mod units;
mod extents;
mod superblocks;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::{Corruption, Locus};
use platter_vfs::check::Finding;
use platter_vfs::{CheckReport, CheckReporter, CheckSink, Result};

use crate::block_group::Ranges;
use crate::chunk::ChunkStore;
use crate::context::FsContext;
use crate::mount::{self, MountOptions};
use crate::ondisk::{DeviceId, LogicalAddr};

/// What a scrub came to, in the words of `btrfs scrub status -R`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubCounts {
    /// Data extents.
    pub data_extents: u64,
    /// Tree blocks.
    pub tree_extents: u64,
    /// Bytes of data that were read, of all copies.
    pub data_bytes: u64,
    /// Bytes of tree blocks that were read, of all copies.
    pub tree_bytes: u64,
    /// Copies that could not be read.
    pub read_errors: u64,
    /// Copies of sectors whose checksum does not match.
    pub csum_errors: u64,
    /// Copies of tree blocks that are not what they should be.
    pub verify_errors: u64,
    /// Stripes of parity that are not what the data of their row makes.
    pub parity_errors: u64,
    /// Superblocks that are not valid, or not those of the last commit.
    pub super_errors: u64,
    /// Sectors of data without a checksum.
    pub no_csum: u64,
    /// Of all errors, those whose place was rewritten, or would be.
    pub corrected_errors: u64,
    /// Of all errors, those of which no good copy is left.
    pub uncorrectable_errors: u64,
}

impl ScrubCounts {
    /// All errors.
    #[must_use]
    pub fn errors(&self) -> u64 {
        let copies = self.read_errors + self.csum_errors + self.verify_errors;
        copies + self.parity_errors + self.super_errors
    }

    /// Under their names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 12] {
        [
            ("data_extents_scrubbed", self.data_extents),
            ("tree_extents_scrubbed", self.tree_extents),
            ("data_bytes_scrubbed", self.data_bytes),
            ("tree_bytes_scrubbed", self.tree_bytes),
            ("read_errors", self.read_errors),
            ("csum_errors", self.csum_errors),
            ("verify_errors", self.verify_errors),
            ("parity_errors", self.parity_errors),
            ("super_errors", self.super_errors),
            ("no_csum", self.no_csum),
            ("corrected_errors", self.corrected_errors),
            ("uncorrectable_errors", self.uncorrectable_errors),
        ]
    }
}

/// How far the generation of a device may lag although it has all that others have.
const GENERATION_LAG_MAX: u64 = 1;

/// Reads every copy of all metadata and data on devices that are present, and reports what is bad. With `repairs`,
/// rewrites it from good copies or parity; parity too, and superblocks. Devices that missed commits are whole then.
///
/// # Errors
/// What keeps the filesystem from being opened, or from being read on: nothing is known of what follows.
pub fn scrub(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    budget: &Arc<MemoryBudget>,
    repairs: bool,
    sink: &mut dyn CheckSink,
) -> Result<(ScrubCounts, CheckReport)> {
    let mut options = options.clone();
    options.rescue.skips_log = true;
    let context = mount::open(devices, &options, budget)?;
    let newest = context.superblock.generation;
    let members = context.blocks.store().members();
    let stale = members.iter().filter(|member| {
        let generation = member.generation.unwrap_or(newest);
        generation.0.saturating_add(GENERATION_LAG_MAX) < newest.0
    });
    let stale: Vec<_> = stale.map(|member| member.id).collect();
    scrub_opened(&context, stale.clone(), stale, repairs, sink)
}

/// Scrubs an opened filesystem; what is on `distrusted` devices is right only if a checksum says so. Those that are
/// `stale` get their superblock once they have everything.
pub(crate) fn scrub_opened(
    context: &FsContext,
    distrusted: Vec<DeviceId>,
    stale: Vec<DeviceId>,
    repairs: bool,
    sink: &mut dyn CheckSink,
) -> Result<(ScrubCounts, CheckReport)> {
    let mut scrubber = Scrubber {
        context,
        distrusted,
        stale,
        repairs,
        counts: ScrubCounts::default(),
        report: CheckReporter::new(sink),
        row: None,
    };
    let ended = scrubber.run();
    let counts = scrubber.counts;
    match ended {
        Ok(()) | Err(Ended::Cancelled) => {}
        Err(Ended::Failed(error)) => return Err(error),
    }
    Ok((counts, scrubber.report.finish()))
}

/// Why a scrub ended early.
#[derive(Debug)]
enum Ended {
    Cancelled,
    Failed(platter_vfs::Error),
}

impl<E: Into<platter_vfs::Error>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

type Flow<T = ()> = std::result::Result<T, Ended>;

struct Scrubber<'s> {
    context: &'s FsContext,
    distrusted: Vec<DeviceId>,
    stale: Vec<DeviceId>,
    repairs: bool,
    counts: ScrubCounts,
    report: CheckReporter<'s>,
    /// The row with parity that was read last.
    row: Option<Row>,
}

/// A row with parity whose data was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    /// An address in it.
    at: LogicalAddr,
    chunk: LogicalAddr,
    number: u64,
    /// The bytes of each stripe in which something is in use: parity of others may be of anything.
    columns: Ranges,
    /// Something in it is bad: its parity may be all that is left.
    is_lost: bool,
}

impl Scrubber<'_> {
    fn run(&mut self) -> Flow {
        extents::scrub(self)?;
        extents::finish_row(self)?;
        superblocks::scrub(self)
    }

    fn store(&self) -> &ChunkStore {
        self.context.blocks.store()
    }

    /// Reports an error.
    fn found(&mut self, structure: &'static str, locus: Locus, text: &'static str) -> Flow {
        let finding = Finding::error(Corruption::new(structure, locus, text));
        if self.report.finding(finding).is_err() {
            return Err(Ended::Cancelled);
        }
        Ok(())
    }

    fn progress(&mut self, done: u64, total: u64) -> Flow {
        if self.report.progress("scrub", done, total).is_err() {
            return Err(Ended::Cancelled);
        }
        Ok(())
    }
}
