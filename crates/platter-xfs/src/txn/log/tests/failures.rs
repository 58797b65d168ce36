//! Devices that fail, or are slow.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64};

use platter_block::sim::{Effect, Fault, FaultDevice, When};

use super::*;

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
