//! Leaves of attributes: one, or several below a hash tree.

use std::collections::HashSet;

use platter_cache::Buffer;
use platter_ondisk::Corrupt;
use platter_ondisk::verify::Unverified;
use platter_vfs::Result;

use super::{AttrSink, Attributes};
use crate::mapping::Backing;
use crate::ondisk::attr::leaf::AttrLeaf;
use crate::ondisk::da::{DaKind, DaNode, DaNodeRule};
use crate::ondisk::{BlockKind, BlockVerifier, FileBlock, FsBlock, Site};

impl Attributes<'_> {
    /// Passes the attributes whose names have this hash to `sink` until it breaks.
    pub(super) fn with_hash(&self, hash: u32, sink: &mut AttrSink<'_>) -> Result<()> {
        let Some(mut leaf) = self.leaf_for(Some(hash))? else {
            return Ok(());
        };
        let mut seen = HashSet::new();
        loop {
            let view = self.view(&leaf)?;
            for entry in view.matching(hash) {
                let attr = view.attr(entry);
                let attr = attr.map_err(|rule| Corrupt::new(self.locus(), rule))?;
                if sink(&attr)?.is_break() {
                    return Ok(());
                }
            }
            // Names of one hash may go on in the next leaf.
            let last = view.entries.last().map(|entry| entry.hash.get());
            let Some(next) = view.links.next.filter(|_| last == Some(hash)) else {
                return Ok(());
            };
            self.check_new(&mut seen, next)?;
            leaf = self.read(next, BlockKind::AttrLeaf)?;
        }
    }

    /// Passes the attributes of all leaves to `sink` until it breaks.
    pub(super) fn in_leaves(&self, sink: &mut AttrSink<'_>) -> Result<()> {
        let Some(mut leaf) = self.leaf_for(None)? else {
            return Ok(());
        };
        let mut seen = HashSet::new();
        loop {
            let view = self.view(&leaf)?;
            for entry in view.entries {
                let attr = view.attr(entry);
                let attr = attr.map_err(|rule| Corrupt::new(self.locus(), rule))?;
                if sink(&attr)?.is_break() {
                    return Ok(());
                }
            }
            let Some(next) = view.links.next else {
                return Ok(());
            };
            self.check_new(&mut seen, next)?;
            leaf = self.read(next, BlockKind::AttrLeaf)?;
        }
    }

    /// The first leaf that may hold `hash`, or the first of all; `None` if all hashes are smaller.
    fn leaf_for(&self, hash: Option<u32>) -> Result<Option<Buffer>> {
        let mut block = 0;
        let mut above: Option<u16> = None;
        loop {
            let kind = self.kind_of(block)?;
            match kind {
                DaKind::AttrLeaf if above.is_none_or(|above| above == 1) => {
                    return Ok(Some(self.read(block, BlockKind::AttrLeaf)?));
                }
                DaKind::Node => {}
                DaKind::AttrLeaf | DaKind::DirLeaf1 | DaKind::DirLeafN => {
                    return Err(self.corrupt(DaNodeRule::Level));
                }
            }
            let buffer = self.read(block, BlockKind::DaNode)?;
            let site = Site::verified(self.context.geometry(), self.inode.number.get());
            let node = DaNode::decode(&buffer, &site).map_err(|rule| self.corrupt(rule))?;
            if above.is_some_and(|above| node.level + 1 != above) {
                return Err(self.corrupt(DaNodeRule::Level));
            }
            above = Some(node.level);
            let child = match hash {
                Some(hash) => node.child(hash),
                None => node.entries.first().map(|entry| entry.child.get()),
            };
            let Some(child) = child else {
                return Ok(None);
            };
            block = child;
        }
    }

    pub(crate) fn kind_of(&self, block: u32) -> Result<DaKind> {
        let block = self.locate(block)?;
        let bytes = self.context.read_block(block, &Unverified)?;
        let kind = DaKind::of(&bytes, self.context.geometry().features.is_v5());
        kind.ok_or_else(|| self.corrupt(DaNodeRule::Kind))
    }

    pub(crate) fn read(&self, block: u32, kind: BlockKind) -> Result<Buffer> {
        let owner = self.inode.number.get();
        let verifier = BlockVerifier::new(self.context.geometry(), kind, owner);
        self.context.read_block(self.locate(block)?, &verifier)
    }

    fn locate(&self, block: u32) -> Result<FsBlock> {
        match self
            .map
            .lookup(self.context, FileBlock(block.into()))?
            .backing
        {
            Backing::Written(start) => Ok(FsBlock(start)),
            Backing::Hole | Backing::Unwritten(_) => Err(self.corrupt(DaNodeRule::Missing)),
        }
    }

    pub(crate) fn view<'b>(&self, leaf: &'b Buffer) -> Result<AttrLeaf<'b>> {
        let site = Site::verified(self.context.geometry(), self.inode.number.get());
        let view = AttrLeaf::decode(leaf, &site);
        Ok(view.map_err(|rule| Corrupt::new(self.locus(), rule))?)
    }

    pub(super) fn check_new(&self, seen: &mut HashSet<u32>, block: u32) -> Result<()> {
        if seen.insert(block) {
            return Ok(());
        }
        Err(self.corrupt(DaNodeRule::Cycle))
    }

    fn corrupt(&self, rule: DaNodeRule) -> platter_vfs::Error {
        Corrupt::new(self.locus(), rule).into()
    }
}
