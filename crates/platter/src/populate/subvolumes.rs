//! Directories that become subvolumes.

use std::collections::HashMap;

use platter_vfs::Condition;

use super::{Content, Member, MemberKind, MemberPath};
use crate::{Error, Result};

/// A directory of a content that becomes a subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSubvolume {
    /// The path of the directory.
    pub path: Vec<u8>,
    /// Whether the subvolume refuses changes once it is filled.
    pub is_read_only: bool,
    /// Whether the subvolume is mounted where none is asked for.
    pub is_default: bool,
}

/// What is said of a subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SubvolumeKind {
    pub(super) is_read_only: bool,
    pub(super) is_default: bool,
}

/// See [`Content::make_subvolumes`].
pub(super) fn make_subvolumes(content: &mut Content, subvolumes: &[NewSubvolume]) -> Result<()> {
    for new in subvolumes {
        let failed = |error: platter_vfs::Error| Error::at_path(&content.name, &new.path, error);
        let path = MemberPath::parse(&new.path).map_err(failed)?;
        let refused = |condition: Condition| Err(failed(condition.into()));
        let found = content
            .members
            .binary_search_by(|(other, _)| other.cmp(&path));
        match found.ok().and_then(|index| content.members.get(index)) {
            _ if path.is_root() => return refused(Condition::InvalidArgument),
            // An archive may leave out directories that something lies in.
            None if has_below(content, &path) => {}
            None => return refused(Condition::NotFound),
            Some((_, member)) if !matches!(member.kind, MemberKind::Directory) => {
                return refused(Condition::NotDirectory);
            }
            Some(_) => {}
        }
        if content.subvolumes.contains_key(&path) {
            return Err(failed(
                Condition::Exists.because("is made a subvolume twice"),
            ));
        }
        if new.is_default && content.subvolumes.values().any(|kind| kind.is_default) {
            let text = "another subvolume is the default one already";
            return Err(failed(Condition::Exists.because(text)));
        }
        let kind = SubvolumeKind {
            is_read_only: new.is_read_only,
            is_default: new.is_default,
        };
        content.subvolumes.insert(path, kind);
    }
    part_links(content);
    Ok(())
}

/// Whether a member lies below a path.
fn has_below(content: &Content, path: &MemberPath) -> bool {
    let next = content.members.partition_point(|(other, _)| other <= path);
    let next = content.members.get(next);
    next.is_some_and(|(other, _)| other.is_below(path))
}

/// The innermost subvolume that a path lies in; the root if in none.
fn subvolume_of(content: &Content, path: &MemberPath) -> MemberPath {
    let mut dir = path.parent();
    while !dir.is_root() && !content.subvolumes.contains_key(&dir) {
        dir = dir.parent();
    }
    dir
}

/// Makes files of links to files in other subvolumes: one in each.
fn part_links(content: &mut Content) {
    // By the first name and the subvolume.
    let mut firsts: HashMap<(MemberPath, MemberPath), MemberPath> = HashMap::new();
    for index in 0..content.members.len() {
        let Some((path, member)) = content.members.get(index) else {
            break;
        };
        let MemberKind::Link(first) = &member.kind else {
            continue;
        };
        let subvolume = subvolume_of(content, path);
        if subvolume == subvolume_of(content, first) {
            continue;
        }
        let key = (first.clone(), subvolume);
        let new = if let Some(own) = firsts.get(&key) {
            Some(Member::link(own.clone()))
        } else {
            let found = content
                .members
                .binary_search_by(|(other, _)| other.cmp(first));
            let found = found.ok().and_then(|index| content.members.get(index));
            let new = found.and_then(|(first, member)| copy_of(first, member));
            firsts.insert(key, path.clone());
            new
        };
        if let (Some(new), Some((_, member))) = (new, content.members.get_mut(index)) {
            *member = new;
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
