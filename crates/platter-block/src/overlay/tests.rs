//! The overlay compared with a plain array, and its own rules.

use proptest::prelude::*;

use super::*;
use crate::stats::CountingDevice;
use crate::{MemoryDevice, ReadOnlyDevice};

fn base(length: usize) -> Vec<u8> {
    (0..251).cycle().take(length).collect()
}

fn overlay(
    length: usize,
    chunk_bytes: u32,
    limit_bytes: u64,
) -> (Arc<MemoryDevice>, OverlayDevice) {
    let memory = Arc::new(MemoryDevice::new("memory", base(length)));
    let guard = Arc::new(ReadOnlyDevice::new(memory.clone()));
    let options = OverlayOptions {
        chunk_bytes,
        limit_bytes,
    };
    (memory, OverlayDevice::new(guard, options))
}

fn contents(device: &OverlayDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.geometry().len_bytes).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn writes_do_not_reach_the_base() {
    let (memory, device) = overlay(10_000, 4096, 1 << 20);
    assert!(!device.geometry().read_only);
    device.write_at(4090, &[1; 12]).unwrap();
    device.flush().unwrap();
    let mut expected = base(10_000);
    expected[4090..4102].fill(1);
    assert_eq!(contents(&device), expected);
    assert_eq!(memory.snapshot(), base(10_000));
    assert_eq!(device.held_bytes(), 8192);
}

#[test]
fn write_beyond_the_limit_changes_nothing() {
    let (_, device) = overlay(100_000, 4096, 8192);
    device.write_at(0, &[1; 8192]).unwrap();
    let before = contents(&device);
    let error = device.write_at(4096, &[2; 8192]).unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
    assert!(error.to_string().contains("8192 bytes"), "{error}");
    assert_eq!(contents(&device), before);
    device.write_at(100, &[3; 8000]).unwrap();
    assert_eq!(device.held_bytes(), 8192);
}

#[test]
fn discard_frees_whole_chunks_only() {
    let (_, device) = overlay(10_000, 4096, 1 << 20);
    device.write_at(0, &vec![1; 10_000]).unwrap();
    assert_eq!(device.held_bytes(), 10_000);
    device.discard(1..8191).unwrap();
    assert_eq!(device.held_bytes(), 10_000);
    device.discard(5000..10_000).unwrap();
    assert_eq!(device.held_bytes(), 8192);
    device.discard(0..8192).unwrap();
    assert_eq!(device.held_bytes(), 0);
    assert!(device.discard(0..10_001).is_err());
}

#[test]
fn unwritten_ranges_cost_one_request_below() {
    let memory = Arc::new(MemoryDevice::new("memory", base(1 << 20)));
    let counting = Arc::new(CountingDevice::new(memory));
    let device = OverlayDevice::new(counting.clone(), OverlayOptions::default());
    let mut buf = vec![0; 1 << 20];
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(counting.counts().reads, 1);
    device.write_at(8192, &[1; 4096]).unwrap();
    assert_eq!(counting.counts().reads, 1, "a whole chunk needs no read");
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(counting.counts().reads, 3, "one run on either side");
    device.read_at(8200, &mut buf[..100]).unwrap();
    assert_eq!(counting.counts().reads, 3, "what is held is not read below");
    let (one, two) = buf.split_at_mut(4096);
    let mut bufs = [IoSliceMut::new(one), IoSliceMut::new(&mut two[..4096])];
    device.read_vectored_at(65536, &mut bufs).unwrap();
    assert_eq!(counting.counts().reads, 4, "a vectored read stays one");
}

#[test]
fn fork_is_independent() {
    let (_, device) = overlay(10_000, 512, 1 << 20);
    device.write_at(0, &[1; 1024]).unwrap();
    let fork = device.fork();
    assert_eq!(contents(&fork), contents(&device));
    fork.write_at(100, &[2; 4]).unwrap();
    device.write_at(600, &[3; 4]).unwrap();
    assert_eq!(contents(&fork)[98..106], [1, 1, 2, 2, 2, 2, 1, 1]);
    assert_eq!(contents(&fork)[600..604], [1; 4]);
    assert_eq!(contents(&device)[100..104], [1; 4]);
    assert_eq!(contents(&device)[600..604], [3; 4]);
}

#[test]
fn written_ranges_are_reported_as_data() {
    #[derive(Debug)]
    struct Hole(MemoryDevice);
    impl BlockDevice for Hole {
        fn name(&self) -> &Arc<str> {
            self.0.name()
        }
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
            self.0.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
            self.0.write_at(offset, buf)
        }
        fn flush(&self) -> Result<(), IoError> {
            Ok(())
        }
        fn discard(&self, _range: Range<u64>) -> Result<(), IoError> {
            Ok(())
        }
        fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
            Ok((offset < 20_000).then(|| offset.max(16_384)..20_000))
        }
    }
    let memory = MemoryDevice::new("memory", vec![0; 100_000]);
    let device = OverlayDevice::new(Arc::new(Hole(memory)), OverlayOptions::default());
    assert_eq!(device.next_data(0).unwrap(), Some(16_384..20_000));
    assert_eq!(device.next_data(20_000).unwrap(), None);
    device.write_at(5000, &[1; 4096]).unwrap();
    device.write_at(99_999, &[1]).unwrap();
    assert_eq!(device.next_data(0).unwrap(), Some(4096..12_288));
    assert_eq!(device.next_data(6000).unwrap(), Some(6000..12_288));
    assert_eq!(device.next_data(12_288).unwrap(), Some(16_384..20_000));
    assert_eq!(device.next_data(20_000).unwrap(), Some(98_304..100_000));
    assert_eq!(device.next_data(100_000).unwrap(), None);
}

#[test]
fn concurrent_writers_and_readers_agree() {
    const LANES: u8 = 4;
    let (_, device) = overlay(65_536, 512, 1 << 20);
    let device = &device;
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            // Lanes interleave every 100 bytes, so that adjacent writes share chunks.
            scope.spawn(move || {
                for round in 0..20u8 {
                    for start in (u64::from(lane) * 100..65_000).step_by(400) {
                        let bytes = [lane * 50 + round; 100];
                        device.write_at(start, &bytes).unwrap();
                        let mut back = [0; 100];
                        device.read_at(start, &mut back).unwrap();
                        assert_eq!(back, bytes);
                    }
                }
            });
        }
    });
    for lane in 0..LANES {
        let start = usize::from(lane) * 100;
        assert_eq!(contents(device)[start..start + 100], [lane * 50 + 19; 100]);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize, u8),
    Read(usize, usize),
    ReadVectored(usize, usize, usize),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0usize..5200, 0usize..2000);
    proptest::collection::vec(
        prop_oneof![
            4 => (place(), any::<u8>()).prop_map(|((at, len), byte)| Step::Write(at, len, byte)),
            3 => place().prop_map(|(at, len)| Step::Read(at, len)),
            2 => (place(), 0usize..2000).prop_map(|((at, one), two)| Step::ReadVectored(at, one, two)),
            1 => Just(Step::Flush),
        ],
        0..40,
    )
}

proptest! {
    #[test]
    fn overlay_reads_like_an_array(steps in steps(), chunk_log in 0u32..13, length in 0usize..6000) {
        let (memory, device) = overlay(length, 1 << chunk_log, u64::MAX);
        let mut model = base(length);
        for step in steps {
            match step {
                Step::Write(at, len, byte) => {
                    let written = device.write_at(at as u64, &vec![byte; len]);
                    prop_assert_eq!(written.is_ok(), at + len <= length);
                    if written.is_ok() {
                        model[at..at + len].fill(byte);
                    }
                }
                Step::Read(at, len) => {
                    let mut buf = vec![0; len];
                    let read = device.read_at(at as u64, &mut buf);
                    prop_assert_eq!(read.is_ok(), at + len <= length);
                    if read.is_ok() {
                        prop_assert_eq!(&buf, &model[at..at + len]);
                    }
                }
                Step::ReadVectored(at, one, two) => {
                    let (mut first, mut second) = (vec![0; one], vec![0; two]);
                    let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
                    let read = device.read_vectored_at(at as u64, &mut bufs);
                    prop_assert_eq!(read.is_ok(), at + one + two <= length);
                    if read.is_ok() {
                        prop_assert_eq!(&first, &model[at..at + one]);
                        prop_assert_eq!(&second, &model[at + one..at + one + two]);
                    }
                }
                Step::Flush => device.flush().unwrap(),
            }
            let held: usize = device.chunks.read().values().map(|chunk| chunk.len()).sum();
            prop_assert_eq!(device.held_bytes(), held as u64);
        }
        prop_assert_eq!(contents(&device), model);
        prop_assert_eq!(memory.snapshot(), base(length));
    }
}
