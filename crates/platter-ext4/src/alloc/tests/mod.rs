//! Allocation, preallocation and freeing, on filesystems built in memory.

mod inodes;
mod model;
mod parallel;
mod rules;
mod trim;
mod preallocations;
mod replay;
pub(crate) mod sample;

use std::sync::Arc;

use platter_vfs::Condition;

use super::*;
use crate::alloc;
use crate::ondisk::features::RoCompat;
use sample::{Sample, Shape};

fn refused<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::Condition(Condition::NoSpace)))
}

#[test]
fn blocks_are_allocated_at_the_goal() {
    let sample = Sample::new(Shape::PLAIN);
    let taken = alloc::take(
        &sample.space,
        &sample.fs,
        BlockNr(700),
        20,
        Reserve::Ordinary,
    )
    .unwrap();
    assert_eq!(taken.blocks(), BlockNr(700)..BlockNr(720));
    let next = alloc::take(
        &sample.space,
        &sample.fs,
        BlockNr(720),
        5,
        Reserve::Ordinary,
    )
    .unwrap();
    assert_eq!(next.start(), BlockNr(720));
    let again = alloc::take(
        &sample.space,
        &sample.fs,
        BlockNr(700),
        5,
        Reserve::Ordinary,
    )
    .unwrap();
    assert_eq!(again.start(), BlockNr(725));
    for taken in [taken, next, again] {
        alloc::give_back(&sample.space, taken);
    }
    sample.commit();
    assert_eq!(sample.validated(), []);
}

#[test]
fn freed_blocks_are_allocatable_after_the_commit() {
    let sample = Sample::new(Shape::PLAIN);
    let free = sample.space.stat().free_blocks;
    let mut handle = sample.fs.begin(8).unwrap();
    let goal = BlockNr(700);
    let (space, fs) = (&sample.space, &sample.fs);
    let blocks = alloc::alloc_blocks(space, fs, &mut handle, goal, 20, Reserve::Ordinary).unwrap();
    assert_eq!(space.stat().free_blocks, free - 20);
    alloc::free_blocks(space, fs, &mut handle, blocks.clone()).unwrap();
    assert_eq!(space.stat().free_blocks, free);
    let again = alloc::take(space, fs, goal, 20, Reserve::Ordinary).unwrap();
    assert_ne!(again.blocks(), blocks);
    alloc::give_back(space, again);
    drop(handle);
    sample.commit();
    let again = alloc::take(space, fs, goal, 20, Reserve::Ordinary).unwrap();
    assert_eq!(again.blocks(), blocks);
}

#[test]
fn space_is_allocated_to_the_last_block() {
    for uninit in [false, true] {
        let sample = Sample::new(Shape {
            reserved_blocks: 50,
            uninit,
            ..Shape::PLAIN
        });
        let (space, fs) = (&sample.space, &sample.fs);
        let before = space.stat();
        assert_eq!(before.available_blocks, before.free_blocks - 50);
        let mut sum = 0;
        let mut take = |from, want| -> Result<u64> {
            let taken = alloc::take(space, fs, BlockNr(1), want, from)?;
            let count = u64::from(taken.count());
            sum += count;
            let mut handle = fs.begin(RECORD_CREDITS)?;
            alloc::record(space, fs, &mut handle, taken)?;
            Ok(count)
        };
        while take(Reserve::Ordinary, 77).is_ok() {}
        assert!(refused(&take(Reserve::Ordinary, 1)));
        assert_eq!(space.stat().free_blocks, 50);
        while take(Reserve::Privileged, 3).is_ok() {}
        assert_eq!(sum, before.free_blocks);
        assert_eq!(space.stat().free_blocks, 0);
        sample.commit();
        assert_eq!(sample.validated().len() as u64, before.free_blocks);
        let all = sample.validated();
        let reopened = Sample::on(Arc::clone(&sample.device));
        assert!(refused(&alloc::take(
            &reopened.space,
            &reopened.fs,
            BlockNr(1),
            1,
            Reserve::Split
        )));
        let mut handle = reopened.fs.begin(64).unwrap();
        for run in all.chunk_by(|left, right| left + 1 == *right) {
            let blocks = BlockNr(run[0])..BlockNr(run[run.len() - 1] + 1);
            alloc::free_blocks(&reopened.space, &reopened.fs, &mut handle, blocks).unwrap();
        }
        drop(handle);
        reopened.commit();
        assert_eq!(reopened.validated(), []);
        assert_eq!(reopened.space.stat(), before);
    }
}

#[test]
fn reservation_may_use_space_freed_just_now() {
    let sample = Sample::new(Shape::PLAIN);
    let (space, fs) = (&sample.space, &sample.fs);
    let mut all = Vec::new();
    let mut handle = fs.begin(64).unwrap();
    while let Ok(blocks) =
        alloc::alloc_blocks(space, fs, &mut handle, BlockNr(1), 4096, Reserve::Split)
    {
        all.push(blocks);
    }
    assert!(space.reserve_delayed(1, Reserve::Privileged).is_err());
    drop(handle);
    sample.commit();
    let mut handle = fs.begin(64).unwrap();
    let freed = all.pop().unwrap();
    let count = freed.end.0 - freed.start.0;
    alloc::free_blocks(space, fs, &mut handle, freed).unwrap();
    assert!(refused(&alloc::alloc_blocks(
        space,
        fs,
        &mut handle,
        BlockNr(1),
        1,
        Reserve::Ordinary
    )));
    drop(handle);
    space.reserve_delayed(count, Reserve::Ordinary).unwrap();
    assert!(refused(&alloc::take(
        space,
        fs,
        BlockNr(1),
        1,
        Reserve::Privileged
    )));
    let mut left = count;
    while left > 0 {
        let want = u32::try_from(left).unwrap();
        let taken = alloc::take(space, fs, BlockNr(1), want, Reserve::Delayed).unwrap();
        left -= u64::from(taken.count());
    }
    assert!(refused(&alloc::take(
        space,
        fs,
        BlockNr(1),
        1,
        Reserve::Delayed
    )));
}

#[test]
fn gdt_csum_and_unchecksummed_groups_stay_valid() {
    for ro_compat in [RoCompat::GDT_CSUM, RoCompat::empty()] {
        let sample = Sample::new(Shape {
            ro_compat,
            uninit: true,
            ..Shape::PLAIN
        });
        let mut handle = sample.fs.begin(64).unwrap();
        let (space, fs) = (&sample.space, &sample.fs);
        let blocks =
            alloc::alloc_blocks(space, fs, &mut handle, BlockNr(600), 9, Reserve::Ordinary);
        drop(handle);
        sample.commit();
        assert_eq!(sample.validated().len(), 9);
        let mut handle = sample.fs.begin(64).unwrap();
        alloc::free_blocks(space, fs, &mut handle, blocks.unwrap()).unwrap();
        drop(handle);
        sample.commit();
        assert_eq!(sample.validated(), []);
    }
}
