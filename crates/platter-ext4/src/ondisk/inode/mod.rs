//! Inodes: 128 bytes that every filesystem has, and further fields as the inode size allows. Spec:
//! `ext4/inodes`.

mod disk;
mod time;
mod encode;
#[cfg(test)]
pub(crate) mod tests;

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le32, join_u16, join_u32};
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{FileKind, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

use super::features::{Incompat, RoCompat};
use super::geometry::{Creator, Geometry};
use super::types::{BlockNr, InodeNr};
pub use disk::{BLOCK_AREA_BYTES, DiskInode, DiskInodeExtra, InodeFlags};
pub use encode::{put_deleted, seal};

rules! {
    /// The rules of an inode.
    pub enum InodeRule of "inode" {
        /// It is within its block.
        Truncated => "is truncated",
        /// It is in use.
        Unused => "is not in use",
        /// `i_extra_isize` is a multiple of 4 and fits the inode.
        ExtraSize => "bad extra_isize",
        /// Its checksum.
        Checksum => "checksum does not match",
        /// `i_mode` has a known file type.
        Mode => "bogus i_mode",
        /// `i_size` is not negative.
        Size => "bad i_size",
        /// `i_file_acl` is within the filesystem.
        XattrBlock => "bad extended attribute block",
        /// The length of a fast symbolic link's target equals `i_size`.
        LinkTarget => "invalid symlink: target length is not i_size",
        /// `i_blocks` can represent its space.
        Sectors => "i_blocks overflow",
    }
}

/// A validated inode.
#[derive(Debug, Clone)]
pub struct Inode {
    /// Its number.
    pub number: InodeNr,
    /// Its type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Owner's group.
    pub gid: u32,
    /// Project ID; 0 without the feature.
    pub project: u32,
    /// Link count; 1 for a directory with too many subdirectories to count.
    pub links: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated space in units of 512 bytes.
    pub sectors: u64,
    /// Flags.
    pub flags: InodeFlags,
    /// Distinguishes it from earlier inodes of the same number.
    pub generation: u32,
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of contents.
    pub modified: Timestamp,
    /// Last change of contents or attributes.
    pub changed: Timestamp,
    /// Creation time, if the inode has the field.
    pub created: Option<Timestamp>,
    /// `i_dtime` when the inode was read: time of deletion, or the next inode of the orphan list.
    pub deleted: u32,
    /// The extended attribute block.
    pub xattr_block: Option<BlockNr>,
    /// `i_block`.
    pub block: [u8; BLOCK_AREA_BYTES],
    /// `i_version`, incremented by every change if the filesystem maintains it. In an inode of
    /// GNU/Hurd it is a [translator](Self::translator), and is never written.
    pub version: u64,
    /// Length of the fields in use after the first 128 bytes; 0 in inodes of 128 bytes.
    pub extra_bytes: u16,
    /// Bytes after the fields of the inode, for in-inode attributes; empty if there are none.
    pub tail: Box<[u8]>,
    /// Seed of the checksums of this inode's blocks.
    pub checksum_seed: u32,
}

impl Inode {
    /// Validates the inode in `bytes`, one slot of the inode table.
    pub fn decode(
        bytes: &[u8],
        number: InodeNr,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt<InodeRule>> {
        Self::decode_with(bytes, number, geometry, true)
    }

    /// Like [`decode`](Self::decode), without verifying the checksum: for the check of an inode
    /// whose checksum does not match.
    pub fn decode_unsummed(
        bytes: &[u8],
        number: InodeNr,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt<InodeRule>> {
        Self::decode_with(bytes, number, geometry, false)
    }

    fn decode_with(
        bytes: &[u8],
        number: InodeNr,
        geometry: &Geometry,
        verifies_checksum: bool,
    ) -> Result<Self, Corrupt<InodeRule>> {
        let broken = |rule| Corrupt::new(Locus::inode(u64::from(number.get())), rule);
        let bytes = bytes
            .get(..usize::from(geometry.inode_bytes))
            .ok_or(broken(InodeRule::Truncated))?;
        let (disk, rest) =
            DiskInode::ref_from_prefix(bytes).map_err(|_| broken(InodeRule::Truncated))?;
        if disk.mode.get() == 0 && disk.links.get() == 0 {
            return Err(broken(InodeRule::Unused));
        }
        let extra = Extra::decode(rest).ok_or(broken(InodeRule::ExtraSize))?;
        let seed = checksum_seed(number, disk.generation, geometry);
        // Linux neither verifies nor writes inode checksums if the creator is another system.
        let is_sealed = geometry.creator == Creator::Linux && geometry.features.has_metadata_csum();
        let has_checksum = is_sealed && verifies_checksum;
        if has_checksum && !checksum_holds(bytes, disk, &extra, seed) {
            return Err(broken(InodeRule::Checksum));
        }
        let inode = Self::take(disk, &extra, number, seed, geometry).map_err(broken)?;
        inode.validate(geometry).map_err(broken)?;
        Ok(inode)
    }

    /// Validates only the checksum, of a slot that may be unused. A slot of zeros has none.
    pub fn verify_checksum(
        bytes: &[u8],
        number: InodeNr,
        geometry: &Geometry,
    ) -> Result<(), Corrupt<InodeRule>> {
        let broken = |rule| Corrupt::new(Locus::inode(u64::from(number.get())), rule);
        if !geometry.features.has_metadata_csum() || bytes.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        let (disk, rest) =
            DiskInode::ref_from_prefix(bytes).map_err(|_| broken(InodeRule::Truncated))?;
        let fields = DiskInodeExtra::ref_from_prefix(rest).ok();
        let extra = Extra {
            fields: fields.map(|(fields, _)| fields),
            in_use: 0,
            tail: &[],
        };
        let seed = checksum_seed(number, disk.generation, geometry);
        if !checksum_holds(bytes, disk, &extra, seed) {
            return Err(broken(InodeRule::Checksum));
        }
        Ok(())
    }

    fn take(
        disk: &DiskInode,
        extra: &Extra<'_>,
        number: InodeNr,
        checksum_seed: u32,
        geometry: &Geometry,
    ) -> Result<Self, InodeRule> {
        let mode = u32::from(disk.mode.get());
        let flags = InodeFlags::from_bits_retain(disk.flags.get());
        let kind = FileKind::from_mode(mode).ok_or(InodeRule::Mode)?;
        let features = geometry.features;
        let wide_size =
            kind == FileKind::Regular || features.incompat.contains(Incompat::LARGE_DIR);
        let size_hi = if wide_size { disk.size_hi.get() } else { 0 };
        // GNU/Hurd stores further mode bits there.
        let is_hurd = geometry.creator == Creator::Hurd;
        let wide = features.incompat.contains(Incompat::BIT64) && !is_hurd;
        let xattr_hi = if wide { disk.xattr_block_hi.get() } else { 0 };
        let xattr_block = join_u32(u32::from(xattr_hi), disk.xattr_block_lo.get());
        let has_project = features.ro_compat.contains(RoCompat::PROJECT);
        let project = extra.field(
            has_project,
            |extra| extra.project,
            offset_of!(DiskInodeExtra, project),
        );
        Ok(Self {
            number,
            kind,
            permissions: mode & 0o7777,
            uid: join_u16(disk.uid_hi.get(), disk.uid_lo.get()),
            gid: join_u16(disk.gid_hi.get(), disk.gid_lo.get()),
            project: project.unwrap_or(0),
            links: u32::from(disk.links.get()),
            size_bytes: join_u32(size_hi, disk.size_lo.get()),
            sectors: sectors(disk, flags, geometry),
            flags,
            generation: disk.generation.get(),
            accessed: time::decode(disk.accessed.get(), extra.accessed()),
            modified: time::decode(disk.modified.get(), extra.modified()),
            changed: time::decode(disk.changed.get(), extra.changed()),
            created: extra.created(),
            deleted: disk.deleted.get(),
            xattr_block: (xattr_block != 0).then_some(BlockNr(xattr_block)),
            block: disk.block,
            version: join_u32(extra.version_hi(), disk.version_lo.get()),
            extra_bytes: u16::try_from(extra.in_use).unwrap_or_default(),
            tail: extra.tail(),
            checksum_seed,
        })
    }

    fn validate(&self, geometry: &Geometry) -> Result<(), InodeRule> {
        if i64::try_from(self.size_bytes).is_err() {
            return Err(InodeRule::Size);
        }
        if self
            .xattr_block
            .is_some_and(|block| !geometry.contains(block, 1))
        {
            return Err(InodeRule::XattrBlock);
        }
        // A deleted symbolic link may have lost its target already.
        let has_plain_target = !self.flags.contains(InodeFlags::ENCRYPT) && self.links > 0;
        if has_plain_target && self.has_target_inside(geometry) && self.target_inside().is_none() {
            return Err(InodeRule::LinkTarget);
        }
        Ok(())
    }

    /// `h_i_translator`: the block of a passive translator, if the creator is GNU/Hurd.
    #[must_use]
    pub fn translator(&self, geometry: &Geometry) -> Option<BlockNr> {
        let block = self.version & u64::from(u32::MAX);
        (geometry.creator == Creator::Hurd && block != 0).then_some(BlockNr(block))
    }

    /// Whether it may have extended attributes or inline data.
    #[must_use]
    pub fn has_attributes(&self) -> bool {
        self.xattr_block.is_some() || self.tail.iter().fold(0, |all, byte| all | byte) != 0
    }

    /// Whether this is a fast symbolic link, whose target is in `block`: it has no blocks except
    /// for attributes. With `ea_inode`, whose values count as blocks of their owner, the length of
    /// the target decides.
    #[must_use]
    pub fn has_target_inside(&self, geometry: &Geometry) -> bool {
        if self.kind != FileKind::Symlink || self.flags.contains(InodeFlags::INLINE_DATA) {
            return false;
        }
        if geometry.features.incompat.contains(Incompat::EA_INODE) {
            return (1..BLOCK_AREA_BYTES as u64).contains(&self.size_bytes);
        }
        let cluster_bytes =
            u64::from(geometry.block_bytes).saturating_mul(u64::from(geometry.cluster_blocks));
        let xattr_sectors = match self.xattr_block {
            Some(_) => cluster_bytes >> 9,
            None => 0,
        };
        self.sectors == xattr_sectors
    }

    /// Returns the link target in `block` if its length is the size and it has no NUL.
    #[must_use]
    pub fn target_inside(&self) -> Option<&[u8]> {
        let length = usize::try_from(self.size_bytes).ok()?;
        let target = self.block.get(..length)?;
        let ends = self.block.get(length) == Some(&0);
        (length > 0 && ends && !target.contains(&0)).then_some(target)
    }

    /// Returns the device number in `block`, in the old 16-bit or the new 32-bit form.
    #[must_use]
    pub fn device(&self) -> DeviceNumber {
        if !matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            return DeviceNumber::default();
        }
        let word = |at: usize| {
            let bytes = self.block.get(at..).unwrap_or_default();
            Le32::read_from_prefix(bytes).map_or(0, |(word, _)| word.get())
        };
        match word(0) {
            0 => DeviceNumber {
                major: (word(4) >> 8) & 0xfff,
                minor: (word(4) & 0xff) | ((word(4) >> 12) & 0xf_ff00),
            },
            old => DeviceNumber {
                major: (old >> 8) & 0xff,
                minor: old & 0xff,
            },
        }
    }

    /// Stores a device number in `block`: in the old form if it fits.
    pub fn set_device(&mut self, device: DeviceNumber) {
        let DeviceNumber { major, minor } = device;
        let (old, new) = if major < 1 << 8 && minor < 1 << 8 {
            (major << 8 | minor, 0)
        } else {
            let high = (minor & 0xf_ff00) << 12;
            (0, high | (major & 0xfff) << 8 | minor & 0xff)
        };
        let words = [old, new].map(u32::to_le_bytes);
        self.block = [0; BLOCK_AREA_BYTES];
        for (to, from) in self.block.iter_mut().zip(words.as_flattened()) {
            *to = *from;
        }
    }

    /// Whether the contents (of a directory: names) are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.flags.contains(InodeFlags::ENCRYPT)
    }
}

/// The part of an inode after the first 128 bytes: fields in use, and the rest.
struct Extra<'a> {
    fields: Option<&'a DiskInodeExtra>,
    in_use: usize,
    tail: &'a [u8],
}

impl<'a> Extra<'a> {
    /// Decodes the bytes after the first 128. Returns `None` if `i_extra_isize` is invalid.
    fn decode(rest: &'a [u8]) -> Option<Self> {
        let Ok((fields, _)) = DiskInodeExtra::ref_from_prefix(rest) else {
            return Some(Self {
                fields: None,
                in_use: 0,
                tail: &[],
            });
        };
        let stored = usize::from(fields.extra_size.get());
        if stored > rest.len() || stored % 4 != 0 {
            return None;
        }
        // Written by a system without extra fields: they exist and are zero.
        let in_use = if stored == 0 {
            size_of::<DiskInodeExtra>()
        } else {
            stored
        };
        Some(Self {
            fields: Some(fields),
            in_use,
            tail: rest.get(in_use..)?,
        })
    }

    /// Returns a 32-bit field at `offset` if it is in use and `wanted`.
    fn field(
        &self,
        wanted: bool,
        field: impl FnOnce(&DiskInodeExtra) -> Le32,
        offset: usize,
    ) -> Option<u32> {
        let fits = offset.saturating_add(size_of::<Le32>()) <= self.in_use;
        let fields = self.fields.filter(|_| wanted && fits)?;
        Some(field(fields).get())
    }

    /// Returns the bytes after the fields; empty if their start is unknown.
    fn tail(&self) -> Box<[u8]> {
        match self.fields {
            Some(fields) if fields.extra_size.get() == 0 => vec![0; self.tail.len()].into(),
            _ => self.tail.into(),
        }
    }

    fn accessed(&self) -> Option<u32> {
        let offset = offset_of!(DiskInodeExtra, accessed_extra);
        self.field(true, |extra| extra.accessed_extra, offset)
    }

    fn modified(&self) -> Option<u32> {
        let offset = offset_of!(DiskInodeExtra, modified_extra);
        self.field(true, |extra| extra.modified_extra, offset)
    }

    fn changed(&self) -> Option<u32> {
        let offset = offset_of!(DiskInodeExtra, changed_extra);
        self.field(true, |extra| extra.changed_extra, offset)
    }

    fn created(&self) -> Option<Timestamp> {
        let seconds = self.field(
            true,
            |extra| extra.created,
            offset_of!(DiskInodeExtra, created),
        )?;
        let offset = offset_of!(DiskInodeExtra, created_extra);
        let extra = self.field(true, |extra| extra.created_extra, offset);
        Some(time::decode(seconds, extra))
    }

    fn version_hi(&self) -> u32 {
        let offset = offset_of!(DiskInodeExtra, version_hi);
        self.field(true, |extra| extra.version_hi, offset)
            .unwrap_or(0)
    }

    fn has_checksum(&self) -> bool {
        self.fields.is_some_and(|fields| {
            let end = offset_of!(DiskInodeExtra, checksum_hi).saturating_add(2);
            usize::from(fields.extra_size.get()) >= end
        })
    }
}

/// Returns the seed of the checksums of an inode and its blocks.
#[must_use]
pub fn checksum_seed(number: InodeNr, generation: Le32, geometry: &Geometry) -> u32 {
    let both = [Le32::new(number.get()), generation];
    crc32c(geometry.checksum_seed, both.as_bytes())
}

/// Returns the checksum of an inode's bytes, with the checksum fields taken as zero.
fn expected_checksum(bytes: &[u8], seed: u32, has_high: bool) -> u32 {
    const LOW_AT: usize = offset_of!(DiskInode, checksum_lo);
    const HIGH_AT: usize = size_of::<DiskInode>() + offset_of!(DiskInodeExtra, checksum_hi);
    // The part with the checksum fields is summed in one pass, from a copy.
    let mut head = [0; HIGH_AT + 2];
    let len = if has_high { head.len() } else { LOW_AT + 2 };
    let (Some(copy), Some((bytes, rest))) = (head.get_mut(..len), bytes.split_at_checked(len))
    else {
        return crc32c(seed, bytes);
    };
    copy.copy_from_slice(bytes);
    for field in [LOW_AT..LOW_AT + 2, HIGH_AT..HIGH_AT + 2] {
        copy.get_mut(field).unwrap_or_default().fill(0);
    }
    crc32c(crc32c(seed, copy), rest)
}

fn checksum_holds(bytes: &[u8], disk: &DiskInode, extra: &Extra<'_>, seed: u32) -> bool {
    let has_high = extra.has_checksum();
    let expected = expected_checksum(bytes, seed, has_high);
    match extra.fields.filter(|_| has_high) {
        Some(fields) => join_u16(fields.checksum_hi.get(), disk.checksum_lo.get()) == expected,
        None => u32::from(disk.checksum_lo.get()) == expected & 0xffff,
    }
}

fn sectors(disk: &DiskInode, flags: InodeFlags, geometry: &Geometry) -> u64 {
    let low = disk.blocks_lo.get();
    if !geometry.features.ro_compat.contains(RoCompat::HUGE_FILE) {
        return u64::from(low);
    }
    let count = join_u32(u32::from(disk.blocks_hi.get()), low);
    if flags.contains(InodeFlags::HUGE_FILE) {
        return count.saturating_mul(u64::from(geometry.block_bytes >> 9));
    }
    count
}
