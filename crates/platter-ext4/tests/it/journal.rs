//! Filesystems that were not unmounted: a journal to replay, inodes half deleted.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use platter_block::{Access, CountingDevice};
use platter_ext4::inode;
use platter_ext4::ondisk::features::RoCompat;
use platter_ext4::ondisk::mmp::{DiskMmp, MmpRules};
use platter_ext4::ondisk::orphan::OrphanBlockRules;
use platter_ext4::{Ext4, MountOptions, Recovery};
use platter_ondisk::Verify;
use platter_vfs::{Condition, Error, Filesystem};
use zerocopy::FromBytes;

use crate::features::{change_superblock, with_file};
use crate::image::{Image, mount, noise, read_all, run, tool, walk, write};

const JOURNALED: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-O",
    "extent,metadata_csum,64bit,filetype,has_journal",
    "-I",
    "256",
];

/// Where a block of `/file` is.
fn block_of_file(image: &Image, index: u32) -> u64 {
    let printed = image.debugfs(&format!("bmap file {index}\n"));
    let mut lines = printed.lines();
    let block = lines.find_map(|line| line.trim().parse().ok());
    block.expect("the file has the block")
}

/// An image whose journal holds a new content for the first block of `/file`.
fn dirty(content: &[u8], journaled: &[u8]) -> Image {
    let image = with_file(JOURNALED, content);
    let block = block_of_file(&image, 0);
    let dir = tempfile::tempdir().unwrap();
    let logged = dir.path().join("logged");
    write(&logged, journaled);
    image.debugfs(&format!("jo\njw -b {block} {}\njc\n", logged.display()));
    image
}

fn file_of(filesystem: &Ext4) -> Vec<u8> {
    read_all(&*walk(filesystem, "file").unwrap(), 500)
}

fn with(recovery: Recovery) -> MountOptions {
    MountOptions {
        recovery,
        ..MountOptions::default()
    }
}

#[test]
fn journal_is_replayed_in_memory_and_the_image_left_alone() {
    let (old, new) = (noise(1, 1024), noise(2, 1024));
    let image = dirty(&old, &new);
    let before = fs::read(image.path()).unwrap();
    let device = Arc::new(CountingDevice::new(image.device(Access::Read)));
    let filesystem = mount(Arc::clone(&device) as _, &MountOptions::default()).unwrap();
    assert!(file_of(&filesystem) == new);
    assert_eq!(filesystem.recovery().unwrap().log.transactions, 1);
    assert_eq!(device.counts().writes, 0);
    drop(filesystem);
    assert!(fs::read(image.path()).unwrap() == before);
}

#[test]
fn journal_is_left_alone_when_asked() {
    let (old, new) = (noise(1, 1024), noise(2, 1024));
    let image = dirty(&old, &new);
    let filesystem = image.try_mount(&with(Recovery::Skip)).unwrap();
    assert!(file_of(&filesystem) == old);
    assert!(filesystem.recovery().is_none());
}

#[test]
fn journal_is_replayed_onto_the_device_when_asked() {
    let (old, new) = (noise(1, 1024), noise(2, 1024));
    let image = dirty(&old, &new);
    let options = with(Recovery::OnDevice);
    let filesystem = mount(image.device(Access::Write), &options).unwrap();
    assert!(file_of(&filesystem) == new);
    drop(filesystem);
    run(tool("e2fsck").args(["-fn"]).arg(image.path()), "");
    let filesystem = image.try_mount(&with(Recovery::Skip)).unwrap();
    assert!(file_of(&filesystem) == new);
    let features = filesystem.describe().features;
    assert!(
        features
            .iter()
            .all(|feature| feature.name != "needs_recovery")
    );
}

#[test]
fn device_in_use_elsewhere_is_read_but_not_recovered() {
    let options = [
        "-t",
        "ext4",
        "-O",
        "extent,mmp,has_journal,metadata_csum",
        "-b",
        "1024",
    ];
    let image = with_file(&options, b"there");
    change_superblock(&image, |disk| {
        let incompat = disk.feature_incompat.get() | 4;
        disk.feature_incompat.set(incompat);
    });
    let mark = |sequence| {
        let superblock = image.mount().fs().superblock.clone();
        let rules = MmpRules {
            checksum_seed: Some(superblock.checksum_seed),
        };
        change_block(&image, superblock.mmp_block, &rules, |block| {
            let (disk, _) = DiskMmp::mut_from_prefix(block).unwrap();
            disk.sequence.set(sequence);
        });
    };
    mark(7);
    let error = mount(image.device(Access::Write), &with(Recovery::OnDevice)).unwrap_err();
    assert!(
        matches!(error, Error::Condition(Condition::Busy)),
        "{error}"
    );
    assert_eq!(file_of(&image.mount()), b"there");
    mark(0xff4d_4d50);
    mount(image.device(Access::Write), &with(Recovery::OnDevice)).unwrap();
}

#[test]
fn external_journal_is_named_when_it_is_missing() {
    let image = with_file(&["-t", "ext2", "-b", "1024"], b"");
    change_superblock(&image, |disk| {
        disk.feature_compat.set(disk.feature_compat.get() | 4);
        disk.feature_incompat.set(disk.feature_incompat.get() | 4);
        disk.journal_uuid = [7; 16];
    });
    let error = image.try_mount(&MountOptions::default()).unwrap_err();
    let expected = "ext4: external journal is not supported \
                    (the external journal device was not given)";
    assert_eq!(error.to_string(), expected);
    assert!(image.try_mount(&with(Recovery::Skip)).is_ok());
}

/// Changes a block of 1 KiB and puts its checksum right.
fn change_block(image: &Image, block: u64, rules: &dyn Verify, change: impl FnOnce(&mut [u8])) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(image.path())
        .unwrap();
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, block * 1024).unwrap();
    change(&mut bytes);
    rules.seal(block, &mut bytes);
    file.write_all_at(&bytes, block * 1024).unwrap();
}

/// The space and inodes of an image.
fn free(image: &Image) -> (u64, u64) {
    let space = image.mount().stat_fs().unwrap();
    (space.blocks_free, space.inodes_free)
}

#[test]
fn unlinked_orphans_count_as_free() {
    let image = with_file(JOURNALED, &noise(3, 50_000));
    let (blocks, inodes) = free(&image);
    image.debugfs("sif file links_count 0\nsif file dtime 0\nssv last_orphan 12\nunlink file\n");
    assert_eq!(free(&image), (blocks + 49, inodes + 1));
    change_superblock(&image, |disk| disk.state.set(disk.state.get() | 2));
    // With errors recorded, the kernel leaves orphans alone.
    assert_eq!(free(&image), (blocks, inodes));
}

#[test]
fn half_truncated_orphan_ends_at_its_size() {
    for options in [
        JOURNALED,
        &["-t", "ext2", "-b", "1024", "-O", "has_journal"],
    ] {
        let image = with_file(options, &noise(3, 600_000));
        let attr = walk(&image.mount(), "file").unwrap().attr().unwrap();
        image.debugfs("sif file size 2049\nsif file dtime 0\nssv last_orphan 12\n");
        let filesystem = image.mount();
        let file = walk(&filesystem, "file").unwrap();
        let after = file.attr().unwrap();
        assert!(attr.sectors > 1000);
        assert_eq!((after.size_bytes, after.sectors), (2049, 6), "{options:?}");
        let mut ends = Vec::new();
        file.extents(0..u64::MAX, &mut |extent| {
            ends.push(extent.file.end);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(ends.last(), Some(&3072));
        drop((file, filesystem));
        let options = MountOptions {
            read_only: false,
            ..MountOptions::default()
        };
        let filesystem = mount(image.device(Access::Write), &options).unwrap();
        filesystem.unmount().unwrap();
        assert_eq!(image.faults(), "");
        let last = block_of_file(&image, 2) * 1024;
        let mut bytes = [0; 1024];
        let file = fs::File::open(image.path()).unwrap();
        file.read_exact_at(&mut bytes, last).unwrap();
        assert_eq!(bytes[0], noise(3, 2049)[2048]);
        assert_eq!(bytes[1..], [0; 1023], "bytes past the end came back");
    }
}

#[test]
fn orphan_list_that_runs_in_a_circle_ends() {
    let image = with_file(JOURNALED, b"");
    image.debugfs(
        "write /dev/null other\nsif file dtime 13\nsif other dtime 12\nssv last_orphan 12\n",
    );
    assert_eq!(image.mount().orphans().all().len(), 2);
}

#[test]
fn orphan_file_is_read_when_it_holds_orphans() {
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-I",
        "256",
        "-O",
        "extent,metadata_csum,has_journal,orphan_file,filetype",
    ];
    let image = with_file(&options, &noise(3, 50_000));
    let (blocks, inodes) = free(&image);
    image.debugfs("sif file links_count 0\nsif file dtime 0\nunlink file\n");
    let filesystem = image.mount();
    let number = filesystem.fs().superblock.orphan_file_inode.unwrap();
    let orphan_file = inode::read(filesystem.fs(), number).unwrap();
    let rules = OrphanBlockRules {
        inode_seed: Some(orphan_file.checksum_seed),
    };
    let place = image.debugfs(&format!("bmap <{number}> 0\n"));
    let place = place
        .lines()
        .find_map(|line| line.trim().parse().ok())
        .unwrap();
    change_block(&image, place, &rules, |block| block[8] = 13);
    assert_eq!(free(&image), (blocks, inodes));
    change_superblock(&image, |disk| {
        let present = RoCompat::ORPHAN_PRESENT.bits();
        disk.feature_ro_compat
            .set(disk.feature_ro_compat.get() | present);
    });
    assert_eq!(free(&image), (blocks + 49, inodes + 1));
}
