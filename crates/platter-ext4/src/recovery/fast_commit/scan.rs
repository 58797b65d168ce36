//! Finds the complete fast commits. A tail with the right CRC validates all records since the tail
//! before; the first tail that does not match ends the fast commits.
//!
//! If that is the first one, the journal is refused, as by the kernel and `e2fsck`: before it,
//! there were fast commits of an earlier transaction, and if the device dropped that transaction
//! but wrote these blocks, what they made durable is lost.

use std::ops::{ControlFlow, Range};

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result, Unsupported};

use super::{FastCommitReport, for_each_block};
use crate::ondisk::Geometry;
use crate::ondisk::jbd2::Sequence;
use crate::ondisk::jbd2::fast_commit::{FastCommitRule, Record, Records, continue_crc};
use crate::txn::Journal;

/// Number of regions below which none are merged.
const REGIONS_MERGED_MIN: usize = 4096;

/// The fast commits to replay.
#[derive(Debug, Default)]
pub(super) struct Valid {
    /// Their counts.
    pub(super) report: FastCommitReport,
    /// The blocks that they map, in ascending order without overlaps: these must not be allocated
    /// otherwise.
    pub(super) regions: Vec<Range<u64>>,
}

/// Finds the complete fast commits of transaction `sequence`.
///
/// # Errors
/// `Corrupt` for an incomplete first one. `Unsupported` for an unknown feature, and for blocks in more
/// than `regions_max` regions.
pub(super) fn scan(
    journal: &Journal,
    sequence: Sequence,
    geometry: &Geometry,
    regions_max: usize,
) -> Result<Valid> {
    let mut scan = Scan::new(sequence, regions_max);
    let mut is_first = true;
    for_each_block(journal, |block| {
        let mut records = Records::decode(block, geometry.inode_bytes);
        if std::mem::take(&mut is_first) && !begins_with_head(records.clone()) {
            return Ok(ControlFlow::Break(()));
        }
        let broke = records.try_for_each(|result| match result {
            Ok((record, covered)) => scan.record(&record, covered),
            Err(_) => scan.end(),
        });
        match broke {
            ControlFlow::Continue(()) => Ok(ControlFlow::Continue(())),
            ControlFlow::Break(Ok(())) => Ok(ControlFlow::Break(())),
            ControlFlow::Break(Err(error)) => Err(error),
        }
    })?;
    scan.valid.regions = scan.regions.complete();
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
    regions: Regions,
}

type Step = ControlFlow<Result<()>>;

impl Scan {
    fn new(sequence: Sequence, regions_max: usize) -> Self {
        Self {
            sequence,
            valid: Valid::default(),
            crc: 0,
            records: 0,
            regions: Regions::new(regions_max),
        }
    }

    /// An incomplete fast commit ends the sequence, unless it is the first.
    fn end(&self) -> Step {
        if self.valid.report.fast_commits > 0 {
            return ControlFlow::Break(Ok(()));
        }
        let torn = Corrupt::new(Locus::default(), FastCommitRule::First);
        ControlFlow::Break(Err(Error::from(torn)))
    }

    fn record(&mut self, record: &Record<'_>, covered: &[u8]) -> Step {
        self.records += 1;
        self.crc = continue_crc(self.crc, covered);
        match *record {
            Record::Head { features, sequence } => {
                if features != 0 {
                    let unsupported = Unsupported {
                        filesystem: "ext4",
                        feature: format!("fast commit feature {features:#x}"),
                        reason: None,
                    };
                    return ControlFlow::Break(Err(unsupported.into()));
                }
                if sequence != self.sequence {
                    return ControlFlow::Break(Ok(()));
                }
            }
            Record::AddRange(range) => {
                let end = range.start.0.saturating_add(u64::from(range.len));
                if let Err(error) = self.regions.push(range.start.0..end) {
                    return ControlFlow::Break(Err(error));
                }
            }
            Record::Tail { sequence, crc } => {
                if sequence != self.sequence || crc != self.crc {
                    return self.end();
                }
                self.crc = 0;
                self.valid.report.fast_commits += 1;
                self.valid.report.records += std::mem::take(&mut self.records);
                self.regions.commit();
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

/// Regions of the device, of fast commits known to be complete and of the one that is not yet.
#[derive(Debug)]
struct Regions {
    complete: Vec<Range<u64>>,
    incomplete: Vec<Range<u64>>,
    /// Number of both after which they are merged.
    merge_at: usize,
    max: usize,
}

impl Regions {
    fn new(max: usize) -> Self {
        Self {
            complete: Vec::new(),
            incomplete: Vec::new(),
            merge_at: max.min(REGIONS_MERGED_MIN),
            max,
        }
    }

    fn push(&mut self, region: Range<u64>) -> Result<()> {
        let len = |regions: &Self| regions.complete.len() + regions.incomplete.len();
        if len(self) >= self.merge_at {
            merge(&mut self.complete);
            merge(&mut self.incomplete);
            let merged = len(self);
            if merged >= self.max {
                let unsupported = Unsupported {
                    filesystem: "ext4",
                    feature: format!("fast commits of {merged} regions of blocks"),
                    reason: Some("the memory budget holds no more"),
                };
                return Err(unsupported.into());
            }
            // As many again, so that merging takes no more than the pushes in between.
            self.merge_at = (merged * 2).clamp(REGIONS_MERGED_MIN.min(self.max), self.max);
        }
        self.incomplete.push(region);
        Ok(())
    }

    fn commit(&mut self) {
        self.complete.append(&mut self.incomplete);
    }

    /// Returns those of the complete ones, in ascending order without overlaps.
    fn complete(mut self) -> Vec<Range<u64>> {
        merge(&mut self.complete);
        self.complete
    }
}

fn merge(regions: &mut Vec<Range<u64>>) {
    regions.sort_unstable_by_key(|region| region.start);
    regions.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use platter_ondisk::Rule;

    fn scan() -> Scan {
        Scan::new(Sequence(7), 100)
    }

    #[test]
    fn regions_that_repeat_take_no_memory() {
        let mut regions = Regions::new(10);
        for turn in 0..1000 {
            regions.push(turn % 5..turn % 5 + 1).unwrap();
            assert!(regions.complete.len() + regions.incomplete.len() <= 11);
            if turn % 3 == 0 {
                regions.commit();
            }
        }
        for apart in 100..120 {
            if let Err(error) = regions.push(apart * 2..apart * 2 + 1) {
                assert!(matches!(error, Error::Unsupported(_)));
                assert!(regions.incomplete.len() > 5);
                return;
            }
        }
        panic!("accepted");
    }

    #[test]
    fn regions_of_an_incomplete_fast_commit_are_free() {
        let mut regions = Regions::new(100);
        regions.push(5..6).unwrap();
        regions.push(4..5).unwrap();
        regions.commit();
        regions.push(8..9).unwrap();
        assert_eq!(regions.complete(), vec![4..6]);
    }

    #[test]
    fn incomplete_first_fast_commit_is_refused() {
        let wrong = Record::Tail {
            sequence: Sequence(7),
            crc: 1,
        };
        let ControlFlow::Break(Err(Error::Corrupt(corruption))) = scan().record(&wrong, &[]) else {
            panic!("accepted");
        };
        assert_eq!(corruption.rule, FastCommitRule::First.text());

        let mut scan = scan();
        let whole = Record::Tail {
            sequence: Sequence(7),
            crc: 0,
        };
        assert!(scan.record(&whole, &[]).is_continue());
        assert!(matches!(
            scan.record(&wrong, &[]),
            ControlFlow::Break(Ok(()))
        ));
        assert_eq!(scan.valid.report.fast_commits, 1);
    }
}
