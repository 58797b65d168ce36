//! The tree of directories: each is reached from the root, and knows its parent.

use std::collections::HashSet;

use platter_vfs::FileKind;

use super::{Checker, DirectoryUseRule, Flow, locus_of};
use crate::ondisk::InodeNr;

impl Checker<'_> {
    pub(super) fn check_tree(&mut self) -> Flow {
        let root = InodeNr::ROOT;
        if self.inodes.get(root).kind != Some(FileKind::Directory) {
            return self.found(locus_of(root), DirectoryUseRule::Root);
        }
        let directories = std::mem::take(&mut self.directories);
        let mut reached = HashSet::from([root]);
        for &directory in &directories {
            self.check_reached(directory, &mut reached)?;
            let parents = self.parents.get(&directory).copied().unwrap_or_default();
            let parent = if directory == root {
                Some(root)
            } else {
                parents.by_name
            };
            // A directory nobody names, or that does not begin with `..`, was reported as such.
            let both = parent.zip(parents.by_dotdot);
            if both.is_some_and(|(by_name, by_dotdot)| by_name != by_dotdot) {
                self.found(locus_of(directory), DirectoryUseRule::Parent)?;
            }
        }
        self.directories = directories;
        Ok(())
    }

    /// Goes up until a directory that is known to be reached, or to where it ends or comes round.
    fn check_reached(&mut self, directory: InodeNr, reached: &mut HashSet<InodeNr>) -> Flow {
        let mut way = Vec::new();
        let mut on_way = HashSet::new();
        let mut at = directory;
        while !reached.contains(&at) {
            way.push(at);
            on_way.insert(at);
            match self.parents.get(&at).and_then(|parents| parents.by_name) {
                Some(parent) if !on_way.contains(&parent) => at = parent,
                Some(_) | None => {
                    self.found(locus_of(at), DirectoryUseRule::Unreachable)?;
                    break;
                }
            }
        }
        // What hangs below a lost directory is lost with it and needs no report of its own.
        reached.extend(way);
        Ok(())
    }
}
