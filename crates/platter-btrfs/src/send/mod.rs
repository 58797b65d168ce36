//! Send streams: what makes a copy of a read-only subvolume elsewhere, as a whole or from an older one that the
//! receiver has.
//!
//! The inodes that differ are found anew in each pass, by comparing the trees, so none are kept in memory:
//!
//! 1. names that are gone, deleted directories (`names`);
//! 2. new directories, and the names of all directories;
//! 3. names of files that the receiver has;
//! 4. in order of their numbers, new files, contents and attributes of files;
//! 5. attributes of directories, whose times all of this changed.

pub mod encoded;
mod side;
mod changes;
mod clones;
mod contents;
mod names;
mod attributes;

use std::collections::BTreeMap;
use std::io::Write;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::subvolumes::SendOptions;
use platter_vfs::{Condition, Error, FileKind, Result, Unsupported};

use crate::context::{FsContext, Subvolume};
use crate::inode::InodeRule;
use crate::ondisk::TreeId;
use crate::ondisk::send_stream::{Command, StreamWriter, VERSION_MAX};
use changes::Change;
use clones::Clones;
use contents::File;
use names::Versions;
use side::Side;

pub use side::DataSource;

/// Directories that a stream keeps in memory at once: each takes about 100 bytes.
const DIRS_MAX: usize = 1 << 22;

/// Makes one stream.
struct Sender<'c, 'o> {
    /// What the receiver has.
    old: Option<Side<'c>>,
    /// What is sent.
    new: Side<'c>,
    /// What extents may be cloned from; what is sent is the last.
    sides: Vec<Side<'c>>,
    options: &'o SendOptions,
    out: StreamWriter<'o>,
    /// Fails where a tree that the stream is made from is not any more what it was.
    unchanged: &'o dyn Fn() -> Result<()>,
    clones: Clones,
    /// Directories that have a name in the root directory for some time; at most [`DIRS_MAX`], with `dead_dirs`.
    moved: BTreeMap<u64, Vec<u8>>,
    /// None, for paths that are final.
    nothing_moved: BTreeMap<u64, Vec<u8>>,
    /// Deleted directories, with their depths.
    dead_dirs: Vec<(usize, u64)>,
    /// Data on its way.
    buffer: Vec<u8>,
    /// How many commands were sent.
    commands: u64,
}

/// Writes a read-only subvolume to `out` as a stream. No lock is held while `out` waits. `unchanged` is called now and
/// then, and before the command that ends the stream, which is without it if that fails.
///
/// # Errors
/// `NotFound` for subvolumes that do not exist, `NotPermitted` where one of them is not read-only.
pub fn send(
    context: &FsContext,
    data: DataSource<'_>,
    id: TreeId,
    options: &SendOptions,
    out: &mut dyn Write,
    unchanged: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let version = options.version.unwrap_or(VERSION_MAX);
    if !(1..=VERSION_MAX).contains(&version) {
        return Err(unsupported(format!("send stream version {version}")));
    }
    if options.compressed && version < 2 {
        return Err(unsupported(
            "compressed data in a send stream of version 1".to_owned(),
        ));
    }
    let side = |id: TreeId| -> Result<Side<'_>> {
        let subvolume = existing(context, id)?;
        Ok(Side {
            context,
            subvolume,
            data,
        })
    };
    let new = side(id)?;
    let old = options.parent.map(|id| side(TreeId(id))).transpose()?;
    let mut sides: Vec<_> = old.into_iter().collect();
    for source in &options.clone_sources {
        sides.push(side(TreeId(*source))?);
    }
    sides.push(new);
    let mut sender = Sender {
        old,
        new,
        sides,
        options,
        out: StreamWriter::begin(out, version)?,
        unchanged,
        clones: Clones::default(),
        moved: BTreeMap::new(),
        nothing_moved: BTreeMap::new(),
        dead_dirs: Vec::new(),
        buffer: Vec::new(),
        commands: 0,
    };
    sender.run()?;
    unchanged()?;
    sender.put(&Command::End)
}

fn existing(context: &FsContext, id: TreeId) -> Result<Subvolume> {
    let found = context.subvolume(id)?.ok_or(Condition::NotFound)?;
    if !found.is_read_only() {
        return Err(Condition::NotPermitted.into());
    }
    Ok(found)
}

fn unsupported(feature: String) -> Error {
    Unsupported {
        filesystem: "btrfs",
        feature,
        reason: None,
    }
    .into()
}

/// # Errors
/// `Unsupported` where a stream that keeps so many directories in memory can keep no other one.
fn refuse_if_full(dirs: usize) -> Result<()> {
    if dirs >= DIRS_MAX {
        return Err(unsupported(format!(
            "a send stream that moves or deletes more than {DIRS_MAX} directories"
        )));
    }
    Ok(())
}

/// The error of an inode without the names that its item counts.
fn missing(side: &Side<'_>, number: u64) -> Error {
    let locus = Locus::tree(side.subvolume.id.0).of_inode(number);
    Corrupt::new(locus, InodeRule::NoName).into()
}

impl Sender<'_, '_> {
    /// Remembers the name in the root directory that a directory has for some time.
    fn add_moved(&mut self, number: u64, name: Vec<u8>) -> Result<()> {
        refuse_if_full(self.moved.len() + self.dead_dirs.len())?;
        self.moved.insert(number, name);
        Ok(())
    }

    /// Remembers a deleted directory.
    fn add_dead_dir(&mut self, depth: usize, number: u64) -> Result<()> {
        refuse_if_full(self.moved.len() + self.dead_dirs.len())?;
        self.dead_dirs.push((depth, number));
        Ok(())
    }

    fn put(&mut self, command: &Command<'_>) -> Result<()> {
        self.commands += 1;
        self.out.put(command)
    }

    fn run(&mut self) -> Result<()> {
        self.begin()?;
        let begun = self.commands;
        let is_equal = self
            .old
            .is_some_and(|old| old.tree().root == self.new.tree().root);
        if !is_equal {
            if self.old.is_some() && self.out.version() >= 2 {
                names::each(self, |sender, change, versions| match &versions.old {
                    Some(item) => attributes::unlock(sender, change.number, item),
                    None => Ok(()),
                })?;
            }
            let inherited = attributes::clear_inherited(self)?;
            names::remove_names(self)?;
            names::place_dirs(self)?;
            names::name_files(self)?;
            names::each(self, Self::send_file)?;
            names::each(self, Self::send_dir)?;
            self.send_root(inherited, begun)?;
        }
        Ok(())
    }

    /// Sends what the subvolume is called, and what it begins as.
    fn begin(&mut self) -> Result<()> {
        let name = self.new.context.parent_name(self.new.subvolume.id)?;
        let name = name.ok_or(Condition::NotPermitted)?;
        let (path, source) = (&name.name[..], self.new.source());
        match &self.old {
            None => self.put(&Command::Subvolume { path, source }),
            Some(old) => {
                let parent = old.source();
                self.put(&Command::Snapshot {
                    path,
                    source,
                    parent,
                })
            }
        }
    }

    /// Sends a file: its creation, contents and attributes.
    fn send_file(&mut self, change: Change, versions: &Versions) -> Result<()> {
        let number = change.number;
        let item = versions.new.as_ref();
        let Some(item) = item.filter(|item| item.kind != FileKind::Directory) else {
            return Ok(());
        };
        let old = versions.old.as_ref().filter(|_| versions.stays);
        let path = if old.is_some() {
            let (dir, name) = self.new.link(number)?;
            side::join(&self.new.dir_path(dir, &self.moved)?, &name)
        } else {
            names::make_file(self, number, item)?
        };
        let mut attributes = attributes::read(self, number, &path, (item, old))?;
        attributes::send_before_contents(self, &mut attributes)?;
        let resized = old.is_none_or(|old| old.size_bytes != item.size_bytes);
        let is_changed = item.kind == FileKind::Regular && (change.extents || resized);
        let is_changed = is_changed
            && contents::send(
                self,
                &File {
                    number,
                    path: &path,
                    item,
                    old,
                },
            )?;
        attributes::send_after_contents(self, &mut attributes, is_changed)
    }

    /// Sends the attributes of a directory.
    fn send_dir(&mut self, change: Change, versions: &Versions) -> Result<()> {
        let number = change.number;
        let item = versions.new.as_ref();
        let item = item.filter(|item| item.kind == FileKind::Directory);
        let Some(item) = item.filter(|_| number != self.new.root_dir()) else {
            return Ok(());
        };
        let old = versions.old.as_ref().filter(|_| versions.stays);
        let path = self.new.dir_path(number, &self.moved)?;
        let mut attributes = attributes::read(self, number, &path, (item, old))?;
        attributes::send_before_contents(self, &mut attributes)?;
        attributes::send_after_contents(self, &mut attributes, false)
    }

    /// Sends the attributes of the root directory, which has `inherited` at the receiver, if there was any
    /// command since `begun`.
    fn send_root(&mut self, inherited: BTreeMap<Vec<u8>, Vec<u8>>, begun: u64) -> Result<()> {
        let number = self.new.root_dir();
        let item = self.new.inode(number)?;
        let item = item.ok_or_else(|| missing(&self.new, number))?;
        let old = match &self.old {
            Some(old) => old.inode(number)?,
            None => None,
        };
        let xattrs_before = self.old.is_some();
        let mut attributes = attributes::read(self, number, b"", (&item, old.as_ref()))?;
        if xattrs_before {
            attributes.old_xattrs = inherited;
        }
        if old.as_ref() == Some(&item)
            && self.commands == begun
            && attributes.xattrs == attributes.old_xattrs
        {
            return Ok(());
        }
        attributes::send_before_contents(self, &mut attributes)?;
        attributes::send_after_contents(self, &mut attributes, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_a_stream_remembers_are_limited() {
        refuse_if_full(0).unwrap();
        refuse_if_full(DIRS_MAX - 1).unwrap();
        let refused = refuse_if_full(DIRS_MAX).unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        assert!(
            refused
                .to_string()
                .contains("more than 4194304 directories")
        );
    }
}
