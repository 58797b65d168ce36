//! Feature bits of the superblock and the features that this driver knows. Spec: `btrfs/features`.

use bitflags::bitflags;

bitflags! {
    /// `incompat_flags`: a driver that does not know one of them must not mount.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Incompat: u64 {
        /// References of the current form.
        const MIXED_BACKREF = 1 << 0;
        /// A default subvolume was set.
        const DEFAULT_SUBVOL = 1 << 1;
        /// Block groups hold data and metadata together.
        const MIXED_GROUPS = 1 << 2;
        /// Data compressed with LZO.
        const COMPRESS_LZO = 1 << 3;
        /// Data compressed with zstd.
        const COMPRESS_ZSTD = 1 << 4;
        /// Tree blocks larger than a page.
        const BIG_METADATA = 1 << 5;
        /// Extended inode references.
        const EXTENDED_IREF = 1 << 6;
        /// Chunks with parity.
        const RAID56 = 1 << 7;
        /// Metadata items instead of extent items for tree blocks.
        const SKINNY_METADATA = 1 << 8;
        /// Holes have no file extent items.
        const NO_HOLES = 1 << 9;
        /// Tree blocks carry `metadata_uuid` instead of `fsid`.
        const METADATA_UUID = 1 << 10;
        /// Chunks with three or four copies.
        const RAID1C34 = 1 << 11;
        /// Zoned devices.
        const ZONED = 1 << 12;
        /// Several extent trees.
        const EXTENT_TREE_V2 = 1 << 13;
        /// Mapping of data by a tree of its own.
        const RAID_STRIPE_TREE = 1 << 14;
        /// Simple quotas.
        const SIMPLE_QUOTA = 1 << 16;
        /// Relocated block groups by a tree of their own.
        const REMAP_TREE = 1 << 17;
    }
}

bitflags! {
    /// `compat_ro_flags`: a driver that does not know one of them must not write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct CompatRo: u64 {
        /// Free space is kept in a tree.
        const FREE_SPACE_TREE = 1 << 0;
        /// That tree is up to date.
        const FREE_SPACE_TREE_VALID = 1 << 1;
        /// Files with fs-verity.
        const VERITY = 1 << 2;
        /// Block group items are in a tree of their own.
        const BLOCK_GROUP_TREE = 1 << 3;
    }
}

/// The features that this driver reads.
const READABLE: Incompat = Incompat::all()
    .difference(Incompat::ZONED)
    .difference(Incompat::EXTENT_TREE_V2)
    .difference(Incompat::RAID_STRIPE_TREE)
    .difference(Incompat::REMAP_TREE);

/// The names of btrfs-progs.
const INCOMPAT_NAMES: [(Incompat, &str); 17] = [
    (Incompat::MIXED_BACKREF, "mixed-backref"),
    (Incompat::DEFAULT_SUBVOL, "default-subvol"),
    (Incompat::MIXED_GROUPS, "mixed-bg"),
    (Incompat::COMPRESS_LZO, "compress-lzo"),
    (Incompat::COMPRESS_ZSTD, "compress-zstd"),
    (Incompat::BIG_METADATA, "big-metadata"),
    (Incompat::EXTENDED_IREF, "extref"),
    (Incompat::RAID56, "raid56"),
    (Incompat::SKINNY_METADATA, "skinny-metadata"),
    (Incompat::NO_HOLES, "no-holes"),
    (Incompat::METADATA_UUID, "metadata-uuid"),
    (Incompat::RAID1C34, "raid1c34"),
    (Incompat::ZONED, "zoned"),
    (Incompat::EXTENT_TREE_V2, "extent-tree-v2"),
    (Incompat::RAID_STRIPE_TREE, "raid-stripe-tree"),
    (Incompat::SIMPLE_QUOTA, "squota"),
    (Incompat::REMAP_TREE, "remap-tree"),
];

/// The names of btrfs-progs.
const COMPAT_RO_NAMES: [(CompatRo, &str); 4] = [
    (CompatRo::FREE_SPACE_TREE, "free-space-tree"),
    (CompatRo::FREE_SPACE_TREE_VALID, "free-space-tree-valid"),
    (CompatRo::VERITY, "verity"),
    (CompatRo::BLOCK_GROUP_TREE, "block-group-tree"),
];

/// The feature sets of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// `compat_flags`; none is defined.
    pub compat: u64,
    /// `compat_ro_flags`.
    pub compat_ro: CompatRo,
    /// `incompat_flags`.
    pub incompat: Incompat,
}

impl Features {
    /// The names of the incompatible features that this driver does not read; a bit without a name
    /// by its number.
    #[must_use]
    pub fn unreadable(&self) -> Vec<String> {
        let unreadable = self.incompat.difference(READABLE);
        named_or_bits(unreadable.bits(), &INCOMPAT_NAMES, Incompat::bits)
    }

    /// The names of the incompatible features that are on.
    #[must_use]
    pub fn incompat_names(&self) -> Vec<&'static str> {
        let is_on = |(flag, _): &&(Incompat, _)| self.incompat.contains(*flag);
        let on = INCOMPAT_NAMES.iter().filter(is_on);
        on.map(|(_, name)| *name).collect()
    }

    /// The names of the read-only compatible features that are on.
    #[must_use]
    pub fn compat_ro_names(&self) -> Vec<&'static str> {
        let is_on = |(flag, _): &&(CompatRo, _)| self.compat_ro.contains(*flag);
        let on = COMPAT_RO_NAMES.iter().filter(is_on);
        on.map(|(_, name)| *name).collect()
    }
}

/// The names of the bits that are set; those without a name by their number.
fn named_or_bits<F>(bits: u64, names: &[(F, &'static str)], of: fn(&F) -> u64) -> Vec<String> {
    let set = (0..u64::BITS).filter_map(|bit| 1u64.checked_shl(bit).filter(|bit| bits & bit != 0));
    set.map(|bit| {
        let named = names.iter().find(|(flag, _)| of(flag) == bit);
        named.map_or_else(
            || format!("incompat feature {bit:#x}"),
            |(_, name)| (*name).to_owned(),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_features_are_named() {
        let mut features = Features {
            incompat: READABLE,
            ..Features::default()
        };
        assert!(features.unreadable().is_empty());
        features.incompat |= Incompat::ZONED | Incompat::from_bits_retain(1 << 40);
        assert_eq!(
            features.unreadable(),
            ["zoned", "incompat feature 0x10000000000"]
        );
    }

    #[test]
    fn features_have_the_names_of_mkfs() {
        let features = Features {
            compat: 0,
            compat_ro: CompatRo::FREE_SPACE_TREE | CompatRo::BLOCK_GROUP_TREE,
            incompat: Incompat::EXTENDED_IREF | Incompat::NO_HOLES,
        };
        assert_eq!(features.incompat_names(), ["extref", "no-holes"]);
        let names = features.compat_ro_names();
        assert_eq!(names, ["free-space-tree", "block-group-tree"]);
    }
}
