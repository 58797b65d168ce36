//! One test for each group of rules, on images of mkfs.xfs with one thing changed.

mod image;
mod files;
mod trees;
mod attributes;

use std::sync::OnceLock;

use image::Image;
use platter_ondisk::Rule;

use super::*;
use crate::ondisk::DiskSuperblock;
use crate::ondisk::agf::{Agf, AgfRule, DiskAgf};
use crate::ondisk::agi::{Agi, AgiRule, DiskAgi};
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent, DiskInodeChunk, checksum_offset};
use crate::ondisk::inode::DiskInodeV3;
use crate::ondisk::superblock::SuperblockRule;

/// What a finding says of a rule.
fn said<R: Rule>(rule: R) -> String {
    format!("{}: {}", R::STRUCTURE, rule.text())
}

/// An image with all features that have B-trees of their own.
fn sample() -> Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    let options = ["-m", "rmapbt=1,reflink=1,finobt=1,inobtcount=1"];
    IMAGE
        .get_or_init(|| Image::make(&options, false, &[]))
        .clone()
}

/// The rules that an image breaks after a change.
fn broken(change: impl FnOnce(&mut Image)) -> Vec<String> {
    let mut image = sample();
    change(&mut image);
    image.rules()
}

fn agf(change: impl FnOnce(&mut DiskAgf)) -> Vec<String> {
    broken(|image| image.change_header(1, 1, DiskAgf::CHECKSUM_OFFSET, change))
}

fn agi(change: impl FnOnce(&mut DiskAgi)) -> Vec<String> {
    broken(|image| image.change_header(0, 2, DiskAgi::CHECKSUM_OFFSET, change))
}

fn superblock(ag: u32, change: impl FnOnce(&mut DiskSuperblock)) -> Vec<String> {
    broken(|image| image.change_superblock(ag, change))
}

/// The first block of a B-tree of free extents of group 1.
fn free_root(image: &Image, kind: BtreeKind) -> u32 {
    let at = usize::try_from(image.geometry.ag_offset(AgNr(1)) + 512).unwrap();
    let agf = Agf::decode(&image.bytes[at..at + 512], &image.geometry, AgNr(1)).unwrap();
    if kind == BtreeKind::Bno {
        agf.bno.block.0
    } else {
        agf.cnt.block.0
    }
}

/// Changes the only record of both B-trees of free extents of group 1.
fn change_free(image: &mut Image, change: impl Fn(&mut DiskFreeExtent)) {
    for kind in [BtreeKind::Bno, BtreeKind::Cnt] {
        let block = image.block(1, free_root(image, kind));
        image.change_block(block, checksum_offset(kind), |bytes| {
            let (records, _) =
                zerocopy::Ref::<_, [DiskFreeExtent]>::from_prefix_with_elems(&mut bytes[56..], 1)
                    .unwrap();
            change(&mut zerocopy::Ref::into_mut(records)[0]);
        });
    }
}

#[test]
fn new_filesystem_is_clean() {
    assert!(sample().rules().is_empty(), "{:?}", sample().rules());
}

#[test]
fn counters_of_the_superblock_are_compared() {
    for (change, rule) in [
        (
            (|disk| disk.inode_count.set(disk.inode_count.get() + 64)) as fn(&mut DiskSuperblock),
            said(TotalsRule::Inodes),
        ),
        (
            |disk| disk.free_inodes.set(disk.free_inodes.get() + 1),
            said(TotalsRule::FreeInodes),
        ),
        (
            |disk| disk.free_data_blocks.set(disk.free_data_blocks.get() - 1),
            said(TotalsRule::FreeBlocks),
        ),
        (
            |disk| disk.rt_bitmap_inode.set(140),
            said(SuperblockUseRule::RealtimeInodes),
        ),
        (
            |disk| disk.incompat.set(disk.incompat.get() | 0x10),
            said(SuperblockUseRule::NeedsRepair),
        ),
        (
            |disk| disk.free_inodes.set(disk.inode_count.get() + 1),
            said(SuperblockUseRule::InodeCounts),
        ),
        (
            |disk| disk.free_data_blocks.set(disk.data_blocks.get() + 1),
            said(SuperblockUseRule::FreeBlocks),
        ),
    ] {
        let rules = superblock(0, change);
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
}

#[test]
fn copies_of_the_superblock_are_compared() {
    let rules = superblock(1, |disk| disk.log_blocks.set(disk.log_blocks.get() + 1));
    assert_eq!(rules, [said(BackupRule::Geometry)]);
    // A limit, and no geometry.
    assert!(superblock(1, |disk| disk.inode_percent_max = 17).is_empty());
    let rules = superblock(1, |disk| disk.uuid[0] ^= 1);
    assert_eq!(rules, [said(BackupRule::Uuid)]);
    let rules = superblock(1, |disk| disk.rt_start.set(1));
    assert_eq!(rules, [said(BackupRule::Garbage)]);
    let rules = superblock(1, |disk| disk.incompat.set(1 << 30));
    assert_eq!(rules, [said(BackupRule::Features)]);
    let rules = superblock(1, |disk| disk.ro_compat.set(disk.ro_compat.get() ^ 1));
    assert_eq!(rules, [said(BackupRule::Masks)]);
    let rules = superblock(1, |disk| disk.free_rt_extents.set(1));
    assert_eq!(rules, [said(SuperblockRule::Realtime)]);
    let rules = superblock(1, |disk| disk.lsn.set(99 << 32));
    assert_eq!(rules, [] as [String; 0]);
    let rules = broken(|image| {
        let at = usize::try_from(image.geometry.ag_offset(AgNr(1))).unwrap();
        image.bytes[at] = 0;
    });
    assert_eq!(rules, [said(SuperblockRule::Magic)]);
}

#[test]
fn counters_of_groups_are_compared() {
    let totals = said(TotalsRule::FreeBlocks);
    let rules = agf(|disk| disk.free_blocks.set(disk.free_blocks.get() + 1));
    assert_eq!(rules, [said(GroupUseRule::FreeBlocks), totals.clone()]);
    let rules = agf(|disk| disk.longest.set(disk.longest.get() - 1));
    assert_eq!(rules, [said(GroupUseRule::Longest)]);
    let rules = agf(|disk| disk.btree_blocks.set(disk.btree_blocks.get() + 1));
    assert_eq!(rules, [said(GroupUseRule::TreeBlocks), totals.clone()]);
    let rules = agf(|disk| disk.rmap_blocks.set(9));
    assert_eq!(rules, [said(GroupUseRule::OwnerTreeBlocks)]);
    let rules = agf(|disk| disk.refcount_blocks.set(9));
    assert_eq!(rules, [said(GroupUseRule::ReferenceTreeBlocks)]);
    let rules = agf(|disk| disk.free_list_last.set(disk.free_list_last.get() + 1));
    assert_eq!(rules, [said(GroupUseRule::FreeListCount)]);
    let rules = agi(|disk| disk.inode_btree_blocks.set(9));
    assert_eq!(rules, [said(GroupUseRule::InodeTreeBlocks)]);
    let rules = agi(|disk| disk.free_btree_blocks.set(9));
    assert_eq!(rules, [said(GroupUseRule::FreeInodeTreeBlocks)]);
    let rules = agi(|disk| disk.free_count.set(disk.free_count.get() + 1));
    let inodes = said(TotalsRule::FreeInodes);
    assert_eq!(rules, [said(GroupUseRule::FreeInodes), inodes]);
    let rules = agi(|disk| disk.count.set(disk.count.get() + 64));
    let inodes = said(TotalsRule::Inodes);
    assert_eq!(rules, [said(GroupUseRule::Inodes), inodes]);
}

#[test]
fn corrupt_headers_are_reported_and_the_rest_is_checked() {
    let rules = agf(|disk| disk.magic.set(1));
    assert_eq!(rules, [said(AgfRule::Magic)]);
    let rules = agi(|disk| disk.sequence.set(7));
    // The root and the inodes after it cannot be found then.
    assert_eq!(rules[0], said(AgiRule::Sequence));
}

#[test]
fn free_extents_are_compared_with_each_other_and_with_use() {
    let rules = broken(|image| {
        let block = image.block(1, free_root(image, BtreeKind::Cnt));
        image.change_block(block, checksum_offset(BtreeKind::Cnt), |bytes| {
            bytes[59] ^= 1;
        });
    });
    assert_eq!(rules, [said(GroupUseRule::FreeTreesDiffer)]);
    let rules = broken(|image| {
        change_free(image, |record| {
            record.start.set(record.start.get() - 1);
            record.count.set(record.count.get() + 1);
        });
    });
    assert!(rules.contains(&said(BlockUseRule::UsedFree)), "{rules:?}");
    let rules = broken(|image| {
        change_free(image, |record| record.count.set(record.count.get() - 1));
    });
    assert!(rules.contains(&said(BlockUseRule::Lost)), "{rules:?}");
}

#[test]
fn inode_chunks_are_compared_with_inodes() {
    let image = sample();
    let file = image.find(&["file"]);
    let rules = broken(|image| {
        image.change_inode(file, |disk: &mut DiskInodeV3| disk.core.mode.set(0));
    });
    assert!(rules.contains(&said(ChunkRule::FreeInodeUsed)), "{rules:?}");
    let change = |kind: BtreeKind, change: fn(&mut DiskInodeChunk)| {
        broken(|image| {
            let sector = &image.bytes[1024..1536];
            let agi = Agi::decode(sector, &image.geometry, AgNr(0)).unwrap();
            let root = if kind == BtreeKind::Finobt {
                agi.finobt.unwrap()
            } else {
                agi.inobt
            };
            assert_eq!(root.levels, 1);
            let block = image.block(0, root.block.0);
            image.change_block(block, checksum_offset(kind), |bytes| {
                let (records, _) = zerocopy::Ref::<_, [DiskInodeChunk]>::from_prefix_with_elems(
                    &mut bytes[56..],
                    1,
                )
                .unwrap();
                change(&mut zerocopy::Ref::into_mut(records)[0]);
            });
        })
    };
    // A full chunk has no free inode.
    let rules = change(BtreeKind::Inobt, |record| {
        record.free.set(1 << 40);
        record.free_count = 1;
    });
    for rule in [
        said(GroupUseRule::InodeTreesDiffer),
        said(GroupUseRule::FreeInodes),
        said(ChunkRule::UsedInodeFree),
    ] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
    let rules = change(BtreeKind::Inobt, |record| record.free_count = 1);
    let rule = said(ChunkRule::Counts);
    assert!(rules.contains(&rule), "{rules:?}");
    let rules = change(BtreeKind::Inobt, |record| {
        record.start.set(record.start.get() - 8);
    });
    let rule = said(ChunkRule::Alignment);
    assert!(rules.contains(&rule), "{rules:?}");
    let rules = change(BtreeKind::Inobt, |record| record.start.set(3));
    assert!(rules.contains(&said(ChunkRule::Location)), "{rules:?}");
    let rules = change(BtreeKind::Finobt, |record| record.free_count = 0);
    assert!(rules.contains(&said(ChunkRule::NoneFree)), "{rules:?}");
    let rules = change(BtreeKind::Finobt, |record| {
        let free = record.free.get();
        record.free.set(free & (free - 1));
        record.free_count -= 1;
    });
    assert_eq!(rules, [said(GroupUseRule::InodeTreesDiffer)]);
}

#[test]
fn free_inodes_are_checked() {
    // The last inode of a chunk, which none of the files needs.
    let chunk = sample().find(&["many", "name-1199"]).get() | 63;
    let free = (0..64).map(|back| InodeNr::new(chunk - back).unwrap());
    let change = |number: InodeNr, change: fn(&mut DiskInodeV3)| {
        let is_free = std::cell::Cell::new(false);
        let rules = broken(|image| {
            image.change_inode(number, |disk: &mut DiskInodeV3| {
                is_free.set(disk.core.mode.get() == 0);
                if is_free.get() {
                    change(disk);
                }
            });
        });
        is_free.get().then_some(rules)
    };
    let size = |disk: &mut DiskInodeV3| disk.core.size.set(1 << 63);
    let flags = |disk: &mut DiskInodeV3| disk.flags2.set(1 << 40);
    let mut free = free.filter_map(|number| Some((number, change(number, size)?)));
    let (number, rules) = free.next().expect("a free inode");
    assert_eq!(rules, [said(crate::ondisk::inode::InodeRule::Size)]);
    let rules = change(number, flags).unwrap();
    assert_eq!(rules, [said(InodeUseRule::Flags2)]);
}

#[test]
fn newer_metadata_than_the_log_is_reported() {
    let rules = agf(|disk| disk.lsn.set(99 << 32));
    assert_eq!(rules, [said(LogUseRule::Ahead)]);
}

#[test]
fn members_of_unlinked_lists_are_reported() {
    let image = sample();
    let number = image.find(&["file"]);
    let inode = image.geometry.split_inode(number).1;
    let rules = agi(|disk| disk.unlinked[inode.0 as usize % 64].set(inode.0));
    assert_eq!(rules, [said(UnlinkedRule::Member)]);
    // An inode without links in a list, and one that follows itself.
    let unlinked = |next: u32| {
        broken(|image| {
            image.change_inode(number, |disk: &mut DiskInodeV3| {
                disk.core.links.set(0);
                disk.core.next_unlinked.set(next);
            });
            let bucket = inode.0 as usize % 64;
            image.change_header(0, 2, DiskAgi::CHECKSUM_OFFSET, |disk: &mut DiskAgi| {
                disk.unlinked[bucket].set(inode.0);
            });
        })
    };
    assert!(unlinked(u32::MAX).contains(&said(InodeUseRule::Unlinked)));
    assert!(unlinked(inode.0).contains(&said(UnlinkedRule::Loop)));
    let rules = agi(|disk| disk.unlinked[3].set(30_003));
    assert_eq!(rules, [said(UnlinkedRule::Number)]);
}

#[test]
fn device_that_is_too_short_is_reported() {
    let mut image = sample();
    image.bytes.truncate(31 << 20);
    assert_eq!(image.rules(), [said(SuperblockRule::DeviceTooShort)]);
}

#[test]
fn chunks_do_not_overlap() {
    let mut states = InodeStates::default();
    assert!(states.add_chunk(64) && !states.add_chunk(96));
    // What a group reports then.
    assert_eq!(
        said(ChunkRule::Overlap),
        "inode chunk: inode chunk claims used block"
    );
}

#[test]
fn replayed_log_is_a_notice() {
    let image = sample();
    let xfs = image.mount();
    let mut report = xfs.recovery().unwrap().clone();
    report.position.state = crate::txn::LogState::Dirty;
    let log = log::LogFindings {
        failure: None,
        recovery: Some(&report),
    };
    let mut findings = image::Findings(Vec::new());
    let report = Checker::run_all(xfs.context(), image.bytes.len() as u64, &log, &mut findings);
    assert!(report.is_clean() && report.notices == 1, "{report:?}");
    let [finding] = &findings.0[..] else {
        panic!("{:?}", findings.0);
    };
    assert_eq!(finding.corruption.rule, LogUseRule::Replayed.text());
}
