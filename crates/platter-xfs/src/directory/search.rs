//! A name looked up by its hash.

use std::collections::HashSet;

use platter_ondisk::Corrupt;
use platter_vfs::Result;

use super::{Directory, DirectoryRule, Found};
use crate::context::Block;
use crate::ondisk::da::{DaKind, DaNode, DaNodeRule};
use crate::ondisk::dir;
use crate::ondisk::dir::data::{DataKind, DirData};
use crate::ondisk::dir::leaf::{self, DiskLeafEntry};
use crate::ondisk::{BlockKind, FileBlock};

/// What was found so far: where case does not count, the same bytes are preferred.
#[derive(Debug, Default)]
struct Best {
    exact: Option<Found>,
    folded: Option<Found>,
}

impl Directory<'_> {
    pub(super) fn find_in_block(&self, name: &[u8]) -> Result<Option<Found>> {
        let block = self.data_block(0, DataKind::Single)?;
        let block = block.ok_or_else(|| self.corrupt(DirectoryRule::Missing))?;
        let data = self.view_data(&block, DataKind::Single)?;
        let mut best = Best::default();
        for pointer in leaf::matching(data.leaves, self.hash(name)) {
            let (number, offset) = pointer.split(self.context.geometry());
            if number != 0 {
                return Err(self.corrupt(DirectoryRule::Missing));
            }
            self.compare(&data, offset, name, &mut best)?;
        }
        Ok(best.exact.or(best.folded))
    }

    pub(super) fn find_in_leaf(&self, name: &[u8]) -> Result<Option<Found>> {
        let first = dir::leaf_start(self.context.geometry());
        let block = self.read_as(first, BlockKind::DirLeaf(DaKind::DirLeaf1))?;
        let block = block.ok_or_else(|| self.corrupt(DirectoryRule::Form))?;
        let leaf = self.view_leaf(&block, DaKind::DirLeaf1)?;
        let mut best = Best::default();
        self.find_among(leaf.entries, name, &mut best)?;
        Ok(best.exact.or(best.folded))
    }

    pub(super) fn find_in_tree(&self, name: &[u8]) -> Result<Option<Found>> {
        let hash = self.hash(name);
        let Some(mut block) = self.leaf_for(hash)? else {
            return Ok(None);
        };
        let mut best = Best::default();
        let mut seen = HashSet::new();
        loop {
            let leaf = self.view_leaf(&block, DaKind::DirLeafN)?;
            self.find_among(leaf.entries, name, &mut best)?;
            // Names of one hash may go on in the next leaf.
            let last = leaf.entries.last().map(|entry| entry.hash.get());
            let Some(next) = leaf.links.next.filter(|_| last == Some(hash)) else {
                break;
            };
            if best.exact.is_some() {
                break;
            }
            if !seen.insert(next) {
                return Err(self.corrupt_tree(DaNodeRule::Cycle));
            }
            block = self.tree_block(next.into(), BlockKind::DirLeaf(DaKind::DirLeafN))?;
        }
        Ok(best.exact.or(best.folded))
    }

    /// The first leaf that may hold `hash`; `None` if all hashes are smaller.
    fn leaf_for(&self, hash: u32) -> Result<Option<Block>> {
        let mut at = dir::leaf_start(self.context.geometry()).0;
        let mut above: Option<u16> = None;
        loop {
            let kind = self.kind_of(FileBlock(at))?;
            match kind {
                Some(DaKind::DirLeafN) if above.is_none_or(|above| above == 1) => {
                    let kind = BlockKind::DirLeaf(DaKind::DirLeafN);
                    return Ok(Some(self.tree_block(at, kind)?));
                }
                Some(DaKind::Node) => {}
                Some(_) => return Err(self.corrupt_tree(DaNodeRule::Level)),
                None => return Err(self.corrupt_tree(DaNodeRule::Kind)),
            }
            let block = self.tree_block(at, BlockKind::DaNode)?;
            let node = DaNode::decode(&block, &self.verified());
            let node = node.map_err(|rule| self.corrupt_tree(rule))?;
            if above.is_some_and(|above| node.level + 1 != above) {
                return Err(self.corrupt_tree(DaNodeRule::Level));
            }
            above = Some(node.level);
            let Some(child) = node.child(hash) else {
                return Ok(None);
            };
            at = child.into();
        }
    }

    fn tree_block(&self, at: u64, kind: BlockKind) -> Result<Block> {
        let block = self.read_as(FileBlock(at), kind)?;
        block.ok_or_else(|| self.corrupt_tree(DaNodeRule::Missing))
    }

    fn find_among(&self, entries: &[DiskLeafEntry], name: &[u8], best: &mut Best) -> Result<()> {
        for pointer in leaf::matching(entries, self.hash(name)) {
            let (number, offset) = pointer.split(self.context.geometry());
            let block = self.data_block(number, DataKind::Data)?;
            let block = block.ok_or_else(|| self.corrupt(DirectoryRule::Missing))?;
            let data = self.view_data(&block, DataKind::Data)?;
            self.compare(&data, offset, name, best)?;
            if best.exact.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Compares the entry at byte `offset` of a block with a name of the same hash.
    fn compare(
        &self,
        data: &DirData<'_>,
        offset: usize,
        name: &[u8],
        best: &mut Best,
    ) -> Result<()> {
        let entry = data.entry_at(offset, self.context.geometry());
        let entry = entry.map_err(|rule| Corrupt::new(self.locus(), rule))?;
        let found = Found {
            inode: entry.inode,
            kind: entry.kind,
        };
        if entry.name == name {
            best.exact.get_or_insert(found);
        } else if self.is_same(entry.name, name) {
            best.folded.get_or_insert(found);
        }
        Ok(())
    }

    fn corrupt_tree(&self, rule: DaNodeRule) -> platter_vfs::Error {
        Corrupt::new(self.locus(), rule).into()
    }
}
