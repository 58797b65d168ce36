//! Several threads at once.

use crate::alloc;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use super::sample::{Sample, Shape};
use super::*;

#[test]
fn threads_never_get_the_same_blocks() {
    let sample = Sample::new(Shape {
        blocks: 16 * 1024,
        blocks_per_group: 1024,
        uninit: true,
        ..Shape::PLAIN
    });
    let before = sample.space.stat();
    let owners: Vec<AtomicU32> = (0..16 * 1024).map(|_| AtomicU32::new(0)).collect();
    let (space, fs) = (&sample.space, &sample.fs);
    let pass_on = |blocks: &Range<BlockNr>, from: u32, to: u32| {
        for block in blocks.start.0..blocks.end.0 {
            let owner = &owners[usize::try_from(block).unwrap()];
            assert_eq!(owner.swap(to, Ordering::SeqCst), from);
        }
    };
    let free = |thread: u32, blocks: Range<BlockNr>| {
        pass_on(&blocks, thread, 0);
        let mut handle = fs.begin(space.free_credits(64)).unwrap();
        alloc::free_blocks(space, fs, &mut handle, blocks).unwrap();
    };
    let work = |thread: u32| {
        let mut held = VecDeque::new();
        let mut preallocation = Preallocation::default();
        for round in 0..400u64 {
            let start = BlockNr(u64::from(thread) * 3000 + round);
            let goal = preallocation.goal().unwrap_or(start);
            let want = 1 + u32::try_from(round % 37).unwrap();
            let taken =
                alloc::take_growing(space, fs, &mut preallocation, goal, want, Reserve::Ordinary);
            let Ok(taken) = taken else { continue };
            let blocks = taken.blocks();
            pass_on(&blocks, 0, thread);
            let mut handle = fs.begin(RECORD_CREDITS).unwrap();
            alloc::record(space, fs, &mut handle, taken).unwrap();
            drop(handle);
            held.push_back(blocks);
            if held.len() > 40 {
                free(thread, held.pop_front().unwrap());
            }
            if round % 100 == 0 {
                fs.log().unwrap().commit_all().unwrap();
            }
        }
        alloc::close_preallocation(space, &mut preallocation);
        for blocks in held {
            free(thread, blocks);
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            scope.spawn(move || work(thread));
        }
    });
    sample.commit();
    assert_eq!(sample.validated(), []);
    assert_eq!(space.stat(), before);
}
