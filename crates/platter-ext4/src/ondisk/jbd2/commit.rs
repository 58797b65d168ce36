//! The commit block: the end of a transaction, its time, and possibly checksums. Spec:
//! `ext4/journal`, commit block.

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Be32, Be64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::{Checksums, LogFormat};
use super::header::{BlockKind, DiskHeader, Header, Sequence};

/// `h_chksum_type` of version 1: CRC-32.
const CHECKSUM_TYPE_CRC32: u8 = 1;
/// `h_chksum_size` of CRC-32.
const CHECKSUM_SIZE_CRC32: u8 = 4;

/// The first bytes of a commit block. Spec: `ext4/journal`, `struct commit_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskCommit {
    /// `h_header`.
    pub header: DiskHeader,
    /// `h_chksum_type`: of version 1.
    pub checksum_type: u8,
    /// `h_chksum_size`: of version 1.
    pub checksum_size: u8,
    /// `h_padding`.
    pub padding: [u8; 2],
    /// `h_chksum`: the first one is the transaction's checksum (version 1) or the block's (2 and
    /// 3).
    pub checksums: [Be32; 8],
    /// `h_commit_sec`: seconds since 1970.
    pub seconds: Be64,
    /// `h_commit_nsec`.
    pub nanoseconds: Be32,
    /// Padding of the structure, which the writer zeroes with the header.
    pub reserved: Be32,
}

const _: () = assert!(size_of::<DiskCommit>() == 64);
const _: () = assert!(offset_of!(DiskCommit, seconds) == 48);

/// A decoded commit block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Commit time in seconds since 1970.
    pub seconds: u64,
    /// Whether the checksum matches; true if the log has none.
    pub checksum_matches: bool,
}

impl Commit {
    /// Decodes a commit block. `transaction_crc` is the CRC-32 of the transaction's descriptor and
    /// logged blocks, used only by version 1.
    #[must_use]
    pub fn decode(block: &[u8], format: &LogFormat, transaction_crc: u32) -> Option<Self> {
        let (disk, rest) = DiskCommit::ref_from_prefix(block).ok()?;
        let checksum_matches = match format.checksums {
            Checksums::None => true,
            Checksums::Commit => matches_transaction(disk, transaction_crc),
            Checksums::Tag16 { seed } | Checksums::Tag32 { seed } => {
                matches_block(disk, rest, seed)
            }
        };
        Some(Self {
            seconds: disk.seconds.get(),
            checksum_matches,
        })
    }
}

/// Encodes the commit block of transaction `sequence`. `transaction_crc` is as in
/// [`Commit::decode`].
#[must_use]
pub fn encode(
    sequence: Sequence,
    seconds: u64,
    nanoseconds: u32,
    transaction_crc: u32,
    format: &LogFormat,
) -> Vec<u8> {
    let mut disk = DiskCommit::new_zeroed();
    disk.header = Header {
        kind: BlockKind::Commit,
        sequence,
    }
    .encode();
    disk.seconds = seconds.into();
    disk.nanoseconds = nanoseconds.into();
    if format.checksums == Checksums::Commit {
        disk.checksum_type = CHECKSUM_TYPE_CRC32;
        disk.checksum_size = CHECKSUM_SIZE_CRC32;
        let [first, ..] = &mut disk.checksums;
        *first = transaction_crc.into();
    }
    let mut block = disk.as_bytes().to_vec();
    block.resize(format.block_bytes as usize, 0);
    seal(&mut block, format);
    block
}

/// Whether a version 1 checksum matches; a block without one was written while checksums were off.
fn matches_transaction(disk: &DiskCommit, transaction_crc: u32) -> bool {
    let [found, ..] = disk.checksums;
    match (disk.checksum_type, disk.checksum_size) {
        (CHECKSUM_TYPE_CRC32, CHECKSUM_SIZE_CRC32) => found.get() == transaction_crc,
        (0, 0) => found.get() == 0,
        _ => false,
    }
}

/// Whether a version 2 or 3 checksum matches. A writer that zeroed only the header, not the block,
/// computed the checksum over a zeroed block: both forms are valid.
fn matches_block(disk: &DiskCommit, rest: &[u8], seed: u32) -> bool {
    let mut copy = *disk;
    let [found, ..] = disk.checksums;
    copy.checksums[0] = 0.into();
    let header = crc32c(seed, copy.as_bytes());
    let zeros = || {
        rest.chunks(ZEROS.len())
            .filter_map(|part| ZEROS.get(..part.len()))
    };
    found.get() == crc32c(header, rest) || found.get() == zeros().fold(header, crc32c)
}

static ZEROS: [u8; 1024] = [0; 1024];

/// Stores the checksum of version 2 or 3 in a commit block.
pub fn seal(block: &mut [u8], format: &LogFormat) {
    let Some(seed) = format.seed() else {
        return;
    };
    if let Ok((disk, _)) = DiskCommit::mut_from_prefix(block) {
        disk.checksums[0] = 0.into();
    }
    let sum = crc32c(seed, block);
    if let Ok((disk, _)) = DiskCommit::mut_from_prefix(block) {
        disk.checksums[0] = sum.into();
    }
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
    fn sealed_block_matches_zeroed_or_with_stale_rest() {
        let format = format(Checksums::Tag32 { seed: 5 });
        let mut block = vec![0; 1024];
        seal(&mut block, &format);
        assert!(Commit::decode(&block, &format, 0).unwrap().checksum_matches);
        block[900] = 1;
        assert!(Commit::decode(&block, &format, 0).unwrap().checksum_matches);
        block[50] = 1;
        assert!(!Commit::decode(&block, &format, 0).unwrap().checksum_matches);
    }

    #[test]
    fn encoded_block_has_matching_checksum_and_time() {
        for checksums in [
            Checksums::None,
            Checksums::Commit,
            Checksums::Tag16 { seed: 5 },
            Checksums::Tag32 { seed: 5 },
        ] {
            let format = format(checksums);
            let block = encode(Sequence(3), 77, 8, 0x1234, &format);
            let header = Header::decode(&block).unwrap();
            assert_eq!(
                (header.kind, header.sequence),
                (BlockKind::Commit, Sequence(3))
            );
            let commit = Commit::decode(&block, &format, 0x1234).unwrap();
            assert_eq!((commit.seconds, commit.checksum_matches), (77, true));
            let other = Commit::decode(&block, &format, 0x1235).unwrap();
            assert_eq!(other.checksum_matches, checksums != Checksums::Commit);
        }
    }

    #[test]
    fn version_1_accepts_its_crc_or_none() {
        let format = format(Checksums::Commit);
        let mut block = vec![0; 1024];
        let matches = |block: &[u8]| Commit::decode(block, &format, 9).unwrap().checksum_matches;
        assert!(matches(&block));
        block[19] = 9;
        assert!(!matches(&block));
        block[12] = 1;
        block[13] = 4;
        assert!(matches(&block));
        block[19] = 8;
        assert!(!matches(&block));
    }
}
