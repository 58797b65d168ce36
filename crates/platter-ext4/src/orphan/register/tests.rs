//! Adding and removing orphans, and what a mount finds of them.

use platter_ondisk::verify::Unverified;
use platter_vfs::FileKind;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::fs_context::tests::sample_writable;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::orphan::{DiskOrphanTail, OrphanBlockRules, orphans};
use crate::ondisk::superblock::DiskSuperblock;
use crate::ondisk::{BlockNr, Inode, InodeFlags, Superblock};

/// The orphan file, and its only block.
const FILE: u32 = 15;
const BLOCK: BlockNr = BlockNr(700);
/// Slots of a block of 1 KiB.
const PLACES: u32 = 254;

fn number(number: u32) -> InodeNr {
    InodeNr::new(number).unwrap()
}

/// Makes a filesystem with inodes from 16 on.
fn fs(count: u32) -> FsContext {
    let fs = sample_writable();
    let mut handle = fs.begin(100).unwrap();
    for inode in 16..16 + count {
        let mut inode = Inode::new(number(inode), FileKind::Regular, 1, 32, &fs.geometry);
        inode.links = 1;
        inode::initialize(&fs, &mut handle, &inode).unwrap();
    }
    drop(handle);
    fs
}

/// Adds an orphan file of one block.
fn with_file(mut fs: FsContext) -> FsContext {
    let geometry = &fs.geometry;
    let mut file = Inode::new(number(FILE), FileKind::Regular, 1, 32, geometry);
    (file.links, file.size_bytes) = (1, u64::from(geometry.block_bytes));
    file.flags = InodeFlags::empty();
    file.block = [0; BLOCK_AREA_BYTES];
    file.block[..4].copy_from_slice(&700u32.to_le_bytes());
    let has_checksum = geometry.features.has_metadata_csum();
    let rules = OrphanBlockRules {
        inode_seed: has_checksum.then_some(file.checksum_seed),
    };
    let mut handle = fs.begin(4).unwrap();
    inode::initialize(&fs, &mut handle, &file).unwrap();
    let mut block = vec![0; 1024];
    let tail = DiskOrphanTail {
        magic: 0x0b10_ca04.into(),
        checksum: 0.into(),
    };
    block[1016..].copy_from_slice(tail.as_bytes());
    handle.create(BLOCK, &rules, block).unwrap();
    drop(handle);
    fs.superblock.orphan_file_inode = InodeNr::new(FILE);
    fs
}

fn disk_superblock(fs: &FsContext) -> DiskSuperblock {
    let block = fs.geometry.superblock_block.0;
    let bytes = fs.buffers().read(block, &Unverified).unwrap();
    let (disk, _) = DiskSuperblock::read_from_prefix(&bytes).unwrap();
    assert_eq!(disk.checksum.get(), disk.expected_checksum());
    disk
}

/// Returns the list as it is stored.
fn stored_list(fs: &FsContext) -> Vec<u32> {
    let mut list = Vec::new();
    let mut next = disk_superblock(fs).last_orphan.get();
    while next != 0 {
        list.push(next);
        next = inode::read(fs, number(next)).unwrap().deleted;
    }
    list
}

#[test]
fn orphans_are_removed_anywhere_in_the_list() {
    let mut fs = fs(5);
    let register = OrphanRegister::open(&fs).unwrap();
    for inode in [16, 17, 18, 19, 20, 18] {
        let mut handle = fs.begin(ORPHAN_CREDITS).unwrap();
        register.add(&fs, &mut handle, number(inode)).unwrap();
    }
    assert_eq!(stored_list(&fs), [20, 19, 18, 17, 16]);
    for (gone, left) in [
        (18, &[20, 19, 17, 16][..]),
        (20, &[19, 17, 16]),
        (16, &[19, 17]),
        (12, &[19, 17]),
    ] {
        let mut handle = fs.begin(ORPHAN_CREDITS).unwrap();
        register.remove(&fs, &mut handle, number(gone)).unwrap();
        assert_eq!(stored_list(&fs), left);
        let all: Vec<_> = register.all().into_iter().map(InodeNr::get).collect();
        assert_eq!(all, left);
    }
    assert_eq!(inode::read(&fs, number(18)).unwrap().deleted, 0);
    fs.superblock = Superblock::decode(&disk_superblock(&fs)).unwrap();
    let found = OrphanRegister::open(&fs).unwrap();
    assert_eq!(found.all(), [number(19), number(17)]);
    let mut handle = fs.begin(2 * ORPHAN_CREDITS).unwrap();
    found.add(&fs, &mut handle, number(20)).unwrap();
    let gone = inode::read(&fs, number(19)).unwrap();
    found.remove_deleted(&fs, &mut handle, &gone, 1234).unwrap();
    drop(handle);
    assert_eq!(stored_list(&fs), [20, 17]);
    assert_eq!(inode::read(&fs, number(19)).unwrap().deleted, 1234);
}

#[test]
fn cyclic_list_terminates() {
    let mut fs = fs(3);
    let mut handle = fs.begin(3).unwrap();
    for (inode, next) in [(16, 17), (17, 18), (18, 16)] {
        inode::store_deleted(&fs, &mut handle, number(inode), next).unwrap();
    }
    drop(handle);
    fs.superblock.last_orphan = InodeNr::new(16);
    let found = OrphanRegister::open(&fs).unwrap();
    assert_eq!(found.all(), [16, 17, 18].map(number));
}

#[test]
fn orphans_overflow_from_the_file_to_the_list() {
    let mut fs = with_file(fs(PLACES + 2));
    let register = OrphanRegister::open(&fs).unwrap();
    let announced = |fs: &FsContext| {
        let features = disk_superblock(fs).feature_ro_compat.get();
        features & 0x1_0000 != 0
    };
    assert!(!announced(&fs));
    for inode in 16..16 + PLACES + 2 {
        let mut handle = fs.begin(ORPHAN_CREDITS).unwrap();
        register.add(&fs, &mut handle, number(inode)).unwrap();
    }
    assert!(announced(&fs));
    let in_list = [16 + PLACES + 1, 16 + PLACES];
    assert_eq!(stored_list(&fs), in_list);
    let block = fs.buffers().read(BLOCK.0, &Unverified).unwrap();
    assert_eq!(orphans(&block).count(), PLACES as usize);

    fs.superblock = Superblock::decode(&disk_superblock(&fs)).unwrap();
    fs.superblock.orphan_file_inode = InodeNr::new(FILE);
    let found = OrphanRegister::open(&fs).unwrap();
    assert_eq!(found.all().len(), PLACES as usize + 2);
    let mut handle = fs.begin(ORPHAN_CREDITS).unwrap();
    found.close(&fs, &mut handle).unwrap();
    assert!(announced(&fs));
    drop(handle);
    for inode in found.all() {
        let inode = inode::read(&fs, inode).unwrap();
        let mut handle = fs.begin(ORPHAN_CREDITS).unwrap();
        found.remove_deleted(&fs, &mut handle, &inode, 7).unwrap();
    }
    assert_eq!(found.all(), []);
    assert_eq!(stored_list(&fs), [0u32; 0]);
    let mut handle = fs.begin(1).unwrap();
    found.close(&fs, &mut handle).unwrap();
    assert!(!announced(&fs));
    assert_eq!(inode::read(&fs, number(16)).unwrap().deleted, 7);
}

#[test]
fn corrupt_orphan_file_is_reported() {
    let fs = with_file(fs(1));
    let mut handle = fs.begin(1).unwrap();
    handle.create(BLOCK, &Unverified, vec![0; 1024]).unwrap();
    drop(handle);
    assert!(OrphanRegister::open(&fs).is_err());
}
