//! Access control lists as XFS stores them: a count, and entries that all have an id.
//! Spec: `acl`; the layout: `xfs-headers/xfs_format.h`.

use platter_ondisk::endian::{Be16, Be32};
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;
use platter_vfs::acl::{AclEntry, AclSubject, PosixAcl};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ondisk::{Geometry, Inode};

/// `XFS_XATTR_SIZE_MAX`.
const STORED_BYTES_MAX: usize = 64 << 10;
/// Entries that a list of V4 has at most.
const V4_ENTRIES_MAX: usize = 25;

/// An entry as stored. Spec: `struct xfs_acl_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskAclEntry {
    tag: Be32,
    id: Be32,
    permissions: Be16,
    padding: Be16,
}

const _: () = assert!(size_of::<DiskAclEntry>() == 12);

rules! {
    /// What a stored list must hold to.
    pub enum AclRule of "access control list" {
        /// It has as many entries as its count says.
        Count => "bad number of entries",
        /// Entries are of a known kind, with permissions that exist.
        Entry => "bad entry",
        /// The entries together make a valid list.
        Order => "entries out of order, missing or double",
    }
}

/// The stored list in the form of the attribute that user space sees.
pub(crate) fn to_attribute(inode: &Inode, stored: &[u8]) -> Result<Vec<u8>> {
    let corrupt = |rule| Corrupt::new(Locus::inode(inode.number.get()), rule);
    let entries = decode(stored).map_err(corrupt)?;
    let acl = PosixAcl::new(entries).map_err(|_| corrupt(AclRule::Order))?;
    Ok(acl.encode())
}

/// Returns the number of entries that a stored list has at most (`XFS_ACL_MAX_ENTRIES`).
pub(crate) fn entries_max(geometry: &Geometry) -> usize {
    if geometry.features.is_v5() {
        (STORED_BYTES_MAX - size_of::<Be32>()) / size_of::<DiskAclEntry>()
    } else {
        V4_ENTRIES_MAX
    }
}

/// A list as it is stored.
pub(crate) fn to_stored(acl: &PosixAcl) -> Vec<u8> {
    let entries = acl.entries();
    let count = u32::try_from(entries.len()).unwrap_or_default();
    let mut stored = Be32::from(count).as_bytes().to_vec();
    for entry in entries {
        let (tag, id) = entry.subject.tag_and_id();
        let disk = DiskAclEntry {
            tag: u32::from(tag).into(),
            id: id.unwrap_or(u32::MAX).into(),
            permissions: u16::from(entry.permissions).into(),
            padding: 0.into(),
        };
        stored.extend_from_slice(disk.as_bytes());
    }
    stored
}

fn decode(stored: &[u8]) -> Result<Vec<AclEntry>, AclRule> {
    let (count, rest) = Be32::ref_from_prefix(stored).map_err(|_| AclRule::Count)?;
    let count = usize::try_from(count.get()).map_err(|_| AclRule::Count)?;
    let entries = <[DiskAclEntry]>::ref_from_bytes_with_elems(rest, count);
    let entries = entries.map_err(|_| AclRule::Count)?;
    entries.iter().map(decode_entry).collect()
}

fn decode_entry(disk: &DiskAclEntry) -> Result<AclEntry, AclRule> {
    let tag = u16::try_from(disk.tag.get()).map_err(|_| AclRule::Entry)?;
    let permissions = u8::try_from(disk.permissions.get()).map_err(|_| AclRule::Entry)?;
    let subject =
        AclSubject::from_tag(tag, None).or_else(|| AclSubject::from_tag(tag, Some(disk.id.get())));
    let subject = subject.filter(|_| permissions <= 0o7);
    Ok(AclEntry {
        subject: subject.ok_or(AclRule::Entry)?,
        permissions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(entries: &[(u32, u32, u16)]) -> Vec<u8> {
        let count = u32::try_from(entries.len()).unwrap();
        let mut bytes = count.to_be_bytes().to_vec();
        for &(tag, id, permissions) in entries {
            let entry = DiskAclEntry {
                tag: tag.into(),
                id: id.into(),
                permissions: permissions.into(),
                padding: 0.into(),
            };
            bytes.extend(entry.as_bytes());
        }
        bytes
    }

    #[test]
    fn entries_are_those_of_the_list() {
        let bytes = stored(&[
            (1, 0, 6),
            (2, 1000, 4),
            (4, 0, 4),
            (0x10, 0, 4),
            (0x20, 0, 0),
        ]);
        let subjects: Vec<_> = decode(&bytes)
            .unwrap()
            .iter()
            .map(|it| it.subject)
            .collect();
        let expected = [
            AclSubject::Owner,
            AclSubject::User(1000),
            AclSubject::OwningGroup,
            AclSubject::Mask,
            AclSubject::Other,
        ];
        assert_eq!(subjects, expected);
    }

    #[test]
    fn list_that_breaks_a_rule_is_corrupt() {
        assert_eq!(decode(b"\0\0\0"), Err(AclRule::Count));
        let mut bytes = stored(&[(1, 0, 6)]);
        bytes[3] = 2;
        assert_eq!(decode(&bytes), Err(AclRule::Count));
        assert_eq!(decode(&stored(&[(3, 0, 6)])), Err(AclRule::Entry));
        assert_eq!(decode(&stored(&[(1, 0, 8)])), Err(AclRule::Entry));
        let entries = decode(&stored(&[(1, 0, 6)])).unwrap();
        assert!(PosixAcl::new(entries).is_err(), "{:?}", AclRule::Order);
    }
}
