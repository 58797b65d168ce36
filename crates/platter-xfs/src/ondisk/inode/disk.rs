//! The bytes of an inode's core. Spec: `xfs/ondisk_inode`, `struct xfs_dinode_core`; wide extent
//! counters and flags: `xfs-headers/xfs_format.h`.

use std::mem::offset_of;

use bitflags::bitflags;
use platter_ondisk::endian::{Be16, Be32, Be64, Le32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ondisk::checksum;
use crate::ondisk::types::Lsn;

/// What all versions have.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInode {
    /// `di_magic`: `IN`.
    pub magic: Be16,
    /// `di_mode`: zero for a free inode.
    pub mode: Be16,
    /// `di_version`.
    pub version: u8,
    /// `di_format`: of the data fork.
    pub data_format: u8,
    /// `di_onlink`: links of version 1; the kind of a metadata inode.
    pub old_links: Be16,
    /// `di_uid`.
    pub uid: Be32,
    /// `di_gid`.
    pub gid: Be32,
    /// `di_nlink`.
    pub links: Be32,
    /// `di_projid_lo`.
    pub project_lo: Be16,
    /// `di_projid_hi`.
    pub project_hi: Be16,
    /// `di_big_nextents`, or padding and `di_flushiter`.
    pub big_data_extents: Be64,
    /// `di_atime`.
    pub accessed: Be64,
    /// `di_mtime`.
    pub modified: Be64,
    /// `di_ctime`.
    pub changed: Be64,
    /// `di_size`.
    pub size: Be64,
    /// `di_nblocks`.
    pub blocks: Be64,
    /// `di_extsize`.
    pub extent_size: Be32,
    /// `di_nextents`, or `di_big_anextents`.
    pub data_extents: Be32,
    /// `di_anextents`.
    pub attr_extents: Be16,
    /// `di_forkoff`: start of the attribute fork in units of 8 bytes.
    pub fork_offset: u8,
    /// `di_aformat`: of the attribute fork.
    pub attr_format: u8,
    /// `di_dmevmask`.
    pub dm_event_mask: Be32,
    /// `di_dmstate`.
    pub dm_state: Be16,
    /// `di_flags`.
    pub flags: Be16,
    /// `di_gen`.
    pub generation: Be32,
    /// `di_next_unlinked`.
    pub next_unlinked: Be32,
}

/// What version 3 has after that.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInodeV3 {
    /// What all versions have.
    pub core: DiskInode,
    /// `di_crc`, of the inode.
    pub checksum: Le32,
    /// `di_changecount`.
    pub change_count: Be64,
    /// `di_lsn`.
    pub lsn: Be64,
    /// `di_flags2`.
    pub flags2: Be64,
    /// `di_cowextsize`.
    pub cow_extent_size: Be32,
    /// `di_pad2`.
    pub padding: [u8; 12],
    /// `di_crtime`.
    pub created: Be64,
    /// `di_ino`.
    pub number: Be64,
    /// `di_uuid`.
    pub uuid: [u8; 16],
}

const _: () = assert!(size_of::<DiskInode>() == 100);
const _: () = assert!(size_of::<DiskInodeV3>() == 176);
const _: () = assert!(offset_of!(DiskInode, size) == 56);
const _: () = assert!(offset_of!(DiskInode, fork_offset) == 82);
const _: () = assert!(offset_of!(DiskInode, next_unlinked) == 96);
const _: () = assert!(offset_of!(DiskInodeV3, flags2) == 120);
const _: () = assert!(offset_of!(DiskInodeV3, number) == 152);

impl DiskInode {
    /// Where the list of unlinked inodes goes on.
    pub const NEXT_UNLINKED_OFFSET: usize = offset_of!(Self, next_unlinked);
}

impl DiskInodeV3 {
    /// Where the checksum lies.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);

    /// Stores the position in the log of the last change, and the checksum.
    pub fn stamp(bytes: &mut [u8], lsn: Lsn) {
        if let Ok((disk, _)) = Self::mut_from_prefix(bytes) {
            disk.lsn.set(lsn.0);
        }
        Self::seal(bytes);
    }

    /// Stores the checksum of an inode of version 3, which fills `bytes`.
    pub fn seal(bytes: &mut [u8]) {
        checksum::seal(bytes, Self::CHECKSUM_OFFSET);
    }
}

/// Makes an inode on disk, whose blocks are freed already, one that is free: without type, names and
/// forks, with the next generation, in no list. Its checksum is left to the write to its place.
pub fn mark_free(bytes: &mut [u8]) {
    const EXTENTS: u8 = 2;
    if let Ok((disk, _)) = DiskInode::mut_from_prefix(bytes) {
        disk.mode.set(0);
        disk.links.set(0);
        disk.size.set(0);
        disk.blocks.set(0);
        disk.extent_size.set(0);
        disk.data_extents.set(0);
        disk.attr_extents.set(0);
        disk.fork_offset = 0;
        (disk.data_format, disk.attr_format) = (EXTENTS, EXTENTS);
        disk.flags.set(0);
        disk.dm_event_mask.set(0);
        disk.dm_state.set(0);
        disk.generation.set(disk.generation.get().wrapping_add(1));
        disk.next_unlinked.set(u32::MAX);
        if disk.version != 3 {
            return;
        }
        disk.big_data_extents.set(0);
    }
    if let Ok((disk, _)) = DiskInodeV3::mut_from_prefix(bytes) {
        let kept = InodeFlags2::BIGTIME | InodeFlags2::NREXT64;
        disk.flags2.set(disk.flags2.get() & kept.bits());
        disk.cow_extent_size.set(0);
    }
}

bitflags! {
    /// `di_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags: u16 {
        /// Data is on the realtime device.
        const REALTIME = 0x1;
        /// Space was preallocated.
        const PREALLOC = 0x2;
        /// The realtime bitmap has a new form.
        const NEWRTBM = 0x4;
        /// Nothing may change.
        const IMMUTABLE = 0x8;
        /// Data may only be appended.
        const APPEND = 0x10;
        /// Writes are synchronous.
        const SYNC = 0x20;
        /// The time of access is not kept.
        const NOATIME = 0x40;
        /// Backups leave it out.
        const NODUMP = 0x80;
        /// New files have their data on the realtime device.
        const RTINHERIT = 0x100;
        /// New files get the project of the directory.
        const PROJINHERIT = 0x200;
        /// No symbolic links may be created.
        const NOSYMLINKS = 0x400;
        /// There is an extent size hint.
        const EXTSIZE = 0x800;
        /// New files get the extent size hint of the directory.
        const EXTSZINHERIT = 0x1000;
        /// Defragmentation leaves it out.
        const NODEFRAG = 0x2000;
        /// The filestreams allocator is used.
        const FILESTREAM = 0x4000;
    }

    /// `di_flags2`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags2: u64 {
        /// Memory is mapped directly.
        const DAX = 0x1;
        /// Data may be shared with other files.
        const REFLINK = 0x2;
        /// There is an extent size hint for copy on write.
        const COWEXTSIZE = 0x4;
        /// Times are counted in nanoseconds from 1901.
        const BIGTIME = 0x8;
        /// Extent counters are wide.
        const NREXT64 = 0x10;
        /// It is in the metadata directory tree.
        const METADATA = 0x20;
    }
}
