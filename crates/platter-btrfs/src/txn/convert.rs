//! Changes of the form of a filesystem: the block group tree.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result, Unsupported};
use zerocopy::IntoBytes;

use super::{Cow, WriteContext};
use crate::context::TreesRule;
use crate::ondisk::features::{CompatRo, Incompat};
use crate::ondisk::header::{Header, HeaderFlags};
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::QgroupLimit;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, TreeId, leaf};
use crate::tree::Tree;
use crate::tree::edit::{CopyOnWrite, TreeState};

impl WriteContext {
    /// Moves the items of block groups to a tree of their own, in one transaction.
    ///
    /// # Errors
    /// `Unsupported` without the features that the kernel asks for.
    pub fn convert_to_block_group_tree(&mut self) -> Result<()> {
        let features = *self.features.lock();
        let has_all = features.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
            && features.incompat.contains(Incompat::NO_HOLES);
        if !has_all {
            let unsupported = Unsupported {
                filesystem: "btrfs",
                feature: "a block group tree without free-space-tree and no-holes".to_owned(),
                reason: None,
            };
            return Err(unsupported.into());
        }
        if features.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            return Ok(());
        }
        let handle = self.begin(64)?;
        let generation = handle.generation();
        let moved = self.move_group_items(generation);
        // Before the handle ends, as in `prepare`.
        let moved = moved.inspect_err(|error| self.abort(error));
        drop(handle);
        moved?;
        self.sync()
    }

    fn move_group_items(&self, generation: Generation) -> Result<()> {
        self.create_tree(generation, TreeId::BLOCK_GROUP)?;
        for group in self.groups.iter() {
            let (start, len_bytes) = (group.start().0, group.len_bytes());
            let key = Key::new(start, ItemKind::BLOCK_GROUP_ITEM, len_bytes);
            let item = self.edit(generation, TreeId::EXTENT, |editor| {
                let item = editor.get(key)?;
                editor.remove(key)?;
                Ok(item)
            })?;
            let missing = || Corrupt::new(Locus::tree(TreeId::EXTENT.0), TreesRule::MissingTree);
            let item = item.ok_or_else(missing)?;
            self.edit(generation, TreeId::BLOCK_GROUP, |editor| {
                editor.insert(key, &item)
            })?;
        }
        self.features.lock().compat_ro |= CompatRo::BLOCK_GROUP_TREE;
        Ok(())
    }

    /// Creates an empty tree.
    fn create_tree(&self, generation: Generation, id: TreeId) -> Result<()> {
        let root = self.create_root(generation, id)?;
        let item = RootItem::of_new_tree(root, self.node_bytes());
        let key = Key::new(id.0, ItemKind::ROOT_ITEM, 0);
        self.edit(generation, TreeId::ROOT, |editor| {
            editor.insert(key, item.encode(None).as_bytes())
        })
    }

    /// Creates the root of an empty tree.
    pub(super) fn create_root(&self, generation: Generation, id: TreeId) -> Result<RootPointer> {
        let mut root = RootPointer {
            generation,
            ..RootPointer::default()
        };
        let state = TreeState {
            tree: Tree { id, root },
            last_snapshot: Generation(0),
            is_shareable: id.is_subvolume(),
            used_bytes: self.node_bytes(),
        };
        let near = self.context.superblock.root.logical;
        let cow = Cow::new(self, generation);
        root.logical = cow.allocate(&state, 0, Key::MIN, near)?;
        let mut bytes = vec![0; self.blocks().format().node_bytes as usize].into_boxed_slice();
        let header = self.new_header(generation, id, root)?;
        leaf::encode(&mut bytes, &header, []);
        self.blocks().create(root.logical, bytes)?;
        if let Some(quotas) = &self.quotas {
            quotas.create(id, QgroupLimit::default());
        }
        Ok(root)
    }

    /// The header of the first block of a tree, with what all blocks have in common.
    pub(super) fn new_header(
        &self,
        generation: Generation,
        owner: TreeId,
        root: RootPointer,
    ) -> Result<Header> {
        let other = self.tree(TreeId::CHUNK)?.view().now.tree.root.logical;
        let other = self.blocks().read(other, &Expected::default())?;
        let missing = || Error::from(Corrupt::new(Locus::tree(owner.0), TreesRule::MissingTree));
        let other = other.header().ok_or_else(missing)?;
        Ok(Header {
            logical: root.logical,
            flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF,
            generation,
            owner,
            item_count: 0,
            level: root.level,
            ..other
        })
    }
}
