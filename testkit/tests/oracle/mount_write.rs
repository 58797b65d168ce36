//! Mounts for writing alternate with the kernel's: each takes over what the other left, clean or not.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use platter::{MountOptions, WriteOptions};
use platter_vfs::{Context, CreateKind, Name};
use testkit::loopdev::{self, Mount};
use testkit::oracle::mke2fs;

use crate::images::{assert_clean, open_for_writing, write};

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext3", "-b", "2048"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file"],
    &[
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "^metadata_csum,uninit_bg,bigalloc",
    ],
];

#[test]
fn each_goes_on_where_the_other_unmounted() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for layout in LAYOUTS {
        mke2fs::make(&image, 32 << 10, layout, None).unwrap();
        for round in 0..3 {
            let volume = open_for_writing(&image);
            let contents = vec![round; 100_000];
            write(&volume, &format!("ours{round}"), &contents);
            volume.filesystem().unmount().unwrap();
            drop(volume);
            assert_clean(&image, (layout, "unmounted here"));
            let mount = Mount::image(&image, "", loopdev::Access::ReadWrite).unwrap();
            let path = mount.root().join(format!("ours{round}"));
            assert!(fs::read(path).unwrap() == contents, "{layout:?}");
            let path = mount.root().join(format!("theirs{round}"));
            fs::write(path, &contents).unwrap();
            mount.unmount(&image).unwrap();
            assert_clean(&image, (layout, "unmounted by the kernel"));
        }
        let volume = open_for_writing(&image);
        for round in 0..3 {
            let found = volume.read(format!("theirs{round}")).unwrap();
            assert!(found == vec![round; 100_000], "{layout:?}");
        }
        volume.filesystem().unmount().unwrap();
    }
}

#[test]
fn what_was_synced_before_a_power_cut_is_there_for_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for layout in LAYOUTS.iter().skip(1) {
        mke2fs::make(&image, 32 << 10, layout, None).unwrap();
        let volume = open_for_writing(&image);
        write(&volume, "synced", &vec![7; 50_000]);
        volume.filesystem().sync().unwrap();
        write(&volume, "lost", &vec![8; 50_000]);
        drop(volume);
        let copy = dir.path().join("copy");
        fs::copy(&image, &copy).unwrap();
        let mount = Mount::image(&copy, "", loopdev::Access::ReadWrite).unwrap();
        let found = fs::read(mount.root().join("synced")).unwrap();
        assert!(found == vec![7; 50_000], "{layout:?}");
        mount.unmount(&copy).unwrap();
        assert_clean(&copy, (layout, "recovered by the kernel"));
        let volume = open_for_writing(&image);
        let found = volume.read("synced").unwrap();
        assert!(found == vec![7; 50_000], "{layout:?}");
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (layout, "recovered here"));
    }
}

#[test]
fn only_the_superusers_mounts_write_into_the_reserve() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for layout in LAYOUTS {
        let mut options = layout.to_vec();
        options.extend(["-m", "25"]);
        mke2fs::make(&image, 32 << 10, &options, None).unwrap();
        let mut written = [0, 0];
        for (uses_reserve, written) in [false, true].into_iter().zip(&mut written) {
            let spec = platter::ImageSpec::parse(&image).unwrap();
            let writing = WriteOptions {
                uses_reserve,
                ..WriteOptions::default()
            };
            let volume = MountOptions::new().writing(writing).open(&spec).unwrap();
            let root = volume.filesystem().root().unwrap();
            let name = if uses_reserve { "rest" } else { "filled" };
            let name = Name::new(name.as_bytes()).unwrap();
            let made = root.create(&Context::root(), name, CreateKind::Regular, 0o644);
            let (file, piece) = (made.unwrap(), vec![7; 64 << 10]);
            let refused = loop {
                if let Err(error) = file.write_at(*written, &piece) {
                    break error;
                }
                *written += piece.len() as u64;
            };
            assert_eq!(refused.errno(), rustix::io::Errno::NOSPC, "{layout:?}");
            volume.filesystem().unmount().unwrap();
        }
        assert_clean(&image, (layout, "filled"));
        let [filled, rest] = written;
        assert!(filled > 4 << 20, "{layout:?}: {filled} bytes");
        // A quarter of 32 MiB, but for what their maps took.
        assert!(rest > 7 << 20, "{layout:?}: {rest} bytes");
    }
}

#[test]
fn unmounting_takes_less_than_a_second() {
    // In memory: what flushes of a busy disk take is not ours to answer for.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = dir.path().join("image");
    mke2fs::make(&image, 64 << 10, &["-t", "ext4"], None).unwrap();
    let spec = platter::ImageSpec::parse(&image).unwrap();
    let options = MountOptions::new().writing(WriteOptions::default());
    let volume = options.open(&spec).unwrap();
    write(&volume, "file", &vec![1; 8 << 20]);
    let file = volume.open("file").unwrap();
    drop(file);
    let clock = platter_vfs::SystemClock::new();
    let before = platter_vfs::Clock::monotonic(&clock);
    volume.filesystem().unmount().unwrap();
    let taken = platter_vfs::Clock::monotonic(&clock).saturating_sub(before);
    assert!(taken.as_millis() < 1000, "{taken:?}");
}

#[test]
fn what_changed_is_in_the_image_soon_after_the_last_change() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for layout in [["-t", "ext2"], ["-t", "ext4"]] {
        mke2fs::make(&image, 16 << 10, &layout, None).unwrap();
        let options = WriteOptions {
            commit_interval: Some(Duration::from_hours(1)),
            ..WriteOptions::default()
        };
        let spec = platter::ImageSpec::parse(&image).unwrap();
        let volume = MountOptions::new().writing(options).open(&spec).unwrap();
        for name in ["one", "two"] {
            write(&volume, name, &vec![7; 100_000]);
            // A copy is what a crash now would leave.
            let soon = (0..200).any(|_| {
                thread::sleep(Duration::from_millis(20));
                has(&image, name, 100_000)
            });
            assert!(soon, "{layout:?}: {name}");
        }
        volume.filesystem().unmount().unwrap();
        assert_clean(&image, (&layout, "unmounted"));
    }
}

/// Whether a copy of an image in use has such a file.
fn has(image: &Path, name: &str, len: usize) -> bool {
    let copy = image.with_extension("copy");
    fs::copy(image, &copy).unwrap();
    let spec = platter::ImageSpec::parse(&copy).unwrap();
    let volume = MountOptions::new().open(&spec).unwrap();
    let root = volume.filesystem().root().unwrap();
    let Ok(file) = root.lookup(Name::new(name.as_bytes()).unwrap()) else {
        return false;
    };
    let mut found = vec![0; len];
    file.read_at(0, &mut found).unwrap() == len && found.iter().all(|&byte| byte == 7)
}
