//! Directories that become subvolumes.

use std::collections::HashMap;

use platter_vfs::Condition;

use super::{Content, Member, MemberKind, MemberPath};
use crate::{Error, Result};

/// A directory of a content that becomes a subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSubvolume {
    /// Its path.
    pub path: Vec<u8>,
    /// It refuses changes once it is filled.
    pub is_read_only: bool,
    /// It is mounted where no subvolume is asked for.
    pub is_default: bool,
}

/// What is said of a subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SubvolumeKind {
    pub(super) is_read_only: bool,
    pub(super) is_default: bool,
}

impl Content {
    /// Has directories become subvolumes, also in each other. A file with names in several of them becomes a file in
    /// each, which share their contents.
    ///
    /// # Errors
    /// `NotFound` and `NotDirectory` for what is no directory of the content, `InvalidArgument` for its root, which is a
    /// subvolume anyway, `Exists` for what is named twice, and for a second default one.
    pub fn make_subvolumes(&mut self, subvolumes: &[NewSubvolume]) -> Result<()> {
        for new in subvolumes {
            let failed = |error: platter_vfs::Error| Error::at_path(&self.name, &new.path, error);
            let path = MemberPath::parse(&new.path).map_err(failed)?;
            let refused = |condition: Condition| Err(failed(condition.into()));
            let found = self.members.binary_search_by(|(other, _)| other.cmp(&path));
            match found.ok().and_then(|index| self.members.get(index)) {
                _ if path.is_root() => return refused(Condition::InvalidArgument),
                // An archive may leave out directories that something lies in.
                None if self.has_below(&path) => {}
                None => return refused(Condition::NotFound),
                Some((_, member)) if !matches!(member.kind, MemberKind::Directory) => {
                    return refused(Condition::NotDirectory);
                }
                Some(_) => {}
            }
            let has_default = self.subvolumes.values().any(|kind| kind.is_default);
            if self.subvolumes.contains_key(&path) || (has_default && new.is_default) {
                return refused(Condition::Exists);
            }
            let kind = SubvolumeKind {
                is_read_only: new.is_read_only,
                is_default: new.is_default,
            };
            self.subvolumes.insert(path, kind);
        }
        self.part_links();
        Ok(())
    }

    /// Whether there are subvolumes.
    pub(crate) fn has_subvolumes(&self) -> bool {
        !self.subvolumes.is_empty()
    }

    /// Whether a member lies below a path.
    fn has_below(&self, path: &MemberPath) -> bool {
        let next = self.members.partition_point(|(other, _)| other <= path);
        let next = self.members.get(next);
        next.is_some_and(|(other, _)| other.is_below(path))
    }

    /// The innermost subvolume that a path lies in; the root if in none.
    fn subvolume_of(&self, path: &MemberPath) -> MemberPath {
        let mut dir = path.parent();
        while !dir.is_root() && !self.subvolumes.contains_key(&dir) {
            dir = dir.parent();
        }
        dir
    }

    /// Makes files of links to files in other subvolumes: one in each.
    fn part_links(&mut self) {
        // By the first name and the subvolume.
        let mut firsts: HashMap<(MemberPath, MemberPath), MemberPath> = HashMap::new();
        for index in 0..self.members.len() {
            let Some((path, member)) = self.members.get(index) else {
                break;
            };
            let MemberKind::Link(first) = &member.kind else {
                continue;
            };
            let subvolume = self.subvolume_of(path);
            if subvolume == self.subvolume_of(first) {
                continue;
            }
            let key = (first.clone(), subvolume);
            let new = if let Some(own) = firsts.get(&key) {
                Some(Member::link(own.clone()))
            } else {
                let found = self.members.binary_search_by(|(other, _)| other.cmp(first));
                let found = found.ok().and_then(|index| self.members.get(index));
                let new = found.and_then(|(first, member)| copy_of(first, member));
                firsts.insert(key, path.clone());
                new
            };
            if let (Some(new), Some((_, member))) = (new, self.members.get_mut(index)) {
                *member = new;
            }
        }
    }
}

/// Another file like a member.
fn copy_of(path: &MemberPath, member: &Member) -> Option<Member> {
    let kind = match &member.kind {
        MemberKind::File(contents) => MemberKind::Clone(path.clone(), contents.size_bytes()),
        MemberKind::Clone(first, size_bytes) => MemberKind::Clone(first.clone(), *size_bytes),
        MemberKind::Symlink(target) => MemberKind::Symlink(target.clone()),
        MemberKind::CharDevice(device) => MemberKind::CharDevice(*device),
        MemberKind::BlockDevice(device) => MemberKind::BlockDevice(*device),
        MemberKind::Fifo => MemberKind::Fifo,
        MemberKind::Socket => MemberKind::Socket,
        MemberKind::Directory | MemberKind::Link(_) => return None,
    };
    Some(Member {
        kind,
        uid: member.uid,
        gid: member.gid,
        permissions: member.permissions,
        modified: member.modified,
        xattrs: member.xattrs.clone(),
    })
}
