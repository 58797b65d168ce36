//! Inodes built in memory, one broken rule at a time.

use super::super::geometry::tests::sample_geometry;
use super::*;

/// Builds a regular file with a 256-byte inode and checksums, modified by `change`.
pub(crate) fn sample(
    geometry: &Geometry,
    number: InodeNr,
    change: impl FnOnce(&mut DiskInode, &mut DiskInodeExtra),
) -> Vec<u8> {
    let mut bytes = vec![0; usize::from(geometry.inode_bytes)];
    let (disk, rest) = DiskInode::mut_from_prefix(&mut bytes).unwrap();
    let mut spare = DiskInodeExtra::read_from_bytes(&[0; 32]).unwrap();
    let extra = match DiskInodeExtra::mut_from_prefix(rest) {
        Ok((extra, _)) => extra,
        Err(_) => &mut spare,
    };
    disk.mode.set(0o10_0644);
    disk.links.set(1);
    extra.extra_size.set(32);
    change(disk, extra);
    super::seal(&mut bytes, number, geometry);
    bytes
}

fn number() -> InodeNr {
    InodeNr::new(12).unwrap()
}

fn decode(change: impl FnOnce(&mut DiskInode, &mut DiskInodeExtra)) -> Result<Inode, InodeRule> {
    let geometry = sample_geometry();
    let bytes = sample(&geometry, number(), change);
    Inode::decode(&bytes, number(), &geometry).map_err(|corrupt| corrupt.rule)
}

fn broken(change: impl FnOnce(&mut DiskInode, &mut DiskInodeExtra)) -> InodeRule {
    decode(change).unwrap_err()
}

#[test]
fn zeroed_inode_is_unused() {
    let geometry = sample_geometry();
    let corrupt = Inode::decode(&[0; 256], number(), &geometry).unwrap_err();
    assert_eq!(corrupt.rule, InodeRule::Unused);
    let corrupt = Inode::decode(&[0; 255], number(), &geometry).unwrap_err();
    assert_eq!(corrupt.rule, InodeRule::Truncated);
}

#[test]
fn inode_with_a_wrong_checksum_is_corrupt() {
    let mut geometry = sample_geometry();
    for (size, extra_size) in [(128, 0), (256, 0), (256, 4), (256, 32), (1024, 60)] {
        geometry.inode_bytes = size;
        let mut bytes = sample(&geometry, number(), |_, extra| {
            extra.extra_size.set(extra_size);
        });
        assert!(Inode::decode(&bytes, number(), &geometry).is_ok());
        bytes[100] ^= 1;
        let corrupt = Inode::decode(&bytes, number(), &geometry).unwrap_err();
        assert_eq!(corrupt.rule, InodeRule::Checksum);
    }
}

#[test]
fn invalid_inode_fields_are_corrupt() {
    assert_eq!(
        broken(|_, extra| extra.extra_size.set(132)),
        InodeRule::ExtraSize
    );
    assert_eq!(
        broken(|_, extra| extra.extra_size.set(30)),
        InodeRule::ExtraSize
    );
    assert_eq!(broken(|disk, _| disk.mode.set(0o644)), InodeRule::Mode);
    assert_eq!(
        broken(|disk, _| disk.size_hi.set(0x8000_0000)),
        InodeRule::Size
    );
    assert_eq!(
        broken(|disk, _| disk.xattr_block_lo.set(1)),
        InodeRule::XattrBlock
    );
    assert_eq!(
        broken(|disk, _| disk.xattr_block_lo.set(8192)),
        InodeRule::XattrBlock
    );
}

#[test]
fn fast_symlink_of_wrong_length_is_corrupt() {
    let link = |size: u32, target: &'static [u8]| {
        decode(move |disk, _| {
            disk.mode.set(0o12_0777);
            disk.size_lo.set(size);
            disk.block[..target.len()].copy_from_slice(target);
        })
    };
    assert_eq!(link(3, b"abc").unwrap().target_inside(), Some(&b"abc"[..]));
    assert_eq!(link(4, b"abc").unwrap_err(), InodeRule::LinkTarget);
    assert_eq!(link(2, b"abc").unwrap_err(), InodeRule::LinkTarget);
    assert_eq!(link(0, b"").unwrap_err(), InodeRule::LinkTarget);
    assert_eq!(link(60, &[b'a'; 60]).unwrap_err(), InodeRule::LinkTarget);
    assert!(link(59, &[b'a'; 59]).is_ok());
}

#[test]
fn attribute_block_leaves_fast_symlink_fast() {
    let geometry = sample_geometry();
    let inode = decode(|disk, _| {
        disk.mode.set(0o12_0777);
        disk.size_lo.set(1);
        disk.block[0] = b'a';
        disk.xattr_block_lo.set(100);
        disk.blocks_lo.set(2);
    });
    assert!(inode.unwrap().has_target_inside(&geometry));
}

#[test]
fn ea_inode_leaves_fast_symlink_fast() {
    let mut geometry = sample_geometry();
    geometry.features.incompat |= Incompat::EA_INODE;
    let link = |size: u32, sectors: u32| {
        let bytes = sample(&geometry, number(), |disk, _| {
            disk.mode.set(0o12_0777);
            disk.size_lo.set(size);
            disk.block[..59].fill(b'a');
            disk.blocks_lo.set(sectors);
        });
        Inode::decode(&bytes, number(), &geometry).unwrap()
    };
    assert!(link(59, 0).has_target_inside(&geometry));
    assert!(link(59, 18).has_target_inside(&geometry));
    assert!(!link(60, 2).has_target_inside(&geometry));
}

#[test]
fn device_numbers_have_two_forms() {
    let device = |old: u32, new: u32| {
        let inode = decode(move |disk, _| {
            disk.mode.set(0o06_0600);
            disk.block[..4].copy_from_slice(Le32::new(old).as_bytes());
            disk.block[4..8].copy_from_slice(Le32::new(new).as_bytes());
        });
        let device = inode.unwrap().device();
        (device.major, device.minor)
    };
    assert_eq!(device(0x0801, 0), (8, 1));
    assert_eq!(device(0, 0xabcd_2345), (0xd23 & 0xfff, 0xabc45));
    assert_eq!(decode(|_, _| ()).unwrap().device(), DeviceNumber::default());
}

#[test]
fn i_blocks_counts_sectors_or_blocks() {
    let mut geometry = sample_geometry();
    let huge = |disk: &mut DiskInode, _: &mut DiskInodeExtra| {
        disk.blocks_lo.set(6);
        disk.blocks_hi.set(1);
        disk.flags.set(InodeFlags::HUGE_FILE.bits());
    };
    let sectors = |geometry: &Geometry| {
        let bytes = sample(geometry, number(), huge);
        Inode::decode(&bytes, number(), geometry).unwrap().sectors
    };
    assert_eq!(sectors(&geometry), 6);
    geometry.features.ro_compat |= RoCompat::HUGE_FILE;
    assert_eq!(sectors(&geometry), 2 * 0x1_0000_0006);
}

#[test]
fn fields_beyond_extra_isize_are_absent() {
    let inode = decode(|_, extra| {
        extra.extra_size.set(16);
        extra.created.set(7);
        extra.accessed_extra.set(4);
    });
    let inode = inode.unwrap();
    assert_eq!(inode.created, None);
    assert_eq!(inode.accessed.nanoseconds, 1);
    assert_eq!(inode.tail.len(), 112);
}

#[test]
fn encoded_inode_decodes_equal() {
    for (size, extra_size) in [
        (128, 0),
        (256, 0),
        (256, 4),
        (256, 28),
        (256, 32),
        (1024, 60),
    ] {
        let mut geometry = sample_geometry();
        geometry.inode_bytes = size;
        geometry.features.incompat |= Incompat::BIT64;
        geometry.features.ro_compat |= RoCompat::HUGE_FILE | RoCompat::PROJECT;
        let bytes = sample(&geometry, number(), |disk, extra| {
            disk.as_mut_bytes()[2..].fill(0x11);
            disk.links.set(1);
            disk.xattr_block_lo.set(2000);
            disk.xattr_block_hi.set(0);
            disk.flags.set(0x8_0000);
            extra.as_mut_bytes()[4..].fill(0x22);
            extra.extra_size.set(extra_size);
        });
        let inode = Inode::decode(&bytes, number(), &geometry).unwrap();
        let mut again = bytes.clone();
        inode.encode(&mut again, &geometry).unwrap();
        if extra_size == 0 && size > 128 {
            let decoded = Inode::decode(&again, number(), &geometry).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{inode:?}"));
        } else {
            assert_eq!(again, bytes, "inode of {size} bytes, {extra_size} more");
        }
    }
}

#[test]
fn huge_file_counts_blocks_on_sector_overflow() {
    let mut geometry = sample_geometry();
    let mut inode = decode(|_, _| ()).unwrap();
    let mut slot = vec![0; 256];
    inode.sectors = 1 << 32;
    let corrupt = inode.encode(&mut slot, &geometry).unwrap_err();
    assert_eq!(corrupt.rule, InodeRule::Sectors);
    geometry.features.ro_compat |= RoCompat::HUGE_FILE;
    for sectors in [1 << 32, 1 << 48] {
        inode.sectors = sectors;
        inode.encode(&mut slot, &geometry).unwrap();
        let decoded = Inode::decode(&slot, number(), &geometry).unwrap();
        assert_eq!(decoded.sectors, sectors);
        let in_blocks = decoded.flags.contains(InodeFlags::HUGE_FILE);
        assert_eq!(in_blocks, sectors == 1 << 48);
    }
    inode.sectors = u64::MAX;
    let corrupt = inode.encode(&mut slot, &geometry).unwrap_err();
    assert_eq!(corrupt.rule, InodeRule::Sectors);
}

#[test]
fn device_numbers_round_trip() {
    let mut inode = decode(|disk, _| disk.mode.set(0o02_0644)).unwrap();
    for (major, minor) in [
        (0, 0),
        (8, 1),
        (255, 255),
        (256, 0),
        (0, 256),
        (0xfff, 0xf_ffff),
    ] {
        let device = DeviceNumber { major, minor };
        inode.set_device(device);
        assert_eq!(inode.device(), device);
    }
}
