//! The third walk: writes the logged blocks to the filesystem.

use std::ops::Range;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result};

use super::ReplayReport;
use super::revoke::RevokeTable;
use super::walk::LogWalk;
use crate::ondisk::jbd2::descriptor::{Tag, TagFlags, Tags};
use crate::ondisk::jbd2::{BlockKind, JBD2_MAGIC, LogRule, Sequence};
use crate::txn::journal::Journal;

/// What one replay works with.
#[derive(Debug)]
pub(super) struct WriteBlocks<'r> {
    pub(super) journal: &'r Journal,
    pub(super) target: &'r dyn BlockDevice,
    pub(super) filesystem_blocks: u64,
    pub(super) revoked: &'r RevokeTable,
    pub(super) end: Sequence,
    /// Where the log itself lies on the target, in ascending order.
    pub(super) log_places: Vec<Range<u64>>,
}

impl WriteBlocks<'_> {
    /// Replays every transaction before `end`. A block that cannot be replayed is passed over, so
    /// that the others are written, and is the error in the end.
    pub(super) fn run(&self) -> Result<ReplayReport> {
        let mut report = ReplayReport {
            end: self.end,
            ..ReplayReport::default()
        };
        let mut first_error = None;
        let mut walk = LogWalk::new(self.journal);
        let mut next = self.journal.superblock().sequence;
        while next.is_before(self.end) {
            match walk.next_block(next)? {
                Some(BlockKind::Descriptor) => {
                    let failed = self.descriptor(&mut walk, next, &mut report)?;
                    first_error = first_error.or(failed);
                }
                Some(BlockKind::Revoke) => {}
                Some(BlockKind::Commit) => {
                    report.transactions += 1;
                    next = next.next();
                }
                Some(BlockKind::SuperblockV1 | BlockKind::SuperblockV2) | None => break,
            }
        }
        report.head = walk.position();
        first_error.map_or(Ok(report), Err)
    }

    fn descriptor(
        &self,
        walk: &mut LogWalk<'_>,
        sequence: Sequence,
        report: &mut ReplayReport,
    ) -> Result<Option<Error>> {
        let format = self.journal.superblock().format;
        let descriptor = walk.block().to_vec();
        let mut first_error = None;
        for tag in Tags::decode(&descriptor, &format) {
            if self.revoked.covers(tag.block, sequence) {
                walk.skip(1);
                report.blocks_revoked += 1;
                continue;
            }
            match self.logged_block(walk, sequence, &tag) {
                Ok(()) => report.blocks_replayed += 1,
                Err(error @ Error::Corrupt(_)) => first_error = first_error.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(first_error)
    }

    fn logged_block(&self, walk: &mut LogWalk<'_>, sequence: Sequence, tag: &Tag) -> Result<()> {
        let format = self.journal.superblock().format;
        let logged = walk.read_next()?;
        let matches = format
            .data_checksum(sequence, logged)
            .is_none_or(|sum| sum == tag.checksum);
        if !matches {
            let locus = self.journal.locus(walk.here());
            return Err(Corrupt::new(locus, LogRule::DataChecksum).into());
        }
        self.check_target(tag)?;
        let offset = tag.block.0 * u64::from(format.block_bytes);
        if tag.flags.contains(TagFlags::ESCAPE) {
            let mut block = logged.to_vec();
            if let Some(magic) = block.first_chunk_mut() {
                *magic = JBD2_MAGIC.to_be_bytes();
            }
            return Ok(self.target.write_at(offset, &block)?);
        }
        Ok(self.target.write_at(offset, logged)?)
    }

    fn check_target(&self, tag: &Tag) -> Result<()> {
        let locus = Locus::block(tag.block.0);
        if tag.block.0 >= self.filesystem_blocks {
            return Err(Corrupt::new(locus, LogRule::TargetOutside).into());
        }
        let next = self
            .log_places
            .partition_point(|place| place.start <= tag.block.0);
        let place = next
            .checked_sub(1)
            .and_then(|index| self.log_places.get(index));
        if place.is_some_and(|place| place.contains(&tag.block.0)) {
            return Err(Corrupt::new(locus, LogRule::TargetInsideLog).into());
        }
        Ok(())
    }
}
