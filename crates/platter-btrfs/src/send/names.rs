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

/// Calls `step` for each inode that differs, unless the trees changed before.
pub(super) fn each<'c, 'o>(
    sender: &mut Sender<'c, 'o>,
    step: fn(&mut Sender<'c, 'o>, Change, &Versions) -> Result<()>,
) -> Result<()> {
    (sender.unchanged)()?;
    let (old, new): (Option<Side<'c>>, Side<'c>) = (sender.old, sender.new);
    let options = sender.options;
    each_change(old.as_ref(), &new, options, &mut |change| {
        options.refuse_if_cancelled()?;
        let versions = versions(sender, change.number)?;
        step(sender, change, &versions)
    })
}

fn versions(sender: &Sender<'_, '_>, number: u64) -> Result<Versions> {
    let new = sender.new.inode(number)?;
    let old = match &sender.old {
        Some(old) => old.inode(number)?,
        None => None,
    };
    let stays = match (&sender.old, &old, &new) {
        (Some(side), Some(old), Some(new)) => {
            number == sender.new.root_dir() || is_same((side, old), (&sender.new, new), number)?
        }
        _ => false,
    };
    Ok(Versions { old, new, stays })
}

/// Whether the receiver has a directory since before the stream.
fn is_old_dir(sender: &Sender<'_, '_>, number: u64) -> Result<bool> {
    if sender.old.is_none() {
        return Ok(false);
    }
    Ok(number == sender.new.root_dir() || versions(sender, number)?.stays)
}

/// The names of an inode that both subvolumes have.
fn kept(
    sender: &Sender<'_, '_>,
    old: &BTreeSet<Link>,
    new: &BTreeSet<Link>,
) -> Result<BTreeSet<Link>> {
    let mut kept = BTreeSet::new();
    for link in old.intersection(new) {
        if is_old_dir(sender, link.0)? {
            kept.insert(link.clone());
        }
    }
    Ok(kept)
}

/// The name in the root directory that an inode has for some time: none of either subvolume.
fn passing_name(sender: &Sender<'_, '_>, number: u64, item: &InodeItem) -> Result<Vec<u8>> {
    let mut index = 0_u64;
    loop {
        let name = format!("o{number}-{}-{index}", item.generation.0).into_bytes();
        let in_old = match &sender.old {
            Some(old) => old.root_has(&name)?,
            None => false,
        };
        if !in_old && !sender.new.root_has(&name)? {
            return Ok(name);
        }
        index += 1;
    }
}

/// The path of a directory at the receiver now.
fn dir_now(sender: &Sender<'_, '_>, side: &Side<'_>, number: u64) -> Result<Vec<u8>> {
    side.dir_path(number, &sender.moved)
}

fn path_now(sender: &Sender<'_, '_>, side: &Side<'_>, (dir, name): &Link) -> Result<Vec<u8>> {
    Ok(join(&dir_now(sender, side, *dir)?, name))
}

/// Removes the names that the newer subvolume does not have.
pub(super) fn remove_names(sender: &mut Sender<'_, '_>) -> Result<()> {
    let Some(old) = sender.old else {
        return Ok(());
    };
    each(sender, |sender, change, versions| {
        remove_names_of(sender, change.number, versions)
    })?;
    let mut dirs = std::mem::take(&mut sender.dead_dirs);
    // Those inside come first.
    dirs.sort_unstable_by(|a, b| b.cmp(a));
    for (_, number) in dirs {
        let path = dir_now(sender, &old, number)?;
        sender.put(&Command::RemoveDir { path: &path })?;
    }
    Ok(())
}

fn remove_names_of(sender: &mut Sender<'_, '_>, number: u64, versions: &Versions) -> Result<()> {
    let (Some(old), Some(item)) = (sender.old, &versions.old) else {
        return Ok(());
    };
    if number == old.root_dir() {
        return Ok(());
    }
    let links = old.links(number)?;
    let kept = if versions.stays {
        kept(sender, &links, &sender.new.links(number)?)?
    } else {
        BTreeSet::new()
    };
    let mut gone = links.difference(&kept);
    if item.kind == FileKind::Directory {
        if !versions.stays {
            let depth = old.depth(number)?;
            sender.add_dead_dir(depth, number)?;
        } else if let Some(link) = gone.next() {
            let path = path_now(sender, &old, link)?;
            let name = passing_name(sender, number, item)?;
            let to = &name;
            sender.put(&Command::Rename { path: &path, to })?;
            sender.add_moved(number, name)?;
        }
        return Ok(());
    }
    if versions.stays
        && kept.is_empty()
        && let Some(link) = gone.next()
    {
        let path = path_now(sender, &old, link)?;
        let to = &passing_name(sender, number, item)?;
        sender.put(&Command::Rename { path: &path, to })?;
    }
    for link in gone {
        let path = path_now(sender, &old, link)?;
        sender.put(&Command::Unlink { path: &path })?;
    }
    Ok(())
}

/// Creates new directories, and gives all directories their names.
pub(super) fn place_dirs(sender: &mut Sender<'_, '_>) -> Result<()> {
    each(sender, |sender, change, versions| {
        make_dir(sender, change.number, versions)
    })?;
    let new = sender.new;
    let moved: Vec<u64> = sender.moved.keys().copied().collect();
    for number in moved {
        let link = new.link(number)?;
        let to = path_now(sender, &new, &link)?;
        let path = sender.moved.remove(&number).unwrap_or_default();
        sender.put(&Command::Rename {
            path: &path,
            to: &to,
        })?;
    }
    Ok(())
}

fn make_dir(sender: &mut Sender<'_, '_>, number: u64, versions: &Versions) -> Result<()> {
    let item = versions.new.as_ref();
    let item = item.filter(|item| item.kind == FileKind::Directory);
    let Some(item) = item.filter(|_| !versions.stays) else {
        return Ok(());
    };
    if number == sender.new.root_dir() {
        return Ok(());
    }
    let link = sender.new.link(number)?;
    // A directory of the parent may have a default ACL, and one of a greater number is not there yet.
    let is_ready = link.0 < number && !is_old_dir(sender, link.0)?;
    let path = if is_ready {
        path_now(sender, &sender.new, &link)?
    } else {
        let name = passing_name(sender, number, item)?;
        sender.add_moved(number, name.clone())?;
        name
    };
    sender.put(&Command::MakeDir {
        path: &path,
        inode: number,
    })
}

/// Sends the new names of files that the receiver has.
pub(super) fn name_files(sender: &mut Sender<'_, '_>) -> Result<()> {
    if sender.old.is_none() {
        return Ok(());
    }
    each(sender, |sender, change, versions| {
        name_file(sender, change.number, versions)
    })
}

fn name_file(sender: &mut Sender<'_, '_>, number: u64, versions: &Versions) -> Result<()> {
    let (Some(old), Some(item)) = (sender.old, &versions.new) else {
        return Ok(());
    };
    if !versions.stays || item.kind == FileKind::Directory {
        return Ok(());
    }
    let new = sender.new;
    let links = new.links(number)?;
    let kept = kept(sender, &old.links(number)?, &links)?;
    let mut added = links.difference(&kept);
    let existing = match (kept.first(), added.clone().next()) {
        (_, None) => return Ok(()),
        (Some(link), Some(_)) => path_now(sender, &new, link)?,
        (None, Some(link)) => {
            added.next();
            let name = passing_name(sender, number, item)?;
            let path = path_now(sender, &new, link)?;
            sender.put(&Command::Rename {
                path: &name,
                to: &path,
            })?;
            path
        }
    };
    for link in added {
        let path = path_now(sender, &new, link)?;
        sender.put(&Command::Link {
            path: &path,
            existing: &existing,
        })?;
    }
    Ok(())
}

/// Creates a file with all of its names. Returns its path.
pub(super) fn make_file(
    sender: &mut Sender<'_, '_>,
    number: u64,
    item: &InodeItem,
) -> Result<Vec<u8>> {
    let new = sender.new;
    let links = new.links(number)?;
    let Some(first) = links.first() else {
        return Err(missing(&new, number));
    };
    let path = path_now(sender, &new, first)?;
    let is_ready = !is_old_dir(sender, first.0)?;
    let made = if is_ready {
        path.clone()
    } else {
        passing_name(sender, number, item)?
    };
    make_as(sender, &made, number, item)?;
    if !is_ready {
        sender.put(&Command::Rename {
            path: &made,
            to: &path,
        })?;
    }
    for link in links.iter().skip(1) {
        let other = path_now(sender, &new, link)?;
        sender.put(&Command::Link {
            path: &other,
            existing: &path,
        })?;
    }
    Ok(path)
}

fn make_as(sender: &mut Sender<'_, '_>, path: &[u8], inode: u64, item: &InodeItem) -> Result<()> {
    match item.kind {
        FileKind::Regular | FileKind::Directory => sender.put(&Command::MakeFile { path, inode }),
        FileKind::Symlink => {
            let target = sender.new.target(inode, item)?;
            sender.put(&Command::Symlink {
                path,
                inode,
                target: &target,
            })
        }
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => sender
            .put(&Command::MakeNode {
                path,
                inode,
                kind: item.kind,
                permissions: item.permissions,
                device: item.device,
            }),
    }
}
