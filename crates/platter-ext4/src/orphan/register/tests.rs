//! Adding and removing orphans, and what a mount finds of them.

use platter_ondisk::verify::Unverified;
use platter_vfs::FileKind;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::orphan::{DiskOrphanTail, OrphanBlockRules, orphans};
use crate::ondisk::superblock::DiskSuperblock;
use crate::ondisk::{BlockNr, Inode, InodeFlags, Superblock};
use crate::volume::tests::sample_writable;

/// The orphan file, and its only block.
const FILE: u32 = 15;
const BLOCK: BlockNr = BlockNr(700);
/// Slots of a block of 1 KiB.
const PLACES: u32 = 254;

fn number(number: u32) -> InodeNr {
    InodeNr::new(number).unwrap()
}

/// Makes a filesystem with inodes from 16 on.
fn volume(count: u32) -> Volume {
    let volume = sample_writable();
    let mut handle = volume.begin(100).unwrap();
    for inode in 16..16 + count {
        let mut inode = Inode::new(number(inode), FileKind::Regular, 1, 32, &volume.geometry);
        inode.links = 1;
        inode::initialize(&volume, &mut handle, &inode).unwrap();
    }
    drop(handle);
    volume
}

/// Adds an orphan file of one block.
fn with_file(mut volume: Volume) -> Volume {
    let geometry = &volume.geometry;
    let mut file = Inode::new(number(FILE), FileKind::Regular, 1, 32, geometry);
    (file.links, file.size_bytes) = (1, u64::from(geometry.block_bytes));
    file.flags = InodeFlags::empty();
    file.block = [0; BLOCK_AREA_BYTES];
    file.block[..4].copy_from_slice(&700u32.to_le_bytes());
    let has_checksum = geometry.features.has_metadata_csum();
    let rules = OrphanBlockRules {
        inode_seed: has_checksum.then_some(file.checksum_seed),
    };
    let mut handle = volume.begin(4).unwrap();
    inode::initialize(&volume, &mut handle, &file).unwrap();
    let mut block = vec![0; 1024];
    let tail = DiskOrphanTail {
        magic: 0x0b10_ca04.into(),
        checksum: 0.into(),
    };
    block[1016..].copy_from_slice(tail.as_bytes());
    handle.create(BLOCK, &rules, block).unwrap();
    drop(handle);
    volume.superblock.orphan_file_inode = InodeNr::new(FILE);
    volume
}

fn disk_superblock(volume: &Volume) -> DiskSuperblock {
    let block = volume.geometry.superblock_block.0;
    let bytes = volume.buffers().read(block, &Unverified).unwrap();
    let (disk, _) = DiskSuperblock::read_from_prefix(&bytes).unwrap();
    assert_eq!(disk.checksum.get(), disk.expected_checksum());
    disk
}

/// Returns the list as it is stored.
fn stored_list(volume: &Volume) -> Vec<u32> {
    let mut list = Vec::new();
    let mut next = disk_superblock(volume).last_orphan.get();
    while next != 0 {
        list.push(next);
        next = inode::read(volume, number(next)).unwrap().deleted;
    }
    list
}

#[test]
fn orphans_are_removed_anywhere_in_the_list() {
    let mut volume = volume(5);
    let register = OrphanRegister::open(&volume).unwrap();
    for inode in [16, 17, 18, 19, 20, 18] {
        let mut handle = volume.begin(ORPHAN_CREDITS).unwrap();
        register.add(&volume, &mut handle, number(inode)).unwrap();
    }
    assert_eq!(stored_list(&volume), [20, 19, 18, 17, 16]);
    for (gone, left) in [
        (18, &[20, 19, 17, 16][..]),
        (20, &[19, 17, 16]),
        (16, &[19, 17]),
        (12, &[19, 17]),
    ] {
        let mut handle = volume.begin(ORPHAN_CREDITS).unwrap();
        register.remove(&volume, &mut handle, number(gone)).unwrap();
        assert_eq!(stored_list(&volume), left);
        let all: Vec<_> = register.all().into_iter().map(InodeNr::get).collect();
        assert_eq!(all, left);
    }
    assert_eq!(inode::read(&volume, number(18)).unwrap().deleted, 0);
    volume.superblock = Superblock::decode(&disk_superblock(&volume)).unwrap();
    let found = OrphanRegister::open(&volume).unwrap();
    assert_eq!(found.all(), [number(19), number(17)]);
    let mut handle = volume.begin(2 * ORPHAN_CREDITS).unwrap();
    found.add(&volume, &mut handle, number(20)).unwrap();
    let gone = inode::read(&volume, number(19)).unwrap();
    found
        .remove_deleted(&volume, &mut handle, &gone, 1234)
        .unwrap();
    drop(handle);
    assert_eq!(stored_list(&volume), [20, 17]);
    assert_eq!(inode::read(&volume, number(19)).unwrap().deleted, 1234);
}

#[test]
fn cyclic_list_terminates() {
    let mut volume = volume(3);
    let mut handle = volume.begin(3).unwrap();
    for (inode, next) in [(16, 17), (17, 18), (18, 16)] {
        inode::store_deleted(&volume, &mut handle, number(inode), next).unwrap();
    }
    drop(handle);
    volume.superblock.last_orphan = InodeNr::new(16);
    let found = OrphanRegister::open(&volume).unwrap();
    assert_eq!(found.all(), [16, 17, 18].map(number));
}

#[test]
fn orphans_overflow_from_the_file_to_the_list() {
    let mut volume = with_file(volume(PLACES + 2));
    let register = OrphanRegister::open(&volume).unwrap();
    let announced = |volume: &Volume| {
        let features = disk_superblock(volume).feature_ro_compat.get();
        features & 0x1_0000 != 0
    };
    assert!(!announced(&volume));
    for inode in 16..16 + PLACES + 2 {
        let mut handle = volume.begin(ORPHAN_CREDITS).unwrap();
        register.add(&volume, &mut handle, number(inode)).unwrap();
    }
    assert!(announced(&volume));
    let in_list = [16 + PLACES + 1, 16 + PLACES];
    assert_eq!(stored_list(&volume), in_list);
    let block = volume.buffers().read(BLOCK.0, &Unverified).unwrap();
    assert_eq!(orphans(&block).count(), PLACES as usize);

    volume.superblock = Superblock::decode(&disk_superblock(&volume)).unwrap();
    volume.superblock.orphan_file_inode = InodeNr::new(FILE);
    let found = OrphanRegister::open(&volume).unwrap();
    assert_eq!(found.all().len(), PLACES as usize + 2);
    let mut handle = volume.begin(ORPHAN_CREDITS).unwrap();
    found.close(&volume, &mut handle).unwrap();
    assert!(announced(&volume));
    drop(handle);
    for inode in found.all() {
        let inode = inode::read(&volume, inode).unwrap();
        let mut handle = volume.begin(ORPHAN_CREDITS).unwrap();
        found
            .remove_deleted(&volume, &mut handle, &inode, 7)
            .unwrap();
    }
    assert_eq!(found.all(), []);
    assert_eq!(stored_list(&volume), [0u32; 0]);
    let mut handle = volume.begin(1).unwrap();
    found.close(&volume, &mut handle).unwrap();
    assert!(!announced(&volume));
    assert_eq!(inode::read(&volume, number(16)).unwrap().deleted, 7);
}

#[test]
fn corrupt_orphan_file_is_reported() {
    let volume = with_file(volume(1));
    let mut handle = volume.begin(1).unwrap();
    handle.create(BLOCK, &Unverified, vec![0; 1024]).unwrap();
    drop(handle);
    assert!(OrphanRegister::open(&volume).is_err());
}
