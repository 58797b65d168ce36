//! The inodes that a filesystem begins with: the root directory, and two of the realtime device.

use platter_block::BlockDevice;
use platter_vfs::{Condition, Result, Timestamp};

use super::groups::first_inodes;
use super::options::MkfsOptions;
use super::shape::Shape;
use crate::ondisk::dir::short;
use crate::ondisk::inode::edit::{self, FreshInode, StoredFork};
use crate::ondisk::inode::free::initialise;
use crate::ondisk::inode::time;
use crate::ondisk::{ForkFormat, ForkKind, InodeFlags, InodeFlags2, InodeNr};

const DIRECTORY_MODE: u16 = 0o040_755;
const FILE_MODE: u16 = 0o100_000;

/// Writes the first chunks.
pub(super) fn write(
    device: &dyn BlockDevice,
    shape: &Shape,
    options: &MkfsOptions,
    now: Timestamp,
) -> Result<()> {
    let geometry = &shape.geometry;
    let root = shape.superblock.root_inode;
    let inode_bytes = geometry.inode_bytes() as usize;
    let mut chunk = Vec::new();
    for index in 0..u64::from(first_inodes(shape)) {
        let number = InodeNr::new(root.get() + index).ok_or(Condition::InvalidArgument)?;
        let mut inode = vec![0; inode_bytes];
        initialise(&mut inode, geometry, number, 0);
        let made = match index {
            0 => make_root(&mut inode, shape, options, now),
            1 => make_file(&mut inode, shape, number, InodeFlags::NEWRTBM, now),
            2 => make_file(&mut inode, shape, number, InodeFlags::empty(), now),
            _ => Some(()),
        };
        made.ok_or(Condition::InvalidArgument)?;
        edit::seal(&mut inode);
        chunk.extend_from_slice(&inode);
    }
    let location = geometry.locate_inode(root);
    let location = location.ok_or(Condition::InvalidArgument)?;
    let at = geometry.byte_offset(geometry.fs_block(location.ag, location.block));
    device.write_at(at, &chunk)?;
    Ok(())
}

fn fresh(mode: u16, now: Timestamp) -> FreshInode {
    FreshInode {
        mode,
        data_format: ForkFormat::Extents,
        uid: 0,
        gid: 0,
        project: 0,
        links: 1,
        now,
        flags: InodeFlags::empty(),
        flags2: InodeFlags2::empty(),
        extent_size: 0,
        cow_extent_size: 0,
    }
}

fn make_root(inode: &mut [u8], shape: &Shape, options: &MkfsOptions, now: Timestamp) -> Option<()> {
    let geometry = &shape.geometry;
    let number = shape.superblock.root_inode;
    let (uid, gid) = options.root_owner;
    let root = FreshInode {
        uid,
        gid,
        links: 2,
        data_format: ForkFormat::Local,
        ..fresh(DIRECTORY_MODE, now)
    };
    edit::make(inode, &root, geometry, number);
    let entries = short::encode(number, &[], geometry)?;
    let fork = StoredFork {
        kind: ForkKind::Data,
        format: ForkFormat::Local,
        extents: 0,
        bytes: &entries,
    };
    edit::set_fork(inode, &fork)?;
    edit::set_size(inode, entries.len().try_into().ok()?)
}

/// A file of the realtime device, which there is none of. Its time of access is a number.
fn make_file(
    inode: &mut [u8],
    shape: &Shape,
    number: InodeNr,
    flags: InodeFlags,
    now: Timestamp,
) -> Option<()> {
    let geometry = &shape.geometry;
    let file = FreshInode {
        flags,
        ..fresh(FILE_MODE, now)
    };
    edit::make(inode, &file, geometry, number);
    let is_large = geometry.features.has_bigtime();
    edit::core_mut(inode)?.core.accessed = time::encode(Timestamp::default(), is_large);
    Some(())
}
