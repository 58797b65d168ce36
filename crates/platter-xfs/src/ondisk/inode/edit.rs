//! Changes of an inode on disk. Its checksum is brought up to date by [`seal`].
//! Spec: `xfs/ondisk_inode`; wide extent counters: `xfs-headers/xfs_format.h`.

use std::ops::Range;

use zerocopy::FromBytes;

use super::disk::{DiskInode, DiskInodeV3, InodeFlags2};
use super::{ForkFormat, ForkKind};

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

/// Stores a fork, with its format and counter; `None` if it does not fit.
#[must_use]
pub fn set_fork(bytes: &mut [u8], fork: &StoredFork<'_>) -> Option<()> {
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

/// Clears the flag of files whose data may be shared.
#[must_use]
pub fn clear_reflink(bytes: &mut [u8]) -> Option<()> {
    let disk = core_v3(bytes)?;
    let flags = disk.flags2.get() & !InodeFlags2::REFLINK.bits();
    disk.flags2.set(flags);
    Some(())
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
        let mut bytes = inode(3, InodeFlags2::REFLINK.bits() | InodeFlags2::BIGTIME.bits());
        bytes[300..].fill(9);
        set_attr_fork(&mut bytes, 20).unwrap();
        assert_eq!(bytes[336..].iter().max(), Some(&0));
        assert!(set_attr_fork(&mut bytes, 42).is_none());
        add_blocks(&mut bytes, 7).unwrap();
        add_blocks(&mut bytes, -3).unwrap();
        assert!(add_blocks(&mut bytes, -5).is_none());
        set_size(&mut bytes, 9).unwrap();
        clear_reflink(&mut bytes).unwrap();
        assert_eq!((bytes[71], bytes[63], bytes[127]), (4, 9, 8));
        assert!(clear_reflink(&mut inode(2, 0)).is_none());
    }
}
