//! The walk through a tree: every block once, however many trees share it, and every copy of it.

use std::collections::HashMap;
use std::rc::Rc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::check::{Checking as _, Finding, Severity};
use platter_vfs::{Error, Result};
use zerocopy::FromBytes;

use super::extents::{Claim, ExtentState};
use super::inodes::Span;
use super::walked::{Block, Walked};
use super::{Checker, CopyRule, ExtentUseRule, Flow, RootUseRule, SharedBlockRule};
use super::{claims, csums, devices, extent_tree, free_space, inodes, leaves, roots};
use crate::ondisk::extent_item::ExtentRef;
use crate::ondisk::header::{DiskHeader, Header, HeaderFlags};
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::Leaf;
use crate::ondisk::node::Node;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};

/// Blocks between two reports of progress.
const STRIDE: u64 = 256;

/// What points to a block.
#[derive(Debug, Clone, Copy)]
struct Referrer {
    /// The block; `None` for a root item or superblock.
    block: Option<LogicalAddr>,
    /// The tree that wrote it.
    owner: TreeId,
}

/// The blocks that were walked.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// How many were read.
    pub(super) read: u64,
    /// What is known of those that several others point to.
    shared: HashMap<LogicalAddr, Shared>,
}

/// What is known of a block that several others point to.
#[derive(Debug)]
struct Shared {
    level: u8,
    generation: Generation,
    owner: TreeId,
    first_key: Option<Key>,
    span: Rc<Span>,
}

/// Walks a tree from its root.
pub(super) fn walk(checker: &mut Checker<'_>, walked: &Walked) -> Flow<Rc<Span>> {
    let root = walked.tree.root;
    let expected = Expected {
        level: Some(root.level),
        generation: Some(root.generation),
        tree: Some(walked.id()),
        ..Expected::default()
    };
    let referrer = Referrer {
        block: None,
        owner: walked.id(),
    };
    walk_block(checker, walked, root.logical, &expected, referrer)
}

/// Walks a block and all below it. The levels descend, so that it calls itself eight times at most.
fn walk_block(
    checker: &mut Checker<'_>,
    walked: &Walked,
    logical: LogicalAddr,
    expected: &Expected,
    referrer: Referrer,
) -> Flow<Rc<Span>> {
    let reference = claim_block(checker, walked, logical, expected, referrer)?;
    if !checker.extents.visit(logical) {
        return visit_again(checker, walked, logical, expected, reference);
    }
    let Some(bytes) = read_block(checker, walked.id(), logical, expected)? else {
        checker.is_blind = true;
        return Ok(Rc::new(Span::torn()));
    };
    let Ok((header, _)) = DiskHeader::ref_from_prefix(&bytes) else {
        return Ok(Rc::new(Span::torn()));
    };
    let header = Header::decode(header);
    if !header.flags.contains(HeaderFlags::MIXED_BACKREF) {
        let locus = Locus::tree(walked.id().0).at_block(logical.0);
        checker.found(locus, ExtentUseRule::Revision)?;
    }
    let is_reloc = header.flags.contains(HeaderFlags::RELOC);
    // Trees that are walked before all extents are known are never relocated this way.
    if is_reloc && !checker.extents.is_full(logical) {
        let locus = Locus::tree(walked.id().0).at_block(logical.0);
        checker.found(locus, ExtentUseRule::FullBackref)?;
    }
    note_owner(checker, walked, logical, &header, reference);
    let block = Block {
        logical,
        header,
        bytes: &bytes,
    };
    let span = if header.level == 0 {
        walk_leaf(checker, walked, &block)?
    } else {
        walk_node(checker, walked, &block, expected)?
    };
    let span = Rc::new(span);
    if checker.extents.is_shared(logical) {
        let first_key = if header.level == 0 {
            Leaf::new(&bytes).key(0)
        } else {
            Node::new(&bytes).pointer(0).map(|pointer| pointer.key)
        };
        let shared = Shared {
            level: header.level,
            generation: header.generation,
            owner: header.owner,
            first_key,
            span: Rc::clone(&span),
        };
        checker.blocks.shared.insert(logical, shared);
    }
    Ok(span)
}

fn walk_node(
    checker: &mut Checker<'_>,
    walked: &Walked,
    block: &Block<'_>,
    expected: &Expected,
) -> Flow<Span> {
    let node = Node::new(block.bytes);
    let level = block.header.level;
    let dropped = walked.dropped.filter(|(_, lowest)| level >= *lowest);
    let first = dropped.map_or(0, |(key, _)| node.index_for(key));
    let referrer = Referrer {
        block: Some(block.logical),
        owner: block.header.owner,
    };
    let mut span = Span::default();
    for index in first..node.len() {
        let Some(pointer) = node.pointer(index) else {
            break;
        };
        // What is before the key was dropped only on the way to it.
        let below = if index == first {
            *walked
        } else {
            Walked {
                dropped: None,
                ..*walked
            }
        };
        let next = node.pointer(index + 1).map(|next| next.key);
        let expected = Expected {
            level: level.checked_sub(1),
            generation: Some(pointer.generation),
            tree: Some(walked.id()),
            first_key: Some(pointer.key),
            end_key: next.or(expected.end_key),
        };
        let found = walk_block(checker, &below, pointer.logical, &expected, referrer)?;
        inodes::append_span(checker, walked, &mut span, &found)?;
    }
    Ok(span)
}

/// Records that a block is referred to. Returns the reference as it should be stored.
fn claim_block(
    checker: &mut Checker<'_>,
    walked: &Walked,
    logical: LogicalAddr,
    expected: &Expected,
    referrer: Referrer,
) -> Flow<ExtentRef> {
    let is_reloc_root = walked.id() == TreeId::TREE_RELOC && referrer.block.is_none();
    let own = if is_reloc_root {
        ExtentRef::SharedBlock { parent: logical }
    } else {
        ExtentRef::TreeBlock {
            tree: referrer.owner,
        }
    };
    let claim = Claim {
        extent: logical,
        len_bytes: checker.context.superblock.node_bytes.into(),
        level: Some(expected.level.unwrap_or_default()),
        parent: referrer.block,
        own,
        tree: walked.id(),
    };
    claims::add(checker, claim)
}

/// A block was reached once more.
fn visit_again(
    checker: &mut Checker<'_>,
    walked: &Walked,
    logical: LogicalAddr,
    expected: &Expected,
    reference: ExtentRef,
) -> Flow<Rc<Span>> {
    let Some(shared) = checker.blocks.shared.get(&logical) else {
        // That there is more than one reference is reported with the extent.
        return Ok(Rc::new(Span::torn()));
    };
    let span = Rc::clone(&shared.span);
    let first_key = expected.first_key;
    let agrees = expected.level == Some(shared.level)
        && expected.generation == Some(shared.generation)
        && (first_key.is_none() || first_key == shared.first_key);
    let tree = shared.owner;
    if reference == (ExtentRef::TreeBlock { tree }) {
        checker.extents.mark(logical, ExtentState::OWNER_FOUND);
    }
    if !agrees {
        let locus = Locus::tree(walked.id().0).at_block(logical.0);
        checker.found(locus, SharedBlockRule::Pointer)?;
    }
    Ok(span)
}

/// Records whether blocks of the tree are shared, and whether the tree that wrote a block refers to it.
fn note_owner(
    checker: &mut Checker<'_>,
    walked: &Walked,
    logical: LogicalAddr,
    header: &Header,
    reference: ExtentRef,
) {
    let is_relocation = walked.id() == TreeId::TREE_RELOC;
    if !walked.has_files() && !is_relocation {
        return;
    }
    let is_own = header.owner == TreeId::TREE_RELOC || header.flags.contains(HeaderFlags::RELOC);
    // A relocated block refers by itself to what its owner refers to no more by its tree.
    let extents = &checker.extents;
    let is_below =
        matches!(reference, ExtentRef::SharedBlock { parent } if extents.is_relocated(parent));
    if is_relocation || is_own || is_below {
        checker.extents.mark(logical, ExtentState::RELOCATED);
        return;
    }
    let mut state = ExtentState::OF_FILES;
    let tree = header.owner;
    if reference == (ExtentRef::TreeBlock { tree }) {
        state |= ExtentState::OWNER_FOUND;
    }
    checker.extents.mark(logical, state);
}

/// Reads all copies of a block. Returns the first that is good.
fn read_block(
    checker: &mut Checker<'_>,
    tree: TreeId,
    logical: LogicalAddr,
    expected: &Expected,
) -> Flow<Option<Vec<u8>>> {
    checker.blocks.read += 1;
    let read = checker.blocks.read;
    if read.is_multiple_of(STRIDE) {
        let total = checker.extents.tree_blocks.max(read);
        checker.report.progress("trees", read, total)?;
    }
    let blocks = &checker.context.blocks;
    let mut good = None;
    let mut bad: Vec<(u16, Error)> = Vec::new();
    for copy in 0..blocks.copies(logical) {
        let mut bytes = Vec::new();
        let verified = blocks.verify_copy(logical, copy, expected, &mut bytes);
        match (verified, &good) {
            (Ok(()), None) => good = Some(bytes),
            (Ok(()), Some(first)) if *first != bytes => {
                bad.push((copy, Corrupt::new(Locus::UNKNOWN, CopyRule::Differs).into()));
            }
            (Ok(()), Some(_)) => {}
            (Err(error), _) => bad.push((copy, error)),
        }
    }
    for (copy, error) in bad {
        report_copy(checker, tree, logical, copy, error, good.is_some())?;
    }
    Ok(good)
}

/// Reports a bad copy. The filesystem is whole as long as there is a good one.
fn report_copy(
    checker: &mut Checker<'_>,
    tree: TreeId,
    logical: LogicalAddr,
    copy: u16,
    error: Error,
    has_good: bool,
) -> Flow {
    let mut locus = Locus::tree(tree.0).at_block(logical.0).of_copy(copy);
    match checker.context.blocks.store().location(logical, copy) {
        Some((member, at)) => locus = locus.on_member(member.id.0).at_offset(at.0),
        None if has_good => return checker.noticed(locus, CopyRule::Parity),
        None => {}
    }
    let mut finding = Finding::of_error("tree block", locus, error);
    let parts = locus.parts();
    if let (Some(member), Some(offset)) = (parts.member, parts.offset) {
        let place = finding.corruption.locus.on_member(member);
        finding.corruption.locus = place.at_offset(offset);
    }
    finding.corruption.locus = finding.corruption.locus.of_copy(copy).in_tree(tree.0);
    if has_good {
        finding.severity = Severity::Notice;
    }
    checker.report_finding(finding)
}

/// Checks the items of a leaf, each by its tree.
fn walk_leaf(checker: &mut Checker<'_>, walked: &Walked, block: &Block<'_>) -> Flow<Span> {
    let leaf = Leaf::new(block.bytes);
    let id = walked.id();
    let mut is_torn = false;
    let mut items = Vec::with_capacity(leaf.len());
    for (key, data) in leaf.iter() {
        let locus = walked.tree.locus(key).at_block(block.logical.0);
        if let Err(corruption) = checker.format.check(key, data, locus) {
            let checked: Result<()> = Err(corruption.into());
            checker.tolerate("item", locus, checked)?;
            is_torn = true;
            continue;
        }
        if key.kind.name().is_none() && key.kind != ItemKind(0) {
            checker.noticed(locus, RootUseRule::UnknownItem)?;
        }
        items.push((key, data));
    }
    if id == TreeId::ROOT || walked.has_files() || id == TreeId::TREE_RELOC {
        leaves::claim_data(checker, walked, block, &items)?;
    }
    if walked.has_files() {
        let span = leaves::scan_files(checker, walked, block, &items)?;
        return Ok(if is_torn { Span::torn() } else { span });
    }
    for (key, data) in items {
        let locus = walked.tree.locus(key).at_block(block.logical.0);
        match id {
            TreeId::CHUNK => devices::note_chunk_item(checker, key, data, locus),
            TreeId::ROOT => roots::note_item(checker, key, data, locus)?,
            TreeId::EXTENT | TreeId::BLOCK_GROUP => {
                extent_tree::note_item(checker, key, data, locus)?;
            }
            TreeId::DEV => devices::note_dev_extent(checker, key, data, locus),
            TreeId::CSUM => csums::note_item(checker, key, data, locus)?,
            TreeId::FREE_SPACE => free_space::note_item(checker, key, data, locus)?,
            TreeId(_) => {}
        }
    }
    Ok(Span::default())
}
