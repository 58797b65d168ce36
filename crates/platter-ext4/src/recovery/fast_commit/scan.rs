//! Which fast commits are whole. A tail with the right CRC vouches for all records since the
//! tail before; at the first one that does not, the fast commits end.
//!
//! The first fast commit may be cut short by a crash like any other: then there is none. (The
//! kernel refuses to mount in that case alone.)

use std::ops::{ControlFlow, Range};

use platter_vfs::{Result, Unsupported};

use super::{FastCommitReport, for_each_block};
use crate::ondisk::Geometry;
use crate::ondisk::jbd2::Sequence;
use crate::ondisk::jbd2::fast_commit::{Record, Records, continue_crc};
use crate::txn::Journal;

/// The fast commits to replay.
#[derive(Debug, Default)]
pub(super) struct Valid {
    /// How much there is of them.
    pub(super) report: FastCommitReport,
    /// The blocks that they give to files, in ascending order without overlaps: nothing else may
    /// be put there.
    pub(super) regions: Vec<Range<u64>>,
}

/// Finds the whole fast commits of transaction `sequence`.
pub(super) fn scan(journal: &Journal, sequence: Sequence, geometry: &Geometry) -> Result<Valid> {
    let mut scan = Scan {
        sequence,
        valid: Valid::default(),
        crc: 0,
        records: 0,
        regions: Vec::new(),
    };
    let mut is_first = true;
    for_each_block(journal, |block| {
        let mut records = Records::decode(block, geometry.inode_bytes);
        if std::mem::take(&mut is_first) && !begins_with_head(records.clone()) {
            return Ok(ControlFlow::Break(()));
        }
        let broke = records.try_for_each(|result| match result {
            Ok((record, covered)) => scan.record(&record, covered),
            Err(_) => ControlFlow::Break(Ok(())),
        });
        match broke {
            ControlFlow::Continue(()) => Ok(ControlFlow::Continue(())),
            ControlFlow::Break(Ok(())) => Ok(ControlFlow::Break(())),
            ControlFlow::Break(Err(unsupported)) => Err(unsupported.into()),
        }
    })?;
    scan.valid.regions = merged(scan.valid.regions);
    Ok(scan.valid)
}

fn begins_with_head(mut records: Records<'_>) -> bool {
    matches!(records.next(), Some(Ok((Record::Head { .. }, _))))
}

struct Scan {
    sequence: Sequence,
    valid: Valid,
    /// Over the records since the last tail.
    crc: u32,
    records: u64,
    regions: Vec<Range<u64>>,
}

type Step = ControlFlow<Result<(), Unsupported>>;

impl Scan {
    fn record(&mut self, record: &Record<'_>, covered: &[u8]) -> Step {
        self.records += 1;
        self.crc = continue_crc(self.crc, covered);
        match *record {
            Record::Head { features, sequence } => {
                if features != 0 {
                    return ControlFlow::Break(Err(Unsupported {
                        filesystem: "ext4",
                        feature: format!("fast commit feature {features:#x}"),
                        reason: None,
                    }));
                }
                if sequence != self.sequence {
                    return ControlFlow::Break(Ok(()));
                }
            }
            Record::AddRange(range) => {
                let end = range.start.0.saturating_add(u64::from(range.len));
                self.regions.push(range.start.0..end);
            }
            Record::Tail { sequence, crc } => {
                if sequence != self.sequence || crc != self.crc {
                    return ControlFlow::Break(Ok(()));
                }
                self.crc = 0;
                self.valid.report.fast_commits += 1;
                self.valid.report.records += std::mem::take(&mut self.records);
                self.valid.regions.append(&mut self.regions);
            }
            Record::DelRange { .. }
            | Record::Create(_)
            | Record::Link(_)
            | Record::Unlink(_)
            | Record::Inode { .. }
            | Record::Pad => {}
        }
        ControlFlow::Continue(())
    }
}

fn merged(mut regions: Vec<Range<u64>>) -> Vec<Range<u64>> {
    regions.sort_unstable_by_key(|region| region.start);
    regions.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    regions
}
