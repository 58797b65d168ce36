//! Inodes that are free or on an unlinked list. Spec: `xfs/ondisk_inode`.

use platter_ondisk::endian::{Be16, Be32, Be64};
use zerocopy::{FromBytes, IntoBytes};

use super::INODE_MAGIC;
use crate::ondisk::checksum;
use crate::ondisk::geometry::Geometry;
use crate::ondisk::types::InodeNr;

/// `di_crc` on disk.
pub const CRC_AT: usize = 100;
/// `di_next_unlinked`.
pub const NEXT_UNLINKED_AT: usize = 96;

/// `di_next_unlinked` of an inode on disk.
#[must_use]
pub fn next_unlinked(inode: &[u8]) -> Option<u32> {
    let (link, _) = Be32::ref_from_prefix(inode.get(NEXT_UNLINKED_AT..)?).ok()?;
    Some(link.get())
}

/// Initialises a free inode on disk: all zeros but for what identifies it.
pub fn initialise(inode: &mut [u8], geometry: &Geometry, number: InodeNr, generation: u32) {
    initialise_unsealed(inode, geometry, number, generation);
    if geometry.features.is_v5() {
        checksum::seal(inode, CRC_AT);
    }
}

/// As [`initialise`], without the checksum.
pub(super) fn initialise_unsealed(
    inode: &mut [u8],
    geometry: &Geometry,
    number: InodeNr,
    generation: u32,
) {
    inode.fill(0);
    let is_v3 = geometry.features.is_v5();
    let mut put = |at: usize, bytes: &[u8]| {
        let slot = inode
            .get_mut(at..)
            .and_then(|rest| rest.get_mut(..bytes.len()));
        if let Some(slot) = slot {
            slot.copy_from_slice(bytes);
        }
    };
    put(0, Be16::new(INODE_MAGIC).as_bytes());
    put(4, &[if is_v3 { 3 } else { 2 }]);
    put(92, Be32::new(generation).as_bytes());
    put(NEXT_UNLINKED_AT, Be32::new(u32::MAX).as_bytes());
    if is_v3 {
        put(152, Be64::new(number.get()).as_bytes());
        put(160, geometry.meta_uuid.as_bytes());
    }
}
