//! Names in a stream.
//!
//! All names that the newer subvolume does not have go first: an inode that is still there, and has no other name,
//! gets one in the root directory meanwhile. Then deleted directories are empty, no new name is taken, and all new
//! names can be given in any order, as each path is that of the moment.

use std::collections::BTreeSet;

use platter_vfs::{FileKind, Result};

use super::changes::{Change, each_change};
use super::side::{Link, Side, is_same, join};
use super::{Sender, missing};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::send_stream::Command;

/// What the receiver has of an inode, and what it is to have.
#[derive(Debug)]
pub(super) struct Versions {
    pub(super) old: Option<InodeItem>,
    pub(super) new: Option<InodeItem>,
    /// The inode is in both.
    pub(super) stays: bool,
}

impl<'c> Sender<'c, '_> {
    /// Calls `step` for each inode that differs.
    pub(super) fn each(
        &mut self,
        step: fn(&mut Self, Change, &Versions) -> Result<()>,
    ) -> Result<()> {
        let (old, new): (Option<Side<'c>>, Side<'c>) = (self.old, self.new);
        each_change(old.as_ref(), &new, &mut |change| {
            let versions = self.versions(change.number)?;
            step(self, change, &versions)
        })
    }

    fn versions(&self, number: u64) -> Result<Versions> {
        let new = self.new.inode(number)?;
        let old = match &self.old {
            Some(old) => old.inode(number)?,
            None => None,
        };
        let stays = match (&self.old, &old, &new) {
            (Some(side), Some(old), Some(new)) => {
                number == self.new.root_dir() || is_same((side, old), (&self.new, new), number)?
            }
            _ => false,
        };
        Ok(Versions { old, new, stays })
    }

    /// Whether the receiver has a directory since before the stream.
    fn is_old_dir(&self, number: u64) -> Result<bool> {
        if self.old.is_none() {
            return Ok(false);
        }
        Ok(number == self.new.root_dir() || self.versions(number)?.stays)
    }

    /// The names of an inode that both subvolumes have.
    fn kept(&self, old: &BTreeSet<Link>, new: &BTreeSet<Link>) -> Result<BTreeSet<Link>> {
        let mut kept = BTreeSet::new();
        for link in old.intersection(new) {
            if self.is_old_dir(link.0)? {
                kept.insert(link.clone());
            }
        }
        Ok(kept)
    }

    /// The name in the root directory that an inode has for some time: none of either subvolume.
    pub(super) fn passing_name(&self, number: u64, item: &InodeItem) -> Result<Vec<u8>> {
        let mut index = 0_u64;
        loop {
            let name = format!("o{number}-{}-{index}", item.generation.0).into_bytes();
            let in_old = match &self.old {
                Some(old) => old.root_has(&name)?,
                None => false,
            };
            if !in_old && !self.new.root_has(&name)? {
                return Ok(name);
            }
            index += 1;
        }
    }

    /// The path of a directory at the receiver now.
    fn dir_now(&self, side: &Side<'_>, number: u64) -> Result<Vec<u8>> {
        side.dir_path(number, &self.moved)
    }

    fn path_now(&self, side: &Side<'_>, (dir, name): &Link) -> Result<Vec<u8>> {
        Ok(join(&self.dir_now(side, *dir)?, name))
    }

    /// Removes the names that the newer subvolume does not have.
    pub(super) fn remove_names(&mut self) -> Result<()> {
        let Some(old) = self.old else {
            return Ok(());
        };
        self.each(|sender, change, versions| sender.remove_names_of(change.number, versions))?;
        let mut dirs = std::mem::take(&mut self.dead_dirs);
        // Those inside come first.
        dirs.sort_unstable_by(|a, b| b.cmp(a));
        for (_, number) in dirs {
            let path = self.dir_now(&old, number)?;
            self.put(&Command::RemoveDir { path: &path })?;
        }
        Ok(())
    }

    fn remove_names_of(&mut self, number: u64, versions: &Versions) -> Result<()> {
        let (Some(old), Some(item)) = (self.old, &versions.old) else {
            return Ok(());
        };
        if number == old.root_dir() {
            return Ok(());
        }
        let links = old.links(number)?;
        let kept = if versions.stays {
            self.kept(&links, &self.new.links(number)?)?
        } else {
            BTreeSet::new()
        };
        let mut gone = links.difference(&kept);
        if item.kind == FileKind::Directory {
            if !versions.stays {
                let depth = old.depth(number)?;
                self.dead_dirs.push((depth, number));
            } else if let Some(link) = gone.next() {
                let path = self.path_now(&old, link)?;
                let name = self.passing_name(number, item)?;
                let to = &name;
                self.put(&Command::Rename { path: &path, to })?;
                self.moved.insert(number, name);
            }
            return Ok(());
        }
        if versions.stays
            && kept.is_empty()
            && let Some(link) = gone.next()
        {
            let path = self.path_now(&old, link)?;
            let to = &self.passing_name(number, item)?;
            self.put(&Command::Rename { path: &path, to })?;
        }
        for link in gone {
            let path = self.path_now(&old, link)?;
            self.put(&Command::Unlink { path: &path })?;
        }
        Ok(())
    }

    /// Creates new directories, and gives all directories their names.
    pub(super) fn place_dirs(&mut self) -> Result<()> {
        self.each(|sender, change, versions| sender.make_dir(change.number, versions))?;
        let new = self.new;
        let moved: Vec<u64> = self.moved.keys().copied().collect();
        for number in moved {
            let link = new.link(number)?;
            let to = self.path_now(&new, &link)?;
            let path = self.moved.remove(&number).unwrap_or_default();
            self.put(&Command::Rename {
                path: &path,
                to: &to,
            })?;
        }
        Ok(())
    }

    fn make_dir(&mut self, number: u64, versions: &Versions) -> Result<()> {
        let item = versions.new.as_ref();
        let item = item.filter(|item| item.kind == FileKind::Directory);
        let Some(item) = item.filter(|_| !versions.stays) else {
            return Ok(());
        };
        if number == self.new.root_dir() {
            return Ok(());
        }
        let link = self.new.link(number)?;
        // A directory of the parent may have a default ACL, and one of a greater number is not there yet.
        let is_ready = link.0 < number && !self.is_old_dir(link.0)?;
        let path = if is_ready {
            self.path_now(&self.new, &link)?
        } else {
            let name = self.passing_name(number, item)?;
            self.moved.insert(number, name.clone());
            name
        };
        self.put(&Command::MakeDir {
            path: &path,
            inode: number,
        })
    }

    /// Sends the new names of files that the receiver has.
    pub(super) fn name_files(&mut self) -> Result<()> {
        if self.old.is_none() {
            return Ok(());
        }
        self.each(|sender, change, versions| sender.name_file(change.number, versions))
    }

    fn name_file(&mut self, number: u64, versions: &Versions) -> Result<()> {
        let (Some(old), Some(item)) = (self.old, &versions.new) else {
            return Ok(());
        };
        if !versions.stays || item.kind == FileKind::Directory {
            return Ok(());
        }
        let new = self.new;
        let links = new.links(number)?;
        let kept = self.kept(&old.links(number)?, &links)?;
        let mut added = links.difference(&kept);
        let existing = match (kept.first(), added.clone().next()) {
            (_, None) => return Ok(()),
            (Some(link), Some(_)) => self.path_now(&new, link)?,
            (None, Some(link)) => {
                added.next();
                let name = self.passing_name(number, item)?;
                let path = self.path_now(&new, link)?;
                self.put(&Command::Rename {
                    path: &name,
                    to: &path,
                })?;
                path
            }
        };
        for link in added {
            let path = self.path_now(&new, link)?;
            self.put(&Command::Link {
                path: &path,
                existing: &existing,
            })?;
        }
        Ok(())
    }

    /// Creates a file with all of its names. Returns its path.
    pub(super) fn make_file(&mut self, number: u64, item: &InodeItem) -> Result<Vec<u8>> {
        let new = self.new;
        let links = new.links(number)?;
        let Some(first) = links.first() else {
            return Err(missing(&new, number));
        };
        let path = self.path_now(&new, first)?;
        let is_ready = !self.is_old_dir(first.0)?;
        let made = if is_ready {
            path.clone()
        } else {
            self.passing_name(number, item)?
        };
        self.make_as(&made, number, item)?;
        if !is_ready {
            self.put(&Command::Rename {
                path: &made,
                to: &path,
            })?;
        }
        for link in links.iter().skip(1) {
            let other = self.path_now(&new, link)?;
            self.put(&Command::Link {
                path: &other,
                existing: &path,
            })?;
        }
        Ok(path)
    }

    fn make_as(&mut self, path: &[u8], inode: u64, item: &InodeItem) -> Result<()> {
        match item.kind {
            FileKind::Regular | FileKind::Directory => self.put(&Command::MakeFile { path, inode }),
            FileKind::Symlink => {
                let target = self.new.target(inode, item)?;
                self.put(&Command::Symlink {
                    path,
                    inode,
                    target: &target,
                })
            }
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                self.put(&Command::MakeNode {
                    path,
                    inode,
                    kind: item.kind,
                    permissions: item.permissions,
                    device: item.device,
                })
            }
        }
    }
}
