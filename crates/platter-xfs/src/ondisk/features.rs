//! The feature words of the superblock: `sb_versionnum` and `sb_features2` of all versions, and the
//! four words of version 5. Spec: `xfs/allocation_groups`, "Superblocks".

use bitflags::bitflags;
use platter_vfs::{Feature, FeatureClass};

bitflags! {
    /// `sb_versionnum` without the version in its low four bits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Version: u16 {
        /// There are, or were, attributes.
        const ATTR = 0x10;
        /// Inodes count links in 32 bits.
        const NLINK = 0x20;
        /// There are quota inodes.
        const QUOTA = 0x40;
        /// Inode chunks are aligned to `sb_inoalignmt`.
        const ALIGN = 0x80;
        /// `sb_unit` and `sb_width` describe a stripe.
        const DALIGN = 0x100;
        /// `sb_shared_vn` is in use.
        const SHARED = 0x200;
        /// The log has version 2.
        const LOGV2 = 0x400;
        /// Sectors are not 512 bytes long.
        const SECTOR = 0x800;
        /// Extents may be unwritten.
        const EXTFLG = 0x1000;
        /// Directories have version 2.
        const DIRV2 = 0x2000;
        /// Names are compared ignoring the case of ASCII letters.
        const BORG = 0x4000;
        /// `sb_features2` is in use.
        const MOREBITS = 0x8000;
    }

    /// `sb_features2`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Features2: u32 {
        /// Counters in the superblock are brought up to date when the filesystem is unmounted.
        const LAZYSBCOUNT = 0x2;
        /// Attribute forks begin where they fit best.
        const ATTR2 = 0x8;
        /// An early form of parent pointers.
        const PARENT = 0x10;
        /// Project numbers have 32 bits.
        const PROJID32BIT = 0x80;
        /// Metadata has checksums.
        const CRC = 0x100;
        /// Directory entries hold the type of the file.
        const FTYPE = 0x200;
    }

    /// `sb_features_compat`: an unknown one does no harm.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Compat: u32 {}

    /// `sb_features_ro_compat`: an unknown one forbids writing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RoCompat: u32 {
        /// Each group has a B-tree of inode chunks with free inodes.
        const FINOBT = 0x1;
        /// Each group has a B-tree of the owners of its blocks.
        const RMAPBT = 0x2;
        /// Each group has a B-tree of reference counts; files may share blocks.
        const REFLINK = 0x4;
        /// Group headers count the blocks of the inode B-trees.
        const INOBTCNT = 0x8;
    }

    /// `sb_features_incompat`: an unknown one forbids mounting.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Incompat: u32 {
        /// Directory entries hold the type of the file.
        const FTYPE = 0x1;
        /// Inode chunks may have holes.
        const SPINODES = 0x2;
        /// Metadata bears `sb_meta_uuid`.
        const META_UUID = 0x4;
        /// Times are counted in nanoseconds from 1901.
        const BIGTIME = 0x8;
        /// The filesystem must be repaired before it is mounted.
        const NEEDSREPAIR = 0x10;
        /// Inodes count extents in 64 and 32 bits.
        const NREXT64 = 0x20;
        /// Ranges of files may be exchanged.
        const EXCHRANGE = 0x40;
        /// Inodes hold parent pointers.
        const PARENT = 0x80;
        /// Metadata inodes are in a directory tree; the realtime device has groups.
        const METADIR = 0x100;
        /// The realtime device is zoned.
        const ZONED = 0x200;
        /// Zones are not contiguous.
        const ZONE_GAPS = 0x400;
    }

    /// `sb_features_log_incompat`: an unknown one forbids replaying the log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct LogIncompat: u32 {
        /// The log may hold attribute intents.
        const XATTRS = 0x1;
    }
}

impl Version {
    /// The bits that say which version it is.
    pub const NUMBER_MASK: u16 = 0xf;

    /// What a version 4 filesystem cannot lack: kernels refuse others.
    pub const REQUIRED: Self = Self::DIRV2.union(Self::EXTFLG);
}

impl Incompat {
    /// What this driver reads.
    pub const SUPPORTED: Self = Self::FTYPE
        .union(Self::SPINODES)
        .union(Self::META_UUID)
        .union(Self::BIGTIME)
        .union(Self::NEEDSREPAIR)
        .union(Self::NREXT64)
        .union(Self::EXCHRANGE)
        .union(Self::PARENT)
        .union(Self::METADIR);
}

/// All feature words, unknown bits included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// The version in the low four bits of `sb_versionnum`.
    pub number: u16,
    /// The other bits of `sb_versionnum`.
    pub version: Version,
    /// `sb_features2`.
    pub features2: Features2,
    /// May be ignored.
    pub compat: Compat,
    /// Forbids writing where unknown.
    pub ro_compat: RoCompat,
    /// Forbids mounting where unknown.
    pub incompat: Incompat,
    /// Forbids replaying the log where unknown.
    pub log_incompat: LogIncompat,
}

macro_rules! has {
    ($($(#[$doc:meta])* $name:ident: $word:ident $type:ident :: $flag:ident;)+) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $name(&self) -> bool {
                self.$word.contains($type::$flag)
            }
        )+
    };
}

impl Features {
    /// Whether metadata describes itself and has checksums.
    #[must_use]
    pub fn is_v5(&self) -> bool {
        self.number == 5
    }

    /// Whether directory entries hold the type of the file.
    #[must_use]
    pub fn has_ftype(&self) -> bool {
        if self.is_v5() {
            self.incompat.contains(Incompat::FTYPE)
        } else {
            self.features2.contains(Features2::FTYPE)
        }
    }

    /// Whether the superblock's counters are brought up to date only by an unmount.
    #[must_use]
    pub fn has_lazy_count(&self) -> bool {
        self.is_v5() || self.features2.contains(Features2::LAZYSBCOUNT)
    }

    /// Whether the attribute fork begins where it fits best.
    #[must_use]
    pub fn has_attr2(&self) -> bool {
        self.is_v5() || self.features2.contains(Features2::ATTR2)
    }

    /// Whether project numbers have 32 bits.
    #[must_use]
    pub fn has_projid32(&self) -> bool {
        self.is_v5() || self.features2.contains(Features2::PROJID32BIT)
    }

    /// Whether the realtime device is divided into groups.
    #[must_use]
    pub fn has_rtgroups(&self) -> bool {
        self.has_metadir()
    }

    has! {
        /// Whether there are quota inodes.
        has_quota: version Version::QUOTA;
        /// Whether inode chunks are aligned.
        has_align: version Version::ALIGN;
        /// Whether there is a stripe.
        has_dalign: version Version::DALIGN;
        /// Whether the log has version 2.
        has_logv2: version Version::LOGV2;
        /// Whether sectors are not 512 bytes long.
        has_sector: version Version::SECTOR;
        /// Whether names are compared ignoring the case of ASCII letters.
        has_ascii_ci: version Version::BORG;
        /// Whether groups have a B-tree of inode chunks with free inodes.
        has_finobt: ro_compat RoCompat::FINOBT;
        /// Whether groups have a B-tree of owners.
        has_rmapbt: ro_compat RoCompat::RMAPBT;
        /// Whether files may share blocks.
        has_reflink: ro_compat RoCompat::REFLINK;
        /// Whether group headers count the blocks of the inode B-trees.
        has_inobtcount: ro_compat RoCompat::INOBTCNT;
        /// Whether inode chunks may have holes.
        has_sparse_inodes: incompat Incompat::SPINODES;
        /// Whether metadata bears a UUID of its own.
        has_meta_uuid: incompat Incompat::META_UUID;
        /// Whether inodes may have times of 64 bits.
        has_bigtime: incompat Incompat::BIGTIME;
        /// Whether the filesystem must be repaired first.
        needs_repair: incompat Incompat::NEEDSREPAIR;
        /// Whether inodes may have wide extent counters.
        has_nrext64: incompat Incompat::NREXT64;
        /// Whether ranges of files may be exchanged.
        has_exchange_range: incompat Incompat::EXCHRANGE;
        /// Whether inodes hold parent pointers.
        has_parent: incompat Incompat::PARENT;
        /// Whether metadata inodes are in a directory tree.
        has_metadir: incompat Incompat::METADIR;
    }

    /// The features that this driver does not read, by name or bit.
    #[must_use]
    pub fn unreadable(&self) -> Vec<String> {
        let version = u32::from(self.version.difference(Version::all()).bits());
        let features2 = if self.version.contains(Version::MOREBITS) {
            self.features2.difference(Features2::all()).bits()
        } else {
            0
        };
        let incompat = self.incompat.difference(Incompat::SUPPORTED).bits();
        names(VERSION_NAMES, "version", version)
            .chain(names(FEATURES2_NAMES, "features2", features2))
            .chain(names(INCOMPAT_NAMES, "incompat", incompat))
            .collect()
    }

    /// The features that keep this driver from writing, by name or bit.
    #[must_use]
    pub fn unwritable(&self) -> Vec<String> {
        let ro_compat = self.ro_compat.difference(RoCompat::all()).bits();
        let mut found = self.unreadable();
        found.extend(names(RO_COMPAT_NAMES, "ro_compat", ro_compat));
        if self.needs_repair() {
            found.push("needsrepair".to_owned());
        }
        found
    }

    /// The features of the log that are not known, by bit.
    #[must_use]
    pub fn unreplayable(&self) -> Vec<String> {
        let bits = self.log_incompat.difference(LogIncompat::all()).bits();
        names(LOG_INCOMPAT_NAMES, "log_incompat", bits).collect()
    }

    /// The features that are on and have a name, word by word.
    #[must_use]
    pub fn describe(&self) -> Vec<Feature> {
        use FeatureClass::{Incompatible, ReadOnlyCompatible};
        let words = [
            (VERSION_NAMES, u32::from(self.version.bits()), Incompatible),
            (FEATURES2_NAMES, self.features2.bits(), Incompatible),
            (RO_COMPAT_NAMES, self.ro_compat.bits(), ReadOnlyCompatible),
            (INCOMPAT_NAMES, self.incompat.bits(), Incompatible),
            (LOG_INCOMPAT_NAMES, self.log_incompat.bits(), Incompatible),
        ];
        let mut features: Vec<Feature> = Vec::new();
        for (table, bits, class) in words {
            for &(bit, name) in table {
                let is_new = features.iter().all(|feature| feature.name != name);
                if bits & bit != 0 && is_new {
                    features.push(Feature {
                        name: name.into(),
                        class,
                    });
                }
            }
        }
        features
    }
}

type Names = &'static [(u32, &'static str)];

fn names(table: Names, word: &'static str, bits: u32) -> impl Iterator<Item = String> {
    let is_on = move |&shift: &u32| bits.checked_shr(shift).is_some_and(|rest| rest & 1 != 0);
    (0..u32::BITS).filter(is_on).map(move |shift| {
        let known = table.iter().find(|(bit, _)| bit.trailing_zeros() == shift);
        known.map_or_else(
            || format!("{word} bit {shift}"),
            |&(_, name)| name.to_owned(),
        )
    })
}

/// Names of `mkfs.xfs` and `xfs_info`, else of `version` in `xfs_db`.
const VERSION_NAMES: Names = &[
    (0x10, "attr"),
    (0x20, "nlink"),
    (0x40, "quota"),
    (0x80, "align"),
    (0x100, "dalign"),
    (0x200, "shared"),
    (0x400, "logv2"),
    (0x800, "sector"),
    (0x1000, "unwritten"),
    (0x2000, "dirv2"),
    (0x4000, "ascii-ci"),
    (0x8000, "morebits"),
];

const FEATURES2_NAMES: Names = &[
    (Features2::LAZYSBCOUNT.bits(), "lazy-count"),
    (Features2::ATTR2.bits(), "attr2"),
    (Features2::PARENT.bits(), "parent"),
    (Features2::PROJID32BIT.bits(), "projid32bit"),
    (Features2::CRC.bits(), "crc"),
    (Features2::FTYPE.bits(), "ftype"),
];

const RO_COMPAT_NAMES: Names = &[
    (RoCompat::FINOBT.bits(), "finobt"),
    (RoCompat::RMAPBT.bits(), "rmapbt"),
    (RoCompat::REFLINK.bits(), "reflink"),
    (RoCompat::INOBTCNT.bits(), "inobtcount"),
];

const INCOMPAT_NAMES: Names = &[
    (Incompat::FTYPE.bits(), "ftype"),
    (Incompat::SPINODES.bits(), "sparse"),
    (Incompat::META_UUID.bits(), "metauuid"),
    (Incompat::BIGTIME.bits(), "bigtime"),
    (Incompat::NEEDSREPAIR.bits(), "needsrepair"),
    (Incompat::NREXT64.bits(), "nrext64"),
    (Incompat::EXCHRANGE.bits(), "exchange"),
    (Incompat::PARENT.bits(), "parent"),
    (Incompat::METADIR.bits(), "metadir"),
    (Incompat::ZONED.bits(), "zoned"),
    (Incompat::ZONE_GAPS.bits(), "zone-gaps"),
];

const LOG_INCOMPAT_NAMES: Names = &[(LogIncompat::XATTRS.bits(), "xattrs")];

#[cfg(test)]
mod tests {
    use super::*;

    fn v5() -> Features {
        Features {
            number: 5,
            version: Version::from_bits_retain(0xb4a0),
            features2: Features2::from_bits_retain(0x18a),
            ro_compat: RoCompat::from_bits_retain(0xf),
            incompat: Incompat::from_bits_retain(0xb),
            ..Features::default()
        }
    }

    #[test]
    fn unknown_features_are_refused_by_name_or_bit() {
        assert!(v5().unwritable().is_empty());
        let mut features = v5();
        features.incompat = Incompat::from_bits_retain(0x8000_0210);
        features.ro_compat = RoCompat::from_bits_retain(0x10);
        features.log_incompat = LogIncompat::from_bits_retain(0x3);
        assert_eq!(features.unreadable(), ["zoned", "incompat bit 31"]);
        let unwritable = ["zoned", "incompat bit 31", "ro_compat bit 4", "needsrepair"];
        assert_eq!(features.unwritable(), unwritable);
        assert_eq!(features.unreplayable(), ["log_incompat bit 1"]);
    }

    #[test]
    fn unknown_features_of_version_4_are_refused() {
        let features = Features {
            number: 4,
            version: Version::from_bits_retain(0xb280),
            features2: Features2::from_bits_retain(0x1008),
            ..Features::default()
        };
        assert_eq!(features.unreadable(), ["features2 bit 12"]);
    }

    #[test]
    fn file_types_in_entries_have_a_bit_in_each_version() {
        assert!(v5().has_ftype());
        let mut features = v5();
        features.number = 4;
        assert!(!features.has_ftype());
        features.features2 |= Features2::FTYPE;
        assert!(features.has_ftype());
    }

    #[test]
    fn features_have_the_names_of_mkfs() {
        let names: Vec<_> = v5().describe().into_iter().map(|f| f.name).collect();
        let expected = "nlink align logv2 unwritten dirv2 morebits lazy-count attr2 projid32bit crc \
                        finobt rmapbt reflink inobtcount ftype sparse bigtime";
        assert_eq!(names.join(" "), expected);
    }
}
