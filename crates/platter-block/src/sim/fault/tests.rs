//! Faults apply to the requests they select, and to no others.

use super::*;
use crate::MemoryDevice;

fn device() -> (Arc<MemoryDevice>, FaultDevice) {
    let memory = Arc::new(MemoryDevice::new("memory", vec![7; 64 << 10]));
    let device = FaultDevice::new(memory.clone());
    (memory, device)
}

fn fail(operation: Operation, when: When) -> Fault {
    Fault {
        operation,
        when,
        effect: Effect::Fail(Errno::NXIO),
    }
}

#[test]
fn nth_request_of_its_kind_fails() {
    let (memory, device) = device();
    device.write_at(0, &[0]).unwrap();
    device.arm(fail(Operation::Write, When::Nth(2)));
    device.arm(fail(Operation::Flush, When::Nth(1)));
    device.arm(fail(Operation::Discard, When::Nth(1)));
    device.write_at(0, &[1]).unwrap();
    device.read_at(0, &mut [0]).unwrap();
    let error = device.write_at(0, &[2]).unwrap_err();
    assert_eq!(
        error.source.raw_os_error(),
        Some(Errno::NXIO.raw_os_error())
    );
    assert!(
        error
            .to_string()
            .starts_with("memory: write of 1 bytes at byte 0: "),
        "{error}"
    );
    assert_eq!(memory.snapshot()[0], 1);
    device.write_at(0, &[3]).unwrap();
    assert!(device.flush().is_err());
    device.flush().unwrap();
    assert!(device.discard(0..512).is_err());
    device.discard(0..512).unwrap();
    assert_eq!(device.hits(), 3);
}

#[test]
fn requests_from_the_nth_fail_until_disarmed() {
    let (_, device) = device();
    device.arm(fail(Operation::Read, When::From(2)));
    device.read_at(0, &mut [0]).unwrap();
    for _ in 0..3 {
        assert!(device.read_at(0, &mut [0]).is_err());
    }
    let mut buf = [0];
    assert!(
        device
            .read_vectored_at(0, &mut [IoSliceMut::new(&mut buf)])
            .is_err()
    );
    device.disarm();
    device
        .read_vectored_at(0, &mut [IoSliceMut::new(&mut buf)])
        .unwrap();
    assert_eq!(buf, [7]);
}

#[test]
fn requests_that_overlap_a_bad_range_fail() {
    let (_, device) = device();
    device.arm(fail(Operation::Read, When::Touching(1000..1001)));
    device.read_at(0, &mut [0; 1000]).unwrap();
    device.read_at(1001, &mut [0; 1000]).unwrap();
    assert!(device.read_at(0, &mut [0; 1001]).is_err());
    assert!(device.read_at(1000, &mut [0; 1]).is_err());
    device.write_at(1000, &[0; 1]).unwrap();
}

#[test]
fn torn_write_leaves_whole_blocks() {
    let (memory, device) = device();
    device.arm(Fault {
        operation: Operation::Write,
        when: When::Always,
        effect: Effect::Tear { seed: 11 },
    });
    let bufs = [IoSlice::new(&[1; 10_000]), IoSlice::new(&[1; 10_000])];
    assert!(device.write_vectored_at(100, &bufs).is_err());
    let bytes = memory.snapshot();
    assert_eq!(bytes[..100], [7; 100]);
    assert_eq!(bytes[20_100..], vec![7; (64 << 10) - 20_100]);
    let written = &bytes[100..20_100];
    let mut kept = 0;
    for block in std::iter::once(&written[..412]).chain(written[412..].chunks(512)) {
        assert!(block.iter().all(|&byte| byte == block[0]));
        kept += usize::from(block[0] == 1);
    }
    assert!((5..35).contains(&kept), "{kept} of 40 blocks");
}

#[test]
fn skipped_request_succeeds_without_effect() {
    let (memory, device) = device();
    for operation in [
        Operation::Write,
        Operation::Flush,
        Operation::Discard,
        Operation::Read,
    ] {
        device.arm(Fault {
            operation,
            when: When::Always,
            effect: Effect::Skip,
        });
    }
    device.write_at(0, &[1; 100]).unwrap();
    device.flush().unwrap();
    device.discard(0..1024).unwrap();
    assert_eq!(memory.snapshot(), vec![7; 64 << 10]);
    let mut buf = [1; 4];
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(buf, [0; 4]);
    assert!(
        device.write_at(64 << 10, &[1]).is_err(),
        "the bounds still hold"
    );
}

#[test]
fn torn_read_fails_and_leaves_garbage() {
    let (_, device) = device();
    device.arm(Fault {
        operation: Operation::Read,
        when: When::Always,
        effect: Effect::Tear { seed: 3 },
    });
    let mut buf = [0; 8192];
    assert!(device.read_at(0, &mut buf).is_err());
    assert!(buf.chunks(512).any(|block| block == [7; 512]));
    assert!(buf.chunks(512).any(|block| block == [0xa5; 512]));
}
