//! Extended attributes: in-inode attributes, shared attribute blocks, and EA inodes.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;
use zerocopy::FromBytes;

use super::{AttributeUseRule, Checker, Flow, InodeUseRule, locus_of};
use crate::file::Contents;
use crate::mapping::BlockMap;
use crate::ondisk::features::{Compat, Incompat};
use crate::ondisk::xattr::{
    DiskXattrHeader, ValuePlace, XattrBlockVerifier, XattrEntry, XattrRule, XattrSpace, value_hash,
};
use crate::ondisk::{BlockNr, Inode, InodeFlags, InodeNr};
use crate::xattr::{EaInodeRule, VALUE_BYTES_MAX};

/// What the check found about an attribute block.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttributeBlock {
    /// `h_refcount`; `None` if the block is corrupt.
    stored: Option<u32>,
    /// Number of inodes that share it.
    found: u32,
}

/// A reference to an EA inode.
#[derive(Debug, Clone, Copy)]
struct ValueReference {
    number: InodeNr,
    size_bytes: u32,
}

/// What the check found about an EA inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct EaInode {
    size_bytes: u64,
    /// Hash of the value, if the inode stores it; a Lustre EA inode stores its owner instead.
    hash: Option<u32>,
    owner: (u64, u32),
}

/// Values of an inode's attributes in EA inodes, which count towards its own blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Values {
    pub(super) clusters: u64,
    pub(super) inodes: u64,
}

impl std::ops::AddAssign for Values {
    fn add_assign(&mut self, other: Self) {
        self.clusters += other.clusters;
        self.inodes += other.inodes;
    }
}

impl Checker<'_> {
    /// Checks the attributes of an inode and counts their references.
    pub(super) fn check_attributes(&mut self, inode: &Inode) -> Flow<Values> {
        let locus = locus_of(inode.number);
        let has_ea_inode = self.has_ea_inode();
        let mut values = Values::default();
        if let Some(space) = XattrSpace::decode_inode(&inode.tail, has_ea_inode) {
            let space = space.map_err(|(offset, rule)| {
                Corrupt::new(locus.at_offset(offset as u64), rule).into()
            });
            if let Some(space) = self.tolerate("extended attributes", locus, space)? {
                self.check_entries(&space, inode, locus, false)?;
                values += self.values(&space);
            }
        }
        if let Some(block) = inode.xattr_block {
            let compat = self.fs.geometry.features.compat;
            if !compat.contains(Compat::EXT_ATTR) {
                self.found(locus, AttributeUseRule::Feature)?;
            }
            values += self.check_attribute_block(inode, block)?;
        }
        Ok(values)
    }

    fn values(&self, space: &XattrSpace<'_>) -> Values {
        let geometry = &self.fs.geometry;
        let cluster_bytes = u64::from(geometry.block_bytes) * u64::from(geometry.cluster_blocks);
        let mut values = Values::default();
        for reference in space.entries().iter().filter_map(value_reference) {
            values += Values {
                clusters: u64::from(reference.size_bytes).div_ceil(cluster_bytes),
                inodes: 1,
            };
        }
        values
    }

    pub(super) fn has_ea_inode(&self) -> bool {
        let features = self.fs.geometry.features;
        features.incompat.contains(Incompat::EA_INODE)
    }

    fn check_attribute_block(&mut self, inode: &Inode, block: BlockNr) -> Flow<Values> {
        if let Some(known) = self.attribute_blocks.get_mut(&block.0) {
            known.found += 1;
            return Ok(self.values_again(block));
        }
        let fs = self.fs;
        let locus = locus_of(inode.number).at_block(block.0);
        if self.claims.claim(&fs.geometry, block, 1).count > 0 {
            self.found(locus, InodeUseRule::SharedBlock)?;
        }
        let read = fs.read_block(block, &self.block_verifier());
        let buffer = self.tolerate("extended attributes", locus, read)?;
        let mut values = Values::default();
        let mut known = AttributeBlock {
            stored: None,
            found: 1,
        };
        if let Some(buffer) = &buffer {
            let header = DiskXattrHeader::ref_from_prefix(buffer).ok();
            known.stored = header.map(|(header, _)| header.references.get());
            if let Ok(space) = XattrSpace::decode_block(buffer, self.has_ea_inode()) {
                self.check_entries(&space, inode, locus, true)?;
                values = self.values(&space);
            }
        }
        self.attribute_blocks.insert(block.0, known);
        Ok(values)
    }

    /// Returns what the values of an attribute block add to a further inode that shares it. The
    /// block references them once.
    fn values_again(&self, block: BlockNr) -> Values {
        if !self.has_ea_inode() {
            return Values::default();
        }
        let Ok(buffer) = self.fs.read_block(block, &self.block_verifier()) else {
            return Values::default(); // Reported at its first reference.
        };
        let Ok(space) = XattrSpace::decode_block(&buffer, true) else {
            return Values::default();
        };
        self.values(&space)
    }

    fn block_verifier(&self) -> XattrBlockVerifier {
        let geometry = &self.fs.geometry;
        let has_checksum = geometry.features.has_metadata_csum();
        XattrBlockVerifier {
            checksum_seed: has_checksum.then_some(geometry.checksum_seed),
            has_ea_inode: self.has_ea_inode(),
        }
    }

    fn check_entries(
        &mut self,
        space: &XattrSpace<'_>,
        owner: &Inode,
        locus: Locus,
        in_block: bool,
    ) -> Flow {
        let mut ranges: Vec<_> = space.entries().iter().filter_map(value_range).collect();
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            self.found(locus, AttributeUseRule::Overlap)?;
        }
        for entry in space.entries() {
            let at = locus.at_offset(entry.offset as u64);
            if in_block && entry.name_index == 0 {
                self.found(at, AttributeUseRule::NoPrefix)?;
            }
            match entry.value {
                // An in-inode attribute needs no hash, but one that is set must match.
                ValuePlace::Here(value) if in_block || entry.hash != 0 => {
                    if entry.verify_hash(value).is_err() {
                        self.found(at, XattrRule::Hash)?;
                    }
                }
                ValuePlace::Here(_) => {}
                ValuePlace::Inode { .. } => {
                    if let Some(reference) = value_reference(entry) {
                        self.check_value(entry, reference, owner, at)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check_value(
        &mut self,
        entry: &XattrEntry<'_>,
        reference: ValueReference,
        owner: &Inode,
        at: Locus,
    ) -> Flow {
        let number = reference.number;
        *self.attribute_values.entry(number).or_default() += 1;
        let known = self.ea_inodes.get(&number).copied();
        let ea_inode = if let Some(known) = known {
            known
        } else {
            let ea_inode = self.read_ea_inode(number, at)?;
            self.ea_inodes.insert(number, ea_inode);
            ea_inode
        };
        let Some(ea_inode) = ea_inode else {
            return Ok(()); // Reported at its first reference.
        };
        let is_valid = match ea_inode.hash {
            Some(hash) => entry.verify_hash_of_inode(hash).is_ok(),
            None => ea_inode.owner == (u64::from(owner.number.get()), owner.generation),
        };
        if ea_inode.size_bytes != u64::from(reference.size_bytes) {
            self.found(at, EaInodeRule::Size)?;
        } else if !is_valid {
            self.found(at, EaInodeRule::Hash)?;
        }
        Ok(())
    }

    /// Reads an EA inode and its value.
    fn read_ea_inode(&mut self, number: InodeNr, at: Locus) -> Flow<Option<EaInode>> {
        let fs = self.fs;
        let Some(inode) = self.inode(number) else {
            self.found(at, EaInodeRule::Flag)?;
            return Ok(None);
        };
        let read = BlockMap::decode(fs, &inode).and_then(|map| {
            let size = inode.size_bytes.min(u64::from(VALUE_BYTES_MAX));
            let mut value = vec![0; usize::try_from(size).unwrap_or(0)];
            let contents = Contents {
                fs,
                inode: &inode,
                map: &map,
            };
            contents.read_at(0, &mut value)?;
            Ok(value_hash(fs.geometry.checksum_seed, &value))
        });
        let Some(hash) = self.tolerate("EA inode", at, read)? else {
            return Ok(None);
        };
        if inode.kind != FileKind::Regular || !inode.flags.contains(InodeFlags::EA_INODE) {
            self.found(at, EaInodeRule::Flag)?;
            return Ok(None);
        }
        // The hash is stored in the access time, the owner in the modification time.
        let low_half = |seconds: i64| seconds.cast_unsigned() & u64::from(u32::MAX);
        let is_hashed = low_half(inode.accessed.seconds) == u64::from(hash);
        Ok(Some(EaInode {
            size_bytes: inode.size_bytes,
            hash: is_hashed.then_some(hash),
            owner: (low_half(inode.modified.seconds), inode.generation),
        }))
    }

    /// Compares the references that were found with the stored reference counts.
    pub(super) fn check_attribute_counts(&mut self) -> Flow {
        let mut blocks: Vec<_> = self
            .attribute_blocks
            .iter()
            .map(|(&b, &k)| (b, k))
            .collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        self.report.count("attribute blocks", blocks.len() as u64);
        for (block, known) in blocks {
            if known.stored.is_some_and(|stored| stored != known.found) {
                self.found(Locus::block(block), AttributeUseRule::References)?;
            }
        }
        let mut ea_inodes: Vec<_> = self.ea_inode_counts.iter().map(|(&h, &n)| (h, n)).collect();
        ea_inodes.sort_unstable();
        for (number, stored) in ea_inodes {
            let found = self.attribute_values.get(&number).copied().unwrap_or(0);
            if found == 0 {
                self.found(locus_of(number), InodeUseRule::Unattached)?;
            } else if stored != found {
                self.found(locus_of(number), InodeUseRule::ValueReferences)?;
            }
        }
        Ok(())
    }
}

fn value_reference(entry: &XattrEntry<'_>) -> Option<ValueReference> {
    match entry.value {
        ValuePlace::Inode { number, size_bytes } => Some(ValueReference { number, size_bytes }),
        ValuePlace::Here(_) => None,
    }
}

/// Returns start and end of a value, to find overlaps in its space.
fn value_range(entry: &XattrEntry<'_>) -> Option<(usize, usize)> {
    match entry.value {
        ValuePlace::Here(value) if !value.is_empty() => {
            let start = value.as_ptr().addr();
            Some((start, start + value.len()))
        }
        ValuePlace::Here(_) | ValuePlace::Inode { .. } => None,
    }
}
