//! POSIX ACLs as the text that star, GNU tar and libarchive keep in PAX records.
//!
//! Spec: acl(5), "Text forms", the short one.

use std::fmt::Write;
use std::io;

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclEntry, AclSubject, PosixAcl};

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
        let (tag, id) = match entry.subject {
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
        let _ = write!(text, "{tag}:{id}:{read}{write}{execute}");
    }
    text
}

/// The attribute that a record says in text, in either form; names of users are not known here.
pub(crate) fn parse(text: &[u8]) -> io::Result<Vec<u8>> {
    let broken = || io::Error::other("an ACL is not in its text form with numbers");
    let text = str::from_utf8(text).map_err(|_| broken())?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let mut fields = line.split(':');
        let (Some(tag), Some(id), Some(bits)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(broken());
        };
        // star appends the number to a name.
        let id = fields.next().unwrap_or(id);
        let number = || match id {
            // GNU tar gives names to those it knows, whatever it is asked for.
            "root" => Ok(0),
            id => id.parse::<u32>().map_err(|_| {
                let text = "an ACL names a user or group without a number; bsdtar and star add it";
                io::Error::other(text)
            }),
        };
        let subject = match (tag, id) {
            ("user" | "u", "") => AclSubject::Owner,
            ("user" | "u", _) => AclSubject::User(number()?),
            ("group" | "g", "") => AclSubject::OwningGroup,
            ("group" | "g", _) => AclSubject::Group(number()?),
            ("mask" | "m", "") => AclSubject::Mask,
            ("other" | "o", "") => AclSubject::Other,
            _ => return Err(broken()),
        };
        let mut permissions = 0;
        for letter in bits.chars() {
            permissions |= match letter {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return Err(broken()),
            };
        }
        entries.push(AclEntry {
            subject,
            permissions,
        });
    }
    entries.sort_by_key(|entry| entry.subject);
    let acl = PosixAcl::new(entries).map_err(|_| broken())?;
    Ok(acl.encode())
}

#[cfg(test)]
mod tests {
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
        assert_eq!(parse(&attribute.value).unwrap(), value);
        assert!(parse(b"user:someone:rwx").is_err());
        let of_root = parse(b"user::r--,user:root:r--,group::r--,mask::r--,other::r--");
        let by_number = parse(b"user::r--,user:0:r--,group::r--,mask::r--,other::r--");
        assert_eq!(of_root.unwrap(), by_number.unwrap());
        assert_eq!(acl_attribute(ACL_ACCESS_NAME, &value[1..]), None);
        assert_eq!(acl_attribute(b"user.x", &value), None);
    }
}
