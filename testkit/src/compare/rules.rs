//! Which properties two trees must share.

use platter_vfs::Timestamp;

/// What is compared in addition to names, kinds, contents, link targets and permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one independent question"
)]
pub struct Rules {
    /// Inode numbers; of a btrfs those of the subvolume that is mounted, since others have numbers of their own there.
    pub numbers: bool,
    /// The host's number of directories that stand for subvolumes in snapshots, whose numbers, times and flags the
    /// kernel makes up: these are not compared.
    pub stub_number: Option<u64>,
    /// Allocated space, sizes of directories, I/O sizes, types in directories.
    pub layout: bool,
    /// Where holes and data lie.
    pub holes: bool,
    /// Access, modification, change and creation times to the nanosecond.
    pub times: bool,
    /// When the kernel began to replay a log. Change times from then on are those of names that the replay added or
    /// removed, and are not compared, nor are the modification times of such directories.
    pub replayed_since: Option<Timestamp>,
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
        stub_number: None,
        layout: true,
        holes: true,
        times: true,
        replayed_since: None,
        modified_seconds: true,
        owners: true,
        links: true,
        xattrs: true,
        statfs: true,
    };

    /// The host's tree is a directory that `mke2fs -d` copied from.
    pub const SOURCE_DIR: Self = Self {
        numbers: false,
        stub_number: None,
        layout: false,
        holes: false,
        times: false,
        replayed_since: None,
        modified_seconds: true,
        owners: true,
        links: true,
        xattrs: true,
        statfs: false,
    };
}
