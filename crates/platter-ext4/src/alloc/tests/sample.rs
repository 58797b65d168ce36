//! Small filesystems built in memory, with nothing but metadata.

use std::sync::{Arc, Weak};

use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use zerocopy::{FromBytes, IntoBytes};

use crate::FsContext;
use crate::alloc::Allocator;
use crate::groups::{self, layout};
use crate::ondisk::bitmap;
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::group_desc::{DiskGroupDesc, DiskGroupDescHigh, GroupFlags};
use crate::ondisk::superblock::tests::{sample, seal};
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_LEN_BYTES};
use crate::ondisk::{Geometry, GroupDesc, GroupNr, Superblock};
use crate::txn::{CommitClient, Log};

/// Parameters of a filesystem; blocks are 1 KiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) blocks: u32,
    pub(crate) blocks_per_group: u32,
    pub(crate) inodes_per_group: u32,
    pub(crate) cluster_blocks: u32,
    pub(crate) groups_per_flex: u32,
    pub(crate) reserved_blocks: u32,
    pub(crate) incompat: Incompat,
    pub(crate) ro_compat: RoCompat,
    /// Groups are left uninitialized where possible, with garbage in their metadata.
    pub(crate) uninit: bool,
}

impl Shape {
    /// Eight groups of 256 blocks and 32 inodes, the last group shorter.
    pub(crate) const PLAIN: Self = Self {
        blocks: 8 * 256 - 100,
        blocks_per_group: 256,
        inodes_per_group: 32,
        cluster_blocks: 1,
        groups_per_flex: 1,
        reserved_blocks: 0,
        incompat: Incompat::FILETYPE,
        ro_compat: RoCompat::METADATA_CSUM.union(RoCompat::SPARSE_SUPER),
        uninit: false,
    };

    /// One of each kind of layout.
    pub(crate) const ALL: [Self; 6] = [
        Self::PLAIN,
        Self {
            uninit: true,
            ..Self::PLAIN
        },
        Self {
            blocks: 10 * 512 + 1,
            blocks_per_group: 512,
            groups_per_flex: 4,
            uninit: true,
            ..Self::PLAIN
        },
        Self {
            blocks: 70 * 64 - 20,
            blocks_per_group: 64,
            inodes_per_group: 16,
            incompat: Incompat::FILETYPE.union(Incompat::META_BG),
            uninit: true,
            ..Self::PLAIN
        },
        Self {
            blocks: 6 * 1024 - 37,
            blocks_per_group: 1024,
            cluster_blocks: 4,
            incompat: Incompat::FILETYPE.union(Incompat::EXTENTS),
            reserved_blocks: 100,
            uninit: true,
            ..Self::PLAIN
        },
        Self {
            incompat: Incompat::FILETYPE.union(Incompat::BIT64),
            ro_compat: RoCompat::GDT_CSUM,
            reserved_blocks: 100,
            ..Self::PLAIN
        },
    ];

    fn superblock(self) -> DiskSuperblock {
        let mut disk = sample();
        let has_clusters = self.cluster_blocks > 1;
        let first = u32::from(!has_clusters);
        disk.blocks_count_lo.set(self.blocks);
        disk.first_data_block.set(first);
        disk.blocks_per_group.set(self.blocks_per_group);
        disk.clusters_per_group
            .set(self.blocks_per_group / self.cluster_blocks);
        disk.log_cluster_size.set(self.cluster_blocks.ilog2());
        disk.inodes_per_group.set(self.inodes_per_group);
        let groups = (self.blocks - first).div_ceil(self.blocks_per_group);
        disk.inodes_count.set(groups * self.inodes_per_group);
        disk.log_groups_per_flex = u8::try_from(self.groups_per_flex.ilog2()).unwrap();
        disk.reserved_blocks_count_lo.set(self.reserved_blocks);
        let wide = self.incompat.contains(Incompat::BIT64);
        disk.descriptor_size.set(if wide { 64 } else { 0 });
        let mut incompat = self.incompat;
        incompat.set(Incompat::FLEX_BG, self.groups_per_flex > 1);
        disk.feature_incompat.set(incompat.bits());
        let mut ro_compat = self.ro_compat;
        ro_compat.set(RoCompat::BIGALLOC, has_clusters);
        disk.feature_ro_compat.set(ro_compat.bits());
        seal(&mut disk);
        disk
    }
}

/// A writable filesystem.
pub(crate) struct Sample {
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) fs: FsContext,
    pub(crate) space: Arc<Allocator>,
}

impl Sample {
    pub(crate) fn new(shape: Shape) -> Self {
        Self::corrupt(shape, |_, _| {})
    }

    /// Builds a filesystem whose bytes are modified before they are read.
    pub(crate) fn corrupt(shape: Shape, corrupt: impl FnOnce(&mut [u8], &Geometry)) -> Self {
        let (mut bytes, geometry) = bytes(shape);
        corrupt(&mut bytes, &geometry);
        Self::on(Arc::new(MemoryDevice::new("memory", bytes)))
    }

    /// Opens the contents of the device again.
    pub(crate) fn on(device: Arc<MemoryDevice>) -> Self {
        let sample = Self::without_client(device);
        let client: Weak<dyn CommitClient> = Arc::<Allocator>::downgrade(&sample.space);
        sample.fs.log().unwrap().attach(client);
        sample
    }

    /// Like [`on`](Self::on), without a client of its log.
    pub(crate) fn without_client(device: Arc<MemoryDevice>) -> Self {
        let through: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        Self::through(device, through)
    }

    /// Like [`without_client`](Self::without_client), with requests through another device.
    pub(crate) fn through(device: Arc<MemoryDevice>, above: Arc<dyn BlockDevice>) -> Self {
        let fs = open_through(above);
        let space = Arc::new(Allocator::open(&fs).unwrap());
        Self { device, fs, space }
    }

    pub(crate) fn commit(&self) {
        self.fs.log().unwrap().commit_all().unwrap();
    }

    /// Validates the device's contents: all checksums, each count against the bitmaps, the
    /// superblock's against the sum, and the padding. Returns the blocks in use that are not fixed
    /// metadata.
    pub(crate) fn validated(&self) -> Vec<u64> {
        let fs = open(&self.device);
        let geometry = &fs.geometry;
        let (mut clusters, mut inodes) = (0, 0);
        let mut taken = Vec::new();
        let own = all_own(&fs);
        for group in (0..geometry.groups_count).map(GroupNr) {
            let desc = groups::read_descriptor(&fs, group).unwrap();
            let count = geometry
                .group_blocks(group)
                .div_ceil(geometry.cluster_blocks);
            clusters += u64::from(desc.free_clusters);
            inodes += desc.free_inodes;
            if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                let verifier = bitmap::BitmapVerifier::of_blocks(group, &desc, geometry);
                let bits = fs.read_block(desc.block_bitmap, &verifier).unwrap();
                assert_eq!(bitmap::count_clear(&bits, count), desc.free_clusters);
                assert!((count..8192).all(|index| bitmap::is_set(&bits, index)));
                let first = geometry.group_first_block(group).0;
                let ratio = u64::from(geometry.cluster_blocks);
                let of_own = own_clusters(geometry, group, &own);
                for index in (0..count).filter(|&index| bitmap::is_set(&bits, index)) {
                    if !of_own.contains(&index) {
                        taken.push(first + u64::from(index) * ratio);
                    }
                }
            }
            if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
                let verifier = bitmap::BitmapVerifier::of_inodes(group, &desc, geometry);
                let bits = fs.read_block(desc.inode_bitmap, &verifier).unwrap();
                let count = geometry.inodes_per_group;
                assert_eq!(bitmap::count_clear(&bits, count), desc.free_inodes);
                assert!((count..8192).all(|index| bitmap::is_set(&bits, index)));
            }
        }
        assert_eq!(
            fs.superblock.free_blocks,
            clusters * u64::from(geometry.cluster_blocks)
        );
        assert_eq!(fs.superblock.free_inodes, inodes);
        taken
    }
}

fn open(device: &Arc<MemoryDevice>) -> FsContext {
    open_through(Arc::<MemoryDevice>::clone(device))
}

fn open_through(device: Arc<dyn BlockDevice>) -> FsContext {
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    device.read_at(1024, &mut bytes).unwrap();
    let disk = DiskSuperblock::read_from_bytes(&bytes).unwrap();
    let superblock = Superblock::decode(&disk).unwrap();
    let geometry = Geometry::decode(&disk, &superblock).unwrap();
    let budget = Arc::new(MemoryBudget::new(4 << 20));
    FsContext::new(device, superblock, geometry, budget).writable(Log::without_journal)
}

fn all_own(fs: &FsContext) -> Vec<std::ops::Range<u64>> {
    let geometry = &fs.geometry;
    let mut own = Vec::new();
    for group in (0..geometry.groups_count).map(GroupNr) {
        let desc = groups::read_descriptor(fs, group).unwrap();
        own.push(layout::head(geometry, group));
        own.extend(layout::own(geometry, &desc));
    }
    own
}

/// Returns the clusters of a group that contain some of these blocks.
fn own_clusters(
    geometry: &Geometry,
    group: GroupNr,
    own: &[std::ops::Range<u64>],
) -> std::collections::BTreeSet<u32> {
    let first = geometry.group_first_block(group).0;
    let end = first + u64::from(geometry.group_blocks(group));
    let blocks = own.iter().flat_map(Clone::clone);
    let inside = blocks.filter(|block| (first..end).contains(block));
    let ratio = u64::from(geometry.cluster_blocks);
    inside
        .map(|block| u32::try_from((block - first) / ratio).unwrap())
        .collect()
}

fn bytes(shape: Shape) -> (Vec<u8>, Geometry) {
    let mut disk = shape.superblock();
    let superblock = Superblock::decode(&disk).unwrap();
    let geometry = Geometry::decode(&disk, &superblock).unwrap();
    let fill = if shape.uninit { 0xa5 } else { 0 };
    let mut bytes = vec![fill; usize::try_from(geometry.len_bytes()).unwrap()];
    let descs: Vec<_> = (0..geometry.groups_count)
        .map(|group| place(&geometry, GroupNr(group)))
        .collect();
    let own: Vec<_> = (0u32..)
        .zip(&descs)
        .flat_map(|(group, desc)| {
            let mut own = layout::own(&geometry, desc).to_vec();
            own.push(layout::head(&geometry, GroupNr(group)));
            own
        })
        .collect();
    let (mut clusters, mut inodes) = (0, 0);
    for (group, mut desc) in (0u32..).map(GroupNr).zip(descs) {
        fill_group(&mut bytes, &geometry, group, &mut desc, &own, shape.uninit);
        clusters += u64::from(desc.free_clusters);
        inodes += desc.free_inodes;
    }
    disk.set_free_counts(clusters * u64::from(geometry.cluster_blocks), inodes);
    seal(&mut disk);
    bytes[1024..1024 + SUPERBLOCK_LEN_BYTES].copy_from_slice(disk.as_bytes());
    (bytes, geometry)
}

/// Places metadata after the head of its group, or with `flex_bg` in the first group.
fn place(geometry: &Geometry, group: GroupNr) -> GroupDesc {
    let flex = geometry.groups_per_flex;
    let first = GroupNr(group.0 - group.0 % flex);
    let each = 2 + u64::from(geometry.inode_table_blocks);
    let at = layout::head(geometry, first).end + u64::from(group.0 % flex) * each;
    GroupDesc {
        block_bitmap: crate::ondisk::BlockNr(at),
        inode_bitmap: crate::ondisk::BlockNr(at + 1),
        inode_table: crate::ondisk::BlockNr(at + 2),
        free_clusters: 0,
        free_inodes: 0,
        used_dirs: 0,
        unused_inodes: 0,
        flags: GroupFlags::empty(),
        stored_flags: GroupFlags::empty(),
        block_bitmap_checksum: 0,
        inode_bitmap_checksum: 0,
    }
}

fn fill_group(
    bytes: &mut [u8],
    geometry: &Geometry,
    group: GroupNr,
    desc: &mut GroupDesc,
    own: &[std::ops::Range<u64>],
    uninit: bool,
) {
    let block = |number: u64| {
        let start = usize::try_from(number).unwrap() * 1024;
        start..start + 1024
    };
    let own = own_clusters(geometry, group, own);
    let mut bits = vec![0; 1024];
    let count = geometry
        .group_blocks(group)
        .div_ceil(geometry.cluster_blocks);
    for index in own.iter().copied().chain(count..8192) {
        bitmap::assign(&mut bits, index, true);
    }
    desc.free_clusters = bitmap::count_clear(&bits, count);
    let own_alone = layout::own(geometry, desc)[0].start == layout::head(geometry, group).end;
    let has_sums = geometry.features.has_group_csum();
    if uninit && has_sums && group.0 > 0 && (geometry.groups_per_flex > 1) != own_alone {
        desc.flags |= GroupFlags::BLOCK_UNINIT;
    } else {
        bytes[block(desc.block_bitmap.0)].copy_from_slice(&bits);
        let sum = bitmap::expected_checksum(&bits, geometry.clusters_per_group, geometry);
        desc.block_bitmap_checksum = sum.unwrap_or(0);
    }
    let inodes = geometry.inodes_per_group;
    let reserved = if group.0 == 0 { 10 } else { 0 };
    desc.free_inodes = inodes - reserved;
    desc.used_dirs = u32::from(group.0 == 0);
    if uninit && has_sums && group.0 > 0 {
        desc.flags |= GroupFlags::INODE_UNINIT;
        desc.unused_inodes = inodes;
    } else {
        let mut bits = vec![0; 1024];
        for index in (0..reserved).chain(inodes..8192) {
            bitmap::assign(&mut bits, index, true);
        }
        bytes[block(desc.inode_bitmap.0)].copy_from_slice(&bits);
        let sum = bitmap::expected_checksum(&bits, inodes, geometry);
        desc.inode_bitmap_checksum = sum.unwrap_or(0);
        desc.unused_inodes = if has_sums { inodes - reserved } else { 0 };
    }
    store(bytes, geometry, group, desc);
}

/// Writes a descriptor, including its locations.
pub(crate) fn store(bytes: &mut [u8], geometry: &Geometry, group: GroupNr, desc: &GroupDesc) {
    let per_block = geometry.descriptors_per_block;
    let table = geometry.descriptor_block(group.0 / per_block).0;
    let at = usize::try_from(table).unwrap() * 1024
        + (group.0 % per_block) as usize * usize::from(geometry.descriptor_bytes);
    let bytes = &mut bytes[at..at + usize::from(geometry.descriptor_bytes)];
    bytes.fill(0);
    let (low, rest) = DiskGroupDesc::mut_from_prefix(bytes).unwrap();
    let number = |block: crate::ondisk::BlockNr| u32::try_from(block.0).unwrap();
    low.block_bitmap_lo.set(number(desc.block_bitmap));
    low.inode_bitmap_lo.set(number(desc.inode_bitmap));
    low.inode_table_lo.set(number(desc.inode_table));
    if let Ok((high, _)) = DiskGroupDescHigh::mut_from_prefix(rest) {
        high.block_bitmap.set(0);
    }
    desc.encode_into(bytes, group, geometry);
}
