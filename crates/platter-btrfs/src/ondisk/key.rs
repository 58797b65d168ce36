//! The key of an item: object id, type, offset, in that order. Spec: `btrfs/key`.

use std::fmt;

use platter_ondisk::TreeKey;
use platter_ondisk::endian::Le64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A key.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskKey {
    /// `objectid`.
    pub object: Le64,
    /// `type`.
    pub kind: u8,
    /// `offset`.
    pub offset: Le64,
}

const _: () = assert!(size_of::<DiskKey>() == 17);

/// The type of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemKind(pub u8);

macro_rules! item_kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)+) => {
        impl ItemKind {
            $($(#[$doc])* pub const $name: Self = Self($number);)+

            /// The name in dumps of trees; `None` for types that are not known.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    Self(_) => None,
                }
            }
        }
    };
}

item_kinds! {
    /// An inode.
    INODE_ITEM = 1,
    /// A name of an inode.
    INODE_REF = 12,
    /// Names of an inode, by hash, where a reference item is full.
    INODE_EXTREF = 13,
    /// Extended attributes, by hash.
    XATTR_ITEM = 24,
    /// Descriptor of a file with fs-verity.
    VERITY_DESC = 36,
    /// Merkle tree of a file with fs-verity.
    VERITY_MERKLE = 37,
    /// An inode or subvolume that is to be deleted.
    ORPHAN_ITEM = 48,
    /// A range of name hashes that a log tree covers; older kernels.
    DIR_LOG_ITEM = 60,
    /// A range of directory indices that a log tree covers.
    DIR_LOG_INDEX = 72,
    /// Directory entries, by hash.
    DIR_ITEM = 84,
    /// A directory entry, by index.
    DIR_INDEX = 96,
    /// A range of a file.
    EXTENT_DATA = 108,
    /// Checksums of data.
    EXTENT_CSUM = 128,
    /// A tree.
    ROOT_ITEM = 132,
    /// The parent of a subvolume.
    ROOT_BACKREF = 144,
    /// A child of a subvolume.
    ROOT_REF = 156,
    /// An allocated extent.
    EXTENT_ITEM = 168,
    /// An allocated tree block, with the level in the key.
    METADATA_ITEM = 169,
    /// Simple quotas: the subvolume that an extent is charged to; only inline.
    EXTENT_OWNER_REF = 172,
    /// A reference to a tree block by its tree.
    TREE_BLOCK_REF = 176,
    /// A reference to data by a file.
    EXTENT_DATA_REF = 178,
    /// A reference to a tree block by its parent.
    SHARED_BLOCK_REF = 182,
    /// A reference to data by a leaf.
    SHARED_DATA_REF = 184,
    /// A block group.
    BLOCK_GROUP_ITEM = 192,
    /// The form in which a block group's free space is stored.
    FREE_SPACE_INFO = 198,
    /// A free range.
    FREE_SPACE_EXTENT = 199,
    /// A bitmap of free sectors.
    FREE_SPACE_BITMAP = 200,
    /// A range of a device that a chunk uses.
    DEV_EXTENT = 204,
    /// A device.
    DEV_ITEM = 216,
    /// A chunk.
    CHUNK_ITEM = 228,
    /// The raid stripe tree's extents.
    RAID_STRIPE = 230,
    /// State of the quota groups.
    QGROUP_STATUS = 240,
    /// Usage of a quota group.
    QGROUP_INFO = 242,
    /// Limits of a quota group.
    QGROUP_LIMIT = 244,
    /// Membership of quota groups.
    QGROUP_RELATION = 246,
    /// Items that do not survive: a balance in progress.
    TEMPORARY_ITEM = 248,
    /// Items that persist: error counts of a device.
    PERSISTENT_ITEM = 249,
    /// A device that is being replaced.
    DEV_REPLACE = 250,
    /// Subvolumes by UUID.
    UUID_SUBVOL = 251,
    /// Received subvolumes by the UUID of their source.
    UUID_RECEIVED_SUBVOL = 252,
    /// A string, for debugging.
    STRING_ITEM = 253,
}

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The object id.
    pub object: u64,
    /// The item's type.
    pub kind: ItemKind,
    /// The offset; its meaning depends on the type.
    pub offset: u64,
}

impl Key {
    /// The first key there can be.
    pub const MIN: Self = Self::new(0, ItemKind(0), 0);
    /// The last key there can be.
    pub const MAX: Self = Self::new(u64::MAX, ItemKind(u8::MAX), u64::MAX);

    /// A key.
    #[must_use]
    pub const fn new(object: u64, kind: ItemKind, offset: u64) -> Self {
        Self {
            object,
            kind,
            offset,
        }
    }

    /// Decodes a key; any bytes are one.
    #[must_use]
    pub fn decode(disk: &DiskKey) -> Self {
        Self::new(disk.object.get(), ItemKind(disk.kind), disk.offset.get())
    }

    /// Encodes the key.
    #[must_use]
    pub fn encode(self) -> DiskKey {
        DiskKey {
            object: self.object.into(),
            kind: self.kind.0,
            offset: self.offset.into(),
        }
    }

    /// The next key; `None` after [`MAX`](Self::MAX).
    #[must_use]
    pub fn successor(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(kind) = self.kind.0.checked_add(1) {
            return Some(Self::new(self.object, ItemKind(kind), 0));
        }
        let object = self.object.checked_add(1)?;
        Some(Self::new(object, ItemKind(0), 0))
    }
}

impl From<Key> for TreeKey {
    fn from(key: Key) -> Self {
        Self {
            object: key.object,
            kind: key.kind.0,
            offset: key.offset,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        TreeKey::from(*self).fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_object_type_offset() {
        let keys = [
            Key::MIN,
            Key::new(1, ItemKind(255), u64::MAX),
            Key::new(2, ItemKind::INODE_ITEM, 0),
            Key::new(2, ItemKind::INODE_ITEM, 1),
            Key::new(2, ItemKind::INODE_REF, 0),
            Key::MAX,
        ];
        assert!(keys.is_sorted());
        for key in keys {
            assert_eq!(Key::decode(&key.encode()), key);
        }
    }

    #[test]
    fn successor_carries_into_type_and_object() {
        let successor = |object, kind, offset| Key::new(object, ItemKind(kind), offset).successor();
        assert_eq!(successor(1, 2, 3), Some(Key::new(1, ItemKind(2), 4)));
        assert_eq!(successor(1, 2, u64::MAX), Some(Key::new(1, ItemKind(3), 0)));
        let last = successor(1, 255, u64::MAX);
        assert_eq!(last, Some(Key::new(2, ItemKind(0), 0)));
        assert_eq!(Key::MAX.successor(), None);
    }

    #[test]
    fn item_kinds_have_names() {
        assert_eq!(ItemKind::DIR_INDEX.name(), Some("DIR_INDEX"));
        assert_eq!(ItemKind(2).name(), None);
    }
}
