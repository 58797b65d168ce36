//! Blocks that are cancelled, and inodes.

use zerocopy::FromBytes;

use super::*;
use crate::ondisk::Inode;
use crate::ondisk::inode::free::initialise;
use crate::ondisk::inode::{DiskInodeV3, tests as inode_tests};
use crate::txn::{InodePlace, NewImage};

#[test]
fn cancelled_block_is_not_replayed() {
    let (data, log) = (data(), log_device(1024));
    let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
    scene.set(1, 0, 9);
    scene.set(2, 0, 9);
    scene.log.force_all().unwrap();
    let mut transaction = scene.begin(8192);
    transaction.cancel(at(1), size());
    transaction.commit().unwrap();
    scene.log.force_all().unwrap();
    assert_eq!(scene.log.items().0, 1);
    let found = scene.recovered(&data, log, 512);
    assert_eq!((found[1][0], found[2][0]), (0, 9));
}

/// Where the inode in block 3 lies.
fn inode_place() -> InodePlace {
    InodePlace {
        number: InodeNr::new(inode_tests::NUMBER).unwrap(),
        cluster: at(3),
        cluster_bytes: BLOCK_BYTES,
        offset: 1024,
    }
}

/// Writes the inode in block 3, and opens the scene.
fn with_inode(inode: &[u8]) -> Scene {
    let data = data();
    let place = inode_place();
    let offset = place.cluster.byte_offset() + u64::from(place.offset);
    data.write_at(offset, inode).unwrap();
    Scene::open(data, log_device(1024), 512)
}

/// Changes the time of the inode in block 3, and commits.
fn change_inode(scene: &Scene) -> Result<u64> {
    let place = inode_place();
    let mut transaction = scene.begin(8192);
    transaction.edit_inode(&place, |image| {
        DiskInodeV3::mut_from_prefix(image)
            .unwrap()
            .0
            .core
            .links
            .set(2);
        Ok(())
    })?;
    transaction.commit()
}

#[test]
fn inode_with_a_bad_checksum_is_not_logged() {
    let mut inode = inode_tests::sample();
    inode[300] ^= 1;
    let scene = with_inode(&inode);
    let error = change_inode(&scene).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    scene.log.force_all().unwrap();
    assert_eq!(scene.log.items().0, 0);

    inode[300] ^= 1;
    let scene = with_inode(&inode);
    change_inode(&scene).unwrap();
    scene.log.force_all().unwrap();
    assert_eq!(scene.log.items().0, 1);
}

/// The image of the inode in block 3, where this lies, as one to be allocated.
fn unused_inode(found: &[u8]) -> Vec<u8> {
    let scene = with_inode(found);
    let transaction = scene.begin(8192);
    let (image, _) = transaction.unused_inode(&inode_place(), 7).unwrap();
    image
}

#[test]
fn remains_of_a_free_inode_are_replaced() {
    let free = |change: &dyn Fn(&mut DiskInodeV3)| {
        let mut inode = inode_tests::sample();
        let (disk, _) = DiskInodeV3::mut_from_prefix(&mut inode).unwrap();
        disk.core.mode.set(0);
        change(disk);
        inode
    };
    let geometry = Geometry::new(&sample().decode().unwrap());
    let mut fresh = vec![0; 512];
    initialise(&mut fresh, &geometry, inode_place().number, 7);
    let corrupt = free(&|disk| disk.core.uid.set(5));
    assert!(unused_inode(&corrupt) == fresh);
    let mut sealed = corrupt.clone();
    DiskInodeV3::seal(&mut sealed);
    assert!(unused_inode(&sealed) == sealed);
    // What recovery would not write over stays.
    let changes: [fn(&mut DiskInodeV3); 5] = [
        |disk| disk.core.magic.set(0),
        |disk| disk.core.version = 2,
        |disk| disk.core.next_unlinked.set(u32::MAX - 1),
        |disk| disk.lsn.set(u64::MAX >> 1),
        |disk| disk.core.mode.set(0o10_0644),
    ];
    for change in changes {
        let kept = free(&change);
        assert!(unused_inode(&kept) == kept);
    }

    let scene = with_inode(&corrupt);
    let mut transaction = scene.begin(8192);
    let place = inode_place();
    let (_, before) = transaction.unused_inode(&place, 7).unwrap();
    let made = NewImage {
        image: inode_tests::sample(),
        decoded: None,
        before,
    };
    transaction.replace_inode(&place, made).unwrap();
    transaction.commit().unwrap();
    scene.log.quiesce().unwrap();
    let found = &scene.state()[3][place.offset as usize..][..512];
    Inode::decode(found, place.number, &geometry).unwrap();
}

#[test]
fn block_freed_and_allocated_shorter_is_cancelled() {
    let long = BlockSize::new(2 * BLOCK_BYTES).unwrap();
    for is_one in [false, true] {
        let (data, log) = (data(), log_device(1024));
        let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
        let mut transaction = scene.begin(24 << 10);
        transaction.create(at(1), long, &plain(), vec![9; 2 * BLOCK_BYTES as usize]);
        transaction.commit().unwrap();
        scene.log.force_all().unwrap();
        let mut transaction = scene.begin(24 << 10);
        transaction.cancel(at(1), long);
        if !is_one {
            transaction.commit().unwrap();
            transaction = scene.begin(24 << 10);
        }
        transaction.create(at(1), size(), &plain(), vec![5; BLOCK_BYTES as usize]);
        transaction.commit().unwrap();
        scene.log.force_all().unwrap();
        // The second half belongs to a file.
        data.write_at(at(2).byte_offset(), &[7; 4096]).unwrap();
        let found = scene.recovered(&data, log, 512);
        assert!(found[1].iter().all(|&byte| byte == 5), "{is_one}");
        assert!(found[2].iter().all(|&byte| byte == 7), "{is_one}");
    }
}
