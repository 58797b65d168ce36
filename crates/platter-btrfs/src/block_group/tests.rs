//! Updates of items: all interleavings, and the two faults of the kernel step by step.

use std::ops::Range;
use std::sync::Arc;

use platter_ondisk::Rule;

use super::*;
use crate::context::tests::rule;
use crate::ondisk::LogicalAddr;
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::chunk_item::BlockGroupFlags;

const START: LogicalAddr = LogicalAddr(1 << 30);
const EXTENT: u64 = 32 << 10;

fn item(used_bytes: u64) -> BlockGroupItem {
    BlockGroupItem {
        start: START,
        len_bytes: 1 << 23,
        used_bytes,
        chunk_object: 256,
        flags: BlockGroupFlags::METADATA,
    }
}

#[expect(clippy::unnecessary_wraps, reason = "stands for a function that reads")]
fn all_free(group: &BlockGroup) -> platter_vfs::Result<Ranges> {
    let mut free = Ranges::default();
    free.add(group.start().0..group.end().0);
    Ok(free)
}

fn groups(group: BlockGroup) -> BlockGroups {
    BlockGroups::new(vec![group])
}

/// Allocates an extent that gets an item.
fn use_extent(groups: &BlockGroups) -> LogicalAddr {
    let kind = BlockGroupFlags::METADATA;
    let at = groups.allocate(kind, EXTENT, 4096, &all_free).unwrap();
    groups.commit_allocation(at, EXTENT).unwrap();
    at
}

fn group(groups: &BlockGroups) -> Arc<BlockGroup> {
    groups.iter().next().unwrap()
}

fn inserted(group: &BlockGroup) -> PendingItem<'_> {
    match group.begin_insertion() {
        Insertion::Insert(pending) => pending,
        Insertion::Exists => panic!("there is an item"),
    }
}

#[test]
fn update_before_the_item_exists_does_not_hide_a_later_one() {
    // 675dfe1223a6: the pre-pass tries an update of a new group and fails; the item is inserted; the
    // extents are freed; the critical phase skips the update.
    let groups = groups(BlockGroup::new(item(0), false, Vec::new()));
    let group = group(&groups);
    let extent = use_extent(&groups);
    assert!(matches!(group.begin_update(true), Update::Absent));
    let pending = inserted(&group);
    assert_eq!(pending.item().used_bytes, EXTENT);
    pending.done();
    groups.free(extent, EXTENT).unwrap();
    assert!(groups.is_dirty());
    let Update::Write(pending) = group.begin_update(true) else {
        panic!("the item holds 32 KiB");
    };
    assert_eq!(pending.item().used_bytes, 0);
    pending.done();
    assert_eq!(group.persisted(), Persisted::Item(item(0)));
}

#[test]
fn failed_update_does_not_undo_a_later_insertion() {
    // 2d6cd791e63e: an update begins before there is an item, and does not find it; the item is inserted; only then
    // does the update restore its old value; the extents are freed, and the critical phase skips the update.
    let groups = groups(BlockGroup::new(item(0), false, Vec::new()));
    let group = group(&groups);
    let extent = use_extent(&groups);
    let too_early = group.begin_update(true);
    assert!(matches!(too_early, Update::Absent));
    inserted(&group).done();
    drop(too_early);
    assert_eq!(group.persisted(), Persisted::Item(item(EXTENT)));
    groups.free(extent, EXTENT).unwrap();
    let Update::Write(pending) = group.begin_update(true) else {
        panic!("the item holds 32 KiB");
    };
    assert_eq!(pending.item().used_bytes, 0);
    pending.done();
    assert_eq!(group.persisted(), Persisted::Item(item(0)));
}

#[test]
fn update_that_fails_after_an_insertion_restores_it() {
    // The same with an update that begins while the item is inserted, and is pending.
    let groups = groups(BlockGroup::new(item(0), false, Vec::new()));
    let group = group(&groups);
    let insertion = inserted(&group);
    let extent = use_extent(&groups);
    let Update::Write(update) = group.begin_update(true) else {
        panic!("another value");
    };
    insertion.done();
    drop(update);
    assert_eq!(group.persisted(), Persisted::Item(item(0)));
    let Update::Write(update) = group.begin_update(true) else {
        panic!("the item holds nothing");
    };
    update.done();
    groups.free(extent, EXTENT).unwrap();
    let Update::Write(update) = group.begin_update(true) else {
        panic!("the item holds 32 KiB");
    };
    update.done();
}

#[test]
fn insertion_that_fails_does_not_undo_a_later_update() {
    let groups = groups(BlockGroup::new(item(0), false, Vec::new()));
    let group = group(&groups);
    let extent = use_extent(&groups);
    let failing = inserted(&group);
    // An update begins on what the insertion recorded, with another value.
    groups.free(extent, EXTENT).unwrap();
    let Update::Write(update) = group.begin_update(true) else {
        panic!("another value");
    };
    update.done();
    drop(failing);
    assert_eq!(group.persisted(), Persisted::Item(item(0)));
    assert!(matches!(group.begin_update(true), Update::Unchanged));
}

#[test]
fn group_without_an_item_is_never_skipped() {
    let groups = groups(BlockGroup::new(item(0), false, Vec::new()));
    let group = group(&groups);
    assert_eq!(group.space().used, 0);
    assert!(matches!(group.begin_update(true), Update::Absent));
    inserted(&group).done();
    assert!(matches!(group.begin_update(true), Update::Unchanged));
    assert!(matches!(group.begin_insertion(), Insertion::Exists));
}

#[test]
fn group_with_its_old_use_is_skipped() {
    let groups = groups(BlockGroup::new(item(EXTENT), true, Vec::new()));
    let group = group(&groups);
    let extent = use_extent(&groups);
    groups.free(extent, EXTENT).unwrap();
    assert_eq!(groups.take_dirty().len(), 1);
    assert!(!groups.is_dirty());
    assert!(matches!(group.begin_update(true), Update::Unchanged));
    // Without the comparison it is written all the same.
    let Update::Write(pending) = group.begin_update(false) else {
        panic!("not written");
    };
    pending.done();
}

#[test]
fn failed_write_restores_what_the_item_holds() {
    let groups = groups(BlockGroup::new(item(0), true, Vec::new()));
    let group = group(&groups);
    use_extent(&groups);
    drop(group.begin_update(true));
    assert_eq!(group.persisted(), Persisted::Item(item(0)));
    assert!(matches!(group.begin_update(true), Update::Write(_)));
}

#[test]
fn all_of_the_item_is_compared() {
    // 7248e0cebbef compared one number; bf8ff4b9f0aa made it the whole item.
    let groups = groups(BlockGroup::new(item(0), true, Vec::new()));
    let group = group(&groups);
    let flags = BlockGroupFlags::METADATA | BlockGroupFlags::RAID1;
    group.set_flags(flags);
    let Update::Write(pending) = group.begin_update(true) else {
        panic!("the item has other flags");
    };
    assert_eq!(pending.item().flags, flags);
    pending.done();
    assert!(matches!(group.begin_update(true), Update::Unchanged));
}

#[test]
fn read_only_group_is_updated() {
    let groups = groups(BlockGroup::new(item(EXTENT), true, Vec::new()));
    let group = group(&groups);
    assert!(groups.hold(&group));
    groups.free(START, EXTENT).unwrap();
    assert_eq!(groups.take_dirty().len(), 1);
    let Update::Write(pending) = group.begin_update(true) else {
        panic!("the item holds 32 KiB");
    };
    assert_eq!(pending.item().used_bytes, 0);
    pending.done();
}

/// Two groups, one after the other.
fn two_groups(used_bytes: u64) -> BlockGroups {
    let second = BlockGroupItem {
        start: LogicalAddr(START.0 + item(0).len_bytes),
        ..item(0)
    };
    let new = |item| BlockGroup::new(item, true, Vec::new());
    BlockGroups::new(vec![new(item(used_bytes)), new(second)])
}

#[test]
fn group_removed_in_the_same_commit_is_not_updated() {
    let groups = two_groups(EXTENT);
    let group = group(&groups);
    groups.free(START, EXTENT).unwrap();
    assert!(!groups.withdraw(&group), "what was freed is pinned");
    groups.unpin(&(START.0..START.0 + EXTENT)).unwrap();
    assert!(groups.is_dirty() && groups.withdraw(&group));
    assert_eq!(groups.take_dirty().len(), 0);
    // A thread that took it from the list before finds nothing to write, and its item is not inserted again.
    assert!(matches!(group.begin_update(true), Update::Unchanged));
    assert!(matches!(group.begin_update(false), Update::Unchanged));
}

#[test]
fn extent_in_two_groups_is_corrupt() {
    let groups = two_groups(EXTENT);
    let across = LogicalAddr(START.0 + item(0).len_bytes - EXTENT / 2);
    let found = rule(groups.free(across, EXTENT));
    assert_eq!(found, SpaceRule::NoGroup.text());
    assert!(!groups.is_dirty());
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 1).unwrap() % bound
    }
}

/// A write of the item that was begun.
struct Begun<'g> {
    pending: PendingItem<'g>,
    is_insertion: bool,
    /// A later one reached the tree.
    is_late: bool,
}

/// What a tree and the writes on their way to it hold: one item at most.
#[derive(Default)]
struct ItemModel {
    tree: Option<BlockGroupItem>,
    committed: Option<BlockGroupItem>,
    /// How many were written, failed, and failed with another one pending that was begun later.
    counts: [u32; 3],
}

impl ItemModel {
    /// What the group is to know: the newest write that can still reach the tree, or what the tree holds.
    fn expected(&self, begun: &[Begun<'_>]) -> Persisted {
        let newest = begun.iter().rfind(|it| !it.is_late);
        let newest = newest.map(|it| *it.pending.item()).or(self.tree);
        newest.map_or(Persisted::Absent, Persisted::Item)
    }

    /// Ends a write: it reaches the tree, or fails. An update fails without an item, an insertion with one, and one that a
    /// later one overtook always.
    fn end(&mut self, begun: &mut Vec<Begun<'_>>, at: usize, may_write: bool) {
        let ended = begun.remove(at);
        let fits = self.tree.is_none() == ended.is_insertion && !ended.is_late;
        if !fits || !may_write {
            self.counts[1] += 1;
            self.counts[2] += u32::from(begun.len() > at && !ended.is_late);
            drop(ended);
            return;
        }
        self.counts[0] += 1;
        self.tree = Some(*ended.pending.item());
        begun[..at].iter_mut().for_each(|it| it.is_late = true);
        ended.pending.done();
    }
}

/// Allocation, freeing, updates and insertions that overlap, fail and succeed in any order, commits, and transactions that
/// are aborted. Returns what was counted.
fn interleave(seed: u64) -> [u32; 3] {
    let mut random = Random(seed);
    let is_new = seed.is_multiple_of(2);
    let mut model = ItemModel {
        tree: (!is_new).then_some(item(0)),
        committed: (!is_new).then_some(item(0)),
        ..ItemModel::default()
    };
    let mut committed: Vec<LogicalAddr> = Vec::new();
    for _ in 0..4 {
        // After an abort all is read anew: what was recorded may be ahead of what is durable.
        model.tree = model.committed;
        let mut extents = committed.clone();
        let read = model.committed.unwrap_or(item(0));
        assert_eq!(read.used_bytes, extents.len() as u64 * EXTENT);
        let groups = groups(BlockGroup::new(read, model.committed.is_some(), Vec::new()));
        let group = group(&groups);
        // What the extents of the last transaction take is not free.
        let free = |group: &BlockGroup| -> platter_vfs::Result<Ranges> {
            let mut free = all_free(group)?;
            for extent in &committed {
                free.exclude(&(extent.0..extent.0 + EXTENT));
            }
            Ok(free)
        };
        group.load(&free).unwrap();
        let mut begun: Vec<Begun<'_>> = Vec::new();
        for _ in 0..60 {
            let expected = model.expected(&begun);
            let new = match random.below(8) {
                0 | 1 if extents.len() < 50 => {
                    extents.push(use_extent(&groups));
                    None
                }
                2 if !extents.is_empty() => {
                    let extent = extents.swap_remove(random.below(extents.len()));
                    groups.free(extent, EXTENT).unwrap();
                    None
                }
                3 | 4 => match group.begin_update(true) {
                    Update::Write(update) => Some((update, false)),
                    Update::Unchanged => {
                        assert_eq!(expected, Persisted::Item(item(group.space().used)));
                        None
                    }
                    Update::Absent => {
                        assert_eq!(expected, Persisted::Absent);
                        None
                    }
                },
                5 => match group.begin_insertion() {
                    Insertion::Insert(insertion) => {
                        assert_eq!(expected, Persisted::Absent);
                        Some((insertion, true))
                    }
                    Insertion::Exists => {
                        assert_ne!(expected, Persisted::Absent);
                        None
                    }
                },
                _ if !begun.is_empty() => {
                    let at = random.below(begun.len());
                    model.end(&mut begun, at, random.below(3) > 0);
                    None
                }
                _ => None,
            };
            if let Some((pending, is_insertion)) = new {
                begun.push(Begun {
                    pending,
                    is_insertion,
                    is_late: false,
                });
            }
            assert_eq!(group.persisted(), model.expected(&begun), "seed {seed}");
        }
        let aborts = random.below(2) == 0;
        while !begun.is_empty() {
            let at = random.below(begun.len());
            model.end(&mut begun, at, !aborts && at == 0);
            assert_eq!(group.persisted(), model.expected(&begun), "seed {seed}");
        }
        if aborts {
            continue;
        }
        // The critical phase: an insertion that is owed, then an update.
        if let Insertion::Insert(insertion) = group.begin_insertion() {
            assert_eq!(model.tree, None);
            model.tree = Some(*insertion.item());
            insertion.done();
        }
        if let Update::Write(update) = group.begin_update(true) {
            model.tree = Some(*update.item());
            update.done();
        }
        assert_eq!(model.tree, Some(item(extents.len() as u64 * EXTENT)));
        (model.committed, committed) = (model.tree, extents);
    }
    model.counts
}

#[test]
fn interleavings_leave_the_item_as_the_group() {
    let mut counts = [0; 3];
    for seed in 0..400 {
        for (sum, count) in counts.iter_mut().zip(interleave(seed)) {
            *sum += count;
        }
    }
    assert!(counts.iter().all(|&count| count > 500), "{counts:?}");
}

#[test]
fn space_is_pinned_until_it_is_free_again() {
    let superblock = START.0 + (1 << 20)..START.0 + (1 << 20) + (64 << 10);
    let groups = groups(BlockGroup::new(item(0), true, vec![superblock.clone()]));
    let group = group(&groups);
    let kind = BlockGroupFlags::METADATA;
    let mut extents = Vec::new();
    while let Ok(at) = groups.allocate(kind, EXTENT, EXTENT, &all_free) {
        assert!(at.0 + EXTENT <= superblock.start || at.0 >= superblock.end);
        groups.commit_allocation(at, EXTENT).unwrap();
        extents.push(at);
    }
    assert_eq!(extents.len(), (8 << 20) / (32 << 10) - 2);
    groups.free(extents[7], EXTENT).unwrap();
    assert!(groups.allocate(kind, EXTENT, EXTENT, &all_free).is_err());
    assert_eq!(group.space().pinned, EXTENT);
    groups
        .unpin(&(extents[7].0..extents[7].0 + EXTENT))
        .unwrap();
    let again = groups.allocate(kind, EXTENT, EXTENT, &all_free).unwrap();
    assert_eq!(again, extents[7]);
    groups.release(again, EXTENT).unwrap();
    let again = groups.allocate(kind, EXTENT, EXTENT, &all_free).unwrap();
    assert_eq!(again, extents[7]);
    groups.pin_allocation(again, EXTENT).unwrap();
    assert_eq!((group.space().reserved, group.space().pinned), (0, EXTENT));
    assert!(groups.hold(&group));
    assert!(groups.allocate(kind, EXTENT, EXTENT, &all_free).is_err());
}

#[test]
fn more_freed_than_used_is_corrupt() {
    let groups = groups(BlockGroup::new(item(EXTENT), true, Vec::new()));
    groups.free(START, EXTENT).unwrap();
    assert_eq!(rule(groups.free(START, EXTENT)), SpaceRule::Account.text());
    assert!(groups.release(START, EXTENT).is_err());
    assert!(groups.commit_allocation(START, EXTENT).is_err());
    assert!(groups.unpin(&(START.0..START.0 + 2 * EXTENT)).is_err());
    let outside = rule(groups.free(LogicalAddr(0), EXTENT));
    assert_eq!(outside, SpaceRule::NoGroup.text());
}

#[test]
fn space_of_a_held_group_is_not_free() {
    let groups = groups(BlockGroup::new(item(EXTENT), true, Vec::new()));
    let group = group(&groups);
    let kind = BlockGroupFlags::METADATA;
    let free = item(0).len_bytes - EXTENT;
    assert_eq!(groups.free_bytes(kind), free);
    assert!(groups.hold(&group));
    assert_eq!(groups.free_bytes(kind), 0);
    // What changes meanwhile counts when it is let go.
    groups.free(START, EXTENT).unwrap();
    groups.unpin(&(START.0..START.0 + EXTENT)).unwrap();
    assert_eq!(groups.free_bytes(kind), 0);
    groups.let_go(&group);
    assert_eq!(groups.free_bytes(kind), free + EXTENT);
}

#[test]
fn space_of_a_held_group_is_not_discarded() {
    let groups = groups(BlockGroup::new(item(EXTENT), true, Vec::new()));
    let group = group(&groups);
    let visited = || {
        let mut bytes = 0;
        let mut visit = |piece: &Range<u64>, _: &Range<u64>| {
            bytes += piece.end - piece.start;
            Ok(())
        };
        group.visit_free(0, u64::MAX, &mut visit).unwrap();
        bytes
    };
    let free = item(0).len_bytes - EXTENT;
    let mut ranges = Ranges::default();
    ranges.add(START.0 + EXTENT..group.end().0);
    group.load(&|_: &BlockGroup| Ok(ranges.clone())).unwrap();
    assert_eq!(visited(), free);
    assert!(groups.hold(&group));
    groups.free(START, EXTENT).unwrap();
    let discard = |range: &Range<u64>| panic!("{range:?} is discarded");
    assert!(group.unpin_with(START.0..START.0 + EXTENT, &discard));
    assert_eq!(visited(), 0);
    groups.let_go(&group);
    assert_eq!(visited(), free + EXTENT);
}

#[test]
fn freed_space_stays_pinned_while_it_is_kept() {
    let groups = groups(BlockGroup::new(item(EXTENT), true, Vec::new()));
    let group = group(&groups);
    let kind = BlockGroupFlags::METADATA;
    let free = groups.free_bytes(kind);
    assert!(group.keep_pinned());
    groups.free(START, EXTENT).unwrap();
    groups.unpin(&(START.0..START.0 + EXTENT)).unwrap();
    assert_eq!(
        (groups.free_bytes(kind), group.space().pinned),
        (free, EXTENT)
    );
    assert!(!group.is_unused());
    groups.unpin_kept(&group).unwrap();
    assert_eq!(groups.free_bytes(kind), free + EXTENT);
    assert!(group.is_unused());
}
