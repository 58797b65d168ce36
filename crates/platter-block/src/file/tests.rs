//! Files: sizes, holes, locks, direct I/O, and refusals.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;

const READ: OpenOptions = OpenOptions {
    access: Access::Read,
    direct: false,
};
const READ_UNLOCKED: OpenOptions = OpenOptions {
    access: Access::ReadUnlocked,
    direct: false,
};
const WRITE: OpenOptions = OpenOptions {
    access: Access::Write,
    direct: false,
};

fn image(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..251).cycle().take(length).collect()
}

fn refusal(result: Result<FileDevice, OpenError>) -> Refusal {
    match result.unwrap_err() {
        OpenError::Refused { refusal, .. } => refusal,
        OpenError::Io(error) => panic!("not a refusal: {error}"),
    }
}

#[test]
fn file_of_any_size_is_read_and_written() {
    for length in [0, 1, 511, 4095, 10_001] {
        let (_dir, path) = image(&pattern(length));
        let device = FileDevice::open(&path, WRITE).unwrap();
        assert_eq!(device.geometry().len_bytes, length as u64);
        assert_eq!(device.geometry().logical_block_bytes, 512);
        let mut buf = vec![0; length];
        device.read_at(0, &mut buf).unwrap();
        assert_eq!(buf, pattern(length));
        assert!(device.read_at(length as u64, &mut [0]).is_err());
        assert!(device.write_at(length as u64, &[0]).is_err());
        if let Some(last) = length.checked_sub(1) {
            device.write_at(last as u64, &[255]).unwrap();
            device.flush().unwrap();
            assert_eq!(fs::read(&path).unwrap()[last], 255);
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
    }
}

#[test]
fn vectored_requests_keep_their_order() {
    let (_dir, path) = image(&vec![0; 400_000]);
    let device = FileDevice::open(&path, WRITE).unwrap();
    // More buffers than the kernel takes in one call, some of them empty.
    let bufs: Vec<Vec<u8>> = (0..3000).map(|i| pattern(i % 200)).collect();
    let slices: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
    device.write_vectored_at(777, &slices).unwrap();
    let flat = bufs.concat();
    assert_eq!(fs::read(&path).unwrap()[777..777 + flat.len()], flat);
    let mut back: Vec<Vec<u8>> = bufs.iter().map(|buf| vec![0; buf.len()]).collect();
    let mut slices: Vec<_> = back.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
    device.read_vectored_at(777, &mut slices).unwrap();
    assert_eq!(back, bufs);
    assert!(
        device
            .read_vectored_at(399_999, &mut [IoSliceMut::new(&mut [0; 2])])
            .is_err()
    );
}

#[test]
fn shrunken_file_returns_an_error() {
    let (_dir, path) = image(&pattern(10_000));
    let device = FileDevice::open(&path, READ_UNLOCKED).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(5000)
        .unwrap();
    let mut buf = [0; 100];
    device.read_at(4000, &mut buf).unwrap();
    let error = device.read_at(4950, &mut buf).unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::UnexpectedEof);
    assert!(
        error.to_string().ends_with("shorter since it was opened"),
        "{error}"
    );
}

#[test]
fn reader_changes_nothing() {
    let (_dir, path) = image(&pattern(10_000));
    let old = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 1_000_000,
            tv_nsec: 0,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: 1_000_001,
            tv_nsec: 0,
        },
    };
    rustix::fs::futimens(fs::File::open(&path).unwrap(), &old).unwrap();
    let device = FileDevice::open(&path, READ).unwrap();
    assert!(device.geometry().read_only);
    device.read_at(0, &mut [0; 10_000]).unwrap();
    for refused in [
        device.write_at(0, &[1]),
        device.write_vectored_at(0, &[IoSlice::new(&[1])]),
        device.discard(0..4096),
        device.flush(),
    ] {
        let kind = refused.unwrap_err().source.kind();
        assert_eq!(kind, io::ErrorKind::ReadOnlyFilesystem);
    }
    drop(device);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.atime(), metadata.mtime()), (1_000_000, 1_000_001));
    assert_eq!(fs::read(&path).unwrap(), pattern(10_000));
}

#[test]
fn holes_are_reported() {
    const MIB: u64 = 1 << 20;
    let (_dir, path) = image(&[]);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8 * MIB + 100).unwrap();
    file.write_all_at(&[1; 4096], 2 * MIB).unwrap();
    let device = FileDevice::open(&path, WRITE).unwrap();
    let data = device.next_data(0).unwrap().unwrap();
    assert_eq!(data.start, 2 * MIB);
    assert!(data.end >= 2 * MIB + 4096 && data.end < 3 * MIB, "{data:?}");
    assert_eq!(
        device.next_data(2 * MIB + 5).unwrap().unwrap().start,
        2 * MIB + 5
    );
    assert_eq!(device.next_data(3 * MIB).unwrap(), None);
    assert_eq!(device.next_data(8 * MIB + 100).unwrap(), None);
    assert_eq!(device.next_data(u64::MAX).unwrap(), None);

    device.discard(2 * MIB..2 * MIB + 4096).unwrap();
    assert_eq!(device.next_data(0).unwrap(), None);
    assert_eq!(fs::metadata(&path).unwrap().len(), 8 * MIB + 100);
    device.discard(5..5).unwrap();
    assert!(device.discard(0..8 * MIB + 101).is_err());
    device.will_need(0..u64::MAX);
}

#[test]
fn writer_excludes_readers_and_writers() {
    let (_dir, path) = image(&pattern(1000));
    let reader = FileDevice::open(&path, READ).unwrap();
    let second = FileDevice::open(&path, READ).unwrap();
    assert!(reader.is_locked());
    let refused = refusal(FileDevice::open(&path, WRITE));
    let Refusal::InUse(ImageUser::Reader(Some(process))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(process.id, std::process::id());
    drop((reader, second));

    let writer = FileDevice::open(&path, WRITE).unwrap();
    for options in [READ, WRITE] {
        let refused = FileDevice::open(&path, options).unwrap_err();
        let message = refused.to_string();
        let by = format!("by another writer: process {} (", std::process::id());
        assert!(
            message.contains(&format!("image: in use {by}")),
            "{message}"
        );
        let error = IoError::from(refused);
        assert_eq!(error.source.kind(), io::ErrorKind::ResourceBusy);
        let text = error.to_string();
        assert!(
            text.contains(&format!("image: open: in use {by}")),
            "{text}"
        );
    }
    let unlocked = FileDevice::open(&path, READ_UNLOCKED).unwrap();
    assert!(!unlocked.is_locked());
    drop(writer);
    FileDevice::open(&path, WRITE).unwrap();
}

#[test]
fn locked_part_excludes_lock_of_whole_file() {
    let (_dir, path) = image(&pattern(30_000));
    let part = |options, range: Range<u64>| -> Result<FileDevice, OpenError> {
        let device = FileDevice::open_parts(&path, options)?;
        device.lock_part(&range)?;
        Ok(device)
    };
    let first = part(WRITE, 2048..10_000).unwrap();
    let second = part(WRITE, 10_000..20_000).unwrap();
    let reader = part(READ, 20_000..30_000).unwrap();
    for (options, range) in [
        (WRITE, 9_999..10_001),
        (READ, 2048..2049),
        (WRITE, 20_000..u64::MAX),
    ] {
        let refused = refusal(part(options, range));
        assert!(matches!(refused, Refusal::InUse(_)), "{refused:?}");
    }
    for options in [READ, WRITE] {
        let refused = refusal(FileDevice::open(&path, options));
        assert!(
            matches!(refused, Refusal::InUse(ImageUser::Writer(_))),
            "{refused:?}"
        );
    }
    drop((first, second));
    let whole = FileDevice::open(&path, READ).unwrap();
    let refused = refusal(part(WRITE, 2048..10_000));
    assert!(
        matches!(refused, Refusal::InUse(ImageUser::Reader(_))),
        "{refused:?}"
    );
    drop((whole, reader));
    let whole = FileDevice::open(&path, WRITE).unwrap();
    assert!(part(READ, 0..1).is_err());
    drop(whole);
    part(WRITE, 2048..10_000).unwrap();
}

#[test]
fn open_of_leased_file_waits_for_its_release() {
    // Without a handler SIGIO would end the process.
    let ignoring = "trap '' IO; exec \"$0\" \"$@\"";
    let (_dir, path) = image(&pattern(1000));
    if std::env::var_os("LEASE_HELD").is_none() {
        let test = "file::tests::open_of_leased_file_waits_for_its_release";
        let output = std::process::Command::new("sh")
            .args(["-c", ignoring])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env("LEASE_HELD", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let device = FileDevice::open(&path, WRITE).unwrap();
    device.take_lease().unwrap();
    let (sender, opened) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(fs::File::open(&path).unwrap()).unwrap());
        let pause = std::time::Duration::from_millis(300);
        assert!(opened.recv_timeout(pause).is_err(), "it does not wait");
        device.release_lease().unwrap();
        let file = opened.recv().unwrap();
        let again = device.take_lease().unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
        drop(file);
    });
    device.take_lease().unwrap();
}

#[test]
fn lock_is_released_although_a_child_inherited_it() {
    let (_dir, path) = image(&pattern(1000));
    let writer = FileDevice::open(&path, WRITE).unwrap();
    let inherited = rustix::io::dup(&writer.file).unwrap();
    drop(writer);
    FileDevice::open(&path, WRITE).unwrap();
    drop(inherited);
}

#[test]
fn open_refuses_other_file_types() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for options in [READ, WRITE] {
        assert_eq!(
            refusal(FileDevice::open(dir.path(), options)),
            Refusal::Directory
        );
        assert_eq!(
            refusal(FileDevice::open(&path, options)),
            Refusal::NotAnImage("FIFO")
        );
        let null = Path::new("/dev/null");
        let refused = refusal(FileDevice::open(null, options));
        assert_eq!(refused, Refusal::NotAnImage("character device"));
    }
    let missing = FileDevice::open(&dir.path().join("missing"), READ).unwrap_err();
    let OpenError::Io(error) = &missing else {
        panic!("{missing}");
    };
    assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    assert!(
        missing.to_string().contains("missing: open: No such file"),
        "{missing}"
    );
}

#[test]
fn missing_direct_io_support_is_reported() {
    let options = OpenOptions {
        direct: true,
        ..READ
    };
    let path = Path::new("/proc/version");
    assert_eq!(refusal(FileDevice::open(path, options)), Refusal::NoDirect);
}

#[test]
fn direct_io_takes_any_offset_and_memory() {
    const LENGTH: usize = (3 << 20) + 123;
    let (_dir, path) = image(&pattern(LENGTH));
    let mut model = pattern(LENGTH);
    let options = OpenOptions {
        direct: true,
        ..WRITE
    };
    let device = FileDevice::open(&path, options).unwrap();
    for (start, length) in [
        (0, LENGTH),
        (0, 1 << 20),
        (4096, (1 << 20) + 4096),
        (4097, 3),
        (1, (2 << 20) + 5),
        (LENGTH - 123, 123),
        (LENGTH - 1, 1),
        (LENGTH, 0),
    ] {
        // One byte into the allocation, so that the memory is not aligned.
        let mut memory = vec![0; length + 1];
        device.read_at(start as u64, &mut memory[1..]).unwrap();
        assert_eq!(memory[1..], model[start..start + length]);
        memory[1..].fill(start.to_le_bytes()[0] ^ 0x5a);
        device.write_at(start as u64, &memory[1..]).unwrap();
        model[start..start + length].copy_from_slice(&memory[1..]);
    }
    device.flush().unwrap();
    let mut back = vec![0; LENGTH];
    device.read_at(0, &mut back).unwrap();
    assert!(back == model, "direct");
    assert!(fs::read(&path).unwrap() == model, "through the page cache");
    assert_eq!(fs::metadata(&path).unwrap().len(), LENGTH as u64);
}

#[test]
fn concurrent_direct_writes_lose_no_bytes() {
    const LANES: u8 = 4;
    let (_dir, path) = image(&vec![0; 64 << 10]);
    let options = OpenOptions {
        direct: true,
        ..WRITE
    };
    let device = &FileDevice::open(&path, options).unwrap();
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn(move || {
                for round in 1..30u8 {
                    // The first lane writes whole blocks, the others pieces of the next block.
                    let (skip, length) = match lane {
                        0 => (0, 4096),
                        lane => (4096 + u64::from(lane) * 512 + 1, 500),
                    };
                    for start in (0..64 << 10).step_by(8192) {
                        let bytes = vec![lane * 60 + round; length];
                        device.write_at(start + skip, &bytes).unwrap();
                        let mut back = vec![0; length];
                        device.read_at(start + skip, &mut back).unwrap();
                        assert_eq!(back, bytes);
                    }
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn direct_vectored_io_matches_the_file(
        at in 0usize..9000, lengths in proptest::collection::vec(0usize..5000, 0..6)
    ) {
        const LENGTH: usize = 50_001;
        let (_dir, path) = image(&pattern(LENGTH));
        let options = OpenOptions { direct: true, ..WRITE };
        let device = FileDevice::open(&path, options).unwrap();
        let mut bufs: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length]).collect();
        let mut slices: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        device.read_vectored_at(at as u64, &mut slices).unwrap();
        let total: usize = lengths.iter().sum();
        prop_assert_eq!(&bufs.concat()[..], &pattern(LENGTH)[at..at + total]);
        let slices: Vec<_> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
        device.write_vectored_at(at as u64 + 13, &slices).unwrap();
        let mut model = pattern(LENGTH);
        model.copy_within(at..at + total, at + 13);
        prop_assert!(fs::read(&path).unwrap() == model);
    }
}

#[test]
fn open_file_is_used_locked_and_refused_unless_positioned() {
    let (_dir, path) = image(&pattern(10_001));
    let open = |options: &fs::OpenOptions| options.open(&path).unwrap();
    let reading = || open(fs::OpenOptions::new().read(true));
    let both = || open(fs::OpenOptions::new().read(true).write(true));
    let device = FileDevice::from_file(both(), Access::Write).unwrap();
    assert_eq!(**device.name(), *path.to_string_lossy());
    device.write_at(10_000, &[255]).unwrap();
    assert_eq!(fs::read(&path).unwrap()[10_000], 255);
    assert!(device.write_at(10_001, &[0]).is_err());
    let other = FileDevice::from_file(reading(), Access::Read);
    assert!(matches!(refusal(other), Refusal::InUse(_)));
    drop(device);
    let shared = both();
    let device = FileDevice::from_file(shared.try_clone().unwrap(), Access::Write).unwrap();
    let other = FileDevice::from_file(shared, Access::Write);
    assert!(matches!(refusal(other), Refusal::InUse(_)));
    drop(device);
    let device = FileDevice::from_file(reading(), Access::Read).unwrap();
    assert!(device.geometry().read_only && device.is_locked());
    drop(device);
    let appending = || open(fs::OpenOptions::new().read(true).append(true));
    for (file, access, errno) in [
        (reading(), Access::Write, Errno::BADF),
        (
            open(fs::OpenOptions::new().write(true)),
            Access::Read,
            Errno::BADF,
        ),
        (appending(), Access::Write, Errno::INVAL),
    ] {
        match FileDevice::from_file(file, access).unwrap_err() {
            OpenError::Io(error) => {
                assert_eq!(error.source.raw_os_error(), Some(errno.raw_os_error()));
            }
            OpenError::Refused { refusal, .. } => panic!("{refusal}"),
        }
    }
}

#[test]
fn file_grows_while_it_is_open() {
    let (_dir, path) = image(&pattern(5000));
    let device = Arc::new(FileDevice::open(&path, WRITE).unwrap());
    let below: Arc<dyn BlockDevice> = Arc::<FileDevice>::clone(&device);
    let revocable = crate::RevocableDevice::new(below);
    assert!(revocable.write_at(8000, &[1; 8]).is_err());
    revocable.grow(9000).unwrap();
    for device in [&*device as &dyn BlockDevice, &revocable] {
        assert_eq!(device.geometry().len_bytes, 9000);
    }
    revocable.write_at(8000, &[1; 8]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 9000);
    // It does not become shorter, and is as long as others made it.
    device.grow(100).unwrap();
    assert_eq!(device.geometry().len_bytes, 9000);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(12_000).unwrap();
    device.grow(100).unwrap();
    assert_eq!(device.geometry().len_bytes, 12_000);
    drop(revocable);
    drop(device);
    let read_only = FileDevice::open(&path, READ).unwrap();
    assert!(read_only.grow(20_000).is_err());
}
