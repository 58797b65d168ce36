//! Walks of B-trees, of groups and of forks, that go on after a corrupt block: each block is read once,
//! claimed, and compared with its parent and its neighbours. Spec: `xfs/btrees`.

use platter_ondisk::Locus;
use platter_ondisk::endian::{Be32, Be64};
use zerocopy::FromBytes;

use super::{Checker, Flow, TreeUseRule};
use crate::ondisk::agf::TreeRoot;
use crate::ondisk::btree::{
    BTREE_LEVELS_MAX, BtreeBlock, BtreeKind, BtreeRule, DiskFreeExtent, DiskLongHeaderV5,
    DiskOwner, DiskOwnerKey, DiskShortHeaderV5, Owner, RecordKey, RmapOwner,
};
use crate::ondisk::{AgBlock, AgNr, BlockKind, BlockVerifier, FsBlock, Site};
use platter_vfs::check::Checking as _;

/// Takes the leaves of a B-tree.
pub(super) type LeafSink<'c, 's> = dyn FnMut(&mut Checker<'c>, &BtreeBlock<'_>) -> Flow + 's;

/// The order of an owner key.
type OwnerOrder = (u32, u64, u64);

/// The walk of one B-tree.
#[derive(Debug)]
pub(super) struct TreeWalk {
    kind: BtreeKind,
    /// The group or inode that its blocks name.
    owner: u64,
    /// Where the tree is, for reports.
    locus: Locus,
    /// What its blocks are claimed for.
    claim: Owner,
    /// The last block visited on each level, and the one it names as the next.
    levels: Vec<(Option<u64>, Option<u64>)>,
    last: Option<RecordKey>,
    /// The highest level of blocks outside of an inode, where few records may be.
    top: u16,
    /// Blocks visited.
    pub(super) blocks: u64,
    /// All blocks could be read.
    pub(super) is_whole: bool,
}

/// The keys that a parent should have for a block.
#[derive(Debug, Clone, Copy)]
struct Span {
    low: [u64; 3],
    high: Option<OwnerOrder>,
}

impl TreeWalk {
    /// A walk that has not begun.
    pub(super) fn new(kind: BtreeKind, owner: u64, locus: Locus, claim: Owner) -> Self {
        Self {
            kind,
            owner,
            locus,
            claim,
            levels: vec![(None, None); BTREE_LEVELS_MAX as usize],
            last: None,
            top: 0,
            blocks: 0,
            is_whole: true,
        }
    }
}

/// Walks a B-tree from its root block.
pub(super) fn walk_tree<'c>(
    checker: &mut Checker<'c>,
    walk: &mut TreeWalk,
    root: FsBlock,
    level: u16,
    sink: &mut LeafSink<'c, '_>,
) -> Flow {
    walk.top = level;
    walk_block(checker, walk, root, level, true, sink)?;
    finish_walk(checker, walk)
}

/// Walks the blocks below a root in an inode.
pub(super) fn walk_below<'c>(
    checker: &mut Checker<'c>,
    walk: &mut TreeWalk,
    root: &BtreeBlock<'_>,
    sink: &mut LeafSink<'c, '_>,
) -> Flow {
    walk.top = root.level.saturating_sub(1);
    walk_children(checker, walk, root, walk.locus, sink)?;
    finish_walk(checker, walk)
}

/// Walks a B-tree of a group.
pub(super) fn walk_group<'c>(
    checker: &mut Checker<'c>,
    kind: BtreeKind,
    ag: AgNr,
    root: TreeRoot,
    sink: &mut LeafSink<'c, '_>,
) -> Flow<TreeWalk> {
    let owner = match kind {
        BtreeKind::Inobt | BtreeKind::Finobt => RmapOwner::INOBT,
        BtreeKind::Refcount => RmapOwner::REFCOUNT,
        BtreeKind::Bno
        | BtreeKind::Cnt
        | BtreeKind::Rmap
        | BtreeKind::Bmap
        | BtreeKind::RtRmap
        | BtreeKind::RtRefcount => RmapOwner::AG,
    };
    let claim = Owner {
        start: AgBlock(0),
        count: 0,
        owner,
        offset: 0,
        is_attr_fork: false,
        is_btree: false,
        is_unwritten: false,
    };
    let locus = Locus::group(ag.0.into());
    let mut walk = TreeWalk::new(kind, ag.0.into(), locus, claim);
    let block = checker.context.geometry().fs_block(ag, root.block);
    let level = u16::try_from(root.levels.saturating_sub(1)).unwrap_or(u16::MAX);
    walk_tree(checker, &mut walk, block, level, sink)?;
    Ok(walk)
}

/// The last block of each level has no right neighbour.
fn finish_walk(checker: &mut Checker<'_>, walk: &mut TreeWalk) -> Flow {
    let is_open = walk.levels.iter().any(|(_, right)| right.is_some());
    if walk.is_whole && is_open {
        checker.found(walk.locus, TreeUseRule::Sibling)?;
    }
    Ok(())
}

/// Walks a block and those below it. Recurses once for each level.
fn walk_block<'c>(
    checker: &mut Checker<'c>,
    walk: &mut TreeWalk,
    block: FsBlock,
    level: u16,
    is_root: bool,
    sink: &mut LeafSink<'c, '_>,
) -> Flow<Option<Span>> {
    let geometry = checker.context.geometry();
    let (ag, within) = geometry.split(block);
    let mut locus = checker.locus_at(block);
    if let Some(inode) = walk.locus.parts().inode {
        locus = locus.of_inode(inode);
    }
    if !checker.walked.insert(block.0) {
        walk.is_whole = false;
        checker.found(locus, TreeUseRule::Multiple)?;
        return Ok(None);
    }
    walk.blocks += 1;
    let claim = Owner {
        start: within,
        count: 1,
        ..walk.claim
    };
    checker.claims.add(ag, &claim, false);
    let verifier = BlockVerifier::new(geometry, BlockKind::Btree(walk.kind), walk.owner);
    let read = checker.context.read_block(block, &verifier);
    let Some(buffer) = checker.tolerate("B-tree block", locus, read)? else {
        walk.is_whole = false;
        return Ok(None);
    };
    note_tree_lsn(checker, walk.kind, &buffer, locus);
    let site = Site::verified(geometry, walk.owner);
    let view = match BtreeBlock::decode(&buffer, walk.kind, &site) {
        Ok(view) if view.level == level => view,
        decoded => {
            walk.is_whole = false;
            checker.found(locus, decoded.err().unwrap_or(BtreeRule::Level))?;
            return Ok(None);
        }
    };
    let least = walk.kind.records_max(level, geometry) / 2;
    if level != walk.top && view.count < least {
        checker.found(locus, TreeUseRule::TooFew)?;
    }
    check_siblings(checker, walk, block, &view, locus)?;
    if level > 0 {
        return walk_children(checker, walk, &view, locus, sink);
    }
    let span = leaf_span(&view);
    match view.record_key(0) {
        Some(first) if walk.last.is_some_and(|last| !last.precedes(&first)) => {
            checker.found(locus, BtreeRule::Order)?;
            walk.is_whole = false;
        }
        Some(_) => {
            walk.last = view.record_key(view.count - 1);
            sink(checker, &view)?;
        }
        None if is_root => {}
        None => checker.found(locus, BtreeRule::Records)?,
    }
    Ok(span)
}

fn walk_children<'c>(
    checker: &mut Checker<'c>,
    walk: &mut TreeWalk,
    view: &BtreeBlock<'_>,
    locus: Locus,
    sink: &mut LeafSink<'c, '_>,
) -> Flow<Option<Span>> {
    let Some(level) = view.level.checked_sub(1) else {
        return Ok(None);
    };
    let mut span: Option<Span> = None;
    let mut is_known = true;
    for index in 0..view.count {
        let child = match view.child(index, checker.context.geometry(), walk.owner) {
            Ok(child) => child,
            Err(rule) => {
                walk.is_whole = false;
                is_known = false;
                checker.found(locus, rule)?;
                continue;
            }
        };
        let Some(below) = walk_block(checker, walk, child, level, false, sink)? else {
            is_known = false;
            continue;
        };
        if !has_key(view, index, &below) {
            checker.found(locus, TreeUseRule::Key)?;
        }
        let whole = span.get_or_insert(below);
        whole.high = whole.high.max(below.high);
    }
    Ok(span.filter(|_| is_known))
}

fn check_siblings(
    checker: &mut Checker<'_>,
    walk: &mut TreeWalk,
    block: FsBlock,
    view: &BtreeBlock<'_>,
    locus: Locus,
) -> Flow {
    let AgBlock(within) = checker.context.geometry().split(block).1;
    let pointer = if walk.kind.is_long() {
        block.0
    } else {
        within.into()
    };
    let Some(last) = walk.levels.get_mut(usize::from(view.level)) else {
        return Ok(());
    };
    let (previous, next) = std::mem::replace(last, (Some(pointer), view.right));
    let is_linked = view.left == previous && (previous.is_none() || next == Some(pointer));
    // Blocks that could not be read are missing in the chain.
    if walk.is_whole && !is_linked {
        checker.found(locus, TreeUseRule::Sibling)?;
    }
    Ok(())
}

fn note_tree_lsn(checker: &mut Checker<'_>, kind: BtreeKind, bytes: &[u8], locus: Locus) {
    if !checker.context.geometry().features.is_v5() {
        return;
    }
    let lsn = if kind.is_long() {
        let header = DiskLongHeaderV5::ref_from_prefix(bytes).ok();
        header.map(|(header, _)| header.lsn)
    } else {
        let header = DiskShortHeaderV5::ref_from_prefix(bytes).ok();
        header.map(|(header, _)| header.lsn)
    };
    if let Some(lsn) = lsn {
        checker.note_lsn(lsn.get(), locus);
    }
}

/// The keys that the parent of a leaf should have for it.
fn leaf_span(view: &BtreeBlock<'_>) -> Option<Span> {
    let first = view.record_key(0)?;
    let owners = view.records::<DiskOwner>().iter();
    Some(Span {
        low: first.order,
        high: owners
            .map(|record| {
                let [_, last] = record.keys();
                last.order()
            })
            .max(),
    })
}

/// Whether a node has the keys of a child.
fn has_key(view: &BtreeBlock<'_>, index: usize, below: &Span) -> bool {
    let low = below.low;
    let [first, second, _] = low;
    let stored = match view.kind {
        BtreeKind::Bmap => view.keys::<Be64>().get(index).map(|key| [key.get(), 0, 0]),
        BtreeKind::Inobt | BtreeKind::Finobt | BtreeKind::Refcount | BtreeKind::RtRefcount => {
            let key = view.keys::<Be32>().get(index);
            key.map(|key| [key.get().into(), 0, 0])
        }
        BtreeKind::Bno => {
            let key = view.keys::<DiskFreeExtent>().get(index);
            key.map(|key| [key.start.get().into(), 0, 0])
        }
        BtreeKind::Cnt => {
            let key = view.keys::<DiskFreeExtent>().get(index);
            key.map(|key| [key.count.get().into(), key.start.get().into(), 0])
        }
        BtreeKind::Rmap | BtreeKind::RtRmap => {
            let Some([stored, high]) = view.keys::<[DiskOwnerKey; 2]>().get(index) else {
                return false;
            };
            let (start, owner, offset) = stored.order();
            return low == [start.into(), owner, offset] && Some(high.order()) == below.high;
        }
    };
    match view.kind {
        BtreeKind::Cnt => stored == Some([first, second, 0]),
        BtreeKind::Bno
        | BtreeKind::Inobt
        | BtreeKind::Finobt
        | BtreeKind::Rmap
        | BtreeKind::Refcount
        | BtreeKind::Bmap
        | BtreeKind::RtRmap
        | BtreeKind::RtRefcount => stored == Some([first, 0, 0]),
    }
}
