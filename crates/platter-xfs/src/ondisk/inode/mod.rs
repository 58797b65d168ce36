//! Inodes: the core, and the forks in the literal area after it. Spec: `xfs/ondisk_inode`.

mod disk;
mod metafile;
pub mod free;
pub mod time;
#[cfg(test)]
pub(crate) mod tests;
pub mod edit;

use platter_ondisk::endian::{Be32, join_u16};
use platter_ondisk::rules;
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{FileKind, Timestamp};
use zerocopy::FromBytes;

use super::btree::DiskMapping;
use super::checksum::{self, Seal};
use super::geometry::Geometry;
use super::types::{AgInode, InodeNr, Lsn};

pub use disk::{DiskInode, DiskInodeV3, InodeFlags, InodeFlags2, mark_free};
pub use metafile::MetafileKind;

/// `di_magic`: `IN`.
pub const INODE_MAGIC: u16 = 0x494e;
/// The longest target of a symbolic link.
pub const SYMLINK_BYTES_MAX: u64 = 1024;

rules! {
    /// What an inode must hold to.
    pub enum InodeRule of "inode" {
        /// `di_magic`.
        Magic => "bad magic number",
        /// `di_version` is that of the filesystem.
        Version => "bad version number",
        /// `di_crc`.
        Checksum => "bad CRC",
        /// `di_uuid`.
        Uuid => "bad UUID",
        /// `di_ino`.
        Number => "inode number is not where it lies",
        /// It is in use.
        Unused => "inode is free",
        /// The type in `di_mode`.
        Mode => "bad file type",
        /// `di_format` is possible for the type.
        DataFormat => "bad data fork format",
        /// `di_aformat`.
        AttrFormat => "bad attribute fork format",
        /// `di_forkoff` lies within the literal area.
        ForkOffset => "bad attribute fork offset",
        /// `di_size`.
        Size => "bad size",
        /// A local fork is not larger than its space.
        LocalSize => "local data is larger than its fork",
        /// Extents in the inode fit their fork.
        Extents => "more extents than fit the fork",
        /// `di_flags` and `di_flags2` are possible for the type and filesystem.
        Flags => "bad combination of flags",
        /// Times have less than a second of nanoseconds.
        Time => "bad nanoseconds of a time",
        /// `di_nblocks`.
        Blocks => "more blocks than the filesystem has",
    }
}

/// How a fork holds its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ForkFormat {
    /// A device number.
    Device = 0,
    /// The contents themselves.
    Local = 1,
    /// Mappings.
    Extents = 2,
    /// The root of a B-tree of mappings.
    Btree = 3,
    /// The root of a B-tree of metadata.
    MetaBtree = 5,
}

impl ForkFormat {
    fn decode(format: u8) -> Option<Self> {
        Some(match format {
            0 => Self::Device,
            1 => Self::Local,
            2 => Self::Extents,
            3 => Self::Btree,
            5 => Self::MetaBtree,
            _ => return None,
        })
    }
}

/// Which fork of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ForkKind {
    /// Data, directory entries, or the target of a link.
    Data,
    /// Attributes.
    Attr,
}

/// A fork of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork<'a> {
    /// Which one.
    pub kind: ForkKind,
    /// How it holds its contents.
    pub format: ForkFormat,
    /// How many mappings it has.
    pub extents: u64,
    /// Its part of the literal area.
    pub bytes: &'a [u8],
}

impl<'a> Fork<'a> {
    /// The mappings in the inode itself; empty unless they are there.
    #[must_use]
    pub fn mappings(&self) -> &'a [DiskMapping] {
        if self.format != ForkFormat::Extents {
            return &[];
        }
        let count = usize::try_from(self.extents).unwrap_or(usize::MAX);
        <[DiskMapping]>::ref_from_prefix_with_elems(self.bytes, count)
            .map_or(&[], |(mappings, _)| mappings)
    }
}

/// An inode whose rules hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub number: InodeNr,
    /// `di_version`.
    pub version: u8,
    /// The type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Number of names.
    pub links: u32,
    /// Distinguishes it from earlier ones with its number.
    pub generation: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Blocks of both forks and their B-trees.
    pub blocks: u64,
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the contents or attributes.
    pub changed: Timestamp,
    /// Creation, in version 3.
    pub created: Option<Timestamp>,
    /// `di_flags`.
    pub flags: InodeFlags,
    /// `di_flags2`.
    pub flags2: InodeFlags2,
    /// Extent size hint in blocks.
    pub extent_size: u32,
    /// Extent size hint for copy on write in blocks.
    pub cow_extent_size: u32,
    /// `di_changecount`.
    pub change_count: u64,
    /// `di_flushiter`, where there is one.
    pub flush_iteration: u16,
    /// The next inode without a name in the same list.
    pub next_unlinked: Option<AgInode>,
    /// Kind of a metadata inode: `di_metatype`.
    pub metadata_kind: u16,
    /// Position in the log of the last change.
    pub lsn: Lsn,
    /// How the data fork holds its contents.
    pub data_format: ForkFormat,
    /// How the attribute fork holds its contents; `None` without one.
    pub attr_format: Option<ForkFormat>,
    /// Mappings of the data fork.
    pub data_extents: u64,
    /// Mappings of the attribute fork.
    pub attr_extents: u32,
    /// Start of the attribute fork in the literal area.
    fork_offset: usize,
    literal: Box<[u8]>,
}

/// The largest size of a file.
const SIZE_MAX: u64 = u64::MAX >> 1;

impl Inode {
    /// Validates the inode that fills `bytes`.
    pub fn decode(bytes: &[u8], number: InodeNr, geometry: &Geometry) -> Result<Self, InodeRule> {
        Self::decode_as(bytes, number, geometry, Seal::Present)
    }

    /// Validates an inode under change, which gets its checksum when it is logged.
    pub fn decode_unsealed(
        bytes: &[u8],
        number: InodeNr,
        geometry: &Geometry,
    ) -> Result<Self, InodeRule> {
        Self::decode_as(bytes, number, geometry, Seal::Later)
    }

    fn decode_as(
        bytes: &[u8],
        number: InodeNr,
        geometry: &Geometry,
        seal: Seal,
    ) -> Result<Self, InodeRule> {
        let (disk, after) = DiskInode::ref_from_prefix(bytes).map_err(|_| InodeRule::Magic)?;
        if disk.magic.get() != INODE_MAGIC {
            return Err(InodeRule::Magic);
        }
        let v3 = Self::check_identity(bytes, disk, number, geometry, seal)?;
        // Of free inodes as well.
        if disk.size.get() > SIZE_MAX {
            return Err(InodeRule::Size);
        }
        if disk.mode.get() == 0 {
            return Err(InodeRule::Unused);
        }
        let kind = FileKind::from_mode(disk.mode.get().into()).ok_or(InodeRule::Mode)?;
        let literal = v3.map_or(after, |(_, literal)| literal);
        let v3 = v3.map(|(v3, _)| v3);
        let flags2 = InodeFlags2::from_bits_retain(v3.map_or(0, |v3| v3.flags2.get()));
        let is_large = flags2.contains(InodeFlags2::BIGTIME);
        let is_wide = flags2.contains(InodeFlags2::NREXT64);
        let (data_extents, attr_extents) = if is_wide {
            (disk.big_data_extents.get(), disk.data_extents.get())
        } else {
            let data = disk.data_extents.get().into();
            (data, disk.attr_extents.get().into())
        };
        let has_attr_fork = disk.fork_offset != 0;
        let attr_format = ForkFormat::decode(disk.attr_format);
        let inode = Self {
            number,
            version: disk.version,
            kind,
            permissions: u32::from(disk.mode.get()) & 0o7777,
            uid: disk.uid.get(),
            gid: disk.gid.get(),
            project: if disk.version == 1 {
                0
            } else {
                join_u16(disk.project_hi.get(), disk.project_lo.get())
            },
            links: if disk.version == 1 {
                disk.old_links.get().into()
            } else {
                disk.links.get()
            },
            generation: disk.generation.get(),
            size_bytes: disk.size.get(),
            blocks: disk.blocks.get(),
            accessed: time::decode(disk.accessed, is_large),
            modified: time::decode(disk.modified, is_large),
            changed: time::decode(disk.changed, is_large),
            created: v3.map(|v3| time::decode(v3.created, is_large)),
            flags: InodeFlags::from_bits_retain(disk.flags.get()),
            flags2,
            extent_size: disk.extent_size.get(),
            cow_extent_size: v3.map_or(0, |v3| v3.cow_extent_size.get()),
            change_count: v3.map_or(0, |v3| v3.change_count.get()),
            flush_iteration: if v3.is_some() {
                0
            } else {
                u16::try_from(disk.big_data_extents.get() & u64::from(u16::MAX)).unwrap_or(0)
            },
            next_unlinked: AgInode(disk.next_unlinked.get()).non_null(),
            metadata_kind: disk.old_links.get(),
            lsn: Lsn(v3.map_or(0, |v3| v3.lsn.get())),
            data_format: ForkFormat::decode(disk.data_format).ok_or(InodeRule::DataFormat)?,
            attr_format: if has_attr_fork {
                Some(attr_format.ok_or(InodeRule::AttrFormat)?)
            } else {
                None
            },
            data_extents,
            attr_extents,
            fork_offset: fork_offset(disk, literal)?,
            literal: literal.into(),
        };
        inode.check(geometry)?;
        Ok(inode)
    }

    /// Checks version, checksum, UUID and number. Returns the larger core and what follows it, where
    /// the version has one. Free inodes have these as well.
    fn check_identity<'b>(
        bytes: &'b [u8],
        disk: &DiskInode,
        number: InodeNr,
        geometry: &Geometry,
        seal: Seal,
    ) -> Result<Option<(&'b DiskInodeV3, &'b [u8])>, InodeRule> {
        let is_v5 = geometry.features.is_v5();
        match (disk.version, is_v5) {
            (1 | 2, false) => return Ok(None),
            (3, true) => {}
            _ => return Err(InodeRule::Version),
        }
        let (v3, literal) = DiskInodeV3::ref_from_prefix(bytes).map_err(|_| InodeRule::Magic)?;
        if seal == Seal::Present && !checksum::matches(bytes, DiskInodeV3::CHECKSUM_OFFSET) {
            return Err(InodeRule::Checksum);
        }
        if v3.uuid != *geometry.meta_uuid.as_bytes() {
            return Err(InodeRule::Uuid);
        }
        if v3.number.get() != number.get() {
            return Err(InodeRule::Number);
        }
        Ok(Some((v3, literal)))
    }

    fn check(&self, geometry: &Geometry) -> Result<(), InodeRule> {
        // One that shares blocks may have each of them many times.
        let shares = self.flags2.contains(InodeFlags2::REFLINK);
        let most = geometry.data_blocks().saturating_add(geometry.rt_blocks);
        if self.blocks > most && !shares {
            return Err(InodeRule::Blocks);
        }
        self.check_times()?;
        self.check_flags(geometry)?;
        self.check_data_fork()?;
        let most = |kind| extents_max(kind, self.flags2);
        if self.data_extents > most(ForkKind::Data)
            || u64::from(self.attr_extents) > most(ForkKind::Attr)
        {
            return Err(InodeRule::Extents);
        }
        if let Some(format) = self.attr_format {
            let fork = self.attr_fork();
            match format {
                ForkFormat::Local | ForkFormat::Btree => {}
                ForkFormat::Extents => check_extents(fork.as_ref())?,
                ForkFormat::Device | ForkFormat::MetaBtree => return Err(InodeRule::AttrFormat),
            }
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), InodeRule> {
        let times = [self.accessed, self.modified, self.changed];
        let mut times = times.into_iter().chain(self.created);
        if times.all(|time| time.nanoseconds < 1_000_000_000) {
            Ok(())
        } else {
            Err(InodeRule::Time)
        }
    }

    fn check_flags(&self, geometry: &Geometry) -> Result<(), InodeRule> {
        let features = &geometry.features;
        let flags2 = self.flags2;
        let has = |flag| flags2.contains(flag);
        let is_realtime = self.is_realtime();
        let is_bad = has(InodeFlags2::BIGTIME) && !features.has_bigtime()
            || has(InodeFlags2::NREXT64) && !features.has_nrext64()
            || has(InodeFlags2::REFLINK) && !features.has_reflink()
            || has(InodeFlags2::REFLINK) && self.kind != FileKind::Regular
            || has(InodeFlags2::METADATA) && !features.has_metadir()
            || is_realtime && self.kind != FileKind::Regular;
        if is_bad {
            return Err(InodeRule::Flags);
        }
        Ok(())
    }

    fn check_data_fork(&self) -> Result<(), InodeRule> {
        use ForkFormat::{Btree, Device, Extents, Local, MetaBtree};
        let is_metadata = self.flags2.contains(InodeFlags2::METADATA);
        let is_possible = match self.kind {
            FileKind::Regular => match self.data_format {
                Extents | Btree => true,
                MetaBtree => is_metadata,
                Device | Local => false,
            },
            FileKind::Directory => matches!(self.data_format, Local | Extents | Btree),
            FileKind::Symlink => {
                if self.size_bytes > SYMLINK_BYTES_MAX {
                    return Err(InodeRule::Size);
                }
                matches!(self.data_format, Local | Extents)
            }
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                self.data_format == Device
            }
        };
        if !is_possible {
            return Err(InodeRule::DataFormat);
        }
        let fork = self.data_fork();
        match self.data_format {
            Local if u64::try_from(fork.bytes.len()).unwrap_or(0) < self.size_bytes => {
                Err(InodeRule::LocalSize)
            }
            Device if fork.bytes.len() < size_of::<Be32>() => Err(InodeRule::ForkOffset),
            Extents => check_extents(Some(&fork)),
            Local | Device | Btree | MetaBtree => Ok(()),
        }
    }

    /// The data fork.
    #[must_use]
    pub fn data_fork(&self) -> Fork<'_> {
        Fork {
            kind: ForkKind::Data,
            format: self.data_format,
            extents: self.data_extents,
            bytes: self.literal.get(..self.fork_offset).unwrap_or(&[]),
        }
    }

    /// The attribute fork, if there is one.
    #[must_use]
    pub fn attr_fork(&self) -> Option<Fork<'_>> {
        Some(Fork {
            kind: ForkKind::Attr,
            format: self.attr_format?,
            extents: self.attr_extents.into(),
            bytes: self.literal.get(self.fork_offset..).unwrap_or(&[]),
        })
    }

    /// The data fork's contents, where it holds them itself.
    #[must_use]
    pub fn local_data(&self) -> Option<&[u8]> {
        if self.data_format != ForkFormat::Local {
            return None;
        }
        let size = usize::try_from(self.size_bytes).ok()?;
        self.literal.get(..size)
    }

    /// Whether data is on the realtime device.
    #[must_use]
    pub fn is_realtime(&self) -> bool {
        self.flags.contains(InodeFlags::REALTIME)
    }

    /// The device number of a device; zero for others. 14 bits are the major number, 18 the minor
    /// one.
    #[must_use]
    pub fn device(&self) -> DeviceNumber {
        const MINOR_BITS: u32 = 18;
        let is_device = matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let stored = Be32::ref_from_prefix(&self.literal).map_or(0, |(stored, _)| stored.get());
        if !is_device {
            return DeviceNumber::default();
        }
        DeviceNumber {
            major: stored.checked_shr(MINOR_BITS).unwrap_or_default(),
            minor: stored & 0x3_ffff,
        }
    }
}

/// Where the attribute fork begins in the literal area: at its end without one.
fn fork_offset(disk: &DiskInode, literal: &[u8]) -> Result<usize, InodeRule> {
    const UNIT: usize = 8;
    if disk.fork_offset == 0 {
        return Ok(literal.len());
    }
    let offset = usize::from(disk.fork_offset).saturating_mul(UNIT);
    if offset >= literal.len() {
        return Err(InodeRule::ForkOffset);
    }
    Ok(offset)
}

/// The most mappings that an inode with these flags counts of a fork (`xfs_iext_max_nextents`).
fn extents_max(kind: ForkKind, flags2: InodeFlags2) -> u64 {
    match (kind, flags2.contains(InodeFlags2::NREXT64)) {
        (ForkKind::Data, false) => 0x7fff_ffff,
        (ForkKind::Data, true) => 0xffff_ffff_ffff,
        (ForkKind::Attr, false) => 0x7fff,
        (ForkKind::Attr, true) => 0xffff_ffff,
    }
}

/// Checks that the mappings of a fork that holds them itself fit it.
fn check_extents(fork: Option<&Fork<'_>>) -> Result<(), InodeRule> {
    let Some(fork) = fork else {
        return Ok(());
    };
    let most = fork.bytes.len().checked_div(size_of::<DiskMapping>());
    if fork.extents > u64::try_from(most.unwrap_or_default()).unwrap_or_default() {
        return Err(InodeRule::Extents);
    }
    Ok(())
}
