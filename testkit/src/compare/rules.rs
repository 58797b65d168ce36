//! Which properties two trees must share.

/// What is compared in addition to names, kinds, contents, link targets and permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one independent question"
)]
pub struct Rules {
    /// Inode numbers.
    pub numbers: bool,
    /// Allocated space, sizes of directories, I/O sizes, types in directories.
    pub layout: bool,
    /// Where holes and data lie.
    pub holes: bool,
    /// Access, modification, change and creation times to the nanosecond.
    pub times: bool,
    /// Whole seconds of the modification time of everything but directories.
    pub modified_seconds: bool,
    /// Owner and group.
    pub owners: bool,
    /// Link counts.
    pub links: bool,
    /// Extended attributes, all namespaces.
    pub xattrs: bool,
    /// What `statfs` says.
    pub statfs: bool,
}

impl Rules {
    /// The host's tree is a kernel mount of the same image: everything is the same.
    pub const KERNEL_MOUNT: Self = Self {
        numbers: true,
        layout: true,
        holes: true,
        times: true,
        modified_seconds: true,
        owners: true,
        links: true,
        xattrs: true,
        statfs: true,
    };

    /// The host's tree is a directory that `mke2fs -d` copied from.
    pub const SOURCE_DIR: Self = Self {
        numbers: false,
        layout: false,
        holes: false,
        times: false,
        modified_seconds: true,
        owners: true,
        links: true,
        xattrs: true,
        statfs: false,
    };
}
