//! What to make: the choices of mke2fs(8), and its defaults by type and size.

use platter_ondisk::Uuid;
use platter_vfs::Unsupported;

use crate::ondisk::Features;
use crate::ondisk::features::{Compat, Incompat, RoCompat};

/// Features that can be made.
const COMPAT: Compat = Compat::HAS_JOURNAL
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::STABLE_INODES);
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::INLINE_DATA);
const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY);

/// Which of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Generation {
    /// No journal.
    Ext2,
    /// With a journal.
    Ext3,
    /// With extents, checksums and all that came with them.
    Ext4,
}

impl Generation {
    /// The features that mke2fs gives it.
    #[must_use]
    pub fn features(self) -> Features {
        let mut features = Features {
            compat: Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX,
            incompat: Incompat::FILETYPE,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
        };
        if self != Self::Ext2 {
            features.compat |= Compat::HAS_JOURNAL;
        }
        if self == Self::Ext4 {
            features.incompat |= Incompat::EXTENTS | Incompat::FLEX_BG | Incompat::BIT64;
            features.ro_compat |= RoCompat::HUGE_FILE
                | RoCompat::METADATA_CSUM
                | RoCompat::DIR_NLINK
                | RoCompat::EXTRA_ISIZE;
        }
        features
    }
}

/// How to make a filesystem. What is `None` is chosen by type and size, as mke2fs does.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// The features: those of a [`Generation`], with changes.
    pub features: Features,
    /// Bytes of a block: a power of two from 1 KiB to 64 KiB.
    pub block_bytes: Option<u32>,
    /// Bytes of a cluster, with `bigalloc`.
    pub cluster_bytes: Option<u32>,
    /// Bytes of an inode: a power of two from 128 to the block size.
    pub inode_bytes: Option<u16>,
    /// One inode for so many bytes.
    pub bytes_per_inode: Option<u32>,
    /// So many inodes, whatever the ratio says, but for what fills their tables.
    pub inodes: Option<u32>,
    /// So many inodes at least.
    pub inodes_min: u32,
    /// Blocks that only the superuser may use, in hundredths of a percent.
    pub reserved: u32,
    /// Bytes of the journal.
    pub journal_bytes: Option<u64>,
    /// Groups that share the place of their metadata, with `flex_bg`: a power of two.
    pub groups_per_flex: u32,
    /// The label, of 16 bytes at most.
    pub label: Vec<u8>,
    /// The UUID; a random one otherwise.
    pub uuid: Option<Uuid>,
    /// What the hashes of names start from; random otherwise.
    pub hash_seed: Option<Uuid>,
    /// User and group of the root directory; the superuser's otherwise. `lost+found` is always the
    /// superuser's.
    pub root_owner: Option<(u32, u32)>,
    /// Write zeros to inode tables that a checksum of their descriptor would let wait for the kernel,
    /// where the device does not hold zeros anyway.
    pub zero_inode_tables: bool,
    /// RAID stride and stripe width in blocks.
    pub stripe: (u16, u32),
}

impl MkfsOptions {
    /// The defaults of mke2fs.
    #[must_use]
    pub fn new(generation: Generation) -> Self {
        Self {
            features: generation.features(),
            block_bytes: None,
            cluster_bytes: None,
            inode_bytes: None,
            bytes_per_inode: None,
            inodes: None,
            inodes_min: 0,
            reserved: 500,
            journal_bytes: None,
            groups_per_flex: 16,
            label: Vec::new(),
            uuid: None,
            hash_seed: None,
            root_owner: None,
            zero_inode_tables: false,
            stripe: (0, 0),
        }
    }

    /// Switches a feature on or off, by its name in e2fsprogs.
    ///
    /// # Errors
    /// `Unsupported` for a feature that cannot be made.
    pub fn set_feature(&mut self, name: &str, on: bool) -> Result<(), Unsupported> {
        let feature = Features::by_name(name).filter(is_made);
        let feature = feature.ok_or_else(|| cannot_make(name, None))?;
        if on {
            self.features.compat |= feature.compat;
            self.features.incompat |= feature.incompat;
            self.features.ro_compat |= feature.ro_compat;
        } else {
            self.features.compat -= feature.compat;
            self.features.incompat -= feature.incompat;
            self.features.ro_compat -= feature.ro_compat;
        }
        Ok(())
    }

    /// The features as they go together.
    pub(super) fn settled_features(&self) -> Result<Features, Unsupported> {
        let mut features = self.features;
        if features.has_metadata_csum() {
            // One checksum of the descriptors takes the place of the other.
            features.ro_compat -= RoCompat::GDT_CSUM;
        }
        let needs = |name, on: bool, other: &'static str, has: bool| {
            let missing = on && !has;
            missing
                .then(|| cannot_make(name, Some(other)))
                .map_or(Ok(()), Err)
        };
        let has_extents = features.incompat.contains(Incompat::EXTENTS);
        let has_seed = features.incompat.contains(Incompat::CSUM_SEED);
        let has_csum = features.has_metadata_csum();
        needs(
            "bigalloc",
            features.has_bigalloc(),
            "needs extent",
            has_extents,
        )?;
        needs(
            "metadata_csum_seed",
            has_seed,
            "needs metadata_csum",
            has_csum,
        )?;
        Ok(features)
    }
}

/// What a filesystem of some size gets unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeClass {
    pub(super) block_bytes: u32,
    pub(super) bytes_per_inode: u32,
}

/// Shorter filesystems have blocks of 1 KiB, and others of 4 KiB, where no size is asked for.
pub const SMALL_BLOCKS_END_BYTES: u64 = 512 * MIB;
const MIB: u64 = 1 << 20;

impl SizeClass {
    /// By the length of the device in bytes.
    pub(super) fn of(len_bytes: u64) -> Self {
        const SMALL_BLOCKS_END: u64 = SMALL_BLOCKS_END_BYTES / MIB;
        let (block_bytes, bytes_per_inode) = match len_bytes / MIB {
            0..3 => (1024, 8192),
            3..SMALL_BLOCKS_END => (1024, 4096),
            SMALL_BLOCKS_END..0x40_0000 => (4096, 16384),
            0x40_0000..0x100_0000 => (4096, 32768),
            _ => (4096, 65536),
        };
        Self {
            block_bytes,
            bytes_per_inode,
        }
    }
}

/// Blocks of the journal of a filesystem of `blocks`; none where it would be too small.
pub(super) fn journal_blocks(blocks: u64) -> Option<u32> {
    const KIB: u64 = 1 << 10;
    let count = match blocks {
        0..0x800 => return None,
        0x800..0x8000 => 1,
        0x8000..0x4_0000 => 4,
        0x4_0000..0x8_0000 => 8,
        0x8_0000..0x40_0000 => 16,
        0x40_0000..0x80_0000 => 32,
        0x80_0000..0x100_0000 => 64,
        0x100_0000..0x200_0000 => 128,
        _ => 256,
    };
    u32::try_from(count * KIB).ok()
}

fn is_made(features: &Features) -> bool {
    COMPAT.contains(features.compat)
        && INCOMPAT.contains(features.incompat)
        && RO_COMPAT.contains(features.ro_compat)
}

pub(super) fn cannot_make(feature: &str, reason: Option<&'static str>) -> Unsupported {
    Unsupported {
        filesystem: "ext4",
        feature: format!("making a filesystem with {feature}"),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_switched_by_name() {
        let mut options = MkfsOptions::new(Generation::Ext4);
        options.set_feature("has_journal", false).unwrap();
        options.set_feature("inline_data", true).unwrap();
        assert!(!options.features.has_journal());
        assert!(options.features.incompat.contains(Incompat::INLINE_DATA));
        for name in ["compression", "read-only", "nonsense"] {
            assert!(options.set_feature(name, true).is_err(), "{name}");
        }
    }

    #[test]
    fn features_that_need_others_are_refused_alone() {
        let mut options = MkfsOptions::new(Generation::Ext2);
        options.set_feature("bigalloc", true).unwrap();
        assert!(options.settled_features().is_err());
        options.set_feature("extent", true).unwrap();
        assert!(options.settled_features().is_ok());
        options.set_feature("metadata_csum_seed", true).unwrap();
        assert!(options.settled_features().is_err());
    }

    #[test]
    fn small_filesystems_have_small_blocks_and_no_journal() {
        assert_eq!(SizeClass::of(1 << 20).bytes_per_inode, 8192);
        assert_eq!(SizeClass::of(511 << 20).block_bytes, 1024);
        assert_eq!(SizeClass::of(512 << 20).block_bytes, 4096);
        assert_eq!(SizeClass::of(17 << 40).bytes_per_inode, 65536);
        assert_eq!(journal_blocks(2047), None);
        assert_eq!(journal_blocks(65536), Some(4096));
    }
}
