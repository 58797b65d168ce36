//! Attributes: their spaces, blocks that inodes share, and inodes that hold values.

use platter_ondisk::Locus;

use super::{AttributeUseRule, Checker, Flow, InodeUseRule, locus_of};
use crate::ondisk::corrupt::Corrupt;
use crate::ondisk::features::Incompat;
use crate::ondisk::xattr::{
    DiskXattrHeader, ValuePlace, XattrBlockVerifier, XattrEntry, XattrRule, XattrSpace,
};
use crate::ondisk::{BlockNr, Inode, InodeNr};
use zerocopy::FromBytes;

/// What is known of a block of attributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttributeBlock {
    /// `h_refcount`; `None` of a broken block.
    stored: Option<u32>,
    /// Inodes that share it.
    found: u32,
}

/// A reference to an inode that holds a value.
#[derive(Debug, Clone, Copy)]
struct ValueReference {
    number: InodeNr,
    size_bytes: u32,
}

impl Checker<'_> {
    /// Checks the attributes of an inode and counts what they refer to. Returns the clusters of
    /// the values that lie in other inodes, which count as the inode's own.
    pub(super) fn check_attributes(&mut self, inode: &Inode) -> Flow<u64> {
        let locus = locus_of(inode.number);
        let has_ea_inode = self.has_ea_inode();
        let mut clusters = 0;
        if let Some(space) = XattrSpace::decode_inode(&inode.tail, has_ea_inode) {
            let space = space.map_err(|(offset, rule)| {
                Corrupt::new(locus.at_offset(offset as u64), rule).into()
            });
            if let Some(space) = self.tolerate("extended attributes", locus, space)? {
                self.check_entries(&space, locus, false)?;
                clusters += self.value_clusters(&space);
            }
        }
        if let Some(block) = inode.xattr_block {
            clusters += self.check_attribute_block(inode.number, block)?;
        }
        Ok(clusters)
    }

    fn value_clusters(&self, space: &XattrSpace<'_>) -> u64 {
        let geometry = &self.volume.geometry;
        let cluster_bytes = u64::from(geometry.block_bytes) * u64::from(geometry.cluster_blocks);
        let references = space.entries().iter().filter_map(value_reference);
        references
            .map(|reference| u64::from(reference.size_bytes).div_ceil(cluster_bytes))
            .sum()
    }

    pub(super) fn has_ea_inode(&self) -> bool {
        let features = self.volume.geometry.features;
        features.incompat.contains(Incompat::EA_INODE)
    }

    fn check_attribute_block(&mut self, inode: InodeNr, block: BlockNr) -> Flow<u64> {
        if let Some(known) = self.attribute_blocks.get_mut(&block.0) {
            known.found += 1;
            return Ok(self.count_values_again(block));
        }
        let volume = self.volume;
        let locus = locus_of(inode).at_block(block.0);
        if !self.claims.claim(&volume.geometry, block, true) {
            self.found(locus, InodeUseRule::SharedBlock)?;
        }
        let read = volume.read_block(block, &self.block_verifier());
        let buffer = self.tolerate("extended attributes", locus, read)?;
        let mut clusters = 0;
        let mut known = AttributeBlock {
            stored: None,
            found: 1,
        };
        if let Some(buffer) = &buffer {
            let header = DiskXattrHeader::ref_from_prefix(buffer).ok();
            known.stored = header.map(|(header, _)| header.references.get());
            if let Ok(space) = XattrSpace::decode_block(buffer, self.has_ea_inode()) {
                self.check_entries(&space, locus, true)?;
                clusters = self.value_clusters(&space);
            }
        }
        self.attribute_blocks.insert(block.0, known);
        Ok(clusters)
    }

    /// Each inode that shares a block refers to the values of the block.
    fn count_values_again(&mut self, block: BlockNr) -> u64 {
        if !self.has_ea_inode() {
            return 0;
        }
        let Ok(buffer) = self.volume.read_block(block, &self.block_verifier()) else {
            return 0; // Reported when it was first met.
        };
        let Ok(space) = XattrSpace::decode_block(&buffer, true) else {
            return 0;
        };
        for reference in space.entries().iter().filter_map(value_reference) {
            *self.attribute_values.entry(reference.number).or_default() += 1;
        }
        self.value_clusters(&space)
    }

    fn block_verifier(&self) -> XattrBlockVerifier {
        let geometry = &self.volume.geometry;
        let has_checksum = geometry.features.has_metadata_csum();
        XattrBlockVerifier {
            checksum_seed: has_checksum.then_some(geometry.checksum_seed),
            has_ea_inode: self.has_ea_inode(),
        }
    }

    fn check_entries(&mut self, space: &XattrSpace<'_>, locus: Locus, in_block: bool) -> Flow {
        let mut ranges: Vec<_> = space.entries().iter().filter_map(value_range).collect();
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            self.found(locus, AttributeUseRule::Overlap)?;
        }
        for entry in space.entries() {
            let at = locus.at_offset(entry.offset as u64);
            match entry.value {
                // Entries beside an inode need no hash; what is there is right, though.
                ValuePlace::Here(value) if in_block || entry.hash != 0 => {
                    if entry.verify_hash(value).is_err() {
                        self.found(at, XattrRule::Hash)?;
                    }
                }
                ValuePlace::Here(_) => {}
                ValuePlace::Inode { .. } => {
                    if let Some(reference) = value_reference(entry) {
                        self.check_value_inode(reference, at)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check_value_inode(&mut self, reference: ValueReference, at: Locus) -> Flow {
        *self.attribute_values.entry(reference.number).or_default() += 1;
        let read = crate::inode::read(self.volume, reference.number);
        let Some(holder) = self.tolerate("attribute value inode", at, read)? else {
            return Ok(());
        };
        if !holder.flags.contains(crate::ondisk::InodeFlags::EA_INODE) {
            self.found(at, AttributeUseRule::ValueInode)?;
        } else if holder.size_bytes != u64::from(reference.size_bytes) {
            self.found(at, AttributeUseRule::ValueSize)?;
        }
        Ok(())
    }

    /// Compares the references that were found with what blocks and inodes say of themselves.
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
        let mut holders: Vec<_> = self
            .attribute_holders
            .iter()
            .map(|(&h, &n)| (h, n))
            .collect();
        holders.sort_unstable();
        for (number, stored) in holders {
            let found = self.attribute_values.get(&number).copied().unwrap_or(0);
            if stored != found {
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

/// First and last address of a value, for comparison with others of the same space.
fn value_range(entry: &XattrEntry<'_>) -> Option<(usize, usize)> {
    match entry.value {
        ValuePlace::Here(value) if !value.is_empty() => {
            let start = value.as_ptr().addr();
            Some((start, start + value.len()))
        }
        ValuePlace::Here(_) | ValuePlace::Inode { .. } => None,
    }
}
