//! The subvolumes of a mount that a stream refers to by their UUIDs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use platter::stream::{SourceRank, StreamGeneration, StreamSource};
use platter::vfs::Uuid;
use platter::vfs::subvolumes::Subvolume;
use platter_fuse::Control;
use rustix::io::Errno;

use super::tree::SubvolumeTree;

/// Subvolumes that are kept open.
const KNOWN_MAX: usize = 64;

/// Subvolumes that were found.
#[derive(Debug)]
pub(super) struct Origins {
    mountpoint: PathBuf,
    /// Where they are looked for, once a stream refers to one.
    root: Option<MountRoot>,
    known: HashMap<(Uuid, u64), SubvolumeTree>,
}

/// The root directory of a mount.
#[derive(Debug)]
struct MountRoot {
    dir: File,
    control: Control,
    /// Its path from the top-level subvolume.
    path: Vec<u8>,
}

impl Origins {
    /// Those of a mount. Only its administrator finds them.
    pub(super) fn of(mountpoint: PathBuf) -> Self {
        Self {
            mountpoint,
            root: None,
            known: HashMap::new(),
        }
    }

    /// Forgets what was found, after a subvolume was made.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// The subvolume that was received from `source`, or is that.
    ///
    /// # Errors
    /// `ENOENT` where there is none, or it is not in the mount.
    pub(super) fn find(&mut self, source: StreamSource) -> io::Result<&mut SubvolumeTree> {
        let key = (source.uuid, source.generation.0);
        let tree = match self.known.remove(&key) {
            Some(known) => known,
            None => self.root()?.find(source)?,
        };
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        Ok(self.known.entry(key).or_insert(tree))
    }

    fn root(&mut self) -> io::Result<&MountRoot> {
        let root = match self.root.take() {
            Some(root) => root,
            None => MountRoot::open(&self.mountpoint)?,
        };
        Ok(self.root.insert(root))
    }
}

impl MountRoot {
    fn open(mountpoint: &Path) -> io::Result<Self> {
        let control = Control::open(mountpoint)?;
        let id = control.subvolume_id()?;
        let root = control.next_subvolume(id)?;
        let (root, _) = root.filter(|(root, _)| root.id == id).ok_or(Errno::NOENT)?;
        Ok(Self {
            dir: File::open(mountpoint)?,
            control,
            path: root.path,
        })
    }

    fn find(&self, source: StreamSource) -> io::Result<SubvolumeTree> {
        let subvolume = self.best(source)?;
        let path = path_below(&self.path, &subvolume.path).ok_or(Errno::NOENT)?;
        let tree = SubvolumeTree::open(&self.dir, path)?;
        // Another one may have the name by now.
        if tree.id() != subvolume.id {
            return Err(Errno::NOENT.into());
        }
        Ok(tree)
    }

    /// The subvolume below the mount that matches best; of equal ones, that marked first, as any user may mark one
    /// of their own later.
    fn best(&self, source: StreamSource) -> io::Result<Subvolume> {
        let mut best: Option<(_, Subvolume)> = None;
        let mut from = 0;
        while let Some((found, _)) = self.control.next_subvolume(from)? {
            from = found.id.checked_add(1).ok_or(Errno::PROTO)?;
            let marked = found.received.map_or(0, |received| received.generation);
            let rank = (rank(&found, source), Reverse(marked));
            if rank.0.is_some()
                && path_below(&self.path, &found.path).is_some()
                && best.as_ref().is_none_or(|(known, _)| *known < rank)
            {
                best = Some((rank, found));
            }
        }
        let (_, best) = best.ok_or(Errno::NOENT)?;
        Ok(best)
    }
}

/// How well a subvolume matches.
fn rank(subvolume: &Subvolume, source: StreamSource) -> Option<SourceRank> {
    let own = StreamSource {
        uuid: subvolume.uuid,
        generation: StreamGeneration(subvolume.changed_generation),
    };
    let received = StreamSource {
        uuid: subvolume.received_uuid.unwrap_or_default(),
        generation: StreamGeneration(subvolume.sent.map_or(0, |sent| sent.generation)),
    };
    source.rank(&own, &received, subvolume.read_only)
}

/// A path from the top-level subvolume as one from the root directory of a mount.
fn path_below<'p>(root: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    if root.is_empty() || root == path {
        return path.strip_prefix(root);
    }
    path.strip_prefix(root)?.strip_prefix(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_below_the_root_of_the_mount() {
        let below = |root: &'static str, path: &'static str| {
            let found = path_below(root.as_bytes(), path.as_bytes());
            found.map(|found| str::from_utf8(found).unwrap())
        };
        assert_eq!(below("", "a/b"), Some("a/b"));
        assert_eq!(below("", ""), Some(""));
        assert_eq!(below("a", "a/b"), Some("b"));
        assert_eq!(below("a", "a"), Some(""));
        assert_eq!(below("a", "ab"), None);
        assert_eq!(below("a", ""), None);
    }
}
