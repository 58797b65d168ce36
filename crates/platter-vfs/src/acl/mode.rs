//! An ACL and the permission bits of a mode describe the same thing: the owner's entry, the mask (or
//! the owning group's entry where there is none) and the entry for others are the nine bits.

use super::{AclEntry, AclSubject, PosixAcl};

impl PosixAcl {
    /// The nine permission bits of a file with this ACL.
    #[must_use]
    pub fn mode_bits(&self) -> u32 {
        let class = |subject, shift| {
            let bits = self.permissions_of(subject).unwrap_or(0);
            u32::from(bits) << shift
        };
        class(AclSubject::Owner, 6) | class(self.group_class(), 3) | class(AclSubject::Other, 0)
    }

    /// Whether it says no more than permission bits do.
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The ACL after the mode of its file was set to `permissions`.
    #[must_use]
    pub fn with_mode(&self, permissions: u32) -> Self {
        self.map_classes(|_, bits| bits, permissions)
    }

    /// The ACL that a file made with `permissions` gets in a directory where this is the default:
    /// each class has what both grant.
    #[must_use]
    pub fn inherited(&self, permissions: u32) -> Self {
        self.map_classes(|had, bits| had & bits, permissions)
    }

    /// The entry that stands for the group bits.
    fn group_class(&self) -> AclSubject {
        let has_mask = self.permissions_of(AclSubject::Mask).is_some();
        if has_mask {
            AclSubject::Mask
        } else {
            AclSubject::OwningGroup
        }
    }

    fn map_classes(&self, combine: impl Fn(u8, u8) -> u8, permissions: u32) -> Self {
        let bits = |shift: u32| u8::try_from((permissions >> shift) & 0o7).unwrap_or(0);
        let group_class = self.group_class();
        let map = |entry: &AclEntry| {
            let class = match entry.subject {
                AclSubject::Owner => Some(6),
                AclSubject::Other => Some(0),
                subject if subject == group_class => Some(3),
                AclSubject::User(_)
                | AclSubject::OwningGroup
                | AclSubject::Group(_)
                | AclSubject::Mask => None,
            };
            let had = entry.permissions;
            AclEntry {
                subject: entry.subject,
                permissions: class.map_or(had, |shift| combine(had, bits(shift))),
            }
        };
        Self {
            entries: self.entries.iter().map(map).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(AclSubject, u8)]) -> PosixAcl {
        let entry = |&(subject, permissions)| AclEntry {
            subject,
            permissions,
        };
        PosixAcl::new(entries.iter().map(entry).collect()).unwrap()
    }

    use AclSubject::{Mask, Other, Owner, OwningGroup, User};

    #[test]
    fn the_mask_is_the_group_bits_where_there_is_one() {
        let minimal = acl(&[(Owner, 6), (OwningGroup, 4), (Other, 1)]);
        assert_eq!((minimal.mode_bits(), minimal.is_minimal()), (0o641, true));
        let extended = acl(&[
            (Owner, 6),
            (User(5), 7),
            (OwningGroup, 4),
            (Mask, 3),
            (Other, 1),
        ]);
        assert_eq!(
            (extended.mode_bits(), extended.is_minimal()),
            (0o631, false)
        );
    }

    #[test]
    fn a_new_mode_changes_the_classes_only() {
        let before = acl(&[
            (Owner, 6),
            (User(5), 7),
            (OwningGroup, 4),
            (Mask, 3),
            (Other, 1),
        ]);
        let after = acl(&[
            (Owner, 7),
            (User(5), 7),
            (OwningGroup, 4),
            (Mask, 5),
            (Other, 0),
        ]);
        assert_eq!(before.with_mode(0o4750), after);
        let minimal = acl(&[(Owner, 6), (OwningGroup, 4), (Other, 1)]);
        assert_eq!(minimal.with_mode(0o755).mode_bits(), 0o755);
    }

    #[test]
    fn a_new_file_has_what_default_and_mode_both_grant() {
        let default = acl(&[
            (Owner, 7),
            (User(5), 7),
            (OwningGroup, 5),
            (Mask, 7),
            (Other, 5),
        ]);
        let inherited = default.inherited(0o640);
        let expected = acl(&[
            (Owner, 6),
            (User(5), 7),
            (OwningGroup, 5),
            (Mask, 4),
            (Other, 0),
        ]);
        assert_eq!(inherited, expected);
        assert_eq!(inherited.mode_bits(), 0o640);
    }
}
