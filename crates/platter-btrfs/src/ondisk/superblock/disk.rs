//! The bytes of a superblock. Spec: `btrfs/superblock`.

use std::mem::offset_of;

use platter_ondisk::endian::{Le16, Le32, Le64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ondisk::dev_item::DiskDevItem;

/// Where the superblock and its copies lie on each device.
pub const SUPERBLOCK_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// The size of a superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The size of the array of system chunks.
pub const SYS_CHUNK_ARRAY_BYTES: usize = 2048;
/// `magic`.
pub const MAGIC: [u8; 8] = *b"_BHRfS_M";

/// A superblock.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskSuperblock {
    /// `csum`, of all that follows.
    pub checksum: [u8; 32],
    /// `fsid`.
    pub fsid: [u8; 16],
    /// `bytenr`: where this copy lies.
    pub offset: Le64,
    /// `flags`.
    pub flags: Le64,
    /// `magic`.
    pub magic: [u8; 8],
    /// `generation`.
    pub generation: Le64,
    /// `root`.
    pub root: Le64,
    /// `chunk_root`.
    pub chunk_root: Le64,
    /// `log_root`.
    pub log_root: Le64,
    /// `log_root_transid`, which is not used.
    pub log_root_transid: Le64,
    /// `total_bytes`.
    pub total_bytes: Le64,
    /// `bytes_used`.
    pub bytes_used: Le64,
    /// `root_dir_objectid`.
    pub root_dir: Le64,
    /// `num_devices`.
    pub device_count: Le64,
    /// `sectorsize`.
    pub sector_bytes: Le32,
    /// `nodesize`.
    pub node_bytes: Le32,
    /// `leafsize`, the same as `nodesize`.
    pub leaf_bytes: Le32,
    /// `stripesize`.
    pub stripe_bytes: Le32,
    /// `sys_chunk_array_size`.
    pub sys_chunk_array_bytes: Le32,
    /// `chunk_root_generation`.
    pub chunk_root_generation: Le64,
    /// `compat_flags`.
    pub compat: Le64,
    /// `compat_ro_flags`.
    pub compat_ro: Le64,
    /// `incompat_flags`.
    pub incompat: Le64,
    /// `csum_type`.
    pub checksum_kind: Le16,
    /// `root_level`.
    pub root_level: u8,
    /// `chunk_root_level`.
    pub chunk_root_level: u8,
    /// `log_root_level`.
    pub log_root_level: u8,
    /// `dev_item`.
    pub dev_item: DiskDevItem,
    /// `label`.
    pub label: [u8; 256],
    /// `cache_generation`.
    pub cache_generation: Le64,
    /// `uuid_tree_generation`.
    pub uuid_tree_generation: Le64,
    /// `metadata_uuid`.
    pub metadata_uuid: [u8; 16],
    /// Of features that are not read.
    pub reserved: [u8; 224],
    /// `sys_chunk_array`.
    pub sys_chunk_array: [u8; SYS_CHUNK_ARRAY_BYTES],
    /// `super_roots`.
    pub backups: [DiskRootBackup; 4],
    /// Up to the end of the block.
    pub unused: [u8; 565],
}

/// The roots of an earlier transaction.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskRootBackup {
    /// `tree_root`, `tree_root_gen`.
    pub tree_root: [Le64; 2],
    /// `chunk_root`, `chunk_root_gen`.
    pub chunk_root: [Le64; 2],
    /// `extent_root`, `extent_root_gen`.
    pub extent_root: [Le64; 2],
    /// `fs_root`, `fs_root_gen`.
    pub fs_root: [Le64; 2],
    /// `dev_root`, `dev_root_gen`.
    pub dev_root: [Le64; 2],
    /// `csum_root`, `csum_root_gen`.
    pub csum_root: [Le64; 2],
    /// `total_bytes`.
    pub total_bytes: Le64,
    /// `bytes_used`.
    pub bytes_used: Le64,
    /// `num_devices`.
    pub device_count: Le64,
    /// `unused_64`.
    pub unused: [Le64; 4],
    /// The levels of the six roots, in the order above.
    pub levels: [u8; 6],
    /// `unused_8`.
    pub unused_bytes: [u8; 10],
}

const _: () = assert!(size_of::<DiskSuperblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(size_of::<DiskRootBackup>() == 168);
const _: () = assert!(offset_of!(DiskSuperblock, magic) == 0x40);
const _: () = assert!(offset_of!(DiskSuperblock, checksum_kind) == 0xc4);
const _: () = assert!(offset_of!(DiskSuperblock, label) == 0x12b);
const _: () = assert!(offset_of!(DiskSuperblock, metadata_uuid) == 0x23b);
const _: () = assert!(offset_of!(DiskSuperblock, sys_chunk_array) == 0x32b);
const _: () = assert!(offset_of!(DiskSuperblock, backups) == 0xb2b);
