//! The first walk: which transactions of the log were committed.
//!
//! A log ends at the first block that does not carry on its sequence. After that follow blocks of
//! older runs of the log, and of a journal that was here before: a block whose checksum is wrong
//! may be one of those, so what it means is decided by the commit block that follows. Its time
//! decides whether it belongs to this log.

use platter_ondisk::checksum::crc32_be;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::LogEnd;
use super::walk::LogWalk;
use crate::ondisk::jbd2::commit::Commit;
use crate::ondisk::jbd2::descriptor::Tags;
use crate::ondisk::jbd2::{BlockKind, Checksums, LogFormat, LogRule, Sequence};
use crate::txn::journal::Journal;

/// Finds the end of the log.
pub(super) fn scan(journal: &Journal) -> Result<LogEnd> {
    let mut scan = Scan {
        format: journal.superblock().format,
        walk: LogWalk::new(journal),
        journal,
        next: journal.superblock().sequence,
        crc: !0,
        last_commit_seconds: 0,
        doubtful: None,
        end: None,
    };
    loop {
        let step = match scan.walk.next_block(scan.next)? {
            Some(BlockKind::Descriptor) => scan.descriptor()?,
            Some(BlockKind::Revoke) => scan.revoke(),
            Some(BlockKind::Commit) => scan.commit()?,
            Some(BlockKind::SuperblockV1 | BlockKind::SuperblockV2) | None => Step::End(None),
        };
        if let Step::End(failed) = step {
            let end = scan.end.unwrap_or(scan.next);
            return Ok(LogEnd { end, failed });
        }
    }
}

enum Step {
    Continue,
    End(Option<Locus>),
}

struct Scan<'j> {
    journal: &'j Journal,
    format: LogFormat,
    walk: LogWalk<'j>,
    /// The transaction being walked over.
    next: Sequence,
    /// Version 1: over the descriptor and logged blocks of the transaction so far.
    crc: u32,
    /// When the last good transaction was committed.
    last_commit_seconds: u64,
    /// A descriptor or revoke block of this transaction without its checksum.
    doubtful: Option<Locus>,
    /// The first transaction that is not to be replayed, where the log goes on after it.
    end: Option<Sequence>,
}

impl Scan<'_> {
    fn descriptor(&mut self) -> Result<Step> {
        self.check_tail();
        let count = Tags::decode(self.walk.block(), &self.format).count();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if self.format.checksums != Checksums::Commit || self.end.is_some() {
            self.walk.skip(count);
            return Ok(Step::Continue);
        }
        self.crc = crc32_be(self.crc, self.walk.block());
        for _ in 0..count {
            self.crc = crc32_be(self.crc, self.walk.read_next()?);
        }
        Ok(Step::Continue)
    }

    fn revoke(&mut self) -> Step {
        self.check_tail();
        Step::Continue
    }

    fn check_tail(&mut self) {
        if !self.format.tail_matches(self.walk.block()) {
            self.doubtful = Some(self.here());
        }
    }

    /// A corrupt transaction ends the log quietly when its time says that it belongs to an older
    /// run. Else it is an error, unless commit blocks may overtake what they commit: then the
    /// last transaction may well be incomplete, but no earlier one.
    fn commit(&mut self) -> Result<Step> {
        let Some(commit) = Commit::decode(self.walk.block(), &self.format, self.crc) else {
            return Ok(Step::End(None));
        };
        let stale = commit.seconds < self.last_commit_seconds;
        if let Some(locus) = self.doubtful {
            if stale {
                return Ok(Step::End(None));
            }
            return Err(Corrupt::new(locus, LogRule::BlockChecksum).into());
        }
        if self.end.is_some() && self.format.checksums == Checksums::Commit {
            return Ok(Step::End(Some(self.here())));
        }
        if commit.checksum_matches {
            self.crc = !0;
        } else {
            if stale {
                return Ok(Step::End(None));
            }
            self.end = self.end.or(Some(self.next));
            if !self.format.async_commit {
                return Ok(Step::End(Some(self.here())));
            }
        }
        self.last_commit_seconds = commit.seconds;
        self.next = self.next.next();
        Ok(Step::Continue)
    }

    fn here(&self) -> Locus {
        self.journal.locus(self.walk.here())
    }
}
