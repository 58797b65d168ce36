//! Attributes: in the inode, in leaves below a hash tree, values in blocks of their own, and pointers
//! to parents. Spec: `xfs/extended_attributes`.

use platter_ondisk::Corrupt;
use platter_vfs::check::Checking as _;

use super::dir_index::{Chains, DaBlock};
use super::directories::parent_hash;
use super::forks::ForkExtents;
use super::{AttributeUseRule, Checker, Flow, HashTreeRule, locus_of};
use crate::file::ForkRule;
use crate::ondisk::attr::leaf::AttrLeaf;
use crate::ondisk::attr::{AttrEntry, AttrValue, DiskParent, Namespace, short};
use crate::ondisk::da::{DaKind, DaNode, DaNodeRule};
use crate::ondisk::{BlockKind, ForkFormat, Inode, InodeNr, Site, da};
use crate::xattr::{Attributes, value};

/// Full names of the attributes that hold access control lists, by their stored names.
const ACLS: [(&[u8], &[u8]); 2] = [
    (b"SGI_ACL_FILE", b"system.posix_acl_access"),
    (b"SGI_ACL_DEFAULT", b"system.posix_acl_default"),
];

/// The attributes of an inode that are read.
struct AttrScan<'a> {
    attributes: &'a Attributes<'a>,
    inode: &'a Inode,
    chains: Chains,
    is_whole: bool,
}

/// Reads the attributes of an inode, whose fork has these extents.
pub(super) fn check(checker: &mut Checker<'_>, inode: &Inode, fork: &ForkExtents) -> Flow {
    let locus = locus_of(inode.number);
    let opened = Attributes::open(checker.context, inode);
    let Some(attributes) = checker.tolerate("attributes", locus, opened)? else {
        return Ok(());
    };
    let mut scan = AttrScan {
        attributes: &attributes,
        inode,
        chains: Chains::default(),
        is_whole: true,
    };
    match inode.attr_format {
        Some(ForkFormat::Local) => check_short(checker, &scan),
        Some(ForkFormat::Extents | ForkFormat::Btree) if fork.extents > 0 => {
            let Some(left) = checker.blocks_left.checked_sub(fork.blocks) else {
                return checker.found(locus, ForkRule::TooManyBlocks);
            };
            checker.blocks_left = left;
            if fork.first != Some(0) {
                return checker.found(locus, AttributeUseRule::Missing);
            }
            check_tree(checker, &mut scan, 0, None)?;
            if scan.is_whole && !scan.chains.end() {
                checker.found(locus, HashTreeRule::Sibling)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn check_short(checker: &mut Checker<'_>, scan: &AttrScan<'_>) -> Flow {
    let locus = locus_of(scan.inode.number);
    let fork = scan.inode.attr_fork();
    let entries = match short::entries(fork.map_or(&[][..], |fork| fork.bytes)) {
        Ok(entries) => entries,
        Err(rule) => return checker.found(locus, rule),
    };
    for attr in entries {
        match attr {
            Ok(attr) => take_attr(checker, scan, &attr)?,
            Err(rule) => return checker.found(locus, rule),
        }
    }
    Ok(())
}

/// Walks the hash tree from a block on. Recurses once for each level. Returns the greatest hash.
fn check_tree(
    checker: &mut Checker<'_>,
    scan: &mut AttrScan<'_>,
    block: u32,
    above: Option<u16>,
) -> Flow<Option<u32>> {
    let locus = locus_of(scan.inode.number);
    if !scan.chains.is_new(block) {
        scan.is_whole = false;
        checker.found(locus, DaNodeRule::Cycle)?;
        return Ok(None);
    }
    let kind = scan.attributes.kind_of(block);
    let is_leaf = match checker.tolerate("hash tree node", locus, kind)? {
        Some(DaKind::AttrLeaf) if above.is_none_or(|above| above == 1) => true,
        Some(DaKind::Node) if above != Some(1) => false,
        kind => {
            scan.is_whole = false;
            if kind.is_some() {
                checker.found(locus, DaNodeRule::Kind)?;
            }
            return Ok(None);
        }
    };
    if is_leaf {
        return check_leaf(checker, scan, block);
    }
    let read = scan.attributes.read(block, BlockKind::DaNode);
    let Some(buffer) = checker.tolerate("hash tree node", locus, read)? else {
        scan.is_whole = false;
        return Ok(None);
    };
    checker.note_da_lsn(&buffer, locus);
    let site = Site::verified(checker.context.geometry(), scan.inode.number.get());
    let node = DaNode::decode(&buffer, &site).map_err(|rule| Corrupt::new(locus, rule).into());
    let Some(node) = checker.tolerate("hash tree node", locus, node)? else {
        scan.is_whole = false;
        return Ok(None);
    };
    if above.is_some_and(|above| node.level + 1 != above) {
        scan.is_whole = false;
        checker.found(locus, DaNodeRule::Level)?;
        return Ok(None);
    }
    let found = DaBlock {
        block,
        links: node.links,
        last: node.entries.last().map(|entry| entry.hash.get()),
    };
    if !scan.chains.add(node.level, &found) && scan.is_whole {
        checker.found(locus, HashTreeRule::Sibling)?;
    }
    for entry in node.entries {
        let last = check_tree(checker, scan, entry.child.get(), Some(node.level))?;
        if last.is_some_and(|last| last != entry.hash.get()) {
            checker.found(locus, HashTreeRule::Hash)?;
        }
    }
    Ok(found.last)
}

fn check_leaf(checker: &mut Checker<'_>, scan: &mut AttrScan<'_>, block: u32) -> Flow<Option<u32>> {
    let locus = locus_of(scan.inode.number);
    let read = scan.attributes.read(block, BlockKind::AttrLeaf);
    let Some(buffer) = checker.tolerate("attribute leaf", locus, read)? else {
        scan.is_whole = false;
        return Ok(None);
    };
    checker.note_da_lsn(&buffer, locus);
    let view = scan.attributes.view(&buffer);
    let Some(leaf) = checker.tolerate("attribute leaf", locus, view)? else {
        scan.is_whole = false;
        return Ok(None);
    };
    let found = DaBlock {
        block,
        links: leaf.links,
        last: leaf.entries.last().map(|entry| entry.hash.get()),
    };
    if !scan.chains.add(0, &found) && scan.is_whole {
        checker.found(locus, HashTreeRule::Sibling)?;
    }
    check_heap(checker, scan, &leaf)?;
    let mut previous: Vec<(u32, Namespace, &[u8])> = Vec::new();
    for entry in leaf.entries {
        let attr = match leaf.attr(entry) {
            Ok(attr) => attr,
            Err(rule) => {
                checker.found(locus, rule)?;
                continue;
            }
        };
        let hash = entry.hash.get();
        if hash != attr_hash(&attr) {
            checker.found(locus, AttributeUseRule::Hash)?;
        }
        let known = (hash, attr.namespace, attr.name);
        previous.retain(|&(other, ..)| other == hash);
        // Pointers to several parents may have one name.
        if attr.namespace != Namespace::Parent && previous.contains(&known) {
            checker.found(locus, AttributeUseRule::DuplicateName)?;
        }
        previous.push(known);
        take_attr(checker, scan, &attr)?;
    }
    Ok(found.last)
}

/// Names and values in a leaf do not overlap, and are counted.
fn check_heap(checker: &mut Checker<'_>, scan: &AttrScan<'_>, leaf: &AttrLeaf<'_>) -> Flow {
    let locus = locus_of(scan.inode.number);
    let ranges = leaf.entries.iter().map(|entry| leaf.heap_range(entry));
    // What is corrupt is reported with its attribute.
    let Ok(mut ranges) = ranges.collect::<Result<Vec<_>, _>>() else {
        return Ok(());
    };
    ranges.sort_unstable_by_key(|range| range.start);
    let overlap = |pair: &[std::ops::Range<usize>]| match pair {
        [one, next] => one.end > next.start,
        _ => false,
    };
    if ranges.windows(2).any(overlap) {
        checker.found(locus, AttributeUseRule::Overlap)?;
    }
    let used: usize = ranges.iter().map(ExactSizeIterator::len).sum();
    let first = ranges
        .first()
        .map_or(leaf.block_bytes(), |range| range.start);
    if used != usize::from(leaf.used_bytes) || first < leaf.first_used {
        checker.found(locus, AttributeUseRule::Used)?;
    }
    Ok(())
}

fn take_attr(checker: &mut Checker<'_>, scan: &AttrScan<'_>, attr: &AttrEntry<'_>) -> Flow {
    let locus = locus_of(scan.inode.number);
    if !attr.flags.is_complete() {
        return checker.found(locus, AttributeUseRule::Incomplete);
    }
    if attr.name.contains(&0) {
        checker.found(locus, AttributeUseRule::Name)?;
    }
    if attr.namespace == Namespace::Parent {
        return take_parent(checker, scan.inode, attr);
    }
    if let AttrValue::Remote { block, len } = attr.value {
        let value = value::remote(scan.attributes, block, len);
        checker.tolerate("remote attribute value", locus, value)?;
    }
    let acl = ACLS.iter().find(|(stored, _)| *stored == attr.name);
    if let Some((_, full)) = acl.filter(|_| attr.namespace == Namespace::Root) {
        let value = scan.attributes.get(full);
        checker.tolerate("access control list", locus, value)?;
    }
    Ok(())
}

/// Subtracts a pointer to a parent from the sum over the entries of the inode.
fn take_parent(checker: &mut Checker<'_>, inode: &Inode, attr: &AttrEntry<'_>) -> Flow {
    let locus = locus_of(inode.number);
    let parent = parent_of(attr);
    let Some((parent, generation)) =
        parent.filter(|_| checker.context.geometry().features.has_parent())
    else {
        return checker.found(locus, AttributeUseRule::Parent);
    };
    let sum = parent_hash(inode.number, parent, generation, attr.name);
    let known = checker.parent_sums.entry(inode.number).or_default();
    *known = known.wrapping_sub(sum);
    Ok(())
}

/// The parent that a pointer is to, and its generation.
fn parent_of(attr: &AttrEntry<'_>) -> Option<(InodeNr, u32)> {
    let AttrValue::Local(value) = attr.value else {
        return None;
    };
    let parent = DiskParent::decode(value)?;
    Some((InodeNr::new(parent.inode.get())?, parent.generation.get()))
}

/// The hash of an attribute: of its name; that of a pointer to a parent depends on the parent as well.
fn attr_hash(attr: &AttrEntry<'_>) -> u32 {
    let hash = da::hash(attr.name);
    if attr.namespace != Namespace::Parent {
        return hash;
    }
    let number = parent_of(attr).map_or(0, |(parent, _)| parent.get());
    let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0);
    hash ^ half(number >> 32) ^ half(number)
}
