//! Files on small filesystems in memory, compared with a model of their bytes.

mod crash;
mod races;

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::sim::{Effect, Fault, FaultDevice, When};
use platter_block::{BlockDevice, CountingDevice, MemoryDevice, Operation};
use platter_cache::MemoryBudget;
use platter_cache::page::PAGE_BYTES;
use platter_vfs::file::FileBlocks as _;
use platter_vfs::{Condition, Error, FallocateMode, FileKind, FixedClock, Inode as _, Timestamp};

use super::super::{Ext4Inode, OnError, SuperBlock};
use crate::alloc::Reserve;
use crate::alloc::tests::sample::{Sample, Shape};
use crate::mapping::{BlockMap, Piece};
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::{Inode, InodeFlags, InodeNr};
use crate::ops::{self, data};
use crate::orphan::{OrphanRegister, Orphans};
use crate::{alloc, inode};

/// Bytes that random changes stay within.
const BYTES_MAX: u64 = 300_000;
/// Writes of this length go past the cache.
const LONG_BYTES: u64 = 128 << 10;

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

struct File {
    sb: Arc<SuperBlock>,
    device: Arc<MemoryDevice>,
    node: Arc<Ext4Inode>,
    model: Vec<u8>,
    writes_through: bool,
    random: Random,
}

pub(in crate::ops) fn mount(device: &Arc<MemoryDevice>) -> Arc<SuperBlock> {
    mount_sample(Sample::without_client(Arc::clone(device)))
}

fn mount_sample(sample: Sample) -> Arc<SuperBlock> {
    let register = OrphanRegister::open(&sample.fs).unwrap();
    let sb = sb_of(sample);
    sb.note_orphans_in(register);
    sb
}

fn sb_of(sample: Sample) -> Arc<SuperBlock> {
    let budget = Arc::new(MemoryBudget::new(4 << 20));
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
    let orphans = Orphans::default();
    let space = Some(sample.space);
    let on_error = OnError::Continue;
    SuperBlock::new(sample.fs, space, None, orphans, budget, clock, on_error)
}

impl File {
    fn new(seed: u64, shape: Shape) -> Self {
        let sample = Sample::new(shape);
        let device = Arc::clone(&sample.device);
        let geometry = &sample.fs.geometry;
        let root = Inode::new(InodeNr::ROOT, FileKind::Directory, 7, 32, geometry);
        let number = {
            let fs = &sample.fs;
            let mut handle = fs.begin(20).unwrap();
            let kind = FileKind::Regular;
            let space = &sample.space;
            let number = alloc::alloc_inode(space, fs, &mut handle, &root, kind, 0).unwrap();
            let mut inode = Inode::new(number, kind, 7, 32, geometry);
            inode.links = 1;
            let has_extents = shape.incompat.contains(Incompat::EXTENTS);
            inode.flags.set(InodeFlags::EXTENTS, has_extents);
            let _ = BlockMap::begin(fs, &mut inode);
            inode::initialize(fs, &mut handle, &inode).unwrap();
            number
        };
        sample.commit();
        let sb = mount(&device);
        let node = sb.find(number).unwrap().unwrap();
        Self {
            sb,
            device,
            node,
            model: Vec::new(),
            writes_through: false,
            random: Random(seed),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn write(&mut self, offset: u64, len: u64) {
        let byte = u8::try_from(1 + self.below(255)).unwrap();
        let data = vec![byte; usize::try_from(len).unwrap()];
        if self.writes_through {
            self.node.write_through(offset, &data).unwrap();
        } else {
            self.node.write_at(offset, &data).unwrap();
        }
        let end = usize::try_from(offset + len).unwrap();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[usize::try_from(offset).unwrap()..end].fill(byte);
    }

    fn resize(&mut self, size: u64) {
        self.resize_unmodelled(size);
        self.model.resize(usize::try_from(size).unwrap(), 0);
    }

    fn resize_unmodelled(&self, size: u64) {
        let _order = self.node.order.write();
        data::resize(&self.node, size).unwrap();
    }

    fn fallocate(&mut self, start: u64, len: u64, mode: FallocateMode) {
        let has_extents = {
            let state = self.node.state.read();
            state.inode.flags.contains(InodeFlags::EXTENTS)
        };
        let unit = u64::from(self.sb.fs.geometry.cluster_blocks) * 1024;
        let size = self.model.len() as u64;
        let moves = [FallocateMode::CollapseRange, FallocateMode::InsertRange].contains(&mode);
        let (start, len) = if moves {
            (start / unit * unit, len.next_multiple_of(unit))
        } else {
            (start, len)
        };
        let end = start + len;
        let result = self.node.fallocate(start..end, mode);
        let refused = |condition| matches!(&result, Err(Error::Condition(c)) if *c == condition);
        let shares = matches!(mode, FallocateMode::UnshareRange { .. });
        if shares || !has_extents && mode != FallocateMode::PunchHole {
            assert!(refused(Condition::NotSupported));
            return;
        }
        let at = |byte: u64| usize::try_from(byte).unwrap();
        let is_outside = match mode {
            FallocateMode::CollapseRange => end >= size,
            FallocateMode::InsertRange => start >= size,
            FallocateMode::Allocate { .. }
            | FallocateMode::PunchHole
            | FallocateMode::ZeroRange { .. }
            | FallocateMode::UnshareRange { .. } => false,
        };
        if is_outside {
            assert!(refused(Condition::InvalidArgument));
            return;
        }
        result.unwrap();
        let inside = at(start.min(size))..at(end.min(size));
        match mode {
            FallocateMode::Allocate { keep_size } | FallocateMode::UnshareRange { keep_size } => {
                if !keep_size && end > size {
                    self.model.resize(at(end), 0);
                }
            }
            FallocateMode::ZeroRange { keep_size } => {
                self.model[inside].fill(0);
                if !keep_size && end > size {
                    self.model.resize(at(end), 0);
                }
            }
            FallocateMode::PunchHole => self.model[inside].fill(0),
            FallocateMode::CollapseRange => drop(self.model.drain(inside)),
            FallocateMode::InsertRange => {
                let zeros = vec![0; at(len)];
                drop(self.model.splice(at(start)..at(start), zeros));
            }
        }
    }

    fn random_change(&mut self) {
        let start = self.below(BYTES_MAX);
        let len_max = if self.below(5) == 0 { 60_000 } else { 3000 };
        let len = 1 + self.below(len_max);
        let size = self.model.len() as u64;
        self.writes_through = self.below(4) == 0;
        match self.below(26) {
            0..4 => self.write(start, len),
            4..8 => {
                let page = PAGE_BYTES as u64;
                self.write(start / page * page, len.next_multiple_of(page));
            }
            24..26 => {
                let page = self.below(40);
                self.write(page * PAGE_BYTES as u64, LONG_BYTES + len);
            }
            8..10 => self.write(size.min(BYTES_MAX), len),
            10..12 => self.resize(start),
            12 => self.resize(size / 2),
            13 => self.fallocate(start, len, FallocateMode::PunchHole),
            14 => self.fallocate(start, len, FallocateMode::Allocate { keep_size: true }),
            15 => self.fallocate(start, len, FallocateMode::Allocate { keep_size: false }),
            16 => self.fallocate(start, len, FallocateMode::ZeroRange { keep_size: true }),
            17 => self.fallocate(start, len, FallocateMode::ZeroRange { keep_size: false }),
            18 => self.fallocate(start, len, FallocateMode::CollapseRange),
            19 if size < 2 * BYTES_MAX => self.fallocate(start, len, FallocateMode::InsertRange),
            20 => self.node.sync(false).unwrap(),
            21 => {
                data::write_back(&self.node).unwrap();
                self.node.pages.remove_range(0..u64::MAX);
            }
            22 => self.remount(),
            _ => self.check_bytes(),
        }
    }

    fn check_bytes(&self) {
        assert_eq!(
            self.node.attr().unwrap().size_bytes,
            self.model.len() as u64
        );
        let mut bytes = vec![0; self.model.len() + 10];
        let count = self.node.read_at(0, &mut bytes).unwrap();
        assert_eq!(count, self.model.len());
        let differs = (0..count).find(|&at| bytes[at] != self.model[at]);
        assert_eq!(differs, None, "the bytes there differ");
    }

    /// Syncs, and opens the filesystem anew, with all that is on the device validated.
    fn remount(&mut self) {
        self.node.sync(false).unwrap();
        let number = self.node.number;
        let free = self.sb.space().unwrap().stat();
        self.sb.fs.log().unwrap().commit_all().unwrap();
        let sample = Sample::on(Arc::clone(&self.device));
        let taken = sample.validated();
        assert_eq!(free, sample.space.stat());
        self.sb = mount(&self.device);
        self.node = self.sb.find(number).unwrap().unwrap();
        assert_eq!(self.blocks(), taken);
        self.check_bytes();
    }

    /// Opens the filesystem anew, through a device that can fail.
    fn through_faults(&mut self) -> Arc<FaultDevice> {
        self.through(FaultDevice::new)
    }

    /// Opens the filesystem anew, through another device.
    fn through<D: BlockDevice + 'static>(
        &mut self,
        make: impl FnOnce(Arc<dyn BlockDevice>) -> D,
    ) -> Arc<D> {
        let device = Arc::new(make(Arc::<MemoryDevice>::clone(&self.device)));
        let above: Arc<dyn BlockDevice> = Arc::<D>::clone(&device);
        let number = self.node.number;
        self.sb = mount_sample(Sample::through(Arc::clone(&self.device), above));
        self.node = self.sb.find(number).unwrap().unwrap();
        device
    }

    /// The first block of each cluster of the file and its map, ascending.
    fn blocks(&self) -> Vec<u64> {
        let state = self.node.state.read();
        let fs = &self.sb.fs;
        let ratio = u64::from(fs.geometry.cluster_blocks);
        let mut clusters = std::collections::BTreeSet::new();
        let visited = state.map.visit(fs, &mut |piece| {
            match piece {
                Piece::Node(_, block) => {
                    assert!(clusters.insert(block.0 / ratio));
                }
                Piece::Run(run) => {
                    let start = match run.backing {
                        crate::mapping::Backing::Written(start)
                        | crate::mapping::Backing::Unwritten(start) => start.0,
                        crate::mapping::Backing::Hole => return std::ops::ControlFlow::Continue(()),
                    };
                    for block in start..start + u64::from(run.count) {
                        clusters.insert(block / ratio);
                    }
                }
            }
            std::ops::ControlFlow::Continue(())
        });
        visited.unwrap();
        assert_eq!(state.inode.sectors, clusters.len() as u64 * ratio * 2);
        clusters
            .into_iter()
            .map(|cluster| cluster * ratio)
            .collect()
    }

    fn run(mut self, changes: usize) {
        for _ in 0..changes {
            self.random_change();
        }
        self.remount();
        self.resize(0);
        self.remount();
        assert_eq!(self.blocks(), Vec::<u64>::new());
    }
}

const EXTENTS: Shape = Shape {
    blocks: 8 * 1024 - 100,
    blocks_per_group: 1024,
    incompat: Incompat::FILETYPE.union(Incompat::EXTENTS),
    ..Shape::PLAIN
};

#[test]
fn enospc_retry_after_concurrent_commit() {
    let mut file = File::new(1, EXTENTS);
    file.write(0, 3000);
    file.node.sync(false).unwrap();
    let mut attempts = 0;
    let found = file.node.retry_after_enospc(|| {
        attempts += 1;
        if attempts > 1 {
            return Ok(());
        }
        file.resize_unmodelled(0);
        file.sb.fs.log().unwrap().commit_all().unwrap();
        Err(Condition::NoSpace.into())
    });
    assert!(found.is_ok());
    let mut attempts = 0;
    let found: Result<(), Error> = file.node.retry_after_enospc(|| {
        attempts += 1;
        Err(Condition::NoSpace.into())
    });
    assert!(found.is_err());
    assert_eq!(attempts, 1, "nothing came back");
}

#[test]
fn files_of_extents_have_the_bytes_that_were_written() {
    for seed in 0..100 {
        File::new(seed, EXTENTS).run(60);
    }
}

const CLUSTERS: Shape = Shape {
    cluster_blocks: 16,
    ..EXTENTS
};

const INDIRECT: Shape = Shape {
    incompat: Incompat::FILETYPE,
    ..EXTENTS
};

#[test]
fn files_of_clusters_have_the_bytes_that_were_written() {
    for seed in 0..100 {
        File::new(seed, CLUSTERS).run(60);
    }
}

#[test]
fn files_of_indirect_blocks_have_the_bytes_that_were_written() {
    for seed in 0..100 {
        File::new(seed, INDIRECT).run(60);
    }
}

#[test]
fn what_is_written_through_is_on_the_device() {
    let page = PAGE_BYTES as u64;
    let mut file = File::new(7, EXTENTS);
    file.node.write_at(0, &[1; 3 * PAGE_BYTES]).unwrap();
    let is_on = |device: &MemoryDevice, data: &[u8]| {
        let bytes = device.snapshot();
        bytes.windows(data.len()).any(|part| part == data)
    };
    assert!(!is_on(&file.device, &[1; 50]));
    for (round, (offset, len)) in [
        (0, page),            // cached and dirty
        (page + 7, 100),      // within a page that is cached
        (8 * page, 2 * page), // new, past the cache
        (8 * page, page),     // over that
        (12 * page + 1, 50),  // new, and no whole page
    ]
    .into_iter()
    .enumerate()
    {
        let byte = 0xf0 + u8::try_from(round).unwrap();
        let data = vec![byte; usize::try_from(len).unwrap()];
        file.node.write_through(offset, &data).unwrap();
        // A block need not be next to the following one.
        assert!(
            is_on(&file.device, &data[..data.len().min(512)]),
            "round {round}"
        );
    }
    file.model = vec![0; 12 * PAGE_BYTES + 51];
    file.node.read_at(0, &mut file.model).unwrap();
    file.remount();
    file.check_bytes();
}

fn is_no_space(result: &platter_vfs::Result<()>) -> bool {
    matches!(result, Err(Error::Condition(Condition::NoSpace)))
}

/// A write gets the space that was reserved for it: nothing fails with ENOSPC later.
#[test]
fn writes_fail_for_want_of_space_at_once_or_never() {
    let shapes = [EXTENTS, CLUSTERS, INDIRECT];
    for (seed, shape) in (0..30).zip(shapes.into_iter().cycle()) {
        let mut file = File::new(seed, shape);
        let mut refused = 0;
        while refused < 20 {
            // Far apart, so that the map needs many blocks of its own.
            let range = if seed < 15 { 40 << 20 } else { 1 << 33 };
            let offset = file.below(range) & !0x3ff;
            let len = 1 + file.below(20_000);
            let data = vec![7; usize::try_from(len).unwrap()];
            let written = file.node.write_at(offset, &data);
            if is_no_space(&written) {
                refused += 1;
            } else {
                written.unwrap();
            }
            if file.below(50) == 0 {
                file.node.sync(true).unwrap();
            }
        }
        file.node.sync(false).unwrap();
        let free = file.sb.space().unwrap().stat();
        assert!(free.available_blocks * 1024 < 20_000 + 16 * 1024 * 20);
        let size = file.node.size_bytes();
        file.resize_unmodelled(size / 2);
        // What was freed can be had at once, though it is not durable that it is free.
        file.node.write_at(size, &vec![7; 100_000]).unwrap();
        file.node.sync(true).unwrap();
        file.resize_unmodelled(0);
        file.node.sync(false).unwrap();
        assert_eq!(file.blocks(), Vec::<u64>::new());
    }
}

#[test]
fn allocation_takes_all_or_nothing() {
    let file = File::new(1, EXTENTS);
    let all = FallocateMode::Allocate { keep_size: true };
    let free = file.sb.space().unwrap().stat().available_blocks;
    let result = file.node.fallocate(0..(free + 1) * 1024, all);
    assert!(is_no_space(&result));
    assert_eq!(file.sb.space().unwrap().stat().available_blocks, free);
    file.node.fallocate(0..free * 1024, all).unwrap();
    assert_eq!(file.node.size_bytes(), 0);
    assert_eq!(file.sb.space().unwrap().stat().available_blocks, 0);
}

/// Indirect blocks that were not reserved for a dirty block, as other blocks of the file needed them,
/// too, may be freed with those.
#[test]
fn reservation_holds_when_shared_indirect_blocks_are_freed() {
    for is_cut in [false, true] {
        let mut file = File::new(1, INDIRECT);
        let far = |leaf: u64| (12 + 256 + 256 * leaf) * 1024;
        file.write(far(7), 1000);
        file.remount();
        file.write(far(3), 1000);
        let exhaust = |file: &File| {
            let space = file.sb.space().unwrap();
            let left = space.stat().available_blocks;
            space.reserve_delayed(left, Reserve::Ordinary).unwrap();
            left
        };
        let mut reserved = exhaust(&file);
        if is_cut {
            file.resize(far(4));
        } else {
            file.fallocate(far(7), 1024, FallocateMode::PunchHole);
        }
        reserved += exhaust(&file);
        file.node.sync(false).unwrap();
        file.sb.space().unwrap().release_delayed(reserved);
        file.remount();
    }
}

#[test]
fn a_range_is_not_inserted_where_what_follows_has_no_space() {
    let shape = Shape {
        ro_compat: EXTENTS.ro_compat.union(RoCompat::HUGE_FILE),
        ..EXTENTS
    };
    let mut file = File::new(1, shape);
    file.write(0, 3000);
    let end = file.node.size_bytes_max();
    let keep = FallocateMode::Allocate { keep_size: true };
    file.node.fallocate(end - 2048..end - 1024, keep).unwrap();
    file.fallocate(1024, 1024, FallocateMode::InsertRange);
    let insert = file.node.fallocate(1024..2048, FallocateMode::InsertRange);
    assert!(matches!(
        insert,
        Err(Error::Condition(Condition::InvalidArgument))
    ));
    file.check_bytes();
    file.remount();
}

#[test]
fn a_range_is_inserted_as_a_whole_or_not_at_all() {
    let mut file = File::new(1, EXTENTS);
    // Extents of two blocks for some leaves, all but the last of them full.
    for nth in 0..300 {
        file.write(nth * 3072, 2048);
    }
    file.remount();
    let space = Arc::clone(file.sb.space().unwrap());
    let mut reserved = 0;
    while space.reserve_delayed(1, Reserve::Split).is_ok() {
        reserved += 1;
    }
    // It would part an extent.
    let insert = file.node.fallocate(4096..5120, FallocateMode::InsertRange);
    assert!(is_no_space(&insert));
    assert_eq!(file.node.size_bytes(), file.model.len() as u64);
    file.check_bytes();
    space.release_delayed(reserved);
    file.fallocate(4096, 1024, FallocateMode::InsertRange);
    file.remount();
}

impl File {
    /// A file of `len` bytes with extents after them, the last leaf of which cannot be read from
    /// when the fault is armed.
    fn with_leaves(len: u64) -> (Self, Arc<FaultDevice>, Fault) {
        let mut file = Self::new(1, EXTENTS);
        file.write(0, len);
        let keep_size = FallocateMode::Allocate { keep_size: true };
        for nth in 4..200 {
            file.fallocate(nth * 3072, 1024, keep_size);
        }
        file.remount();
        let mut last = None;
        let mut note = |piece| {
            if let Piece::Node(_, block) = piece {
                last = Some(block.0 * 1024..block.0 * 1024 + 1024);
            }
            ControlFlow::Continue(())
        };
        {
            let state = file.node.state.read();
            state.map.visit(&file.sb.fs, &mut note).unwrap();
        }
        let fault = Fault {
            operation: Operation::Read,
            when: When::Touching(last.unwrap()),
            effect: Effect::Tear { seed: 1 },
        };
        let faults = file.through_faults();
        file.check_bytes();
        (file, faults, fault)
    }

    fn cut(&self, size: u64) -> platter_vfs::Result<()> {
        let _order = self.node.order.write();
        data::resize(&self.node, size)
    }

    fn orphans(&self) -> Vec<InodeNr> {
        self.sb.register().unwrap().all()
    }
}

#[test]
fn file_is_truncated_even_if_its_blocks_cannot_be_freed() {
    // A size on disk, one in the cache, and one that lies between them or before both.
    let ends = [(100, 100..1000, 950), (3072, 8100..9000, 500)];
    // And one in the page where it was to end.
    let inside = [(3000, 0..10, 500), (9000, 5000..5100, 5500)];
    for (on_disk, cached, size) in ends.into_iter().chain(inside) {
        let (mut file, faults, fault) = File::with_leaves(on_disk);
        file.write(cached.start, cached.end - cached.start);
        faults.arm(fault);
        assert!(matches!(file.cut(size), Err(Error::Io(_))));
        assert_eq!(file.orphans(), [file.node.number]);
        file.model.truncate(usize::try_from(size).unwrap());
        // It cannot become longer, but what it has can change.
        assert!(matches!(file.cut(20_000), Err(Error::Io(_))));
        assert!(file.node.write_at(size + 1, b"x").is_err());
        file.write(10, 20);
        file.check_bytes();
        faults.disarm();
        // Nothing of what lay there comes back.
        if size < 1000 {
            file.resize(20_000);
        } else {
            file.write(20_000, 100);
        }
        assert_eq!(file.orphans(), []);
        file.check_bytes();
        file.remount();
    }
}

#[test]
fn what_could_not_be_freed_is_freed_by_a_mount_that_can() {
    let (mut file, faults, fault) = File::with_leaves(9000);
    faults.arm(fault.clone());
    assert!(file.cut(500).is_err());
    file.model.truncate(500);
    let number = file.node.number;
    for can_read in [false, true] {
        file.sb.fs.log().unwrap().commit_all().unwrap();
        let below: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&file.device);
        let device = Arc::new(FaultDevice::new(below));
        if !can_read {
            device.arm(fault.clone());
        }
        let sb = sb_of(Sample::through(Arc::clone(&file.device), device));
        ops::finish_orphans(&sb).unwrap();
        file.node = sb.find(number).unwrap().unwrap();
        file.sb = sb;
        file.check_bytes();
        assert_eq!(file.orphans().is_empty(), can_read);
        assert_eq!(file.cut(20_000).is_ok(), can_read);
    }
    file.model.resize(20_000, 0);
    file.remount();
}

#[test]
fn a_file_without_a_name_is_truncated_like_others() {
    let (mut file, faults, fault) = File::with_leaves(9000);
    faults.arm(fault);
    file.node.state.write().inode.links = 0;
    assert!(file.cut(500).is_err());
    file.model.truncate(500);
    faults.disarm();
    file.write(20_000, 100);
    file.check_bytes();
    assert_eq!(file.orphans(), [file.node.number]);
}

#[test]
fn a_size_that_no_map_has_space_for_cannot_become_another_such() {
    let file = File::new(1, EXTENTS);
    let size = 1 << 46;
    file.node.state.write().inode.size_bytes = size;
    file.node.data.file.set_size(size);
    let cut = file.cut(size / 2);
    assert!(matches!(
        cut,
        Err(Error::Condition(Condition::FileTooLarge))
    ));
    assert_eq!(file.node.size_bytes(), size);
}

#[test]
fn reserved_space_counts_as_allocated() {
    for shape in [EXTENTS, CLUSTERS] {
        let mut file = File::new(1, shape);
        let sectors = |file: &File| file.node.attr().unwrap().sectors;
        assert_eq!(sectors(&file), 0);
        file.write(0, 3000);
        file.write(100_000, 5000);
        let reserved = sectors(&file);
        assert!(reserved >= 8000 / 512, "{reserved} sectors");
        file.node.sync(false).unwrap();
        assert_eq!(sectors(&file), reserved);
        file.write(200_000, 1000);
        assert!(sectors(&file) > reserved);
        file.resize(110_000);
        assert_eq!(sectors(&file), reserved);
    }
}

#[test]
fn space_is_estimated_where_the_mapping_may_grow() {
    let sectors = |file: &File| {
        let attr = file.node.attr().unwrap();
        (attr.sectors, attr.space_is_estimated)
    };
    // What the inode maps by itself, in blocks.
    for (shape, inside) in [(EXTENTS, 4), (INDIRECT, 12)] {
        let mut file = File::new(1, shape);
        file.write(0, inside * 1024);
        let exact = sectors(&file);
        assert_eq!(exact, (inside * 2, false));
        file.node.sync(false).unwrap();
        assert_eq!(sectors(&file), exact);
        for block in 1..10 {
            file.write((inside + 2 * block) * 4096, 1000);
        }
        assert!(sectors(&file).1);
        file.node.sync(false).unwrap();
        // A tree block, or an indirect block, which is reserved only once for all of them.
        assert_eq!(sectors(&file), ((inside + 9 + 1) * 2, false));
    }
}

/// Each write of data fails once: the sync reports it, the next one writes what is left, and nothing
/// is lost or allocated twice.
#[test]
fn failed_writeback_is_reported_once_and_retried() {
    for shape in [EXTENTS, CLUSTERS, INDIRECT] {
        for nth in 1..12 {
            let mut file = File::new(nth, shape);
            file.write(0, 30_000);
            file.remount();
            let faults = file.through_faults();
            for _ in 0..6 {
                let (start, len) = (file.below(200_000), 1 + file.below(9000));
                file.write(start, len);
            }
            faults.arm(Fault {
                operation: Operation::Write,
                when: When::Nth(nth),
                effect: Effect::Tear { seed: nth },
            });
            let written = data::write_back(&file.node);
            assert_eq!(written.is_err(), faults.hits() > 0);
            faults.disarm();
            file.check_bytes();
            if written.is_err() {
                assert!(matches!(file.node.sync(true), Err(Error::Io(_))));
            }
            file.remount();
        }
    }
}

#[test]
fn a_long_write_that_fails_leaves_old_bytes_or_new_ones() {
    for shape in [EXTENTS, CLUSTERS, INDIRECT] {
        for nth in 1..6 {
            let mut file = File::new(nth, shape);
            file.write(0, 50_000);
            file.write(100_000, 50_000);
            file.remount();
            let faults = file.through_faults();
            file.write(PAGE_BYTES as u64, 100);
            faults.arm(Fault {
                operation: Operation::Write,
                when: When::Nth(nth),
                effect: Effect::Tear { seed: nth },
            });
            let (start, new) = (16_384, vec![0xee; 300_000]);
            let written = file.node.write_at(start, &new);
            assert_eq!(written.is_err(), faults.hits() > 0);
            faults.disarm();
            let size = usize::try_from(file.node.size_bytes()).unwrap();
            let mut found = vec![0; size];
            assert_eq!(file.node.read_at(0, &mut found).unwrap(), size);
            let old = file.model.len();
            assert!(size >= old);
            file.model.resize(size, 0);
            for (at, (found, model)) in found.iter().zip(&mut file.model).enumerate() {
                let is_new = *found == 0xee && at >= 16_384;
                assert!(is_new || found == model, "byte {at}");
                *model = *found;
            }
            if written.is_ok() {
                assert_eq!(size, 316_384);
            }
            file.remount();
        }
    }
}

/// Threads write parts of one file and read them back while others sync it, allocate space in it and
/// push it out of the cache.
#[test]
fn threads_share_a_file() {
    const PART: u64 = 60_000;
    for shape in [EXTENTS, CLUSTERS, INDIRECT] {
        let mut file = File::new(3, shape);
        let has_extents = shape.incompat.contains(Incompat::EXTENTS);
        let node = &file.node;
        let work = |part: u64| {
            let mut random = Random(part);
            let mut model = vec![0; usize::try_from(PART).unwrap()];
            for _ in 0..150 {
                let start = random.below(PART - 1);
                let len = 1 + random.below((PART - start).min(5000));
                let byte = u8::try_from(1 + random.below(255)).unwrap();
                let data = vec![byte; usize::try_from(len).unwrap()];
                node.write_at(part * PART + start, &data).unwrap();
                let start = usize::try_from(start).unwrap();
                model[start..start + data.len()].fill(byte);
                let mut read = vec![0; data.len()];
                node.read_at(part * PART + start as u64, &mut read).unwrap();
                assert!(read == data);
            }
            model
        };
        let disturb = || {
            for nth in 0..60 {
                data::write_back(node).unwrap();
                if has_extents {
                    let mode = FallocateMode::Allocate { keep_size: true };
                    let start = nth * 4000;
                    node.fallocate(start..start + 9000, mode).unwrap();
                }
                node.sync(nth % 2 == 0).unwrap();
            }
        };
        file.model = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3).map(|part| scope.spawn(move || work(part))).collect();
            scope.spawn(disturb);
            let models = workers.into_iter().map(|worker| worker.join().unwrap());
            models.flatten().collect()
        });
        let size = file.node.size_bytes();
        file.model.truncate(usize::try_from(size).unwrap());
        file.check_bytes();
        file.remount();
    }
}

/// Trees with files of their own in addition to the first, each with a few bytes in the cache.
fn short_files(file: &File, count: u8) -> Vec<Arc<Ext4Inode>> {
    let (sb, number) = (&file.sb, file.node.number);
    let numbers = number.get() + 1..number.get() + 1 + u32::from(count);
    let mut files = Vec::new();
    for number in numbers.filter_map(InodeNr::new) {
        let fs = &sb.fs;
        let mut handle = fs.begin(8).unwrap();
        let geometry = &fs.geometry;
        let mut inode = Inode::new(number, FileKind::Regular, 7, 32, geometry);
        inode.links = 1;
        inode.flags.set(InodeFlags::EXTENTS, true);
        let _ = BlockMap::begin(fs, &mut inode);
        inode::initialize(fs, &mut handle, &inode).unwrap();
        drop(handle);
        let node = sb.find(number).unwrap().unwrap();
        let len = usize::from(count) * 100;
        node.write_at(0, &vec![u8::try_from(files.len() + 1).unwrap(); len])
            .unwrap();
        files.push(node);
    }
    files
}

fn assert_short(files: &[Arc<Ext4Inode>]) {
    for (file, byte) in files.iter().zip(1..) {
        let len = files.len() * 100;
        let mut bytes = vec![0; len + 1];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), len);
        assert!(bytes[..len].iter().all(|&found| found == byte));
    }
}

#[test]
fn short_new_files_side_by_side_are_written_by_one_request() {
    let mut file = File::new(1, EXTENTS);
    let device = file.through(CountingDevice::new);
    let files = short_files(&file, 20);
    let before = device.counts();
    ops::sync::write_dirty(&file.sb).unwrap();
    assert_eq!((device.counts() - before).writes, 1);
    for file in &files {
        assert!(!file.pages.is_dirty());
        file.pages.remove_range(0..u64::MAX);
    }
    assert_short(&files);
    let before = device.counts();
    files[3].write_at(10, b"over").unwrap();
    ops::sync::write_dirty(&file.sb).unwrap();
    assert_eq!((device.counts() - before).writes, 1);
}

#[test]
fn short_new_files_stay_dirty_until_a_write_succeeds() {
    let mut file = File::new(1, EXTENTS);
    let faults = file.through_faults();
    let files = short_files(&file, 5);
    let free = file.sb.space().unwrap().stat();
    faults.arm(Fault {
        operation: Operation::Write,
        when: When::Nth(1),
        effect: Effect::Tear { seed: 1 },
    });
    assert!(ops::sync::write_dirty(&file.sb).is_err());
    for file in &files {
        assert!(file.pages.is_dirty());
    }
    assert_eq!(free, file.sb.space().unwrap().stat());
    faults.disarm();
    ops::sync::write_dirty(&file.sb).unwrap();
    for file in &files {
        file.pages.remove_range(0..u64::MAX);
    }
    assert_short(&files);
}
