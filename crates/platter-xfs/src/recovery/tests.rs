//! What a recovery finishes after the log, and what it refuses.

use platter_ondisk::Rule;
use platter_vfs::{Error, Result};

use super::rules::IntentRule;
use super::{finish, unlinked};
use crate::ag::tests::sample::{AG, Sample, owner};
use crate::ag::{GroupRule, inodes, rmap, space};
use crate::fork::InodeEdit;
use crate::fork::tests as fork;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent, DiskOwner, Owner, Refcount, RmapOwner};
use crate::ondisk::extent::{Mapping, MappingRule};
use crate::ondisk::features::RoCompat;
use crate::ondisk::inode::InodeRule;
use crate::ondisk::inode::free::initialise;
use crate::ondisk::log::Intent;
use crate::ondisk::log::intent::{
    AttrFilter, AttrIntent, AttrOp, BmapIntent, BmapUpdate, ExchangeFlags, ExchangeIntent, Extent,
    ExtentFree, MapExtent, PhysExtent, RefcountIntent, RefcountOp, RmapIntent, RmapOp, RmapUpdate,
    Section,
};
use crate::ondisk::{AgBlock, AgInode, AgNr, FsBlock, InodeNr, checksum};

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
    finish::finish(&sample.device, &sample.geometry, &open).unwrap();
    let free: Vec<DiskFreeExtent> = sample.records(BtreeKind::Bno);
    let free: Vec<_> = free
        .iter()
        .map(|one| (one.start.get(), one.count.get()))
        .collect();
    assert_eq!(free, [(100, 10), (200, 5)]);
    let owners: Vec<DiskOwner> = sample.records(BtreeKind::Rmap);
    assert_eq!(owners.last().map(|last| last.start.get()), Some(110));
    // The log may not name blocks that are free.
    let again = finish::finish(&sample.device, &sample.geometry, &open).unwrap_err();
    assert!(again.to_string().contains(GroupRule::DoubleFree.text()));
    let outside = [extent_free(Section::Data, &sample, &[(4095, 2)])];
    let outside = finish::finish(&sample.device, &sample.geometry, &outside).unwrap_err();
    assert!(outside.to_string().contains(IntentRule::Extent.text()));
}

#[test]
fn other_intents_are_refused_by_name() {
    let rmap = Intent::Rmap(RmapIntent {
        section: Section::Realtime,
        id: 1,
        updates: Vec::new(),
    });
    let refcount = Intent::Refcount(RefcountIntent {
        section: Section::Realtime,
        id: 1,
        updates: Vec::new(),
    });
    for (intent, name) in [(rmap, "RtRmap"), (refcount, "RtRefcount")] {
        let refused = finish::check(&[intent]).unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

fn finish_all(sample: &Sample, intents: &[Intent]) -> Result<()> {
    finish::finish(&sample.device, &sample.geometry, intents).map(drop)
}

fn extent(sample: &Sample, owner: u64, (start, len, offset): (u32, u32, u64)) -> MapExtent {
    MapExtent {
        owner,
        start: sample.geometry.fs_block(AG, AgBlock(start)).0,
        offset,
        len,
        attr_fork: false,
        unwritten: false,
    }
}

fn rmap(op: RmapOp, extent: MapExtent) -> Intent {
    Intent::Rmap(RmapIntent {
        section: Section::Data,
        id: 2,
        updates: vec![RmapUpdate {
            op,
            extent,
            bmbt_block: false,
        }],
    })
}

fn owners(sample: &Sample, of: u64) -> Vec<Owner> {
    let owners: Vec<DiskOwner> = sample.records(BtreeKind::Rmap);
    let owners = owners.iter().map(Owner::decode);
    owners.filter(|one| one.owner == RmapOwner(of)).collect()
}

#[test]
fn open_rmap_intents_change_owners() {
    let sample = Sample::new();
    let at = |extent_at| extent(&sample, 131, extent_at);
    let all = [
        rmap(RmapOp::Map, at((100, 10, 7))),
        // The same blocks in another file do not keep the two from being one record.
        rmap(RmapOp::MapShared, extent(&sample, 140, (95, 20, 0))),
        rmap(RmapOp::MapShared, at((110, 5, 17))),
        rmap(RmapOp::UnmapShared, at((100, 1, 7))),
    ];
    finish_all(&sample, &all).unwrap();
    assert_eq!(owners(&sample, 131), [owner(101, 14, RmapOwner(131), 8)]);
    let unwritten = MapExtent {
        unwritten: true,
        ..at((105, 2, 12))
    };
    finish_all(&sample, &[rmap(RmapOp::ConvertShared, unwritten)]).unwrap();
    let middle = Owner {
        is_unwritten: true,
        ..owner(105, 2, RmapOwner(131), 12)
    };
    let expected = [
        owner(101, 4, RmapOwner(131), 8),
        middle,
        owner(107, 8, RmapOwner(131), 14),
    ];
    assert_eq!(owners(&sample, 131), expected);
    finish_all(&sample, &[rmap(RmapOp::Convert, at((105, 2, 12)))]).unwrap();
    assert_eq!(owners(&sample, 131), [owner(101, 14, RmapOwner(131), 8)]);
    let again = finish_all(&sample, &[rmap(RmapOp::Convert, at((105, 2, 12)))]);
    let again = again.unwrap_err().to_string();
    assert!(again.contains(GroupRule::Owner.text()), "{again}");
}

#[test]
fn open_refcount_intents_change_references() {
    let sample = Sample::new();
    sample.change(|group| space::free_extent(group, AgBlock(1000), 50).unwrap());
    let update = |op, start, len| PhysExtent {
        op,
        start: sample.geometry.fs_block(AG, AgBlock(start)).0,
        len,
    };
    let intent = Intent::Refcount(RefcountIntent {
        section: Section::Data,
        id: 3,
        updates: vec![
            update(RefcountOp::Increase, 100, 20),
            update(RefcountOp::Increase, 110, 20),
            // The blocks that lose their only reference are free afterwards.
            update(RefcountOp::Decrease, 125, 10),
            update(RefcountOp::AllocCow, 200, 10),
            update(RefcountOp::FreeCow, 203, 2),
        ],
    });
    finish_all(&sample, &[intent]).unwrap();
    let found: Vec<Refcount> = sample.refcounts().iter().map(Refcount::decode).collect();
    let run = |start, count, references, is_staged| Refcount {
        start: AgBlock(start),
        count,
        references,
        is_staged,
    };
    let expected = [
        run(100, 10, 2, false),
        run(110, 10, 3, false),
        run(120, 5, 2, false),
        run(200, 3, 1, true),
        run(205, 5, 1, true),
    ];
    assert_eq!(found, expected);
    let free: Vec<DiskFreeExtent> = sample.records(BtreeKind::Bno);
    let freed = free.iter().find(|free| free.start.get() < 1000);
    let freed = freed.map(|free| (free.start.get(), free.count.get()));
    assert_eq!(freed, Some((130, 5)));
}

fn bmap(unmap: bool, extent: MapExtent) -> Intent {
    Intent::Bmap(BmapIntent {
        id: 4,
        updates: vec![BmapUpdate {
            unmap,
            realtime: false,
            extent,
        }],
    })
}

#[test]
fn open_bmap_intents_change_files_and_owners() {
    let (sample, number) = fork::sample(56);
    let at = |extent_at| extent(&sample, number.get(), extent_at);
    let all: Vec<Intent> = [(1200, 3, 0), (1210, 3, 10), (1220, 3, 20), (1230, 3, 30)]
        .into_iter()
        .map(|extent_at| bmap(false, at(extent_at)))
        .chain([bmap(true, at((1211, 1, 11)))])
        .collect();
    finish_all(&sample, &all).unwrap();
    let found = fork::change(&sample, number, |fork, groups| {
        fork.contents(groups).unwrap()
    });
    let found: Vec<_> = found
        .0
        .iter()
        .map(|one| (one.offset.0, one.count))
        .collect();
    assert_eq!(found, [(0, 3), (10, 1), (12, 1), (20, 3), (30, 3)]);
    let owned = owners(&sample, number.get());
    let data = owned.iter().filter(|owner| !owner.is_btree);
    assert_eq!(data.map(|owner| owner.count).sum::<u32>(), 11);
    assert_eq!(owned.iter().filter(|owner| owner.is_btree).count(), 1);
    let again = finish_all(&sample, &all[..1]).unwrap_err().to_string();
    assert!(again.contains(MappingRule::Order.text()), "{again}");
    let free = extent(&sample, number.get() + 1, (1200, 1, 0));
    let free = finish_all(&sample, &[bmap(false, free)]).unwrap_err();
    assert!(matches!(free, Error::Corrupt(_)), "{free}");
}

#[test]
fn open_exchange_intent_exchanges_what_is_left() {
    let (sample, one) = fork::sample(56);
    let two = fork::file(&sample, 3, 56);
    let map = |number, offset, block, count| {
        let new = fork::mapping(&sample, offset, block, count);
        fork::change(&sample, number, |fork, groups| {
            fork.map(groups, new).unwrap();
        });
        let owner = owner(
            block,
            u32::try_from(count).unwrap(),
            RmapOwner(InodeNr::get(number)),
            offset,
        );
        let mut groups = sample.groups();
        rmap::add(&mut groups.get(AgNr(2)).unwrap(), &owner).unwrap();
        groups.write_all().unwrap();
    };
    map(one, 0, 500, 10);
    map(one, 20, 600, 5);
    map(two, 5, 700, 4);
    let intent = |only_written: bool, generation| {
        let mut flags = ExchangeFlags::SET_SIZES;
        flags.set(ExchangeFlags::FIRST_WRITTEN, only_written);
        Intent::Exchange(ExchangeIntent {
            id: 5,
            inodes: [one.get(), two.get()],
            generations: [1, generation],
            offsets: [2, 2],
            blocks: 30,
            flags,
            sizes: [1000, 2000],
        })
    };
    let wrong = finish_all(&sample, &[intent(false, 2)])
        .unwrap_err()
        .to_string();
    assert!(wrong.contains(IntentRule::Generation.text()), "{wrong}");
    finish_all(&sample, &[intent(false, 1)]).unwrap();
    let found = |number| {
        let found = fork::change(&sample, number, |fork, groups| {
            fork.contents(groups).unwrap()
        });
        let start = |one: &Mapping| sample.geometry.split(FsBlock(one.start)).1.0;
        let found = found
            .0
            .iter()
            .map(|one| (one.offset.0, start(one), one.count));
        found.collect::<Vec<_>>()
    };
    assert_eq!(found(one), [(0, 500, 2), (5, 700, 4)]);
    assert_eq!(found(two), [(2, 502, 8), (20, 600, 5)]);
    for (number, size, blocks) in [(one, 1000, 6), (two, 2000, 13)] {
        let edit = InodeEdit::read(&sample.groups(), number).unwrap();
        assert_eq!(
            (edit.inode().size_bytes, edit.inode().blocks),
            (size, blocks)
        );
    }
    // Holes of the first file stay: the blocks of the second one there are not moved.
    finish_all(&sample, &[intent(true, 1)]).unwrap();
    assert_eq!(found(one), [(0, 500, 2), (5, 505, 4)]);
    assert_eq!(
        found(two),
        [(2, 502, 3), (5, 700, 4), (9, 509, 1), (20, 600, 5)]
    );
}

/// A list of unlinked inodes that begins with a symbolic link of so many names.
fn with_unlinked(links: u32, next: u32) -> Sample {
    let sample = Sample::new();
    write_link(&sample, 24002, (links, next));
    sample.change(|group| group.set_unlinked(2, AgInode(24002)));
    sample
}

/// Writes a symbolic link of so many names, with the link of its list.
fn write_link(sample: &Sample, ag_inode: u32, (links, next): (u32, u32)) {
    let number = inode_of(sample, ag_inode);
    let mut inode = vec![0; 512];
    initialise(&mut inode, &sample.geometry, number, 1);
    inode[2..4].copy_from_slice(&0xa1ff_u16.to_be_bytes());
    inode[5] = 1;
    inode[83] = 2;
    inode[16..20].copy_from_slice(&links.to_be_bytes());
    inode[56..64].copy_from_slice(&3_u64.to_be_bytes());
    inode[96..100].copy_from_slice(&next.to_be_bytes());
    checksum::seal(&mut inode, 100);
    let at = sample.geometry.ag_offset(AG) + u64::from(ag_inode) * 512;
    sample.device.write_at(at, &inode).unwrap();
}

fn inode_of(sample: &Sample, ag_inode: u32) -> InodeNr {
    sample.geometry.inode_nr(AG, AgInode(ag_inode)).unwrap()
}

/// Frees unlinked inodes. Returns how many, and which rules were broken.
fn free_unlinked(sample: &Sample) -> (u64, Vec<String>) {
    let processed = unlinked::process(&sample.device, &sample.geometry, &mut Vec::new()).unwrap();
    let rules = processed.corruptions.into_iter();
    let rules = rules.map(|corruption| corruption.rule.into_owned());
    (processed.freed, rules.collect())
}

#[test]
fn unlinked_inode_is_freed_and_its_list_emptied() {
    let sample = with_unlinked(0, u32::MAX);
    assert_eq!(free_unlinked(&sample), (1, Vec::new()));
    assert_eq!(free_unlinked(&sample), (0, Vec::new()));
    let again = sample.change(|group| inodes::free(group, AgInode(24002)));
    assert!(again.is_err());
}

#[test]
fn bad_unlinked_list_is_dropped_and_the_others_are_freed() {
    let named = GroupRule::UnlinkedList.text();
    let unused = InodeRule::Unused.text();
    for (first, second, freed, rule) in [
        ((1, 24010), (0, u32::MAX), 0, named),
        ((0, 24010), (1, 24018), 1, named),
        ((0, 24010), (0, 24002), 2, unused),
        ((0, 24002), (0, u32::MAX), 1, unused),
    ] {
        let sample = with_unlinked(first.0, first.1);
        write_link(&sample, 24010, second);
        write_link(&sample, 24018, (0, u32::MAX));
        write_link(&sample, 24003, (0, u32::MAX));
        sample.change(|group| group.set_unlinked(3, AgInode(24003)));
        assert_eq!(free_unlinked(&sample), (freed + 1, vec![rule.to_owned()]));
        assert_eq!(free_unlinked(&sample), (0, Vec::new()));
        let groups = sample.groups();
        assert!(InodeEdit::read(&groups, inode_of(&sample, 24003)).is_err());
        InodeEdit::read(&groups, inode_of(&sample, 24018)).unwrap();
    }
}

#[test]
fn unlinked_inode_that_is_corrupt_changes_nothing() {
    let (sample, number) = fork::sample(56);
    for (offset, block) in [(0, 500), (20, 600)] {
        let new = fork::mapping(&sample, offset, block, 10);
        fork::change(&sample, number, |fork, groups| {
            fork.map(groups, new).unwrap();
        });
    }
    // The second extent belongs to no file.
    let first = owner(500, 10, RmapOwner(number.get()), 0);
    let mut groups = sample.groups();
    rmap::add(&mut groups.get(AgNr(2)).unwrap(), &first).unwrap();
    groups.write_all().unwrap();
    sample.change(|group| group.set_unlinked(2, AgInode(24002)));
    let rule = GroupRule::Owner.text().to_owned();
    assert_eq!(free_unlinked(&sample), (0, vec![rule]));
    let mut groups = sample.groups();
    let group = groups.get(AgNr(2)).unwrap();
    assert_eq!(group.agf().free_blocks, 0);
    rmap::remove(&mut groups.get(AgNr(2)).unwrap(), &first).unwrap();
    InodeEdit::read(&groups, number).unwrap();
}

#[test]
fn intents_that_break_a_rule_are_refused() {
    let (sample, number) = fork::sample(56);
    let broken = |intent: Intent, rule: IntentRule| {
        let refused = finish_all(&sample, &[intent]).unwrap_err().to_string();
        assert!(refused.contains(rule.text()), "{refused}");
    };
    let at = |owner, offset| bmap(false, extent(&sample, owner, (1200, 3, offset)));
    broken(at(0, 0), IntentRule::Inode);
    broken(at(u64::MAX, 0), IntentRule::Inode);
    broken(at(number.get(), (1 << 54) - 1), IntentRule::Offset);
    let mut plain = sample.geometry.clone();
    plain.features.ro_compat = RoCompat::empty();
    let intent = rmap(RmapOp::Map, extent(&sample, 131, (100, 10, 7)));
    let refused = finish::finish(&sample.device, &plain, &[intent]).unwrap_err();
    assert!(refused.to_string().contains(IntentRule::Feature.text()));
}

#[test]
fn open_attr_intents_change_attributes() {
    let (sample, number) = fork::sample(56);
    let intent = |op, filter, name: &[u8], value: Option<&[u8]>| AttrIntent {
        id: 6,
        inode: number.get(),
        generation: 1,
        op,
        filter,
        name: name.to_vec(),
        new_name: None,
        value: value.map(<[u8]>::to_vec),
        new_value: None,
    };
    let user = AttrFilter::empty();
    let parent = AttrFilter::PARENT;
    let renamed = AttrIntent {
        new_name: Some(b"there".to_vec()),
        new_value: Some(vec![2; 12]),
        ..intent(AttrOp::ParentReplace, parent, b"here", Some(&[1; 12]))
    };
    let all = [
        intent(AttrOp::Set, user, b"long", Some(&[7; 9000])),
        intent(AttrOp::Set, AttrFilter::ROOT, b"name", Some(b"trusted")),
        intent(AttrOp::Set, user, b"name", Some(b"old")),
        intent(AttrOp::Replace, user, b"name", Some(b"new")),
        intent(AttrOp::Set, user, b"gone", Some(b"")),
        intent(AttrOp::Remove, user, b"gone", None),
        intent(AttrOp::ParentSet, parent, b"here", Some(&[1; 12])),
        intent(AttrOp::ParentSet, parent, b"here", Some(&[3; 12])),
        renamed,
        intent(AttrOp::ParentSet, parent, b"short", Some(&[4; 12])),
        intent(AttrOp::ParentRemove, parent, b"short", Some(&[4; 12])),
    ];
    let all = all.map(Intent::Attr);
    finish_all(&sample, &all).unwrap();
    let found = fork::attributes(&sample, number);
    let mut found: Vec<_> = found
        .iter()
        .map(|attr| (&attr.name[..], &attr.value[..]))
        .collect();
    found.sort_unstable();
    let expected: [(&[u8], &[u8]); 5] = [
        (b"here", &[3; 12]),
        (b"long", &[7; 9000]),
        (b"name", b"new"),
        (b"name", b"trusted"),
        (b"there", &[2; 12]),
    ];
    assert_eq!(found, expected);
    let other = AttrIntent {
        generation: 2,
        ..intent(AttrOp::ParentSet, parent, b"here", Some(&[1; 12]))
    };
    let refused = finish_all(&sample, &[Intent::Attr(other)]).unwrap_err();
    assert!(refused.to_string().contains(IntentRule::Generation.text()));
}
