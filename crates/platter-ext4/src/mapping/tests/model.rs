//! Random changes of mappings compared with a model: the physical block of each file block. After
//! each change a walk of the mapping agrees with it, and its blocks are the allocated ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use platter_block::MemoryDevice;
use platter_block::lock::{Mutex, rank};
use platter_cache::MemoryBudget;
use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use zerocopy::FromBytes;

use super::*;
use crate::alloc::SpaceRule;
use crate::mapping::{BlockSource, MapChange, Progress};
use crate::ondisk::Superblock;
use crate::ondisk::superblock::tests::sample as sample_superblock;
use crate::txn::{Handle, Log};

/// Blocks below are for the mapping, the others, which the device does not have, for data.
const DATA_START: u64 = 32768;
const BLOCKS_COUNT: u64 = 1 << 20;
const FILE_BLOCKS: u64 = 400;

/// Reproducible pseudo-random numbers (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The clusters in use, by number.
#[derive(Debug)]
struct TestAllocator {
    ratio: u64,
    used: Mutex<BTreeSet<u64>, { rank(12, 0) }>,
    /// Clusters of the mapping itself.
    nodes: Mutex<BTreeSet<u64>>,
}

impl BlockSource for TestAllocator {
    fn alloc(&self, _: &FsContext, _: &mut Handle<'_>, _: BlockNr) -> Result<BlockNr> {
        let mut used = self.used.lock();
        let all = 16..DATA_START / self.ratio;
        let last = used.range(all.clone()).next_back();
        let next = last.map_or(all.start, |last| last + 1);
        let mut free = (next..all.end).chain(all.clone());
        let free = free.find(|cluster| !used.contains(cluster));
        let cluster = free.ok_or(Condition::NoSpace)?;
        used.insert(cluster);
        self.nodes.lock().insert(cluster);
        Ok(BlockNr(cluster * self.ratio))
    }

    fn check_freeable(&self, _: &FsContext, _: &Range<BlockNr>) -> Result<()> {
        Ok(())
    }

    fn free(&self, _: &FsContext, _: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        assert!(blocks.start.0.is_multiple_of(self.ratio));
        assert!(blocks.end.0.is_multiple_of(self.ratio));
        for cluster in blocks.start.0 / self.ratio..blocks.end.0 / self.ratio {
            assert!(self.used.lock().remove(&cluster), "freed a free cluster");
            self.nodes.lock().remove(&cluster);
        }
        Ok(())
    }
}

struct Bench {
    fs: FsContext,
    space: TestAllocator,
    inode: Inode,
    map: BlockMap,
    /// File block to device block, and whether it is unwritten.
    model: BTreeMap<u64, (u64, bool)>,
    next_data: u64,
    random: Random,
    /// Handles cannot be extended.
    is_tight: bool,
}

impl Bench {
    fn new(seed: u64, block_bytes: u32, cluster_blocks: u32, flags: InodeFlags) -> Self {
        let mut geometry = sample_geometry();
        geometry.block_bytes = block_bytes;
        geometry.block_bits = block_bytes.ilog2();
        geometry.cluster_blocks = cluster_blocks;
        geometry.blocks_count = BLOCKS_COUNT;
        geometry.first_data_block = BlockNr(0);
        geometry.blocks_per_group = 64;
        geometry.groups_count = u32::try_from(BLOCKS_COUNT / 64).unwrap();
        let len = usize::try_from(DATA_START * u64::from(block_bytes)).unwrap();
        let device = Arc::new(MemoryDevice::new("memory", vec![0; len]));
        let superblock = Superblock::decode(&sample_superblock()).unwrap();
        let budget = Arc::new(MemoryBudget::new(32 << 20));
        let fs =
            FsContext::new(device, superblock, geometry, budget).writable(Log::without_journal);
        let mut inode = inode(flags, &[]);
        inode.sectors = 0;
        let map = BlockMap::begin(&fs, &mut inode);
        Self {
            fs,
            space: TestAllocator {
                ratio: u64::from(cluster_blocks),
                used: Mutex::default(),
                nodes: Mutex::default(),
            },
            inode,
            map,
            model: BTreeMap::new(),
            next_data: DATA_START,
            random: Random(seed),
            is_tight: false,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Runs one step in its own handle, with the minimum of credits.
    fn step<R>(&mut self, step: impl FnOnce(&mut BlockMap, &mut MapChange<'_, '_>) -> R) -> R {
        const ALL: u32 = 8192;
        let credits = self.map.step_credits();
        let log = self.fs.log().unwrap();
        let _other = self.is_tight.then(|| {
            log.commit_all().unwrap();
            log.begin_unheld(ALL - credits).unwrap()
        });
        let mut handle = log.begin(credits).unwrap();
        let mut change = MapChange {
            fs: &self.fs,
            space: &self.space,
            handle: &mut handle,
            inode: &mut self.inode,
        };
        step(&mut self.map, &mut change)
    }

    /// Returns the hole from `block` on, of at most `count` blocks.
    fn hole(&self, block: u64, count: u64) -> u64 {
        let next = self.model.range(block..).next();
        next.map_or(count, |(&next, _)| count.min(next - block))
    }

    /// Allocates data blocks for a hole; a cluster of the file is reused.
    fn take(&mut self, block: u64, count: u64) -> (u64, u64) {
        let ratio = self.space.ratio;
        let cluster = block / ratio * ratio;
        let neighbour = self.model.range(cluster..cluster + ratio).next();
        if let Some((&other, &(place, _))) = neighbour {
            let end = (cluster + ratio).min(block + count);
            return (place + block - other, end - block);
        }
        // Up to the next allocated cluster.
        let mut end = block + count;
        let last = (end - 1) / ratio * ratio;
        if last > cluster && self.model.range(last..last + ratio).next().is_some() {
            end = last;
        }
        if self.random.below(3) > 0 {
            self.next_data += ratio * (1 + self.random.below(3));
        }
        let start = self.next_data + block % ratio;
        self.next_data = (start + end - block).next_multiple_of(ratio);
        if self.next_data > BLOCKS_COUNT - 1000 {
            self.next_data = DATA_START;
        }
        let mut used = self.space.used.lock();
        for cluster in start / ratio..(start + end - block).div_ceil(ratio) {
            assert!(used.insert(cluster), "data blocks ran out");
            self.inode.sectors += ratio * u64::from(self.fs.geometry.block_bytes >> 9);
        }
        (start, end - block)
    }

    fn insert(&mut self, block: u64, count: u64, unwritten: bool) {
        let mut at = block;
        let end = block + self.hole(block, count);
        while at < end {
            let (start, count) = self.take(at, end - at);
            let mut done = 0;
            while done < count {
                let place = BlockNr(start + done);
                let first = file_block(at + done);
                let rest = u32::try_from(count - done).unwrap();
                let backing = if unwritten {
                    Backing::Unwritten(place)
                } else {
                    Backing::Written(place)
                };
                let part = run(first.0, rest, backing);
                let inserted = self.step(|map, change| map.insert(change, part));
                let inserted = match inserted {
                    Ok(inserted) => u64::from(inserted),
                    Err(Error::Condition(Condition::NoSpace)) => {
                        return self.give_back(at + done, start + done, count - done);
                    }
                    Err(error) => panic!("{error}"),
                };
                for nth in done..done + inserted {
                    self.model.insert(at + nth, (start + nth, unwritten));
                }
                done += inserted;
            }
            at += count;
        }
    }

    /// Frees the blocks that could not be mapped.
    fn give_back(&mut self, block: u64, start: u64, count: u64) {
        let ratio = self.space.ratio;
        for nth in 0..count {
            let cluster = (block + nth) / ratio * ratio;
            let is_mapped = self.model.range(cluster..cluster + ratio).next().is_some();
            if !is_mapped && self.space.used.lock().remove(&((start + nth) / ratio)) {
                self.inode.sectors -= ratio * u64::from(self.fs.geometry.block_bytes >> 9);
            }
        }
    }

    fn convert(&mut self, range: Range<u64>, unwritten: bool) {
        let mut at = range.start;
        loop {
            let blocks = file_block(at)..file_block(range.end);
            match self.step(|map, change| map.convert(change, blocks, unwritten)) {
                Ok(Progress::Done) => break,
                Ok(Progress::More(next)) => at = u64::from(next.0),
                Err(Error::Condition(Condition::NoSpace)) => return self.reload(),
                Err(error) => panic!("{error}"),
            }
        }
        for (_, state) in self.model.range_mut(range) {
            state.1 = unwritten;
        }
    }

    fn remove(&mut self, range: Range<u64>) -> bool {
        let mut end = range.end;
        loop {
            let blocks = file_block(range.start)..file_block(end);
            match self.step(|map, change| map.remove(change, blocks)) {
                Ok(Progress::Done) => break,
                Ok(Progress::More(next)) => {
                    assert!(u64::from(next.0) < end, "each step comes further");
                    end = u64::from(next.0);
                }
                Err(Error::Condition(Condition::NoSpace)) => {
                    self.reload();
                    return false;
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.model.retain(|block, _| !range.contains(block));
        true
    }

    fn collapse(&mut self, range: Range<u64>) {
        if !self.remove(range.clone()) {
            return;
        }
        let count = range.end - range.start;
        let mut at = file_block(range.end);
        let shift = u32::try_from(count).unwrap();
        while let Progress::More(next) = self
            .step(|map, change| map.shift_down(change, at, shift))
            .unwrap()
        {
            at = next;
        }
        let moved = self.model.split_off(&range.end);
        let moved = moved
            .into_iter()
            .map(|(block, state)| (block - count, state));
        self.model.extend(moved);
    }

    fn make_space(&mut self, block: u64, count: u64) {
        let mut end = FileBlock::MAX;
        let shift = u32::try_from(count).unwrap();
        let is_parted = block.is_multiple_of(2);
        if is_parted {
            match self.step(|map, change| map.part(change, file_block(block))) {
                Ok(()) => {}
                Err(Error::Condition(Condition::NoSpace)) => return,
                Err(error) => panic!("{error}"),
            }
        }
        loop {
            let range = file_block(block)..end;
            let before = self.walk().0;
            match self.step(|map, change| map.shift_up(change, range, shift)) {
                Ok(Progress::Done) => break,
                Ok(Progress::More(next)) => end = next,
                Err(Error::Condition(Condition::NoSpace)) => {
                    assert!(!is_parted, "what begins there moves without space");
                    assert_eq!(self.walk().0, before, "it may be tried again");
                    return self.reload();
                }
                Err(error) => panic!("{error}"),
            }
        }
        let moved = self.model.split_off(&block);
        let moved = moved
            .into_iter()
            .map(|(block, state)| (block + count, state));
        self.model.extend(moved);
    }

    /// Clears the numbers of all data blocks in indirect blocks, and leaves those blocks, as Linux may
    /// when it punches holes.
    fn clear_indirect(&mut self) {
        let nodes = self.space.nodes.lock().clone();
        let credits = u32::try_from(nodes.len()).unwrap();
        let mut handle = self.fs.log().unwrap().begin(credits).unwrap();
        for node in nodes {
            let cleared = handle.edit(BlockNr(node), &Unverified, |bytes| {
                for number in <[Le32]>::mut_from_bytes(bytes).unwrap() {
                    if u64::from(number.get()) >= DATA_START {
                        number.set(0);
                    }
                }
                Ok(())
            });
            cleared.unwrap();
        }
        for (place, _) in self.model.split_off(&12).into_values() {
            assert!(self.space.used.lock().remove(&place));
            self.inode.sectors -= u64::from(self.fs.geometry.block_bytes >> 9);
        }
        self.map = BlockMap::decode(&self.fs, &self.inode).unwrap();
    }

    /// Reloads the model from the mapping, after a change that failed half way for lack of space.
    fn reload(&mut self) {
        self.model = self.walk().0;
    }

    /// Returns all runs of the mapping, and its own blocks.
    fn walk(&self) -> (BTreeMap<u64, (u64, bool)>, BTreeSet<u64>) {
        let (mut blocks, mut nodes) = (BTreeMap::new(), BTreeSet::new());
        let map = BlockMap::decode(&self.fs, &self.inode).unwrap();
        let visited = map.visit(&self.fs, &mut |piece| {
            match piece {
                Piece::Node(_, block) => {
                    assert!(nodes.insert(block.0 / self.space.ratio));
                }
                Piece::Run(run) => {
                    let (start, unwritten) = match run.backing {
                        Backing::Written(start) => (start.0, false),
                        Backing::Unwritten(start) => (start.0, true),
                        Backing::Hole => unreachable!(),
                    };
                    for nth in 0..u64::from(run.count) {
                        let state = (start + nth, unwritten);
                        let old = blocks.insert(u64::from(run.first.0) + nth, state);
                        assert_eq!(old, None);
                    }
                }
            }
            ControlFlow::Continue(())
        });
        visited.unwrap();
        (blocks, nodes)
    }

    fn check(&self) {
        let (blocks, nodes) = self.walk();
        assert_eq!(blocks, self.model);
        assert_eq!(nodes, *self.space.nodes.lock());
        let ratio = self.space.ratio;
        let data = blocks.values().map(|(block, _)| block / ratio);
        let used: BTreeSet<u64> = data.chain(nodes).collect();
        assert_eq!(used, *self.space.used.lock());
        let sectors = ratio * u64::from(self.fs.geometry.block_bytes >> 9);
        assert_eq!(self.inode.sectors, used.len() as u64 * sectors);
        for &block in self.model.keys().take(50) {
            let run = self.map.lookup(&self.fs, file_block(block)).unwrap();
            let (place, unwritten) = self.model[&block];
            let expected = if unwritten {
                Backing::Unwritten(BlockNr(place))
            } else {
                Backing::Written(BlockNr(place))
            };
            assert_eq!(run.backing, expected);
        }
    }

    fn random_change(&mut self) {
        let ratio = self.space.ratio;
        let is_indirect = !self.inode.flags.contains(InodeFlags::EXTENTS);
        self.is_tight = self.below(4) == 0;
        let block = self.below(FILE_BLOCKS);
        let count_max = if self.below(8) == 0 { 200 } else { 6 };
        let count = 1 + self.below(count_max);
        let range = block..block + count;
        match self.below(if is_indirect { 16 } else { 20 }) {
            0..12 => {
                let unwritten = !is_indirect && self.below(3) == 0;
                self.insert(block, count, unwritten);
            }
            12..16 => {
                self.remove(range);
            }
            16..18 => {
                let unwritten = self.below(2) == 0;
                self.convert(range, unwritten);
            }
            18 => self.collapse(block / ratio * ratio..(block + count).next_multiple_of(ratio)),
            _ => self.make_space(block / ratio * ratio, count.next_multiple_of(ratio)),
        }
    }

    fn run(&mut self, changes: usize) {
        for _ in 0..changes {
            self.random_change();
            self.check();
        }
        self.is_tight = false;
        assert!(self.remove(0..u64::from(u32::MAX)));
        self.check();
        assert_eq!(self.inode.sectors, 0);
        self.fs.log().unwrap().commit_all().unwrap();
    }
}

fn file_block(block: u64) -> FileBlock {
    FileBlock(u32::try_from(block).unwrap())
}

/// A block size with nine entries per node, five more than the root has: trees of all depths with few
/// extents.
const TINY_NODE: u32 = 128;

#[test]
fn extent_trees_follow_the_model_in_small_nodes() {
    for seed in 0..1500 {
        Bench::new(seed, TINY_NODE, 1, InodeFlags::EXTENTS).run(60);
    }
}

#[test]
fn extent_trees_follow_the_model() {
    for seed in 0..150 {
        Bench::new(seed, 1024, 1, InodeFlags::EXTENTS).run(200);
    }
}

#[test]
fn extent_trees_of_clusters_follow_the_model() {
    for seed in 0..400 {
        Bench::new(seed, TINY_NODE, 4, InodeFlags::EXTENTS).run(60);
        Bench::new(seed, 1024, 16, InodeFlags::EXTENTS).run(10);
    }
}

/// Indirect blocks of 16 numbers: the third tree begins at block 284.
#[test]
fn indirect_maps_follow_the_model() {
    for seed in 0..1000 {
        Bench::new(seed, 64, 1, InodeFlags::empty()).run(60);
    }
    for seed in 0..50 {
        Bench::new(seed, 1024, 1, InodeFlags::empty()).run(100);
    }
}

#[test]
fn indirect_blocks_that_are_empty_already_are_freed() {
    for is_tight in [false, true] {
        for start in [0, 13, 40, 300] {
            let mut bench = Bench::new(1, 512, 1, InodeFlags::empty());
            // Numbers of 128 blocks in each: of all three trees.
            for block in (0..30_000).step_by(97) {
                bench.insert(block, 2, false);
            }
            bench.clear_indirect();
            bench.check();
            bench.insert(150, 3, false);
            bench.is_tight = is_tight;
            assert!(bench.remove(start..20_000));
            bench.check();
            assert!(bench.remove(start..u64::from(u32::MAX)));
            bench.check();
            assert!(bench.remove(0..u64::from(u32::MAX)));
            bench.check();
            assert_eq!(bench.inode.sectors, 0);
        }
    }
}

#[test]
fn block_that_is_mapped_twice_is_not_freed() {
    for flags in [InodeFlags::EXTENTS, InodeFlags::empty()] {
        let mut bench = Bench::new(1, 1024, 1, flags);
        for block in [0, 5] {
            let part = run(block, 1, Backing::Written(BlockNr(DATA_START)));
            let inserted = bench.step(|map, change| map.insert(change, part));
            assert_eq!(inserted.unwrap(), 1);
        }
        let all = FileBlock(0)..FileBlock::MAX;
        let removed = bench.step(|map, change| map.remove(change, all));
        let expected = SpaceRule::BlockFreedTwice.text();
        assert_eq!(rule(removed.unwrap_err()), expected);
        assert!(bench.fs.log().unwrap().failure().is_none());
        assert_eq!(bench.walk().0.len(), 2);
    }
}

#[test]
fn full_tree_returns_enospc() {
    let mut bench = Bench::new(1, TINY_NODE, 1, InodeFlags::EXTENTS);
    let refused = (0..300_000).map(|nth| nth * 2).find(|&block| {
        bench.insert(block, 1, false);
        !bench.model.contains_key(&block)
    });
    // A tree that grows at its end has full nodes: the root, and five levels below.
    assert_eq!(refused, Some(2 * 4 * 9_u64.pow(5)));
    bench.check();
}

#[test]
fn shift_up_resumes_after_enospc() {
    let mut bench = Bench::new(1, TINY_NODE, 1, InodeFlags::EXTENTS);
    for nth in 0..30 {
        bench.insert(nth * 3, 2, false);
    }
    let nodes = bench.space.nodes.lock().clone();
    bench.space.used.lock().extend(16..DATA_START);
    // In the middle of an extent of the first leaf, which is full.
    let at = FileBlock(4);
    let parted = bench.step(|map, change| map.part(change, at));
    assert!(matches!(parted, Err(Error::Condition(Condition::NoSpace))));
    assert_eq!(bench.walk().0, bench.model);
    let mut end = FileBlock::MAX;
    let refused = loop {
        match bench.step(|map, change| map.shift_up(change, at..end, 1)) {
            Ok(Progress::Done) => panic!("it took a node"),
            Ok(Progress::More(next)) => end = next,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Condition(Condition::NoSpace)));
    assert!(end < FileBlock(30 * 3), "some had moved");
    let is_free = |cluster: &u64| *cluster < DATA_START && !nodes.contains(cluster);
    bench.space.used.lock().retain(|cluster| !is_free(cluster));
    let moved = bench.step(|map, change| map.shift_up(change, at..end, 1));
    assert_eq!(moved.unwrap(), Progress::Done);
    let above = bench.model.split_off(&u64::from(at.0));
    let above = above.into_iter().map(|(block, state)| (block + 1, state));
    bench.model.extend(above);
    bench.check();
}

#[test]
fn extents_grow_to_their_limit_and_are_split_there() {
    let mut bench = Bench::new(1, 1024, 1, InodeFlags::EXTENTS);
    let mut map = |first: u32, count: u32| {
        let part = run(
            first,
            count,
            Backing::Written(BlockNr(10_000 + u64::from(first))),
        );
        assert_eq!(
            bench.step(|map, change| map.insert(change, part)).unwrap(),
            count
        );
    };
    map(0, 32767);
    map(32768, 32767);
    map(32767, 1);
    let whole = |bench: &Bench, block| bench.map.lookup(&bench.fs, FileBlock(block)).unwrap();
    // Adjacent to the one before; both together exceed the limit.
    assert_eq!(whole(&bench, 0).count, 32768);
    assert_eq!(whole(&bench, 32768).count, 32767);
    let all = FileBlock(0)..FileBlock(65535);
    let step = bench.step(|map, change| map.convert(change, all, true));
    assert_eq!(step.unwrap(), Progress::Done);
    assert_eq!(whole(&bench, 0).count, 32767);
    assert_eq!(whole(&bench, 32767).count, 1);
    assert!(matches!(
        whole(&bench, 32767).backing,
        Backing::Unwritten(_)
    ));
    let longest = run(70_000, 40_000, Backing::Unwritten(BlockNr(100_000)));
    let inserted = bench.step(|map, change| map.insert(change, longest));
    assert_eq!(inserted.unwrap(), 32767);
}
