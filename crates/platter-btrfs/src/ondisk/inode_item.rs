//! An inode item. Spec: `btrfs/inode`.

use bitflags::bitflags;
use platter_ondisk::endian::{Le32, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{FileKind, Timestamp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::timestamp::DiskTimestamp;
use super::types::Generation;

/// An inode item.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskInodeItem {
    /// `generation`.
    pub generation: Le64,
    /// `transid`.
    pub transaction: Le64,
    /// `size`.
    pub size_bytes: Le64,
    /// `nbytes`.
    pub allocated_bytes: Le64,
    /// `block_group`, which is not used.
    pub block_group: Le64,
    /// `nlink`.
    pub links: Le32,
    /// `uid`.
    pub uid: Le32,
    /// `gid`.
    pub gid: Le32,
    /// `mode`.
    pub mode: Le32,
    /// `rdev`.
    pub device: Le64,
    /// `flags`.
    pub flags: Le64,
    /// `sequence`.
    pub sequence: Le64,
    /// `reserved`.
    pub reserved: [Le64; 4],
    /// `atime`.
    pub accessed: DiskTimestamp,
    /// `ctime`.
    pub changed: DiskTimestamp,
    /// `mtime`.
    pub modified: DiskTimestamp,
    /// `otime`.
    pub created: DiskTimestamp,
}

const _: () = assert!(size_of::<DiskInodeItem>() == 160);

bitflags! {
    /// `flags`: in the lower half those that old kernels may ignore, in the upper half those that
    /// they must not write with.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InodeFlags: u64 {
        /// Data has no checksums.
        const NODATASUM = 1 << 0;
        /// Data is written in place.
        const NODATACOW = 1 << 1;
        /// Read-only.
        const READONLY = 1 << 2;
        /// Not to be compressed.
        const NOCOMPRESS = 1 << 3;
        /// Has preallocated extents.
        const PREALLOC = 1 << 4;
        /// Written synchronously.
        const SYNC = 1 << 5;
        /// May not change.
        const IMMUTABLE = 1 << 6;
        /// May only grow.
        const APPEND = 1 << 7;
        /// Not to be dumped.
        const NODUMP = 1 << 8;
        /// Times of access are not kept.
        const NOATIME = 1 << 9;
        /// Directory changes are synchronous.
        const DIRSYNC = 1 << 10;
        /// To be compressed.
        const COMPRESS = 1 << 11;
        /// The root item's inode was initialised.
        const ROOT_ITEM_INIT = 1 << 31;
        /// Has fs-verity.
        const VERITY = 1 << 32;
    }
}

rules! {
    /// The rules of an inode item.
    pub enum InodeItemRule of "inode item" {
        /// It has the size of the structure.
        Size => "invalid item size",
        /// `mode` names a type.
        Mode => "invalid mode",
        /// A directory has at most one name.
        DirectoryLinks => "directory has more than one link",
        /// Flags are known.
        Flags => "unknown flags",
        /// The size is one that a file may have.
        FileSize => "size exceeds the largest file offset",
    }
}

/// A validated inode item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeItem {
    /// The transaction that made it.
    pub generation: Generation,
    /// The transaction that last changed it.
    pub transaction: Generation,
    /// Size in bytes; of a directory, twice the length of its names.
    pub size_bytes: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The type.
    pub kind: FileKind,
    /// Permission bits.
    pub permissions: u32,
    /// Device number of a special file.
    pub device: DeviceNumber,
    /// Flags.
    pub flags: InodeFlags,
    /// Count of changes, for NFS.
    pub sequence: u64,
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of contents or attributes.
    pub changed: Timestamp,
    /// Last change of contents.
    pub modified: Timestamp,
    /// Creation.
    pub created: Timestamp,
}

/// Device numbers are stored as 20 bits of the minor number, and the major number above them.
fn decode_device(number: u64) -> DeviceNumber {
    let major = number.checked_shr(MINOR_BITS).unwrap_or_default();
    DeviceNumber {
        major: u32::try_from(major & MAJOR_MASK).unwrap_or_default(),
        minor: u32::try_from(number & MINOR_MASK).unwrap_or_default(),
    }
}

fn encode_device(device: DeviceNumber) -> u64 {
    let (major, minor) = (u64::from(device.major), u64::from(device.minor));
    (minor & MINOR_MASK) | ((major & MAJOR_MASK) << MINOR_BITS)
}

/// Type and permissions.
const MODE_MASK: u32 = 0o177_777;
const MINOR_BITS: u32 = 20;
const MINOR_MASK: u64 = 0x000f_ffff;
const MAJOR_MASK: u64 = 0xfff;

impl InodeItem {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<InodeItemRule>> {
        let disk = DiskInodeItem::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, InodeItemRule::Size))?;
        Self::decode_disk(disk).map_err(|rule| Corrupt::new(locus, rule))
    }

    fn decode_disk(disk: &DiskInodeItem) -> Result<Self, InodeItemRule> {
        let mode = disk.mode.get();
        if mode & !MODE_MASK != 0 {
            return Err(InodeItemRule::Mode);
        }
        let kind = FileKind::from_mode(mode).ok_or(InodeItemRule::Mode)?;
        let links = disk.links.get();
        if kind == FileKind::Directory && links > 1 {
            return Err(InodeItemRule::DirectoryLinks);
        }
        let flags = InodeFlags::from_bits(disk.flags.get()).ok_or(InodeItemRule::Flags)?;
        let size_bytes = disk.size_bytes.get();
        if i64::try_from(size_bytes).is_err() {
            return Err(InodeItemRule::FileSize);
        }
        Ok(Self {
            generation: Generation(disk.generation.get()),
            transaction: Generation(disk.transaction.get()),
            size_bytes,
            allocated_bytes: disk.allocated_bytes.get(),
            links,
            uid: disk.uid.get(),
            gid: disk.gid.get(),
            kind,
            permissions: mode & 0o7777,
            device: decode_device(disk.device.get()),
            flags,
            sequence: disk.sequence.get(),
            accessed: disk.accessed.decode(),
            changed: disk.changed.decode(),
            modified: disk.modified.decode(),
            created: disk.created.decode(),
        })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskInodeItem {
        DiskInodeItem {
            generation: self.generation.0.into(),
            transaction: self.transaction.0.into(),
            size_bytes: self.size_bytes.into(),
            allocated_bytes: self.allocated_bytes.into(),
            block_group: 0.into(),
            links: self.links.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mode: (self.kind.mode_bits() | self.permissions).into(),
            device: encode_device(self.device).into(),
            flags: self.flags.bits().into(),
            sequence: self.sequence.into(),
            reserved: [0.into(); 4],
            accessed: DiskTimestamp::encode(self.accessed),
            changed: DiskTimestamp::encode(self.changed),
            modified: DiskTimestamp::encode(self.modified),
            created: DiskTimestamp::encode(self.created),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(kind: FileKind) -> InodeItem {
        InodeItem {
            generation: Generation(7),
            transaction: Generation(8),
            size_bytes: 12,
            allocated_bytes: 4096,
            links: 1,
            uid: 1000,
            gid: 100,
            kind,
            permissions: 0o4755,
            device: DeviceNumber {
                major: 0xabc,
                minor: 0x000f_1234,
            },
            flags: InodeFlags::COMPRESS | InodeFlags::VERITY,
            sequence: 3,
            accessed: Timestamp {
                seconds: -1,
                nanoseconds: 5,
            },
            changed: Timestamp::default(),
            modified: Timestamp::default(),
            created: Timestamp::default(),
        }
    }

    #[test]
    fn item_survives_encoding() {
        let item = sample(FileKind::BlockDevice);
        let disk = item.encode();
        assert_eq!(InodeItem::decode(disk.as_bytes(), Locus::UNKNOWN), Ok(item));
    }

    #[test]
    fn broken_items_are_refused() {
        let rule = |change: &dyn Fn(&mut DiskInodeItem)| {
            let mut disk = sample(FileKind::Directory).encode();
            change(&mut disk);
            let decoded = InodeItem::decode(disk.as_bytes(), Locus::UNKNOWN);
            decoded.unwrap_err().rule
        };
        assert_eq!(rule(&|disk| disk.mode.set(0o755)), InodeItemRule::Mode);
        let high = rule(&|disk| disk.mode.set(disk.mode.get() | 1 << 16));
        assert_eq!(high, InodeItemRule::Mode);
        let links = rule(&|disk| disk.links.set(2));
        assert_eq!(links, InodeItemRule::DirectoryLinks);
        let flags = rule(&|disk| disk.flags.set(1 << 40));
        assert_eq!(flags, InodeItemRule::Flags);
        let size = rule(&|disk| disk.size_bytes.set(u64::MAX));
        assert_eq!(size, InodeItemRule::FileSize);
        let corrupt = InodeItem::decode(&[0; 159], Locus::UNKNOWN).unwrap_err();
        assert_eq!(corrupt.rule, InodeItemRule::Size);
    }
}
