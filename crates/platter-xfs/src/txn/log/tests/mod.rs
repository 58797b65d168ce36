//! Logs that are written, cut, and replayed by recovery.

mod crashes;
mod items;
mod verify;
mod space;
mod failures;

use platter_block::MemoryDevice;
use platter_block::sim::{Recorder, Recording};
use platter_cache::MemoryBudget;
use platter_cache::buffer::{Addressing, BlockSize, DeviceStore};
use platter_ondisk::verify::Unverified;

use super::*;
use crate::ondisk::log::BufferType;
use crate::ondisk::superblock::tests::sample;
use crate::ondisk::{BasicBlock, Superblock};
use crate::txn::{BlockType, Transaction, find_position, replay, scan};
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

    /// The same of a log that is written with log buffers of so many bytes.
    fn with_buffers(data: Arc<dyn BlockDevice>, log: Arc<dyn BlockDevice>, bytes: u32) -> Self {
        let scene = Self::open(Arc::clone(&data), log_device(1024), 512);
        let device = LogDevice::sample_of(log, scene.superblock.uuid, 512);
        let position = find_position(&device, true).unwrap();
        let (buffers, geometry) = (Arc::clone(&scene.log.buffers), scene.mount.geometry());
        let log = Log::with_buffers(bytes, device, data, buffers, geometry, &position);
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

/// The headers of the records from the tail to the head of a log, where Linux finds them: it takes the size of the
/// headers from the first.
fn headers_of_linux(log: &LogDevice) -> Vec<RecordHeader> {
    let position = find_position(log, true).unwrap();
    let mut headers: Vec<RecordHeader> = Vec::new();
    let mut at = position.tail;
    while at != position.head {
        let sector = log.read(at, 1).unwrap();
        let header = RecordHeader::decode(&sector, log.locus(at)).unwrap();
        headers.push(header);
        let sectors = headers[0].header_sectors() + header.body_sectors();
        at = log.after(at, sectors);
    }
    headers
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
    BlockType::with_verifier(BufferType::Unknown, Arc::new(Unverified))
}

fn edit(transaction: &mut Transaction<'_>, block: u64, chunk: usize, fill: u8) {
    let edited = transaction.edit(at(block), size(), &plain(), |bytes| {
        bytes[chunk * 128..][..100].fill(fill);
        Ok(())
    });
    edited.unwrap();
}

/// The devices of data and log that a recorder has.
fn devices_of(recorder: &Recorder) -> [Arc<dyn BlockDevice>; 2] {
    [0, 1].map(|member| {
        let device: Arc<dyn BlockDevice> = Arc::clone(&recorder.devices()[member]) as _;
        device
    })
}

/// Data and log after all the writes before a position.
fn replayed(recording: &Recording, position: usize) -> [Arc<dyn BlockDevice>; 2] {
    let devices = recording.replay(position).unwrap().into_iter();
    let devices = devices.map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) });
    devices.collect::<Vec<_>>().try_into().unwrap()
}
