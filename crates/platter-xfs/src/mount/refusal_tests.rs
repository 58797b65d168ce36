//! Filesystems that are not written, by name; and what a mount changes in the superblock first.

use platter_ondisk::Uuid;
use platter_vfs::{CreateKind, Error};
use zerocopy::FromBytes;

use super::tests::{budget, change_block, clock, create, device_of, mount, new_device};
use super::*;
use crate::mkfs::MkfsOptions;
use crate::ondisk::features::LogIncompat;
use crate::ondisk::superblock::DiskSuperblock;

fn change_superblock(device: &dyn BlockDevice, change: impl FnOnce(&mut DiskSuperblock)) {
    change_block(device, 0, (512, DiskSuperblock::CHECKSUM_OFFSET), |bytes| {
        change(DiskSuperblock::mut_from_prefix(bytes).unwrap().0);
    });
}

fn refusal(device: &Arc<dyn BlockDevice>) -> String {
    let options = MountOptions::default();
    let mounted = Xfs::mount_writable(Arc::clone(device), &options, budget(), clock());
    let error = mounted.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    error.to_string()
}

#[test]
fn unknown_feature_of_the_log_is_refused_by_name() {
    let device = new_device();
    change_superblock(&*device, |disk| disk.log_incompat.set(0x4));
    let error = refusal(&device);
    assert!(error.contains("log_incompat bit 2"), "{error}");
}

#[test]
fn recovered_log_has_no_incompatible_features() {
    let device = new_device();
    let known = LogIncompat::all().bits();
    change_superblock(&*device, |disk| disk.log_incompat.set(known));
    let xfs = mount(&device);
    create(&*xfs.root().unwrap(), "file", CreateKind::Regular).unwrap();
    xfs.unmount().unwrap();
    let superblock = Xfs::identify(&*device).unwrap();
    assert!(superblock.features.log_incompat.is_empty());
}

#[test]
fn part_of_a_chunk_that_is_no_cluster_is_refused() {
    let device = new_device();
    let cluster = {
        let superblock = Xfs::identify(&*device).unwrap();
        let cluster = Geometry::new(&superblock).cluster_blocks();
        assert_eq!(superblock.sparse_inode_alignment, cluster);
        cluster
    };
    change_superblock(&*device, |disk| {
        disk.sparse_inode_alignment.set(cluster / 2);
    });
    let error = refusal(&device);
    assert!(error.contains("parts of inode chunks"), "{error}");
}

#[test]
fn block_of_128_inodes_has_two_records() {
    let device = device_of(&MkfsOptions {
        block_bytes: Some(64 << 10),
        ..MkfsOptions::new(Uuid::from_bytes([7; 16]))
    });
    // A chunk takes half a block: there is nothing to align.
    assert_eq!(Xfs::identify(&*device).unwrap().inode_alignment, 0);
    let xfs = mount(&device);
    let root = xfs.root().unwrap();
    let agi = || xfs.context().agi(crate::ondisk::AgNr(0)).unwrap();
    assert_eq!(agi().count, 128);
    let mut files = 0;
    while agi().count == 128 {
        create(&*root, &format!("file-{files}"), CreateKind::Regular).unwrap();
        files += 1;
    }
    assert_eq!((agi().count, agi().free_count), (256, 127));
    for file in files..files + 127 {
        create(&*root, &format!("file-{file}"), CreateKind::Regular).unwrap();
    }
    assert_eq!((agi().count, agi().free_count), (256, 0));
    drop(root);
    xfs.unmount().unwrap();
    let xfs = mount(&device);
    for file in 0..files + 127 {
        let file = format!("file-{file}");
        let found = xfs.root().unwrap().lookup(super::tests::name(&file));
        found.unwrap();
    }
    xfs.unmount().unwrap();
}
