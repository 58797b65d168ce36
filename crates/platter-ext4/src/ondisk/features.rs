//! The three feature words of the superblock, and their names in e2fsprogs.
//! Spec: `ext4/super`, "Feature flags".

use bitflags::bitflags;
use platter_vfs::{Feature, FeatureClass};

bitflags! {
    /// `s_feature_compat`: an unknown bit is ignored.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Compat: u32 {
        /// Directories preallocate blocks.
        const DIR_PREALLOC = 0x1;
        /// Inodes of AFS.
        const IMAGIC_INODES = 0x2;
        /// The filesystem has a journal.
        const HAS_JOURNAL = 0x4;
        /// The filesystem has extended attributes.
        const EXT_ATTR = 0x8;
        /// Blocks are reserved for growing the group descriptor table.
        const RESIZE_INODE = 0x10;
        /// Directories may be hashed.
        const DIR_INDEX = 0x20;
        /// Some groups were never initialized.
        const LAZY_BG = 0x40;
        /// An early snapshot format.
        const EXCLUDE_INODE = 0x80;
        /// An early snapshot format.
        const EXCLUDE_BITMAP = 0x100;
        /// At most two groups hold a superblock backup.
        const SPARSE_SUPER2 = 0x200;
        /// The journal ends in a fast commit area.
        const FAST_COMMIT = 0x400;
        /// Inode numbers and the UUID stay as they are.
        const STABLE_INODES = 0x800;
        /// There is an orphan file.
        const ORPHAN_FILE = 0x1000;
    }

    /// `s_feature_incompat`: an unknown bit prevents mounting.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Incompat: u32 {
        /// Files may be compressed. Never implemented.
        const COMPRESSION = 0x1;
        /// Directory entries store the file type.
        const FILETYPE = 0x2;
        /// The journal needs recovery.
        const RECOVER = 0x4;
        /// The device is an external journal, not a filesystem.
        const JOURNAL_DEV = 0x8;
        /// Group descriptors are spread over the groups they describe.
        const META_BG = 0x10;
        /// Files may be mapped by extents.
        const EXTENTS = 0x40;
        /// Block numbers are wider than 32 bits.
        const BIT64 = 0x80;
        /// Multiple mount protection: a block records the host that has the filesystem mounted.
        const MMP = 0x100;
        /// The bitmaps and inode tables of several groups are stored together.
        const FLEX_BG = 0x200;
        /// Large attribute values are stored in EA inodes.
        const EA_INODE = 0x400;
        /// Directory entries carry additional data.
        const DIRDATA = 0x1000;
        /// The checksum seed is stored, not derived from the UUID.
        const CSUM_SEED = 0x2000;
        /// Hashed directories may be three levels deep.
        const LARGE_DIR = 0x4000;
        /// Small files are stored in their inode.
        const INLINE_DATA = 0x8000;
        /// Files may be encrypted.
        const ENCRYPT = 0x1_0000;
        /// Directories may ignore case.
        const CASEFOLD = 0x2_0000;
    }

    /// `s_feature_ro_compat`: an unknown bit prevents writing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RoCompat: u32 {
        /// Only groups 0, 1 and powers of 3, 5 and 7 hold a superblock backup.
        const SPARSE_SUPER = 0x1;
        /// Files may be larger than 2 GiB.
        const LARGE_FILE = 0x2;
        /// Directories of an early experiment.
        const BTREE_DIR = 0x4;
        /// Files may be larger than 2 TiB; `i_blocks` may count filesystem blocks.
        const HUGE_FILE = 0x8;
        /// Group descriptors have a CRC-16 and groups may be uninitialized.
        const GDT_CSUM = 0x10;
        /// A directory with too many subdirectories to count has a link count of one.
        const DIR_NLINK = 0x20;
        /// Inodes have fields after the first 128 bytes.
        const EXTRA_ISIZE = 0x40;
        /// An early snapshot format.
        const HAS_SNAPSHOT = 0x80;
        /// The filesystem maintains quota files.
        const QUOTA = 0x100;
        /// Space is allocated in clusters of blocks.
        const BIGALLOC = 0x200;
        /// All metadata has a CRC-32C.
        const METADATA_CSUM = 0x400;
        /// Blocks are replicated. Never implemented.
        const REPLICA = 0x800;
        /// The filesystem must not be written.
        const READONLY = 0x1000;
        /// Inodes belong to projects.
        const PROJECT = 0x2000;
        /// Files may share blocks.
        const SHARED_BLOCKS = 0x4000;
        /// Files may be sealed with a Merkle tree.
        const VERITY = 0x8000;
        /// The orphan file holds entries.
        const ORPHAN_PRESENT = 0x1_0000;
    }
}

impl Incompat {
    /// Features that this driver reads.
    pub const SUPPORTED: Self = Self::FILETYPE
        .union(Self::RECOVER)
        .union(Self::META_BG)
        .union(Self::EXTENTS)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::CSUM_SEED)
        .union(Self::LARGE_DIR)
        .union(Self::INLINE_DATA)
        .union(Self::ENCRYPT)
        .union(Self::CASEFOLD);
}

impl RoCompat {
    /// Features with which this driver writes.
    pub const SUPPORTED: Self = Self::SPARSE_SUPER
        .union(Self::LARGE_FILE)
        .union(Self::BTREE_DIR)
        .union(Self::HUGE_FILE)
        .union(Self::GDT_CSUM)
        .union(Self::DIR_NLINK)
        .union(Self::EXTRA_ISIZE)
        .union(Self::QUOTA)
        .union(Self::BIGALLOC)
        .union(Self::METADATA_CSUM)
        .union(Self::PROJECT)
        .union(Self::VERITY)
        .union(Self::ORPHAN_PRESENT);
}

/// The three feature words, including unknown bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// Unknown bits are ignored.
    pub compat: Compat,
    /// Unknown bits prevent mounting.
    pub incompat: Incompat,
    /// Unknown bits prevent writing.
    pub ro_compat: RoCompat,
}

impl Features {
    /// Creates the set from the stored words.
    #[must_use]
    pub fn from_bits(compat: u32, incompat: u32, ro_compat: u32) -> Self {
        Self {
            compat: Compat::from_bits_retain(compat),
            incompat: Incompat::from_bits_retain(incompat),
            ro_compat: RoCompat::from_bits_retain(ro_compat),
        }
    }

    /// Returns the feature that e2fsprogs calls `name`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let bits = |class| {
            let found = table(class).iter().find(|(_, known)| *known == name);
            found.map_or(0, |&(bits, _)| bits)
        };
        let found = Self::from_bits(
            bits(FeatureClass::Compatible),
            bits(FeatureClass::Incompatible),
            bits(FeatureClass::ReadOnlyCompatible),
        );
        (found != Self::default()).then_some(found)
    }

    /// Whether all metadata has CRC-32C checksums.
    #[must_use]
    pub fn has_metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors have a checksum and groups may be uninitialized.
    #[must_use]
    pub fn has_group_csum(&self) -> bool {
        self.ro_compat
            .intersects(RoCompat::METADATA_CSUM.union(RoCompat::GDT_CSUM))
    }

    /// Whether the filesystem has a journal.
    #[must_use]
    pub fn has_journal(&self) -> bool {
        self.compat.contains(Compat::HAS_JOURNAL)
    }

    /// Whether the metadata of several groups is stored together.
    #[must_use]
    pub fn has_flex_bg(&self) -> bool {
        self.incompat.contains(Incompat::FLEX_BG)
    }

    /// Whether space is allocated in clusters.
    #[must_use]
    pub fn has_bigalloc(&self) -> bool {
        self.ro_compat.contains(RoCompat::BIGALLOC)
    }

    /// Returns the incompatible features that this driver does not read, by name or bit.
    #[must_use]
    pub fn unreadable(&self) -> Vec<String> {
        let bits = self.incompat.difference(Incompat::SUPPORTED).bits();
        names(FeatureClass::Incompatible, bits).collect()
    }

    /// Returns the features with which this driver does not write, by name or bit.
    #[must_use]
    pub fn unwritable(&self) -> Vec<String> {
        let bits = self.ro_compat.difference(RoCompat::SUPPORTED).bits();
        let ro_compat = names(FeatureClass::ReadOnlyCompatible, bits);
        self.unreadable().into_iter().chain(ro_compat).collect()
    }

    /// Returns the features that are set and have a name, in the order of e2fsprogs.
    #[must_use]
    pub fn describe(&self) -> Vec<Feature> {
        let words = [
            (FeatureClass::Compatible, self.compat.bits()),
            (FeatureClass::Incompatible, self.incompat.bits()),
            (FeatureClass::ReadOnlyCompatible, self.ro_compat.bits()),
        ];
        let mut features = Vec::new();
        for (class, bits) in words {
            let on = table(class).iter().filter(|(bit, _)| bits & bit != 0);
            features.extend(on.map(|&(_, name)| Feature {
                name: name.into(),
                class,
            }));
        }
        features
    }
}

fn names(class: FeatureClass, bits: u32) -> impl Iterator<Item = String> {
    let is_on = move |&shift: &u32| bits.checked_shr(shift).is_some_and(|rest| rest & 1 != 0);
    (0..u32::BITS).filter(is_on).map(move |shift| {
        let entry = table(class)
            .iter()
            .find(|&&(bit, _)| bit.trailing_zeros() == shift);
        entry.map_or_else(
            || format!("FEATURE_{}{shift}", class_letter(class)),
            |&(_, name)| name.to_owned(),
        )
    })
}

fn class_letter(class: FeatureClass) -> char {
    match class {
        FeatureClass::Compatible => 'C',
        FeatureClass::ReadOnlyCompatible => 'R',
        FeatureClass::Incompatible => 'I',
    }
}

fn table(class: FeatureClass) -> &'static [(u32, &'static str)] {
    match class {
        FeatureClass::Compatible => COMPAT_NAMES,
        FeatureClass::Incompatible => INCOMPAT_NAMES,
        FeatureClass::ReadOnlyCompatible => RO_COMPAT_NAMES,
    }
}

const COMPAT_NAMES: &[(u32, &str)] = &[
    (Compat::DIR_PREALLOC.bits(), "dir_prealloc"),
    (Compat::IMAGIC_INODES.bits(), "imagic_inodes"),
    (Compat::HAS_JOURNAL.bits(), "has_journal"),
    (Compat::EXT_ATTR.bits(), "ext_attr"),
    (Compat::RESIZE_INODE.bits(), "resize_inode"),
    (Compat::DIR_INDEX.bits(), "dir_index"),
    (Compat::LAZY_BG.bits(), "lazy_bg"),
    (Compat::EXCLUDE_INODE.bits(), "exclude_inode"),
    (Compat::EXCLUDE_BITMAP.bits(), "snapshot_bitmap"),
    (Compat::SPARSE_SUPER2.bits(), "sparse_super2"),
    (Compat::FAST_COMMIT.bits(), "fast_commit"),
    (Compat::STABLE_INODES.bits(), "stable_inodes"),
    (Compat::ORPHAN_FILE.bits(), "orphan_file"),
];

const INCOMPAT_NAMES: &[(u32, &str)] = &[
    (Incompat::COMPRESSION.bits(), "compression"),
    (Incompat::FILETYPE.bits(), "filetype"),
    (Incompat::RECOVER.bits(), "needs_recovery"),
    (Incompat::JOURNAL_DEV.bits(), "journal_dev"),
    (Incompat::META_BG.bits(), "meta_bg"),
    (Incompat::EXTENTS.bits(), "extent"),
    (Incompat::BIT64.bits(), "64bit"),
    (Incompat::MMP.bits(), "mmp"),
    (Incompat::FLEX_BG.bits(), "flex_bg"),
    (Incompat::EA_INODE.bits(), "ea_inode"),
    (Incompat::DIRDATA.bits(), "dirdata"),
    (Incompat::CSUM_SEED.bits(), "metadata_csum_seed"),
    (Incompat::LARGE_DIR.bits(), "large_dir"),
    (Incompat::INLINE_DATA.bits(), "inline_data"),
    (Incompat::ENCRYPT.bits(), "encrypt"),
    (Incompat::CASEFOLD.bits(), "casefold"),
];

const RO_COMPAT_NAMES: &[(u32, &str)] = &[
    (RoCompat::SPARSE_SUPER.bits(), "sparse_super"),
    (RoCompat::LARGE_FILE.bits(), "large_file"),
    (RoCompat::BTREE_DIR.bits(), "btree_dir"),
    (RoCompat::HUGE_FILE.bits(), "huge_file"),
    (RoCompat::GDT_CSUM.bits(), "uninit_bg"),
    (RoCompat::DIR_NLINK.bits(), "dir_nlink"),
    (RoCompat::EXTRA_ISIZE.bits(), "extra_isize"),
    (RoCompat::HAS_SNAPSHOT.bits(), "snapshot"),
    (RoCompat::QUOTA.bits(), "quota"),
    (RoCompat::BIGALLOC.bits(), "bigalloc"),
    (RoCompat::METADATA_CSUM.bits(), "metadata_csum"),
    (RoCompat::REPLICA.bits(), "replica"),
    (RoCompat::READONLY.bits(), "read-only"),
    (RoCompat::PROJECT.bits(), "project"),
    (RoCompat::SHARED_BLOCKS.bits(), "shared_blocks"),
    (RoCompat::VERITY.bits(), "verity"),
    (RoCompat::ORPHAN_PRESENT.bits(), "orphan_present"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_refused_by_name_or_bit() {
        let features = Features::from_bits(0x8000_0000, 0x4000_1042, 0x8000_4000);
        assert_eq!(features.unreadable(), ["dirdata", "FEATURE_I30"]);
        let unwritable = ["dirdata", "FEATURE_I30", "shared_blocks", "FEATURE_R31"];
        assert_eq!(features.unwritable(), unwritable);
    }

    #[test]
    fn names_are_in_the_order_of_e2fsprogs() {
        let features = Features::from_bits(0x4, 0x42, 0x410);
        let names: Vec<_> = features.describe().into_iter().map(|f| f.name).collect();
        assert_eq!(
            names,
            [
                "has_journal",
                "filetype",
                "extent",
                "uninit_bg",
                "metadata_csum"
            ]
        );
    }
}
