//! Directories that go with all below them.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_vfs::tree_walk::second_name;
use platter_vfs::{DirCursor, FileKind, Inode, NameBuf};

use super::Edit;
use super::place::{Place, join};
use crate::Result;

/// The names held in memory at once, over all directories from the top down, in bytes. The share of
/// one directory is half of what those above it leave.
const LISTED_BYTES_MAX: usize = 32 << 20;
/// The least that a directory lists at once, in bytes, so that deep trees get on.
const LISTED_BYTES_MIN: usize = 4096;

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

impl Edit {
    /// Removes the directory `victim` at `place` with all below it.
    ///
    /// A directory that two entries name, as in a loop, ends the removal: an image holds no
    /// directory twice, so the walk is no longer than the image.
    pub(super) fn remove_tree(&self, place: Place, victim: Arc<dyn Inode>) -> Result<()> {
        let end = place.path.iter().rposition(|&byte| byte != b'/');
        let mut path = place.path[..end.map_or(0, |end| end + 1)].to_vec();
        let mut entered = HashSet::from([victim.id()]);
        let mut bytes_left = LISTED_BYTES_MAX;
        let mut levels = vec![Level::new(place, victim, path.len(), bytes_left)];
        bytes_left -= levels[0].share_bytes;
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_len);
            let Some(name) = self.named(&path, level.next())? else {
                self.named(&path, level.place.remove(&*level.dir))?;
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
            let victim = self.named(&path, place.dir.lookup(place.name.as_name()))?;
            if self.named(&path, victim.attr())?.kind != FileKind::Directory {
                self.named(&path, place.remove(&*victim))?;
                continue;
            }
            self.named(&path, place.prove_may_remove(&*victim))?;
            if !entered.insert(victim.id()) {
                let error = platter_vfs::Error::from(second_name(victim.id()));
                return Err(self.error(&path, error));
            }
            levels.push(Level::new(place, victim, path.len(), bytes_left));
            bytes_left -= levels.last().map_or(0, |level| level.share_bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use platter_block::MemoryDevice;

    use super::super::tests::{begin, sample, write};
    use super::super::{Existing, Missing};
    use super::*;
    use crate::Error;
    use crate::driver::samples::NEWEST;
    use crate::make::Generation;

    /// Removes a tree, in time.
    fn remove(memory: &Arc<MemoryDevice>, path: &'static [u8]) -> Option<String> {
        let edit = begin(memory);
        let (sender, receiver) = mpsc::channel();
        let removing = std::thread::Builder::new().spawn(move || {
            let removed = edit.remove(path, true, false, Missing::Refuse);
            let removed = removed.and_then(|()| edit.commit());
            sender.send(removed.map_err(|error: Error| error.to_string()).err())
        });
        let told = receiver.recv_timeout(Duration::from_mins(1)).unwrap();
        removing.unwrap().join().unwrap().unwrap();
        told
    }

    /// Makes the entry `name` one of the inode that the entry `other` is of.
    fn redirect(memory: &Arc<MemoryDevice>, name: &[u8], other: &[u8]) -> Arc<MemoryDevice> {
        let mut bytes = memory.snapshot();
        let entry = |name: &[u8]| {
            let tail = [&[u8::try_from(name.len()).unwrap(), 2], name].concat();
            let found = bytes.windows(tail.len()).position(|bytes| bytes == tail);
            found.unwrap() - 6
        };
        let (from, to) = (entry(other), entry(name));
        bytes.copy_within(from..from + 4, to);
        Arc::new(MemoryDevice::new("disk", bytes).with_blocks(1024))
    }

    #[test]
    fn loops_and_shared_directories_end_a_removal() {
        let memory = sample(Generation::Ext2);
        let edit = begin(&memory);
        edit.make_dirs(b"/a/b/c/inner", None).unwrap();
        edit.make_dirs(b"/outside/deep", None).unwrap();
        edit.make_dirs(b"/outside/shared", None).unwrap();
        edit.commit().unwrap();
        let twice = "more than one entry names it";
        // Where the other name is gone already, so is the directory.
        let deleted = "is of a deleted inode";
        for (name, other, top, path, rule) in [
            (&b"inner"[..], &b"b"[..], &b"/a/"[..], "/a/b/c/inner", twice),
            (b"inner", b"a", b"/a", "/a/b/c/inner", twice),
            (b"deep", b"shared", b"/outside//", "/outside/deep", deleted),
        ] {
            let damaged = redirect(&memory, name, other);
            let before = damaged.snapshot();
            let told = remove(&damaged, top);
            let told = told.unwrap_or_default();
            let is_path = told.starts_with(&format!("disk:{path}: "));
            let is_rule = told.ends_with(&format!(": {rule}"));
            assert!(is_path && is_rule, "{told}");
            assert!(damaged.snapshot() == before);
        }
    }

    #[test]
    fn more_names_than_are_held_at_once_are_removed() {
        let memory = sample(NEWEST);
        let edit = begin(&memory);
        let deep = "/deep".repeat(20);
        edit.make_dirs(deep.as_bytes(), None).unwrap();
        // Below the first levels, a directory lists so much at once and no more.
        let count = 3 * LISTED_BYTES_MIN / (size_of::<NameBuf>() + 200);
        for number in 0..count {
            write(&edit, &format!("{deep}/{number:0200}"), b"");
        }
        edit.symlink(b"deep", b"/link", false, Existing::Refuse)
            .unwrap();
        edit.commit().unwrap();
        assert_eq!(remove(&memory, b"/deep/"), None);
        let edit = begin(&memory);
        assert!(edit.volume().open("/deep").is_err());
        assert!(edit.volume().open_no_follow("/link").is_ok());
    }
}
