//! Other owners than those of the directory or archive.

use platter_vfs::acl::{AclEntry, AclSubject, PosixAcl};

/// Which ids become which others. Those that no range names stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdMap {
    ranges: Vec<IdRange>,
}

/// A range of ids, and what the first of them becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first id of the range.
    pub from: u32,
    /// The id that the first one becomes.
    pub to: u32,
    /// The number of ids.
    pub count: u32,
}

impl IdMap {
    /// A map of these ranges, the first of which that names an id counts.
    #[must_use]
    pub fn new(ranges: Vec<IdRange>) -> Self {
        Self { ranges }
    }

    /// Returns the id that an id becomes.
    #[must_use]
    pub fn map(&self, id: u32) -> u32 {
        let inside = |range: &IdRange| {
            let offset = id.checked_sub(range.from)?;
            (offset < range.count).then(|| range.to.checked_add(offset))?
        };
        self.ranges.iter().find_map(inside).unwrap_or(id)
    }

    /// The value of an ACL attribute whose users become others, and whose groups become those of `groups`; `None` for
    /// what is no ACL.
    pub(super) fn map_acl(&self, groups: &Self, value: &[u8]) -> Option<Vec<u8>> {
        let acl = PosixAcl::decode(value).ok()?;
        let entries = acl.entries().iter().map(|entry| AclEntry {
            subject: match entry.subject {
                AclSubject::User(id) => AclSubject::User(self.map(id)),
                AclSubject::Group(id) => AclSubject::Group(groups.map(id)),
                AclSubject::Owner
                | AclSubject::OwningGroup
                | AclSubject::Mask
                | AclSubject::Other => entry.subject,
            },
            ..*entry
        });
        Some(PosixAcl::new(entries.collect()).ok()?.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_of_all_ranges_stay() {
        let range = |from, to, count| IdRange { from, to, count };
        let map = IdMap::new(vec![range(0, 100_000, 10), range(u32::MAX - 1, 5, 2)]);
        assert_eq!(map.map(0), 100_000);
        assert_eq!(map.map(9), 100_009);
        assert_eq!(map.map(10), 10);
        assert_eq!(map.map(u32::MAX), 6);
        let beyond = IdMap::new(vec![range(0, u32::MAX, 10)]);
        assert_eq!(beyond.map(1), 1);
    }

    #[test]
    fn acls_name_the_new_ids() {
        let entry = |subject| AclEntry {
            subject,
            permissions: 7,
        };
        let acl = |user, group| {
            let entries = [
                AclSubject::Owner,
                AclSubject::User(user),
                AclSubject::OwningGroup,
                AclSubject::Group(group),
                AclSubject::Mask,
                AclSubject::Other,
            ];
            PosixAcl::new(entries.map(entry).to_vec()).unwrap().encode()
        };
        let map = |to| {
            IdMap::new(vec![IdRange {
                from: 5,
                to,
                count: 1,
            }])
        };
        let mapped = map(50).map_acl(&map(60), &acl(5, 5));
        assert_eq!(mapped, Some(acl(50, 60)));
        assert_eq!(map(50).map_acl(&map(60), b"none"), None);
    }
}
