//! What the kernel asks, and above all what it does not ask twice.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;

use platter_fuse::Operation;
use platter_vfs::CreateKind;
use rustix::fs::{XattrFlags, setxattr};

use crate::mounted::{Mounted, plant, soon};

fn read_only(fill: impl FnOnce(&platter_memfs::MemFs)) -> Mounted {
    Mounted::with("ro", fill)
}

#[test]
fn a_second_stat_causes_no_request() {
    let mounted = read_only(|fs| drop(plant(fs, "f", b"contents")));
    let path = mounted.path("f");
    let first = mounted.requests_of(|| assert_eq!(fs::metadata(&path).unwrap().size(), 8));
    assert_eq!(first.of(Operation::Lookup), 1);
    let second = mounted.requests_of(|| assert_eq!(fs::metadata(&path).unwrap().size(), 8));
    assert_eq!(second.all(), []);
    mounted.unmount();
}

#[test]
fn a_missing_name_is_asked_for_once() {
    let mounted = read_only(|_| {});
    let missing = |path: &Path| {
        assert_eq!(fs::metadata(path).unwrap_err().kind(), ErrorKind::NotFound);
    };
    let path = mounted.path("none");
    fs::metadata(mounted.root()).unwrap();
    assert_eq!(
        mounted.requests_of(|| missing(&path)).all(),
        [("LOOKUP", 1)]
    );
    assert_eq!(mounted.requests_of(|| missing(&path)).all(), []);
    mounted.unmount();
}

#[test]
fn a_name_remembered_as_missing_can_be_made() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    assert!(!path.exists());
    fs::write(&path, b"now it is there").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"now it is there");
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    mounted.unmount();
}

#[test]
fn reading_a_file_again_causes_no_request() {
    let contents: Vec<u8> = (0..300_000_u32).map(|byte| (byte % 251) as u8).collect();
    let mounted = read_only(|fs| drop(plant(fs, "f", &contents)));
    let path = mounted.path("f");
    let first = mounted.requests_of(|| assert_eq!(fs::read(&path).unwrap(), contents));
    assert!(first.of(Operation::Read) >= 1);
    assert_eq!(
        first.of(Operation::Open),
        1,
        "the one that says no more are needed"
    );
    let again = mounted.requests_of(|| assert_eq!(fs::read(&path).unwrap(), contents));
    assert_eq!(again.all(), [], "pages are kept from open to open");
    mounted.unmount();
}

#[test]
fn opening_needs_no_request_after_the_first() {
    let mounted = read_only(|fs| {
        plant(fs, "a", b"a");
        plant(fs, "b", b"b");
    });
    fs::read(mounted.path("a")).unwrap();
    let requests = mounted.requests_of(|| assert_eq!(fs::read(mounted.path("b")).unwrap(), b"b"));
    // The program asks for the time of creation, which comes with no other request.
    let expected = [("LOOKUP", 1), ("READ", 1), ("STATX", 1)];
    assert_eq!(requests.all(), expected);
    mounted.unmount();
}

#[test]
fn a_link_is_read_once() {
    let mounted = read_only(|fs| {
        fs.plant(b"link", CreateKind::Symlink(b"target".to_vec()), 0o777)
            .unwrap();
    });
    let read = || {
        assert_eq!(
            fs::read_link(mounted.path("link")).unwrap(),
            Path::new("target")
        );
    };
    assert_eq!(mounted.requests_of(read).of(Operation::ReadLink), 1);
    assert_eq!(mounted.requests_of(read).all(), []);
    mounted.unmount();
}

#[test]
fn a_listing_returns_the_inodes_too_and_is_cached() {
    let mounted = read_only(|fs| {
        for number in 0..50 {
            plant(fs, &format!("file{number}"), b"");
        }
    });
    let list = || {
        let entries = fs::read_dir(mounted.root()).unwrap();
        let sizes = entries.map(|entry| entry.unwrap().metadata().unwrap().size());
        assert_eq!(sizes.filter(|size| *size == 0).count(), 50);
    };
    let first = mounted.requests_of(list);
    assert!(first.of(Operation::ReadDirPlus) >= 1, "{:?}", first.all());
    assert_eq!(
        first.of(Operation::Lookup),
        0,
        "the listing has returned their inodes"
    );
    assert_eq!(mounted.requests_of(list).all(), []);
    mounted.unmount();
}

#[test]
fn a_listing_of_many_names_returns_all_inodes() {
    let mounted = read_only(|fs| {
        for number in 0..3000 {
            plant(fs, &format!("file{number}"), b"");
        }
    });
    let requests = mounted.requests_of(|| {
        let entries: Vec<_> = fs::read_dir(mounted.root()).unwrap().collect();
        for entry in entries {
            assert_eq!(entry.unwrap().metadata().unwrap().size(), 0);
        }
    });
    assert_eq!(requests.of(Operation::Lookup), 0, "{:?}", requests.all());
    mounted.unmount();
}

#[test]
fn a_directory_of_20000_entries_is_listed_whole() {
    let mounted = read_only(|fs| {
        fs.plant(b"large", CreateKind::Directory, 0o755).unwrap();
        for number in 0..20_000 {
            plant(fs, &format!("large/entry-{number:05}"), b"");
        }
    });
    let mut names = Vec::new();
    let requests = mounted.requests_of(|| {
        let entries = fs::read_dir(mounted.path("large")).unwrap();
        names.extend(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
    });
    names.sort_unstable();
    let expected: Vec<_> = (0..20_000)
        .map(|number| format!("entry-{number:05}"))
        .collect();
    assert!(names == expected, "{} names", names.len());
    println!("20,000 entries listed with {:?}", requests.all());
    mounted.unmount();
}

#[test]
fn a_large_file_is_read_in_large_requests() {
    const BYTES: usize = 64 << 20;
    let block: Vec<u8> = (0..1_u32 << 20).map(|byte| (byte % 241) as u8).collect();
    let mounted = read_only(|fs| {
        let inode = plant(fs, "large", b"");
        for number in 0..64 {
            inode.write_at(number << 20, &block).unwrap();
        }
    });
    let mut file = File::open(mounted.path("large")).unwrap();
    let mut buf = vec![0; 1 << 20];
    let requests = mounted.requests_of(|| {
        for number in 0..64 {
            file.read_exact(&mut buf).unwrap();
            assert!(buf == block, "block {number}");
        }
        assert_eq!(file.read(&mut buf).unwrap(), 0);
    });
    let reads = requests.of(Operation::Read);
    println!("{BYTES} bytes read with {reads} requests");
    assert!(reads <= 160, "{reads} requests for 64 MiB");
    drop(file);
    mounted.unmount();
}

#[test]
fn parallel_readers_see_the_same() {
    let contents: Vec<u8> = (0..2_000_000_u32).map(|byte| (byte % 239) as u8).collect();
    let mounted = read_only(|fs| {
        for number in 0..8 {
            plant(fs, &format!("f{number}"), &contents);
        }
    });
    thread::scope(|scope| {
        for reader in 0..8 {
            let (mounted, contents) = (&mounted, &contents);
            scope.spawn(move || {
                for round in 0..8 {
                    let path = mounted.path(&format!("f{}", (reader + round) % 8));
                    assert!(fs::read(&path).unwrap() == *contents);
                    assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 8);
                }
            });
        }
    });
    mounted.unmount();
}

#[test]
fn making_a_file_takes_no_request_that_need_not_be() {
    let mounted = Mounted::new();
    fs::write(mounted.path("first"), b"").unwrap();
    let requests = mounted.requests_of(|| fs::write(mounted.path("second"), b"").unwrap());
    // The first file changed the directory, whose attributes therefore are asked for once.
    assert_eq!(
        requests.all(),
        [("LOOKUP", 1), ("GETATTR", 1), ("MKNOD", 1)]
    );
    mounted.unmount();
}

#[test]
fn the_kernel_forgets_the_inodes_it_looked_up() {
    let mounted = Mounted::with("", |fs| {
        for number in 0..100 {
            plant(fs, &format!("f{number}"), b"x");
        }
    });
    for number in 0..100 {
        fs::read(mounted.path(&format!("f{number}"))).unwrap();
    }
    assert_eq!(mounted.session().nodes_held(), 100);
    for number in 0..100 {
        fs::remove_file(mounted.path(&format!("f{number}"))).unwrap();
    }
    let all_forgotten = || mounted.session().nodes_held() == 0;
    assert!(soon(all_forgotten), "unlinked inodes are forgotten");
    mounted.unmount();
}

/// What 100 small writes and a sync take, after the file was made.
fn requests_of_small_writes(options: &str) -> Vec<(&'static str, u64)> {
    let mounted = Mounted::with(options, |_| {});
    let file = File::create(mounted.path("f")).unwrap();
    let requests = mounted.requests_of(|| {
        for offset in 0..100 {
            file.write_all_at(b"x", offset).unwrap();
        }
        file.sync_all().unwrap();
    });
    drop(file);
    mounted.unmount();
    let mut all = requests.all();
    // A child that another test forks closes its copy of the file when it executes its program.
    all.retain(|&(name, _)| name != "FLUSH");
    all
}

#[test]
fn writing_asks_for_file_capabilities_once() {
    let expected = [("WRITE", 100), ("FSYNC", 1), ("GETXATTR", 1)];
    assert_eq!(requests_of_small_writes(""), expected);
}

#[test]
fn small_writes_are_gathered_where_that_is_asked_for() {
    // The times that the kernel kept come with the SETATTR.
    let expected = [("SETATTR", 1), ("WRITE", 1), ("FSYNC", 1), ("GETXATTR", 1)];
    assert_eq!(requests_of_small_writes("writeback=on"), expected);
}

#[test]
fn changing_a_file_takes_one_request_besides_the_directory() {
    let mounted = Mounted::with("", |fs| {
        for name in ["a", "b", "c"] {
            plant(fs, name, b"x");
        }
    });
    let path = |name| mounted.path(name);
    for name in ["a", "b", "c"] {
        fs::metadata(path(name)).unwrap();
    }
    let set = mounted.requests_of(|| {
        setxattr(path("a"), "user.a", b"1", XattrFlags::empty()).unwrap();
    });
    assert_eq!(set.all(), [("SETXATTR", 1)]);
    let removed = mounted.requests_of(|| fs::remove_file(path("a")).unwrap());
    assert_eq!(removed.all(), [("UNLINK", 1)]);
    // The directory has changed, so its attributes are asked for once.
    let removed = mounted.requests_of(|| fs::remove_file(path("b")).unwrap());
    assert_eq!(removed.all(), [("GETATTR", 1), ("UNLINK", 1)]);
    let renamed = mounted.requests_of(|| fs::rename(path("c"), path("d")).unwrap());
    let expected = [("LOOKUP", 1), ("GETATTR", 1), ("RENAME", 1)];
    assert_eq!(renamed.all(), expected);
    mounted.unmount();
}

#[test]
fn a_file_just_made_is_known() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    drop(File::create(&path).unwrap());
    fs::metadata(mounted.root()).unwrap();
    let requests = mounted.requests_of(|| assert_eq!(fs::metadata(&path).unwrap().size(), 0));
    // The program asks for the time of creation, which comes with no other request.
    assert_eq!(requests.all(), [("STATX", 1)]);
    let again = mounted.requests_of(|| assert_eq!(fs::metadata(&path).unwrap().size(), 0));
    assert_eq!(again.all(), []);
    mounted.unmount();
}
