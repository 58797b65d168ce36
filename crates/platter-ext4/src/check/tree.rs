//! The directory tree: each directory is connected to the root, and has the right parent.

use std::collections::HashSet;

use platter_vfs::check::Checking as _;
use platter_vfs::{Condition, Error, FileKind, Name};

use super::{Checker, DirectoryUseRule, Flow, locus_of};
use crate::directory::Directory;
use crate::mapping::BlockMap;
use crate::ondisk::InodeNr;

/// Checks that all directories are reached from the root.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let root = InodeNr::ROOT;
    if checker.inodes.get(root).kind != Some(FileKind::Directory) {
        return checker.found(locus_of(root), DirectoryUseRule::Root);
    }
    let directories = std::mem::take(&mut checker.directories);
    let mut reached = HashSet::from([root]);
    for &directory in &directories {
        check_reached(checker, directory, &mut reached)?;
        let parent = if directory == root {
            Some(root)
        } else {
            checker.inodes.get(directory).parent
        };
        // A directory without an entry, or without `..`, was reported as such.
        let dotdot = checker.dotdots.get(&directory).copied();
        let both = parent.zip(dotdot);
        if both.is_some_and(|(parent, dotdot)| parent != dotdot) {
            checker.found(locus_of(directory), DirectoryUseRule::Parent)?;
        }
    }
    checker.directories = directories;
    check_lost_found(checker)
}

/// Checks `lost+found`, to which repairs attach unconnected inodes.
fn check_lost_found(checker: &mut Checker<'_>) -> Flow {
    let fs = checker.fs;
    let Some(inode) = checker.inode(InodeNr::ROOT) else {
        return Ok(());
    };
    let found = BlockMap::decode(fs, &inode).and_then(|map| {
        let directory = Directory::open(fs, &inode, &map)?;
        directory.lookup(Name::new(b"lost+found")?)
    });
    let is_missing = matches!(found, Err(Error::Condition(Condition::NotFound)));
    if is_missing {
        checker.noticed(locus_of(InodeNr::ROOT), DirectoryUseRule::LostFound)?;
    }
    Ok(())
}

/// Walks up to a directory known to be connected, or to the end of the chain or a cycle.
fn check_reached(
    checker: &mut Checker<'_>,
    directory: InodeNr,
    reached: &mut HashSet<InodeNr>,
) -> Flow {
    let mut way = Vec::new();
    let mut on_way = HashSet::new();
    let mut at = directory;
    while !reached.contains(&at) {
        way.push(at);
        on_way.insert(at);
        match checker.inodes.get(at).parent {
            Some(parent) if !on_way.contains(&parent) => at = parent,
            Some(_) | None => {
                checker.found(locus_of(at), DirectoryUseRule::Unreachable)?;
                break;
            }
        }
    }
    // Directories below an unconnected one are not reported again.
    reached.extend(way);
    Ok(())
}
