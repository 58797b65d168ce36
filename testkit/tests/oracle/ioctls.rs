//! Ioctls of a mounted filesystem, by platter and by the kernel's own filesystem.
#![expect(clippy::host_endian_bytes, reason = "ioctls carry native integers")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use platter::{MountOptions, WriteOptions};
use rustix::io::Errno;
use testkit::ioctl;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{debugfs, e2fsck, mke2fs};
use testkit::prng::Prng;
use testkit::served;
use testkit::tool;

use crate::images::assert_clean;

const GET_VERSION: u32 = 0x8008_7601;
const SET_VERSION: u32 = 0x4008_7602;
const GET_LABEL: u32 = 0x8100_9431;
const SET_LABEL: u32 = 0x4100_9432;
const TRIM: u32 = 0xc018_5879;
const SHUTDOWN: u32 = 0x8004_587d;

const ROOT: u32 = 0;
const UNPRIVILEGED: u32 = 65_534;
const LABEL_BYTES: usize = 256;

/// What plays on a mount.
type Play<'p> = &'p dyn Fn(&Path);

fn by_platter(image: &Path, play: Play<'_>) {
    let dir = tempfile::tempdir().unwrap();
    let open = MountOptions::new().writing(WriteOptions::default());
    let mut session = served::mount(image, &open, dir.path(), "allow_other").unwrap();
    play(dir.path());
    served::unmount(&mut session).unwrap();
}

fn by_the_kernel(image: &Path, play: Play<'_>) {
    let mount = Mount::image(image, "", Access::ReadWrite).unwrap();
    play(mount.root());
    mount.unmount(image).unwrap();
}

/// The same on an image of each.
fn by_both(image: &Path, make: &dyn Fn(), play: Play<'_>, look: Play<'_>) {
    for by in [by_the_kernel, by_platter] {
        make();
        by(image, play);
        assert_clean(image, "written");
        look(image);
    }
}

fn call(path: &Path, number: u32, buffer: &[u8]) -> Result<Vec<u8>, Errno> {
    call_as(ROOT, path, number, buffer)
}

fn call_as(uid: u32, path: &Path, number: u32, buffer: &[u8]) -> Result<Vec<u8>, Errno> {
    let called = ioctl::call(path, uid, number, buffer).unwrap();
    called.map_err(Errno::from_raw_os_error)
}

fn label_buffer(label: &str) -> Vec<u8> {
    let mut buffer = label.as_bytes().to_vec();
    buffer.resize(LABEL_BYTES, 0);
    buffer
}

#[test]
fn the_label_is_shown_and_set_with_all_its_copies() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let longest = "sixteen bytes in";
    let play = |root: &Path| {
        let get_as = |uid| -> Result<_, Errno> {
            let label = call_as(uid, root, GET_LABEL, &[0xff; LABEL_BYTES])?;
            let end = label.iter().position(|&byte| byte == 0).unwrap();
            Ok(label_buffer(std::str::from_utf8(&label[..end]).unwrap()))
        };
        let get = || get_as(ROOT);
        let set = |label| call(root, SET_LABEL, &label_buffer(label));
        assert_eq!(get(), Ok(label_buffer("before")));
        for uid in [UNPRIVILEGED, ioctl::ROOT_OF_NAMESPACE] {
            let refused = call_as(uid, root, SET_LABEL, &label_buffer("no"));
            assert_eq!(refused, Err(Errno::PERM));
        }
        assert_eq!(set("seventeen bytes !").err(), Some(Errno::INVAL));
        assert_eq!(get_as(UNPRIVILEGED), get());
        for label in ["", "short", longest] {
            set(label).unwrap();
            assert_eq!(get(), Ok(label_buffer(label)));
        }
    };
    for layout in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext2", "-b", "4096"],
    ] {
        let options = [layout, &["-L", "before"]].concat();
        let make = || mke2fs::make(&image, 40 << 10, &options, None).unwrap();
        let block: u64 = layout[3].parse().unwrap();
        let look = |image: &Path| {
            let mut places = vec![1024];
            if block == 1024 {
                // Groups 1 and 3 have copies.
                places.extend([8193 * 1024, 3 * 8192 * 1024 + 1024]);
            }
            let file = File::open(image).unwrap();
            for place in places {
                let mut found = [0; 16];
                file.read_exact_at(&mut found, place + 0x78).unwrap();
                assert_eq!(&found, longest.as_bytes(), "at {place}");
            }
        };
        by_both(&image, &make, &play, &look);
        if block == 1024 {
            // A copy is a whole superblock.
            let mut dumpe2fs = tool::command("dumpe2fs");
            dumpe2fs.args(["-h", "-o", "superblock=8193", "-o", "blocksize=1024"]);
            let listed = tool::succeed(dumpe2fs.arg(&image)).unwrap().text();
            assert!(listed.contains(longest), "{listed}");
        }
    }
}

#[test]
fn generations_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let make = || mke2fs::make(&image, 8 << 10, &["-t", "ext4"], None).unwrap();
    let play = |root: &Path| {
        let path = root.join("file");
        File::create(&path).unwrap().sync_all().unwrap();
        let generation = call(&path, GET_VERSION, &[0xff; 8]).unwrap();
        fs::write(root.join("recorded"), &generation[..4]).unwrap();
        assert_eq!(generation[4..8], [0xff; 4], "an int is written");
        let refused = call(&path, SET_VERSION, &[1; 8]);
        assert_eq!(refused.err(), Some(Errno::NOTTY));
    };
    let look = |image: &Path| {
        let recorded = debugfs::ask(image, "cat recorded").unwrap();
        let recorded = u32::from_ne_bytes(recorded.try_into().unwrap());
        let shown = String::from_utf8(debugfs::ask(image, "stat file").unwrap()).unwrap();
        let words: Vec<_> = shown.split_whitespace().collect();
        let at = words
            .iter()
            .position(|word| *word == "Generation:")
            .unwrap();
        assert_eq!(words[at + 1], recorded.to_string());
    };
    by_both(&image, &make, &play, &look);
}

fn range(start: u64, len: u64, min: u64) -> Vec<u8> {
    let words = [start, len, min];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// How many bytes were discarded.
fn trim(root: &Path, start: u64, len: u64, min: u64) -> Result<u64, Errno> {
    let answer = call(root, TRIM, &range(start, len, min))?;
    Ok(u64::from_ne_bytes(answer[8..16].try_into().unwrap()))
}

fn allocated_bytes(image: &Path) -> u64 {
    File::open(image).unwrap().sync_all().unwrap();
    fs::metadata(image).unwrap().blocks() * 512
}

#[test]
fn free_space_is_discarded_and_nothing_else() {
    const FILE_BYTES: usize = 3 << 20;
    const ALL: u64 = u64::MAX;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut random = Prng::named(b"trimmed");
    let files: Vec<_> = (0..12).map(|_| random.bytes(FILE_BYTES)).collect();
    let layouts: [&[&str]; 3] = [
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext2", "-b", "4096"],
        &["-t", "ext4", "-b", "4096", "-O", "bigalloc"],
    ];
    for layout in layouts {
        let block: u64 = layout[3].parse().unwrap();
        let make = || {
            let _ = fs::remove_file(&image);
            mke2fs::make(&image, 48 << 10, layout, None).unwrap();
        };
        let counts = std::sync::Mutex::new(Vec::new());
        let play = |root: &Path| {
            for (number, contents) in files.iter().enumerate() {
                let path = root.join(number.to_string());
                let mut file = File::create(path).unwrap();
                file.write_all(contents).unwrap();
                file.sync_all().unwrap();
            }
            let before = allocated_bytes(&image);
            for number in (0..files.len()).step_by(2) {
                fs::remove_file(root.join(number.to_string())).unwrap();
            }
            rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
            File::open(root).unwrap().sync_all().unwrap();
            let end = fs::metadata(&image).unwrap().len();
            let refused = call_as(UNPRIVILEGED, root, TRIM, &range(0, ALL, 0));
            assert_eq!(refused, Err(Errno::PERM));
            let refused = [(end, ALL, 0), (0, block - 1, 0), (0, ALL, ALL)];
            for (start, len, min) in refused {
                assert_eq!(trim(root, start, len, min), Err(Errno::INVAL));
            }
            // Nothing that long is free.
            assert_eq!(trim(root, 0, ALL, 32 << 20).unwrap_or(0), 0);
            assert!(allocated_bytes(&image) + (2 << 20) > before);
            let part = trim(root, 0, end / 2, 0).unwrap();
            let rest = trim(root, end / 2, ALL, 0).unwrap();
            counts.lock().unwrap().push(part + rest);
            let freed = (files.len() / 2 * FILE_BYTES) as u64;
            assert!(part + rest >= freed, "{part} and {rest}");
            let after = allocated_bytes(&image);
            // One that was removed last may not be forgotten yet.
            assert!(after + freed / 4 * 3 <= before, "{before} and {after}");
        };
        let look = |image: &Path| {
            let mount = Mount::image(image, "", Access::ReadOnly).unwrap();
            for (number, contents) in files.iter().enumerate().skip(1).step_by(2) {
                assert!(fs::read(mount.root().join(number.to_string())).unwrap() == *contents);
            }
            mount.unmount(image).unwrap();
        };
        by_both(&image, &make, &play, &look);
        let counts = counts.into_inner().unwrap();
        assert!(counts[0].abs_diff(counts[1]) <= 4 << 20, "{counts:?}");
    }
}

#[test]
fn what_is_written_while_free_space_is_discarded_stays() {
    const FILES: usize = 40;
    const ROUNDS: usize = 6;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs::make(&image, 24 << 10, &["-t", "ext4", "-b", "1024"], None).unwrap();
    let contents = |number: usize, round: usize| {
        let seed = format!("{number} {round}");
        Prng::named(seed.as_bytes()).bytes(20_000 + number * 3000)
    };
    by_platter(&image, &|root| {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    trim(root, 0, u64::MAX, 0).unwrap();
                }
            });
            for round in 0..ROUNDS {
                for number in 0..FILES {
                    let path = root.join(number.to_string());
                    if round > 0 {
                        let before = contents(number, round - 1);
                        assert!(fs::read(&path).unwrap() == before);
                        fs::remove_file(&path).unwrap();
                    }
                    fs::write(&path, contents(number, round)).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    });
    assert_clean(&image, "written");
    let mount = Mount::image(&image, "", Access::ReadOnly).unwrap();
    for number in 0..FILES {
        let found = fs::read(mount.root().join(number.to_string())).unwrap();
        assert!(found == contents(number, ROUNDS - 1), "{number}");
    }
    mount.unmount(&image).unwrap();
}

#[test]
fn a_shutdown_ends_everything_until_the_next_mount() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for layout in ["ext4", "ext2"] {
        for by_kernel in [true, false] {
            mke2fs::make(&image, 8 << 10, &["-t", layout], None).unwrap();
            if by_kernel {
                let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
                shut_down(mount.root());
                drop(mount);
                wait_until_free(&image);
            } else {
                by_platter(&image, &shut_down);
            }
            if layout == "ext4" {
                // The journal is there to be replayed, and then nothing is wrong.
                let volume = MountOptions::new().writing(WriteOptions::default());
                let spec = platter::ImageSpec::parse(&image).unwrap();
                let volume = volume.open(&spec).unwrap();
                volume.filesystem().unmount().unwrap();
                drop(volume);
                assert_clean(&image, "written");
            } else {
                e2fsck::repair(&image, &["-p"]).unwrap();
            }
            let mount = Mount::image(&image, "", Access::ReadOnly).unwrap();
            assert_eq!(fs::read(mount.root().join("file")).unwrap(), b"contents");
            assert!(!mount.root().join("later").exists());
            mount.unmount(&image).unwrap();
        }
    }
}

/// No loop device is attached to the image any more.
fn wait_until_free(image: &Path) {
    let options = platter::block::OpenOptions {
        access: platter::block::Access::Write,
        ..platter::block::OpenOptions::default()
    };
    let is_free = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(10));
        platter::block::FileDevice::open(image, options).is_ok()
    });
    assert!(is_free);
}

fn shut_down(root: &Path) {
    let path = root.join("file");
    fs::write(&path, "contents").unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let refused = call_as(UNPRIVILEGED, root, SHUTDOWN, &[0; 4]);
    assert_eq!(refused.err(), Some(Errno::PERM));
    // EXT4_GOING_FLAGS_DEFAULT: all is written before.
    call(root, SHUTDOWN, &[0; 4]).unwrap();
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
    let refused = [
        file.write_at(b"more", 0).map(drop),
        file.sync_all(),
        fs::write(root.join("later"), "later"),
        fs::create_dir(root.join("later")),
        fs::remove_file(&path),
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(errno(refused.unwrap_err()), Errno::IO, "{number}");
    }
    fs::metadata(&path).unwrap();
}

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const EXTENTS: u32 = 0x8_0000;
const NO_ATIME: u32 = 0x80;
const INDEX: u32 = 0x1000;
const DIR_SYNC: u32 = 0x1_0000;
const HUGE_FILE: u32 = 0x4_0000;
const RESERVED: u32 = 0x8000_0000;

#[test]
fn flags_that_are_not_given_back_are_as_the_kernel_takes_them() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let make = || mke2fs::make(&image, 16 << 10, &["-t", "ext4", "-b", "1024"], None).unwrap();
    let outcomes = std::sync::Mutex::new(Vec::new());
    let play = |root: &Path| {
        let path = |name: &str| root.join(name);
        let set = |name: &str, flags: u32| {
            let buffer = [flags.to_ne_bytes(), [0; 4]].concat();
            let refused = call(&path(name), SET_FLAGS, &buffer).err();
            let shown = call(&path(name), GET_FLAGS, &[0; 8]).unwrap();
            let shown = u32::from_ne_bytes(shown[..4].try_into().unwrap());
            // The kernel may have made other changes before it refuses the last.
            let shown = refused.is_none().then_some(shown);
            (name.to_owned(), flags, refused, shown)
        };
        // Blocks from the first one on, in one go.
        let write = |name: &str, runs: &[(u64, u8)]| {
            let file = File::create(path(name)).unwrap();
            for &(first, blocks) in runs {
                let run: Vec<_> = (1..=blocks).flat_map(|block| [block; 1024]).collect();
                file.write_all_at(&run, first * 1024).unwrap();
            }
            // What the kernel answers depends on whether its blocks are written.
            file.sync_all().unwrap();
        };
        write("empty", &[]);
        write("small", &[(0, 3)]);
        write("twelve", &[(0, 12)]);
        write("holes", &[(5, 1)]);
        write("thirteen", &[(0, 13)]);
        write("two", &[(0, 1), (5, 1)]);
        write("far", &[(40, 1)]);
        fs::create_dir(path("dir")).unwrap();
        let mut seen = Vec::new();
        for name in [
            "empty", "small", "twelve", "holes", "thirteen", "two", "far", "dir",
        ] {
            seen.push(set(name, EXTENTS | INDEX | HUGE_FILE));
            seen.push(set(name, EXTENTS | RESERVED));
            seen.push(set(name, EXTENTS | DIR_SYNC));
            seen.push(set(name, NO_ATIME));
        }
        outcomes.lock().unwrap().push(seen);
        // What lost its extents is as good as before.
        for (name, block) in [("empty", 0), ("small", 30), ("twelve", 300), ("holes", 2)] {
            let file = File::options().write(true).open(path(name)).unwrap();
            file.write_all_at(&[0xaa; 5000], block * 1024).unwrap();
        }
        fs::write(path("dir/file"), "in it").unwrap();
    };
    let look = |image: &Path| {
        let mount = Mount::image(image, "", Access::ReadOnly).unwrap();
        let read = |name: &str| fs::read(mount.root().join(name)).unwrap();
        assert!(read("empty") == [0xaa; 5000]);
        let small = read("small");
        assert!(small[2048..3072] == [3; 1024] && small[30 * 1024..] == [0xaa; 5000]);
        assert!(small[3072..30 * 1024].iter().all(|&byte| byte == 0));
        let twelve = read("twelve");
        assert!(twelve[11 * 1024..][..1024] == [12; 1024] && twelve[300 * 1024..] == [0xaa; 5000]);
        let holes = read("holes");
        assert!(holes[..2048] == [0; 2048] && holes[2048..7048] == [0xaa; 5000]);
        assert_eq!(read("dir/file"), b"in it");
        mount.unmount(image).unwrap();
    };
    by_both(&image, &make, &play, &look);
    let outcomes = outcomes.into_inner().unwrap();
    assert_eq!(outcomes[1], outcomes[0]);
    let leaves =
        |name: &str| outcomes[0].contains(&(name.to_owned(), NO_ATIME, None, Some(NO_ATIME)));
    assert!(
        leaves("empty") && leaves("small") && leaves("holes"),
        "{outcomes:?}"
    );
    assert!(
        !leaves("thirteen") && !leaves("two") && !leaves("far"),
        "{outcomes:?}"
    );
}
