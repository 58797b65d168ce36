//! Who owns a new file, and what may be done with it.

use crate::{Attr, Context, FileKind};

const SET_GROUP_ID: u32 = 0o2000;

/// The owner and permission bits of a file about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewOwner {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits, umask applied.
    pub permissions: u32,
}

impl NewOwner {
    /// The owner and bits that a file of `kind` gets in `dir`: a set-group-id directory hands its
    /// group down, and to directories the bit too. Whether the caller may make such a file at all is
    /// not its business.
    #[must_use]
    pub fn in_directory(dir: &Attr, context: &Context, kind: FileKind, permissions: u32) -> Self {
        let credentials = &context.credentials;
        let mut permissions = permissions & 0o7777 & !context.umask;
        let mut gid = credentials.gid;
        if dir.permissions & SET_GROUP_ID != 0 {
            gid = dir.gid;
            if kind == FileKind::Directory {
                permissions |= SET_GROUP_ID;
            }
        }
        Self {
            uid: credentials.uid,
            gid,
            permissions,
        }
    }
}
