//! Copies from file to file, whose data stays on this side of the kernel.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

use platter_fuse::Operation;
use platter_vfs::{Filesystem, Name};
use rustix::fs::copy_file_range;
use rustix::io::Errno;

use crate::mounted::{Mounted, plant};

fn contents(len: u32) -> Vec<u8> {
    (0..len).map(|byte| (byte % 251) as u8).collect()
}

#[test]
fn cp_moves_no_data_through_the_mount() {
    let data = contents(3_000_001);
    let mounted = Mounted::with("", |fs| drop(plant(fs, "from", &data)));
    let (from, to) = (mounted.path("from"), mounted.path("to"));
    let requests = mounted.requests_of(|| {
        let mut cp = Command::new("cp");
        let copied = cp.arg("--reflink=auto").args([&from, &to]).status();
        assert!(copied.unwrap().success());
    });
    assert!(requests.of(Operation::CopyFileRange) >= 1);
    assert_eq!(requests.of(Operation::Read), 0, "{:?}", requests.all());
    assert_eq!(requests.of(Operation::Write), 0, "{:?}", requests.all());
    assert_eq!(fs::read(&to).unwrap(), data);
    mounted.unmount();
}

#[test]
fn copied_range_is_seen_at_once_with_its_size() {
    let mounted = Mounted::with("", |fs| drop(plant(fs, "from", &contents(20_000))));
    let (from, to) = (mounted.path("from"), mounted.path("to"));
    let source = File::options().read(true).write(true).open(&from).unwrap();
    fs::write(&to, [1; 9000]).unwrap();
    // Both are in the page cache of the kernel by now, the second in its old state.
    assert_eq!(fs::read(&to).unwrap(), [1; 9000]);
    source.write_all_at(b"changed", 5000).unwrap();
    let target = File::options().write(true).open(&to).unwrap();
    let copied = copy_file_range(&source, Some(&mut 5000), &target, Some(&mut 8000), 4000);
    assert_eq!(copied.unwrap(), 4000);
    let mut expected = [vec![1; 8000], contents(20_000)[5000..9000].to_vec()].concat();
    expected[8000..8007].copy_from_slice(b"changed");
    assert_eq!(fs::read(&to).unwrap(), expected);
    assert_eq!(fs::metadata(&to).unwrap().len(), 12_000);
    let accessed = mounted
        .fs
        .root()
        .unwrap()
        .lookup(Name::new(b"from").unwrap());
    let accessed = accessed.unwrap().attr().unwrap().accessed;
    let seen = fs::metadata(&from).unwrap();
    assert_eq!(
        (seen.atime(), seen.atime_nsec()),
        (accessed.seconds, accessed.nanoseconds.into())
    );
    let past_end = copy_file_range(&source, Some(&mut 20_000), &target, Some(&mut 0), 10);
    assert_eq!(past_end.unwrap(), 0);
    let overlaps = copy_file_range(&source, Some(&mut 0), &source, Some(&mut 10), 100);
    assert_eq!(overlaps.unwrap_err(), Errno::INVAL);
    drop((source, target));
    mounted.unmount();
}
