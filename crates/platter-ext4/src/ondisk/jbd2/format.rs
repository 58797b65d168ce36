//! How the features of a journal shape its blocks: widths of numbers, and checksums.
//! Spec: `ext4/journal`, feature flags and block checksums.

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::Be32;
use zerocopy::{FromBytes, IntoBytes};

use super::header::Sequence;

/// Which checksums the log has. Seeds are the CRC-32C of the journal's UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checksums {
    /// None.
    None,
    /// Version 1: a CRC-32 over a transaction's descriptor and logged blocks, in its commit block.
    Commit,
    /// Version 2: each block of the log has one, logged blocks 16 bits of it in their tag.
    Tag16 {
        /// What each checksum starts from.
        seed: u32,
    },
    /// Version 3: as version 2, with all 32 bits in the tag.
    Tag32 {
        /// What each checksum starts from.
        seed: u32,
    },
}

/// The shape of the blocks of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFormat {
    /// Bytes of a block: a power of two from 1 KiB to 64 KiB.
    pub block_bytes: u32,
    /// Block numbers have 64 bits.
    pub wide: bool,
    /// The checksums.
    pub checksums: Checksums,
    /// A commit block may reach the disk before the blocks it commits.
    pub async_commit: bool,
}

impl LogFormat {
    /// The seed of per-block checksums, where the log has them.
    #[must_use]
    pub fn seed(&self) -> Option<u32> {
        match self.checksums {
            Checksums::None | Checksums::Commit => None,
            Checksums::Tag16 { seed } | Checksums::Tag32 { seed } => Some(seed),
        }
    }

    /// Bytes of a block that records may take: all before the checksum at its end.
    #[must_use]
    pub fn records_end(&self) -> usize {
        let tail = if self.seed().is_some() { TAIL_BYTES } else { 0 };
        (self.block_bytes as usize).saturating_sub(tail)
    }

    /// Whether a descriptor or revoke block has its checksum; true where the log has none.
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

    /// Puts the checksum of a descriptor or revoke block in place.
    pub fn seal_tail(&self, block: &mut [u8]) {
        let Some(seed) = self.seed() else {
            return;
        };
        if let Some((body, tail)) = block.split_last_chunk_mut::<TAIL_BYTES>() {
            *tail = tail_checksum(seed, body).to_be_bytes();
        }
    }

    /// The checksum of a logged block as its tag stores it; `None` where tags have none.
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

/// The big-endian number at the start of `bytes`, and what follows it.
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
    fn sealed_tail_matches_and_a_flip_does_not() {
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
