//! POSIX ACLs as the text that star, GNU tar and libarchive keep in PAX records.
//!
//! Spec: acl(5), "Text forms", the short one.

use std::fmt::Write;

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclSubject, PosixAcl};

use super::member::Attribute;

/// The record for the attribute `name`, if it is an ACL in its proper form.
pub(super) fn acl_attribute(name: &[u8], value: &[u8]) -> Option<Attribute> {
    let keyword: &[u8] = match name {
        ACL_ACCESS_NAME => b"SCHILY.acl.access",
        ACL_DEFAULT_NAME => b"SCHILY.acl.default",
        _ => return None,
    };
    Some(Attribute {
        keyword: keyword.to_vec(),
        value: acl_text(&PosixAcl::decode(value).ok()?).into_bytes(),
    })
}

/// The short text form with numeric ids, entries parted by commas.
fn acl_text(acl: &PosixAcl) -> String {
    let mut text = String::new();
    for entry in acl.entries() {
        if !text.is_empty() {
            text.push(',');
        }
        let (who, id) = match entry.subject {
            AclSubject::Owner => ("user", None),
            AclSubject::User(id) => ("user", Some(id)),
            AclSubject::OwningGroup => ("group", None),
            AclSubject::Group(id) => ("group", Some(id)),
            AclSubject::Mask => ("mask", None),
            AclSubject::Other => ("other", None),
        };
        let id = id.map_or(String::new(), |id| id.to_string());
        let bits = |bit: u8, letter: char| {
            if entry.permissions & bit == 0 {
                '-'
            } else {
                letter
            }
        };
        let (read, write, execute) = (bits(4, 'r'), bits(2, 'w'), bits(1, 'x'));
        // Writing to a string cannot fail.
        let _ = write!(text, "{who}:{id}:{read}{write}{execute}");
    }
    text
}

#[cfg(test)]
mod tests {
    use platter_vfs::acl::AclEntry;

    use super::*;

    #[test]
    fn entries_become_the_short_text_form() {
        let entries = [
            (AclSubject::Owner, 7),
            (AclSubject::User(1000), 6),
            (AclSubject::OwningGroup, 5),
            (AclSubject::Group(4_000_000_000), 0),
            (AclSubject::Mask, 7),
            (AclSubject::Other, 4),
        ]
        .map(|(subject, permissions)| AclEntry {
            subject,
            permissions,
        });
        let value = PosixAcl::new(entries.to_vec()).unwrap().encode();
        let attribute = acl_attribute(ACL_ACCESS_NAME, &value).unwrap();
        assert_eq!(attribute.keyword, b"SCHILY.acl.access");
        assert_eq!(
            attribute.value.escape_ascii().to_string(),
            "user::rwx,user:1000:rw-,group::r-x,group:4000000000:---,mask::rwx,other::r--"
        );
        assert_eq!(acl_attribute(ACL_ACCESS_NAME, &value[1..]), None);
        assert_eq!(acl_attribute(b"user.x", &value), None);
    }
}
