//! Where metadata of version 5 keeps its LSN, UUID and checksum: recovery skips a block that is as new
//! as the log, and stamps the ones that it changes. Spec: `xfs/metadata_integrity`.

use platter_ondisk::Uuid;
use platter_ondisk::endian::{Be16, Be32, Be64};
use zerocopy::{FromBytes, IntoBytes};

use super::BufferType;
use crate::ondisk::checksum;
use crate::ondisk::types::Lsn;

/// Lengths of what is stamped.
const LSN_BYTES: usize = 8;
const CRC_BYTES: usize = 4;

/// Where a block keeps what identifies its version; offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    lsn: usize,
    uuid: usize,
    crc: usize,
}

const SHORT_BTREE: Stamp = Stamp {
    lsn: 24,
    uuid: 32,
    crc: 52,
};
const LONG_BTREE: Stamp = Stamp {
    lsn: 32,
    uuid: 40,
    crc: 64,
};
const AGF: Stamp = Stamp {
    lsn: 208,
    uuid: 64,
    crc: 216,
};
const AGI: Stamp = Stamp {
    lsn: 320,
    uuid: 296,
    crc: 312,
};
const AGFL: Stamp = Stamp {
    lsn: 24,
    uuid: 8,
    crc: 32,
};
const SUPERBLOCK: Stamp = Stamp {
    lsn: 240,
    uuid: 32,
    crc: 224,
};
/// `sb_meta_uuid`, where the volume's UUID was changed.
const SUPERBLOCK_META_UUID_AT: usize = 248;
/// A remote symbolic link target, and a remote attribute value.
const REMOTE: Stamp = Stamp {
    lsn: 48,
    uuid: 16,
    crc: 12,
};
const DIRECTORY: Stamp = Stamp {
    lsn: 16,
    uuid: 24,
    crc: 4,
};
const HASH_TREE: Stamp = Stamp {
    lsn: 24,
    uuid: 32,
    crc: 12,
};
const REALTIME: Stamp = Stamp {
    lsn: 24,
    uuid: 32,
    crc: 4,
};

/// Magic numbers of version 5 at the start of a block.
const BY_MAGIC: [(&[u8; 4], Stamp); 18] = [
    (b"AB3B", SHORT_BTREE),
    (b"AB3C", SHORT_BTREE),
    (b"IAB3", SHORT_BTREE),
    (b"FIB3", SHORT_BTREE),
    (b"RMB3", SHORT_BTREE),
    (b"R3FC", SHORT_BTREE),
    (b"BMA3", LONG_BTREE),
    (b"MAPR", LONG_BTREE),
    (b"RCNT", LONG_BTREE),
    (b"XAGF", AGF),
    (b"XAGI", AGI),
    (b"XAFL", AGFL),
    (b"XFSB", SUPERBLOCK),
    (b"XSLM", REMOTE),
    (b"XDB3", DIRECTORY),
    (b"XDD3", DIRECTORY),
    (b"XDF3", DIRECTORY),
    (b"XBMP", REALTIME),
];
/// Realtime summary blocks, with realtime groups.
const SUMMARY_MAGIC: &[u8; 4] = b"XSUM";
/// Magic numbers of version 5 in hash trees: two kinds of directory leaves, nodes, attribute leaves.
const HASH_TREE_MAGIC: [u16; 4] = [0x3df1, 0x3dff, 0x3ebe, 0x3bee];
const HASH_TREE_MAGIC_AT: usize = 8;

impl Stamp {
    /// The stamp of a block of version 5 by its magic number; `None` for inodes, quota records, remote
    /// attribute values, which bear no LSN, and for what has no magic number.
    #[must_use]
    pub fn of_block(block: &[u8]) -> Option<Self> {
        let magic = block.get(..4)?;
        let known = BY_MAGIC.iter().find(|(known, _)| known[..] == *magic);
        if let Some((_, stamp)) = known {
            return Some(*stamp);
        }
        if magic == SUMMARY_MAGIC {
            return Some(REALTIME);
        }
        Self::of_hash_tree(block)
    }

    fn of_hash_tree(block: &[u8]) -> Option<Self> {
        let (magic, _) = Be16::ref_from_prefix(block.get(HASH_TREE_MAGIC_AT..)?).ok()?;
        HASH_TREE_MAGIC.contains(&magic.get()).then_some(HASH_TREE)
    }

    /// The same for a block that a log item says to be of a type; `None` if the block is not.
    #[must_use]
    pub fn of_type(kind: BufferType, block: &[u8]) -> Option<Self> {
        let expected: &[Self] = match kind {
            BufferType::Btree => &[SHORT_BTREE, LONG_BTREE],
            BufferType::Agf => &[AGF],
            BufferType::Agfl => &[AGFL],
            BufferType::Agi => &[AGI],
            BufferType::Superblock => &[SUPERBLOCK],
            BufferType::Symlink => &[REMOTE],
            BufferType::DirBlock | BufferType::DirData | BufferType::DirFree => &[DIRECTORY],
            BufferType::DirLeaf1
            | BufferType::DirLeafN
            | BufferType::DaNode
            | BufferType::AttrLeaf => &[HASH_TREE],
            BufferType::RtBitmap | BufferType::RtSummary => &[REALTIME],
            BufferType::Unknown
            | BufferType::UserQuota
            | BufferType::ProjectQuota
            | BufferType::GroupQuota
            | BufferType::Inodes
            | BufferType::AttrRemote => &[],
        };
        // Blocks of hash trees begin with a link, which may look like the magic number of another block.
        let stamp = if expected == [HASH_TREE] {
            Self::of_hash_tree(block)
        } else {
            Self::of_block(block)
        };
        stamp.filter(|stamp| expected.contains(stamp))
    }

    /// The block's LSN, if the block belongs to the filesystem with this UUID.
    #[must_use]
    pub fn lsn(self, block: &[u8], meta_uuid: Uuid) -> Option<Lsn> {
        let uuid_at = if self == SUPERBLOCK && !Self::has_uuid(block, self.uuid, meta_uuid) {
            SUPERBLOCK_META_UUID_AT
        } else {
            self.uuid
        };
        if !Self::has_uuid(block, uuid_at, meta_uuid) {
            return None;
        }
        let (lsn, _) = Be64::ref_from_prefix(block.get(self.lsn..)?).ok()?;
        Some(Lsn(lsn.get()))
    }

    fn has_uuid(block: &[u8], at: usize, meta_uuid: Uuid) -> bool {
        let uuid = block.get(at..).and_then(|rest| rest.get(..16));
        uuid == Some(&meta_uuid.as_bytes()[..])
    }

    /// Stores the LSN and the checksum.
    pub fn seal(self, block: &mut [u8], lsn: Lsn) {
        if let Some(slot) = block.get_mut(self.lsn..) {
            let _ = Be64::new(lsn.0).write_to_prefix(slot);
        }
        self.seal_checksum(block);
    }

    /// Whether the block has the checksum that it stores.
    #[must_use]
    pub fn is_sealed(self, block: &[u8]) -> bool {
        checksum::matches(block, self.crc)
    }

    /// Stores the LSN and the checksum of another version of the block.
    pub fn copy(self, block: &mut [u8], from: &[u8]) {
        for (at, len) in [(self.lsn, LSN_BYTES), (self.crc, CRC_BYTES)] {
            let slot = block.get_mut(at..).and_then(|rest| rest.get_mut(..len));
            let field = from.get(at..).and_then(|rest| rest.get(..len));
            if let (Some(slot), Some(field)) = (slot, field) {
                slot.copy_from_slice(field);
            }
        }
    }

    /// Stores the checksum.
    pub fn seal_checksum(self, block: &mut [u8]) {
        checksum::seal(block, self.crc);
    }
}

/// The magic number of a primary superblock's sector.
#[must_use]
pub fn is_superblock(block: &[u8]) -> bool {
    Be32::ref_from_prefix(block).is_ok_and(|(magic, _)| magic.as_bytes() == b"XFSB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_block_has_its_lsn_and_checksum() {
        let uuid = Uuid::from_bytes([7; 16]);
        for (magic, stamp) in BY_MAGIC {
            let mut block = vec![0; 512];
            block[..4].copy_from_slice(magic);
            assert_eq!(stamp.lsn(&block, uuid), None);
            block[stamp.uuid..stamp.uuid + 16].fill(7);
            stamp.seal(&mut block, Lsn::new(4, 5));
            assert_eq!(Stamp::of_block(&block), Some(stamp));
            assert_eq!(stamp.lsn(&block, uuid), Some(Lsn::new(4, 5)));
            assert!(checksum::matches(&block, stamp.crc));
        }
    }

    #[test]
    fn superblock_may_bear_the_metadata_uuid() {
        let mut block = vec![0; 512];
        block[..4].copy_from_slice(b"XFSB");
        block[SUPERBLOCK_META_UUID_AT..SUPERBLOCK_META_UUID_AT + 16].fill(7);
        let lsn = SUPERBLOCK.lsn(&block, Uuid::from_bytes([7; 16]));
        assert_eq!(lsn, Some(Lsn(0)));
    }

    #[test]
    fn block_of_another_type_has_no_stamp() {
        let mut block = vec![0; 64];
        block[8..10].copy_from_slice(&[0x3d, 0xff]);
        assert_eq!(
            Stamp::of_type(BufferType::DirLeafN, &block),
            Some(HASH_TREE)
        );
        assert_eq!(Stamp::of_type(BufferType::Agf, &block), None);
        // A link to block 0x58444433.
        block[..4].copy_from_slice(b"XDD3");
        let kind = BufferType::DirLeafN;
        assert_eq!(Stamp::of_type(kind, &block), Some(HASH_TREE));
        assert_eq!(Stamp::of_type(BufferType::DaNode, b"XDD3XDD3XDD3"), None);
        assert_eq!(Stamp::of_block(b"IN"), None);
        assert_eq!(Stamp::of_block(b"XARM_and_more"), None);
    }
}
