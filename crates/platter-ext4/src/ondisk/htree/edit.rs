//! Creating and modifying index blocks. They are validated again when they are read.

use zerocopy::{FromBytes, IntoBytes};

use super::{
    DiskDirEntry, DiskHtreeCount, DiskHtreeEntry, DiskHtreeRoot, DiskHtreeTail, ENTRY_BYTES,
    FileBlock, Geometry, IndexEntries, InodeNr, ROOT_INFO_BYTES, entries_offset,
};
use crate::ondisk::dir_entry::EntryFormat;

/// An index entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// The lowest hash of the block; the lowest bit is set if the preceding block has names of that
    /// hash, too. Ignored in the first entry.
    pub hash: u32,
    /// The block of the directory.
    pub block: FileBlock,
}

/// The fields of an index root besides its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootHead {
    /// The directory.
    pub number: InodeNr,
    /// Its parent.
    pub parent: InodeNr,
    /// Number of the hash function.
    pub hash_version: u8,
    /// Levels of interior nodes.
    pub levels: u8,
}

/// Initializes `bytes` as the root of an index.
pub fn write_root(bytes: &mut [u8], head: RootHead, entries: &[IndexEntry], geometry: &Geometry) {
    EntryFormat::new(geometry, false).begin(bytes, head.number, head.parent);
    if let Ok((disk, _)) = DiskHtreeRoot::mut_from_prefix(bytes) {
        disk.reserved_zero = 0.into();
        disk.hash_version = head.hash_version;
        disk.info_length = ROOT_INFO_BYTES;
        disk.indirect_levels = head.levels;
        disk.unused_flags = 0;
    }
    begin_entries(bytes, size_of::<DiskHtreeRoot>(), geometry);
    set_entries(bytes, entries);
}

/// Initializes `bytes` as an interior node of an index.
pub fn write_node(bytes: &mut [u8], entries: &[IndexEntry], geometry: &Geometry) {
    EntryFormat::new(geometry, false).clear(bytes);
    begin_entries(bytes, size_of::<DiskDirEntry>(), geometry);
    set_entries(bytes, entries);
}

/// Adds a level below a root, all of whose entries moved to `block`.
pub fn add_level(bytes: &mut [u8], block: FileBlock) {
    if let Ok((disk, _)) = DiskHtreeRoot::mut_from_prefix(bytes) {
        disk.indirect_levels = disk.indirect_levels.saturating_add(1);
    }
    set_entries(bytes, &[IndexEntry { hash: 0, block }]);
}

/// Replaces the entries of an index block; at least one and at most its limit.
pub fn set_entries(bytes: &mut [u8], entries: &[IndexEntry]) {
    let Ok(at) = entries_offset(bytes) else {
        return;
    };
    let rest = bytes.get_mut(at..).unwrap_or_default();
    let Ok((header, _)) = DiskHtreeCount::mut_from_prefix(rest) else {
        return;
    };
    let limit = usize::from(header.limit.get());
    debug_assert!((1..=limit).contains(&entries.len()), "entries fit");
    header.count = u16::try_from(entries.len()).unwrap_or(u16::MAX).into();
    let head = *header;
    let (places, _) = rest.as_chunks_mut::<ENTRY_BYTES>();
    let mut entries = entries.iter();
    for place in places.iter_mut().take(limit) {
        let Some(entry) = entries.next() else {
            place.fill(0);
            continue;
        };
        let disk = DiskHtreeEntry {
            hash: entry.hash.into(),
            block: entry.block.0.into(),
        };
        place.copy_from_slice(disk.as_bytes());
    }
    if let Ok((header, _)) = DiskHtreeCount::mut_from_prefix(rest) {
        *header = head;
    }
}

/// Initializes the entry array at byte `at` and returns its limit.
fn begin_entries(bytes: &mut [u8], at: usize, geometry: &Geometry) {
    let tail = if geometry.features.has_metadata_csum() {
        size_of::<DiskHtreeTail>()
    } else {
        0
    };
    let rest = bytes.get_mut(at..).unwrap_or_default();
    let limit = rest.len().saturating_sub(tail) / ENTRY_BYTES;
    if let Ok((header, _)) = DiskHtreeCount::mut_from_prefix(rest) {
        header.limit = u16::try_from(limit).unwrap_or(u16::MAX).into();
        header.count = 0.into();
    }
}

impl IndexEntries<'_> {
    /// Returns a copy of the entries, for modification.
    #[must_use]
    pub fn to_vec(self) -> Vec<IndexEntry> {
        let entry = |index| {
            let block = self.block(index)?;
            let hash = self.hash(index);
            Some(IndexEntry { hash, block })
        };
        (0..self.len()).filter_map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Verify;

    use super::*;
    use crate::ondisk::dir_entry::DirBlockVerifier;
    use crate::ondisk::features::{Incompat, RoCompat};
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::htree::{HtreeRoot, decode_node};

    fn entries(hashes: impl IntoIterator<Item = u32>) -> Vec<IndexEntry> {
        let blocks = (1..).map(FileBlock);
        let entry = |(hash, block)| IndexEntry { hash, block };
        hashes.into_iter().zip(blocks).map(entry).collect()
    }

    fn verifier() -> DirBlockVerifier {
        DirBlockVerifier {
            inode: InodeNr::ROOT,
            checksum_seed: Some(7),
            is_indexed: true,
            is_first: true,
        }
    }

    #[test]
    fn encoded_root_is_valid_up_to_its_limit() {
        let mut geometry = sample_geometry();
        geometry.features.incompat |= Incompat::LARGE_DIR;
        for (has_csum, limit) in [(false, 124), (true, 123)] {
            geometry
                .features
                .ro_compat
                .set(RoCompat::METADATA_CSUM, has_csum);
            let head = RootHead {
                number: InodeNr::new(12).unwrap(),
                parent: InodeNr::ROOT,
                hash_version: 1,
                levels: 1,
            };
            let mut block = vec![0xff; 1024];
            write_root(&mut block, head, &entries([0, 11, 20]), &geometry);
            if has_csum {
                verifier().seal(5, &mut block);
                verifier().verify(5, &block).unwrap();
            }
            let root = HtreeRoot::decode(&block, &geometry).unwrap();
            assert_eq!(
                (root.dot, root.parent),
                (Some(head.number), Some(head.parent))
            );
            assert_eq!((root.hash_version, root.levels), (1, 1));
            assert_eq!(root.entries.limit(), limit);
            let hashes: Vec<_> = root
                .entries
                .to_vec()
                .iter()
                .map(|entry| entry.hash)
                .collect();
            assert_eq!(hashes, [0, 11, 20]);
            set_entries(&mut block, &entries(0..u32::try_from(limit).unwrap()));
            let root = HtreeRoot::decode(&block, &geometry).unwrap();
            assert_eq!(root.entries.len(), limit);
            add_level(&mut block, FileBlock(9));
            let root = HtreeRoot::decode(&block, &geometry).unwrap();
            assert_eq!((root.levels, root.entries.len()), (2, 1));
            assert_eq!(root.entries.block(0), Some(FileBlock(9)));
        }
    }

    #[test]
    fn encoded_node_is_valid() {
        let geometry = sample_geometry();
        let mut block = vec![0xff; 1024];
        write_node(&mut block, &entries([0, 2, 4]), &geometry);
        let node = decode_node(&block, &geometry).unwrap();
        assert_eq!((node.len(), node.hash(2)), (3, 4));
    }
}
