//! Extents as the extent tree has them, some at a time.

use std::ops::Range;

use platter_vfs::Result;

use super::FsContext;
use crate::ondisk::extent_item::{ExtentItem, ExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};

/// Extents that are listed at once, while the tree is kept as it is.
const LISTED_MAX: usize = 256;

/// An extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedExtent {
    /// Its address.
    pub start: LogicalAddr,
    /// Its length.
    pub len_bytes: u64,
    /// Whether it is a tree block.
    pub is_tree_block: bool,
    /// The transaction that allocated it.
    pub generation: Generation,
}

impl ListedExtent {
    /// Whether a part of a range is in an extent.
    ///
    /// # Errors
    /// Those of the extent tree.
    pub fn is_any_in(context: &FsContext, range: &Range<u64>) -> Result<bool> {
        // Of extents that begin before the range, the last one may reach into it.
        let tree = context.required_tree(TreeId::EXTENT)?;
        let mut cursor = context.cursor(tree);
        cursor.seek_at_or_before(Key::new(range.start, ItemKind(u8::MAX), u64::MAX))?;
        let before = cursor.key().map(|key| key.object);
        drop(cursor);
        let mut left = before.unwrap_or_default().min(range.start)..range.end;
        loop {
            let extents = Self::next_of(context, &mut left)?;
            if extents.is_empty() {
                return Ok(false);
            }
            let ends = |it: &Self| it.start.0.saturating_add(it.len_bytes);
            if extents.iter().any(|it| ends(it) > range.start) {
                return Ok(true);
            }
        }
    }

    /// The next extents that begin in a range, in order of address: all that are left if there are none. The range
    /// begins after them then.
    ///
    /// # Errors
    /// Those of the extent tree.
    pub fn next_of(context: &FsContext, range: &mut Range<u64>) -> Result<Vec<Self>> {
        let tree = context.required_tree(TreeId::EXTENT)?;
        let mut cursor = context.cursor(tree);
        cursor.seek(Key::new(range.start, ItemKind(0), 0))?;
        let mut found = Vec::new();
        while let Some((key, data)) = cursor.item()
            && key.object < range.end
            && found.len() < LISTED_MAX
        {
            let len_bytes = match key.kind {
                ItemKind::METADATA_ITEM => context.superblock.node_bytes.into(),
                ItemKind::EXTENT_ITEM => key.offset,
                ItemKind(_) => 0,
            };
            if len_bytes > 0 {
                let item = ExtentItem::decode(key, data, tree.locus(key))?;
                found.push(Self {
                    start: LogicalAddr(key.object),
                    len_bytes,
                    is_tree_block: matches!(item.kind, ExtentKind::TreeBlock { .. }),
                    generation: item.generation,
                });
            }
            range.start = key.object.saturating_add(1);
            cursor.step()?;
        }
        Ok(found)
    }
}
