//! Decoders of ext4's metadata. The first byte chooses the shape of the filesystem.

use std::hint::black_box;
use std::sync::LazyLock;

use platter_ext4::ondisk::dir_entry::{DirBlockVerifier, EntryFormat};
use platter_ext4::ondisk::extent::{ExtentBlockRules, ExtentNode};
use platter_ext4::ondisk::htree::{HtreeRoot, decode_node};
use platter_ext4::ondisk::orphan::{OrphanBlockRules, orphans};
use platter_ext4::ondisk::superblock::DiskSuperblock;
use platter_ext4::ondisk::xattr::{XattrBlockVerifier, XattrSpace};
use platter_ext4::ondisk::{FileBlock, Geometry, GroupDesc, GroupNr, Inode, InodeNr, Superblock};
use platter_ondisk::Verify;
use platter_vfs::{Credentials, PosixAcl};
use zerocopy::{FromBytes, FromZeros};

/// What the verifiers' checksums start from.
const SEED: u32 = 0x1234_5678;

/// One shape without checksums, and the same with.
static SHAPES: LazyLock<Vec<Geometry>> = LazyLock::new(|| {
    const METADATA_CSUM: u32 = 0x400;
    [0, METADATA_CSUM]
        .into_iter()
        .filter_map(|ro_compat| geometry(&sample(ro_compat)))
        .collect()
});

fn sample(ro_compat: u32) -> DiskSuperblock {
    const FILETYPE_EXTENTS_64BIT: u32 = 0x2 | 0x40 | 0x80;
    let mut disk = DiskSuperblock::new_zeroed();
    disk.magic.set(0xef53);
    disk.revision.set(1);
    disk.blocks_count_lo.set(8192);
    disk.first_data_block.set(1);
    disk.blocks_per_group.set(8192);
    disk.clusters_per_group.set(8192);
    disk.inodes_per_group.set(2048);
    disk.inodes_count.set(2048);
    disk.first_inode.set(11);
    disk.inode_size.set(256);
    disk.descriptor_size.set(64);
    disk.feature_incompat.set(FILETYPE_EXTENTS_64BIT);
    disk.feature_ro_compat.set(ro_compat);
    disk.checksum_type = u8::from(ro_compat != 0);
    disk.checksum.set(disk.expected_checksum());
    disk
}

fn geometry(disk: &DiskSuperblock) -> Option<Geometry> {
    let superblock = Superblock::decode(disk).ok()?;
    Geometry::decode(disk, &superblock).ok()
}

/// A shape by the first byte, and the bytes after it.
fn shape(bytes: &[u8]) -> Option<(&'static Geometry, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let shapes = SHAPES.as_slice();
    Some((shapes.get(usize::from(*first) % shapes.len().max(1))?, rest))
}

pub(super) fn superblock(bytes: &[u8]) {
    let Ok((disk, _)) = DiskSuperblock::read_from_prefix(bytes) else {
        return;
    };
    for sealed in [false, true] {
        let mut disk = disk;
        if sealed {
            disk.checksum.set(disk.expected_checksum());
        }
        if let Ok(superblock) = Superblock::decode(&disk) {
            black_box((superblock.kind(), superblock.features.describe()));
            if let Ok(geometry) = Geometry::decode(&disk, &superblock) {
                black_box(geometry.len_bytes());
                for group in [0, 1, 3, u32::MAX].map(GroupNr) {
                    black_box(geometry.group_first_block(group));
                    black_box(geometry.group_blocks(group));
                    black_box(geometry.has_superblock(group));
                }
                black_box(geometry.descriptor_block(0));
            }
        }
    }
}

pub(super) fn group_descriptor(bytes: &[u8]) {
    if let Some((geometry, bytes)) = shape(bytes) {
        let _ = black_box(GroupDesc::decode(bytes, GroupNr(0), geometry));
    }
}

pub(super) fn inode(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    for number in [2, 8, 12].into_iter().filter_map(InodeNr::new) {
        if let Ok(inode) = Inode::decode(bytes, number, geometry) {
            black_box((inode.device(), inode.target_inside(), inode.is_encrypted()));
            black_box(inode.has_target_inside(geometry));
        }
    }
}

pub(super) fn extent_node(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    if let Ok(node) = ExtentNode::decode(bytes)
        && node.verify(geometry).is_ok()
    {
        black_box((
            node.first(),
            node.children().count(),
            node.extents().count(),
        ));
        for block in [0, 1, 1000, u32::MAX].map(FileBlock) {
            black_box(node.lookup(block));
        }
    }
    let rules = ExtentBlockRules {
        geometry,
        inode_seed: SEED,
    };
    verify_sealed(&rules, bytes);
}

pub(super) fn directory_block(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    for has_hash in [false, true] {
        let mut format = EntryFormat::new(geometry, has_hash);
        for block_bytes in [1024, 65536] {
            format.block_bytes = block_bytes;
            black_box(format.entries(bytes).count());
        }
    }
    let Some(inode) = InodeNr::new(12) else {
        return;
    };
    for (is_indexed, is_first) in [(false, true), (true, true), (true, false)] {
        let rules = DirBlockVerifier {
            inode,
            checksum_seed: Some(SEED),
            is_indexed,
            is_first,
        };
        verify_sealed(&rules, bytes);
    }
}

pub(super) fn directory_index(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    let _ = black_box(HtreeRoot::decode(bytes, geometry).is_ok());
    if let Ok(entries) = decode_node(bytes, geometry) {
        for index in [0, 1, entries.len(), usize::MAX] {
            black_box((entries.hash(index), entries.block(index)));
        }
        black_box(entries.position(0x8000_0000));
    }
}

pub(super) fn attribute_block(bytes: &[u8]) {
    for has_ea_inode in [false, true] {
        if let Ok(space) = XattrSpace::decode_block(bytes, has_ea_inode) {
            values(&space);
        }
        let rules = XattrBlockVerifier {
            checksum_seed: Some(SEED),
            has_ea_inode,
        };
        verify_sealed(&rules, bytes);
    }
}

pub(super) fn attributes_in_inode(bytes: &[u8]) {
    for has_ea_inode in [false, true] {
        if let Some(Ok(space)) = XattrSpace::decode_inode(bytes, has_ea_inode) {
            values(&space);
        }
    }
}

fn values(space: &XattrSpace<'_>) {
    for entry in space.entries() {
        black_box(entry.verify_hash(b"value").is_ok());
        black_box(entry.verify_hash_of_inode(7).is_ok());
    }
    black_box(space.find(1, b"name"));
}

pub(super) fn acl(bytes: &[u8]) {
    if let Ok(acl) = PosixAcl::decode(bytes) {
        black_box(acl.permits(&Credentials::root(), 0, 0, 7));
        assert_eq!(PosixAcl::decode(&acl.encode()).ok(), Some(acl));
    }
}

pub(super) fn orphan_block(bytes: &[u8]) {
    black_box(orphans(bytes).count());
    let rules = OrphanBlockRules {
        inode_seed: Some(SEED),
    };
    verify_sealed(&rules, bytes);
}

/// Verifies a block as it is, and again with its checksum in place.
fn verify_sealed(rules: &dyn Verify, bytes: &[u8]) {
    black_box(rules.verify(7, bytes).is_ok());
    let mut sealed = bytes.to_vec();
    rules.seal(7, &mut sealed);
    black_box(rules.verify(7, &sealed).is_ok());
}
