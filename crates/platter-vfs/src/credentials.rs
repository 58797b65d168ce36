//! Credentials of the caller.

/// The identity an operation is done for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Filesystem user id.
    pub uid: u32,
    /// Filesystem group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// The superuser, passing every permission check but that for executing a plain file.
    #[must_use]
    pub fn root() -> Self {
        Self {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        }
    }

    /// A user and a group, and no more groups.
    #[must_use]
    pub fn new(uid: u32, gid: u32) -> Self {
        let groups = Vec::new();
        Self { uid, gid, groups }
    }

    /// Whether it is the superuser.
    #[must_use]
    pub fn is_superuser(&self) -> bool {
        self.uid == 0
    }

    /// Whether `gid` is the group or one of the supplementary groups.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// What an operation that makes a file needs to know of its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Owner of what is made, and subject of permission checks.
    pub credentials: Credentials,
    /// Permission bits removed from a new file where no default ACL says otherwise.
    pub umask: u32,
}

impl Context {
    /// The superuser, without a umask: new files get exactly the requested bits.
    #[must_use]
    pub fn root() -> Self {
        Self {
            credentials: Credentials::root(),
            umask: 0,
        }
    }
}
