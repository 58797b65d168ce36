//! What the items of one inode must agree on. They are consecutive in the tree, so that only the first
//! and the last inode of a subtree may have more items elsewhere.

use std::ops::Range;
use std::rc::Rc;

use platter_ondisk::Locus;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::walked::Walked;
use super::{Checker, Flow, InodeUseRule};
use crate::ondisk::features::Incompat;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::types::{FIRST_FREE_OBJECT, LAST_FREE_OBJECT};
use crate::ondisk::{Generation, TreeId};

/// What was seen of an inode so far.
#[derive(Debug, Clone, Default)]
pub(super) struct InodeState {
    pub(super) number: u64,
    item: Option<Head>,
    /// References to it.
    pub(super) refs: u32,
    /// The lengths of all names in it, of hashed and indexed entries.
    pub(super) names_bytes: u64,
    /// Bytes of its extents.
    pub(super) bytes: u64,
    /// From the first extent to the end of the last.
    extents: Option<Range<u64>>,
    /// There are extents that overlap.
    overlaps: bool,
    /// There is a gap between extents.
    first_gap: Option<u64>,
    /// Written data has checksums, or some of it has none.
    pub(super) has_csums: bool,
    pub(super) lacks_csums: bool,
}

/// What the inode item says.
#[derive(Debug, Clone, Copy)]
struct Head {
    kind: FileKind,
    links: u32,
    size_bytes: u64,
    allocated_bytes: u64,
    flags: InodeFlags,
    generation: Generation,
    transaction: Generation,
}

/// The first or the last inode of a subtree.
#[derive(Debug, Clone)]
pub(super) enum Edge {
    Inode(InodeState),
    /// Items there are not known.
    Torn,
}

/// What a subtree leaves to be seen together with its neighbours: its first and its last inode, and the
/// sum of its names.
#[derive(Debug, Clone, Default)]
pub(super) struct Span {
    pub(super) sum: u64,
    pub(super) edges: Vec<Edge>,
}

impl Span {
    /// The span of items that are not known.
    pub(super) fn torn() -> Self {
        Self {
            sum: 0,
            edges: vec![Edge::Torn],
        }
    }
}

impl InodeState {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    pub(super) fn set_item(&mut self, item: &InodeItem) {
        self.item = Some(Head {
            kind: item.kind,
            links: item.links,
            size_bytes: item.size_bytes,
            allocated_bytes: item.allocated_bytes,
            flags: item.flags,
            generation: item.generation,
            transaction: item.transaction,
        });
    }

    /// Adds an extent; they come in ascending order.
    pub(super) fn add_extent(&mut self, extent: Range<u64>) {
        match &mut self.extents {
            None => self.extents = Some(extent),
            Some(all) => {
                self.overlaps |= extent.start < all.end;
                if extent.start > all.end {
                    self.first_gap.get_or_insert(all.end);
                }
                all.end = all.end.max(extent.end);
            }
        }
    }

    /// Adds what follows of the same inode.
    fn append(&mut self, next: &Self) {
        self.item = self.item.or(next.item);
        self.refs = self.refs.saturating_add(next.refs);
        self.names_bytes = self.names_bytes.saturating_add(next.names_bytes);
        self.bytes = self.bytes.saturating_add(next.bytes);
        if let Some(extents) = &next.extents {
            self.add_extent(extents.clone());
        }
        self.overlaps |= next.overlaps;
        self.first_gap = self.first_gap.or(next.first_gap);
        self.has_csums |= next.has_csums;
        self.lacks_csums |= next.lacks_csums;
    }
}

/// Appends a span to another one: the inodes between the two are complete.
pub(super) fn append_span(
    checker: &mut Checker<'_>,
    walked: &Walked,
    span: &mut Span,
    next: &Rc<Span>,
) -> Flow {
    span.sum = span.sum.wrapping_add(next.sum);
    for edge in &next.edges {
        append_edge(checker, walked, span, edge.clone())?;
    }
    Ok(())
}

/// Appends an inode, or a part of one.
pub(super) fn append_edge(
    checker: &mut Checker<'_>,
    walked: &Walked,
    span: &mut Span,
    next: Edge,
) -> Flow {
    match (span.edges.last_mut(), &next) {
        (Some(Edge::Inode(last)), Edge::Inode(next)) if last.number == next.number => {
            last.append(next);
            return Ok(());
        }
        // What is next to unknown items may have more of them.
        (Some(last @ Edge::Inode(_)), Edge::Torn) => {
            *last = Edge::Torn;
            return Ok(());
        }
        (Some(Edge::Torn), Edge::Torn) => return Ok(()),
        (Some(Edge::Torn), Edge::Inode(next)) if next.item.is_none() => return Ok(()),
        _ => {}
    }
    span.edges.push(next);
    if span.edges.len() > 2
        && let Edge::Inode(inner) = span.edges.remove(1)
    {
        finish_inode(checker, walked, &inner)?;
    }
    Ok(())
}

/// Checks the inodes at both ends of a whole tree.
pub(super) fn finish_span(checker: &mut Checker<'_>, walked: &Walked, span: &Span) -> Flow {
    for edge in &span.edges {
        if let Edge::Inode(inode) = edge {
            finish_inode(checker, walked, inode)?;
        }
    }
    Ok(())
}

/// Checks an inode of which all items were seen.
fn finish_inode(checker: &mut Checker<'_>, walked: &Walked, inode: &InodeState) -> Flow {
    let number = inode.number;
    if walked.is_dead || !(FIRST_FREE_OBJECT..=LAST_FREE_OBJECT).contains(&number) {
        return Ok(());
    }
    checker.report.count("inodes", 1);
    let locus = Locus::tree(walked.id().0).of_inode(number);
    let Some(head) = inode.item else {
        return checker.found(locus, InodeUseRule::NoItem);
    };
    if head.links != inode.refs {
        checker.found(locus, InodeUseRule::Links)?;
    }
    let newest = checker.context.superblock.generation;
    if head.generation > newest || head.transaction > newest {
        checker.found(locus, InodeUseRule::Generation)?;
    }
    let of_files = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    if head.kind == FileKind::Symlink && head.flags.intersects(of_files) {
        checker.found(locus, InodeUseRule::LinkFlags)?;
    }
    if head.kind == FileKind::Directory {
        if head.size_bytes != inode.names_bytes {
            checker.found(locus, InodeUseRule::DirectorySize)?;
        }
        if inode.extents.is_some() {
            checker.found(locus, InodeUseRule::OddExtent)?;
        }
        return Ok(());
    }
    if inode.names_bytes > 0 {
        checker.found(locus, InodeUseRule::OddDirItem)?;
    }
    if !matches!(head.kind, FileKind::Regular | FileKind::Symlink) {
        if inode.extents.is_some() {
            checker.found(locus, InodeUseRule::OddExtent)?;
        }
        return Ok(());
    }
    if walked.id() == TreeId::DATA_RELOC {
        return Ok(());
    }
    finish_file(checker, locus, inode, &head)
}

/// Checks the extents of a file or symbolic link.
fn finish_file(checker: &mut Checker<'_>, locus: Locus, inode: &InodeState, head: &Head) -> Flow {
    if head.allocated_bytes != inode.bytes {
        checker.found(locus, InodeUseRule::Bytes)?;
    }
    if inode.overlaps {
        checker.found(locus, InodeUseRule::ExtentOverlap)?;
    }
    let features = checker.context.superblock.features.incompat;
    if !features.contains(Incompat::NO_HOLES) && head.links > 0 {
        let gap = match &inode.extents {
            Some(extents) if extents.start > 0 => Some(0),
            Some(extents) => inode.first_gap.or(Some(extents.end)),
            None => Some(0),
        };
        if gap.is_some_and(|gap| gap < head.size_bytes) {
            checker.found(locus, InodeUseRule::ExtentGap)?;
        }
    }
    let is_unsummed = head.flags.contains(InodeFlags::NODATASUM);
    if inode.has_csums && is_unsummed {
        checker.found(locus, InodeUseRule::CsumOdd)?;
    }
    if inode.lacks_csums && !is_unsummed {
        checker.found(locus, InodeUseRule::CsumMissing)?;
    }
    Ok(())
}
