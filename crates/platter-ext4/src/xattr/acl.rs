//! The on-disk format of access control lists: entries without a qualifier are short. Spec:
//! `ext4/attributes` (POSIX ACLs).

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::acl::{AclEntry, AclSubject, PosixAcl};
use platter_vfs::{Condition, Result};

use crate::ondisk::Inode;

/// `EXT4_ACL_VERSION`.
const VERSION: u32 = 1;

rules! {
    /// The rules of a stored ACL.
    pub enum AclRule of "access control list" {
        /// It begins with its version, which is 1.
        Version => "unknown ACL version",
        /// Entries are complete, with a known tag and valid permissions.
        Entry => "invalid ACL entry",
        /// The entries form a valid ACL.
        Order => "ACL entries are out of order, missing or duplicate",
    }
}

/// Converts a stored ACL to the attribute format of user space.
///
/// # Errors
/// `NoAttribute` for an ACL without entries.
pub(super) fn to_attribute(inode: &Inode, stored: &[u8]) -> Result<Vec<u8>> {
    let broken = |rule| Corrupt::new(Locus::inode(u64::from(inode.number.get())), rule);
    let entries = decode(stored).map_err(broken)?;
    if entries.is_empty() {
        return Err(Condition::NoAttribute.into());
    }
    let acl = PosixAcl::new(entries).map_err(|_| broken(AclRule::Order))?;
    Ok(acl.encode())
}

/// Encodes an ACL in the on-disk format.
pub(super) fn encode(acl: &PosixAcl) -> Vec<u8> {
    let mut stored = VERSION.to_le_bytes().to_vec();
    for entry in acl.entries() {
        let (tag, id) = entry.subject.tag_and_id();
        stored.extend(tag.to_le_bytes());
        stored.extend(u16::from(entry.permissions).to_le_bytes());
        if let Some(id) = id {
            stored.extend(id.to_le_bytes());
        }
    }
    stored
}

fn decode(stored: &[u8]) -> Result<Vec<AclEntry>, AclRule> {
    let (version, mut rest) = stored.split_first_chunk().ok_or(AclRule::Version)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(AclRule::Version);
    }
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (entry, after) = decode_entry(rest).ok_or(AclRule::Entry)?;
        entries.push(entry);
        rest = after;
    }
    Ok(entries)
}

fn decode_entry(bytes: &[u8]) -> Option<(AclEntry, &[u8])> {
    let (&[tag_0, tag_1, permissions, 0], rest) = bytes.split_first_chunk::<4>()? else {
        return None;
    };
    let tag = u16::from_le_bytes([tag_0, tag_1]);
    let (subject, rest) = if let Some(subject) = AclSubject::from_tag(tag, None) {
        (subject, rest)
    } else {
        let (id, rest) = rest.split_first_chunk()?;
        let id = Some(u32::from_le_bytes(*id));
        (AclSubject::from_tag(tag, id)?, rest)
    };
    let entry = AclEntry {
        subject,
        permissions,
    };
    (permissions <= 0o7).then_some((entry, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &[u8] = b"\x01\0\0\0\x01\0\x06\0\x02\0\x04\0\xe8\x03\0\0\
        \x04\0\x04\0\x10\0\x04\0\x20\0\0\0";

    #[test]
    fn named_entries_have_an_id_and_others_do_not() {
        let entries = decode(STORED).unwrap();
        let subjects: Vec<_> = entries.iter().map(|entry| entry.subject).collect();
        let expected = [
            AclSubject::Owner,
            AclSubject::User(1000),
            AclSubject::OwningGroup,
            AclSubject::Mask,
            AclSubject::Other,
        ];
        assert_eq!(subjects, expected);
        assert_eq!(entries[1].permissions, 0o4);
        assert_eq!(encode(&PosixAcl::new(entries).unwrap()), STORED);
    }

    #[test]
    fn invalid_acl_is_corrupt() {
        let changed = |at: usize, byte: u8| {
            let mut stored = STORED.to_vec();
            stored[at] = byte;
            decode(&stored)
        };
        assert_eq!(changed(0, 2), Err(AclRule::Version));
        assert_eq!(decode(b"\x01\0"), Err(AclRule::Version));
        assert_eq!(changed(4, 3), Err(AclRule::Entry));
        assert_eq!(changed(6, 8), Err(AclRule::Entry));
        assert_eq!(changed(7, 1), Err(AclRule::Entry));
        assert_eq!(decode(&STORED[..STORED.len() - 1]), Err(AclRule::Entry));
        assert_eq!(decode(&STORED[..14]), Err(AclRule::Entry));
        let entries = changed(4, 0x20).unwrap();
        assert!(PosixAcl::new(entries).is_err(), "{:?}", AclRule::Order);
    }
}
