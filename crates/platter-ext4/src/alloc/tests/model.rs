//! Random steps compared with a plain list of the owner of each cluster.

use super::super::slot;
use super::sample::{Sample, Shape};
use super::*;
use crate::alloc;

/// The owner of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Own,
    Free,
    Taken,
    Recorded,
    Pending,
}

struct Model {
    sample: Sample,
    /// By cluster, counted from the first data block.
    states: Vec<State>,
    taken: Vec<Taken>,
    preallocations: [Preallocation; 3],
    delayed: u64,
    random: u64,
}

impl Model {
    fn new(shape: Shape, seed: u64) -> Self {
        let sample = Sample::new(shape);
        let geometry = &sample.fs.geometry;
        let blocks = geometry.blocks_count - geometry.first_data_block.0;
        let clusters = blocks / u64::from(geometry.cluster_blocks);
        let states = (0..clusters)
            .map(|cluster| {
                let start = geometry.first_data_block.0 + cluster * u64::from(shape.cluster_blocks);
                let blocks = start..start + u64::from(shape.cluster_blocks);
                match sample.space.fixed.within(blocks).next() {
                    Some(_) => State::Own,
                    None => State::Free,
                }
            })
            .collect();
        Self {
            sample,
            states,
            taken: Vec::new(),
            preallocations: Default::default(),
            delayed: 0,
            random: seed,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.random >> 33).unwrap() % bound
    }

    fn ratio(&self) -> u64 {
        u64::from(self.sample.fs.geometry.cluster_blocks)
    }

    fn count(&self, state: State) -> u64 {
        self.states.iter().filter(|found| **found == state).count() as u64
    }

    /// Returns the number of clusters that are not reserved.
    fn available(&self) -> u64 {
        self.count(State::Free) + self.count(State::Pending) - self.delayed
    }

    fn clusters(&self, blocks: &Range<BlockNr>) -> Range<usize> {
        let first = self.sample.fs.geometry.first_data_block.0;
        let start = (blocks.start.0 - first) / self.ratio();
        let end = (blocks.end.0 - first).div_ceil(self.ratio());
        usize::try_from(start).unwrap()..usize::try_from(end).unwrap()
    }

    fn change(&mut self, blocks: &Range<BlockNr>, from: State, to: State) {
        let clusters = self.clusters(blocks);
        for state in &mut self.states[clusters] {
            assert_eq!(std::mem::replace(state, to), from);
        }
    }

    fn floor(&self, from: Reserve) -> u64 {
        let floors = floors(&self.sample.fs);
        match from {
            Reserve::Ordinary => floors.reserved + floors.split,
            Reserve::Privileged => floors.split,
            Reserve::Split | Reserve::Delayed => 0,
        }
    }

    fn take(&mut self) {
        let kinds = [
            Reserve::Ordinary,
            Reserve::Privileged,
            Reserve::Split,
            Reserve::Delayed,
        ];
        let from = kinds[self.below(4)];
        let goal = BlockNr(self.below(8000) as u64);
        let want = u32::try_from(1 << self.below(8)).unwrap();
        let had = match from {
            Reserve::Delayed => self.delayed,
            Reserve::Ordinary | Reserve::Privileged | Reserve::Split => {
                self.available().saturating_sub(self.floor(from))
            }
        };
        let preallocation = self.below(5);
        let (space, fs) = (&self.sample.space, &self.sample.fs);
        let had_pending = space.has_pending();
        let result = match self.preallocations.get_mut(preallocation) {
            Some(preallocation) => {
                let goal = preallocation.goal().unwrap_or(goal);
                alloc::take_growing(space, fs, preallocation, goal, want, from)
            }
            None => alloc::take(space, fs, goal, want, from),
        };
        if had_pending && !space.has_pending() {
            self.committed();
        }
        let Ok(taken) = result else {
            assert_eq!(had, 0, "{from:?} was refused");
            return;
        };
        assert!(taken.count() <= want);
        assert!(had > 0, "{from:?} was not refused");
        let blocks = taken.blocks();
        self.change(&blocks, State::Free, State::Taken);
        if from == Reserve::Delayed {
            self.delayed -= self.clusters(&blocks).len() as u64;
        }
        self.taken.push(taken);
    }

    fn record(&mut self) {
        let Some(last) = self.taken.len().checked_sub(1) else {
            return;
        };
        let index = self.below(last + 1);
        let taken = self.taken.swap_remove(index);
        let blocks = taken.blocks();
        let mut handle = self.sample.fs.begin(RECORD_CREDITS).unwrap();
        let (space, fs) = (&self.sample.space, &self.sample.fs);
        alloc::record(space, fs, &mut handle, taken).unwrap();
        drop(handle);
        self.change(&blocks, State::Taken, State::Recorded);
    }

    fn give_back(&mut self) {
        let Some(taken) = self.taken.pop() else {
            return;
        };
        let blocks = taken.blocks();
        if taken.from == Reserve::Delayed {
            self.delayed += self.clusters(&blocks).len() as u64;
        }
        alloc::give_back(&self.sample.space, taken);
        self.change(&blocks, State::Taken, State::Free);
    }

    fn free(&mut self) {
        let start = self.below(self.states.len());
        let recorded = |state: &State| *state == State::Recorded;
        let Some(first) = self.states[start..].iter().position(recorded) else {
            return;
        };
        let first = start + first;
        let run = self.states[first..]
            .iter()
            .take_while(|&state| recorded(state))
            .count();
        let count = 1 + self.below(run);
        let base = self.sample.fs.geometry.first_data_block.0;
        let block = |cluster: usize| BlockNr(base + cluster as u64 * self.ratio());
        let blocks = block(first)..block(first + count);
        // A part of the last cluster stands for all of it.
        let named = blocks.start..BlockNr(blocks.end.0 - self.ratio() + 1);
        let (space, fs) = (&self.sample.space, &self.sample.fs);
        let mut handle = fs
            .begin(space.free_credits(count as u64 * self.ratio()))
            .unwrap();
        alloc::free_blocks(space, fs, &mut handle, named.clone()).unwrap();
        assert!(alloc::free_blocks(space, fs, &mut handle, named).is_err());
        drop(handle);
        self.change(&blocks, State::Recorded, State::Pending);
    }

    fn reserve(&mut self) {
        let count = self.below(200) as u64;
        let privileged = self.below(2) == 0;
        let from = if privileged {
            Reserve::Privileged
        } else {
            Reserve::Ordinary
        };
        let had = self.available().saturating_sub(self.floor(from));
        match self.sample.space.reserve_delayed(count, from) {
            Ok(()) => {
                assert!(count <= had || count == 0);
                self.delayed += count;
            }
            Err(_) => assert!(count > had),
        }
    }

    fn withdraw(&mut self) {
        let bound = usize::try_from(self.delayed + 1).unwrap();
        let count = self.below(bound) as u64;
        self.sample.space.release_delayed(count);
        self.delayed -= count;
    }

    fn commit(&mut self) {
        self.sample.commit();
        self.committed();
        let base = self.sample.fs.geometry.first_data_block.0;
        let recorded: Vec<u64> = (0..)
            .zip(&self.states)
            .filter(|(_, state)| matches!(state, State::Recorded))
            .map(|(cluster, _): (u64, _)| base + cluster * self.ratio())
            .collect();
        assert_eq!(self.sample.validated(), recorded);
    }

    fn committed(&mut self) {
        for state in &mut self.states {
            if *state == State::Pending {
                *state = State::Free;
            }
        }
    }

    fn step(&mut self) {
        match self.below(40) {
            0..14 => self.take(),
            14..24 => self.record(),
            24..27 => self.give_back(),
            27..33 => self.free(),
            33..35 => self.reserve(),
            35..37 => self.withdraw(),
            37 => {
                let preallocation = self.below(3);
                alloc::close_preallocation(
                    &self.sample.space,
                    &mut self.preallocations[preallocation],
                );
            }
            38 => self.commit(),
            _ => {
                // Drops all bitmaps except those with pending changes.
                slot::drop_idle_groups(&self.sample.space);
            }
        }
        let counts = self.sample.space.stat();
        assert_eq!(counts.free_blocks, self.available() * self.ratio());
        let floor = self.floor(Reserve::Ordinary);
        let available = self.available().saturating_sub(floor) * self.ratio();
        assert_eq!(counts.available_blocks, available);
    }
}

#[test]
fn allocator_agrees_with_a_plain_list() {
    for (seed, shape) in (1..).zip(Shape::ALL) {
        let mut model = Model::new(shape, seed);
        for step in 0..2500 {
            if step % 500 == 499 {
                model.commit();
            }
            model.step();
        }
        while let Some(taken) = model.taken.pop() {
            alloc::give_back(&model.sample.space, taken);
        }
    }
}
