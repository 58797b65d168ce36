//! A root item: one tree. Spec: `btrfs/root_item`.

use std::mem::offset_of;

use bitflags::bitflags;
use platter_ondisk::endian::{Le32, Le64};
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use platter_vfs::Timestamp;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::LEVEL_MAX;
use super::inode_item::DiskInodeItem;
use super::key::{DiskKey, Key};
use super::superblock::RootPointer;
use super::timestamp::DiskTimestamp;
use super::types::{Generation, LogicalAddr};

/// A root item.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskRootItem {
    /// `inode`, which only old kernels use.
    pub inode: DiskInodeItem,
    /// `generation`.
    pub generation: Le64,
    /// `root_dirid`.
    pub root_dir: Le64,
    /// `bytenr`.
    pub logical: Le64,
    /// `byte_limit`.
    pub byte_limit: Le64,
    /// `bytes_used`.
    pub bytes_used: Le64,
    /// `last_snapshot`.
    pub last_snapshot: Le64,
    /// `flags`.
    pub flags: Le64,
    /// `refs`.
    pub refs: Le32,
    /// `drop_progress`.
    pub drop_progress: DiskKey,
    /// `drop_level`.
    pub drop_level: u8,
    /// `level`.
    pub level: u8,
    /// `generation_v2`: what follows is valid if it equals `generation`.
    pub generation_v2: Le64,
    /// `uuid`.
    pub uuid: [u8; 16],
    /// `parent_uuid`.
    pub parent_uuid: [u8; 16],
    /// `received_uuid`.
    pub received_uuid: [u8; 16],
    /// `ctransid`.
    pub change_transaction: Le64,
    /// `otransid`.
    pub creation_transaction: Le64,
    /// `stransid`.
    pub send_transaction: Le64,
    /// `rtransid`.
    pub receive_transaction: Le64,
    /// `ctime`.
    pub changed: DiskTimestamp,
    /// `otime`.
    pub created: DiskTimestamp,
    /// `stime`.
    pub sent: DiskTimestamp,
    /// `rtime`.
    pub received: DiskTimestamp,
    /// `reserved`.
    pub reserved: [Le64; 8],
}

/// The size of root items of old kernels, which end before `generation_v2`.
pub const OLD_ROOT_ITEM_BYTES: usize = 239;

const _: () = assert!(size_of::<DiskRootItem>() == 439);
const _: () = assert!(offset_of!(DiskRootItem, generation_v2) == OLD_ROOT_ITEM_BYTES);

bitflags! {
    /// `flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RootFlags: u64 {
        /// The subvolume is read-only.
        const READ_ONLY = 1 << 0;
        /// The subvolume was deleted, and its deletion is not complete.
        const DEAD = 1 << 48;
    }
}

rules! {
    /// The rules of a root item.
    pub enum RootItemRule of "root item" {
        /// It has one of the two sizes.
        Size => "invalid item size",
        /// Levels are below the largest depth.
        Level => "invalid root level",
        /// The root's address is aligned to the sector size.
        Alignment => "invalid root bytenr",
        /// Flags are known.
        Flags => "invalid root flags",
    }
}

/// A validated root item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootItem {
    /// Where the tree's root lies.
    pub root: RootPointer,
    /// Object of the root directory of a subvolume.
    pub root_dir: u64,
    /// `bytes_used`: the size of the tree.
    pub bytes_used: u64,
    /// The transaction of the last snapshot.
    pub last_snapshot: Generation,
    /// Flags.
    pub flags: RootFlags,
    /// References to the tree; 0 for one that was deleted.
    pub refs: u32,
    /// Up to where a deletion has come.
    pub drop_progress: Key,
    /// The level of the deletion.
    pub drop_level: u8,
    /// UUID and history of a subvolume; zero in items of old kernels.
    pub history: RootHistory,
}

/// UUIDs, transactions and times of a subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RootHistory {
    /// Its UUID.
    pub uuid: Uuid,
    /// The UUID of the subvolume that it is a snapshot of.
    pub parent_uuid: Uuid,
    /// The UUID of the subvolume that it was received from.
    pub received_uuid: Uuid,
    /// The transaction of the last change.
    pub change_transaction: Generation,
    /// The transaction that created it.
    pub creation_transaction: Generation,
    /// The transaction that it was sent in.
    pub send_transaction: Generation,
    /// The transaction that it was received in.
    pub receive_transaction: Generation,
    /// The time of the last change.
    pub changed: Timestamp,
    /// The time of creation.
    pub created: Timestamp,
    /// The time of sending.
    pub sent: Timestamp,
    /// The time of receiving.
    pub received: Timestamp,
}

impl RootItem {
    /// The item of a tree that was just made, of one block.
    #[must_use]
    pub fn of_new_tree(root: RootPointer, node_bytes: u64) -> Self {
        Self {
            root,
            root_dir: 0,
            bytes_used: node_bytes,
            last_snapshot: Generation(0),
            flags: RootFlags::empty(),
            refs: 1,
            drop_progress: Key::MIN,
            drop_level: 0,
            history: RootHistory::default(),
        }
    }

    /// Decodes the item.
    pub fn decode(
        bytes: &[u8],
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<Self, Corrupt<RootItemRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let mut disk = DiskRootItem::new_zeroed();
        let is_old = bytes.len() == OLD_ROOT_ITEM_BYTES;
        let place = disk.as_mut_bytes().get_mut(..bytes.len());
        let place = place.filter(|place| is_old || place.len() == size_of::<DiskRootItem>());
        place
            .ok_or(broken(RootItemRule::Size))?
            .copy_from_slice(bytes);
        let generation = disk.generation.get();
        let has_history = !is_old && disk.generation_v2.get() == generation;
        if disk.level >= LEVEL_MAX || disk.drop_level >= LEVEL_MAX {
            return Err(broken(RootItemRule::Level));
        }
        if !disk.logical.get().is_multiple_of(u64::from(sector_bytes)) {
            return Err(broken(RootItemRule::Alignment));
        }
        let flags = RootFlags::from_bits(disk.flags.get());
        Ok(Self {
            root: RootPointer {
                logical: LogicalAddr(disk.logical.get()),
                generation: Generation(generation),
                level: disk.level,
            },
            root_dir: disk.root_dir.get(),
            bytes_used: disk.bytes_used.get(),
            last_snapshot: Generation(disk.last_snapshot.get()),
            flags: flags.ok_or(broken(RootItemRule::Flags))?,
            refs: disk.refs.get(),
            drop_progress: Key::decode(&disk.drop_progress),
            drop_level: disk.drop_level,
            history: if has_history {
                RootHistory::decode(&disk)
            } else {
                RootHistory::default()
            },
        })
    }

    /// Encodes the item, in its current size. The inode in it stays as in `old`.
    #[must_use]
    pub fn encode(&self, old: Option<&DiskRootItem>) -> DiskRootItem {
        let history = &self.history;
        DiskRootItem {
            inode: old.map_or_else(DiskInodeItem::new_zeroed, |old| old.inode),
            generation: self.root.generation.0.into(),
            root_dir: self.root_dir.into(),
            logical: self.root.logical.0.into(),
            byte_limit: old.map_or(0, |old| old.byte_limit.get()).into(),
            bytes_used: self.bytes_used.into(),
            last_snapshot: self.last_snapshot.0.into(),
            flags: self.flags.bits().into(),
            refs: self.refs.into(),
            drop_progress: self.drop_progress.encode(),
            drop_level: self.drop_level,
            level: self.root.level,
            generation_v2: self.root.generation.0.into(),
            uuid: history.uuid.into_bytes(),
            parent_uuid: history.parent_uuid.into_bytes(),
            received_uuid: history.received_uuid.into_bytes(),
            change_transaction: history.change_transaction.0.into(),
            creation_transaction: history.creation_transaction.0.into(),
            send_transaction: history.send_transaction.0.into(),
            receive_transaction: history.receive_transaction.0.into(),
            changed: DiskTimestamp::encode(history.changed),
            created: DiskTimestamp::encode(history.created),
            sent: DiskTimestamp::encode(history.sent),
            received: DiskTimestamp::encode(history.received),
            reserved: [0.into(); 8],
        }
    }
}

impl RootHistory {
    fn decode(disk: &DiskRootItem) -> Self {
        Self {
            uuid: Uuid::from_bytes(disk.uuid),
            parent_uuid: Uuid::from_bytes(disk.parent_uuid),
            received_uuid: Uuid::from_bytes(disk.received_uuid),
            change_transaction: Generation(disk.change_transaction.get()),
            creation_transaction: Generation(disk.creation_transaction.get()),
            send_transaction: Generation(disk.send_transaction.get()),
            receive_transaction: Generation(disk.receive_transaction.get()),
            changed: disk.changed.decode(),
            created: disk.created.decode(),
            sent: disk.sent.decode(),
            received: disk.received.decode(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> RootItem {
        RootItem {
            root: RootPointer {
                logical: LogicalAddr(1 << 20),
                generation: Generation(7),
                level: 2,
            },
            root_dir: 256,
            bytes_used: 16384,
            last_snapshot: Generation(6),
            flags: RootFlags::READ_ONLY,
            refs: 1,
            drop_progress: Key::MIN,
            drop_level: 0,
            history: RootHistory {
                uuid: Uuid::from_u128(5),
                created: Timestamp {
                    seconds: 1,
                    nanoseconds: 2,
                },
                ..RootHistory::default()
            },
        }
    }

    #[test]
    fn item_survives_encoding() {
        let disk = sample().encode(None);
        let decoded = RootItem::decode(disk.as_bytes(), 4096, Locus::UNKNOWN);
        assert_eq!(decoded, Ok(sample()));
    }

    #[test]
    fn history_left_by_an_old_kernel_is_not_used() {
        let mut disk = sample().encode(None);
        disk.generation_v2.set(6);
        let bytes = disk.as_bytes();
        for bytes in [bytes, &bytes[..OLD_ROOT_ITEM_BYTES]] {
            let decoded = RootItem::decode(bytes, 4096, Locus::UNKNOWN).unwrap();
            assert_eq!(decoded.history, RootHistory::default());
            assert_eq!(decoded.root, sample().root);
        }
    }

    #[test]
    fn broken_items_are_refused() {
        let rule = |change: &dyn Fn(&mut DiskRootItem)| {
            let mut disk = sample().encode(None);
            change(&mut disk);
            let decoded = RootItem::decode(disk.as_bytes(), 4096, Locus::UNKNOWN);
            decoded.unwrap_err().rule
        };
        assert_eq!(rule(&|disk| disk.level = 8), RootItemRule::Level);
        assert_eq!(rule(&|disk| disk.drop_level = 8), RootItemRule::Level);
        let rule_of_address = rule(&|disk| disk.logical.set(1));
        assert_eq!(rule_of_address, RootItemRule::Alignment);
        assert_eq!(rule(&|disk| disk.flags.set(2)), RootItemRule::Flags);
        for len in [0, 238, 240, 438, 440] {
            let decoded = RootItem::decode(&vec![0; len], 4096, Locus::UNKNOWN);
            assert_eq!(decoded.unwrap_err().rule, RootItemRule::Size, "{len}");
        }
    }
}
