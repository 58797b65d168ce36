//! An inode's attributes as `stat` shows them.

use platter_vfs::{Attr, FileKind};

use crate::ondisk::{Geometry, Inode, InodeFlags};

/// The attributes of an inode.
#[must_use]
pub fn attr(inode: &Inode, geometry: &Geometry) -> Attr {
    let mut flags = inode.flags & InodeFlags::USER_VISIBLE;
    let mut sectors = inode.sectors;
    if inode.kind == FileKind::Regular {
        flags -= InodeFlags::PROJECT_INHERIT;
        // Contents in the inode count as space, so that programs do not take them for a hole.
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            sectors = sectors.saturating_add(inode.size_bytes.div_ceil(512));
        }
    }
    Attr {
        inode: u64::from(inode.number.get()),
        generation: u64::from(inode.generation),
        kind: inode.kind,
        permissions: inode.permissions,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        project: inode.project,
        size_bytes: inode.size_bytes,
        sectors,
        space_is_estimated: false,
        io_block_bytes: geometry.block_bytes,
        device: inode.device(),
        accessed: inode.accessed,
        modified: inode.modified,
        changed: inode.changed,
        created: inode.created,
        flags: flags.bits(),
    }
}
