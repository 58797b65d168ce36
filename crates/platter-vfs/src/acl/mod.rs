//! POSIX access control lists in the form user space knows: the value of the attributes
//! `system.posix_acl_access` and `system.posix_acl_default`. Spec: acl(5), POSIX 1003.1e draft 17.

mod mode;
mod change;

use crate::{Condition, Credentials, Result};

pub use change::AclChange;

/// The attribute that holds a file's ACL.
pub const ACL_ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// The attribute that holds the ACL that new files in a directory get.
pub const ACL_DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

/// `POSIX_ACL_XATTR_VERSION`.
const VERSION: u32 = 2;
/// Bytes of the version.
const HEADER_BYTES: usize = 4;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 8;
/// The id of entries without a user or group (`ACL_UNDEFINED_ID`).
const NO_ID: u32 = u32::MAX;

/// Subject of an entry. The order is that of the entries in an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclSubject {
    /// `ACL_USER_OBJ`: the owner.
    Owner,
    /// `ACL_USER`: the user with this id.
    User(u32),
    /// `ACL_GROUP_OBJ`: the owning group.
    OwningGroup,
    /// `ACL_GROUP`: the group with this id.
    Group(u32),
    /// `ACL_MASK`: no subject, but the most that named users and groups get.
    Mask,
    /// `ACL_OTHER`: all others.
    Other,
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The class, user or group that the entry applies to.
    pub subject: AclSubject,
    /// What: read 4, write 2, execute 1.
    pub permissions: u8,
}

/// A valid access control list.
///
/// # Invariants
/// Entries are in the order of their subjects' kinds; there is one each for the owner, the owning
/// group and others, and at most one mask, which there must be when users or groups are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PosixAcl {
    entries: Vec<AclEntry>,
}

impl PosixAcl {
    /// Takes entries as a list.
    ///
    /// # Errors
    /// `InvalidArgument` when they do not make a valid one.
    pub fn new(entries: Vec<AclEntry>) -> Result<Self> {
        if is_valid(&entries) {
            Ok(Self { entries })
        } else {
            Err(Condition::InvalidArgument.into())
        }
    }

    /// Validates the value of an ACL attribute.
    ///
    /// # Errors
    /// `NotSupported` for a version other than 2, `InvalidArgument` for what is no valid list.
    pub fn decode(value: &[u8]) -> Result<Self> {
        let list = Self::decode_if_any(value)?;
        Ok(list.ok_or(Condition::InvalidArgument)?)
    }

    /// Validates the value of an ACL attribute that may have no entries, which stands for no ACL.
    fn decode_if_any(value: &[u8]) -> Result<Option<Self>> {
        let (version, rest) = value
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(Condition::InvalidArgument)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Condition::NotSupported.into());
        }
        let (chunks, []) = rest.as_chunks::<ENTRY_BYTES>() else {
            return Err(Condition::InvalidArgument.into());
        };
        if chunks.is_empty() {
            return Ok(None);
        }
        let entries = chunks
            .iter()
            .copied()
            .map(decode_entry)
            .collect::<Option<_>>();
        Self::new(entries.ok_or(Condition::InvalidArgument)?).map(Some)
    }

    /// The value of the attribute.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        value.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            let (tag, id) = entry.subject.tag_and_id();
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&u16::from(entry.permissions).to_le_bytes());
            value.extend_from_slice(&id.unwrap_or(NO_ID).to_le_bytes());
        }
        value
    }

    /// The entries in order.
    #[must_use]
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Whether a process with `credentials` has all of `wanted` (read 4, write 2, execute 1) on a
    /// file of owner `uid` and group `gid`. What the superuser may do besides is not asked here.
    #[must_use]
    pub fn permits(&self, credentials: &Credentials, uid: u32, gid: u32, wanted: u8) -> bool {
        let mask = self.permissions_of(AclSubject::Mask).unwrap_or(0o7);
        let grants = |permissions: u8| permissions & wanted == wanted;
        if credentials.uid == uid {
            return self.permissions_of(AclSubject::Owner).is_some_and(grants);
        }
        if let Some(permissions) = self.permissions_of(AclSubject::User(credentials.uid)) {
            return grants(permissions & mask);
        }
        // Of several groups that match, one must grant it all; if none does, others are not asked.
        let mut matched = false;
        for entry in &self.entries {
            let is_member = match entry.subject {
                AclSubject::OwningGroup => credentials.is_in_group(gid),
                AclSubject::Group(group) => credentials.is_in_group(group),
                AclSubject::Owner | AclSubject::User(_) | AclSubject::Mask | AclSubject::Other => {
                    false
                }
            };
            if is_member && grants(entry.permissions & mask) {
                return true;
            }
            matched |= is_member;
        }
        !matched && self.permissions_of(AclSubject::Other).is_some_and(grants)
    }

    fn permissions_of(&self, subject: AclSubject) -> Option<u8> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.subject == subject)?;
        Some(entry.permissions)
    }
}

impl AclSubject {
    /// The subject that a tag and an id, `None` where the tag takes none, stand for.
    #[must_use]
    pub fn from_tag(tag: u16, id: Option<u32>) -> Option<Self> {
        Some(match tag {
            0x01 => Self::Owner,
            0x02 => Self::User(id?),
            0x04 => Self::OwningGroup,
            0x08 => Self::Group(id?),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    /// The tag (`ACL_USER_OBJ` and so on), and the id of a named user or group.
    #[must_use]
    pub fn tag_and_id(self) -> (u16, Option<u32>) {
        match self {
            Self::Owner => (0x01, None),
            Self::User(id) => (0x02, Some(id)),
            Self::OwningGroup => (0x04, None),
            Self::Group(id) => (0x08, Some(id)),
            Self::Mask => (0x10, None),
            Self::Other => (0x20, None),
        }
    }
}

fn decode_entry(bytes: [u8; ENTRY_BYTES]) -> Option<AclEntry> {
    let [tag_0, tag_1, permissions, 0, id @ ..] = bytes else {
        return None;
    };
    let id = Some(u32::from_le_bytes(id)).filter(|&id| id != NO_ID);
    Some(AclEntry {
        subject: AclSubject::from_tag(u16::from_le_bytes([tag_0, tag_1]), id)?,
        permissions,
    })
}

/// Named users and groups may come in any order among themselves, and twice, as the kernel lets
/// them.
fn is_valid(entries: &[AclEntry]) -> bool {
    let kind = |entry: &AclEntry| entry.subject.tag_and_id().0;
    let count = |subject| entries.iter().filter(|e| e.subject == subject).count();
    let is_named = |e: &AclEntry| matches!(e.subject, AclSubject::User(_) | AclSubject::Group(_));
    let masks = count(AclSubject::Mask);
    entries.iter().all(|entry| entry.permissions <= 0o7)
        && entries.is_sorted_by_key(kind)
        && count(AclSubject::Owner) == 1
        && count(AclSubject::OwningGroup) == 1
        && count(AclSubject::Other) == 1
        && (masks == 1 || masks == 0 && !entries.iter().any(is_named))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 10;
    const GROUP: u32 = 20;

    fn list(entries: &[(AclSubject, u8)]) -> Result<PosixAcl> {
        let entries = entries.iter().map(|&(subject, permissions)| AclEntry {
            subject,
            permissions,
        });
        PosixAcl::new(entries.collect())
    }

    fn sample() -> PosixAcl {
        list(&[
            (AclSubject::Owner, 0o6),
            (AclSubject::User(11), 0o7),
            (AclSubject::OwningGroup, 0o4),
            (AclSubject::Group(21), 0o3),
            (AclSubject::Mask, 0o6),
            (AclSubject::Other, 0o1),
        ])
        .unwrap()
    }

    fn permits(uid: u32, groups: &[u32], wanted: u8) -> bool {
        let credentials = Credentials {
            uid,
            gid: 99,
            groups: groups.to_vec(),
        };
        sample().permits(&credentials, OWNER, GROUP, wanted)
    }

    #[test]
    fn value_is_what_setfacl_writes() {
        // setfacl -m u:1000:r on a file of mode 0640.
        let value = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\
            \x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
        let acl = PosixAcl::decode(value).unwrap();
        assert_eq!(acl.entries().len(), 5);
        assert_eq!(acl.entries()[1].subject, AclSubject::User(1000));
        assert_eq!(acl.encode(), value);
        assert_eq!(PosixAcl::decode(&sample().encode()).unwrap(), sample());
    }

    #[test]
    fn values_that_are_no_list_are_refused() {
        let refused = |value: &[u8], condition| {
            let error = PosixAcl::decode(value).unwrap_err();
            assert!(matches!(error, crate::Error::Condition(found) if found == condition));
        };
        let value = sample().encode();
        refused(b"", Condition::InvalidArgument);
        refused(b"\x01\0\0\0", Condition::NotSupported);
        refused(b"\x02\0\0\0", Condition::InvalidArgument);
        refused(&value[..value.len() - 1], Condition::InvalidArgument);
        for (at, byte) in [(4, 0x40), (6, 8), (7, 1), (4, 0x20)] {
            let mut value = value.clone();
            value[at] = byte;
            refused(&value, Condition::InvalidArgument);
        }
        let mut value = value;
        value[16..20].fill(0xff);
        refused(&value, Condition::InvalidArgument);
    }

    #[test]
    fn named_entries_need_a_mask() {
        let named = [
            (AclSubject::Owner, 0o6),
            (AclSubject::OwningGroup, 0o4),
            (AclSubject::Group(5), 0o4),
            (AclSubject::Other, 0),
        ];
        assert!(list(&named).is_err());
        assert!(list(&[named[0], named[1], named[3]]).is_ok());
        assert!(list(&[named[0], named[1]]).is_err());
    }

    #[test]
    fn the_most_special_entry_decides() {
        assert!(permits(OWNER, &[], 0o6));
        assert!(!permits(OWNER, &[21], 0o1));
        assert!(permits(11, &[], 0o6));
        assert!(!permits(11, &[], 0o1));
        assert!(permits(12, &[GROUP], 0o4));
        assert!(!permits(12, &[GROUP], 0o2));
        assert!(permits(12, &[GROUP, 21], 0o2));
        assert!(!permits(12, &[GROUP, 21], 0o6));
        assert!(!permits(12, &[21], 0o1));
        assert!(permits(12, &[], 0o1));
        assert!(!permits(12, &[], 0o4));
    }
}
