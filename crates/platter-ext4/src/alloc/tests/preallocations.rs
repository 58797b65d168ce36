//! Preallocation for growing files.

use super::sample::{Sample, Shape};
use super::*;
use crate::alloc;

#[test]
fn files_growing_together_stay_contiguous() {
    let sample = Sample::new(Shape {
        blocks: 4096,
        blocks_per_group: 4096,
        ..Shape::PLAIN
    });
    let (space, fs) = (&sample.space, &sample.fs);
    let mut files = [Preallocation::default(), Preallocation::default()];
    let mut pieces = [0, 0];
    for _ in 0..200 {
        for (preallocation, pieces) in files.iter_mut().zip(&mut pieces) {
            let goal = preallocation.goal();
            let goal_or_start = goal.unwrap_or(BlockNr(100));
            let taken = alloc::take_growing(
                space,
                fs,
                preallocation,
                goal_or_start,
                4,
                Reserve::Ordinary,
            )
            .unwrap();
            assert_eq!(taken.count(), 4);
            *pieces += u32::from(goal != Some(taken.start()));
        }
    }
    assert!(pieces.iter().all(|&pieces| pieces < 12), "{pieces:?}");
}

#[test]
fn preallocated_blocks_are_used_when_space_runs_out() {
    let sample = Sample::new(Shape::PLAIN);
    let (space, fs) = (&sample.space, &sample.fs);
    let free = space.stat().free_blocks;
    let mut preallocation = Preallocation::default();
    for _ in 0..2 {
        let goal = preallocation.goal().unwrap_or(BlockNr(100));
        let taken = alloc::take_growing(space, fs, &mut preallocation, goal, 4, Reserve::Ordinary);
        assert_eq!(taken.unwrap().count(), 4);
    }
    assert!(space.counters.kept.get() > 0);
    assert_eq!(space.stat().free_blocks, free - 8);
    let mut sum = 8;
    while let Ok(taken) = alloc::take(space, fs, BlockNr(1), 50, Reserve::Split) {
        sum += u64::from(taken.count());
    }
    assert_eq!(sum, free);
    assert_eq!(space.counters.kept.get(), 0);
    alloc::close_preallocation(space, &mut preallocation);
    assert_eq!(space.stat().free_blocks, 0);
}

#[test]
fn closing_releases_the_preallocation() {
    let sample = Sample::new(Shape::PLAIN);
    let (space, fs) = (&sample.space, &sample.fs);
    let mut preallocation = Preallocation::default();
    for _ in 0..3 {
        let goal = preallocation.goal().unwrap_or(BlockNr(100));
        let taken = alloc::take_growing(space, fs, &mut preallocation, goal, 4, Reserve::Ordinary);
        alloc::give_back(space, taken.unwrap());
    }
    alloc::close_preallocation(space, &mut preallocation);
    assert_eq!(space.counters.kept.get(), 0);
    let taken = alloc::take(space, fs, BlockNr(100), 100, Reserve::Ordinary).unwrap();
    assert_eq!(taken.count(), 100);
}

#[test]
fn directories_growing_together_have_few_fragments() {
    let sample = Sample::new(Shape {
        blocks: 4096,
        blocks_per_group: 4096,
        ..Shape::PLAIN
    });
    let (space, fs) = (&sample.space, &sample.fs);
    let free = space.stat().free_blocks;
    let mut directories = [(20, BlockNr(100), 0), (21, BlockNr(100), 0)];
    for _ in 0..200 {
        for (number, goal, pieces) in &mut directories {
            let number = InodeNr::new(*number).unwrap();
            let mut handle = fs.begin(RECORD_CREDITS).unwrap();
            let from = Reserve::Ordinary;
            let place = alloc::alloc_for_directory(space, fs, &mut handle, number, *goal, from);
            let place = place.unwrap();
            *pieces += u32::from(place != *goal);
            *goal = BlockNr(place.0 + 1);
        }
    }
    let pieces = directories.map(|(_, _, pieces)| pieces);
    assert!(pieces.iter().all(|&pieces| pieces < 12), "{pieces:?}");
    assert_eq!(space.stat().free_blocks, free - 400);
}

#[test]
fn number_of_directory_preallocations_is_limited() {
    let sample = Sample::new(Shape {
        blocks: 4096,
        blocks_per_group: 4096,
        ..Shape::PLAIN
    });
    let (space, fs) = (&sample.space, &sample.fs);
    let mut handle = fs.begin(8).unwrap();
    for number in 0..100 {
        let number = InodeNr::new(20 + number).unwrap();
        let mut goal = BlockNr(100);
        for _ in 0..2 {
            let from = Reserve::Ordinary;
            let place = alloc::alloc_for_directory(space, fs, &mut handle, number, goal, from);
            goal = BlockNr(place.unwrap().0 + 1);
        }
    }
    assert!(space.counters.kept.get() <= 32 * 16);
    assert!(space.counters.kept.get() >= 32);
}
