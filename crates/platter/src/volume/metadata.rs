//! The attributes of a file.

use std::time::{Duration, SystemTime};

use platter_vfs::{Attr, FileKind, Timestamp};

/// The attributes of a file, as [`std::fs::Metadata`] has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata(Attr);

impl Metadata {
    /// The type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.0.kind
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.0.kind == FileKind::Regular
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.0.kind == FileKind::Directory
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.0.kind == FileKind::Symlink
    }

    /// The size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.0.size_bytes
    }

    /// The permission bits with set-id and sticky: `mode & 0o7777`.
    #[must_use]
    pub fn permissions(&self) -> u32 {
        self.0.permissions
    }

    /// The type and permission bits together, as `st_mode`.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.0.mode()
    }

    /// The inode number, which is unique in the filesystem.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.inode
    }

    /// The number of names.
    #[must_use]
    pub fn nlink(&self) -> u32 {
        self.0.links
    }

    /// The owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// The allocated space in units of 512 bytes.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.sectors
    }

    /// The time of the last change of the contents.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.modified)
    }

    /// The time of the last read.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.accessed)
    }

    /// The time of the last change of the contents or attributes.
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.changed)
    }

    /// The time of creation, where the format has it.
    #[must_use]
    pub fn created(&self) -> Option<SystemTime> {
        self.0.created.map(system_time)
    }

    /// The attributes as drivers return them.
    #[must_use]
    pub fn attr(&self) -> &Attr {
        &self.0
    }
}

impl From<Attr> for Metadata {
    fn from(attr: Attr) -> Self {
        Self(attr)
    }
}

/// A time of a file. Times that `SystemTime` cannot hold do not exist on 64-bit Linux.
fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
    let time = whole.and_then(|whole| whole.checked_add(nanoseconds));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}
