//! The rules of any item, by the type in its key: for checks, and before a leaf is written.

use platter_ondisk::{Corruption, Locus};

use super::balance::Balance;
use super::block_group::BlockGroupItem;
use super::checksum::ChecksumKind;
use super::chunk_item::ChunkItem;
use super::csum_item::CsumItem;
use super::dev_extent::DevExtent;
use super::dev_item::DevItem;
use super::dev_replace::DevReplace;
use super::dev_stats::DevStats;
use super::dir_item::{DirItem, Xattr};
use super::dir_log::DirLog;
use super::extent_item::{ExtentItem, ExtentRef};
use super::file_extent::FileExtent;
use super::free_space::{FreeSpaceHeader, FreeSpaceInfo, FreeSpaceRange};
use super::inode_item::InodeItem;
use super::inode_ref::InodeRef;
use super::key::{ItemKind, Key};
use super::qgroup::{QgroupInfo, QgroupLimit, QgroupStatus, check_relation};
use super::root_item::RootItem;
use super::root_ref::RootRef;
use super::types::{BALANCE_OBJECT, FREE_SPACE_OBJECT, LogicalAddr};
use super::uuid_item::UuidItem;
use super::verity::VerityDescriptorItem;

/// What the rules of items depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemFormat {
    /// `sectorsize`.
    pub sector_bytes: u32,
    /// The checksum algorithm.
    pub checksum_kind: ChecksumKind,
}

impl ItemFormat {
    /// Checks the rules of an item. An item of a type that is not known has none.
    pub fn check(&self, key: Key, data: &[u8], locus: Locus) -> Result<(), Corruption> {
        let sector = self.sector_bytes;
        match key.kind {
            ItemKind::INODE_ITEM => InodeItem::decode(data, locus).map(drop)?,
            ItemKind::INODE_REF => InodeRef::decode_all(data, key.offset, locus).map(drop)?,
            ItemKind::INODE_EXTREF => InodeRef::decode_all_extended(data, locus).map(drop)?,
            ItemKind::DIR_ITEM | ItemKind::DIR_INDEX => {
                DirItem::decode_all(key, data, locus).map(drop)?;
            }
            ItemKind::XATTR_ITEM => Xattr::decode_all(key, data, locus).map(drop)?,
            ItemKind::VERITY_DESC if key.offset == 0 => {
                VerityDescriptorItem::decode(data, locus).map(drop)?;
            }
            ItemKind::DIR_LOG_INDEX | ItemKind::DIR_LOG_ITEM => {
                DirLog::decode(key, data, locus).map(drop)?;
            }
            ItemKind::EXTENT_DATA => {
                FileExtent::decode(data, key.offset, sector, locus).map(drop)?;
            }
            ItemKind::EXTENT_CSUM => {
                CsumItem::decode(key, data, self.checksum_kind, sector, locus).map(drop)?;
            }
            ItemKind::ROOT_ITEM => RootItem::decode(data, sector, locus).map(drop)?,
            ItemKind::ROOT_REF | ItemKind::ROOT_BACKREF => {
                RootRef::decode(data, locus).map(drop)?;
            }
            ItemKind::EXTENT_ITEM | ItemKind::METADATA_ITEM => {
                ExtentItem::decode(key, data, locus).map(drop)?;
            }
            ItemKind::TREE_BLOCK_REF
            | ItemKind::EXTENT_DATA_REF
            | ItemKind::SHARED_BLOCK_REF
            | ItemKind::SHARED_DATA_REF => ExtentRef::decode_keyed(key, data, locus).map(drop)?,
            ItemKind::BLOCK_GROUP_ITEM => BlockGroupItem::decode(key, data, locus).map(drop)?,
            ItemKind::FREE_SPACE_INFO => FreeSpaceInfo::decode(data, locus).map(drop)?,
            ItemKind::FREE_SPACE_EXTENT => {
                FreeSpaceRange::decode(key, sector, locus)?;
                FreeSpaceRange::check_extent(data, locus)?;
            }
            ItemKind::FREE_SPACE_BITMAP => {
                let range = FreeSpaceRange::decode(key, sector, locus)?;
                range.check_bitmap(data, sector, locus)?;
            }
            ItemKind::DEV_EXTENT => DevExtent::decode(key, data, sector, locus).map(drop)?,
            ItemKind::DEV_ITEM => DevItem::decode(key, data, locus).map(drop)?,
            ItemKind::CHUNK_ITEM => {
                let start = LogicalAddr(key.offset);
                ChunkItem::decode(data, start, sector, locus).map(drop)?;
            }
            ItemKind::QGROUP_STATUS => QgroupStatus::decode(data, locus).map(drop)?,
            ItemKind::QGROUP_INFO => QgroupInfo::decode(data, locus).map(drop)?,
            ItemKind::QGROUP_LIMIT => QgroupLimit::decode(data, locus).map(drop)?,
            ItemKind::QGROUP_RELATION => check_relation(data, locus)?,
            ItemKind::TEMPORARY_ITEM if key.object == BALANCE_OBJECT => {
                Balance::decode(data, locus).map(drop)?;
            }
            ItemKind::PERSISTENT_ITEM if key.object == 0 => {
                DevStats::decode(data, locus).map(drop)?;
            }
            ItemKind::DEV_REPLACE => DevReplace::decode(data, locus).map(drop)?,
            ItemKind::UUID_SUBVOL | ItemKind::UUID_RECEIVED_SUBVOL => {
                UuidItem::decode(key, data, locus).map(drop)?;
            }
            ItemKind(0) if key.object == FREE_SPACE_OBJECT => {
                FreeSpaceHeader::decode(data, locus).map(drop)?;
            }
            ItemKind(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: ItemFormat = ItemFormat {
        sector_bytes: 4096,
        checksum_kind: ChecksumKind::Crc32c,
    };

    #[test]
    fn items_of_known_types_are_checked() {
        for kind in 0..=u8::MAX {
            let key = Key::new(0, ItemKind(kind), 0);
            let result = FORMAT.check(key, &[0xff; 3], Locus::UNKNOWN);
            let is_free = [
                ItemKind::VERITY_MERKLE,
                ItemKind::ORPHAN_ITEM,
                ItemKind::RAID_STRIPE,
                ItemKind::TEMPORARY_ITEM,
                ItemKind::EXTENT_OWNER_REF,
                ItemKind::STRING_ITEM,
            ];
            let is_checked = key.kind.name().is_some() && !is_free.contains(&key.kind);
            assert_eq!(result.is_err(), is_checked, "{kind}");
        }
    }

    #[test]
    fn special_objects_have_items_of_their_own() {
        let check = |object, kind, len: usize| {
            let key = Key::new(object, kind, 0);
            FORMAT.check(key, &vec![0; len], Locus::UNKNOWN)
        };
        assert!(check(BALANCE_OBJECT, ItemKind::TEMPORARY_ITEM, 448).is_ok());
        assert!(check(BALANCE_OBJECT, ItemKind::TEMPORARY_ITEM, 447).is_err());
        assert!(check(FREE_SPACE_OBJECT, ItemKind(0), 41).is_ok());
        assert!(check(FREE_SPACE_OBJECT, ItemKind(0), 40).is_err());
    }
}
