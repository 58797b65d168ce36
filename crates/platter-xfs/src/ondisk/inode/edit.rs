//! Changes of an inode on disk. Its checksum is brought up to date by [`seal`].
//! Spec: `xfs/ondisk_inode`; wide extent counters: `xfs-headers/xfs_format.h`.

use std::ops::Range;

use platter_vfs::Timestamp;
use platter_vfs::attr::DeviceNumber;
use zerocopy::FromBytes;

use super::disk::{DiskInode, DiskInodeV3, InodeFlags, InodeFlags2};
use super::{ForkFormat, ForkKind, time};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::inode::free::initialise_unsealed;
use crate::ondisk::types::{AgInode, InodeNr};

/// Unit of `di_forkoff`.
const OFFSET_UNIT: usize = 8;

/// What a fork is to hold.
#[derive(Debug, Clone, Copy)]
pub struct StoredFork<'a> {
    /// Which one.
    pub kind: ForkKind,
    /// How it holds its contents.
    pub format: ForkFormat,
    /// How many mappings it has.
    pub extents: u64,
    /// Its part of the literal area; zeros follow.
    pub bytes: &'a [u8],
}

fn core(bytes: &mut [u8]) -> Option<&mut DiskInode> {
    let (disk, _) = DiskInode::mut_from_prefix(bytes).ok()?;
    Some(disk)
}

fn core_v3(bytes: &mut [u8]) -> Option<&mut DiskInodeV3> {
    let (disk, _) = DiskInodeV3::mut_from_prefix(bytes).ok()?;
    (disk.core.version == 3).then_some(disk)
}

/// The bytes of the literal area.
fn literal(bytes: &[u8]) -> Option<Range<usize>> {
    let (disk, _) = DiskInode::ref_from_prefix(bytes).ok()?;
    let start = if disk.version == 3 {
        size_of::<DiskInodeV3>()
    } else {
        size_of::<DiskInode>()
    };
    Some(start..bytes.len())
}

/// The bytes of a fork.
fn fork_range(bytes: &[u8], kind: ForkKind) -> Option<Range<usize>> {
    let literal = literal(bytes)?;
    let (disk, _) = DiskInode::ref_from_prefix(bytes).ok()?;
    let offset = usize::from(disk.fork_offset).checked_mul(OFFSET_UNIT)?;
    let border = match offset {
        0 => literal.end,
        offset => literal.start.checked_add(offset)?,
    };
    Some(match kind {
        ForkKind::Data => literal.start..border,
        ForkKind::Attr => border..literal.end,
    })
}

/// The most mappings that an inode counts of a fork.
#[must_use]
pub fn extents_max(bytes: &[u8], kind: ForkKind) -> u64 {
    let disk = DiskInodeV3::ref_from_prefix(bytes).ok();
    let disk = disk.filter(|(disk, _)| disk.core.version == 3);
    let flags2 = disk.map_or(0, |(disk, _)| disk.flags2.get());
    super::extents_max(kind, InodeFlags2::from_bits_retain(flags2))
}

/// Stores a fork, with its format and counter; `None` if it does not fit.
#[must_use]
pub fn set_fork(bytes: &mut [u8], fork: &StoredFork<'_>) -> Option<()> {
    if fork.extents > extents_max(bytes, fork.kind) {
        return None;
    }
    let range = fork_range(bytes, fork.kind)?;
    let area = bytes.get_mut(range)?;
    let (used, rest) = area.split_at_mut_checked(fork.bytes.len())?;
    used.copy_from_slice(fork.bytes);
    rest.fill(0);
    let wide = |disk: &mut DiskInodeV3| disk.flags2.get() & InodeFlags2::NREXT64.bits() != 0;
    let is_wide = core_v3(bytes).is_some_and(wide);
    let disk = core(bytes)?;
    match (fork.kind, is_wide) {
        (ForkKind::Data, true) => disk.big_data_extents.set(fork.extents),
        (ForkKind::Data, false) | (ForkKind::Attr, true) => {
            disk.data_extents.set(u32::try_from(fork.extents).ok()?);
        }
        (ForkKind::Attr, false) => disk.attr_extents.set(u16::try_from(fork.extents).ok()?),
    }
    match fork.kind {
        ForkKind::Data => disk.data_format = fork.format as u8,
        ForkKind::Attr => disk.attr_format = fork.format as u8,
    }
    Some(())
}

/// Begins the attribute fork at a multiple of 8 bytes of the literal area, empty; zero removes it. `None` if
/// it would not lie within the inode.
#[must_use]
pub fn set_attr_fork(bytes: &mut [u8], offset: u8) -> Option<()> {
    let start = usize::from(offset).checked_mul(OFFSET_UNIT)?;
    if start >= literal(bytes)?.len() {
        return None;
    }
    core(bytes)?.fork_offset = offset;
    if offset > 0 {
        let range = fork_range(bytes, ForkKind::Attr)?;
        bytes.get_mut(range)?.fill(0);
    }
    core(bytes)?.attr_format = ForkFormat::Extents as u8;
    Some(())
}

/// Changes `di_nblocks`; `None` if the number would be none.
#[must_use]
pub fn add_blocks(bytes: &mut [u8], change: i64) -> Option<()> {
    let disk = core(bytes)?;
    disk.blocks
        .set(disk.blocks.get().checked_add_signed(change)?);
    Some(())
}

/// Changes `di_size`.
#[must_use]
pub fn set_size(bytes: &mut [u8], size: u64) -> Option<()> {
    core(bytes)?.size.set(size);
    Some(())
}

/// What a new inode begins with.
#[derive(Debug, Clone, Copy)]
pub struct FreshInode {
    /// Type and permissions.
    pub mode: u16,
    /// How the data fork, which is empty, would hold its contents.
    pub data_format: ForkFormat,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Number of names.
    pub links: u32,
    /// The time of its creation.
    pub now: Timestamp,
    /// `di_flags`.
    pub flags: InodeFlags,
    /// `di_flags2`, in addition to those that follow from the features.
    pub flags2: InodeFlags2,
    /// Extent size hint in blocks.
    pub extent_size: u32,
    /// Extent size hint for copy on write in blocks.
    pub cow_extent_size: u32,
}

/// How a device number is stored: 14 bits of the major number, 18 of the minor one; `None` for one that does
/// not fit.
#[must_use]
pub fn stored_device(device: DeviceNumber) -> Option<u32> {
    const MINOR_BITS: u32 = 18;
    let fits = device.minor < 1 << MINOR_BITS && device.major < 1 << 14;
    fits.then_some(device.major.checked_shl(MINOR_BITS)? | device.minor)
}

/// Whether an inode on disk is in use.
#[must_use]
pub fn is_in_use(bytes: &[u8]) -> bool {
    DiskInode::ref_from_prefix(bytes).is_ok_and(|(disk, _)| disk.mode.get() != 0)
}

/// The names of an inode of version 3; `None` for one that is free.
#[must_use]
pub fn links(bytes: &[u8]) -> Option<u32> {
    let (disk, _) = DiskInode::ref_from_prefix(bytes).ok()?;
    Some(disk.links.get()).filter(|_| is_in_use(bytes))
}

/// Makes a free inode of version 3 one that is in use, without contents. It keeps its generation.
pub fn make(bytes: &mut [u8], fresh: &FreshInode, geometry: &Geometry, number: InodeNr) {
    let generation = DiskInode::ref_from_prefix(bytes).map_or(0, |(disk, _)| disk.generation.get());
    initialise_unsealed(bytes, geometry, number, generation);
    let mut flags2 = fresh.flags2;
    flags2.set(InodeFlags2::BIGTIME, geometry.features.has_bigtime());
    flags2.set(InodeFlags2::NREXT64, geometry.features.has_nrext64());
    let now = time::encode(fresh.now, geometry.features.has_bigtime());
    let Some(disk) = core_v3(bytes) else {
        return;
    };
    disk.flags2.set(flags2.bits());
    disk.cow_extent_size.set(fresh.cow_extent_size);
    disk.created = now;
    disk.change_count.set(1);
    let disk = &mut disk.core;
    disk.mode.set(fresh.mode);
    disk.data_format = fresh.data_format as u8;
    disk.attr_format = ForkFormat::Extents as u8;
    disk.uid.set(fresh.uid);
    disk.gid.set(fresh.gid);
    disk.links.set(fresh.links);
    (disk.accessed, disk.modified, disk.changed) = (now, now, now);
    disk.extent_size.set(fresh.extent_size);
    disk.flags.set(fresh.flags.bits());
    let _ = set_project(bytes, fresh.project);
}

/// Changes `di_projid`.
#[must_use]
pub fn set_project(bytes: &mut [u8], project: u32) -> Option<()> {
    let disk = core(bytes)?;
    let [h0, h1, l0, l1] = project.to_be_bytes();
    disk.project_hi.set(u16::from_be_bytes([h0, h1]));
    disk.project_lo.set(u16::from_be_bytes([l0, l1]));
    Some(())
}

/// Changes where the list of inodes without a name goes on.
#[must_use]
pub fn set_next_unlinked(bytes: &mut [u8], next: Option<AgInode>) -> Option<()> {
    let next = next.unwrap_or(AgInode::NULL);
    core(bytes)?.next_unlinked.set(next.0);
    Some(())
}

/// Changes the core as its functions ask.
pub fn core_mut(bytes: &mut [u8]) -> Option<&mut DiskInodeV3> {
    core_v3(bytes)
}

/// Stores the checksum, where there is one.
pub fn seal(bytes: &mut [u8]) {
    if core_v3(bytes).is_some() {
        DiskInodeV3::seal(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(version: u8, flags2: u64) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        bytes[4] = version;
        bytes[82] = 30;
        bytes[120..128].copy_from_slice(&flags2.to_be_bytes());
        bytes
    }

    #[test]
    fn forks_are_stored_on_their_side_of_the_border() {
        for (version, start) in [(2, 100), (3, 176)] {
            let mut bytes = inode(version, 0);
            let fork = |kind, bytes| StoredFork {
                kind,
                format: ForkFormat::Extents,
                extents: 5,
                bytes,
            };
            set_fork(&mut bytes, &fork(ForkKind::Data, &[1; 240])).unwrap();
            set_fork(&mut bytes, &fork(ForkKind::Attr, &[2; 16])).unwrap();
            assert_eq!(bytes[start..start + 240], [1; 240]);
            assert_eq!(bytes[start + 240..start + 256], [2; 16]);
            assert_eq!(bytes[start + 256..].iter().max(), Some(&0));
            assert_eq!((bytes[79], bytes[81]), (5, 5));
            assert!(set_fork(&mut bytes, &fork(ForkKind::Data, &[1; 241])).is_none());
            let many = StoredFork {
                extents: 1 << 16,
                ..fork(ForkKind::Attr, &[])
            };
            assert!(set_fork(&mut bytes, &many).is_none());
        }
    }

    #[test]
    fn wide_counters_are_stored_where_they_lie() {
        let mut bytes = inode(3, InodeFlags2::NREXT64.bits());
        for (kind, extents) in [(ForkKind::Data, 1 << 40), (ForkKind::Attr, 1 << 20)] {
            let fork = StoredFork {
                kind,
                format: ForkFormat::Btree,
                extents,
                bytes: &[],
            };
            set_fork(&mut bytes, &fork).unwrap();
        }
        assert_eq!(bytes[24..32], (1_u64 << 40).to_be_bytes());
        assert_eq!(bytes[76..80], (1_u32 << 20).to_be_bytes());
        assert_eq!((bytes[5], bytes[83]), (3, 3));
    }

    #[test]
    fn attribute_fork_and_counters_change() {
        let mut bytes = inode(3, 0);
        bytes[300..].fill(9);
        set_attr_fork(&mut bytes, 20).unwrap();
        assert_eq!(bytes[336..].iter().max(), Some(&0));
        assert!(set_attr_fork(&mut bytes, 42).is_none());
        add_blocks(&mut bytes, 7).unwrap();
        add_blocks(&mut bytes, -3).unwrap();
        assert!(add_blocks(&mut bytes, -5).is_none());
        set_size(&mut bytes, 9).unwrap();
        assert_eq!((bytes[71], bytes[63]), (4, 9));
    }
}
