//! Items of the extent tree: references that are added and dropped, inline and in items of their own.

use platter_ondisk::{Corrupt, rules};
use platter_vfs::Result;

use super::{Editor, WriteContext};
use crate::delayed_refs::{ExtentKind, ExtentOp, RefKey};
use crate::ondisk::checksum::extent_data_ref_hash;
use crate::ondisk::extent_item::{ExtentFlags, ExtentItem, ExtentKind as ItemExtent, ExtentRef};
use crate::ondisk::features::Incompat;
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::ITEM_BYTES;
use crate::ondisk::leaf_edit;
use crate::ondisk::{Generation, Key, LogicalAddr};
use crate::tree::{Cursor, Tree};

rules! {
    /// The rules of the extent tree that is changed.
    pub(super) enum ExtentTreeRule of "extent tree" {
        /// An extent whose references change has an item.
        NoItem => "unable to find the item of an extent",
        /// A reference that is dropped is there.
        NoRef => "unable to find a reference that is dropped",
        /// A tree block is referred to once by each tree or parent.
        Twice => "tree block is referred to twice by the same tree or parent",
        /// Counts do not overflow.
        Count => "reference count overflows",
        /// An extent that is not referred to has no references.
        Left => "references are left of an extent whose count is zero",
    }
}

/// An extent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) address: LogicalAddr,
    pub(super) len_bytes: u64,
    pub(super) kind: ExtentKind,
}

/// How far from the key of its hash a reference is looked for that may not be there, and from that of each other
/// reference on the way: so many in a row had to have been removed.
const COLLISIONS_MAX: u64 = 256;

impl Extent {
    /// The keys that its item may have.
    fn keys(&self) -> [Key; 2] {
        let whole = Key::new(self.address.0, ItemKind::EXTENT_ITEM, self.len_bytes);
        match self.kind {
            ExtentKind::Data => [whole, whole],
            ExtentKind::TreeBlock { level, .. } => {
                let skinny = Key::new(self.address.0, ItemKind::METADATA_ITEM, level.into());
                [skinny, whole]
            }
        }
    }

    /// The key of the item of a data extent.
    pub(super) fn item_key(&self) -> Key {
        self.keys()[1]
    }

    fn find(&self, editor: &Editor<'_, '_>) -> Result<(Key, ExtentItem)> {
        for key in self.keys() {
            if let Some(data) = editor.get(key)? {
                let item = ExtentItem::decode(key, &data, editor.tree().locus(key))?;
                return Ok((key, item));
            }
        }
        Err(self.broken(editor, ExtentTreeRule::NoItem))
    }

    fn broken(&self, editor: &Editor<'_, '_>, rule: ExtentTreeRule) -> platter_vfs::Error {
        let [key, _] = self.keys();
        Corrupt::new(editor.tree().locus(key), rule).into()
    }

    /// The key of a reference in an item of its own. Those of data may be at a later one.
    pub(super) fn ref_key(&self, reference: RefKey) -> Key {
        let at = self.address.0;
        match reference {
            RefKey::TreeBlock { tree } => Key::new(at, ItemKind::TREE_BLOCK_REF, tree.0),
            RefKey::SharedBlock { parent } => Key::new(at, ItemKind::SHARED_BLOCK_REF, parent.0),
            RefKey::SharedData { parent } => Key::new(at, ItemKind::SHARED_DATA_REF, parent.0),
            RefKey::Data {
                tree,
                inode,
                offset,
            } => {
                let hash = extent_data_ref_hash(tree.0, inode, offset);
                Key::new(at, ItemKind::EXTENT_DATA_REF, hash)
            }
        }
    }

    /// The item of a reference and its count. It is at the key of its hash or after it, where others may have
    /// been removed in between: at most `reach` keys without an item in a row.
    fn find_keyed(
        &self,
        editor: &Editor<'_, '_>,
        reference: RefKey,
        reach: u64,
    ) -> Result<Option<(Key, ExtentRef)>> {
        let first = self.ref_key(reference);
        let is_data = first.kind == ItemKind::EXTENT_DATA_REF;
        let reach = if is_data { reach } else { 0 };
        let mut last = first.offset.saturating_add(reach);
        let mut cursor = editor.cursor();
        cursor.seek(first)?;
        while let Some((key, data)) = cursor.item()
            && (key.object, key.kind) == (first.object, first.kind)
            && key.offset <= last
        {
            let found = ExtentRef::decode_keyed(key, data, editor.tree().locus(key))?;
            if identity(found) == Some(reference) {
                return Ok(Some((key, found)));
            }
            last = key.offset.saturating_add(reach);
            cursor.step()?;
        }
        Ok(None)
    }

    /// The first key that no reference has, from that of the hash on.
    fn vacant_key(&self, editor: &Editor<'_, '_>, reference: RefKey) -> Result<Key> {
        let mut key = self.ref_key(reference);
        while editor.get(key)?.is_some() {
            let next = key.offset.checked_add(1);
            key.offset = next.ok_or_else(|| self.broken(editor, ExtentTreeRule::NoRef))?;
        }
        Ok(key)
    }

    /// Whether references of the extent have items of their own, which follow its item.
    fn has_keyed(&self, editor: &Editor<'_, '_>, item_key: Key) -> Result<bool> {
        let Some(after) = item_key.successor() else {
            return Ok(false);
        };
        let next = editor.at_or_after(after)?;
        Ok(next.is_some_and(|(key, _)| {
            key.object == self.address.0
                && key.kind > ItemKind::METADATA_ITEM
                && key.kind < ItemKind::BLOCK_GROUP_ITEM
        }))
    }

    /// Inserts the item of an extent that was allocated.
    pub(super) fn insert(
        &self,
        editor: &mut Editor<'_, '_>,
        inline: Vec<ExtentRef>,
        op: ExtentOp,
        generation: Generation,
        is_skinny: bool,
    ) -> Result<()> {
        let [skinny_key, whole_key] = self.keys();
        let (key, kind, flags) = match self.kind {
            ExtentKind::Data => (whole_key, ItemExtent::Data, ExtentFlags::DATA),
            ExtentKind::TreeBlock { level, .. } => {
                let first_key = (!is_skinny).then(|| op.key.unwrap_or(Key::MIN));
                let key = if is_skinny { skinny_key } else { whole_key };
                let kind = ItemExtent::TreeBlock { level, first_key };
                (key, kind, ExtentFlags::TREE_BLOCK | op.flags)
            }
        };
        let item = ExtentItem {
            refs: inline.iter().map(|reference| reference.count()).sum(),
            generation,
            flags,
            kind,
            inline,
        };
        editor.insert(key, &item.encode())
    }

    /// Adds a reference.
    pub(super) fn add(
        &self,
        editor: &mut Editor<'_, '_>,
        reference: RefKey,
        count: u32,
        op: Option<ExtentOp>,
        node_bytes: u32,
    ) -> Result<()> {
        let (key, mut item) = self.find(editor)?;
        let refs = item.refs.checked_add(count.into());
        item.refs = refs.ok_or_else(|| self.broken(editor, ExtentTreeRule::Count))?;
        apply(&mut item, op);
        let inline = item
            .inline
            .iter()
            .position(|it| identity(*it) == Some(reference));
        if let Some(index) = inline {
            let old = item.inline.get(index).copied();
            let sum = self.sum(editor, old, count)?;
            if let Some(place) = item.inline.get_mut(index) {
                *place = reference.counted(sum);
            }
            return editor.set(key, &item.encode());
        }
        if !self.has_keyed(editor, key)? {
            let new = reference.counted(count);
            let at = item.inline.partition_point(|it| order(*it) < order(new));
            item.inline.insert(at, new);
            let bytes = item.encode();
            if bytes.len() < inline_max(node_bytes) {
                return editor.set(key, &bytes);
            }
            item.inline.remove(at);
        }
        editor.set(key, &item.encode())?;
        let found = self.find_keyed(editor, reference, COLLISIONS_MAX)?;
        let sum = self.sum(editor, found.map(|(_, old)| old), count)?;
        let ref_key = match found {
            Some((key, _)) => key,
            None => self.vacant_key(editor, reference)?,
        };
        editor.set(ref_key, &reference.counted(sum).encode_keyed())
    }

    /// The count of a reference with `count` more.
    fn sum(&self, editor: &Editor<'_, '_>, old: Option<ExtentRef>, count: u32) -> Result<u32> {
        match old {
            None => Ok(count),
            Some(ExtentRef::Data { count: old, .. } | ExtentRef::SharedData { count: old, .. }) => {
                old.checked_add(count)
                    .ok_or_else(|| self.broken(editor, ExtentTreeRule::Count))
            }
            Some(_) => Err(self.broken(editor, ExtentTreeRule::Twice)),
        }
    }

    /// Drops a reference. Returns the item if it was the last, so that it is gone.
    pub(super) fn drop_ref(
        &self,
        editor: &mut Editor<'_, '_>,
        reference: RefKey,
        count: u32,
        op: Option<ExtentOp>,
    ) -> Result<Option<ExtentItem>> {
        let (key, mut item) = self.find(editor)?;
        let refs = item.refs.checked_sub(count.into());
        item.refs = refs.ok_or_else(|| self.broken(editor, ExtentTreeRule::NoRef))?;
        apply(&mut item, op);
        let inline = item
            .inline
            .iter()
            .position(|it| identity(*it) == Some(reference));
        if let Some(index) = inline {
            let left = item.inline[index].count().checked_sub(count.into());
            let left = left.and_then(|left| u32::try_from(left).ok());
            let left = left.ok_or_else(|| self.broken(editor, ExtentTreeRule::NoRef))?;
            if left == 0 {
                item.inline.remove(index);
            } else {
                item.inline[index] = reference.counted(left);
            }
        } else {
            self.drop_keyed(editor, reference, count)?;
        }
        if item.refs == 0 {
            let is_inline = item.inline.iter().any(|it| identity(*it).is_some());
            if is_inline || self.has_keyed(editor, key)? {
                return Err(self.broken(editor, ExtentTreeRule::Left));
            }
            editor.remove(key)?;
            return Ok(Some(item));
        }
        editor.set(key, &item.encode())?;
        Ok(None)
    }

    /// Drops a reference that has an item of its own, or several: one that was not found when it was added again
    /// got another one.
    fn drop_keyed(&self, editor: &mut Editor<'_, '_>, reference: RefKey, count: u32) -> Result<()> {
        let mut count = u64::from(count);
        loop {
            let found = self.find_keyed(editor, reference, u64::MAX)?;
            let missing = || self.broken(editor, ExtentTreeRule::NoRef);
            let (key, old) = found.ok_or_else(missing)?;
            match old.count().checked_sub(count) {
                None => {
                    count -= old.count();
                    editor.remove(key)?;
                }
                Some(0) => return editor.remove(key).map(drop),
                Some(left) => {
                    let left = u32::try_from(left).map_err(|_| missing())?;
                    return editor.set(key, &reference.counted(left).encode_keyed());
                }
            }
        }
    }

    /// Sets what is to be set in the item.
    pub(super) fn set(&self, editor: &mut Editor<'_, '_>, op: ExtentOp) -> Result<()> {
        let (key, mut item) = self.find(editor)?;
        apply(&mut item, Some(op));
        editor.set(key, &item.encode())
    }
}

fn apply(item: &mut ExtentItem, op: Option<ExtentOp>) {
    let Some(op) = op else { return };
    item.flags |= op.flags;
    if let ItemExtent::TreeBlock { first_key, .. } = &mut item.kind
        && first_key.is_some()
    {
        *first_key = op.key.or(*first_key);
    }
}

/// What refers; `None` for what is no reference.
fn identity(reference: ExtentRef) -> Option<RefKey> {
    match reference {
        ExtentRef::TreeBlock { tree } => Some(RefKey::TreeBlock { tree }),
        ExtentRef::SharedBlock { parent } => Some(RefKey::SharedBlock { parent }),
        ExtentRef::SharedData { parent, .. } => Some(RefKey::SharedData { parent }),
        ExtentRef::Data {
            tree,
            inode,
            offset,
            ..
        } => Some(RefKey::Data {
            tree,
            inode,
            offset,
        }),
        ExtentRef::Owner { .. } => None,
    }
}

/// The order of inline references: types ascend, and within a type what identifies a reference descends.
fn order(reference: ExtentRef) -> (ItemKind, std::cmp::Reverse<u64>) {
    let (kind, number) = match reference {
        ExtentRef::Owner { tree } => (ItemKind::EXTENT_OWNER_REF, tree.0),
        ExtentRef::TreeBlock { tree } => (ItemKind::TREE_BLOCK_REF, tree.0),
        ExtentRef::SharedBlock { parent } => (ItemKind::SHARED_BLOCK_REF, parent.0),
        ExtentRef::SharedData { parent, .. } => (ItemKind::SHARED_DATA_REF, parent.0),
        ExtentRef::Data {
            tree,
            inode,
            offset,
            ..
        } => {
            let hash = extent_data_ref_hash(tree.0, inode, offset);
            (ItemKind::EXTENT_DATA_REF, hash)
        }
    };
    (kind, std::cmp::Reverse(number))
}

/// The size that an extent item with inline references stays below.
fn inline_max(node_bytes: u32) -> usize {
    (leaf_edit::capacity(node_bytes) >> 4).saturating_sub(ITEM_BYTES)
}

/// The item of a tree block in a tree that is locked or of the last commit.
pub(super) fn find_tree_block(
    fs: &WriteContext,
    tree: &Tree,
    logical: LogicalAddr,
    level: u8,
) -> Result<Option<(Key, ExtentItem)>> {
    let extent = Extent {
        address: logical,
        len_bytes: fs.node_bytes(),
        kind: ExtentKind::TreeBlock {
            level,
            is_system: false,
        },
    };
    let mut cursor = Cursor::new(fs.blocks(), *tree);
    for key in extent.keys() {
        cursor.seek(key)?;
        if let Some((found, data)) = cursor.item()
            && found == key
        {
            let item = ExtentItem::decode(key, data, tree.locus(key))?;
            return Ok(Some((key, item)));
        }
    }
    Ok(None)
}

/// Whether a tree block has a reference in a tree that is locked or of the last commit.
pub(super) fn has_ref(
    fs: &WriteContext,
    tree: &Tree,
    (logical, level): (LogicalAddr, u8),
    reference: RefKey,
) -> Result<bool> {
    let Some((_, item)) = find_tree_block(fs, tree, logical, level)? else {
        return Ok(false);
    };
    if item
        .inline
        .iter()
        .any(|it| identity(*it) == Some(reference))
    {
        return Ok(true);
    }
    let extent = Extent {
        address: logical,
        len_bytes: fs.node_bytes(),
        kind: ExtentKind::TreeBlock {
            level,
            is_system: false,
        },
    };
    let key = extent.ref_key(reference);
    let mut cursor = Cursor::new(fs.blocks(), *tree);
    cursor.seek(key)?;
    Ok(cursor.key() == Some(key))
}

/// Whether items of tree blocks have the level in their keys.
pub(super) fn is_skinny(fs: &WriteContext) -> bool {
    fs.features().incompat.contains(Incompat::SKINNY_METADATA)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::TreeId;
    use crate::txn::WriteOptions;
    use crate::txn::tests::image::Pool;

    /// The difference of two offsets whose references have the same hash, as a polynomial; its multiples are others.
    const COLLIDING: u64 = 0x105e_c76f_1000;

    /// References of one inode that have the same hash.
    fn reference(number: u64) -> RefKey {
        let shifts = (0..64).filter(|bit| (number >> bit) & 1 == 1);
        RefKey::Data {
            tree: TreeId::FS,
            inode: 257,
            offset: shifts.fold(0, |offset, bit| offset ^ (COLLIDING << bit)),
        }
    }

    #[test]
    fn references_with_equal_hashes_are_found_and_dropped() {
        const COUNT: u64 = 400;
        let pool = Pool::make(1, 128, &["-m", "single"]);
        let fs = pool.open(WriteOptions::default());
        let extent = Extent {
            address: LogicalAddr(1 << 40),
            len_bytes: 4096,
            kind: ExtentKind::Data,
        };
        let first = extent.ref_key(reference(0));
        let handle = fs.begin(64).unwrap();
        let edited = handle.edit(TreeId::EXTENT, |editor| {
            let add = |editor: &mut Editor<'_, '_>, number| {
                extent.add(editor, reference(number), 1, None, 16384)
            };
            let drop = |editor: &mut Editor<'_, '_>, number, count| {
                extent.drop_ref(editor, reference(number), count, None)
            };
            let shared = RefKey::SharedData {
                parent: LogicalAddr(1 << 30),
            };
            let inline = vec![shared.counted(1)];
            extent.insert(editor, inline, ExtentOp::default(), Generation(1), true)?;
            for number in 0..COUNT {
                assert_eq!(extent.ref_key(reference(number)), first);
                add(editor, number)?;
            }
            // It is found at the end of all others.
            add(editor, COUNT - 1)?;
            let found = extent.find_keyed(editor, reference(COUNT - 1), u64::MAX)?;
            assert_eq!(found.unwrap().1.count(), 2);
            // It is not, where so many were removed: it gets a second item.
            for number in 1..COUNT - 1 {
                assert_eq!(drop(editor, number, 1)?, None);
            }
            add(editor, COUNT - 1)?;
            let found = extent.find_keyed(editor, reference(COUNT - 1), u64::MAX)?;
            assert_eq!(found.unwrap().1.count(), 1);
            assert_eq!(drop(editor, COUNT - 1, 2)?, None);
            assert_eq!(drop(editor, COUNT - 1, 1)?, None);
            assert_eq!(drop(editor, 0, 1)?, None);
            extent.drop_ref(editor, shared, 1, None)
        });
        assert!(edited.unwrap().is_some());
    }
}
