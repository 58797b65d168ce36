//! Forks that change, compared with what they should map.

mod attrs;

use std::collections::BTreeMap;

pub(crate) use attrs::read as attributes;
use platter_ondisk::Rule;

use super::*;
use crate::ag::space;
use crate::ag::tests::sample::{AG, Sample};
use crate::ondisk::btree::{DiskFreeExtent, DiskOwner, Owner};
use crate::ondisk::inode::edit;
use crate::ondisk::inode::free::initialise;
use crate::ondisk::{AgBlock, AgInode, AgNr};

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e);
        (self.0 >> 33) % limit
    }
}

/// A group with free space and a regular file without mappings, whose data fork has so many bytes.
pub(crate) fn sample(fork_bytes: u8) -> (Sample, InodeNr) {
    let sample = Sample::new();
    sample.change(|group| space::free_extent(group, AgBlock(100), 1000).unwrap());
    let number = file(&sample, 2, fork_bytes);
    (sample, number)
}

/// Makes an inode of the chunk an empty file.
pub(crate) fn file(sample: &Sample, index: u32, fork_bytes: u8) -> InodeNr {
    let inode = AgInode(24000 + index);
    let number = sample.geometry.inode_nr(AG, inode).unwrap();
    let mut bytes = vec![0; 512];
    initialise(&mut bytes, &sample.geometry, number, 1);
    bytes[2..4].copy_from_slice(&0x81ff_u16.to_be_bytes());
    bytes[5] = 2;
    edit::set_attr_fork(&mut bytes, fork_bytes / 8).unwrap();
    edit::seal(&mut bytes);
    let at = sample.geometry.ag_offset(AG) + 3000 * 4096 + u64::from(index) * 512;
    sample.device.write_at(at, &bytes).unwrap();
    number
}

/// Changes the data fork.
pub(crate) fn change<T>(
    sample: &Sample,
    number: InodeNr,
    change: impl FnOnce(&mut ForkEdit, &mut Groups) -> T,
) -> T {
    let mut groups = sample.groups();
    let mut inode = InodeEdit::read(&groups, number).unwrap();
    let fork = inode.fork(ForkKind::Data).unwrap();
    let mut fork = ForkEdit::open(&fork, number, &sample.geometry).unwrap();
    let done = change(&mut fork, &mut groups);
    fork.store(&mut inode).unwrap();
    inode.store(&mut groups).unwrap();
    groups.write_all().unwrap();
    done
}

pub(crate) fn mapping(sample: &Sample, offset: u64, block: u32, count: u64) -> Mapping {
    Mapping {
        offset: FileBlock(offset),
        start: sample.geometry.fs_block(AgNr(2), AgBlock(block)).0,
        count,
        is_unwritten: false,
    }
}

/// What backs each file block.
fn by_block(mappings: &[Mapping]) -> BTreeMap<u64, u64> {
    let blocks = mappings
        .iter()
        .flat_map(|one| (0..one.count).map(|at| (one.offset.0 + at, one.start + at)));
    blocks.collect()
}

#[test]
fn no_blocks_are_unmapped_within_a_mapping() {
    let (sample, number) = sample(40);
    change(&sample, number, |fork, groups| {
        let whole = mapping(&sample, 10, 500, 20);
        fork.map(groups, whole).unwrap();
        for first in [9, 10, 15, 30] {
            assert_eq!(fork.unmap(groups, FileBlock(first), 0).unwrap(), []);
        }
        assert_eq!(fork.contents(groups).unwrap().0, [whole]);
    });
}

#[test]
fn fork_maps_what_was_mapped_in_any_order() {
    let (sample, number) = sample(40);
    let mut numbers = Numbers(1);
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut levels = 0;
    for round in 0..40 {
        let shrinks = round >= 25;
        change(&sample, number, |fork, groups| {
            for _ in 0..100 {
                let (offset, count) = (numbers.below(3000), 1 + numbers.below(3));
                let is_free = (offset..offset + count).all(|at| !model.contains_key(&at));
                if is_free && !shrinks {
                    // Every second one continues what is before it.
                    let block = u32::try_from(offset + numbers.below(2) * 500).unwrap();
                    let new = mapping(&sample, offset, 500 + block, count);
                    fork.map(groups, new).unwrap();
                    model.extend(by_block(&[new]));
                } else {
                    let width = if shrinks { 40 } else { count };
                    let gone = fork.unmap(groups, FileBlock(offset), width).unwrap();
                    for (at, block) in by_block(&gone) {
                        assert_eq!(model.remove(&at), Some(block));
                    }
                    let left = model.range(offset..offset + width).next();
                    assert_eq!(left, None);
                }
            }
            if let Form::Tree(root) = &fork.form {
                levels = levels.max(root.level);
            }
        });
        let found = change(&sample, number, |fork, groups| {
            fork.contents(groups).unwrap().0
        });
        assert_eq!(by_block(&found), model, "round {round}");
        let blocks = InodeEdit::read(&sample.groups(), number)
            .unwrap()
            .inode()
            .blocks;
        let tree = change(&sample, number, |fork, groups| {
            fork.contents(groups).unwrap().1
        });
        assert_eq!(blocks, model.len() as u64 + tree.len() as u64);
    }
    assert!(levels >= 2, "{levels}");
    change(&sample, number, |fork, groups| {
        fork.unmap(groups, FileBlock(0), 5000).unwrap();
    });
    // All that the tree had is free again.
    let owners: Vec<DiskOwner> = sample.records(BtreeKind::Rmap);
    assert!(owners.iter().all(|owner| !Owner::decode(owner).is_btree));
    let free: Vec<DiskFreeExtent> = sample.records(BtreeKind::Bno);
    let free: u32 = free.iter().map(|free| free.count.get()).sum();
    assert_eq!(free, 1000);
    let inode = InodeEdit::read(&sample.groups(), number).unwrap();
    assert_eq!((inode.inode().data_extents, inode.inode().blocks), (0, 0));
}

#[test]
fn lookup_finds_the_mapping_at_or_after_a_block() {
    let (sample, number) = sample(56);
    change(&sample, number, |fork, groups| {
        for at in [10, 20, 30, 40, 50] {
            let new = mapping(&sample, at, 500 + u32::try_from(at).unwrap() * 2, 5);
            fork.map(groups, new).unwrap();
        }
        assert!(matches!(fork.form, Form::Tree(_)));
        for (at, found) in [
            (0, Some(10)),
            (14, Some(10)),
            (15, Some(20)),
            (54, Some(50)),
            (55, None),
        ] {
            let mapping = fork.lookup(groups, FileBlock(at)).unwrap();
            assert_eq!(mapping.map(|mapping| mapping.offset.0), found, "{at}");
        }
    });
}

#[test]
fn mapped_blocks_are_not_mapped_again() {
    let (sample, number) = sample(56);
    change(&sample, number, |fork, groups| {
        fork.map(groups, mapping(&sample, 10, 500, 5)).unwrap();
        for offset in [8, 12, 14] {
            let again = fork.map(groups, mapping(&sample, offset, 900, 3));
            assert!(again.is_err(), "{offset}");
        }
    });
}

#[test]
fn leaf_before_its_key_is_found() {
    let (sample, number) = sample(56);
    change(&sample, number, |fork, groups| {
        for at in 0..300 {
            let block = u32::try_from(500 + 2 * at).unwrap();
            fork.map(groups, mapping(&sample, 10 * at, block, 1))
                .unwrap();
        }
    });
    change(&sample, number, |fork, groups| {
        let Form::Tree(root) = &mut fork.form else {
            panic!("no tree");
        };
        assert_eq!((root.level, root.keys.len()), (1, 2));
        let key = root.keys[1].get();
        root.keys[1].set(key + 1000);
        let gone = fork.unmap(groups, FileBlock(key + 500), 20);
        let Err(platter_vfs::Error::Corrupt(corruption)) = gone else {
            panic!("{gone:?}");
        };
        assert_eq!(corruption.rule, MappingRule::Order.text());
    });
}
