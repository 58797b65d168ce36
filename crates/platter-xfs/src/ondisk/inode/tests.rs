//! Inodes made in memory, one broken rule at a time.

use super::*;
use crate::ondisk::features::RoCompat;
use crate::ondisk::geometry::tests::{sample_geometry, sample_geometry_v4};

pub(crate) const NUMBER: u64 = 131;

/// An empty regular file in version 3.
pub(crate) fn sample() -> Vec<u8> {
    let mut bytes = vec![0; 512];
    let (disk, _) = DiskInodeV3::mut_from_prefix(&mut bytes).unwrap();
    disk.core.magic.set(INODE_MAGIC);
    disk.core.mode.set(0o10_0644);
    disk.core.version = 3;
    disk.core.data_format = 2;
    disk.core.attr_format = 2;
    disk.core.links.set(1);
    disk.core.next_unlinked.set(u32::MAX);
    disk.number.set(NUMBER);
    disk.uuid = [0x5a; 16];
    DiskInodeV3::seal(&mut bytes);
    bytes
}

fn number() -> InodeNr {
    InodeNr::new(NUMBER).unwrap()
}

fn changed(change: impl FnOnce(&mut DiskInodeV3)) -> Result<Inode, InodeRule> {
    let mut bytes = sample();
    change(DiskInodeV3::mut_from_prefix(&mut bytes).unwrap().0);
    DiskInodeV3::seal(&mut bytes);
    Inode::decode(&bytes, number(), &sample_geometry())
}

fn broken(change: impl FnOnce(&mut DiskInodeV3)) -> InodeRule {
    changed(change).unwrap_err()
}

#[test]
fn file_has_forks_that_share_the_literal_area() {
    let inode = changed(|disk| {
        disk.core.fork_offset = 10;
        disk.core.attr_format = 1;
    })
    .unwrap();
    assert_eq!(inode.data_fork().bytes.len(), 80);
    assert_eq!(inode.attr_fork().unwrap().bytes.len(), 512 - 176 - 80);
    let inode = changed(|_| ()).unwrap();
    assert_eq!(inode.data_fork().bytes.len(), 512 - 176);
    assert_eq!(inode.attr_fork(), None);
}

#[test]
fn rules_of_the_identity_are_checked() {
    assert_eq!(broken(|disk| disk.core.magic.set(0)), InodeRule::Magic);
    assert_eq!(broken(|disk| disk.core.version = 2), InodeRule::Version);
    assert_eq!(broken(|disk| disk.uuid[3] = 0), InodeRule::Uuid);
    assert_eq!(broken(|disk| disk.number.set(132)), InodeRule::Number);
    assert_eq!(broken(|disk| disk.core.mode.set(0)), InodeRule::Unused);
    let mut bytes = sample();
    bytes[500] = 1;
    let rule = Inode::decode(&bytes, number(), &sample_geometry()).unwrap_err();
    assert_eq!(rule, InodeRule::Checksum);
}

#[test]
fn rules_of_the_forks_are_checked() {
    assert_eq!(broken(|disk| disk.core.mode.set(0o644)), InodeRule::Mode);
    assert_eq!(
        broken(|disk| disk.core.data_format = 1),
        InodeRule::DataFormat
    );
    assert_eq!(
        broken(|disk| disk.core.data_format = 4),
        InodeRule::DataFormat
    );
    assert_eq!(
        broken(|disk| disk.core.fork_offset = 42),
        InodeRule::ForkOffset
    );
    let rule = broken(|disk| {
        disk.core.fork_offset = 10;
        disk.core.attr_format = 0;
    });
    assert_eq!(rule, InodeRule::AttrFormat);
    assert_eq!(
        broken(|disk| disk.core.data_extents.set(22)),
        InodeRule::Extents
    );
    let rule = broken(|disk| {
        disk.core.mode.set(0o12_0777);
        disk.core.data_format = 1;
        disk.core.size.set(337);
    });
    assert_eq!(rule, InodeRule::LocalSize);
}

#[test]
fn rules_of_sizes_times_and_flags_are_checked() {
    assert_eq!(broken(|disk| disk.core.size.set(1 << 63)), InodeRule::Size);
    let rule = broken(|disk| {
        disk.core.mode.set(0o12_0777);
        disk.core.size.set(1025);
    });
    assert_eq!(rule, InodeRule::Size);
    assert_eq!(
        broken(|disk| disk.core.blocks.set(1 << 40)),
        InodeRule::Blocks
    );
    let rule = broken(|disk| disk.core.modified.set(1_000_000_000));
    assert_eq!(rule, InodeRule::Time);
    assert_eq!(broken(|disk| disk.flags2.set(0x10)), InodeRule::Flags);
    assert_eq!(broken(|disk| disk.flags2.set(0x20)), InodeRule::Flags);
}

#[test]
fn inode_of_version_1_counts_few_links() {
    let mut bytes = vec![0; 256];
    let (disk, _) = DiskInode::mut_from_prefix(&mut bytes).unwrap();
    disk.magic.set(INODE_MAGIC);
    disk.mode.set(0o4_0755);
    disk.version = 1;
    disk.data_format = 1;
    disk.old_links.set(7);
    disk.size.set(6);
    let geometry = sample_geometry_v4();
    let inode = Inode::decode(&bytes, number(), &geometry).unwrap();
    assert_eq!((inode.links, inode.created), (7, None));
    assert_eq!(inode.local_data(), Some(&[0; 6][..]));
    assert_eq!(inode.data_fork().bytes.len(), 156);
    let rule = Inode::decode(&bytes, number(), &sample_geometry()).unwrap_err();
    assert_eq!(rule, InodeRule::Version);
}

#[test]
fn wide_counters_and_large_times_have_flags() {
    let mut bytes = sample();
    let (disk, _) = DiskInodeV3::mut_from_prefix(&mut bytes).unwrap();
    disk.flags2.set(0x18);
    disk.core.big_data_extents.set(3);
    disk.core.data_extents.set(70_000);
    DiskInodeV3::seal(&mut bytes);
    let mut geometry = sample_geometry();
    geometry.features.incompat |= crate::ondisk::features::Incompat::NREXT64;
    let inode = Inode::decode(&bytes, number(), &geometry).unwrap();
    assert_eq!((inode.data_extents, inode.attr_extents), (3, 70_000));
    assert_eq!(inode.modified.seconds, -(1 << 31));
}

#[test]
fn file_that_shares_blocks_has_more_than_the_filesystem() {
    let mut geometry = sample_geometry();
    geometry.features.ro_compat |= RoCompat::REFLINK;
    let decode = |flags2: InodeFlags2| {
        let mut bytes = sample();
        let (disk, _) = DiskInodeV3::mut_from_prefix(&mut bytes).unwrap();
        disk.core.blocks.set(1 << 40);
        disk.flags2.set(flags2.bits());
        DiskInodeV3::seal(&mut bytes);
        Inode::decode(&bytes, number(), &geometry)
    };
    assert_eq!(decode(InodeFlags2::REFLINK).unwrap().blocks, 1 << 40);
    let rule = decode(InodeFlags2::empty()).unwrap_err();
    assert_eq!(rule, InodeRule::Blocks);
}

#[test]
fn mappings_of_forks_are_counted_up_to_a_limit() {
    let trees = |disk: &mut DiskInodeV3, attr_extents: u16, data_extents: u32| {
        disk.core.fork_offset = 10;
        (disk.core.data_format, disk.core.attr_format) = (3, 3);
        disk.core.attr_extents.set(attr_extents);
        disk.core.data_extents.set(data_extents);
    };
    changed(|disk| trees(disk, 0x7fff, 0x7fff_ffff)).unwrap();
    let rule = broken(|disk| trees(disk, 0x8000, 1));
    assert_eq!(rule, InodeRule::Extents);
    let rule = broken(|disk| trees(disk, 1, 0x8000_0000));
    assert_eq!(rule, InodeRule::Extents);
    let mut bytes = sample();
    let (disk, _) = DiskInodeV3::mut_from_prefix(&mut bytes).unwrap();
    trees(disk, 1, 1);
    let mut fork = edit::StoredFork {
        kind: ForkKind::Attr,
        format: ForkFormat::Btree,
        extents: 0x7fff,
        bytes: &[],
    };
    edit::set_fork(&mut bytes, &fork).unwrap();
    fork.extents += 1;
    assert_eq!(edit::set_fork(&mut bytes, &fork), None);
}

#[test]
fn device_numbers_have_14_and_18_bits() {
    let mut bytes = sample();
    let (disk, literal) = DiskInodeV3::mut_from_prefix(&mut bytes).unwrap();
    disk.core.mode.set(0o2_0600);
    disk.core.data_format = 0;
    literal[..4].copy_from_slice(&((259 << 18) + 70_001_u32).to_be_bytes());
    DiskInodeV3::seal(&mut bytes);
    let inode = Inode::decode(&bytes, number(), &sample_geometry()).unwrap();
    let device = inode.device();
    assert_eq!((device.major, device.minor), (259, 70_001));
}

/// An inode that was changed before it was sealed: its core, and the forks after it.
pub(crate) fn inode_with(change: impl FnOnce(&mut DiskInodeV3, &mut [u8])) -> Inode {
    let mut bytes = sample();
    let (disk, literal) = DiskInodeV3::mut_from_prefix(&mut bytes).unwrap();
    change(disk, literal);
    DiskInodeV3::seal(&mut bytes);
    Inode::decode(&bytes, number(), &sample_geometry()).unwrap()
}

/// Stores mappings at the start of a fork.
pub(crate) fn put_mappings(fork: &mut [u8], mappings: &[crate::ondisk::Mapping]) {
    let count = mappings.len();
    let (stored, _) = <[DiskMapping]>::mut_from_prefix_with_elems(fork, count).unwrap();
    for (stored, mapping) in stored.iter_mut().zip(mappings) {
        *stored = mapping.pack().unwrap();
    }
}
