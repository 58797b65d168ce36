//! Options: those of mke2fs(8), with its defaults by type and size.

use platter_ondisk::Uuid;
use platter_vfs::Unsupported;

use crate::ondisk::Features;
use crate::ondisk::features::{Compat, Incompat, RoCompat};

/// Supported compatible features.
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
    .union(RoCompat::QUOTA)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY);

/// The filesystem type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Generation {
    /// Without a journal.
    Ext2,
    /// With a journal.
    Ext3,
    /// With extents and checksums.
    Ext4,
}

impl Generation {
    /// Returns the default features of mke2fs.
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

/// Options for making a filesystem. `None` is replaced by the default for type and size, as in
/// mke2fs.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// The features: those of a [`Generation`], with changes.
    pub features: Features,
    /// Block size in bytes: a power of two from 1 KiB to 64 KiB.
    pub block_bytes: Option<u32>,
    /// Cluster size in bytes, with `bigalloc`.
    pub cluster_bytes: Option<u32>,
    /// Inode size in bytes: a power of two from 128 to the block size.
    pub inode_bytes: Option<u16>,
    /// Inode ratio: bytes per inode.
    pub bytes_per_inode: Option<u32>,
    /// Number of inodes, which overrides the ratio; rounded up to full inode tables.
    pub inodes: Option<u32>,
    /// Minimum number of inodes.
    pub inodes_min: u32,
    /// Blocks reserved for the superuser, in hundredths of a percent.
    pub reserved: u32,
    /// Journal size in bytes.
    pub journal_bytes: Option<u64>,
    /// Groups per flex group, with `flex_bg`: a power of two.
    pub groups_per_flex: u32,
    /// The label, of at most 16 bytes.
    pub label: Vec<u8>,
    /// The UUID; random if `None`.
    pub uuid: Option<Uuid>,
    /// Seed of the directory hash; random if `None`.
    pub hash_seed: Option<Uuid>,
    /// User and group of the root directory; the superuser if `None`. `lost+found` always belongs
    /// to the superuser.
    pub root_owner: Option<(u32, u32)>,
    /// Zero the inode tables now instead of leaving them to the kernel (lazy initialization), if
    /// the device does not contain zeros anyway.
    pub zero_inode_tables: bool,
    /// RAID stride and stripe width in blocks.
    pub stripe: (u16, u32),
}

impl MkfsOptions {
    /// Returns the defaults of mke2fs.
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

    /// Sets or clears a feature, by its name in e2fsprogs.
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

    /// Returns the features after resolving dependencies.
    pub(super) fn final_features(&self) -> Result<Features, Unsupported> {
        let mut features = self.features;
        if features.has_metadata_csum() {
            // `metadata_csum` replaces the older descriptor checksums.
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

/// Defaults that depend on the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeClass {
    pub(super) block_bytes: u32,
    pub(super) bytes_per_inode: u32,
}

/// Filesystems below this size have a default block size of 1 KiB, others of 4 KiB.
pub const SMALL_BLOCKS_END_BYTES: u64 = 512 * MIB;
const MIB: u64 = 1 << 20;

impl SizeClass {
    /// Returns the defaults for a device length in bytes.
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

/// Returns the journal length for a filesystem of `blocks`; `None` if that is too small for one.
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
    fn features_need_their_dependencies() {
        let mut options = MkfsOptions::new(Generation::Ext2);
        options.set_feature("bigalloc", true).unwrap();
        assert!(options.final_features().is_err());
        options.set_feature("extent", true).unwrap();
        assert!(options.final_features().is_ok());
        options.set_feature("metadata_csum_seed", true).unwrap();
        assert!(options.final_features().is_err());
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
