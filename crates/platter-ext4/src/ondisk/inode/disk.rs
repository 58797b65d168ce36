//! The bytes of an inode. Spec: `ext4/inodes`, `struct ext4_inode`.

use std::mem::offset_of;

use bitflags::bitflags;
use platter_ondisk::endian::{Le16, Le32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of `i_block`.
pub const BLOCK_AREA_BYTES: usize = 60;

/// The part of an inode that every filesystem has.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInode {
    /// `i_mode`.
    pub mode: Le16,
    /// `i_uid`.
    pub uid_lo: Le16,
    /// `i_size_lo`.
    pub size_lo: Le32,
    /// `i_atime`.
    pub accessed: Le32,
    /// `i_ctime`.
    pub changed: Le32,
    /// `i_mtime`.
    pub modified: Le32,
    /// `i_dtime`: time of deletion, or the next inode of the orphan list.
    pub deleted: Le32,
    /// `i_gid`.
    pub gid_lo: Le16,
    /// `i_links_count`.
    pub links: Le16,
    /// `i_blocks_lo`.
    pub blocks_lo: Le32,
    /// `i_flags`.
    pub flags: Le32,
    /// `osd1.l_i_version`.
    pub version_lo: Le32,
    /// `i_block`: the block map, the extent root, a short link target, or the first inline data.
    pub block: [u8; BLOCK_AREA_BYTES],
    /// `i_generation`.
    pub generation: Le32,
    /// `i_file_acl_lo`: the extended attribute block.
    pub xattr_block_lo: Le32,
    /// `i_size_high`.
    pub size_hi: Le32,
    /// `i_obso_faddr`.
    pub fragment: Le32,
    /// `l_i_blocks_high`.
    pub blocks_hi: Le16,
    /// `l_i_file_acl_high`.
    pub xattr_block_hi: Le16,
    /// `l_i_uid_high`.
    pub uid_hi: Le16,
    /// `l_i_gid_high`.
    pub gid_hi: Le16,
    /// `l_i_checksum_lo`.
    pub checksum_lo: Le16,
    /// `l_i_reserved`.
    pub reserved: Le16,
}

/// The fields of an inode of more than 128 bytes; `extra_size` is the length of those in use.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInodeExtra {
    /// `i_extra_isize`: bytes of this structure in use, this field included.
    pub extra_size: Le16,
    /// `i_checksum_hi`.
    pub checksum_hi: Le16,
    /// `i_ctime_extra`.
    pub changed_extra: Le32,
    /// `i_mtime_extra`.
    pub modified_extra: Le32,
    /// `i_atime_extra`.
    pub accessed_extra: Le32,
    /// `i_crtime`.
    pub created: Le32,
    /// `i_crtime_extra`.
    pub created_extra: Le32,
    /// `i_version_hi`.
    pub version_hi: Le32,
    /// `i_projid`.
    pub project: Le32,
}

const _: () = assert!(size_of::<DiskInode>() == 128);
const _: () = assert!(offset_of!(DiskInode, block) == 0x28);
const _: () = assert!(offset_of!(DiskInode, generation) == 0x64);
const _: () = assert!(offset_of!(DiskInode, checksum_lo) == 0x7c);
const _: () = assert!(size_of::<DiskInodeExtra>() == 32);

bitflags! {
    /// `i_flags`. The first ones are those of `chattr(1)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags: u32 {
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// The file cannot be changed.
        const IMMUTABLE = 0x10;
        /// The file can only be appended to.
        const APPEND = 0x20;
        /// Reading does not update the access time.
        const NOATIME = 0x80;
        /// Contents and names are encrypted.
        const ENCRYPT = 0x800;
        /// The directory is indexed.
        const INDEX = 0x1000;
        /// Data is journaled.
        const JOURNAL_DATA = 0x4000;
        /// Changes of names are synchronous.
        const DIR_SYNC = 0x1_0000;
        /// `EXT4_TOPDIR_FL`: its subdirectories are spread over the groups (Orlov allocator).
        const TOP_DIR = 0x2_0000;
        /// `i_blocks` counts filesystem blocks, not sectors.
        const HUGE_FILE = 0x4_0000;
        /// Mapped by extents.
        const EXTENTS = 0x8_0000;
        /// Verity-protected; a Merkle tree follows the data.
        const VERITY = 0x10_0000;
        /// An EA inode, which holds an attribute value.
        const EA_INODE = 0x20_0000;
        /// Data is stored in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// New files inherit the project ID.
        const PROJECT_INHERIT = 0x2000_0000;
        /// Names ignore case.
        const CASEFOLD = 0x4000_0000;
        /// The flags that `FS_IOC_SETFLAGS` changes, as far as this driver supports them: `s`, `u`,
        /// `c`, `S`, `i`, `a`, `d`, `A`, `t`, `D`, `T`, `P` and `F` of `chattr(1)`.
        const USER_MODIFIABLE = 0x6003_80ff;
        /// The flags whose change by `FS_IOC_SETFLAGS` converts the file: `j` and `e` of
        /// `chattr(1)`.
        const USER_CONVERTIBLE = 0x8_4000;
        /// The flags that only directories have: `D`, `T`, `P` and `F`.
        const OF_DIRECTORIES = 0x6003_0000;
        /// The flags that every other type may have: `d` and `A`.
        const OF_ANY_FILE = 0xc0;
        /// The flags that `FS_IOC_GETFLAGS` returns.
        const USER_VISIBLE = 0x725b_dfff;
    }
}
