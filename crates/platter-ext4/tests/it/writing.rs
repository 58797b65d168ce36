//! Mounts for writing: what they refuse, and what they leave in the superblock.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use platter_block::Access;
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::{Condition, Error, Filesystem, Result};

use crate::image::{Image, mount};

const EXT2: &[&str] = &["-t", "ext2", "-b", "1024"];

fn writing() -> MountOptions {
    MountOptions {
        read_only: false,
        ..MountOptions::default()
    }
}

fn begin(image: &Image) -> Result<Ext4> {
    mount(image.device(Access::Write), &writing())
}

#[test]
fn a_mount_without_a_journal_is_not_clean_until_it_is_unmounted() {
    let image = Image::format(EXT2, "4M");
    for mounts in ["1", "2"] {
        let filesystem = begin(&image).unwrap();
        assert!(!filesystem.is_read_only());
        assert_eq!(image.field("Filesystem state"), "not clean");
        assert_eq!(image.field("Mount count"), mounts);
        filesystem.sync().unwrap();
        filesystem.unmount().unwrap();
        assert!(filesystem.is_read_only());
        assert_eq!(image.field("Filesystem state"), "clean");
        assert_eq!(image.faults(), "");
    }
}

#[test]
fn a_mount_that_is_dropped_is_cut_off() {
    let image = Image::format(EXT2, "4M");
    drop(begin(&image).unwrap());
    assert_eq!(image.field("Filesystem state"), "not clean");
    begin(&image).unwrap().unmount().unwrap();
    // It is for a check to call it clean again.
    assert_eq!(image.field("Filesystem state"), "not clean");
}

#[test]
fn a_mount_with_a_journal_asks_for_recovery_until_it_is_unmounted() {
    for options in [
        &["-O", "has_journal,extent,metadata_csum,64bit"][..],
        &["-j", "-b", "1024"],
    ] {
        let image = Image::format(options, "16M");
        let asks = || {
            let features = image.field("Filesystem features");
            features.contains("needs_recovery")
        };
        let filesystem = begin(&image).unwrap();
        assert!(asks());
        assert_eq!(image.field("Filesystem state"), "clean");
        filesystem.unmount().unwrap();
        drop(filesystem);
        assert!(!asks());
        assert_eq!(image.faults(), "");
        // After a power cut there is nothing to replay but the mark to take away.
        drop(begin(&image).unwrap());
        assert!(asks());
        let filesystem = begin(&image).unwrap();
        assert!(filesystem.recovery().is_some());
        filesystem.unmount().unwrap();
        assert_eq!(image.faults(), "");
    }
}

#[test]
fn features_that_cannot_be_written_are_refused_by_name() {
    let image = Image::format(&["-t", "ext4", "-O", "^has_journal,quota"], "4M");
    let error = begin(&image).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ext4: quota is not supported (only reading is)"
    );
    let image = Image::format(EXT2, "4M");
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&0x8000_1000u32.to_le_bytes(), 1024 + 0x64)
        .unwrap();
    let error = begin(&image).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ext4: read-only, FEATURE_R31 is not supported (only reading is)"
    );
}

#[test]
fn a_device_that_cannot_be_written_is_refused() {
    let image = Image::format(EXT2, "4M");
    let error = mount(image.device(Access::Read), &writing()).unwrap_err();
    assert!(matches!(error, Error::Condition(Condition::ReadOnly)));
}

#[test]
fn protection_against_other_hosts_is_kept_up_and_given_back() {
    let image = Image::format(&["-b", "1024", "-O", "mmp"], "4M");
    let block: u64 = image.field("MMP block number").parse().unwrap();
    let sequence = || {
        let mut bytes = [0; 4];
        let file = File::open(image.path()).unwrap();
        file.read_exact_at(&mut bytes, block * 1024 + 4).unwrap();
        u32::from_le_bytes(bytes)
    };
    let filesystem = begin(&image).unwrap();
    assert_ne!(sequence(), 0xff4d_4d50);
    filesystem.unmount().unwrap();
    assert_eq!(sequence(), 0xff4d_4d50);
    assert_eq!(image.faults(), "");
}
