//! Full names of attributes, and the namespaces they are stored in.

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::xattr::XATTR_NAME_LEN_MAX;
use platter_vfs::{Condition, Result};

use crate::ondisk::attr::Namespace;

/// The attributes that hold access control lists.
const ACLS: [(&[u8], &[u8]); 2] = [
    (ACL_ACCESS_NAME, b"SGI_ACL_FILE"),
    (ACL_DEFAULT_NAME, b"SGI_ACL_DEFAULT"),
];

const PREFIXES: [(Namespace, &[u8]); 3] = [
    (Namespace::User, b"user."),
    (Namespace::Root, b"trusted."),
    (Namespace::Secure, b"security."),
];

/// A name as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttrName<'a> {
    pub(crate) namespace: Namespace,
    pub(crate) name: &'a [u8],
    /// The value is an access control list, and was asked for as one.
    pub(crate) is_acl: bool,
}

impl<'a> AttrName<'a> {
    pub(crate) fn parse(name: &'a [u8]) -> Result<Self> {
        if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
            return Err(Condition::OutOfRange.into());
        }
        if let Some(&(_, stored)) = ACLS.iter().find(|(shown, _)| *shown == name) {
            return Ok(Self {
                namespace: Namespace::Root,
                name: stored,
                is_acl: true,
            });
        }
        let split = |&(namespace, prefix): &(Namespace, &[u8])| {
            Some((namespace, name.strip_prefix(prefix)?))
        };
        let (namespace, name) = PREFIXES
            .iter()
            .find_map(split)
            .ok_or(Condition::NotSupported)?;
        if name.is_empty() {
            return Err(Condition::InvalidArgument.into());
        }
        Ok(Self {
            namespace,
            name,
            is_acl: false,
        })
    }
}

/// The full names of a stored one; none for a pointer to a parent.
pub(super) fn full_names(namespace: Namespace, name: &[u8]) -> Vec<Vec<u8>> {
    let is_it = |entry: &&(Namespace, &[u8])| entry.0 == namespace;
    let Some((_, prefix)) = PREFIXES.iter().find(is_it) else {
        return Vec::new();
    };
    let acl = ACLS.iter().find(|(_, stored)| *stored == name);
    let acl = acl.filter(|_| namespace == Namespace::Root);
    let mut names: Vec<_> = acl.map(|(shown, _)| shown.to_vec()).into_iter().collect();
    names.push([prefix, name].concat());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (full, namespace, stored) in [
            (&b"user.comment"[..], Namespace::User, &b"comment"[..]),
            (
                b"trusted.overlay.opaque",
                Namespace::Root,
                b"overlay.opaque",
            ),
            (b"security.selinux", Namespace::Secure, b"selinux"),
        ] {
            let parsed = AttrName::parse(full).unwrap();
            assert_eq!((parsed.namespace, parsed.name), (namespace, stored));
            assert_eq!(full_names(namespace, stored), [full]);
        }
        let acl = AttrName::parse(b"system.posix_acl_default").unwrap();
        assert!(acl.is_acl);
        assert_eq!(
            (acl.namespace, acl.name),
            (Namespace::Root, &b"SGI_ACL_DEFAULT"[..])
        );
        let names = full_names(Namespace::Root, b"SGI_ACL_FILE");
        assert_eq!(
            names,
            [&b"system.posix_acl_access"[..], b"trusted.SGI_ACL_FILE"]
        );
        assert!(full_names(Namespace::Parent, b"name").is_empty());
    }

    #[test]
    fn names_that_cannot_be_are_refused_as_linux_does() {
        let refused = |name: &[u8], condition| {
            let error = AttrName::parse(name).unwrap_err();
            assert!(matches!(error, platter_vfs::Error::Condition(found) if found == condition));
        };
        refused(b"", Condition::OutOfRange);
        refused(&[b'x'; 256], Condition::OutOfRange);
        refused(b"user.", Condition::InvalidArgument);
        refused(b"system.data", Condition::NotSupported);
    }
}
