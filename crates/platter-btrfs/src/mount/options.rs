//! Mount options, under the kernel's names.

use std::time::Duration;

use crate::ops::DataPolicy;
use crate::txn::WriteOptions;

/// Which subvolume becomes the root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SubvolumeChoice {
    /// The default one.
    #[default]
    Default,
    /// `subvol=`: by its path from the top-level subvolume.
    Path(Vec<u8>),
    /// `subvolid=`: by its number.
    Id(u64),
    /// Both: by its path, if it has this number.
    PathAndId(Vec<u8>, u64),
}

impl SubvolumeChoice {
    /// This choice with `subvol=` added.
    #[must_use]
    pub fn with_path(self, path: Vec<u8>) -> Self {
        match self {
            Self::Default | Self::Path(_) => Self::Path(path),
            Self::Id(id) | Self::PathAndId(_, id) => Self::PathAndId(path, id),
        }
    }

    /// This choice with `subvolid=` added.
    #[must_use]
    pub fn with_id(self, id: u64) -> Self {
        match self {
            Self::Default | Self::Id(_) => Self::Id(id),
            Self::Path(path) | Self::PathAndId(path, _) => Self::PathAndId(path, id),
        }
    }
}

/// `rescue=`: what to do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
pub struct Rescue {
    /// `usebackuproot`: begin with the roots of an earlier transaction if the latest are unreadable.
    pub uses_backup_root: bool,
    /// `nologreplay`: leave log trees alone.
    pub skips_log: bool,
    /// `ignorebadroots`: do without trees that are not needed to read files.
    pub ignores_bad_roots: bool,
    /// `ignoredatacsums`: do not verify data.
    pub ignores_data_checksums: bool,
    /// `ignoremetacsums`: take tree blocks of which no copy matches its checksum.
    pub ignores_metadata_checksums: bool,
    /// `ignoresuperflags`: ignore flags of the superblock that are not known.
    pub ignores_superblock_flags: bool,
}

impl Rescue {
    /// `all`.
    pub const ALL: Self = Self {
        uses_backup_root: true,
        skips_log: true,
        ignores_bad_roots: true,
        ignores_data_checksums: true,
        ignores_metadata_checksums: true,
        ignores_superblock_flags: true,
    };

    /// Whether the kernel never writes to a filesystem that is mounted so: with all but `usebackuproot`.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let others = Self {
            uses_backup_root: false,
            ..*self
        };
        others != Self::default()
    }

    /// Adds what a value of the option asks for: names with colons between them. Returns `false` if one
    /// is not known.
    #[must_use]
    pub fn add(&mut self, value: &str) -> bool {
        value.split(':').all(|name| self.add_one(name))
    }

    fn add_one(&mut self, name: &str) -> bool {
        match name {
            "usebackuproot" => self.uses_backup_root = true,
            "nologreplay" => self.skips_log = true,
            "ignorebadroots" | "ibadroots" => self.ignores_bad_roots = true,
            "ignoredatacsums" | "idatacsums" => self.ignores_data_checksums = true,
            "ignoremetacsums" | "imetacsums" => self.ignores_metadata_checksums = true,
            "ignoresuperflags" | "isuperflags" => self.ignores_superblock_flags = true,
            "all" => *self = Self::ALL,
            _ => return false,
        }
        true
    }
}

/// How to mount.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// The root.
    pub subvolume: SubvolumeChoice,
    /// `degraded`: mount although devices are missing.
    pub degraded: bool,
    /// `rescue=`.
    pub rescue: Rescue,
    /// Where the superblock lies, if not at its first place.
    pub superblock_offset: Option<u64>,
    /// `commit`: how often changes are made durable without being asked; `None` for never.
    pub commit_interval: Option<Duration>,
    /// `compress`, `compress-force`, `nodatacow`, `nodatasum`.
    pub data: DataPolicy,
    /// How transactions are made.
    pub transactions: WriteOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rescue_takes_the_names_of_the_kernel() {
        let mut rescue = Rescue::default();
        assert!(rescue.add("usebackuproot:idatacsums"));
        assert!(rescue.uses_backup_root && rescue.ignores_data_checksums);
        assert!(!rescue.skips_log && !rescue.ignores_bad_roots);
        assert!(rescue.add("nologreplay:ibadroots"));
        assert_ne!(rescue, Rescue::ALL);
        assert!(rescue.add("imetacsums:isuperflags"));
        assert_eq!(rescue, Rescue::ALL);
        assert!(!rescue.add("all:other"));
    }
}
