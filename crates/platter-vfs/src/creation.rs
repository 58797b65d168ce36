//! Owner, group and permission bits of a new file.

use crate::{Attr, Context, FileKind, PosixAcl};

const SET_GROUP_ID: u32 = 0o2000;

/// What a file about to be made takes from its maker and its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub permissions: u32,
    /// Its access ACL, where that says more than the bits.
    pub access_acl: Option<PosixAcl>,
    /// Whether the directory's default ACL becomes its own.
    pub inherits_default_acl: bool,
}

impl NewFile {
    /// What a file of `kind` gets in `dir`: a set-group-id directory hands its group down, and to
    /// directories the bit too; a default ACL takes the place of the umask.
    ///
    /// Whether the caller may make such a file at all is asked in
    /// [`permission`](crate::permission).
    #[must_use]
    pub fn in_directory(
        dir: &Attr,
        default_acl: Option<&PosixAcl>,
        context: &Context,
        kind: FileKind,
        permissions: u32,
    ) -> Self {
        let default_acl = default_acl.filter(|_| kind != FileKind::Symlink);
        let mut permissions = permissions & 0o7777;
        let access_acl = default_acl.map(|default| default.inherited(permissions));
        match &access_acl {
            Some(acl) => permissions = permissions & !0o777 | acl.mode_bits(),
            None if kind == FileKind::Symlink => permissions = 0o777,
            None => permissions &= !context.umask,
        }
        let takes_group = dir.permissions & SET_GROUP_ID != 0;
        if takes_group && kind == FileKind::Directory {
            permissions |= SET_GROUP_ID;
        }
        Self {
            uid: context.credentials.uid,
            gid: if takes_group {
                dir.gid
            } else {
                context.credentials.gid
            },
            permissions,
            access_acl: access_acl.filter(|acl| !acl.is_minimal()),
            inherits_default_acl: default_acl.is_some() && kind == FileKind::Directory,
        }
    }
}
