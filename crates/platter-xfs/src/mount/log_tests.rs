//! Logs that are dirty, with records of any size, and what a mount makes of them.

use std::ops::ControlFlow;

use platter_block::sim::{Event, Recorder, Request};
use platter_cache::BufferCache;
use platter_cache::buffer::{Addressing, BlockSize, DeviceStore};
use platter_ondisk::Rule;
use platter_vfs::check::{CheckSink, Finding};
use platter_vfs::{CreateKind, FallocateMode};

use super::tests::{budget, create, mount, name, new_device, with_linked_inode_in_list};
use super::*;
use crate::ag::GroupRule;
use crate::check;
use crate::mapping::ForkMap;
use crate::ondisk::log::intent::{Extent, ExtentFree, Section};
use crate::ondisk::log::{Intent, RecordHeader};
use crate::ondisk::{AgNr, BasicBlock, FileBlock, FsBlock};
use crate::recovery::recover_in_place;
use crate::txn::{BlockType, Header, LogDevice, Transaction, find_position};
use crate::xfs_mount::Mount;

/// The block of a file.
fn allocated_block(device: &Arc<dyn BlockDevice>) -> FsBlock {
    let xfs = mount(device);
    let file = create(&*xfs.root().unwrap(), "file", CreateKind::Regular).unwrap();
    let mode = FallocateMode::Allocate { keep_size: false };
    file.fallocate(0..4096, mode).unwrap();
    let number = InodeNr::new(file.id().number).unwrap();
    let inode = inode::read(xfs.context(), number).unwrap();
    let map = ForkMap::of_data(xfs.context(), &inode).unwrap();
    let run = map.lookup(xfs.context(), FileBlock(0)).unwrap();
    let start = run.mapping().unwrap().start;
    drop(file);
    xfs.unmount().unwrap();
    FsBlock(start)
}

/// Leaves a transaction in the log, which is written with log buffers of so many bytes.
fn leave_dirty(
    device: &Arc<dyn BlockDevice>,
    buffer_bytes: u32,
    change: impl FnOnce(&mut Transaction<'_>),
) {
    let superblock = superblock::read(&**device).unwrap();
    let mount = Mount::new(&superblock);
    let geometry = mount.geometry();
    let log = LogDevice::open(&superblock, device, None).unwrap();
    let position = find_position(&log, true).unwrap();
    let addressing = Addressing {
        unit_bytes: 512,
        usual: BlockSize::new(geometry.block_bytes()).unwrap(),
    };
    let store = Arc::new(DeviceStore::new(Arc::clone(device)));
    let buffers = Arc::new(BufferCache::over(store, addressing, budget()));
    let data = Arc::clone(device);
    let log = Log::with_buffers(buffer_bytes, log, data, buffers, geometry, &position);
    let mut transaction = Transaction::begin(&mount, &log, 4096, 1).unwrap();
    change(&mut transaction);
    let sequence = transaction.commit().unwrap();
    log.force(sequence).unwrap();
}

/// Logs the intent to free a block.
fn log_intent(transaction: &mut Transaction<'_>, block: FsBlock) {
    let intent = ExtentFree {
        section: Section::Data,
        id: 1,
        extents: vec![Extent {
            start: block.0,
            len: 1,
        }],
    };
    let region = intent.encode();
    transaction.log_intent(&Intent::ExtentFree(intent), vec![region]);
}

#[test]
fn intents_are_finished_in_records_of_the_size_of_theirs() {
    for bytes in [16 << 10, 256 << 10] {
        let device = new_device();
        let block = allocated_block(&device);
        leave_dirty(&device, bytes, |transaction| {
            log_intent(transaction, block);
        });
        let primary = superblock::read(&*device).unwrap();
        let geometry = Geometry::new(&primary);
        let free_blocks = |device: &dyn BlockDevice| {
            let counters = Counters::read(device, &geometry).unwrap();
            counters.free_blocks
        };
        let free = free_blocks(&*device);
        let recorder = Recorder::new(vec![device]);
        let data: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[0]) as _;
        let report = recover_in_place(&data, None).unwrap();
        assert_eq!(report.log.open_intents.len(), 1);
        // The crash after the first block that is written back.
        let recording = recorder.recording();
        let log = LogDevice::open(&primary, &data, None).unwrap();
        let is_write = |event: &Event, to_log: bool| match &event.request {
            Request::Write { offset, .. } => log.overlaps_data(*offset, 1) == to_log,
            Request::Flush | Request::Discard(_) => false,
        };
        let mut events = recording.events().iter();
        let logged = events.position(|event| is_write(event, true)).unwrap();
        let passed = events.position(|event| is_write(event, false)).unwrap();
        let cut = recording.replay(logged + passed + 2).unwrap().remove(0);
        let cut: Arc<dyn BlockDevice> = Arc::new(cut);
        let log = LogDevice::open(&primary, &cut, None).unwrap();
        let position = find_position(&log, true).unwrap();
        assert_eq!(position.state, LogState::Dirty);
        assert_ne!(position.tail, position.last);
        for at in [position.tail, position.last] {
            let sector = log.read(at, 1).unwrap();
            let header = RecordHeader::decode(&sector, log.locus(at)).unwrap();
            assert_eq!(header.size, bytes);
        }
        let report = recover_in_place(&cut, None).unwrap();
        assert!(report.log.open_intents.is_empty());
        assert_eq!(free_blocks(&*cut), free + 1);
    }
}

/// The rules that a check finds broken.
struct Rules(Vec<String>);

impl CheckSink for Rules {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding.corruption.rule.into_owned());
        ControlFlow::Continue(())
    }
}

#[test]
fn dirty_log_with_a_bad_unlinked_list_is_mounted_for_reading() {
    let (device, ag, bucket) = with_linked_inode_in_list();
    leave_dirty(&device, 32 << 10, |transaction| {
        let what = BlockType::header(Header::Superblock, AgNr(0));
        let size = BlockSize::new(512).unwrap();
        transaction.touch(BasicBlock(0), size, &what).unwrap();
    });
    let options = MountOptions::default();
    let xfs = Xfs::mount(Arc::clone(&device), &options, budget()).unwrap();
    let report = xfs.recovery().unwrap();
    assert_eq!(report.position.state, LogState::Dirty);
    assert_eq!((report.inodes_freed, report.lost_unlinked.len()), (0, 1));
    assert!(xfs.context().agi(ag).unwrap().unlinked[bucket].is_none());
    let file = xfs.root().unwrap().lookup(name("file")).unwrap();
    assert_eq!(file.attr().unwrap().links, 1);
    let mut rules = Rules(Vec::new());
    check::check(&device, &options, &budget(), &mut rules).unwrap();
    let expected = GroupRule::UnlinkedList.text();
    assert!(rules.0.iter().any(|rule| rule == expected), "{:?}", rules.0);
}
