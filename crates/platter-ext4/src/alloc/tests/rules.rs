//! Structures that break a rule, one at a time.

use platter_ondisk::Rule as _;
use platter_ondisk::verify::Unverified;

use super::sample::{self, Sample, Shape};
use super::*;
use crate::alloc;
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{GroupDesc, bitmap};

pub(super) const GROUP: GroupNr = GroupNr(2);

pub(super) fn rule<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::Corrupt(corruption)) => corruption.rule.into_owned(),
        other => panic!("{other:?}"),
    }
}

/// Builds a filesystem whose third group has this descriptor.
fn with_desc(shape: Shape, change: impl FnOnce(&mut GroupDesc)) -> Sample {
    let sound = Sample::new(shape);
    let mut desc = groups::read_descriptor(&sound.fs, GROUP).unwrap();
    change(&mut desc);
    Sample::corrupt(shape, |bytes, geometry| {
        sample::store(bytes, geometry, GROUP, &desc);
    })
}

/// Builds a filesystem without checksums, with one flipped bit in a bitmap.
pub(super) fn with_bit(bit: u32, of_inodes: bool) -> Sample {
    let shape = Shape {
        ro_compat: RoCompat::empty(),
        ..Shape::PLAIN
    };
    let desc = groups::read_descriptor(&Sample::new(shape).fs, GROUP).unwrap();
    let block = if of_inodes {
        desc.inode_bitmap
    } else {
        desc.block_bitmap
    };
    Sample::corrupt(shape, |bytes, _| {
        let start = usize::try_from(block.0).unwrap() * 1024;
        let bits = &mut bytes[start..start + 1024];
        let is_set = bitmap::is_set(bits, bit);
        bitmap::assign(bits, bit, !is_set);
    })
}

fn open(sample: &Sample) -> Result<Allocator> {
    Allocator::open(&sample.fs)
}

fn load(sample: &Sample) -> Result<()> {
    slot::clusters(&sample.space, &sample.fs, GROUP).map(drop)
}

#[test]
fn overlapping_metadata_is_corrupt() {
    let shape = Shape {
        incompat: crate::ondisk::features::Incompat::FILETYPE,
        ..Shape::PLAIN
    };
    let sound = Sample::new(shape);
    let mut desc = groups::read_descriptor(&sound.fs, GROUP).unwrap();
    desc.inode_bitmap = desc.block_bitmap;
    let (device, fs) = (sound.device, sound.fs);
    let block = fs.geometry.descriptor_block(0);
    let mut bytes = vec![0; usize::try_from(fs.geometry.len_bytes()).unwrap()];
    sample::store(&mut bytes, &fs.geometry, GROUP, &desc);
    let at = usize::from(fs.geometry.descriptor_bytes) * GROUP.0 as usize;
    let offset = fs.geometry.offset_bytes(block) + at as u64;
    let start = usize::try_from(offset).unwrap();
    let own = &bytes[start..start + usize::from(fs.geometry.descriptor_bytes)];
    platter_block::BlockDevice::write_at(&*device, offset, own).unwrap();
    fs.buffers().invalidate(0..u64::MAX);
    assert_eq!(rule(Allocator::open(&fs)), SpaceRule::Overlap.text());
}

#[test]
fn wrong_count_of_free_blocks_is_corrupt() {
    let sample = with_desc(Shape::PLAIN, |desc| desc.free_clusters -= 1);
    assert!(open(&sample).is_ok());
    let before = sample.space.stat();
    assert_eq!(rule(load(&sample)), SpaceRule::FreeClusters.text());
    let lost = u64::from(
        groups::read_descriptor(&sample.fs, GROUP)
            .unwrap()
            .free_clusters,
    );
    assert_eq!(sample.space.stat().free_blocks, before.free_blocks - lost);
    assert_eq!(rule(load(&sample)), SpaceRule::FreeClusters.text());
    assert_eq!(sample.space.stat().free_blocks, before.free_blocks - lost);
    let goal = sample.fs.geometry.group_first_block(GROUP);
    let taken = alloc::take(&sample.space, &sample.fs, goal, 10, Reserve::Ordinary).unwrap();
    assert!(taken.start() >= sample.fs.geometry.group_first_block(GroupNr(3)));
    assert!(sample.space.take_corruption().is_none());
}

#[test]
fn corruption_of_a_skipped_group_is_reported_once() {
    let sample = with_desc(Shape::PLAIN, |desc| {
        desc.free_clusters -= 1;
        desc.free_inodes += 1;
    });
    let (space, fs) = (&sample.space, &sample.fs);
    let goal = fs.geometry.group_first_block(GROUP);
    let taken = alloc::take(space, fs, goal, 10, Reserve::Ordinary).unwrap();
    alloc::give_back(space, taken);
    let is_reported = |rule: SpaceRule| match space.take_corruption() {
        Some(Error::Corrupt(corruption)) => corruption.rule == rule.text(),
        _ => false,
    };
    assert!(is_reported(SpaceRule::FreeClusters));
    assert!(space.take_corruption().is_none());
    while sample.alloc_inode(65, FileKind::Regular, 0).is_ok() {}
    assert!(is_reported(SpaceRule::FreeInodes));
}

#[test]
fn metadata_marked_free_is_corrupt() {
    assert_eq!(
        rule(load(&with_bit(0, false))),
        SpaceRule::MetadataFree.text()
    );
    assert_eq!(
        rule(load(&with_bit(100, false))),
        SpaceRule::FreeClusters.text()
    );
}

#[test]
fn double_free_of_a_block_is_refused() {
    let sample = Sample::new(Shape::PLAIN);
    let (space, fs) = (&sample.space, &sample.fs);
    let mut handle = fs.begin(64).unwrap();
    let freed = alloc::free_blocks(space, fs, &mut handle, BlockNr(700)..BlockNr(701));
    assert_eq!(rule(freed), SpaceRule::BlockFreedTwice.text());
    let taken = alloc::take(space, fs, BlockNr(700), 1, Reserve::Ordinary).unwrap();
    let freed = alloc::free_blocks(space, fs, &mut handle, taken.blocks());
    assert_eq!(rule(freed), SpaceRule::BlockFreedTwice.text());
    // One of them is in use; all others' groups are unchanged.
    let blocks =
        alloc::alloc_blocks(space, fs, &mut handle, BlockNr(740), 9, Reserve::Ordinary).unwrap();
    let freed = alloc::free_blocks(space, fs, &mut handle, blocks.start..BlockNr(760));
    assert_eq!(rule(freed), SpaceRule::BlockFreedTwice.text());
    drop(handle);
    sample.commit();
    assert_eq!(sample.validated().len(), 9);
}

#[test]
fn freeing_fixed_metadata_is_refused() {
    let sample = Sample::new(Shape::PLAIN);
    let (space, fs) = (&sample.space, &sample.fs);
    let desc = groups::read_descriptor(fs, GROUP).unwrap();
    let mut handle = fs.begin(64).unwrap();
    let end = fs.geometry.blocks_count;
    let table = desc.inode_table.0;
    for blocks in [
        0..1,
        1..2,
        2..3,
        table - 1..table,
        table + 7..table + 9,
        end - 1..end + 1,
    ] {
        let freed = alloc::free_blocks(
            space,
            fs,
            &mut handle,
            BlockNr(blocks.start)..BlockNr(blocks.end),
        );
        assert_eq!(rule(freed), SpaceRule::FreedOwn.text(), "{blocks:?}");
    }
}

#[test]
fn group_with_wrong_inode_counts_is_skipped() {
    let full = with_desc(Shape::PLAIN, |desc| desc.free_inodes += 3);
    let group = |number: u32| (number - 1) / 32;
    for _ in 0..32 {
        let number = full.alloc_inode(65, FileKind::Regular, 0).unwrap();
        assert_eq!(group(number), 2);
    }
    assert_eq!(rule(full.in_group(GROUP)), SpaceRule::FreeInodes.text());
    let elsewhere = full.alloc_inode(65, FileKind::Regular, 0).unwrap();
    assert_ne!(group(elsewhere), 2);
    assert_eq!(full.in_group(GROUP).unwrap(), None);
    let used = with_desc(Shape::PLAIN, |desc| desc.unused_inodes = 32);
    used.alloc_inode(65, FileKind::Regular, 0).unwrap();
    let used = with_bit(0, true);
    assert_eq!(
        group(used.alloc_inode(65, FileKind::Regular, 0).unwrap()),
        2
    );
}

#[test]
fn used_inode_beyond_itable_unused_is_corrupt() {
    let shape = Shape {
        ro_compat: RoCompat::GDT_CSUM,
        ..Shape::PLAIN
    };
    let desc = groups::read_descriptor(&Sample::new(shape).fs, GROUP).unwrap();
    let sample = Sample::corrupt(shape, |bytes, _| {
        let start = usize::try_from(desc.inode_bitmap.0).unwrap() * 1024;
        bytes[start] = 1;
    });
    assert_eq!(rule(sample.in_group(GROUP)), SpaceRule::NeverUsed.text());
}

#[test]
fn freeing_a_free_or_reserved_inode_is_refused() {
    let sample = Sample::new(Shape::PLAIN);
    let number = sample.alloc_inode(65, FileKind::Regular, 0).unwrap();
    sample.free_inode(number, false).unwrap();
    assert_eq!(
        rule(sample.free_inode(number, false)),
        SpaceRule::InodeFreedTwice.text()
    );
    for reserved in [2, 8, 10, 100_000] {
        let freed = sample.free_inode(reserved, false);
        assert_eq!(rule(freed), SpaceRule::FreedReserved.text());
    }
}

#[test]
fn freeing_an_uncounted_directory_is_refused() {
    let sample = Sample::new(Shape::PLAIN);
    let number = sample.alloc_inode(65, FileKind::Regular, 0).unwrap();
    assert_eq!(
        rule(sample.free_inode(number, true)),
        SpaceRule::UsedDirs.text()
    );
    let sample = with_desc(Shape::PLAIN, |desc| desc.free_inodes = 33);
    let number = sample.alloc_inode(65, FileKind::Regular, 0).unwrap();
    let again = sample.alloc_inode(65, FileKind::Regular, 0).unwrap();
    sample.free_inode(again, false).unwrap();
    assert_eq!(
        rule(sample.free_inode(number, false)),
        SpaceRule::FreeInodes.text()
    );
}

#[test]
fn corrupt_bitmap_is_reported_when_space_runs_out() {
    let sample = Sample::corrupt(Shape::PLAIN, |bytes, geometry| {
        let first = geometry.group_first_block(GroupNr(7)).0;
        let desc_of = usize::try_from(first).unwrap();
        // The group has a copy of the superblock and a descriptor block before its bitmap.
        bytes[(desc_of + 2) * 1024 + 20] ^= 1;
    });
    let (space, fs) = (&sample.space, &sample.fs);
    let mut result = alloc::take(space, fs, BlockNr(1), 4096, Reserve::Split);
    while let Ok(taken) = result {
        let _kept = taken.blocks();
        result = alloc::take(space, fs, BlockNr(1), 4096, Reserve::Split);
    }
    assert_eq!(rule(result), bitmap::BitmapRule::Checksum.text());
    assert!(refused(&alloc::take(
        space,
        fs,
        BlockNr(1),
        4096,
        Reserve::Split
    )));
}

#[test]
fn uninitialized_bitmap_is_initialized_on_use() {
    let sample = Sample::new(Shape {
        uninit: true,
        ..Shape::PLAIN
    });
    let (space, fs) = (&sample.space, &sample.fs);
    let flags = || groups::read_descriptor(fs, GROUP).unwrap().flags;
    assert!(flags().contains(GroupFlags::BLOCK_UNINIT));
    let goal = fs.geometry.group_first_block(GROUP);
    let mut handle = fs.begin(RECORD_CREDITS).unwrap();
    let blocks = alloc::alloc_blocks(space, fs, &mut handle, goal, 3, Reserve::Ordinary).unwrap();
    drop(handle);
    sample.commit();
    assert_eq!(flags(), GroupFlags::INODE_UNINIT);
    let taken: Vec<u64> = (blocks.start.0..blocks.end.0).collect();
    assert_eq!(sample.validated(), taken);
    let bitmap = groups::read_descriptor(fs, GROUP).unwrap().block_bitmap;
    assert!(
        fs.read_block(bitmap, &Unverified).unwrap()[1000..]
            .iter()
            .all(|&byte| byte == 0xff)
    );
}
