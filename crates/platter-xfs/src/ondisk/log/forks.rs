//! The forks of an inode in the form in which they are logged. Spec: `xfs/journaling_log`, "Inode Updates";
//! `xfs/data_extents`.

use platter_ondisk::endian::{Be16, Be32, Be64};
use zerocopy::{FromBytes, IntoBytes};

use super::InodeFields;
use crate::ondisk::btree::{BtreeKind, DiskRootHeader};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::inode::{Fork, ForkFormat, ForkKind, Inode};

/// Bytes of a mapping in an inode.
const MAPPING_BYTES: usize = 16;
const KEY_BYTES: usize = 8;
const POINTER_BYTES: usize = 8;
/// Regions are whole words.
const WORD_BYTES: usize = 4;

/// A fork as it is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedFork {
    /// The field that says how it is to be read.
    pub fields: InodeFields,
    /// Its region; empty for a device, which is in the first region.
    pub region: Vec<u8>,
}

/// The data fork; `None` if it holds nothing.
#[must_use]
pub fn data_fork(inode: &Inode, geometry: &Geometry) -> Option<LoggedFork> {
    let fork = inode.data_fork();
    if fork.format == ForkFormat::Device {
        return Some(LoggedFork {
            fields: InodeFields::DEVICE,
            region: Vec::new(),
        });
    }
    let local = usize::try_from(inode.size_bytes).unwrap_or(usize::MAX);
    logged(&fork, local, geometry)
}

/// The attribute fork; `None` if it holds nothing.
#[must_use]
pub fn attr_fork(inode: &Inode, geometry: &Geometry) -> Option<LoggedFork> {
    let fork = inode.attr_fork()?;
    logged(&fork, fork.bytes.len(), geometry)
}

/// Bytes of the region of the [data fork](data_fork); zero where there is none.
#[must_use]
pub fn data_fork_bytes(inode: &Inode, geometry: &Geometry) -> usize {
    let local = usize::try_from(inode.size_bytes).unwrap_or(usize::MAX);
    region_bytes(&inode.data_fork(), local, geometry).unwrap_or_default()
}

/// Bytes of the region of the [attribute fork](attr_fork); zero where there is none.
#[must_use]
pub fn attr_fork_bytes(inode: &Inode, geometry: &Geometry) -> usize {
    let fork = inode.attr_fork();
    let bytes = fork.and_then(|fork| region_bytes(&fork, fork.bytes.len(), geometry));
    bytes.unwrap_or_default()
}

/// The number of the device of a special file.
#[must_use]
pub fn device(inode: &Inode) -> u32 {
    let fork = inode.data_fork();
    Be32::ref_from_prefix(fork.bytes).map_or(0, |(device, _)| device.get())
}

/// Bytes of the region of a fork whose contents are so many if they are in the inode; `None` for a fork without one.
fn region_bytes(fork: &Fork<'_>, local: usize, geometry: &Geometry) -> Option<usize> {
    let len = match fork.format {
        ForkFormat::Local => {
            let len = local.checked_next_multiple_of(WORD_BYTES)?;
            len.min(fork.bytes.len())
        }
        ForkFormat::Extents => {
            let count = usize::try_from(fork.extents).ok()?;
            count.checked_mul(MAPPING_BYTES)?
        }
        ForkFormat::Btree => {
            let (disk, _) = DiskRootHeader::ref_from_prefix(fork.bytes).ok()?;
            let entries = usize::from(disk.records.get());
            let entries = entries.checked_mul(KEY_BYTES.checked_add(POINTER_BYTES)?)?;
            let header = BtreeKind::Bmap.header_bytes(geometry.features.is_v5());
            return header.checked_add(entries);
        }
        ForkFormat::Device | ForkFormat::MetaBtree => return None,
    };
    (len <= fork.bytes.len()).then_some(len)
}

fn logged(fork: &Fork<'_>, local: usize, geometry: &Geometry) -> Option<LoggedFork> {
    let by_kind = |data, attr| match fork.kind {
        ForkKind::Data => data,
        ForkKind::Attr => attr,
    };
    let len = region_bytes(fork, local, geometry)?;
    let (fields, region) = match fork.format {
        ForkFormat::Local => {
            let fields = by_kind(InodeFields::DATA_LOCAL, InodeFields::ATTR_LOCAL);
            (fields, fork.bytes.get(..len)?.to_vec())
        }
        ForkFormat::Extents => {
            let fields = by_kind(InodeFields::DATA_EXTENTS, InodeFields::ATTR_EXTENTS);
            (fields, fork.bytes.get(..len)?.to_vec())
        }
        ForkFormat::Btree => {
            let fields = by_kind(InodeFields::DATA_ROOT, InodeFields::ATTR_ROOT);
            (fields, root(fork.bytes, geometry)?)
        }
        ForkFormat::Device | ForkFormat::MetaBtree => return None,
    };
    (!region.is_empty()).then_some(LoggedFork { fields, region })
}

/// The root of a B-tree of mappings in the form of a block that holds just its entries.
fn root(fork: &[u8], geometry: &Geometry) -> Option<Vec<u8>> {
    let is_v5 = geometry.features.is_v5();
    let (disk, entries) = DiskRootHeader::ref_from_prefix(fork).ok()?;
    let count = usize::from(disk.records.get());
    let entry = KEY_BYTES.saturating_add(POINTER_BYTES);
    let most = entries.len().checked_div(entry)?;
    let keys = entries.get(..count.checked_mul(KEY_BYTES)?)?;
    let pointers = entries.get(most.checked_mul(KEY_BYTES)?..)?;
    let pointers = pointers.get(..count.checked_mul(POINTER_BYTES)?)?;
    let mut block = Vec::new();
    let none = Be64::new(u64::MAX);
    block.extend_from_slice(Be32::new(BtreeKind::Bmap.magic(is_v5)?).as_bytes());
    block.extend_from_slice(Be16::new(disk.level.get()).as_bytes());
    block.extend_from_slice(Be16::new(disk.records.get()).as_bytes());
    block.extend_from_slice(none.as_bytes());
    block.extend_from_slice(none.as_bytes());
    if is_v5 {
        // The address of a root, its LSN, UUID, owner and checksum: it is no block.
        block.extend_from_slice(none.as_bytes());
        block.extend_from_slice(&[0; 8]);
        block.extend_from_slice(geometry.meta_uuid.as_bytes());
        block.extend_from_slice(&[0; 16]);
    }
    block.extend_from_slice(keys);
    block.extend_from_slice(pointers);
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::inode::tests::sample;
    use crate::ondisk::types::InodeNr;

    #[test]
    fn root_of_a_fork_is_logged_as_a_block_of_its_entries() {
        let geometry = sample_geometry();
        let mut fork = vec![0; 4 + 5 * 16];
        fork[..4].copy_from_slice(&[0, 2, 0, 3]);
        fork[4..4 + 24].fill(1);
        fork[4 + 40..4 + 64].fill(2);
        let block = root(&fork, &geometry).unwrap();
        assert_eq!(block.len(), 72 + 3 * 16);
        assert_eq!(block[..8], *b"BMA3\0\x02\0\x03");
        assert!(block[72..96].iter().all(|&byte| byte == 1));
        assert!(block[96..].iter().all(|&byte| byte == 2));
        fork[3] = 6;
        assert_eq!(root(&fork, &geometry), None);
    }

    #[test]
    fn extents_are_logged_as_many_as_there_are() {
        let geometry = sample_geometry();
        let number = InodeNr::new(131).unwrap();
        let inode = Inode::decode(&sample(), number, &geometry).unwrap();
        let logged = data_fork(&inode, &geometry);
        let extents = usize::try_from(inode.data_extents).unwrap();
        let len = logged.as_ref().map_or(0, |fork| fork.region.len());
        assert_eq!(len, extents * MAPPING_BYTES);
        assert!(logged.is_none_or(|fork| fork.fields == InodeFields::DATA_EXTENTS));
    }
}
