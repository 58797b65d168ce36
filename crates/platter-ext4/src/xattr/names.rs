//! Prefixes of attribute names and their numbers on disk. Spec: `ext4/attributes` (name indices).

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::{Condition, Result};

/// Maximum length of a name in bytes, including its prefix (`XATTR_NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Numbers of complete names.
const WHOLE: [(u8, &[u8]); 2] = [(2, ACL_ACCESS_NAME), (3, ACL_DEFAULT_NAME)];
/// Numbers of prefixes. Those of Lustre (5), inline data (7), rich ACLs (8) and encryption (9) are
/// not visible.
const PREFIXES: [(u8, &[u8]); 4] = [
    (1, b"user."),
    (4, b"trusted."),
    (6, b"security."),
    (10, b"gnu."),
];

/// A name in its stored form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttributeName<'a> {
    /// The number of the prefix.
    pub(super) index: u8,
    /// The name after the prefix.
    pub(super) rest: &'a [u8],
}

impl<'a> AttributeName<'a> {
    pub(super) fn parse(name: &'a [u8]) -> Result<Self> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Condition::OutOfRange.into());
        }
        if let Some(&(index, _)) = WHOLE.iter().find(|(_, whole)| *whole == name) {
            return Ok(Self { index, rest: b"" });
        }
        let split = |&(index, prefix): &(u8, &[u8])| Some((index, name.strip_prefix(prefix)?));
        let (index, rest) = PREFIXES
            .iter()
            .find_map(split)
            .ok_or(Condition::NotSupported)?;
        if rest.is_empty() {
            return Err(Condition::InvalidArgument.into());
        }
        Ok(Self { index, rest })
    }
}

/// Returns the full name of a stored one; `None` if it is not visible.
pub(super) fn full_name(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let is_index = |entry: &&(u8, &[u8])| entry.0 == index;
    if rest.is_empty() {
        let (_, whole) = WHOLE.iter().find(is_index)?;
        return Some(whole.to_vec());
    }
    let (_, prefix) = PREFIXES.iter().find(is_index)?;
    Some([prefix, rest].concat())
}

/// Whether values under this number are ACLs.
pub(super) fn is_acl(index: u8) -> bool {
    matches!(index, 2 | 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (name, index, rest) in [
            (&b"user.comment"[..], 1, &b"comment"[..]),
            (b"trusted.overlay.opaque", 4, b"overlay.opaque"),
            (b"security.selinux", 6, b"selinux"),
            (b"system.posix_acl_access", 2, b""),
            (b"system.posix_acl_default", 3, b""),
            (b"gnu.translator", 10, b"translator"),
        ] {
            let parsed = AttributeName::parse(name).unwrap();
            assert_eq!(parsed, AttributeName { index, rest });
            assert_eq!(full_name(index, rest).unwrap(), name);
        }
    }

    #[test]
    fn internal_attributes_are_not_visible() {
        assert_eq!(full_name(7, b"data"), None);
        assert_eq!(full_name(8, b""), None);
        assert_eq!(full_name(9, b"c"), None);
        assert_eq!(full_name(5, b"lma"), None);
        assert_eq!(full_name(1, b""), None);
        assert_eq!(full_name(200, b"name"), None);
    }

    #[test]
    fn invalid_names_are_refused_as_in_linux() {
        let refused = |name: &[u8], condition| {
            let error = AttributeName::parse(name).unwrap_err();
            assert!(matches!(error, platter_vfs::Error::Condition(found) if found == condition));
        };
        refused(b"", Condition::OutOfRange);
        refused(&[b'x'; 256], Condition::OutOfRange);
        refused(b"btrfs.compression", Condition::NotSupported);
        refused(b"user.", Condition::InvalidArgument);
        refused(b"system.data", Condition::NotSupported);
        refused(b"system.richacl", Condition::NotSupported);
    }
}
