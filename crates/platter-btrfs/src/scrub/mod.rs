//! Scrubbing: every copy of everything in use is read and verified, and those that are bad are rewritten from others.
//!
//! What is in use is what the extent tree has. In a mount for writing it is scrubbed a group at a time, whose extents stay
//! as they are meanwhile; otherwise nothing else may write.

mod units;
mod doubts;
mod extents;
mod superblocks;

use platter_ondisk::{Corruption, Locus};
use platter_vfs::check::Finding;
use platter_vfs::devices::Scrubbed;
use platter_vfs::{CheckReport, CheckReporter, CheckSink, Result};

use crate::block_group::Ranges;
use crate::chunk::ChunkStore;
use crate::context::FsContext;
use crate::ondisk::{DeviceId, LogicalAddr};
use crate::txn::WriteContext;
use crate::txn::held::KeptGroup;

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
    /// Copies that could not be read, or were not copied from a device that is replaced, or that may be wrong and could
    /// not be rewritten; sectors of rows with parity that could not be read, so that the parity was not compared.
    /// What cannot be read of a device that is replaced, and was restored, is none.
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
    /// Of all errors, those of which no good copy is left, or whose place could not be rewritten.
    pub uncorrectable_errors: u64,
}

impl ScrubCounts {
    /// Counts an error by what became of it.
    fn add_outcome(&mut self, is_corrected: bool) {
        if is_corrected {
            self.corrected_errors += 1;
        } else {
            self.uncorrectable_errors += 1;
        }
    }

    /// Under the names of `btrfs scrub status -R`.
    pub(crate) fn scrubbed(&self, is_cancelled: bool, repairs: bool) -> Scrubbed {
        let counters = self.named().map(|(name, count)| (name.into(), count));
        Scrubbed {
            is_cancelled,
            repairs,
            errors: self.errors(),
            uncorrectable: self.uncorrectable_errors,
            counters: counters.to_vec(),
        }
    }

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

/// What a scrub counted, and found.
#[derive(Debug)]
pub(crate) struct ScrubReport {
    pub(crate) counts: ScrubCounts,
    /// Whether no uncorrectable error leaves a stale device incomplete.
    pub(crate) is_whole: bool,
    pub(crate) report: CheckReport,
}

impl ScrubReport {
    /// What it came to, under the names of `btrfs scrub status -R`.
    pub(crate) fn named(&self, repairs: bool) -> Scrubbed {
        self.counts.scrubbed(self.report.cancelled, repairs)
    }
}

/// What is right only if a checksum says so.
#[derive(Debug, Clone, Default)]
pub(crate) struct Distrusted {
    /// Devices that missed commits: what they have may be right.
    pub(crate) stale: Vec<DeviceId>,
    /// A device in the place of another one, and what was not copied to it.
    pub(crate) not_copied: Option<(DeviceId, Ranges)>,
}

/// Scrubs an opened filesystem. Devices that are `stale` get their superblock once they have everything.
pub(crate) fn scrub_opened(
    context: &FsContext,
    distrusted: Distrusted,
    stale: Vec<DeviceId>,
    repairs: bool,
    sink: &mut dyn CheckSink,
) -> Result<ScrubReport> {
    let mut scrubber = Scrubber::new(context, repairs, sink);
    scrubber.distrusted = distrusted;
    scrubber.stale = stale;
    let ended = scrubber.run();
    scrubber.finish(ended)
}

/// Scrubs a filesystem that is being written.
///
/// # Errors
/// What keeps it from being read on; why nothing is written any more.
pub(crate) fn scrub_mounted(
    fs: &WriteContext,
    repairs: bool,
    sink: &mut dyn CheckSink,
) -> Result<ScrubReport> {
    let mut scrubber = Scrubber::new(fs.context(), repairs, sink);
    scrubber.mounted = Some(fs);
    scrubber.total = fs.groups().used_bytes();
    let ended = scrubber.run_mounted(fs);
    scrubber.finish(ended)
}

impl<'s> Scrubber<'s> {
    fn new(context: &'s FsContext, repairs: bool, sink: &'s mut dyn CheckSink) -> Self {
        Self {
            context,
            mounted: None,
            distrusted: Distrusted::default(),
            stale: Vec::new(),
            repairs,
            counts: ScrubCounts::default(),
            undoubted: 0,
            report: CheckReporter::new(sink),
            row: None,
            done: 0,
            total: context.superblock.bytes_used,
        }
    }

    fn finish(self, ended: Flow) -> Result<ScrubReport> {
        match ended {
            Ok(()) | Err(Ended::Cancelled) => Ok(ScrubReport {
                is_whole: self.is_whole(),
                counts: self.counts,
                report: self.report.finish(),
            }),
            Err(Ended::Failed(error)) => Err(error),
        }
    }
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
    /// Absent where nothing else writes.
    mounted: Option<&'s WriteContext>,
    distrusted: Distrusted,
    stale: Vec<DeviceId>,
    repairs: bool,
    counts: ScrubCounts,
    /// Uncorrectable errors that leave no stale device incomplete: parity that could not be compared, of a row in which
    /// nothing is in doubt.
    undoubted: u64,
    report: CheckReporter<'s>,
    /// The row with parity that was read last.
    row: Option<Row>,
    /// Bytes of extents that were looked at, and of all.
    done: u64,
    total: u64,
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
        extents::scrub(self, 0..u64::MAX)?;
        extents::finish_row(self)?;
        superblocks::scrub(self)
    }

    fn run_mounted(&mut self, fs: &WriteContext) -> Flow {
        let groups: Vec<_> = fs.groups().iter().map(|group| group.start()).collect();
        for start in groups {
            if let Some(error) = fs.failure() {
                return Err(error.into());
            }
            let Some(kept) = KeptGroup::keep(fs, start) else {
                continue;
            };
            let range = kept.group().start().0..kept.group().end().0;
            extents::scrub(self, range)?;
            extents::finish_row(self)?;
        }
        superblocks::scrub_mounted(self, fs)
    }

    /// Whether devices that are stale have everything of what was read.
    fn is_whole(&self) -> bool {
        self.counts.uncorrectable_errors == self.undoubted
    }

    fn store(&self) -> &ChunkStore {
        self.context.blocks.store()
    }

    /// Reports an error of so many bytes, or of something else if that is 0.
    fn found(
        &mut self,
        structure: &'static str,
        locus: Locus,
        len_bytes: u64,
        text: &'static str,
    ) -> Flow {
        let finding = Finding::error(Corruption::new(structure, locus, text));
        let finding = finding.of_length(len_bytes);
        if self.report.finding(finding).is_err() {
            return Err(Ended::Cancelled);
        }
        Ok(())
    }

    fn report_progress(&mut self) -> Flow {
        let done = self.done.min(self.total);
        if self.report.progress("scrub", done, self.total).is_err() {
            return Err(Ended::Cancelled);
        }
        Ok(())
    }
}
