//! Whether extents are shared: by references of other files to the data, or by tree blocks that several
//! trees refer to.

use platter_vfs::Result;

use super::read::Reader;
use crate::context::FsContext;
use crate::items::ItemCursor;
use crate::ondisk::extent_item::{ExtentItem, ExtentRef};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::{Tree, TreeBlock};

/// The references of extents.
#[derive(Debug)]
pub struct Sharing<'c> {
    context: &'c FsContext,
    extents: Tree,
    cursor: ItemCursor<'c>,
    /// In the file's tree.
    own: ItemCursor<'c>,
    /// Blocks of earlier transactions may be shared with a snapshot.
    last_snapshot: Generation,
    reader: Reader,
}

impl<'c> Sharing<'c> {
    /// The references to what a file in `tree` refers to. `None` if references cannot be read, and that is ignored.
    pub fn new(context: &'c FsContext, tree: Tree, reader: Reader) -> Result<Option<Self>> {
        let extents = match context.required_tree(TreeId::EXTENT) {
            Err(_) if context.leniency.ignores_bad_roots => return Ok(None),
            tree => tree?,
        };
        let item = context.root_item(reader.tree)?;
        // The order in which writers lock them: the file's tree, then that of the extents.
        let own = context.cursor(tree);
        Ok(Some(Self {
            context,
            extents,
            cursor: context.cursor(extents),
            own,
            last_snapshot: item.map_or(Generation(0), |item| item.last_snapshot),
            reader,
        }))
    }

    /// Whether other files, or the file at another place, refer to the extent too, to which the file
    /// extent at `offset` refers.
    ///
    /// A file extent that was divided still has one reference, which counts its parts.
    pub fn is_shared(
        &mut self,
        logical: LogicalAddr,
        disk_bytes: u64,
        offset: u64,
    ) -> Result<bool> {
        let key = Key::new(logical.0, ItemKind::EXTENT_ITEM, disk_bytes);
        let refs = self.references(key)?;
        let is_foreign = |reference: &ExtentRef| match *reference {
            ExtentRef::Data { tree, inode, .. } => {
                (tree, inode) != (self.reader.tree, self.reader.inode)
            }
            ExtentRef::SharedData { .. }
            | ExtentRef::TreeBlock { .. }
            | ExtentRef::SharedBlock { .. }
            | ExtentRef::Owner { .. } => false,
        };
        if refs.len() > 1 || refs.iter().any(is_foreign) {
            return Ok(true);
        }
        if self.last_snapshot == Generation(0) {
            return Ok(false);
        }
        let key = Key::new(self.reader.inode, ItemKind::EXTENT_DATA, offset);
        self.own.seek(key)?;
        let path: Vec<TreeBlock> = self.own.path().cloned().collect();
        for block in &path {
            let is_old = block.generation() <= self.last_snapshot || block.is_relocated();
            if is_old && self.is_block_shared(block)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_block_shared(&mut self, block: &TreeBlock) -> Result<bool> {
        let logical = block.logical().0;
        let skinny = Key::new(logical, ItemKind::METADATA_ITEM, block.level().into());
        let mut refs = self.references(skinny)?;
        if refs.is_empty() {
            let node_bytes = self.context.superblock.node_bytes.into();
            refs = self.references(Key::new(logical, ItemKind::EXTENT_ITEM, node_bytes))?;
        }
        Ok(refs.len() > 1)
    }

    /// References of the extent with this item: at least the first two, or all; none if there is no such
    /// item.
    fn references(&mut self, key: Key) -> Result<Vec<ExtentRef>> {
        const ENOUGH: usize = 2;
        let mut refs = Vec::new();
        self.cursor.seek(key)?;
        let item = self.cursor.item().filter(|(found, _)| *found == key);
        let Some((key, data)) = item else {
            return Ok(refs);
        };
        let item = ExtentItem::decode(key, data, self.extents.locus(key))?;
        let owner = |it: &ExtentRef| matches!(it, ExtentRef::Owner { .. });
        refs.extend(item.inline.into_iter().filter(|it| !owner(it)));
        while refs.len() < ENOUGH {
            self.cursor.step()?;
            let Some((found, data)) = self.cursor.item() else {
                break;
            };
            if found.object != key.object || !is_reference(found.kind) {
                break;
            }
            let locus = self.extents.locus(found);
            let reference = ExtentRef::decode_keyed(found, data, locus)?;
            refs.extend(Some(reference).filter(|it| !owner(it)));
        }
        Ok(refs)
    }
}

/// Whether an item that follows an extent item is one of its references.
fn is_reference(kind: ItemKind) -> bool {
    matches!(
        kind,
        ItemKind::TREE_BLOCK_REF
            | ItemKind::SHARED_BLOCK_REF
            | ItemKind::EXTENT_DATA_REF
            | ItemKind::SHARED_DATA_REF
    )
}
