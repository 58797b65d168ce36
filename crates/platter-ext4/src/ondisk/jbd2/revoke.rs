//! The revoke block: blocks whose copies in this and earlier transactions must not be replayed.
//! Spec: `ext4/journal`, revocation block.

use platter_ondisk::endian::{Be32, Be64};
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LogRule;
use super::format::{LogFormat, take};
use super::header::{BlockKind, DiskHeader, Header, Sequence};
use crate::ondisk::BlockNr;

/// The first bytes of a revoke block. Spec: `ext4/journal`, `struct jbd2_journal_revoke_header_s`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskRevoke {
    /// `r_header`.
    pub header: DiskHeader,
    /// `r_count`: bytes in use, this header included.
    pub used_bytes: Be32,
}

const _: () = assert!(size_of::<DiskRevoke>() == 16);

/// The block numbers in a revoke block.
#[derive(Debug, Clone)]
pub struct RevokedBlocks<'a> {
    records: &'a [u8],
    wide: bool,
}

impl<'a> RevokedBlocks<'a> {
    /// Decodes the records of `block`.
    pub fn decode(block: &'a [u8], format: &LogFormat) -> Result<Self, Corrupt<LogRule>> {
        let broken = || Corrupt::new(Locus::default(), LogRule::RevokeCount);
        let (disk, _) = DiskRevoke::ref_from_prefix(block).map_err(|_| broken())?;
        let used = usize::try_from(disk.used_bytes.get()).unwrap_or(usize::MAX);
        if used > format.records_end() {
            return Err(broken());
        }
        let records = block.get(size_of::<DiskRevoke>()..used).unwrap_or_default();
        Ok(Self {
            records,
            wide: format.wide,
        })
    }
}

impl Iterator for RevokedBlocks<'_> {
    type Item = BlockNr;

    fn next(&mut self) -> Option<BlockNr> {
        let (block, rest) = if self.wide {
            take::<Be64>(self.records).map(|(block, rest)| (block.get(), rest))?
        } else {
            take::<Be32>(self.records).map(|(block, rest)| (u64::from(block.get()), rest))?
        };
        self.records = rest;
        Some(BlockNr(block))
    }
}

fn record_bytes(format: &LogFormat) -> usize {
    if format.wide { 8 } else { 4 }
}

/// Returns the capacity of a revoke block in records.
#[must_use]
pub fn records_max(format: &LogFormat) -> usize {
    let capacity = format.records_end().saturating_sub(size_of::<DiskRevoke>());
    capacity
        .checked_div(record_bytes(format))
        .unwrap_or_default()
}

/// Encodes a revoke block of transaction `sequence` with these records, at most [`records_max`].
#[must_use]
pub fn encode(sequence: Sequence, revoked: &[BlockNr], format: &LogFormat) -> Vec<u8> {
    let header = Header {
        kind: BlockKind::Revoke,
        sequence,
    };
    let used = revoked
        .len()
        .saturating_mul(record_bytes(format))
        .saturating_add(size_of::<DiskRevoke>());
    debug_assert!(used <= format.records_end(), "the records fit the block");
    let disk = DiskRevoke {
        header: header.encode(),
        used_bytes: u32::try_from(used).unwrap_or(u32::MAX).into(),
    };
    let mut block = Vec::with_capacity(format.block_bytes as usize);
    block.extend(disk.as_bytes());
    for revoked in revoked {
        let [h0, h1, h2, h3, low @ ..] = revoked.0.to_be_bytes();
        if format.wide {
            block.extend([h0, h1, h2, h3]);
        }
        block.extend(low);
    }
    block.resize(format.block_bytes as usize, 0);
    format.seal_tail(&mut block);
    block
}

#[cfg(test)]
mod tests {
    use super::super::format::Checksums;
    use super::*;

    fn format(wide: bool, checksums: Checksums) -> LogFormat {
        LogFormat {
            block_bytes: 1024,
            wide,
            checksums,
            async_commit: false,
        }
    }

    fn block(used: u32) -> Vec<u8> {
        let mut block = vec![0; 1024];
        block[12..16].copy_from_slice(Be32::new(used).as_bytes());
        block[19] = 5;
        block[23] = 6;
        block
    }

    #[test]
    fn record_width_depends_on_the_format() {
        let narrow = format(false, Checksums::None);
        let found: Vec<_> = RevokedBlocks::decode(&block(24), &narrow)
            .unwrap()
            .collect();
        assert_eq!(found, [BlockNr(5), BlockNr(6)]);
        let wide = format(true, Checksums::None);
        let found: Vec<_> = RevokedBlocks::decode(&block(24), &wide).unwrap().collect();
        assert_eq!(found, [BlockNr(0x5_0000_0006)]);
    }

    #[test]
    fn partial_record_and_empty_block_yield_none() {
        let narrow = format(false, Checksums::None);
        for used in [0, 15, 16, 19] {
            assert_eq!(
                RevokedBlocks::decode(&block(used), &narrow)
                    .unwrap()
                    .count(),
                0
            );
        }
    }

    #[test]
    fn full_block_round_trips_in_every_layout() {
        for checksums in [Checksums::None, Checksums::Tag32 { seed: 3 }] {
            for wide in [false, true] {
                let format = format(wide, checksums);
                let high = if wide { 5 << 32 } else { 0 };
                let blocks: Vec<_> = (0..records_max(&format) as u64)
                    .map(|block| BlockNr(high + block))
                    .collect();
                let block = encode(Sequence(9), &blocks, &format);
                assert_eq!(block.len(), 1024);
                assert!(format.tail_matches(&block));
                let found: Vec<_> = RevokedBlocks::decode(&block, &format).unwrap().collect();
                assert_eq!(found, blocks);
                let capacity = format.records_end() - 16 - found.len() * record_bytes(&format);
                assert!(
                    capacity < record_bytes(&format),
                    "one more record would fit"
                );
            }
        }
    }

    #[test]
    fn count_beyond_the_block_is_corrupt() {
        let plain = format(false, Checksums::None);
        assert!(RevokedBlocks::decode(&block(1024), &plain).is_ok());
        let error = RevokedBlocks::decode(&block(1025), &plain).unwrap_err();
        assert_eq!(error.rule, LogRule::RevokeCount);
        let sealed = format(false, Checksums::Tag32 { seed: 0 });
        assert!(RevokedBlocks::decode(&block(1021), &sealed).is_err());
    }
}
