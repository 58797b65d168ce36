//! Directories that go with all below them.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_vfs::tree_walk::second_name;
use platter_vfs::{DirCursor, FileKind, Inode, NameBuf};

use super::Volume;
use super::place::{Place, join};
use crate::{Progress, Result};

/// The names held in memory at once, over all directories from the top down, in bytes. The share of
/// one directory is half of what those above it leave.
const LISTED_BYTES_MAX: usize = 32 << 20;
/// The least that a directory lists at once, in bytes, so that deep trees get on.
pub(crate) const LISTED_BYTES_MIN: usize = 4096;

/// A directory that is being removed, and what is left in it.
struct Level {
    place: Place,
    dir: Arc<dyn Inode>,
    /// How much of the path is this directory's.
    path_len: usize,
    names: Vec<NameBuf>,
    /// There are more names than those.
    has_more: bool,
    share_bytes: usize,
}

impl Level {
    /// The directory at `place`, whose path has `path_len` bytes. Its own goes: the whole walk has one.
    fn new(place: Place, dir: Arc<dyn Inode>, path_len: usize, bytes_left: usize) -> Self {
        Self {
            place: Place {
                path: Vec::new(),
                ..place
            },
            dir,
            path_len,
            names: Vec::new(),
            has_more: true,
            share_bytes: bytes_left / 2,
        }
    }

    /// The next name to remove. What was listed before is gone, so a listing begins at the start.
    fn next(&mut self) -> platter_vfs::Result<Option<NameBuf>> {
        if self.names.is_empty() && self.has_more {
            self.list()?;
        }
        Ok(self.names.pop())
    }

    fn list(&mut self) -> platter_vfs::Result<()> {
        let bytes_max = self.share_bytes.max(LISTED_BYTES_MIN);
        let (names, mut listed_bytes) = (&mut self.names, 0);
        self.has_more = false;
        let has_more = &mut self.has_more;
        self.dir.read_dir(DirCursor::START, &mut |entry| {
            if entry.name.is_dot_or_dotdot() {
                return ControlFlow::Continue(());
            }
            names.push(entry.name.to_owned());
            listed_bytes += size_of::<NameBuf>() + entry.name.as_bytes().len();
            if listed_bytes < bytes_max {
                return ControlFlow::Continue(());
            }
            *has_more = true;
            ControlFlow::Break(())
        })
    }
}

/// Removes the directory `victim` at `place` of a volume with all below it.
///
/// A directory that two entries name, as in a loop, ends the removal: an image holds no
/// directory twice, so the walk is no longer than the image. `progress` can cancel it.
pub(crate) fn remove_tree(
    volume: &Volume,
    place: Place,
    victim: Arc<dyn Inode>,
    progress: &Progress,
) -> Result<()> {
    let end = place.path.iter().rposition(|&byte| byte != b'/');
    let mut path = place.path[..end.map_or(0, |end| end + 1)].to_vec();
    let mut entered = HashSet::from([victim.id()]);
    let mut bytes_left = LISTED_BYTES_MAX;
    let mut levels = vec![Level::new(place, victim, path.len(), bytes_left)];
    bytes_left -= levels[0].share_bytes;
    while let Some(level) = levels.last_mut() {
        path.truncate(level.path_len);
        let checked = progress.check();
        checked.map_err(|cause| volume.error(&path, cause))?;
        let Some(name) = volume.named(&path, level.next())? else {
            volume.named(&path, level.place.remove(&*level.dir))?;
            bytes_left += level.share_bytes;
            levels.pop();
            continue;
        };
        let inside = join(&path, name.as_name().as_bytes());
        let place = Place {
            dir: Arc::clone(&level.dir),
            name,
            is_directory: false,
            path: Vec::new(),
        };
        path = inside;
        let victim = volume.named(&path, place.dir.lookup(place.name.as_name()))?;
        if volume.named(&path, victim.attr())?.kind != FileKind::Directory {
            volume.named(&path, place.remove(&*victim))?;
            continue;
        }
        volume.named(&path, place.check_may_remove(&*victim))?;
        if !entered.insert(victim.id()) {
            let error = platter_vfs::Error::from(second_name(victim.id()));
            return Err(volume.error(&path, error));
        }
        levels.push(Level::new(place, victim, path.len(), bytes_left));
        bytes_left -= levels.last().map_or(0, |level| level.share_bytes);
    }
    Ok(())
}
