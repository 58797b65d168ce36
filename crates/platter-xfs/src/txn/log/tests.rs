//! Logs that are written, cut, and replayed by recovery.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use platter_block::MemoryDevice;
use platter_block::sim::{Effect, Fault, FaultDevice, Recorder, Recording, When};
use platter_cache::MemoryBudget;
use platter_cache::buffer::{Addressing, BlockSize, DeviceStore};
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corruption, Locus, VerifierKey, Verify};
use platter_vfs::FileKind;
use zerocopy::FromBytes;

use super::*;
use crate::ondisk::btree::{BtreeKind, BuiltBlock};
use crate::ondisk::da::{DaKind, DaLinks, DiskDaHeaderV5};
use crate::ondisk::dir::data::{DataKind, DirData, Region};
use crate::ondisk::inode::free::initialise;
use crate::ondisk::inode::{DiskInodeV3, tests as inode_tests};
use crate::ondisk::log::BufferType;
use crate::ondisk::superblock::tests::sample;
use crate::ondisk::{BasicBlock, BlockKind, FsBlock, Inode, Site, Superblock, attr, dir};
use crate::txn::{BlockType, InodePlace, Transaction, find_position, replay, scan};
use crate::xfs_mount::Mount;

const BLOCKS: u64 = 16;
const BLOCK_BYTES: u32 = 4096;
/// Where the blocks begin.
const FIRST: u64 = 64;
const DATA_BYTES: usize = 1 << 20;

struct Scene {
    superblock: Superblock,
    mount: Mount,
    log: Log,
}

/// What all blocks hold.
type State = Vec<Vec<u8>>;

impl Scene {
    fn open(data: Arc<dyn BlockDevice>, log: Arc<dyn BlockDevice>, unit: u32) -> Self {
        let superblock = sample().decode().unwrap();
        let mount = Mount::new(&superblock);
        let device = LogDevice::sample_of(log, superblock.uuid, unit);
        let position = find_position(&device, true).unwrap();
        let addressing = Addressing {
            unit_bytes: 512,
            usual: size(),
        };
        let store = Arc::new(DeviceStore::new(Arc::clone(&data)));
        let budget = Arc::new(MemoryBudget::new(8 << 20));
        let buffers = Arc::new(BufferCache::over(store, addressing, budget));
        let log = Log::open(device, data, buffers, mount.geometry(), &position).unwrap();
        Self {
            superblock,
            mount,
            log,
        }
    }

    /// The same of a log that was replayed, and whose intents are not finished.
    fn open_replayed(data: Arc<dyn BlockDevice>, log: Arc<dyn BlockDevice>) -> Self {
        let scene = Self::open(Arc::clone(&data), log_device(1024), 512);
        let device = LogDevice::sample_of(log, scene.superblock.uuid, 512);
        let position = find_position(&device, true).unwrap();
        assert_eq!(position.state, LogState::Dirty);
        let (buffers, geometry) = (Arc::clone(&scene.log.buffers), scene.mount.geometry());
        let log = Log::open_replayed(device, data, buffers, geometry, &position).unwrap();
        Self { log, ..scene }
    }

    fn in_memory(log_sectors: usize, unit: u32) -> Self {
        Self::open(data(), log_device(log_sectors), unit)
    }

    fn begin(&self, bytes: u64) -> Transaction<'_> {
        Transaction::begin(&self.mount, &self.log, bytes, 2).unwrap()
    }

    /// Sets one chunk of a block in a transaction of its own.
    fn set(&self, block: u64, chunk: usize, fill: u8) -> u64 {
        let mut transaction = self.begin(8192);
        edit(&mut transaction, block, chunk, fill);
        transaction.commit().unwrap()
    }

    fn state(&self) -> State {
        let read = |block| {
            let buffer = self.log.buffers().read((at(block).0, size()), &Unverified);
            buffer.unwrap().to_vec()
        };
        (0..BLOCKS).map(read).collect()
    }

    fn recovered(
        &self,
        data: &Arc<dyn BlockDevice>,
        log: Arc<dyn BlockDevice>,
        unit: u32,
    ) -> State {
        let device = LogDevice::sample_of(log, self.superblock.uuid, unit);
        let position = find_position(&device, true).unwrap();
        let scan = scan(&device, &position, &self.superblock).unwrap();
        replay(&device, &position, &self.superblock, scan, &**data).unwrap();
        let read = |block: u64| {
            let mut bytes = vec![0; BLOCK_BYTES as usize];
            data.read_at(at(block).byte_offset(), &mut bytes).unwrap();
            bytes
        };
        (0..BLOCKS).map(read).collect()
    }
}

fn data() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new("data", vec![0; DATA_BYTES]))
}

fn log_device(sectors: usize) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new("log", vec![0; sectors * 512]))
}

fn size() -> BlockSize {
    BlockSize::new(BLOCK_BYTES).unwrap()
}

fn at(block: u64) -> BasicBlock {
    BasicBlock(FIRST + block * 8)
}

fn plain() -> BlockType {
    BlockType {
        kind: BufferType::Unknown,
        verifier: Arc::new(Unverified),
    }
}

fn edit(transaction: &mut Transaction<'_>, block: u64, chunk: usize, fill: u8) {
    let edited = transaction.edit(at(block), size(), &plain(), |bytes| {
        bytes[chunk * 128..][..100].fill(fill);
        Ok(())
    });
    edited.unwrap();
}

/// Numbers of a sequence that depends on nothing else.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn chunk(&mut self) -> usize {
        usize::try_from(self.below(32)).unwrap()
    }

    fn byte(&mut self) -> u8 {
        // Few values: what is changed is often changed back.
        u8::try_from(self.below(3)).unwrap()
    }
}

/// A recording of random transactions, the state after each, and for each position of the recording that was
/// forced, the number of the state that is durable there.
struct Work {
    recording: Recording,
    states: Vec<State>,
    forced: Vec<(usize, usize)>,
    scene: Scene,
}

fn work(seed: u64, sectors: usize, unit: u32, transactions: usize) -> Work {
    let recorder = Recorder::new(vec![data(), log_device(sectors)]);
    let [data, log] = [0, 1].map(|member| {
        let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[member]) as _;
        device
    });
    let scene = Scene::open(data, log, unit);
    let mut dice = Dice(seed);
    let mut states = vec![scene.state()];
    let mut forced = Vec::new();
    for _ in 0..transactions {
        let mut transaction = scene.begin(24 << 10);
        for _ in 0..=dice.below(4) {
            edit(
                &mut transaction,
                dice.below(BLOCKS),
                dice.chunk(),
                dice.byte(),
            );
        }
        if dice.below(8) == 0 {
            // One that is dropped changes nothing.
            drop(transaction);
        } else {
            transaction.commit().unwrap();
        }
        states.push(scene.state());
        match dice.below(6) {
            0 | 1 => {
                scene.log.force_all().unwrap();
                forced.push((recorder.position(), states.len() - 1));
            }
            2 if dice.below(4) == 0 => {
                scene.log.quiesce().unwrap();
                forced.push((recorder.position(), states.len() - 1));
            }
            _ => {}
        }
    }
    Work {
        recording: recorder.recording(),
        states,
        forced,
        scene,
    }
}

/// Recovers states cut at every `step`-th write, and compares them with what was committed.
fn check_cuts(work: &Work, unit: u32, step: usize) {
    let end = work.recording.events().len();
    let mut newest = 0;
    for position in (0..=end).step_by(step) {
        let durable = work.forced.iter().rev().find(|(at, _)| *at <= position);
        let durable = durable.map_or(0, |(_, state)| *state);
        let devices = work.recording.replay(position).unwrap();
        let mut devices = devices
            .into_iter()
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) });
        let (data, log) = (devices.next().unwrap(), devices.next().unwrap());
        let found = work.scene.recovered(&data, log, unit);
        let first = newest.max(durable);
        let state = work.states[first..]
            .iter()
            .position(|state| *state == found);
        let state =
            state.unwrap_or_else(|| panic!("cut {position} of {end} is no state after {first}"));
        // States may repeat: this is the first that it can be.
        newest = first + state;
    }
}

#[test]
fn cut_logs_recover_to_a_committed_prefix() {
    // A log that wraps several times, and stripe units.
    for (seed, sectors, unit) in [(1, 256, 512), (2, 320, 4096), (3, 2048, 32 << 10)] {
        let work = work(seed, sectors, unit, 300);
        assert!(work.scene.log.position.lock().has_wrapped(), "{seed}");
        check_cuts(&work, unit, 7);
    }
}

#[test]
fn records_of_the_largest_size_are_recovered() {
    let unit = 256 << 10;
    let work = work(4, 16 << 10, unit, 40);
    check_cuts(&work, unit, 5);
}

#[test]
fn checkpoint_of_many_records_is_durable_as_a_whole() {
    let recorder = Recorder::new(vec![data(), log_device(8192)]);
    let [data, log] = [0, 1].map(|member| {
        let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[member]) as _;
        device
    });
    let scene = Scene::open(data, log, 512);
    scene.set(0, 0, 1);
    scene.log.force_all().unwrap();
    let before = scene.state();
    let start = recorder.position();
    // Twelve records' worth of changes.
    for round in 0..8 {
        for block in 0..BLOCKS {
            let mut transaction = scene.begin(64 << 10);
            (0..32).for_each(|chunk| edit(&mut transaction, block, chunk, round + 2));
            transaction.commit().unwrap();
        }
    }
    scene.log.force_all().unwrap();
    let after = scene.state();
    let recording = recorder.recording();
    let end = recording.events().len();
    assert!(end - start > 3);
    for position in start..=end {
        let devices = recording.replay(position).unwrap();
        let mut devices = devices
            .into_iter()
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) });
        let (data, log) = (devices.next().unwrap(), devices.next().unwrap());
        let found = scene.recovered(&data, log, 512);
        let expected = if position == end { &after } else { &before };
        assert!(
            found == *expected || (position + 1 == end && found == after),
            "{position} of {end}"
        );
    }
}

/// Changes all of every block in one transaction, which takes several records.
fn fill_all(scene: &Scene, fill: u8) {
    let mut transaction = scene.begin(80 << 10);
    for (block, chunk) in (0..BLOCKS).flat_map(|block| (0..32).map(move |chunk| (block, chunk))) {
        edit(&mut transaction, block, chunk, fill);
    }
    transaction.commit().unwrap();
    scene.log.force_all().unwrap();
}

#[test]
fn checkpoint_follows_one_that_a_crash_cut() {
    let (data, log) = (data(), log_device(8192));
    let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
    scene.set(0, 0, 1);
    scene.log.force_all().unwrap();
    // The first record of one checkpoint, and all of the one that takes its place.
    let recorder = Recorder::new(vec![data, log]);
    let [data, log] = [0, 1].map(|member| {
        let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[member]) as _;
        device
    });
    fill_all(&Scene::open_replayed(data, log), 2);
    let recording = recorder.recording();
    let is_record = |event: &platter_block::sim::Event| {
        event.member == 1 && matches!(event.request, platter_block::sim::Request::Write { .. })
    };
    let first = recording.events().iter().position(is_record).unwrap();
    assert!(recording.events()[first + 1..].iter().any(is_record));
    let devices = recording.replay(first + 1).unwrap().into_iter();
    let mut devices = devices.map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) });
    let (data, log) = (devices.next().unwrap(), devices.next().unwrap());
    let before = scene.recovered(&data, Arc::clone(&log), 512);
    assert!(before == scene.state());
    let second = Scene::open_replayed(Arc::clone(&data), Arc::clone(&log));
    fill_all(&second, 3);
    let found = second.recovered(&data, log, 512);
    assert!(found == second.state());
    assert!(found != before);
}

#[test]
fn unmounted_log_is_clean_and_goes_on_where_it_ended() {
    let (data, log) = (data(), log_device(1024));
    for round in 1..20 {
        let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
        for step in 0..30 {
            scene.set(u64::from(step % 16), 3, round * 10 + step % 7);
        }
        scene.log.unmount().unwrap();
        assert!(Transaction::begin(&scene.mount, &scene.log, 100, 1).is_err());
        let device = LogDevice::sample_of(Arc::clone(&log), scene.superblock.uuid, 512);
        let position = find_position(&device, true).unwrap();
        assert_eq!(position.state, LogState::Clean, "{round}");
        let mut bytes = vec![0; 1];
        data.read_at(at(15).byte_offset() + 3 * 128, &mut bytes)
            .unwrap();
        assert_eq!(bytes, [round * 10 + 15 % 7]);
    }
}

#[test]
fn change_that_is_undone_before_it_is_in_its_place_is_logged() {
    let (data, log) = (data(), log_device(1024));
    let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
    for fill in [1, 0] {
        scene.set(2, 5, fill);
        scene.log.force_all().unwrap();
    }
    let found = scene.recovered(&data, log, 512);
    assert!(found == scene.state() && found[2].iter().all(|&byte| byte == 0));
}

#[test]
fn cancelled_block_is_not_replayed() {
    let (data, log) = (data(), log_device(1024));
    let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
    scene.set(1, 0, 9);
    scene.set(2, 0, 9);
    scene.log.force_all().unwrap();
    let mut transaction = scene.begin(8192);
    transaction.cancel(at(1), size());
    transaction.commit().unwrap();
    scene.log.force_all().unwrap();
    assert_eq!(scene.log.items().0, 1);
    let found = scene.recovered(&data, log, 512);
    assert_eq!((found[1][0], found[2][0]), (0, 9));
}

/// Where the inode in block 3 lies.
fn inode_place() -> InodePlace {
    InodePlace {
        number: InodeNr::new(inode_tests::NUMBER).unwrap(),
        cluster: at(3),
        cluster_bytes: BLOCK_BYTES,
        offset: 1024,
    }
}

/// Writes the inode in block 3, and opens the scene.
fn with_inode(inode: &[u8]) -> Scene {
    let data = data();
    let place = inode_place();
    let offset = place.cluster.byte_offset() + u64::from(place.offset);
    data.write_at(offset, inode).unwrap();
    Scene::open(data, log_device(1024), 512)
}

/// Changes the time of the inode in block 3, and commits.
fn change_inode(scene: &Scene) -> Result<u64> {
    let place = inode_place();
    let mut transaction = scene.begin(8192);
    transaction.edit_inode(&place, |image| {
        DiskInodeV3::mut_from_prefix(image)
            .unwrap()
            .0
            .core
            .links
            .set(2);
        Ok(())
    })?;
    transaction.commit()
}

#[test]
fn inode_with_a_bad_checksum_is_not_logged() {
    let mut inode = inode_tests::sample();
    inode[300] ^= 1;
    let scene = with_inode(&inode);
    let error = change_inode(&scene).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    scene.log.force_all().unwrap();
    assert_eq!(scene.log.items().0, 0);

    inode[300] ^= 1;
    let scene = with_inode(&inode);
    change_inode(&scene).unwrap();
    scene.log.force_all().unwrap();
    assert_eq!(scene.log.items().0, 1);
}

/// The image of the inode in block 3, where this lies, as one to be allocated.
fn unused_inode(found: &[u8]) -> Vec<u8> {
    let scene = with_inode(found);
    let mut transaction = scene.begin(8192);
    transaction.unused_inode(&inode_place(), 7).unwrap()
}

#[test]
fn remains_of_a_free_inode_are_replaced() {
    let free = |change: &dyn Fn(&mut DiskInodeV3)| {
        let mut inode = inode_tests::sample();
        let (disk, _) = DiskInodeV3::mut_from_prefix(&mut inode).unwrap();
        disk.core.mode.set(0);
        change(disk);
        inode
    };
    let geometry = Geometry::new(&sample().decode().unwrap());
    let mut fresh = vec![0; 512];
    initialise(&mut fresh, &geometry, inode_place().number, 7);
    let corrupt = free(&|disk| disk.core.uid.set(5));
    assert!(unused_inode(&corrupt) == fresh);
    let mut sealed = corrupt.clone();
    DiskInodeV3::seal(&mut sealed);
    assert!(unused_inode(&sealed) == sealed);
    // What recovery would not write over stays.
    let changes: [fn(&mut DiskInodeV3); 5] = [
        |disk| disk.core.magic.set(0),
        |disk| disk.core.version = 2,
        |disk| disk.core.next_unlinked.set(u32::MAX - 1),
        |disk| disk.lsn.set(u64::MAX >> 1),
        |disk| disk.core.mode.set(0o10_0644),
    ];
    for change in changes {
        let kept = free(&change);
        assert!(unused_inode(&kept) == kept);
    }

    let scene = with_inode(&corrupt);
    let mut transaction = scene.begin(8192);
    let place = inode_place();
    transaction.unused_inode(&place, 7).unwrap();
    let made = transaction.edit_inode(&place, |image| {
        image.copy_from_slice(&inode_tests::sample());
        Ok(())
    });
    made.unwrap();
    transaction.commit().unwrap();
    scene.log.quiesce().unwrap();
    let found = &scene.state()[3][place.offset as usize..][..512];
    Inode::decode(found, place.number, &geometry).unwrap();
}

/// Refuses blocks that begin with 0xee.
struct Refusing;

impl Verify for Refusing {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: 0xee,
            seed: 0,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> std::result::Result<(), Corruption> {
        match bytes.first() {
            Some(0xee) => Err(Corruption::new("block", Locus::block(block), "is refused")),
            _ => Ok(()),
        }
    }
}

#[test]
fn commit_of_built_blocks_that_break_a_rule_fails_alone() {
    let scene = Scene::in_memory(1024, 512);
    scene.set(0, 0, 1);
    let before = scene.state();
    let what = |kind| BlockType {
        kind,
        verifier: Arc::new(Refusing),
    };
    let headers = [
        BufferType::Superblock,
        BufferType::Agf,
        BufferType::Agfl,
        BufferType::Agi,
    ];
    for kind in [BufferType::DaNode, BufferType::AttrLeaf]
        .into_iter()
        .chain(headers)
    {
        let mut transaction = scene.begin(8192);
        edit(&mut transaction, 1, 0, 7);
        let edited = transaction.edit(at(2), size(), &what(kind), |bytes| {
            bytes[0] = 0xee;
            Ok(())
        });
        edited.unwrap();
        let error = transaction.commit().unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
    for kind in [BufferType::DirData, BufferType::Btree, BufferType::Symlink] {
        let mut transaction = scene.begin(8192);
        edit(&mut transaction, 1, 0, 7);
        let bytes = vec![0xee; BLOCK_BYTES as usize];
        transaction.create(at(2), size(), &what(kind), bytes);
        let error = transaction.commit().unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
    assert!(scene.state() == before);
    let sequence = scene.set(3, 0, 1);
    scene.log.force(sequence).unwrap();
    scene.log.quiesce().unwrap();
}

#[test]
fn block_that_cannot_be_sealed_is_not_written_back() {
    let data = Arc::new(MemoryDevice::new("data", vec![0; DATA_BYTES]));
    let scene = Scene::open(Arc::clone(&data) as _, log_device(1024), 512);
    let what = BlockType {
        kind: BufferType::DirData,
        verifier: Arc::new(Unverified),
    };
    let mut transaction = scene.begin(8192);
    transaction.create(at(2), size(), &what, vec![7; BLOCK_BYTES as usize]);
    transaction.commit().unwrap();
    scene.log.force_all().unwrap();
    let error = scene.log.quiesce().unwrap_err().to_string();
    assert!(error.contains("magic number"), "{error}");
    assert!(scene.log.is_shut_down());
    assert!(data.snapshot().iter().all(|&byte| byte == 0));
}

#[test]
fn block_that_breaks_a_rule_reaches_neither_log_nor_place() {
    let recorder = Recorder::new(vec![data(), log_device(1024)]);
    let [data, log] = [0, 1].map(|member| {
        let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[member]) as _;
        device
    });
    let scene = Scene::open(data, log, 512);
    let what = BlockType {
        kind: BufferType::DirData,
        verifier: Arc::new(Refusing),
    };
    let fill = |fill: u8| {
        let mut transaction = scene.begin(8192);
        let edited = transaction.edit(at(2), size(), &what, |bytes| {
            bytes[0] = fill;
            Ok(())
        });
        edited.unwrap();
        transaction.commit().unwrap()
    };
    let sequence = fill(1);
    scene.log.force(sequence).unwrap();
    let position = recorder.position();
    let sequence = fill(0xee);
    let error = scene.log.force(sequence).unwrap_err();
    assert!(error.to_string().contains("is refused"), "{error}");
    assert!(scene.log.is_shut_down());
    scene.log.quiesce().unwrap_err();
    assert_eq!(recorder.position(), position);
}

/// What blocks that get their checksums in their places may be, one of each type that they are logged as, with its
/// owner and its bytes.
fn sealed_in_place(geometry: &Geometry) -> Vec<(BlockKind, u64, Vec<u8>)> {
    const INODE: u64 = 131;
    let links = DaLinks {
        next: Some(7),
        previous: None,
    };
    let tree = |block: u64, kind: BtreeKind, owner: u64| {
        let built = BuiltBlock {
            kind,
            owner,
            level: 0,
            left: None,
            right: None,
            entries: &[],
            count: 0,
            pointers: &[],
        };
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let place = FsBlock(at(block).byte_offset() / u64::from(BLOCK_BYTES));
        built.encode_unsealed(place, geometry, &mut bytes).unwrap();
        (BlockKind::Btree(kind), owner, bytes)
    };
    let site = |block: u64| Site::new(geometry, at(block), INODE);
    let mut attributes = attr::build::leaf(&[], links, &site(8)).unwrap();
    // It was built with a checksum.
    let (header, _) = DiskDaHeaderV5::mut_from_prefix(&mut attributes).unwrap();
    header.lsn.set(1);
    let leaf = &[(1, 2), (3, 4)];
    vec![
        tree(0, BtreeKind::Bno, 0),
        tree(1, BtreeKind::Bmap, INODE),
        (
            BlockKind::DirData(DataKind::Single),
            INODE,
            dir::build::empty_data(DataKind::Single, &site(2)).unwrap(),
        ),
        (
            BlockKind::DirData(DataKind::Data),
            INODE,
            dir::build::empty_data(DataKind::Data, &site(3)).unwrap(),
        ),
        (
            BlockKind::DirFree,
            INODE,
            dir::build::free_index(0, &[8, 16], &site(4)).unwrap(),
        ),
        (
            BlockKind::DirLeaf(DaKind::DirLeaf1),
            INODE,
            dir::build::single_leaf(leaf, &[8, 16], &site(5)).unwrap(),
        ),
        (
            BlockKind::DirLeaf(DaKind::DirLeafN),
            INODE,
            dir::build::leaf(leaf, links, &site(6)).unwrap(),
        ),
        (
            BlockKind::DaNode,
            INODE,
            dir::build::node(leaf, 1, links, &site(7)).unwrap(),
        ),
        (BlockKind::AttrLeaf, INODE, attributes),
    ]
}

#[test]
fn blocks_get_their_checksums_in_their_places() {
    let (data, log) = (data(), log_device(1024));
    let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
    let geometry = scene.mount.geometry();
    let built = sealed_in_place(geometry);
    for ((kind, owner, bytes), block) in built.iter().zip(0..) {
        let what = BlockType::new(geometry, *kind, *owner);
        assert!(what.is_sealed_in_place(), "{kind:?}");
        let mut transaction = scene.begin(8192);
        transaction.create(at(block), size(), &what, bytes.clone());
        transaction.commit().unwrap();
        let newest = scene
            .log
            .buffers()
            .read((at(block).0, size()), &*what.verifier);
        let newest = newest.unwrap();
        assert!(
            what.verifier.verify(at(block).0, &newest).is_err(),
            "sealed before"
        );
    }
    scene.log.force_all().unwrap();
    // By recovery, and by this log.
    let recovered = MemoryDevice::new("data", vec![0; DATA_BYTES]);
    let recovered: Arc<dyn BlockDevice> = Arc::new(recovered);
    let state = scene.recovered(&recovered, log, 512);
    scene.log.quiesce().unwrap();
    for ((kind, owner, _), block) in built.iter().zip(0..) {
        let what = BlockType::new(geometry, *kind, *owner);
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        data.read_at(at(block).byte_offset(), &mut bytes).unwrap();
        what.verifier.verify(at(block).0, &bytes).unwrap();
        assert!(bytes == state[usize::try_from(block).unwrap()], "{kind:?}");
    }
}

#[test]
fn block_read_again_and_changed_is_recovered() {
    let data = Arc::new(MemoryDevice::new("data", vec![0; DATA_BYTES]));
    let log = Arc::new(MemoryDevice::new("log", vec![0; 1024 * 512]));
    let scene = Scene::open(Arc::clone(&data) as _, Arc::clone(&log) as _, 512);
    let geometry = scene.mount.geometry();
    let kind = BlockKind::DirData(DataKind::Data);
    let what = BlockType::new(geometry, kind, 131);
    let site = Site::new(geometry, at(4), 131);
    let bytes = dir::build::empty_data(DataKind::Data, &site).unwrap();
    let mut transaction = scene.begin(8192);
    transaction.create(at(4), size(), &what, bytes);
    transaction.commit().unwrap();
    let add = |name: &[u8]| {
        let entry = (name, InodeNr::new(131).unwrap(), Some(FileKind::Regular));
        let mut transaction = scene.begin(8192);
        let added = transaction.edit(at(4), size(), &what, |bytes| {
            Ok(dir::build::add_entry(
                bytes,
                DataKind::Data,
                entry,
                geometry,
            ))
        });
        assert!(added.unwrap().is_some());
        transaction.commit().unwrap()
    };
    add(b"before");
    scene.log.quiesce().unwrap();
    scene.log.buffers().forget((at(4).0, size()));
    assert!(!scene.log.buffers().contains((at(4).0, size())));
    // Its checksum is compared here.
    let sequence = add(b"after");
    scene.log.force(sequence).unwrap();
    let recovered = MemoryDevice::new("data", data.snapshot());
    let recovered: Arc<dyn BlockDevice> = Arc::new(recovered);
    let cut: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("log", log.snapshot()));
    let state = scene.recovered(&recovered, cut, 512);
    what.verifier.verify(at(4).0, &state[4]).unwrap();
    let found = DirData::decode(&state[4], DataKind::Data, &site).unwrap();
    let names = found
        .regions(geometry)
        .filter_map(|region| match region.unwrap() {
            Region::Entry(entry) => Some(entry.name.to_vec()),
            Region::Free { .. } => None,
        });
    assert_eq!(names.collect::<Vec<_>>(), [&b"before"[..], b"after"]);
    scene.log.quiesce().unwrap();
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    data.read_at(at(4).byte_offset(), &mut bytes).unwrap();
    assert_eq!(bytes, state[4]);
}

#[test]
fn rolling_transaction_commits_in_parts() {
    let scene = Scene::in_memory(1024, 512);
    let mut transaction = scene.begin(12 << 10);
    let mut last = 0;
    for step in 0..40 {
        edit(&mut transaction, u64::from(step % 16), 1, step);
        last = transaction.roll().unwrap();
        if step % 8 == 0 {
            scene.log.force(last).unwrap();
        }
    }
    drop(transaction);
    scene.log.force(last).unwrap();
    assert!(scene.log.grants.lock().is_alone(Head::Reserve));
    assert_eq!(scene.state()[7][128], 39);
}

#[test]
fn threads_share_forces_and_space() {
    let recorder = Recorder::new(vec![data(), log_device(1024)]);
    let [data, log] = [0, 1].map(|member| {
        let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[member]) as _;
        device
    });
    let scene = Scene::open(data, log, 512);
    let forces = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (scene, forces) = (&scene, &forces);
            scope.spawn(move || {
                for step in 0..60_u8 {
                    let block = u64::from(thread) * 4 + u64::from(step % 4);
                    let sequence = scene.set(block, usize::from(step % 32), step);
                    if step % 3 == 0 {
                        scene.log.force(sequence).unwrap();
                        forces.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    scene.log.force_all().unwrap();
    let grants = scene.log.grants.lock();
    assert!(grants.is_alone(Head::Reserve) && grants.is_alone(Head::Write));
    drop(grants);
    assert_eq!(forces.into_inner(), 80);
    let recording = recorder.recording();
    let devices = recording.replay(recording.events().len()).unwrap();
    let mut devices = devices
        .into_iter()
        .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) });
    let (data, log) = (devices.next().unwrap(), devices.next().unwrap());
    assert!(scene.recovered(&data, log, 512) == scene.state());
}

#[test]
fn transaction_larger_than_the_log_is_refused() {
    let scene = Scene::in_memory(256, 512);
    let refused = Transaction::begin(&scene.mount, &scene.log, 1 << 20, 1).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "xfs: a transaction of this size is not supported (the log is too small)"
    );
    scene.set(0, 0, 1);
}

#[test]
fn transaction_that_outgrows_its_reservation_shuts_down() {
    let scene = Scene::in_memory(1024, 512);
    let mut transaction = scene.begin(1000);
    for block in 0..4 {
        (0..32).for_each(|chunk| edit(&mut transaction, block, chunk, 7));
    }
    let error = transaction.commit().unwrap_err().to_string();
    assert!(error.contains("transaction takes"), "{error}");
    assert!(scene.log.is_shut_down() && scene.log.force_all().is_err());
}

#[test]
fn failed_write_ends_the_log() {
    for member in 0..2 {
        let devices = [data(), log_device(1024)];
        let faults = devices.map(|device| Arc::new(FaultDevice::new(device)));
        let [data, log] = [0, 1].map(|index: usize| {
            let device: Arc<dyn BlockDevice> = Arc::clone(&faults[index]) as _;
            device
        });
        let scene = Scene::open(data, log, 512);
        scene.set(0, 0, 1);
        scene.log.force_all().unwrap();
        faults[member].arm(fault());
        scene.set(0, 1, 1);
        let failed = scene.log.quiesce().unwrap_err().to_string();
        assert_eq!(scene.log.force_all().unwrap_err().to_string(), failed);
        let begun = Transaction::begin(&scene.mount, &scene.log, 100, 1);
        assert!(begun.is_err());
    }
}

#[test]
fn failed_flush_of_data_ends_the_log() {
    let faulty = Arc::new(FaultDevice::new(data()));
    let scene = Scene::open(Arc::clone(&faulty) as _, log_device(1024), 512);
    let sequence = scene.set(0, 0, 1);
    scene.log.force(sequence).unwrap();
    faulty.arm(Fault {
        operation: platter_block::Operation::Flush,
        when: When::Nth(1),
        effect: Effect::Tear { seed: 1 },
    });
    let failed = scene.log.force_with_data(sequence).unwrap_err().to_string();
    let again = scene.log.force_with_data(sequence).unwrap_err().to_string();
    assert_eq!(again, failed);
    assert!(scene.log.is_shut_down());
}

fn fault() -> Fault {
    Fault {
        operation: platter_block::Operation::Write,
        when: When::Always,
        effect: Effect::Tear { seed: 1 },
    }
}

/// A device that, once armed, waits within a write until the test goes on.
#[derive(Debug)]
struct Gated {
    base: Arc<dyn BlockDevice>,
    is_armed: AtomicBool,
    entered: Barrier,
    left: Barrier,
    flushes: AtomicU64,
}

impl Gated {
    fn new(base: Arc<dyn BlockDevice>) -> Arc<Self> {
        Arc::new(Self {
            base,
            is_armed: AtomicBool::new(false),
            entered: Barrier::new(2),
            left: Barrier::new(2),
            flushes: AtomicU64::new(0),
        })
    }

    fn arm(&self) {
        self.is_armed.store(true, Ordering::Relaxed);
    }
}

impl BlockDevice for Gated {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> platter_block::Geometry {
        self.base.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), platter_block::IoError> {
        self.base.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), platter_block::IoError> {
        if self.is_armed.swap(false, Ordering::Relaxed) {
            self.entered.wait();
            self.left.wait();
        }
        self.base.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), platter_block::IoError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.base.flush()
    }

    fn discard(&self, range: std::ops::Range<u64>) -> Result<(), platter_block::IoError> {
        self.base.discard(range)
    }
}

#[test]
fn data_written_during_a_checkpoint_is_flushed() {
    let (data, log) = (Gated::new(data()), Gated::new(log_device(1024)));
    let scene = Scene::open(Arc::clone(&data) as _, Arc::clone(&log) as _, 512);
    let sequence = scene.set(0, 0, 1);
    log.arm();
    std::thread::scope(|scope| {
        scope.spawn(|| scene.log.force(sequence).unwrap());
        log.entered.wait();
        // The checkpoint has flushed the data device already.
        data.write_at(0, &[7; 512]).unwrap();
        let flushed = data.flushes.load(Ordering::Relaxed);
        let synced = scope.spawn(|| scene.log.force_with_data(sequence).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        log.left.wait();
        synced.join().unwrap();
        assert!(data.flushes.load(Ordering::Relaxed) > flushed);
    });
    let flushed = data.flushes.load(Ordering::Relaxed);
    scene.log.force_with_data(scene.log.running()).unwrap();
    assert_eq!(data.flushes.load(Ordering::Relaxed), flushed + 1);
    let sequence = scene.set(0, 0, 2);
    scene.log.force_with_data(sequence).unwrap();
    assert_eq!(data.flushes.load(Ordering::Relaxed), flushed + 2);
}

#[test]
fn freed_block_is_not_reusable_while_it_is_written_back() {
    let data = Gated::new(data());
    let scene = Scene::open(Arc::clone(&data) as _, log_device(1024), 512);
    scene.set(1, 0, 9);
    scene.log.force_all().unwrap();
    data.arm();
    std::thread::scope(|scope| {
        scope.spawn(|| scene.log.quiesce().unwrap());
        data.entered.wait();
        let mut transaction = scene.begin(8192);
        transaction.cancel(at(1), size());
        let freed = transaction.commit().unwrap();
        scene.log.force(freed).unwrap();
        let early = (scene.log.is_durable(freed), scene.log.is_reusable(freed));
        let waiting = scope.spawn(|| scene.log.force_freed().unwrap());
        data.left.wait();
        waiting.join().unwrap();
        assert_eq!(early, (true, false));
        assert!(scene.log.is_reusable(freed));
    });
}

#[test]
fn block_freed_and_allocated_shorter_is_cancelled() {
    let long = BlockSize::new(2 * BLOCK_BYTES).unwrap();
    for is_one in [false, true] {
        let (data, log) = (data(), log_device(1024));
        let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
        let mut transaction = scene.begin(24 << 10);
        transaction.create(at(1), long, &plain(), vec![9; 2 * BLOCK_BYTES as usize]);
        transaction.commit().unwrap();
        scene.log.force_all().unwrap();
        let mut transaction = scene.begin(24 << 10);
        transaction.cancel(at(1), long);
        if !is_one {
            transaction.commit().unwrap();
            transaction = scene.begin(24 << 10);
        }
        transaction.create(at(1), size(), &plain(), vec![5; BLOCK_BYTES as usize]);
        transaction.commit().unwrap();
        scene.log.force_all().unwrap();
        // The second half belongs to a file.
        data.write_at(at(2).byte_offset(), &[7; 4096]).unwrap();
        let found = scene.recovered(&data, log, 512);
        assert!(found[1].iter().all(|&byte| byte == 5), "{is_one}");
        assert!(found[2].iter().all(|&byte| byte == 7), "{is_one}");
    }
}
