//! A journal written block by block, intact or corrupt, for the tests of what reads one.

use std::sync::Arc;

use platter_block::{BlockDevice, MemoryDevice};
use platter_ondisk::checksum::{crc32_be, crc32c};
use platter_ondisk::endian::{Be32, Be64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::journal::{Journal, JournalMapBuilder};
use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::commit::{self, DiskCommit};
use crate::ondisk::jbd2::descriptor::{Tag, TagFlags, encode_tag};
use crate::ondisk::jbd2::superblock::{DiskJournalSuperblock, JournalCompat, JournalIncompat};
use crate::ondisk::jbd2::{
    BlockKind, Checksums, Header, JBD2_MAGIC, LogBlock, LogFormat, Sequence,
};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 1024;
/// Blocks of the filesystem, which holds the journal.
pub(crate) const FILESYSTEM_BLOCKS: u64 = 512;
/// Blocks of the journal.
pub(crate) const LOG_BLOCKS: u32 = 64;

const UUID: [u8; 16] = [0x5a; 16];
/// The journal lies in two runs that are not in the order of the log.
const RUNS: [(u32, u64, u32); 2] = [(0, 400, 40), (40, 300, LOG_BLOCKS - 40)];

/// A block of the log that bears its number and a byte to know it by.
pub(crate) fn filled(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_BYTES]
}

/// A log under construction.
#[derive(Debug)]
pub(crate) struct SampleLog {
    pub(crate) superblock: DiskJournalSuperblock,
    pub(crate) format: LogFormat,
    pub(crate) sequence: Sequence,
    pub(crate) position: u32,
    pub(crate) seconds: u64,
    disk: Vec<u8>,
    crc: u32,
}

impl SampleLog {
    /// An empty log whose first transaction will be 7 at block 1.
    pub(crate) fn new(checksums: Checksums, wide: bool) -> Self {
        let mut superblock = DiskJournalSuperblock::new_zeroed();
        superblock.header = header(BlockKind::SuperblockV2, Sequence(0));
        superblock.block_bytes = 1024.into();
        superblock.len_blocks = LOG_BLOCKS.into();
        superblock.first = 1.into();
        superblock.uuid = UUID;
        superblock.checksum_type = 4;
        let mut incompat = JournalIncompat::REVOKE;
        incompat.set(JournalIncompat::BIT64, wide);
        let seed = crc32c(!0, &UUID);
        let checksums = match checksums {
            Checksums::None => Checksums::None,
            Checksums::Commit => {
                superblock.feature_compat = JournalCompat::CHECKSUM.bits().into();
                Checksums::Commit
            }
            Checksums::Tag16 { .. } => {
                incompat |= JournalIncompat::CSUM_V2;
                Checksums::Tag16 { seed }
            }
            Checksums::Tag32 { .. } => {
                incompat |= JournalIncompat::CSUM_V3;
                Checksums::Tag32 { seed }
            }
        };
        superblock.feature_incompat = incompat.bits().into();
        let mut log = Self {
            superblock,
            format: LogFormat {
                block_bytes: 1024,
                wide,
                checksums,
                async_commit: false,
            },
            sequence: Sequence(7),
            position: 1,
            seconds: 1000,
            disk: vec![0; usize::try_from(FILESYSTEM_BLOCKS).unwrap() * BLOCK_BYTES],
            crc: !0,
        };
        log.start_at(1, 7);
        log
    }

    /// Begins the live part of the log elsewhere.
    pub(crate) fn start_at(&mut self, block: u32, sequence: u32) {
        self.superblock.start = block.into();
        self.superblock.sequence = sequence.into();
        self.position = block;
        self.sequence = Sequence(sequence);
    }

    /// Lets commit blocks overtake what they commit.
    pub(crate) fn allow_async_commit(&mut self) {
        let incompat = self.superblock.feature_incompat.get();
        let bit = JournalIncompat::ASYNC_COMMIT.bits();
        self.superblock.feature_incompat = (incompat | bit).into();
    }

    /// Logs whole blocks, and returns the place of their descriptor.
    pub(crate) fn log(&mut self, blocks: &[(u64, Vec<u8>)]) -> u32 {
        let mut descriptor = header(BlockKind::Descriptor, self.sequence)
            .as_bytes()
            .to_vec();
        let mut stored = Vec::new();
        for (index, (block, bytes)) in blocks.iter().enumerate() {
            let mut bytes = bytes.clone();
            let mut flags = TagFlags::empty();
            flags.set(TagFlags::SAME_UUID, index > 0);
            flags.set(TagFlags::LAST_TAG, index + 1 == blocks.len());
            if bytes[..4] == JBD2_MAGIC.to_be_bytes() {
                bytes[..4].fill(0);
                flags |= TagFlags::ESCAPE;
            }
            let tag = Tag {
                block: BlockNr(*block),
                flags,
                checksum: self
                    .format
                    .data_checksum(self.sequence, &bytes)
                    .unwrap_or(0),
            };
            encode_tag(&tag, &self.format, &mut descriptor);
            if index == 0 {
                descriptor.extend(UUID);
            }
            stored.push(bytes);
        }
        descriptor.resize(BLOCK_BYTES, 0);
        self.format.seal_tail(&mut descriptor);
        let place = self.put_summed(&descriptor);
        for bytes in &stored {
            self.put_summed(bytes);
        }
        place
    }

    /// Revokes blocks, and returns the place of the revoke block.
    pub(crate) fn revoke(&mut self, blocks: &[u64]) -> u32 {
        let width = if self.format.wide { 8 } else { 4 };
        let mut block = header(BlockKind::Revoke, self.sequence).as_bytes().to_vec();
        let used = u32::try_from(16 + width * blocks.len()).unwrap();
        block.extend(Be32::new(used).as_bytes());
        for revoked in blocks {
            block.extend(&Be64::new(*revoked).as_bytes()[8 - width..]);
        }
        block.resize(BLOCK_BYTES, 0);
        self.format.seal_tail(&mut block);
        self.put(&block)
    }

    /// Commits, and returns the place of the commit block.
    pub(crate) fn commit(&mut self) -> u32 {
        let mut block = vec![0; BLOCK_BYTES];
        let (disk, _) = DiskCommit::mut_from_prefix(&mut block).unwrap();
        disk.header = header(BlockKind::Commit, self.sequence);
        disk.seconds = self.seconds.into();
        if self.format.checksums == Checksums::Commit {
            disk.checksum_type = 1;
            disk.checksum_size = 4;
            disk.checksums[0] = self.crc.into();
        }
        commit::seal(&mut block, &self.format);
        self.crc = !0;
        self.sequence = self.sequence.next();
        self.seconds += 1;
        self.put(&block)
    }

    /// Writes a block at the head of the log.
    pub(crate) fn put(&mut self, block: &[u8]) -> u32 {
        let place = self.position;
        self.block_mut(place).copy_from_slice(block);
        self.position = if place + 1 == LOG_BLOCKS {
            1
        } else {
            place + 1
        };
        place
    }

    fn put_summed(&mut self, block: &[u8]) -> u32 {
        self.crc = crc32_be(self.crc, block);
        self.put(block)
    }

    /// A block of the log, to corrupt it.
    pub(crate) fn block_mut(&mut self, place: u32) -> &mut [u8] {
        let run = RUNS.iter().rev().find(|run| run.0 <= place).unwrap();
        let block = usize::try_from(run.1).unwrap() + (place - run.0) as usize;
        &mut self.disk[block * BLOCK_BYTES..][..BLOCK_BYTES]
    }

    /// The disk with the log on it.
    pub(crate) fn disk(mut self) -> Arc<MemoryDevice> {
        self.superblock.seal();
        let superblock = self.superblock;
        self.block_mut(0).copy_from_slice(superblock.as_bytes());
        Arc::new(MemoryDevice::new("sample", self.disk))
    }
}

/// Opens the journal on a sample's disk.
pub(crate) fn open(disk: &Arc<MemoryDevice>) -> Journal {
    open_on(Arc::<MemoryDevice>::clone(disk))
}

/// Opens the journal on a device that holds a sample.
pub(crate) fn open_on(device: Arc<dyn BlockDevice>) -> Journal {
    let mut map = JournalMapBuilder::new(device, 1024);
    for (first, device, len) in RUNS {
        map.push(LogBlock(first), BlockNr(device), len).unwrap();
    }
    Journal::open(map.finish()).unwrap()
}

/// A block of a sample's filesystem: the byte it is filled with, if it is.
pub(crate) fn fill_of(disk: &MemoryDevice, block: usize) -> Option<u8> {
    let bytes = disk.snapshot();
    let bytes = &bytes[block * BLOCK_BYTES..][..BLOCK_BYTES];
    bytes
        .iter()
        .all(|byte| *byte == bytes[0])
        .then_some(bytes[0])
}

fn header(kind: BlockKind, sequence: Sequence) -> crate::ondisk::jbd2::header::DiskHeader {
    Header { kind, sequence }.encode()
}
