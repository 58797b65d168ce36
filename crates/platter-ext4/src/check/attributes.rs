//! Extended attributes: in-inode attributes, shared attribute blocks, and EA inodes.

use std::collections::HashMap;

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

/// What the check found about all attributes.
#[derive(Debug, Default)]
pub(super) struct AttributeUses {
    blocks: HashMap<u64, AttributeBlock>,
    /// References found to EA inodes.
    references: HashMap<InodeNr, u64>,
    /// The reference counts stored in EA inodes.
    stored: HashMap<InodeNr, u64>,
    /// The EA inodes that were read; `None` if corrupt.
    ea_inodes: HashMap<InodeNr, Option<EaInode>>,
}

impl AttributeUses {
    /// Records the reference count that an EA inode stores.
    pub(super) fn note_stored(&mut self, number: InodeNr, references: u64) {
        self.stored.insert(number, references);
    }
}

/// What the check found about an attribute block.
#[derive(Debug, Clone, Copy)]
struct AttributeBlock {
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
struct EaInode {
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

/// Checks the attributes of an inode and counts their references.
pub(super) fn check(checker: &mut Checker<'_>, inode: &Inode) -> Flow<Values> {
    let locus = locus_of(inode.number);
    let has_ea_inode = has_ea_inode(checker);
    let mut values = Values::default();
    if let Some(space) = XattrSpace::decode_inode(&inode.tail, has_ea_inode) {
        let space = space
            .map_err(|(offset, rule)| Corrupt::new(locus.at_offset(offset as u64), rule).into());
        if let Some(space) = checker.tolerate("extended attributes", locus, space)? {
            check_entries(checker, &space, inode, locus, false)?;
            values += values_of(checker, &space);
        }
    }
    if let Some(block) = inode.xattr_block {
        let compat = checker.fs.geometry.features.compat;
        if !compat.contains(Compat::EXT_ATTR) {
            checker.found(locus, AttributeUseRule::Feature)?;
        }
        values += check_block(checker, inode, block)?;
    }
    Ok(values)
}

fn values_of(checker: &Checker<'_>, space: &XattrSpace<'_>) -> Values {
    let geometry = &checker.fs.geometry;
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

/// Whether values may lie in inodes of their own.
pub(super) fn has_ea_inode(checker: &Checker<'_>) -> bool {
    let features = checker.fs.geometry.features;
    features.incompat.contains(Incompat::EA_INODE)
}

fn check_block(checker: &mut Checker<'_>, inode: &Inode, block: BlockNr) -> Flow<Values> {
    if let Some(known) = checker.attributes.blocks.get_mut(&block.0) {
        known.found += 1;
        return Ok(values_again(checker, block));
    }
    let fs = checker.fs;
    let locus = locus_of(inode.number).at_block(block.0);
    if checker.claims.claim(&fs.geometry, block, 1).count > 0 {
        checker.found(locus, InodeUseRule::SharedBlock)?;
    }
    let read = fs.read_block(block, &block_verifier(checker));
    let buffer = checker.tolerate("extended attributes", locus, read)?;
    let mut values = Values::default();
    let mut known = AttributeBlock {
        stored: None,
        found: 1,
    };
    if let Some(buffer) = &buffer {
        let header = DiskXattrHeader::ref_from_prefix(buffer).ok();
        known.stored = header.map(|(header, _)| header.references.get());
        if let Ok(space) = XattrSpace::decode_block(buffer, has_ea_inode(checker)) {
            check_entries(checker, &space, inode, locus, true)?;
            values = values_of(checker, &space);
        }
    }
    checker.attributes.blocks.insert(block.0, known);
    Ok(values)
}

/// Returns what the values of an attribute block add to a further inode that shares it. The
/// block references them once.
fn values_again(checker: &Checker<'_>, block: BlockNr) -> Values {
    if !has_ea_inode(checker) {
        return Values::default();
    }
    let Ok(buffer) = checker.fs.read_block(block, &block_verifier(checker)) else {
        return Values::default(); // Reported at its first reference.
    };
    let Ok(space) = XattrSpace::decode_block(&buffer, true) else {
        return Values::default();
    };
    values_of(checker, &space)
}

fn block_verifier(checker: &Checker<'_>) -> XattrBlockVerifier {
    let geometry = &checker.fs.geometry;
    let has_checksum = geometry.features.has_metadata_csum();
    XattrBlockVerifier {
        checksum_seed: has_checksum.then_some(geometry.checksum_seed),
        has_ea_inode: has_ea_inode(checker),
    }
}

fn check_entries(
    checker: &mut Checker<'_>,
    space: &XattrSpace<'_>,
    owner: &Inode,
    locus: Locus,
    in_block: bool,
) -> Flow {
    let mut ranges: Vec<_> = space.entries().iter().filter_map(value_range).collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        checker.found(locus, AttributeUseRule::Overlap)?;
    }
    for entry in space.entries() {
        let at = locus.at_offset(entry.offset as u64);
        if in_block && entry.name_index == 0 {
            checker.found(at, AttributeUseRule::NoPrefix)?;
        }
        match entry.value {
            // An in-inode attribute needs no hash, but one that is set must match.
            ValuePlace::Here(value) if in_block || entry.hash != 0 => {
                if entry.verify_hash(value).is_err() {
                    checker.found(at, XattrRule::Hash)?;
                }
            }
            ValuePlace::Here(_) => {}
            ValuePlace::Inode { .. } => {
                if let Some(reference) = value_reference(entry) {
                    check_value(checker, entry, reference, owner, at)?;
                }
            }
        }
    }
    Ok(())
}

fn check_value(
    checker: &mut Checker<'_>,
    entry: &XattrEntry<'_>,
    reference: ValueReference,
    owner: &Inode,
    at: Locus,
) -> Flow {
    let number = reference.number;
    *checker.attributes.references.entry(number).or_default() += 1;
    let known = checker.attributes.ea_inodes.get(&number).copied();
    let ea_inode = if let Some(known) = known {
        known
    } else {
        let ea_inode = read_ea_inode(checker, number, at)?;
        checker.attributes.ea_inodes.insert(number, ea_inode);
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
        checker.found(at, EaInodeRule::Size)?;
    } else if !is_valid {
        checker.found(at, EaInodeRule::Hash)?;
    }
    Ok(())
}

/// Reads an EA inode and its value.
fn read_ea_inode(checker: &mut Checker<'_>, number: InodeNr, at: Locus) -> Flow<Option<EaInode>> {
    let fs = checker.fs;
    let Some(inode) = checker.inode(number) else {
        checker.found(at, EaInodeRule::Flag)?;
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
    let Some(hash) = checker.tolerate("EA inode", at, read)? else {
        return Ok(None);
    };
    if inode.kind != FileKind::Regular || !inode.flags.contains(InodeFlags::EA_INODE) {
        checker.found(at, EaInodeRule::Flag)?;
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
pub(super) fn check_counts(checker: &mut Checker<'_>) -> Flow {
    let mut blocks: Vec<_> = checker
        .attributes
        .blocks
        .iter()
        .map(|(&b, &k)| (b, k))
        .collect();
    blocks.sort_unstable_by_key(|(block, _)| *block);
    checker
        .report
        .count("attribute blocks", blocks.len() as u64);
    for (block, known) in blocks {
        if known.stored.is_some_and(|stored| stored != known.found) {
            checker.found(Locus::block(block), AttributeUseRule::References)?;
        }
    }
    let mut ea_inodes: Vec<_> = checker
        .attributes
        .stored
        .iter()
        .map(|(&h, &n)| (h, n))
        .collect();
    ea_inodes.sort_unstable();
    for (number, stored) in ea_inodes {
        let found = checker
            .attributes
            .references
            .get(&number)
            .copied()
            .unwrap_or(0);
        if found == 0 {
            checker.found(locus_of(number), InodeUseRule::Unattached)?;
        } else if stored != found {
            checker.found(locus_of(number), InodeUseRule::ValueReferences)?;
        }
    }
    Ok(())
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
