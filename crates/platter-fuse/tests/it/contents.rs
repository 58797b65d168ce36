//! Contents of files, written and read through the kernel, and their holes.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::thread;
use std::time::SystemTime;

use platter_fuse::MountOptions;
use rustix::fs::{
    FallocateFlags, IFlags, XattrFlags, fallocate, ioctl_setflags, removexattr, setxattr,
};
use rustix::io::Errno;

use crate::mounted::{Mounted, plant, refused, run, soon};

#[test]
fn writes_land_where_they_should() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"far", 1 << 20).unwrap();
    file.write_all_at(b"near", 3).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut expected = vec![0; (1 << 20) + 3];
    expected[3..7].copy_from_slice(b"near");
    expected[1 << 20..].copy_from_slice(b"far");
    assert!(fs::read(&path).unwrap() == expected);
    let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
    appending.write_all(b" end").unwrap();
    drop(appending);
    assert!(fs::read(&path).unwrap().ends_with(b"far end"));
    fs::write(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
    // What the filesystem below has is what the kernel showed.
    mounted.session().unmounter().unmount().unwrap();
    let inode = platter_vfs::PathWalk::new(&*mounted.fs)
        .resolve(b"f")
        .unwrap();
    let mut below = [0; 16];
    assert_eq!(inode.read_at(0, &mut below).unwrap(), 5);
    assert_eq!(&below[..5], b"short");
}

#[test]
fn truncating_and_growing_leave_zeros() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    fs::write(&path, [7; 10_000]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(100).unwrap();
    file.set_len(5_000).unwrap();
    drop(file);
    let contents = fs::read(&path).unwrap();
    assert_eq!(contents.len(), 5_000);
    assert!(contents[..100].iter().all(|&byte| byte == 7));
    assert!(contents[100..].iter().all(|&byte| byte == 0));
    mounted.unmount();
}

#[test]
fn mapped_pages_are_files_too() {
    let mounted = Mounted::with("", |fs| drop(plant(fs, "f", &vec![b'x'; 20_000])));
    // cp reads, and cmp maps where it can; both have to agree with the original.
    let (from, to) = (mounted.path("f"), mounted.path("copy"));
    run("cp", &[from.to_str().unwrap(), to.to_str().unwrap()]);
    run("cmp", &[from.to_str().unwrap(), to.to_str().unwrap()]);
    mounted.unmount();
}

#[test]
fn holes_are_found_and_made() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.write_all_at(&[1; 4096], 65_536).unwrap();
    file.sync_all().unwrap();
    let seek = |position| rustix::fs::seek(&file, position);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(65_536));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(69_632)), Err(Errno::NXIO));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 65_536, 4096).unwrap();
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4096)),
        Err(Errno::NXIO)
    );
    fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (100_000, 25 * 8));
    file.seek(SeekFrom::Start(65_536)).unwrap();
    let mut byte = [9];
    file.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [0]);
    drop(file);
    mounted.unmount();
}

#[test]
fn what_the_kernel_has_not_written_yet_is_no_hole() {
    use rustix::fs::SeekFrom::{Data, Hole};
    let mounted = Mounted::with("writeback=on", |_| {});
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        options
    };
    let file = open().open(mounted.path("new")).unwrap();
    file.write_all_at(&vec![1; 300_000], 0).unwrap();
    assert_eq!(rustix::fs::seek(&file, Data(0)), Ok(0));
    assert_eq!(rustix::fs::seek(&file, Hole(0)), Ok(300_000));
    assert_eq!(rustix::fs::seek(&file, Data(299_999)), Ok(299_999));
    assert_eq!(rustix::fs::seek(&file, Data(300_000)), Err(Errno::NXIO));
    let sparse = open().open(mounted.path("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    for offset in [900_000, 0, 500_000] {
        sparse.write_all_at(&[1; 10], offset).unwrap();
    }
    let page = |offset: u64| offset / 4096 * 4096;
    assert_eq!(rustix::fs::seek(&sparse, Hole(0)), Ok(4096));
    assert_eq!(rustix::fs::seek(&sparse, Data(4096)), Ok(page(500_000)));
    let end = page(500_000) + 4096;
    assert_eq!(rustix::fs::seek(&sparse, Hole(500_000)), Ok(end));
    assert_eq!(rustix::fs::seek(&sparse, Data(end)), Ok(page(900_000)));
    let end = page(900_000) + 4096;
    assert_eq!(rustix::fs::seek(&sparse, Data(end)), Err(Errno::NXIO));
    // In the middle of looking, other files are served.
    thread::scope(|scope| {
        for number in 0..8 {
            let mounted = &mounted;
            scope.spawn(move || {
                let path = mounted.path(&format!("f{number}"));
                for _ in 0..20 {
                    let _ = fs::remove_file(&path);
                    let file = open().open(&path).unwrap();
                    file.write_all_at(&[1; 10_000], 50_000).unwrap();
                    assert_eq!(rustix::fs::seek(&file, Data(0)), Ok(49_152));
                }
            });
        }
    });
    drop((file, sparse));
    mounted.unmount();
}

#[test]
fn the_space_that_was_written_is_reported() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    let file = File::create(&path).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    for count in 1..4 {
        file.write_all_at(&[1; 4096], count * 8192).unwrap();
        file.sync_all().unwrap();
        let is_reported = || fs::metadata(&path).unwrap().blocks() == count * 8;
        assert!(soon(is_reported), "{count} blocks");
    }
    drop(file);
    mounted.unmount();
}

#[test]
fn files_that_are_frozen_stay_as_they_are() {
    keeps_frozen_files("", |file| {
        refused(file.write_all_at(b"CONTENTS", 0), Errno::PERM);
    });
}

#[test]
fn what_the_kernel_gathers_for_frozen_files_is_refused_later() {
    keeps_frozen_files("writeback=on", |file| {
        file.write_all_at(b"CONTENTS", 0).unwrap();
        assert!(file.sync_all().is_err());
    });
}

#[test]
fn a_file_that_only_grows_is_appended_to_and_not_overwritten() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    fs::write(&path, b"contents").unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    ioctl_setflags(&file, IFlags::APPEND).unwrap();
    refused(file.write_all_at(b"CONTENTS", 0), Errno::PERM);
    refused(file.write_all_at(b" and more", 8), Errno::PERM);
    assert!(soon(|| fs::read(&path).unwrap() == b"contents"));
    let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
    appending.write_all(b" and more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"contents and more");
    ioctl_setflags(&file, IFlags::empty()).unwrap();
    file.write_all_at(b"CONTENTS", 0).unwrap();
    drop((file, appending));
    mounted.unmount();
}

fn keeps_frozen_files(options: &str, write: impl Fn(&File)) {
    let mounted = Mounted::with(options, |_| {});
    let frozen = |name: &str, flags: IFlags| {
        let path = mounted.path(name);
        let file = File::create(&path).unwrap();
        file.write_all_at(b"contents", 0).unwrap();
        // What was written before counts, though the kernel has not sent it yet.
        ioctl_setflags(&file, flags).unwrap();
        file.sync_all().unwrap();
        path
    };
    for flags in [IFlags::IMMUTABLE, IFlags::APPEND] {
        let path = frozen(&format!("{flags:?}"), flags);
        let refused = |result| refused(result, Errno::PERM);
        refused(fs::set_permissions(
            &path,
            fs::Permissions::from_mode(0o600),
        ));
        refused(std::os::unix::fs::chown(&path, Some(1), None));
        let file = File::open(&path).unwrap();
        refused(file.set_times(FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH)));
        refused(setxattr(&path, c"user.a", b"1", XattrFlags::empty()).map_err(Into::into));
        refused(removexattr(&path, c"user.a").map_err(Into::into));
        let writable = OpenOptions::new().write(true).open(&path).unwrap();
        refused(writable.set_len(1));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        refused(fallocate(&writable, punch, 0, 4).map_err(Into::into));
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        if flags == IFlags::IMMUTABLE {
            write(&writable);
            assert!(soon(|| fs::read(&path).unwrap() == b"contents"));
        }
        ioctl_setflags(&file, IFlags::empty()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    mounted.unmount();
}

#[test]
fn a_full_filesystem_says_so() {
    let clock = std::sync::Arc::new(platter_vfs::SystemClock::new());
    let limits = platter_memfs::MemFsLimits {
        pages: 16,
        inodes: 4,
    };
    let fs = std::sync::Arc::new(platter_memfs::MemFs::new(clock, limits));
    let mounted = Mounted::serving(fs.clone(), fs, MountOptions::default());
    let file = File::create(mounted.path("f")).unwrap();
    // As much as there is space for is written first.
    let written = file.write_at(&vec![1; 1 << 20], 0).unwrap();
    assert!((32 << 10..=64 << 10).contains(&written), "{written}");
    assert_eq!(file.metadata().unwrap().len(), written as u64);
    let more = file.write_at(&vec![1; 1 << 20], written as u64);
    refused(more, Errno::NOSPC);
    drop(file);
    for name in ["g", "h"] {
        fs::write(mounted.path(name), b"").unwrap();
    }
    refused(fs::write(mounted.path("i"), b""), Errno::NOSPC);
    mounted.unmount();
}
