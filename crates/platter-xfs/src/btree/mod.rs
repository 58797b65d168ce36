//! Walks and searches of B-trees, of allocation groups and of inodes.

use std::ops::ControlFlow;

use platter_cache::Buffer;
use platter_ondisk::endian::{Be32, Be64};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use crate::context::FsContext;
use crate::ondisk::agf::TreeRoot;
use crate::ondisk::btree::{BtreeBlock, BtreeKind, BtreeRule, RecordKey};
use crate::ondisk::{AgNr, BlockKind, BlockVerifier, FsBlock, InodeNr, Site};

/// A B-tree that is read.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a> {
    context: &'a FsContext,
    kind: BtreeKind,
    /// The allocation group or inode that owns it.
    owner: u64,
    root: Root<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Root<'a> {
    /// A block on this level.
    Block(FsBlock, u16),
    /// The bytes of a fork.
    Fork(&'a [u8]),
}

/// The leaf that a search ends at.
#[derive(Debug)]
pub struct Leaf {
    buffer: Buffer,
    /// The first key after the leaf.
    pub next_key: Option<u64>,
}

/// Takes leaves until it breaks.
pub type LeafSink<'s> = dyn FnMut(&BtreeBlock<'_>) -> Result<ControlFlow<()>> + 's;

impl<'a> Tree<'a> {
    /// A B-tree of an allocation group.
    #[must_use]
    pub fn of_group(context: &'a FsContext, kind: BtreeKind, ag: AgNr, root: TreeRoot) -> Self {
        let block = context.geometry().fs_block(ag, root.block);
        let level = u16::try_from(root.levels.saturating_sub(1)).unwrap_or(u16::MAX);
        Self {
            context,
            kind,
            owner: ag.0.into(),
            root: Root::Block(block, level),
        }
    }

    /// A B-tree whose root is the fork of an inode.
    #[must_use]
    pub fn of_fork(
        context: &'a FsContext,
        kind: BtreeKind,
        inode: InodeNr,
        fork: &'a [u8],
    ) -> Self {
        Self {
            context,
            kind,
            owner: inode.get(),
            root: Root::Fork(fork),
        }
    }

    /// Passes all leaves in order to `sink` until it breaks. Records ascend from leaf to leaf, so that
    /// no leaf is visited twice.
    pub fn leaves(&self, sink: &mut LeafSink<'_>) -> Result<()> {
        let mut last = None;
        let mut path = Vec::new();
        match self.root {
            Root::Block(block, level) => path.push(self.node(block, level)?),
            Root::Fork(fork) => {
                let root = self.root_of(fork)?;
                if root.level == 0 {
                    self.check_root_leaf(&root)?;
                    let _ = sink(&root)?;
                    return Ok(());
                }
                for index in 0..root.count {
                    path.push(self.child(&root, index)?);
                    if self.leaves_below(&mut path, &mut last, sink)?.is_break() {
                        break;
                    }
                }
                return Ok(());
            }
        }
        self.leaves_below(&mut path, &mut last, sink).map(|_| ())
    }

    /// Passes the leaves below the only node of `path`, which it empties.
    fn leaves_below(
        &self,
        path: &mut Vec<Node>,
        last: &mut Option<RecordKey>,
        sink: &mut LeafSink<'_>,
    ) -> Result<ControlFlow<()>> {
        let is_whole = matches!(self.root, Root::Block(..));
        loop {
            let may_be_empty = is_whole && path.len() == 1;
            let Some(node) = path.last_mut() else {
                return Ok(ControlFlow::Continue(()));
            };
            let block = self.view(&node.buffer)?;
            if block.level == 0 {
                self.check_leaf(&block, may_be_empty, last)?;
                if sink(&block)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                path.pop();
                continue;
            }
            if node.next >= block.count {
                path.pop();
                continue;
            }
            let child = self.child(&block, node.next)?;
            node.next += 1;
            path.push(child);
        }
    }

    /// The leaf whose records begin at or before `key`, for B-trees with keys that are one number;
    /// `None` where all records are after it, or there are none.
    pub fn search(&self, key: u64) -> Result<Option<Leaf>> {
        let mut next_key = None;
        let mut node = match self.root {
            Root::Block(block, level) => self.node(block, level)?,
            Root::Fork(fork) => {
                let root = self.root_of(fork)?;
                let Some(index) = pick(&root, key, &mut next_key) else {
                    return Ok(None);
                };
                self.child(&root, index)?
            }
        };
        loop {
            let block = self.view(&node.buffer)?;
            if block.level == 0 {
                return Ok(Some(Leaf {
                    buffer: node.buffer,
                    next_key,
                }));
            }
            let Some(index) = pick(&block, key, &mut next_key) else {
                return Ok(None);
            };
            node = self.child(&block, index)?;
        }
    }

    /// The first key of the B-tree; `None` where it has no nodes above its leaves.
    pub fn first_key(&self) -> Result<Option<u64>> {
        match self.root {
            Root::Block(block, level) => {
                let node = self.node(block, level)?;
                Ok(key_at(&self.view(&node.buffer)?, 0))
            }
            Root::Fork(fork) => Ok(key_at(&self.root_of(fork)?, 0)),
        }
    }

    /// What a leaf that [`search`](Self::search) found holds.
    pub fn view_leaf<'l>(&self, leaf: &'l Leaf) -> Result<BtreeBlock<'l>> {
        self.view(&leaf.buffer)
    }

    fn root_of(&self, fork: &'a [u8]) -> Result<BtreeBlock<'a>> {
        let root = BtreeBlock::decode_root(fork, self.kind);
        root.map_err(|rule| self.corrupt_root(rule).into())
    }

    fn check_root_leaf(&self, root: &BtreeBlock<'_>) -> Result<()> {
        root.check_records()
            .map_err(|rule| self.corrupt_root(rule).into())
    }

    fn corrupt_root(&self, rule: BtreeRule) -> Corrupt<BtreeRule> {
        Corrupt::new(Locus::inode(self.owner), rule)
    }

    fn check_leaf(
        &self,
        leaf: &BtreeBlock<'_>,
        may_be_empty: bool,
        last: &mut Option<RecordKey>,
    ) -> Result<()> {
        let Some(first) = leaf.record_key(0) else {
            return if may_be_empty {
                Ok(())
            } else {
                Err(self.corrupt(BtreeRule::Records))
            };
        };
        if last.is_some_and(|last| !last.precedes(&first)) {
            return Err(self.corrupt(BtreeRule::Order));
        }
        *last = leaf.record_key(leaf.count.saturating_sub(1));
        Ok(())
    }

    fn child(&self, parent: &BtreeBlock<'_>, index: usize) -> Result<Node> {
        let child = parent
            .child(index, self.context.geometry(), self.owner)
            .map_err(|rule| self.corrupt(rule))?;
        self.node(child, parent.level.saturating_sub(1))
    }

    /// The block, which has to be on this level.
    fn node(&self, block: FsBlock, level: u16) -> Result<Node> {
        let kind = BlockKind::Btree(self.kind);
        let verifier = BlockVerifier::new(self.context.geometry(), kind, self.owner);
        let buffer = self.context.read_block(block, &verifier)?;
        let found = self.view(&buffer)?.level;
        if found != level {
            let at = self.context.geometry().basic_block(block);
            let locus = self.context.geometry().locus(at);
            return Err(Corrupt::new(locus, BtreeRule::Level).into());
        }
        Ok(Node { buffer, next: 0 })
    }

    fn view<'b>(&self, bytes: &'b [u8]) -> Result<BtreeBlock<'b>> {
        let site = Site::verified(self.context.geometry(), self.owner);
        BtreeBlock::decode(bytes, self.kind, &site).map_err(|rule| self.corrupt(rule))
    }

    fn corrupt(&self, rule: BtreeRule) -> platter_vfs::Error {
        let locus = if self.kind.is_long() {
            Locus::inode(self.owner)
        } else {
            Locus::group(self.owner)
        };
        Corrupt::new(locus, rule).into()
    }
}

/// A block on the way down, and its next child.
#[derive(Debug)]
struct Node {
    buffer: Buffer,
    next: usize,
}

/// The child that may hold records with this key; the first key after it goes to `next_key`.
fn pick(block: &BtreeBlock<'_>, key: u64, next_key: &mut Option<u64>) -> Option<usize> {
    let (mut low, mut high) = (0, block.count);
    while low < high {
        let middle = low.midpoint(high);
        if key_at(block, middle)? <= key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if low < block.count {
        *next_key = key_at(block, low);
    }
    low.checked_sub(1)
}

/// The first number of the key with this index.
fn key_at(block: &BtreeBlock<'_>, index: usize) -> Option<u64> {
    match block.kind {
        BtreeKind::Bmap => block.keys::<Be64>().get(index).map(|key| key.get()),
        BtreeKind::Inobt | BtreeKind::Finobt | BtreeKind::Refcount | BtreeKind::RtRefcount => {
            block.keys::<Be32>().get(index).map(|key| key.get().into())
        }
        BtreeKind::Bno => {
            let keys = block.keys::<crate::ondisk::btree::DiskFreeExtent>();
            keys.get(index).map(|key| key.start.get().into())
        }
        BtreeKind::Cnt | BtreeKind::Rmap | BtreeKind::RtRmap => None,
    }
}
