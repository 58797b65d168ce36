//! Parameters of the log's blocks that depend on the journal's features: block number width and
//! checksums. Spec: `ext4/journal`, feature flags and block checksums.

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::Be32;
use zerocopy::{FromBytes, IntoBytes};

use super::header::Sequence;

/// The checksums of the log. Seeds are the CRC-32C of the journal's UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checksums {
    /// None.
    None,
    /// Version 1: a CRC-32 over a transaction's descriptor and logged blocks, in its commit block.
    Commit,
    /// Version 2: each block of the log has a checksum; that of a logged block is the low 16 bits
    /// in its tag.
    Tag16 {
        /// Seed of each checksum.
        seed: u32,
    },
    /// Version 3: as version 2, with all 32 bits in the tag.
    Tag32 {
        /// Seed of each checksum.
        seed: u32,
    },
}

/// The format of the blocks of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFormat {
    /// Block size in bytes: a power of two from 1 KiB to 64 KiB.
    pub block_bytes: u32,
    /// Block numbers have 64 bits.
    pub wide: bool,
    /// The checksums in use.
    pub checksums: Checksums,
    /// A commit block may reach the disk before the blocks it commits.
    pub async_commit: bool,
}

impl LogFormat {
    /// Returns the seed of per-block checksums, if the log has them.
    #[must_use]
    pub fn seed(&self) -> Option<u32> {
        match self.checksums {
            Checksums::None | Checksums::Commit => None,
            Checksums::Tag16 { seed } | Checksums::Tag32 { seed } => Some(seed),
        }
    }

    /// Returns the end of the space for records: the start of the checksum at the end of the block.
    #[must_use]
    pub fn records_end(&self) -> usize {
        let tail = if self.seed().is_some() { TAIL_BYTES } else { 0 };
        (self.block_bytes as usize).saturating_sub(tail)
    }

    /// Whether the checksum of a descriptor or revoke block matches; true if the log has none.
    #[must_use]
    pub fn tail_matches(&self, block: &[u8]) -> bool {
        let Some(seed) = self.seed() else {
            return true;
        };
        let Some((body, tail)) = block.split_last_chunk::<TAIL_BYTES>() else {
            return false;
        };
        Be32::from_bytes(*tail).get() == tail_checksum(seed, body)
    }

    /// Stores the checksum of a descriptor or revoke block.
    pub fn seal_tail(&self, block: &mut [u8]) {
        let Some(seed) = self.seed() else {
            return;
        };
        if let Some((body, tail)) = block.split_last_chunk_mut::<TAIL_BYTES>() {
            *tail = tail_checksum(seed, body).to_be_bytes();
        }
    }

    /// Returns the checksum of a logged block as stored in its tag; `None` if tags have none.
    #[must_use]
    pub fn data_checksum(&self, sequence: Sequence, logged: &[u8]) -> Option<u32> {
        let full = |seed| crc32c(crc32c(seed, Be32::new(sequence.0).as_bytes()), logged);
        match self.checksums {
            Checksums::None | Checksums::Commit => None,
            Checksums::Tag16 { seed } => Some(full(seed) & 0xffff),
            Checksums::Tag32 { seed } => Some(full(seed)),
        }
    }
}

/// `struct jbd2_journal_block_tail`: the last bytes of a descriptor or revoke block.
const TAIL_BYTES: usize = 4;

fn tail_checksum(seed: u32, body: &[u8]) -> u32 {
    crc32c(crc32c(seed, body), &[0; TAIL_BYTES])
}

/// Splits the big-endian number at the start of `bytes` from the rest.
pub(super) fn take<T: FromBytes + Copy>(bytes: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(checksums: Checksums) -> LogFormat {
        LogFormat {
            block_bytes: 1024,
            wide: false,
            checksums,
            async_commit: false,
        }
    }

    #[test]
    fn sealed_tail_matches_and_flipped_bit_fails() {
        let format = format(Checksums::Tag16 { seed: 7 });
        let mut block = vec![0x5a; 1024];
        format.seal_tail(&mut block);
        assert!(format.tail_matches(&block));
        block[3] ^= 1;
        assert!(!format.tail_matches(&block));
        assert_eq!(format.records_end(), 1020);
    }

    #[test]
    fn log_without_block_checksums_has_no_tail() {
        let format = format(Checksums::Commit);
        let block = vec![0x5a; 1024];
        assert!(format.tail_matches(&block));
        assert_eq!(format.records_end(), 1024);
        assert_eq!(format.data_checksum(Sequence(1), &block), None);
    }

    #[test]
    fn short_tag_keeps_the_low_half() {
        let wide = format(Checksums::Tag32 { seed: 7 }).data_checksum(Sequence(1), b"data");
        let short = format(Checksums::Tag16 { seed: 7 }).data_checksum(Sequence(1), b"data");
        assert_eq!(short, wide.map(|sum| sum & 0xffff));
    }
}
