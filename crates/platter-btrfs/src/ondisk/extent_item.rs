//! Extent and metadata items with their references, inline and keyed. Spec: `btrfs/extent_item`.

use bitflags::bitflags;
use platter_ondisk::endian::{Le32, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::LEVEL_MAX;
use super::key::{DiskKey, ItemKind, Key};
use super::types::{Generation, LogicalAddr, TreeId};

/// An extent item; for tree blocks without the skinny-metadata feature, [`DiskTreeBlockInfo`]
/// follows; then inline references.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskExtentItem {
    /// `refs`.
    pub refs: Le64,
    /// `generation`.
    pub generation: Le64,
    /// `flags`.
    pub flags: Le64,
}

/// First key and level of a tree block.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskTreeBlockInfo {
    /// `key`.
    pub key: DiskKey,
    /// `level`.
    pub level: u8,
}

/// A reference to data by a file.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskExtentDataRef {
    /// `root`.
    pub tree: Le64,
    /// `objectid`.
    pub object: Le64,
    /// `offset`.
    pub offset: Le64,
    /// `count`.
    pub count: Le32,
}

/// A reference to data by a leaf.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskSharedDataRef {
    /// The leaf; only in inline references.
    pub parent: Le64,
    /// `count`.
    pub count: Le32,
}

const _: () = assert!(size_of::<DiskExtentItem>() == 24);
const _: () = assert!(size_of::<DiskTreeBlockInfo>() == 18);
const _: () = assert!(size_of::<DiskExtentDataRef>() == 28);
const _: () = assert!(size_of::<DiskSharedDataRef>() == 12);

bitflags! {
    /// `flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ExtentFlags: u64 {
        /// Data.
        const DATA = 1 << 0;
        /// A tree block.
        const TREE_BLOCK = 1 << 1;
        /// What the tree block refers to is referred to by parent.
        const FULL_BACKREF = 1 << 8;
    }
}

rules! {
    /// The rules of extent items and references.
    pub enum ExtentItemRule of "extent item" {
        /// It has at least the size of the structure, and references end with it.
        Size => "invalid item size",
        /// It is of either data or a tree block; a metadata item only of a tree block.
        Flags => "invalid extent flags",
        /// There is a reference.
        NoRefs => "reference count is zero",
        /// The level is below the largest depth.
        Level => "invalid tree level",
        /// The type of each inline reference is known and fits data or tree block.
        RefKind => "unknown or unexpected inline ref type",
        /// A reference of data counts at least one use.
        RefCount => "invalid extent data ref count",
        /// Inline references are no more than `refs`.
        TooMany => "inline refs exceed the reference count",
    }
}

/// One reference to an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtentRef {
    /// A tree block that a tree refers to.
    TreeBlock {
        /// The tree.
        tree: TreeId,
    },
    /// A tree block that its parent refers to.
    SharedBlock {
        /// The parent.
        parent: LogicalAddr,
    },
    /// Data that a file refers to.
    Data {
        /// The file's subvolume.
        tree: TreeId,
        /// The file.
        inode: u64,
        /// Where the extent would begin in the file: the file offset less the offset in the extent.
        offset: u64,
        /// How many file extents do.
        count: u32,
    },
    /// Data that a leaf refers to.
    SharedData {
        /// The leaf.
        parent: LogicalAddr,
        /// How many file extents in it do.
        count: u32,
    },
    /// The subvolume that simple quotas charge: no reference.
    Owner {
        /// The subvolume.
        tree: TreeId,
    },
}

/// What an extent item is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Data.
    Data,
    /// A tree block.
    TreeBlock {
        /// Its level.
        level: u8,
        /// Its first key, in items without the skinny-metadata feature.
        first_key: Option<Key>,
    },
}

/// A validated extent or metadata item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentItem {
    /// How many references there are, keyed ones included.
    pub refs: u64,
    /// The transaction that allocated it.
    pub generation: Generation,
    /// Flags.
    pub flags: ExtentFlags,
    /// What it is of.
    pub kind: ExtentKind,
    /// The references in the item.
    pub inline: Vec<ExtentRef>,
}

impl ExtentItem {
    /// Decodes the item with this key: of type `EXTENT_ITEM` or `METADATA_ITEM`.
    pub fn decode(key: Key, bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<ExtentItemRule>> {
        Self::try_decode(key, bytes).map_err(|rule| Corrupt::new(locus, rule))
    }

    fn try_decode(key: Key, bytes: &[u8]) -> Result<Self, ExtentItemRule> {
        let prefix = DiskExtentItem::ref_from_prefix(bytes);
        let (disk, rest) = prefix.map_err(|_| ExtentItemRule::Size)?;
        // Like the kernel, ignores flags that it does not know.
        let flags = ExtentFlags::from_bits_retain(disk.flags.get());
        let is_data = flags.contains(ExtentFlags::DATA);
        let is_skinny = key.kind == ItemKind::METADATA_ITEM;
        if is_data == flags.contains(ExtentFlags::TREE_BLOCK)
            || (is_data && (is_skinny || flags.contains(ExtentFlags::FULL_BACKREF)))
        {
            return Err(ExtentItemRule::Flags);
        }
        let (kind, mut rest) = match (is_data, is_skinny) {
            (true, _) => (ExtentKind::Data, rest),
            (false, true) => {
                let level = u8::try_from(key.offset).map_err(|_| ExtentItemRule::Level)?;
                let first_key = None;
                (ExtentKind::TreeBlock { level, first_key }, rest)
            }
            (false, false) => {
                let prefix = DiskTreeBlockInfo::ref_from_prefix(rest);
                let (info, rest) = prefix.map_err(|_| ExtentItemRule::Size)?;
                let level = info.level;
                let first_key = Some(Key::decode(&info.key));
                (ExtentKind::TreeBlock { level, first_key }, rest)
            }
        };
        if matches!(kind, ExtentKind::TreeBlock { level, .. } if level >= LEVEL_MAX) {
            return Err(ExtentItemRule::Level);
        }
        let mut item = Self {
            refs: disk.refs.get(),
            generation: Generation(disk.generation.get()),
            flags,
            kind,
            inline: Vec::new(),
        };
        let mut counted = 0u64;
        while !rest.is_empty() {
            let reference = ExtentRef::decode_inline(&mut rest, is_data)?;
            counted = counted.saturating_add(reference.count());
            item.inline.push(reference);
        }
        if item.refs == 0 {
            return Err(ExtentItemRule::NoRefs);
        }
        if counted > item.refs {
            return Err(ExtentItemRule::TooMany);
        }
        Ok(item)
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let disk = DiskExtentItem {
            refs: self.refs.into(),
            generation: self.generation.0.into(),
            flags: self.flags.bits().into(),
        };
        let mut bytes = disk.as_bytes().to_vec();
        if let ExtentKind::TreeBlock {
            level,
            first_key: Some(key),
        } = self.kind
        {
            let key = key.encode();
            let info = DiskTreeBlockInfo { key, level };
            bytes.extend_from_slice(info.as_bytes());
        }
        for reference in &self.inline {
            reference.encode_inline(&mut bytes);
        }
        bytes
    }
}

impl ExtentRef {
    /// How many uses it counts.
    #[must_use]
    pub fn count(self) -> u64 {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => 1,
            Self::Data { count, .. } | Self::SharedData { count, .. } => count.into(),
            Self::Owner { .. } => 0,
        }
    }

    fn decode_inline(rest: &mut &[u8], is_data: bool) -> Result<Self, ExtentItemRule> {
        let (&kind, after) = rest.split_first().ok_or(ExtentItemRule::Size)?;
        let kind = ItemKind(kind);
        let number = Le64::ref_from_prefix(after).map(|(number, after)| (number.get(), after));
        let number = number.map_err(|_| ExtentItemRule::Size);
        let (reference, after) = match kind {
            ItemKind::TREE_BLOCK_REF if !is_data => {
                let (tree, after) = number?;
                let tree = TreeId(tree);
                (Self::TreeBlock { tree }, after)
            }
            ItemKind::SHARED_BLOCK_REF if !is_data => {
                let (parent, after) = number?;
                let parent = LogicalAddr(parent);
                (Self::SharedBlock { parent }, after)
            }
            ItemKind::EXTENT_OWNER_REF if is_data => {
                let (tree, after) = number?;
                let tree = TreeId(tree);
                (Self::Owner { tree }, after)
            }
            ItemKind::EXTENT_DATA_REF if is_data => {
                let prefix = DiskExtentDataRef::ref_from_prefix(after);
                let (disk, after) = prefix.map_err(|_| ExtentItemRule::Size)?;
                (Self::of_data(disk)?, after)
            }
            ItemKind::SHARED_DATA_REF if is_data => {
                let prefix = DiskSharedDataRef::ref_from_prefix(after);
                let (disk, after) = prefix.map_err(|_| ExtentItemRule::Size)?;
                let parent = LogicalAddr(disk.parent.get());
                let count = at_least_one(disk.count.get())?;
                (Self::SharedData { parent, count }, after)
            }
            ItemKind(_) => return Err(ExtentItemRule::RefKind),
        };
        *rest = after;
        Ok(reference)
    }

    fn of_data(disk: &DiskExtentDataRef) -> Result<Self, ExtentItemRule> {
        Ok(Self::Data {
            tree: TreeId(disk.tree.get()),
            inode: disk.object.get(),
            offset: disk.offset.get(),
            count: at_least_one(disk.count.get())?,
        })
    }

    /// Decodes the reference in an item of its own.
    pub fn decode_keyed(
        key: Key,
        bytes: &[u8],
        locus: Locus,
    ) -> Result<Self, Corrupt<ExtentItemRule>> {
        Self::try_decode_keyed(key, bytes).map_err(|rule| Corrupt::new(locus, rule))
    }

    fn try_decode_keyed(key: Key, bytes: &[u8]) -> Result<Self, ExtentItemRule> {
        let parent = LogicalAddr(key.offset);
        match key.kind {
            ItemKind::TREE_BLOCK_REF if bytes.is_empty() => {
                let tree = TreeId(key.offset);
                Ok(Self::TreeBlock { tree })
            }
            ItemKind::SHARED_BLOCK_REF if bytes.is_empty() => Ok(Self::SharedBlock { parent }),
            ItemKind::EXTENT_DATA_REF => {
                let disk = DiskExtentDataRef::ref_from_bytes(bytes);
                Self::of_data(disk.map_err(|_| ExtentItemRule::Size)?)
            }
            ItemKind::SHARED_DATA_REF => {
                let count = Le32::ref_from_bytes(bytes).map_err(|_| ExtentItemRule::Size)?;
                let count = at_least_one(count.get())?;
                Ok(Self::SharedData { parent, count })
            }
            ItemKind::TREE_BLOCK_REF | ItemKind::SHARED_BLOCK_REF => Err(ExtentItemRule::Size),
            ItemKind(_) => Err(ExtentItemRule::RefKind),
        }
    }

    fn encode_inline(self, bytes: &mut Vec<u8>) {
        let mut put = |kind: ItemKind, body: &[u8]| {
            bytes.push(kind.0);
            bytes.extend_from_slice(body);
        };
        let number = |number: u64| number.to_le_bytes();
        match self {
            Self::TreeBlock { tree } => put(ItemKind::TREE_BLOCK_REF, &number(tree.0)),
            Self::SharedBlock { parent } => put(ItemKind::SHARED_BLOCK_REF, &number(parent.0)),
            Self::Owner { tree } => put(ItemKind::EXTENT_OWNER_REF, &number(tree.0)),
            Self::Data { .. } => put(ItemKind::EXTENT_DATA_REF, &self.encode_keyed()),
            Self::SharedData { parent, .. } => {
                let body = [&number(parent.0)[..], &self.encode_keyed()].concat();
                put(ItemKind::SHARED_DATA_REF, &body);
            }
        }
    }

    /// Encodes the reference as an item of its own; that of a tree block is empty.
    #[must_use]
    pub fn encode_keyed(self) -> Vec<u8> {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } | Self::Owner { .. } => Vec::new(),
            Self::SharedData { count, .. } => count.to_le_bytes().to_vec(),
            Self::Data {
                tree,
                inode,
                offset,
                count,
            } => {
                let disk = DiskExtentDataRef {
                    tree: tree.0.into(),
                    object: inode.into(),
                    offset: offset.into(),
                    count: count.into(),
                };
                disk.as_bytes().to_vec()
            }
        }
    }
}

fn at_least_one(count: u32) -> Result<u32, ExtentItemRule> {
    if count == 0 {
        return Err(ExtentItemRule::RefCount);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Key = Key::new(1 << 20, ItemKind::EXTENT_ITEM, 4096);
    const BLOCK: Key = Key::new(1 << 20, ItemKind::METADATA_ITEM, 1);

    fn data(inline: Vec<ExtentRef>) -> ExtentItem {
        ExtentItem {
            refs: 9,
            generation: Generation(3),
            flags: ExtentFlags::DATA,
            kind: ExtentKind::Data,
            inline,
        }
    }

    fn all_of_data() -> Vec<ExtentRef> {
        vec![
            ExtentRef::Owner { tree: TreeId(256) },
            ExtentRef::Data {
                tree: TreeId(256),
                inode: 257,
                offset: 4096,
                count: 2,
            },
            ExtentRef::SharedData {
                parent: LogicalAddr(1 << 24),
                count: 3,
            },
        ]
    }

    fn block(first_key: Option<Key>) -> ExtentItem {
        ExtentItem {
            refs: 2,
            generation: Generation(3),
            flags: ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF,
            kind: ExtentKind::TreeBlock {
                level: 1,
                first_key,
            },
            inline: vec![
                ExtentRef::TreeBlock { tree: TreeId(5) },
                ExtentRef::SharedBlock {
                    parent: LogicalAddr(4096),
                },
            ],
        }
    }

    fn decode(key: Key, bytes: &[u8]) -> Result<ExtentItem, ExtentItemRule> {
        let decoded = ExtentItem::decode(key, bytes, Locus::UNKNOWN);
        decoded.map_err(|corrupt| corrupt.rule)
    }

    #[test]
    fn items_survive_encoding() {
        let item = data(all_of_data());
        assert_eq!(decode(DATA, &item.encode()), Ok(item));
        let item = block(None);
        assert_eq!(decode(BLOCK, &item.encode()), Ok(item));
        let item = block(Some(Key::new(5, ItemKind::INODE_ITEM, 0)));
        assert_eq!(decode(DATA, &item.encode()), Ok(item));
    }

    #[test]
    fn keyed_references_survive_encoding() {
        let key = |kind, offset| Key::new(1 << 20, kind, offset);
        for (kind, offset, reference) in [
            (ItemKind::EXTENT_DATA_REF, 77, all_of_data()[1]),
            (ItemKind::SHARED_DATA_REF, 1 << 24, all_of_data()[2]),
            (ItemKind::TREE_BLOCK_REF, 5, block(None).inline[0]),
            (ItemKind::SHARED_BLOCK_REF, 4096, block(None).inline[1]),
        ] {
            let bytes = reference.encode_keyed();
            let decoded = ExtentRef::decode_keyed(key(kind, offset), &bytes, Locus::UNKNOWN);
            assert_eq!(decoded, Ok(reference));
            let longer = [&bytes[..], &[0]].concat();
            let decoded = ExtentRef::decode_keyed(key(kind, offset), &longer, Locus::UNKNOWN);
            assert_eq!(decoded.unwrap_err().rule, ExtentItemRule::Size);
        }
        let decoded = ExtentRef::decode_keyed(DATA, &[], Locus::UNKNOWN);
        assert_eq!(decoded.unwrap_err().rule, ExtentItemRule::RefKind);
    }

    #[test]
    fn broken_items_are_refused() {
        let good = data(all_of_data());
        let bytes = good.encode();
        assert_eq!(decode(DATA, &bytes[..23]), Err(ExtentItemRule::Size));
        assert_eq!(decode(DATA, &bytes[..40]), Err(ExtentItemRule::Size));
        assert_eq!(decode(BLOCK, &bytes), Err(ExtentItemRule::Flags));
        let change = |change: &dyn Fn(&mut ExtentItem)| {
            let mut item = good.clone();
            change(&mut item);
            decode(DATA, &item.encode()).unwrap_err()
        };
        let none = change(&|item| item.refs = 0);
        assert_eq!(none, ExtentItemRule::NoRefs);
        let few = change(&|item| item.refs = 4);
        assert_eq!(few, ExtentItemRule::TooMany);
        let mut unknown = good.clone();
        unknown.flags |= ExtentFlags::from_bits_retain(1 << 20);
        assert_eq!(decode(DATA, &unknown.encode()), Ok(unknown));
        let flags = change(&|item| item.flags = ExtentFlags::empty());
        assert_eq!(flags, ExtentItemRule::Flags);
        let kind = change(&|item| item.inline = block(None).inline);
        assert_eq!(kind, ExtentItemRule::RefKind);
        let count = change(&|item| {
            let parent = LogicalAddr(0);
            item.inline = vec![ExtentRef::SharedData { parent, count: 0 }];
        });
        assert_eq!(count, ExtentItemRule::RefCount);
        let deep = Key { offset: 8, ..BLOCK };
        let decoded = decode(deep, &block(None).encode());
        assert_eq!(decoded, Err(ExtentItemRule::Level));
    }
}
