//! A transaction in the form of the log: revoke blocks, then descriptor blocks, each followed by
//! the blocks it describes, then the commit block. Spec: `ext4/journal`.

use std::ops::Deref;

use platter_cache::Buffer;
use platter_ondisk::Uuid;
use platter_ondisk::checksum::crc32_be;
use platter_vfs::Timestamp;

use super::transaction::Closed;
use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::descriptor::{Tag, TagFlags, tags_max};
use crate::ondisk::jbd2::{Checksums, JBD2_MAGIC, LogFormat, Sequence};
use crate::ondisk::jbd2::{commit, descriptor, revoke};

/// One block of the log.
#[derive(Debug)]
pub(super) enum Piece {
    /// A block of the log's own, or a logged one that had to be escaped.
    Own(Vec<u8>),
    /// A logged block as it is.
    Logged(Buffer),
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Logged(buffer) => buffer,
        }
    }
}

/// All blocks of a transaction but the commit block.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) pieces: Vec<Piece>,
    sequence: Sequence,
    /// Version 1: over the descriptor and logged blocks.
    crc: u32,
}

impl Record {
    pub(super) fn encode(transaction: &Closed, uuid: Uuid, format: &LogFormat) -> Self {
        let sequence = transaction.sequence;
        let mut pieces = Vec::with_capacity(transaction.blocks.len() + 2);
        let revoked: Vec<_> = transaction
            .revoked
            .iter()
            .map(|&block| BlockNr(block))
            .collect();
        for revoked in revoked.chunks(revoke::records_max(format)) {
            pieces.push(Piece::Own(revoke::encode(sequence, revoked, format)));
        }
        let revoke_blocks = pieces.len();
        let blocks: Vec<_> = transaction.blocks.iter().collect();
        for blocks in blocks.chunks(tags_max(format)) {
            let (tags, logged): (Vec<_>, Vec<_>) = blocks
                .iter()
                .map(|&(&block, buffer)| log(BlockNr(block), buffer, sequence, format))
                .unzip();
            let descriptor = descriptor::encode(sequence, &tags, *uuid.as_bytes(), format);
            pieces.push(Piece::Own(descriptor));
            pieces.extend(logged);
        }
        let crc = if format.checksums == Checksums::Commit {
            pieces
                .iter()
                .skip(revoke_blocks)
                .fold(!0, |crc, piece| crc32_be(crc, piece))
        } else {
            0
        };
        Self {
            pieces,
            sequence,
            crc,
        }
    }

    /// How many blocks it takes, the commit block included.
    pub(super) fn len_blocks(&self) -> u32 {
        u32::try_from(self.pieces.len() + 1).unwrap_or(u32::MAX)
    }

    /// The commit block.
    pub(super) fn commit_block(&self, time: Timestamp, format: &LogFormat) -> Vec<u8> {
        let seconds = u64::try_from(time.seconds).unwrap_or_default();
        commit::encode(self.sequence, seconds, time.nanoseconds, self.crc, format)
    }
}

/// The tag of a block, and the block as it is logged: one that begins like a block of the log's own
/// has zeros there.
fn log(block: BlockNr, buffer: &Buffer, sequence: Sequence, format: &LogFormat) -> (Tag, Piece) {
    let magic = JBD2_MAGIC.to_be_bytes();
    let mut flags = TagFlags::empty();
    let logged = if buffer.starts_with(&magic) {
        flags |= TagFlags::ESCAPE;
        let mut bytes = buffer.to_vec();
        bytes[..magic.len()].fill(0);
        Piece::Own(bytes)
    } else {
        Piece::Logged(buffer.clone())
    };
    let checksum = format.data_checksum(sequence, &logged).unwrap_or(0);
    let tag = Tag {
        block,
        flags,
        checksum,
    };
    (tag, logged)
}
