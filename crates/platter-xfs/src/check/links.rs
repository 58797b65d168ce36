//! Links: that every inode in use has as many as it counts, and that every directory is connected to
//! the root.

use std::collections::{HashMap, HashSet};

use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::{Checker, DirectoryUseRule, Flow, InodeUseRule, locus_of};
use crate::ondisk::InodeNr;

/// Checks links and connections, unless entries are missing.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    checker.report.progress("links", 0, 1)?;
    check_roots(checker)?;
    check_dotdots(checker)?;
    if checker.misses_entries {
        return Ok(());
    }
    check_connections(checker)?;
    let mut subdirectories: HashMap<InodeNr, u32> = HashMap::new();
    for parent in checker.dotdots.values() {
        *subdirectories.entry(*parent).or_default() += 1;
    }
    let mut wrong = Vec::new();
    let special = special_inodes(checker);
    for (number, state) in checker.inodes.iter() {
        let Some(kind) = state.kind else {
            continue;
        };
        let mut expected = state.found;
        if kind == FileKind::Directory {
            // `.`, and `..` of each directory in it; the root is in itself.
            let below = subdirectories.get(&number).copied().unwrap_or(0);
            expected = expected.saturating_add(1).saturating_add(below);
        } else if special.contains(&number) {
            expected = expected.saturating_add(1);
        }
        let is_known = state.found > 0 || state.is_unlinked || special.contains(&number);
        if !is_known {
            wrong.push((number, InodeUseRule::Disconnected));
        } else if state.is_unlinked && state.found == 0 {
            // Reported with the list.
        } else if expected != state.links {
            wrong.push((number, InodeUseRule::Links));
        }
    }
    for (number, rule) in wrong {
        checker.found(locus_of(number), rule)?;
    }
    check_parent_sums(checker)
}

/// Inodes that no directory names.
fn special_inodes(checker: &Checker<'_>) -> HashSet<InodeNr> {
    let superblock = &checker.context.superblock;
    let mut special: HashSet<InodeNr> = HashSet::from([superblock.root_inode]);
    special.extend(superblock.rt_bitmap_inode);
    special.extend(superblock.rt_summary_inode);
    special.extend(superblock.metadir_inode);
    special.extend(superblock.quota_inodes.into_iter().flatten());
    special
}

fn check_roots(checker: &mut Checker<'_>) -> Flow {
    let superblock = &checker.context.superblock;
    let roots = [Some(superblock.root_inode), superblock.metadir_inode];
    for root in roots.into_iter().flatten() {
        let state = checker.inodes.get(root);
        let is_lost = state.is_none() && checker.is_blind;
        if is_lost || state.is_some_and(|state| state.is_corrupt) {
            continue;
        }
        if state.and_then(|state| state.kind) != Some(FileKind::Directory) {
            checker.found(locus_of(root), DirectoryUseRule::Root)?;
        }
    }
    let files = [superblock.rt_bitmap_inode, superblock.rt_summary_inode];
    let quota = superblock.quota_inodes;
    for file in files.into_iter().chain(quota).flatten() {
        let state = checker.inodes.get(file);
        let is_lost = state.is_none() && checker.is_blind;
        if is_lost || state.is_some_and(|state| state.is_corrupt) {
            continue;
        }
        if state.and_then(|state| state.kind) != Some(FileKind::Regular) {
            checker.found(locus_of(file), InodeUseRule::Internal)?;
        }
    }
    Ok(())
}

/// `..` is the directory that holds the entry.
fn check_dotdots(checker: &mut Checker<'_>) -> Flow {
    let superblock = &checker.context.superblock;
    let roots = [Some(superblock.root_inode), superblock.metadir_inode];
    let directories = std::mem::take(&mut checker.directories);
    for &number in &directories {
        let parent = if roots.contains(&Some(number)) {
            Some(number)
        } else {
            checker.parents.get(&number).copied()
        };
        let Some(parent) = parent else {
            continue;
        };
        match checker.dotdots.get(&number) {
            Some(&stored) if stored != parent => {
                checker.found(locus_of(number), DirectoryUseRule::Parent)?;
            }
            None if !checker.misses_entries => {
                checker.found(locus_of(number), DirectoryUseRule::DotDot)?;
            }
            Some(_) | None => {}
        }
    }
    checker.directories = directories;
    Ok(())
}

/// Every directory with an entry is connected to a root: entries may lead in a circle.
fn check_connections(checker: &mut Checker<'_>) -> Flow {
    let superblock = &checker.context.superblock;
    let mut connected: HashSet<InodeNr> = HashSet::from([superblock.root_inode]);
    connected.extend(superblock.metadir_inode);
    for &number in &checker.directories.clone() {
        let mut path = Vec::new();
        let mut visited = HashSet::new();
        let mut at = number;
        let is_connected = loop {
            if connected.contains(&at) {
                break true;
            }
            if !visited.insert(at) {
                break false;
            }
            path.push(at);
            match checker.parents.get(&at) {
                Some(&parent) => at = parent,
                // One without an entry is reported for that.
                None => break true,
            }
        };
        if !is_connected {
            checker.found(locus_of(number), InodeUseRule::Disconnected)?;
        }
        // Each is visited once, whatever was found.
        connected.extend(path);
    }
    Ok(())
}

/// Parent pointers are those that the entries ask for.
fn check_parent_sums(checker: &mut Checker<'_>) -> Flow {
    let sums = std::mem::take(&mut checker.parent_sums);
    let mut wrong: Vec<_> = sums.into_iter().filter(|&(_, sum)| sum != 0).collect();
    wrong.sort_unstable();
    for (number, _) in wrong {
        checker.found(locus_of(number), InodeUseRule::ParentPointers)?;
    }
    Ok(())
}
