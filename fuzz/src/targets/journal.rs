//! Decoders of the journal's blocks, in every form that a log can have.

use std::hint::black_box;

use platter_ext4::ondisk::jbd2::commit::{self, Commit};
use platter_ext4::ondisk::jbd2::descriptor::Tags;
use platter_ext4::ondisk::jbd2::fast_commit::Records;
use platter_ext4::ondisk::jbd2::format::{Checksums, LogFormat};
use platter_ext4::ondisk::jbd2::header::{Header, LogBlock};
use platter_ext4::ondisk::jbd2::revoke::RevokedBlocks;
use platter_ext4::ondisk::jbd2::superblock::{DiskJournalSuperblock, JournalSuperblock};
use zerocopy::FromBytes;

fn formats() -> impl Iterator<Item = LogFormat> {
    const SEED: u32 = 77;
    [
        Checksums::None,
        Checksums::Commit,
        Checksums::Tag16 { seed: SEED },
        Checksums::Tag32 { seed: SEED },
    ]
    .into_iter()
    .flat_map(|checksums| {
        [(1024, false), (4096, true)].map(|(block_bytes, wide)| LogFormat {
            block_bytes,
            wide,
            checksums,
            async_commit: wide,
        })
    })
}

pub(super) fn superblock(bytes: &[u8]) {
    let Ok((disk, _)) = DiskJournalSuperblock::read_from_prefix(bytes) else {
        return;
    };
    for sealed in [false, true] {
        let mut disk = disk;
        if sealed {
            disk.seal();
        }
        for (block_bytes, capacity) in [(1024, 1024), (4096, u32::MAX), (65536, 0)] {
            let decoded = JournalSuperblock::decode(&disk, LogBlock(0), block_bytes, capacity);
            if let Ok(superblock) = decoded {
                black_box((
                    superblock.check_supported().is_ok(),
                    superblock.feature_names(),
                ));
            }
        }
    }
}

pub(super) fn descriptor(bytes: &[u8]) {
    black_box(Header::decode(bytes));
    for format in formats() {
        black_box(Tags::decode(bytes, &format).count());
        black_box(format.tail_matches(bytes));
    }
}

pub(super) fn revoke(bytes: &[u8]) {
    for format in formats() {
        if let Ok(blocks) = RevokedBlocks::decode(bytes, &format) {
            black_box(blocks.count());
        }
    }
}

pub(super) fn commit(bytes: &[u8]) {
    for format in formats() {
        black_box(Commit::decode(bytes, &format, 5));
        let mut sealed = bytes.to_vec();
        commit::seal(&mut sealed, &format);
        black_box(Commit::decode(&sealed, &format, 5));
    }
}

pub(super) fn fast_commit(bytes: &[u8]) {
    for inode_bytes in [128, 256, u16::MAX] {
        for record in Records::decode(bytes, inode_bytes) {
            black_box(record.is_ok());
        }
    }
}
