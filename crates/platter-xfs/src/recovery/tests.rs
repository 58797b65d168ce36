//! What a recovery finishes after the log, and what it refuses.

use platter_ondisk::Rule;
use platter_vfs::Error;

use super::{intents, unlinked};
use crate::ag::GroupRule;
use crate::ag::tests::sample::{AG, Sample, owner};
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent, DiskOwner, RmapOwner};
use crate::ondisk::log::Intent;
use crate::ondisk::log::dinode::initialise;
use crate::ondisk::log::intent::{Extent, ExtentFree, RefcountIntent, Section};
use crate::ondisk::{AgBlock, AgInode, checksum};

fn extent_free(section: Section, sample: &Sample, blocks: &[(u32, u32)]) -> Intent {
    let extents = blocks.iter().map(|&(start, len)| Extent {
        start: sample.geometry.fs_block(AG, AgBlock(start)).0,
        len,
    });
    Intent::ExtentFree(ExtentFree {
        section,
        id: 1,
        extents: extents.collect(),
    })
}

#[test]
fn open_intent_frees_its_extents_with_their_owners() {
    let sample = Sample::new();
    sample.change(|group| {
        let record = owner(100, 30, RmapOwner(131), 0).encode();
        group.insert(BtreeKind::Rmap, record).unwrap();
    });
    let open = [extent_free(Section::Data, &sample, &[(100, 10), (200, 5)])];
    intents::finish(&sample.device, &sample.geometry, &open).unwrap();
    let free: Vec<DiskFreeExtent> = sample.records(BtreeKind::Bno);
    let free: Vec<_> = free
        .iter()
        .map(|one| (one.start.get(), one.count.get()))
        .collect();
    assert_eq!(free, [(100, 10), (200, 5)]);
    let owners: Vec<DiskOwner> = sample.records(BtreeKind::Rmap);
    assert_eq!(owners.last().map(|last| last.start.get()), Some(110));
    // The log may not name blocks that are free.
    let again = intents::finish(&sample.device, &sample.geometry, &open).unwrap_err();
    assert!(again.to_string().contains(GroupRule::DoubleFree.text()));
    let outside = [extent_free(Section::Data, &sample, &[(4095, 2)])];
    let outside = intents::finish(&sample.device, &sample.geometry, &outside).unwrap_err();
    assert!(outside.to_string().contains(GroupRule::DoubleFree.text()));
}

#[test]
fn other_intents_are_refused_by_name() {
    let sample = Sample::new();
    let refcount = Intent::Refcount(RefcountIntent {
        section: Section::Data,
        id: 1,
        updates: Vec::new(),
    });
    let realtime = extent_free(Section::Realtime, &sample, &[]);
    for (intent, name) in [(refcount, "Refcount"), (realtime, "RtExtentFree")] {
        let refused = intents::finish(&sample.device, &sample.geometry, &[intent]);
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

/// A list of unlinked inodes with one symbolic link of so many names.
fn with_unlinked(links: u32, next: u32) -> Sample {
    let sample = Sample::new();
    let number = sample.geometry.inode_nr(AG, AgInode(24002)).unwrap();
    let mut inode = vec![0; 512];
    initialise(&mut inode, &sample.geometry, number, 1);
    inode[2..4].copy_from_slice(&0xa1ff_u16.to_be_bytes());
    inode[5] = 1;
    inode[83] = 2;
    inode[16..20].copy_from_slice(&links.to_be_bytes());
    inode[56..64].copy_from_slice(&3_u64.to_be_bytes());
    inode[96..100].copy_from_slice(&next.to_be_bytes());
    checksum::seal(&mut inode, 100);
    let at = sample.geometry.ag_offset(AG) + 3000 * 4096 + 2 * 512;
    sample.device.write_at(at, &inode).unwrap();
    sample.change(|group| group.set_unlinked(2, AgInode(24002)));
    sample
}

#[test]
fn unlinked_inode_is_freed_and_its_list_emptied() {
    let sample = with_unlinked(0, u32::MAX);
    assert_eq!(
        unlinked::process(&sample.device, &sample.geometry).unwrap(),
        1
    );
    assert_eq!(
        unlinked::process(&sample.device, &sample.geometry).unwrap(),
        0
    );
    let again = sample.change(|group| group.free_inode(AgInode(24002)));
    assert!(again.is_err());
}

#[test]
fn named_inode_or_loop_in_an_unlinked_list_is_found() {
    for (links, next) in [(1, u32::MAX), (0, 24002)] {
        let sample = with_unlinked(links, next);
        let refused = unlinked::process(&sample.device, &sample.geometry).unwrap_err();
        assert!(refused.to_string().contains(GroupRule::UnlinkedList.text()));
    }
}
