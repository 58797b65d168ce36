//! References that do not cancel: a second walk lists those of the extents in question.

use std::collections::{BTreeMap, HashSet};

use platter_ondisk::Locus;
use platter_vfs::Result;
use platter_vfs::check::Checking as _;

use super::extents::Claim;
use super::leaves::data_claims;
use super::walked::{Block, Walked};
use super::{Checker, ExtentUseRule, Flow};
use crate::ondisk::extent_item::{ExtentItem, ExtentRef};
use crate::ondisk::key::ItemKind;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use crate::tree::Tree;

/// Extents whose references are listed; of others it is only reported that they differ.
const LISTED_MAX: usize = 4096;
/// References that are kept in all.
const REFERENCES_MAX: usize = 1 << 20;

/// How often each reference is stored, and how often it was found.
type Counts = BTreeMap<(u64, ExtentRef), (u64, u64)>;

/// The second walk.
struct Search<'c, 'a> {
    checker: &'c Checker<'a>,
    wanted: HashSet<u64>,
    visited: HashSet<LogicalAddr>,
    counts: Counts,
}

/// Reports how the references of these extents differ.
pub(super) fn report(checker: &mut Checker<'_>, starts: &[u64]) -> Flow {
    let listed = starts.get(..LISTED_MAX).unwrap_or(starts);
    let mut search = Search {
        checker,
        wanted: listed.iter().copied().collect(),
        visited: HashSet::new(),
        counts: Counts::new(),
    };
    // What cannot be read was reported.
    for start in listed {
        let _ = search.list_stored(*start);
    }
    search.walk_all();
    let counts = search.counts;
    let mut explained: HashSet<u64> = HashSet::new();
    for ((start, reference), (stored, found)) in counts {
        if stored == found {
            continue;
        }
        explained.insert(start);
        let rule = match (stored, found) {
            (0, _) => ExtentUseRule::NotStored,
            (_, 0) => ExtentUseRule::NotFound,
            _ => ExtentUseRule::LocalCount,
        };
        checker.found(locus_of(start, reference), rule)?;
    }
    for start in starts.iter().filter(|start| !explained.contains(start)) {
        let locus = Locus::tree(TreeId::EXTENT.0).at_block(*start);
        checker.found(locus, ExtentUseRule::Mismatch)?;
    }
    Ok(())
}

impl Search<'_, '_> {
    fn count(&mut self, start: u64, reference: ExtentRef) -> Option<&mut (u64, u64)> {
        let key = (start, without_count(reference));
        if self.counts.len() >= REFERENCES_MAX && !self.counts.contains_key(&key) {
            return None;
        }
        Some(self.counts.entry(key).or_default())
    }

    /// Lists the references that the extent tree has of an extent.
    fn list_stored(&mut self, start: u64) -> Result<()> {
        let context = self.checker.context;
        let tree = context.required_tree(TreeId::EXTENT)?;
        let mut cursor = context.cursor(tree);
        cursor.seek(Key::new(start, ItemKind(0), 0))?;
        while let Some((key, data)) = cursor.item().filter(|(key, _)| key.object == start) {
            let locus = tree.locus(key);
            let references = match key.kind {
                ItemKind::EXTENT_ITEM | ItemKind::METADATA_ITEM => {
                    ExtentItem::decode(key, data, locus)?.inline
                }
                ItemKind::TREE_BLOCK_REF
                | ItemKind::SHARED_BLOCK_REF
                | ItemKind::EXTENT_DATA_REF
                | ItemKind::SHARED_DATA_REF => vec![ExtentRef::decode_keyed(key, data, locus)?],
                ItemKind(_) => Vec::new(),
            };
            for reference in references {
                if reference.count() > 0
                    && let Some((stored, _)) = self.count(start, reference)
                {
                    *stored += reference.count();
                }
            }
            cursor.step()?;
        }
        Ok(())
    }

    fn walk_all(&mut self) {
        let context = self.checker.context;
        let mut walks = vec![
            Walked::new(context.chunk_tree()),
            Walked::new(context.root_tree()),
        ];
        walks.extend(self.checker.roots.walks());
        for walked in walks {
            let Tree { id, root } = walked.tree;
            let expected = Expected {
                level: Some(root.level),
                generation: Some(root.generation),
                tree: Some(id),
                ..Expected::default()
            };
            let own = if id == TreeId::TREE_RELOC {
                let parent = root.logical;
                ExtentRef::SharedBlock { parent }
            } else {
                ExtentRef::TreeBlock { tree: id }
            };
            self.walk(&walked, root.logical, &expected, None, own);
        }
    }

    /// Walks a block and what is below it; levels descend.
    fn walk(
        &mut self,
        walked: &Walked,
        logical: LogicalAddr,
        expected: &Expected,
        parent: Option<LogicalAddr>,
        own: ExtentRef,
    ) {
        self.take(&Claim {
            extent: logical,
            len_bytes: 0,
            level: Some(expected.level.unwrap_or_default()),
            parent,
            own,
            tree: walked.id(),
        });
        if !self.visited.insert(logical) {
            return;
        }
        let checker = self.checker;
        let Ok(read) = checker.context.blocks.read(logical, expected) else {
            return;
        };
        let Some(header) = read.header() else {
            return;
        };
        if header.level == 0 {
            let has_data =
                walked.has_files() || matches!(walked.id(), TreeId::ROOT | TreeId::TREE_RELOC);
            if has_data {
                let block = Block {
                    logical,
                    header,
                    bytes: read.bytes(),
                };
                let items: Vec<_> = read.leaf().iter().collect();
                let sector = checker.format.sector_bytes;
                for claim in data_claims(walked, &block, &items, sector) {
                    self.take(&claim);
                }
            }
            return;
        }
        let node = read.node();
        let dropped = walked.dropped.filter(|(_, lowest)| header.level >= *lowest);
        let first = dropped.map_or(0, |(key, _)| node.index_for(key));
        for index in first..node.len() {
            let Some(pointer) = node.pointer(index) else {
                return;
            };
            let mut below = *walked;
            if index > first {
                below.dropped = None;
            }
            let next = node.pointer(index + 1).map(|next| next.key);
            let expected = Expected {
                level: header.level.checked_sub(1),
                generation: Some(pointer.generation),
                tree: Some(walked.id()),
                first_key: Some(pointer.key),
                end_key: next.or(expected.end_key),
            };
            let tree = header.owner;
            let own = ExtentRef::TreeBlock { tree };
            self.walk(&below, pointer.logical, &expected, Some(logical), own);
        }
    }

    fn take(&mut self, claim: &Claim) {
        if !self.wanted.contains(&claim.extent.0) {
            return;
        }
        let reference = self.checker.extents.reference(claim);
        if let Some((_, found)) = self.count(claim.extent.0, reference) {
            *found += 1;
        }
    }
}

fn without_count(reference: ExtentRef) -> ExtentRef {
    match reference {
        ExtentRef::Data {
            tree,
            inode,
            offset,
            count: _,
        } => ExtentRef::Data {
            tree,
            inode,
            offset,
            count: 0,
        },
        ExtentRef::SharedData { parent, count: _ } => ExtentRef::SharedData { parent, count: 0 },
        ExtentRef::TreeBlock { .. } | ExtentRef::SharedBlock { .. } | ExtentRef::Owner { .. } => {
            reference
        }
    }
}

fn locus_of(start: u64, reference: ExtentRef) -> Locus {
    match reference {
        ExtentRef::TreeBlock { tree } | ExtentRef::Owner { tree } => {
            Locus::tree(tree.0).at_block(start)
        }
        ExtentRef::Data { tree, inode, .. } => Locus::tree(tree.0).of_inode(inode).at_block(start),
        ExtentRef::SharedBlock { parent } | ExtentRef::SharedData { parent, .. } => {
            // The block that refers to it is all there is to say where.
            Locus::tree(TreeId::EXTENT.0)
                .at_block(start)
                .at_offset(parent.0)
        }
    }
}
