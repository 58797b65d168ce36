//! Metadata inodes: files and directories that the filesystem keeps for itself.
//! Spec: `xfs-headers/xfs_format.h`, `enum xfs_metafile_type`.

/// `di_metatype`: what the filesystem keeps in a metadata inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum MetafileKind {
    /// A directory of the metadata directory tree.
    Directory = 1,
    /// Quota of users.
    UserQuota = 2,
    /// Quota of groups.
    GroupQuota = 3,
    /// Quota of projects.
    ProjectQuota = 4,
    /// The bitmap of a realtime group.
    RtBitmap = 5,
    /// The summary of a realtime group.
    RtSummary = 6,
    /// The owners of the extents of a realtime group, a B-tree.
    RtRmap = 7,
    /// The reference counts of a realtime group, a B-tree.
    RtRefcount = 8,
}

impl MetafileKind {
    const ALL: [Self; 8] = [
        Self::Directory,
        Self::UserQuota,
        Self::GroupQuota,
        Self::ProjectQuota,
        Self::RtBitmap,
        Self::RtSummary,
        Self::RtRmap,
        Self::RtRefcount,
    ];

    /// The kind with this number.
    #[must_use]
    pub fn of(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}
