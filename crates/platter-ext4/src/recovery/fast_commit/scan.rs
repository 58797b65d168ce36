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
            Err(_) => scan.end(),
        });
        match broke {
            ControlFlow::Continue(()) => Ok(ControlFlow::Continue(())),
            ControlFlow::Break(Ok(())) => Ok(ControlFlow::Break(())),
            ControlFlow::Break(Err(error)) => Err(error),
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

type Step = ControlFlow<Result<()>>;

impl Scan {
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
                self.regions.push(range.start.0..end);
            }
            Record::Tail { sequence, crc } => {
                if sequence != self.sequence || crc != self.crc {
                    return self.end();
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

#[cfg(test)]
mod tests {
    use super::*;
    use platter_ondisk::Rule;

    fn scan() -> Scan {
        Scan {
            sequence: Sequence(7),
            valid: Valid::default(),
            crc: 0,
            records: 0,
            regions: Vec::new(),
        }
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
