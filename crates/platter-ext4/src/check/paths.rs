//! Paths of findings: findings about inodes are deferred until all directories are read.

use std::collections::HashMap;
use std::ops::ControlFlow;

use platter_vfs::DirCursor;
use platter_vfs::check::{Checking, Finding};

use super::{Checker, Flow};
use crate::directory::Directory;
use crate::mapping::BlockMap;
use crate::ondisk::InodeNr;

/// Maximum number of deferred findings; further ones are reported without a path.
const WAITING_MAX: usize = 4096;
/// Maximum number of directories whose paths are cached.
const KNOWN_MAX: usize = 1024;
/// Maximum number of components of a path.
const DEPTH_MAX: usize = 256;
/// Maximum length of a path in bytes.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum number of entries read for all paths together; later findings have none.
const ENTRIES_MAX: u64 = 4 << 20;

/// The state of path lookup.
#[derive(Debug, Default)]
pub(super) struct Paths {
    waiting: Vec<Finding>,
    /// All directories were read.
    is_known: bool,
    known: HashMap<InodeNr, Vec<u8>>,
    entries_seen: u64,
}

impl Checking for Checker<'_> {
    /// Adds the path of the inode, or defers the finding until paths are known.
    fn report_finding(&mut self, finding: Finding) -> Flow {
        let number = finding.corruption.locus.parts().inode;
        let inode = number.and_then(|number| InodeNr::new(u32::try_from(number).ok()?));
        let Some(inode) = inode else {
            return self.report.finding(finding);
        };
        if self.paths.is_known {
            let path = path(self, inode);
            return self.report.finding(match path {
                Some(path) => finding.at_path(path),
                None => finding,
            });
        }
        if self.paths.waiting.len() >= WAITING_MAX {
            return self.report.finding(finding);
        }
        self.paths.waiting.push(finding);
        Ok(())
    }
}

/// Reports the deferred findings. All directories have been read.
pub(super) fn report_waiting(checker: &mut Checker<'_>) -> Flow {
    checker.paths.is_known = true;
    for finding in std::mem::take(&mut checker.paths.waiting) {
        checker.report_finding(finding)?;
    }
    Ok(())
}

/// Returns a path of an inode, found by walking up to the root.
fn path(checker: &mut Checker<'_>, inode: InodeNr) -> Option<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = inode;
    let mut path = loop {
        if at == InodeNr::ROOT {
            break Vec::new();
        }
        if let Some(known) = checker.paths.known.get(&at) {
            break known.clone();
        }
        let parent = checker.inodes.get(at).parent?;
        if names.len() >= DEPTH_MAX {
            return None;
        }
        names.push(name_in(checker, parent, at)?);
        at = parent;
    };
    let parent = if names.is_empty() {
        None
    } else {
        checker.inodes.get(inode).parent
    };
    for (left, name) in names.iter().enumerate().rev() {
        if left == 0 {
            remember(checker, parent, &path);
        }
        path.push(b'/');
        path.extend(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    (path.len() <= PATH_BYTES_MAX).then_some(path)
}

fn remember(checker: &mut Checker<'_>, directory: Option<InodeNr>, path: &[u8]) {
    if let Some(directory) = directory.filter(|_| path.len() <= PATH_BYTES_MAX) {
        if checker.paths.known.len() >= KNOWN_MAX {
            checker.paths.known.clear();
        }
        checker.paths.known.insert(directory, path.to_vec());
    }
}

/// Returns the name of an inode in a directory.
fn name_in(checker: &mut Checker<'_>, directory: InodeNr, wanted: InodeNr) -> Option<Vec<u8>> {
    let fs = checker.fs;
    let inode = checker.inode(directory)?;
    let map = BlockMap::decode(fs, &inode).ok()?;
    let directory = Directory::open(fs, &inode, &map).ok()?;
    let mut found = None;
    let seen = &mut checker.paths.entries_seen;
    let mut sink = |entry: platter_vfs::DirEntry<'_>| {
        *seen += 1;
        let is_wanted = entry.id == wanted.id() && !entry.name.is_dot_or_dotdot();
        if is_wanted {
            found = Some(entry.name.as_bytes().to_vec());
        }
        if is_wanted || *seen > ENTRIES_MAX {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    // Corruption elsewhere in the directory does not matter here.
    let _ = directory.read(DirCursor::START, &mut sink);
    found
}
