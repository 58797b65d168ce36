//! What becomes of an inode when one of its ACLs is set (`set_posix_acl`, `posix_acl_update_mode`).

use super::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, PosixAcl};
use crate::{Condition, Context, FileKind, Result};

const SET_GROUP_ID: u32 = 0o2000;
const PERMISSION_BITS: u32 = 0o777;

/// The change of an inode that setting or removing an ACL is.
///
/// Linux gives the flags of `setxattr(2)` no meaning here: the ACL is set in any mode, and one that is not there is
/// removed without an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclChange {
    /// The list to store; `None` where none is left: an old one is removed.
    pub stored: Option<PosixAcl>,
    /// The permission bits that an access ACL comes with.
    bits: Option<u32>,
}

impl AclChange {
    /// The change that setting the attribute `name` of a `kind` of inode is; `None` if it is not an ACL.
    ///
    /// # Errors
    /// Those of [`PosixAcl::decode`]; `NotSupported` for symbolic links, `AccessDenied` for the default ACL of what is
    /// not a directory.
    pub fn setting(kind: FileKind, name: &[u8], value: &[u8]) -> Result<Option<Self>> {
        let is_access = name == ACL_ACCESS_NAME;
        if !is_access && name != ACL_DEFAULT_NAME {
            return Ok(None);
        }
        if kind == FileKind::Symlink {
            return Err(Condition::NotSupported.into());
        }
        let list = if value.is_empty() {
            None
        } else {
            PosixAcl::decode_if_any(value)?
        };
        let Some(list) = list else {
            return Ok(Some(Self::REMOVING));
        };
        if !is_access {
            if kind != FileKind::Directory {
                return Err(Condition::AccessDenied.into());
            }
            let stored = Some(list);
            return Ok(Some(Self { stored, bits: None }));
        }
        let bits = Some(list.mode_bits());
        // The permission bits say all of a minimal list.
        let stored = (!list.is_minimal()).then_some(list);
        Ok(Some(Self { stored, bits }))
    }

    /// The change that removing the attribute `name` of a `kind` of inode is; `None` if it is not an ACL.
    ///
    /// # Errors
    /// `NotSupported` for symbolic links.
    pub fn removing(kind: FileKind, name: &[u8]) -> Result<Option<Self>> {
        if name != ACL_ACCESS_NAME && name != ACL_DEFAULT_NAME {
            return Ok(None);
        }
        if kind == FileKind::Symlink {
            return Err(Condition::NotSupported.into());
        }
        Ok(Some(Self::REMOVING))
    }

    const REMOVING: Self = Self {
        stored: None,
        bits: None,
    };

    /// The permissions of an inode of group `gid` after the change, of `permissions` before: a user outside the group
    /// loses the set-group-ID bit.
    #[must_use]
    pub fn permissions(&self, permissions: u32, gid: u32, context: &Context) -> u32 {
        let Some(bits) = self.bits else {
            return permissions;
        };
        let credentials = &context.credentials;
        let keeps_group_id = credentials.is_superuser() || credentials.is_in_group(gid);
        let lost = if keeps_group_id { 0 } else { SET_GROUP_ID };
        (permissions & !PERMISSION_BITS | bits) & !lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{AclEntry, AclSubject};
    use crate::{Credentials, Error};

    const GROUP: u32 = 20;

    fn list(user: Option<u8>) -> PosixAcl {
        let entry = |subject, permissions| AclEntry {
            subject,
            permissions,
        };
        let named = user.map(|bits| {
            [
                entry(AclSubject::User(11), bits),
                entry(AclSubject::Mask, bits),
            ]
        });
        let mut entries = vec![
            entry(AclSubject::Owner, 0o6),
            entry(AclSubject::OwningGroup, 0o4),
            entry(AclSubject::Other, 0),
        ];
        entries.extend(named.into_iter().flatten());
        entries.sort_by_key(|entry| entry.subject.tag_and_id().0);
        PosixAcl::new(entries).unwrap()
    }

    fn setting(kind: FileKind, name: &[u8], value: &[u8]) -> AclChange {
        AclChange::setting(kind, name, value).unwrap().unwrap()
    }

    fn user(gid: u32) -> Context {
        Context {
            credentials: Credentials {
                uid: 1000,
                gid,
                groups: Vec::new(),
            },
            ..Context::root()
        }
    }

    #[test]
    fn access_lists_set_permission_bits() {
        let full = list(Some(0o7));
        let change = setting(FileKind::Regular, ACL_ACCESS_NAME, &full.encode());
        assert_eq!(change.stored, Some(full));
        assert_eq!(change.permissions(0o2604, GROUP, &user(GROUP)), 0o2670);
        assert_eq!(change.permissions(0o2604, GROUP, &user(7)), 0o670);
        assert_eq!(change.permissions(0o2604, GROUP, &Context::root()), 0o2670);
        let minimal = setting(FileKind::Regular, ACL_ACCESS_NAME, &list(None).encode());
        assert_eq!(minimal.stored, None);
        assert_eq!(minimal.permissions(0o4777, GROUP, &user(7)), 0o4640);
    }

    #[test]
    fn default_lists_and_removals_leave_permission_bits() {
        let minimal = list(None);
        let of_directory = setting(FileKind::Directory, ACL_DEFAULT_NAME, &minimal.encode());
        assert_eq!(of_directory.stored, Some(minimal));
        let empty = setting(FileKind::Regular, ACL_ACCESS_NAME, b"\x02\0\0\0");
        let removing = |kind, name: &[u8]| AclChange::removing(kind, name);
        let removed = removing(FileKind::Regular, ACL_DEFAULT_NAME).unwrap();
        assert_eq!(Some(&empty), removed.as_ref());
        assert_eq!(empty, setting(FileKind::Regular, ACL_DEFAULT_NAME, b""));
        assert!(removing(FileKind::Symlink, ACL_ACCESS_NAME).is_err());
        for change in [of_directory, empty] {
            assert_eq!(change.permissions(0o2755, GROUP, &user(7)), 0o2755);
        }
        assert_eq!(removing(FileKind::Symlink, b"user.a").unwrap(), None);
    }

    #[test]
    fn lists_are_refused_where_linux_has_none() {
        let refused = |kind, name, value: &[u8], condition| {
            let error = AclChange::setting(kind, name, value).unwrap_err();
            assert!(matches!(error, Error::Condition(found) if found == condition));
        };
        let value = list(None).encode();
        refused(
            FileKind::Symlink,
            ACL_ACCESS_NAME,
            &value,
            Condition::NotSupported,
        );
        refused(
            FileKind::Regular,
            ACL_DEFAULT_NAME,
            &value,
            Condition::AccessDenied,
        );
        refused(
            FileKind::Regular,
            ACL_ACCESS_NAME,
            b"no",
            Condition::InvalidArgument,
        );
        assert_eq!(
            AclChange::setting(FileKind::Symlink, b"user.a", b"").unwrap(),
            None
        );
    }
}
