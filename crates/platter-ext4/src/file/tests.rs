//! Files made in memory: bytes, holes and extents.

use std::ops::{ControlFlow, Range};

use platter_ondisk::Rule as _;
use platter_vfs::writing::RangeSet;
use platter_vfs::{Extent, SeekTarget};

use super::*;
use crate::fs_context::tests::sample_fs;
use crate::mapping::store_inline;
use crate::ondisk::InodeNr;
use crate::ondisk::extent::tests::leaf;
use crate::ondisk::geometry::tests::sample_geometry;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::inode::tests::sample;

struct File {
    fs: FsContext,
    inode: Inode,
    map: BlockMap,
}

impl File {
    /// A file of `size` bytes; every device block `n` is filled with the byte `n`.
    fn new(flags: InodeFlags, size: u32, block: &[u8]) -> Self {
        let blocks: Vec<_> = (100..=255).map(|n: u8| (u64::from(n), [n; 1024])).collect();
        let blocks: Vec<_> = blocks.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        let fs = sample_fs(&blocks);
        let geometry = sample_geometry();
        let number = InodeNr::new(12).unwrap();
        let bytes = sample(&geometry, number, |disk, _| {
            disk.flags.set(flags.bits());
            disk.size_lo.set(size);
            disk.block[..block.len()].copy_from_slice(block);
        });
        let inode = Inode::decode(&bytes, number, &geometry).unwrap();
        let map = BlockMap::decode(&fs, &inode).unwrap();
        Self { fs, inode, map }
    }

    fn extents(size: u32, extents: &[(u32, u16, u32)]) -> Self {
        Self::new(InodeFlags::EXTENTS, size, &leaf(60, extents))
    }

    fn contents(&self) -> Contents<'_> {
        Contents {
            fs: &self.fs,
            inode: &self.inode,
            map: &self.map,
        }
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Option<u64> {
        match self
            .contents()
            .seek(offset, target, self.inode.size_bytes, &RangeSet::default())
        {
            Ok(offset) => Some(offset),
            Err(Error::Condition(Condition::NoSuchAddress)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn all_extents(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<u64>, bool)> {
        let mut found = Vec::new();
        let result = self
            .contents()
            .extents(range, &RangeSet::default(), &mut |extent: Extent| {
                found.push((
                    extent.file,
                    extent.place.map(|place| place.offset),
                    extent.unwritten,
                ));
                ControlFlow::Continue(())
            });
        result.unwrap();
        found
    }
}

/// Two written blocks, two of hole, two unwritten, one written, the last block partial.
fn mixed() -> File {
    File::extents(
        6 * 1024 + 100,
        &[(0, 2, 100), (4, 0x8002, 120), (6, 1, 130)],
    )
}

#[test]
fn holes_and_unwritten_extents_read_as_zeros() {
    let file = mixed();
    let mut first = vec![1; 5000];
    let mut second = vec![1; 3192];
    let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    file.contents().read_folios(0, &mut bufs).unwrap();
    let all = [first, second].concat();
    let expected = [
        &[100; 1024][..],
        &[101; 1024],
        &[0; 4096],
        &[130; 100],
        &[0; 1948],
    ];
    assert_eq!(all, expected.concat());
}

#[test]
fn reads_stop_at_the_end_of_the_file() {
    let file = mixed();
    let mut buf = vec![7; 300];
    assert_eq!(
        file.contents().read_at(6 * 1024 + 50, &mut buf).unwrap(),
        50
    );
    assert_eq!(&buf[..51], [&[130; 50][..], &[7]].concat());
    assert_eq!(file.contents().read_at(1 << 40, &mut buf).unwrap(), 0);
    assert_eq!(file.contents().read_at(1023, &mut buf[..2]).unwrap(), 2);
    assert_eq!(&buf[..2], [100, 101]);
}

#[test]
fn neighbouring_extents_are_read_as_one_piece() {
    let file = File::extents(4096, &[(0, 2, 100), (2, 2, 102)]);
    let piece = file.contents().piece(512, 3000).unwrap();
    let expected = Piece {
        len_bytes: 3000,
        device: Some(100 * 1024 + 512),
    };
    assert_eq!(piece, expected);
    assert_eq!(
        file.all_extents(0..u64::MAX),
        [(0..4096, Some(102_400), false)]
    );
}

#[test]
fn unwritten_extents_are_holes_to_seek() {
    let file = mixed();
    assert_eq!(file.seek(0, SeekTarget::Data), Some(0));
    assert_eq!(file.seek(5, SeekTarget::Hole), Some(2048));
    assert_eq!(file.seek(2048, SeekTarget::Data), Some(6144));
    assert_eq!(file.seek(3000, SeekTarget::Hole), Some(3000));
    assert_eq!(file.seek(6200, SeekTarget::Data), Some(6200));
    assert_eq!(file.seek(6200, SeekTarget::Hole), Some(6244));
    assert_eq!(file.seek(6244, SeekTarget::Hole), None);
    let sparse = File::extents(1 << 30, &[]);
    assert_eq!(sparse.seek(0, SeekTarget::Data), None);
    assert_eq!(sparse.seek(77, SeekTarget::Hole), Some(77));
}

#[test]
fn extents_include_space_past_the_end_of_the_file() {
    let file = File::extents(10, &[(0, 1, 100), (5, 0x8003, 110)]);
    let expected = [
        (0..1024, Some(102_400), false),
        (5120..8192, Some(112_640), true),
    ];
    assert_eq!(file.all_extents(0..u64::MAX), expected);
    let clipped = [
        (100..1024, Some(102_500), false),
        (5120..6000, Some(112_640), true),
    ];
    assert_eq!(file.all_extents(100..6000), clipped);
}

#[test]
fn encrypted_contents_need_a_key() {
    let flags = InodeFlags::EXTENTS | InodeFlags::ENCRYPT;
    let file = File::new(flags, 10, &leaf(60, &[(0, 1, 100)]));
    let error = file.contents().read_at(0, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, Error::Condition(Condition::NoKey)));
}

#[test]
fn file_that_maps_one_block_again_and_again_is_corrupt() {
    // A tree of indirect blocks that all are the same block, full of its own number.
    let own = 300u32.to_le_bytes().repeat(256);
    let fs = sample_fs(&[(300, &own)]);
    let geometry = sample_geometry();
    let number = InodeNr::new(12).unwrap();
    let bytes = sample(&geometry, number, |disk, _| {
        disk.size_lo.set(u32::MAX);
        disk.block = [0; 60];
        disk.block.copy_from_slice(&own[..60]);
    });
    let inode = Inode::decode(&bytes, number, &geometry).unwrap();
    let map = BlockMap::decode(&fs, &inode).unwrap();
    let contents = Contents {
        fs: &fs,
        inode: &inode,
        map: &map,
    };
    let Error::Corrupt(corruption) = contents
        .seek(0, SeekTarget::Hole, inode.size_bytes, &RangeSet::default())
        .unwrap_err()
    else {
        panic!("not found corrupt");
    };
    assert_eq!(corruption.rule, BlockMapRule::TooManyBlocks.text());
}

#[test]
fn holes_of_a_map_that_leads_into_itself_come_to_an_end() {
    let indirect_block = |number: u32| number.to_le_bytes().repeat(256);
    let fs = sample_fs(&[(110, &indirect_block(111)), (111, &indirect_block(112))]);
    let number = InodeNr::new(12).unwrap();
    let bytes = sample(&fs.geometry, number, |disk, _| {
        disk.size_hi.set(4);
        disk.block[56..].copy_from_slice(&110u32.to_le_bytes());
    });
    let inode = Inode::decode(&bytes, number, &fs.geometry).unwrap();
    let map = BlockMap::decode(&fs, &inode).unwrap();
    let file = File { fs, inode, map };
    let rule = |result: Result<()>| match result {
        Err(Error::Corrupt(report)) => report.rule.into_owned(),
        other => panic!("expected corruption, got {other:?}"),
    };
    let too_many = BlockMapRule::TooManyBlocks.text();
    let mut sink = |_: Extent| ControlFlow::Continue(());
    assert_eq!(
        rule(
            file.contents()
                .extents(0..1 << 34, &RangeSet::default(), &mut sink)
        ),
        too_many
    );
    let sought = file.contents().seek(
        0,
        SeekTarget::Data,
        file.inode.size_bytes,
        &RangeSet::default(),
    );
    assert_eq!(rule(sought.map(drop)), too_many);
}

#[test]
fn empty_range_has_no_extents() {
    let file = mixed();
    assert_eq!(file.all_extents(100..100), []);
    let backwards = Range {
        start: 6900,
        end: 6200,
    };
    assert_eq!(file.all_extents(backwards), []);
}

/// A file with 60 bytes in the inode and `held` bytes as an attribute.
fn inline(size: u64, held: usize) -> File {
    let mut file = File::new(InodeFlags::INLINE_DATA, 0, &[]);
    let contents = vec![b'x'; BLOCK_AREA_BYTES + held];
    let geometry = sample_geometry();
    assert!(store_inline(&mut file.inode, &geometry, &contents).unwrap());
    file.inode.size_bytes = size;
    file
}

#[test]
fn size_beyond_what_the_inode_holds_is_a_hole() {
    for size in [1 << 13, 1 << 60, i64::MAX.unsigned_abs()] {
        let file = inline(size, 10);
        assert_eq!(file.all_extents(0..u64::MAX), [(0..70, None, false)]);
        assert_eq!(file.all_extents(70..size), []);
        let seek = |offset, target| file.seek(offset, target);
        assert_eq!(seek(69, SeekTarget::Data), Some(69));
        assert_eq!(seek(70, SeekTarget::Data), None);
        assert_eq!(seek(0, SeekTarget::Hole), Some(70));
        assert_eq!(seek(1000, SeekTarget::Hole), Some(1000));
        let mut buf = [7; 20];
        assert_eq!(file.contents().read_at(60, &mut buf).unwrap(), 20);
        assert_eq!(buf, *b"xxxxxxxxxx\0\0\0\0\0\0\0\0\0\0");
    }
    let file = inline(65, 10);
    assert_eq!(file.all_extents(0..u64::MAX), [(0..65, None, false)]);
    assert_eq!(file.seek(0, SeekTarget::Hole), Some(65));
}
