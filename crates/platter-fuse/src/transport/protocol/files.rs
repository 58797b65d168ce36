//! Encoding inodes and their attributes.

use platter_vfs::attr::DeviceNumber;
use platter_vfs::{Attr, FileKind, Timestamp};

use super::{AttrOut, Dirent, EntryOut, FileAttr, Statx, StatxTime};
use crate::node::NodeId;
use crate::server::{EntryParam, Validity};

/// The longest timeout in seconds that the kernel can add to its clock.
pub(in crate::transport) const ALWAYS: u64 = 1 << 32;

/// Returns how long attributes are valid, in seconds: not at all where space is estimated, which changes without the
/// kernel.
pub(in crate::transport) fn attr_valid(attr: &Attr) -> u64 {
    if attr.space_is_estimated { 0 } else { ALWAYS }
}

impl EntryOut {
    pub(in crate::transport) fn new(entry: &EntryParam) -> Self {
        Self {
            node: entry.node.0,
            // The root has generation 0 in file handles of the kernel.
            generation: match entry.node {
                NodeId::ROOT => 0,
                _ => entry.attr.generation,
            },
            entry_valid: match entry.validity {
                Validity::Always => ALWAYS,
                Validity::Never => 0,
            },
            attr_valid: attr_valid(&entry.attr),
            entry_valid_ns: 0,
            attr_valid_ns: 0,
            attr: FileAttr::new(&entry.attr),
        }
    }
}

impl AttrOut {
    pub(in crate::transport) fn new(attr: &Attr) -> Self {
        Self {
            attr_valid: attr_valid(attr),
            attr_valid_ns: 0,
            unused: 0,
            attr: FileAttr::new(attr),
        }
    }
}

impl Dirent {
    pub(in crate::transport) fn new(inode: u64, kind: FileKind, next: u64, name: &[u8]) -> Self {
        Self {
            inode,
            next,
            name_len: u32::try_from(name.len()).unwrap_or(u32::MAX),
            kind: kind.mode_bits() >> 12,
        }
    }
}

/// `STATX_BASIC_STATS`.
const STATX_BASIC: u32 = 0x7ff;
/// `STATX_ATTR_COMPRESSED`, `IMMUTABLE`, `APPEND`, `NODUMP`, `ENCRYPTED` and `VERITY`, which have
/// the bits of the inode flags of those names.
const STATX_ATTRIBUTES: u32 = 0x10_0874;
/// `STATX_BTIME`.
const STATX_CREATED: u32 = 0x800;

impl FileAttr {
    pub(in crate::transport) fn new(attr: &Attr) -> Self {
        Self {
            inode: attr.inode,
            size: attr.size_bytes,
            sectors: attr.sectors,
            accessed: attr.accessed.seconds.cast_unsigned(),
            modified: attr.modified.seconds.cast_unsigned(),
            changed: attr.changed.seconds.cast_unsigned(),
            accessed_ns: attr.accessed.nanoseconds,
            modified_ns: attr.modified.nanoseconds,
            changed_ns: attr.changed.nanoseconds,
            mode: attr.kind.mode_bits() | attr.permissions & 0o7777,
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            device: encode_device(attr.device),
            block_bytes: attr.io_block_bytes,
            flags: 0,
        }
    }
}

impl Statx {
    pub(in crate::transport) fn new(attr: &Attr) -> Self {
        let created = attr.created.map_or(0, |_| STATX_CREATED);
        Self {
            mask: STATX_BASIC | created,
            block_bytes: attr.io_block_bytes,
            attributes: u64::from(attr.flags & STATX_ATTRIBUTES),
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            mode: u16::try_from(attr.kind.mode_bits() | attr.permissions & 0o7777).unwrap_or(0),
            unused: 0,
            inode: attr.inode,
            size: attr.size_bytes,
            sectors: attr.sectors,
            attributes_mask: u64::from(STATX_ATTRIBUTES),
            accessed: StatxTime::new(attr.accessed),
            created: StatxTime::new(attr.created.unwrap_or_default()),
            changed: StatxTime::new(attr.changed),
            modified: StatxTime::new(attr.modified),
            device_major: attr.device.major,
            device_minor: attr.device.minor,
            filesystem_major: 0,
            filesystem_minor: 0,
            spare: [0; 14],
        }
    }
}

impl StatxTime {
    fn new(time: Timestamp) -> Self {
        Self {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
            unused: 0,
        }
    }
}

/// Encodes a device number in 32 bits: the upper bits of the minor are above the major.
pub(in crate::transport) fn encode_device(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// Decodes a device number, the inverse of [`encode_device`].
pub(in crate::transport) fn decode_device(encoded: u32) -> DeviceNumber {
    DeviceNumber {
        major: (encoded >> 8) & 0xfff,
        minor: (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use platter_memfs::{MemFs, MemFsLimits};
    use platter_vfs::{Filesystem, FixedClock};

    use super::*;

    #[test]
    fn inode_flags_equal_statx_attribute_bits() {
        let fs = MemFs::new(
            Arc::new(FixedClock::new(Timestamp::default(), 0)),
            MemFsLimits::default(),
        );
        let mut attr = fs.root().unwrap().attr().unwrap();
        attr.flags = 0x0018_0894;
        let stat = Statx::new(&attr);
        assert_eq!(stat.attributes, 0x0010_0814, "neither extents nor no atime");
        assert_eq!(stat.attributes_mask, 0x0010_0874);
    }

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(8, 1), (0, 0), (259, 70_000), (0xfff, 0xf_ffff)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(decode_device(encode_device(device)), device);
        }
        let disk = DeviceNumber { major: 8, minor: 1 };
        assert_eq!(encode_device(disk), 0x801);
    }
}
