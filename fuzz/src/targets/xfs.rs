//! Decoders of XFS. The first byte chooses the shape of the filesystem: its version and sizes.

use std::hint::black_box;
use std::sync::LazyLock;

use platter_ondisk::{Locus, Verify};
use platter_xfs::ondisk::attr::leaf::AttrLeaf;
use platter_xfs::ondisk::attr::{remote, short};
use platter_xfs::ondisk::btree::{BtreeBlock, BtreeKind, DiskMapping};
use platter_xfs::ondisk::da::{DaKind, DaNode};
use platter_xfs::ondisk::dir::data::{DataKind, DirData};
use platter_xfs::ondisk::dir::free::DirFree;
use platter_xfs::ondisk::dir::leaf::{self, DirLeaf};
use platter_xfs::ondisk::dir::short::ShortDir;
use platter_xfs::ondisk::dquot::{Dquot, QuotaKind};
use platter_xfs::ondisk::extent::ExtentDevice;
use platter_xfs::ondisk::realtime::{self, DiskRtSuperblock, RtBlockKind};
use platter_xfs::ondisk::superblock::DiskSuperblock;
use platter_xfs::ondisk::{
    AgNr, Agf, Agfl, Agi, BasicBlock, BlockKind, BlockVerifier, Geometry, Inode, InodeNr, Mapping,
    Site, Superblock, symlink,
};
use zerocopy::{FromBytes, IntoBytes};

/// Version 5 with all that has a tree, version 4, and small blocks with large directory blocks.
static SHAPES: LazyLock<Vec<Geometry>> = LazyLock::new(|| {
    [(5, 12, 0), (4, 12, 0), (5, 10, 2), (4, 9, 0)]
        .into_iter()
        .filter_map(|(version, block_bits, directory_bits)| {
            let mut disk = sample(version, block_bits, directory_bits);
            let mut sector = vec![0; 512];
            DiskSuperblock::write_to_prefix(&disk, &mut sector).ok()?;
            DiskSuperblock::seal(&mut sector);
            disk = DiskSuperblock::read_from_prefix(&sector).ok()?.0;
            let superblock = Superblock::decode(disk.as_bytes(), Locus::UNKNOWN);
            Some(Geometry::new(&superblock.ok()?))
        })
        .collect()
});

fn sample(version: u16, block_bits: u8, directory_bits: u8) -> DiskSuperblock {
    const BLOCKS: u32 = 4096;
    let mut disk = DiskSuperblock::read_from_bytes(&[0; size_of::<DiskSuperblock>()])
        .unwrap_or_else(|_| unreachable!("zeros are a superblock"));
    let inode_bits = if version == 5 { 9 } else { 8 };
    disk.magic.set(0x5846_5342);
    disk.block_bytes.set(1 << block_bits);
    disk.block_bits = block_bits;
    disk.dir_block_shift = directory_bits;
    disk.sector_bytes.set(512);
    disk.sector_bits = 9;
    disk.inode_bytes.set(1 << inode_bits);
    disk.inode_bits = inode_bits;
    disk.inodes_per_block.set(1 << (block_bits - inode_bits));
    disk.inodes_per_block_bits = block_bits - inode_bits;
    disk.ag_blocks.set(BLOCKS);
    disk.ag_block_bits = 12;
    disk.ag_count.set(4);
    disk.data_blocks.set(u64::from(4 * BLOCKS));
    disk.log_start.set(u64::from(2 * BLOCKS + 8));
    disk.log_blocks.set(1368);
    disk.log_stripe_unit.set(1);
    disk.root_inode.set(128);
    disk.rt_bitmap_inode.set(129);
    disk.rt_summary_inode.set(130);
    disk.rt_extent_blocks.set(1);
    disk.inode_percent_max = 25;
    disk.inode_alignment.set(if version == 5 { 8 } else { 2 });
    disk.uuid = [0x5a; 16];
    disk.inode_count.set(64);
    disk.free_inodes.set(61);
    if version == 5 {
        disk.version.set(0xb4a5);
        disk.features2.set(0x18a);
        disk.bad_features2.set(0x18a);
        disk.sparse_inode_alignment.set(4);
        disk.ro_compat.set(0xf);
        disk.incompat.set(0xb);
    } else {
        disk.version.set(0xb4a4);
        disk.features2.set(0x8a);
        disk.bad_features2.set(0x8a);
    }
    disk
}

/// A shape by the first byte, and the bytes after it.
pub(super) fn shape(bytes: &[u8]) -> Option<(&'static Geometry, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let shapes = SHAPES.as_slice();
    Some((shapes.get(usize::from(*first) % shapes.len().max(1))?, rest))
}

/// The places of a block's fields: checksum, its own address, UUID, owner and the owner's length.
#[derive(Clone, Copy)]
struct Fields(usize, usize, usize, usize, usize);

const SHORT_BTREE: Fields = Fields(52, 16, 32, 48, 4);
const LONG_BTREE: Fields = Fields(64, 24, 40, 56, 8);
const DIRECTORY: Fields = Fields(4, 8, 24, 40, 8);
const HASHES: Fields = Fields(12, 16, 32, 48, 8);
const REALTIME: Fields = Fields(4, 16, 32, 8, 8);

/// Calls `decode` with a block and where it lies: as it is, as one that was verified, and as one that
/// lies where it says with its checksum in place.
fn each_site(
    geometry: &Geometry,
    bytes: &[u8],
    Fields(sum, address, uuid, owner, owner_len): Fields,
    decode: impl Fn(&[u8], &Site<'_>),
) {
    decode(bytes, &Site::new(geometry, BasicBlock(8), 131));
    decode(bytes, &Site::verified(geometry, 131));
    let number = |at: usize, len: usize| {
        let field = bytes.get(at..at + len)?;
        Some(
            field
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        )
    };
    let (Some(at), Some(owner)) = (number(address, 8), number(owner, owner_len)) else {
        return;
    };
    let mut sealed = bytes.to_vec();
    if let Some(place) = sealed.get_mut(uuid..uuid + 16) {
        place.fill(0x5a);
    }
    platter_xfs::ondisk::checksum::seal(&mut sealed, sum);
    decode(&sealed, &Site::new(geometry, BasicBlock(at), owner));
}

/// Verifies a block as the cache does, sealed and not.
fn verify(geometry: &Geometry, kind: BlockKind, bytes: &[u8]) {
    let verifier = BlockVerifier::new(geometry, kind, 131);
    black_box(verifier.verify(8, bytes).is_ok());
    let mut sealed = bytes.to_vec();
    verifier.seal(8, &mut sealed);
    black_box(verifier.verify(8, &sealed).is_ok());
}

pub(super) fn superblock(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    DiskSuperblock::seal(&mut sealed);
    for sector in [bytes, &sealed] {
        black_box(Superblock::sector_bytes(sector));
        let Ok(superblock) = Superblock::decode(sector, Locus::UNKNOWN) else {
            continue;
        };
        black_box(superblock.features.unreadable());
        black_box(superblock.check_device(1 << 30).is_ok());
        let geometry = Geometry::new(&superblock);
        black_box((
            geometry.len_bytes(),
            geometry.chunk_blocks(),
            geometry.cluster_blocks(),
        ));
        for number in [1, 128, u64::from(u32::MAX), u64::MAX - 1] {
            if let Some(number) = InodeNr::new(number) {
                black_box((geometry.split_inode(number), geometry.locate_inode(number)));
            }
        }
        for ag in [0, 3, u32::MAX].map(AgNr) {
            black_box((geometry.ag_len(ag), geometry.ag_offset(ag)));
        }
    }
}

pub(super) fn group_headers(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    for checksum in [216, 312, 32] {
        let mut sealed = bytes.to_vec();
        platter_xfs::ondisk::checksum::seal(&mut sealed, checksum);
        for ag in [0, 1, 4].map(AgNr) {
            let agf = Agf::decode(&sealed, geometry, ag);
            black_box(Agi::decode(&sealed, geometry, ag).is_ok());
            if let (Ok(agfl), Ok(agf)) = (Agfl::decode(&sealed, geometry, ag), agf) {
                black_box(agfl.blocks(&agf).count());
            }
        }
    }
}

pub(super) fn inode(bytes: &[u8]) {
    const NUMBER: usize = 152;
    const CHECKSUM: usize = 100;
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    let mut sealed = bytes.to_vec();
    sealed.resize(geometry.inode_bytes() as usize, 0);
    if let Some(place) = sealed.get_mut(NUMBER..NUMBER + 24) {
        place[..8].copy_from_slice(&131_u64.to_be_bytes());
        place[8..].fill(0x5a);
    }
    platter_xfs::ondisk::checksum::seal(&mut sealed, CHECKSUM);
    let Some(number) = InodeNr::new(131) else {
        return;
    };
    for bytes in [bytes, &sealed] {
        let Ok(inode) = Inode::decode(bytes, number, geometry) else {
            continue;
        };
        black_box((inode.device(), inode.local_data(), inode.is_realtime()));
        let data = inode.data_fork();
        for fork in [Some(data), inode.attr_fork()].into_iter().flatten() {
            mappings(geometry, fork.mappings());
            black_box(BtreeBlock::decode_root(fork.bytes, BtreeKind::Bmap).is_ok());
            local(geometry, fork.bytes);
        }
    }
}

fn mappings(geometry: &Geometry, mappings: &[DiskMapping]) {
    for disk in mappings {
        let mapping = Mapping::unpack(disk);
        for device in [ExtentDevice::Data, ExtentDevice::Realtime] {
            if mapping.check(geometry, device).is_ok() {
                black_box((mapping.byte_offset(geometry, device), mapping.end()));
            }
        }
        black_box(mapping.pack());
    }
}

/// What a fork may hold itself.
fn local(geometry: &Geometry, bytes: &[u8]) {
    if let Ok(directory) = ShortDir::decode(bytes, geometry) {
        black_box(directory.entries(geometry).count());
    }
    if let Ok(entries) = short::entries(bytes) {
        black_box(entries.count());
    }
}

pub(super) fn short_forms(bytes: &[u8]) {
    if let Some((geometry, bytes)) = shape(bytes) {
        local(geometry, bytes);
        if let Ok((records, _)) = <[DiskMapping]>::ref_from_prefix_with_elems(bytes, 3) {
            mappings(geometry, records);
        }
    }
}

pub(super) fn btree_block(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    for kind in [
        BtreeKind::Bno,
        BtreeKind::Cnt,
        BtreeKind::Inobt,
        BtreeKind::Finobt,
        BtreeKind::Rmap,
        BtreeKind::Refcount,
        BtreeKind::Bmap,
        BtreeKind::RtRmap,
        BtreeKind::RtRefcount,
    ] {
        let fields = if kind.is_long() {
            LONG_BTREE
        } else {
            SHORT_BTREE
        };
        each_site(geometry, bytes, fields, |bytes, site| {
            if let Ok(block) = BtreeBlock::decode(bytes, kind, site) {
                black_box(block.check_records().is_ok());
                for index in [0, 1, 100, usize::MAX] {
                    black_box((block.pointer(index), block.record_key(index)));
                }
            }
        });
        verify(geometry, BlockKind::Btree(kind), bytes);
        black_box(BtreeBlock::decode_root(bytes, kind).is_ok());
    }
}

pub(super) fn directory_block(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    for kind in [DataKind::Single, DataKind::Data] {
        each_site(geometry, bytes, DIRECTORY, |bytes, site| {
            if let Ok(data) = DirData::decode(bytes, kind, site) {
                black_box(data.regions(geometry).count());
                for offset in [0, 16, 64, 4088, usize::MAX & !7] {
                    black_box(data.entry_at(offset, geometry).is_ok());
                }
            }
        });
        verify(geometry, BlockKind::DirData(kind), bytes);
    }
    each_site(geometry, bytes, DIRECTORY, |bytes, site| {
        black_box(DirFree::decode(bytes, site).is_ok());
    });
    verify(geometry, BlockKind::DirFree, bytes);
}

pub(super) fn hash_tree_block(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    black_box(DaKind::of(bytes, geometry.features.is_v5()));
    each_site(geometry, bytes, HASHES, |bytes, site| {
        for kind in [DaKind::DirLeaf1, DaKind::DirLeafN] {
            if let Ok(leaf) = DirLeaf::decode(bytes, kind, site) {
                for hash in [0, 0x2e, 0x8000_0000, u32::MAX] {
                    black_box(leaf::matching(leaf.entries, hash).count());
                }
            }
        }
        if let Ok(node) = DaNode::decode(bytes, site) {
            black_box((node.child(0), node.child(u32::MAX)));
        }
        if let Ok(leaf) = AttrLeaf::decode(bytes, site) {
            for entry in leaf.entries {
                black_box(leaf.attr(entry).is_ok());
            }
            black_box(leaf.matching(0).count());
        }
    });
    for kind in [
        BlockKind::DirLeaf(DaKind::DirLeaf1),
        BlockKind::DirLeaf(DaKind::DirLeafN),
        BlockKind::DaNode,
        BlockKind::AttrLeaf,
    ] {
        verify(geometry, kind, bytes);
    }
}

pub(super) fn remote_block(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    for (offset, left) in [(0, 1), (0, 4000), (4040, 100), (u32::MAX, u32::MAX)] {
        for site in [
            Site::new(geometry, BasicBlock(8), 131),
            Site::verified(geometry, 131),
        ] {
            black_box(remote::decode(bytes, offset, left, &site).is_ok());
            black_box(symlink::decode(bytes, offset, left, &site).is_ok());
        }
    }
}

pub(super) fn quota_record(bytes: &[u8]) {
    if let Some((geometry, bytes)) = shape(bytes) {
        let mut sealed = bytes.to_vec();
        platter_xfs::ondisk::checksum::seal(&mut sealed, 108);
        for bytes in [bytes, &sealed] {
            for kind in [QuotaKind::User, QuotaKind::Project] {
                black_box(Dquot::decode(bytes, kind, 0, geometry).is_ok());
            }
        }
    }
}

/// The superblock of a realtime device: as it is, and with magic number and checksum in place.
pub(super) fn realtime_superblock(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    if let Some(magic) = sealed.get_mut(..4) {
        magic.copy_from_slice(b"Frog");
    }
    platter_xfs::ondisk::checksum::seal(&mut sealed, DiskRtSuperblock::CHECKSUM_OFFSET);
    let mut unpadded = sealed.clone();
    if let Some(padding) = unpadded.get_mut(8..12) {
        padding.fill(0);
    }
    platter_xfs::ondisk::checksum::seal(&mut unpadded, DiskRtSuperblock::CHECKSUM_OFFSET);
    let superblock = Superblock::decode(bytes, Locus::UNKNOWN);
    for bytes in [bytes, &sealed, &unpadded] {
        let Ok(disk) = DiskRtSuperblock::decode(bytes) else {
            continue;
        };
        black_box(disk.label());
        if let Ok(superblock) = &superblock {
            black_box(disk.differs_from(superblock));
        }
    }
}

/// A block of a bitmap or a summary of a realtime group, and what is stored into it.
pub(super) fn realtime_block(bytes: &[u8]) {
    let Some((geometry, bytes)) = shape(bytes) else {
        return;
    };
    black_box(realtime::words(geometry.block_bytes()));
    for (kind, magic) in [
        (RtBlockKind::Bitmap, b"BMPZ"),
        (RtBlockKind::Summary, b"SUMY"),
    ] {
        let mut named = bytes.to_vec();
        if let Some(first) = named.get_mut(..4) {
            first.copy_from_slice(magic);
        }
        for bytes in [bytes, &named] {
            each_site(geometry, bytes, REALTIME, |bytes, site| {
                if let Ok((words, _)) = realtime::decode(bytes, kind, site) {
                    let mut stored = bytes.to_vec();
                    realtime::store(&mut stored, &words);
                    black_box(stored);
                }
            });
        }
    }
}
