//! The filesystem types that tests know, by the kernel's names.

/// A filesystem type.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// ext2, ext3 and ext4, which the ext4 driver mounts.
    #[default]
    Ext4,
    /// btrfs.
    Btrfs,
    /// XFS.
    Xfs,
}

impl FsType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Btrfs, Self::Xfs];

    /// The name that `mount -t` takes.
    #[must_use]
    pub const fn kernel_name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|known| known.kernel_name() == name)
    }
}
