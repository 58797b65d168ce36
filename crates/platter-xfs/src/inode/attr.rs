//! An inode's attributes as `stat` shows them.

use platter_vfs::{Attr, FileKind};

use crate::ondisk::{Geometry, Inode, InodeFlags, InodeFlags2};

/// The preferred unit of I/O of devices, as Linux has it.
const DEVICE_IO_BYTES: u32 = 4096;
const PAGE_BYTES: u32 = 4096;

/// Flags of an inode, and what `FS_IOC_GETFLAGS` shows for them. Spec: `linux/fs.h`.
const FLAGS: [(InodeFlags, u32); 6] = [
    (InodeFlags::SYNC, 0x8),
    (InodeFlags::IMMUTABLE, 0x10),
    (InodeFlags::APPEND, 0x20),
    (InodeFlags::NODUMP, 0x40),
    (InodeFlags::NOATIME, 0x80),
    (InodeFlags::PROJINHERIT, 0x2000_0000),
];
const FS_DAX: u32 = 0x0200_0000;

/// Flags that can be set.
pub const SETTABLE_FLAGS: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::PROJINHERIT);

/// How flags as `FS_IOC_SETFLAGS` has them are stored; `None` for one that means nothing here.
#[must_use]
pub fn stored_flags(flags: u32, kind: FileKind) -> Option<(InodeFlags, InodeFlags2)> {
    let mut left = flags;
    let mut stored = InodeFlags::empty();
    for (flag, shown) in FLAGS {
        if left & shown != 0 {
            stored |= flag;
            left &= !shown;
        }
    }
    let mut stored2 = InodeFlags2::empty();
    if left & FS_DAX != 0 {
        stored2 |= InodeFlags2::DAX;
        left &= !FS_DAX;
    }
    if stored.contains(InodeFlags::PROJINHERIT) && kind != FileKind::Directory {
        return None;
    }
    (left == 0).then_some((stored, stored2))
}

/// The attributes of an inode.
#[must_use]
pub fn attr(inode: &Inode, geometry: &Geometry) -> Attr {
    let shown = FLAGS.iter().filter(|(flag, _)| inode.flags.contains(*flag));
    let mut flags = shown.fold(0, |flags, (_, shown)| flags | shown);
    if inode.flags2.contains(InodeFlags2::DAX) {
        flags |= FS_DAX;
    }
    let is_device = matches!(inode.kind, FileKind::CharDevice | FileKind::BlockDevice);
    let extent_bytes = geometry
        .rt_extent_blocks
        .saturating_mul(geometry.block_bytes());
    Attr {
        inode: inode.number.get(),
        generation: inode.generation.into(),
        kind: inode.kind,
        permissions: inode.permissions,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        project: inode.project,
        size_bytes: inode.size_bytes,
        sectors: inode
            .blocks
            .saturating_mul(u64::from(geometry.block_bytes() >> 9)),
        space_is_estimated: false,
        io_block_bytes: if is_device {
            DEVICE_IO_BYTES
        } else if inode.is_realtime() {
            extent_bytes.max(PAGE_BYTES)
        } else {
            geometry.block_bytes().max(PAGE_BYTES)
        },
        device: inode.device(),
        accessed: inode.accessed,
        modified: inode.modified,
        changed: inode.changed,
        created: inode.created,
        flags,
    }
}
