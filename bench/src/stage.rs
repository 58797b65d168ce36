//! Where images lie: on a tmpfs of our own, so that no device but memory takes part, or on the disk that
//! programs are built on, where a flush is one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

use crate::record;
use crate::side::MOUNTPOINTS;

/// A directory that goes with its owner, or with the next one, where the owner was killed.
#[derive(Debug)]
pub(crate) struct Stage {
    dir: TempDir,
    is_mounted: bool,
}

impl Stage {
    /// A tmpfs.
    pub(crate) fn new() -> Result<Self> {
        let dir = new_dir(&std::env::temp_dir(), "platter-bench-")?;
        let options = c"size=90%,mode=0700";
        let mounted =
            rustix::mount::mount("bench", dir.path(), "tmpfs", MountFlags::NOATIME, options);
        mounted.context("mounting a tmpfs takes root")?;
        Ok(Self {
            dir,
            is_mounted: true,
        })
    }

    /// On the disk.
    pub(crate) fn on_disk() -> Result<Self> {
        let parent = record::tried();
        std::fs::create_dir_all(&parent)?;
        Ok(Self {
            dir: new_dir(&parent, "stage-")?,
            is_mounted: false,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// An empty directory of that name, whatever it was before.
    pub(crate) fn empty_dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        if path.exists() {
            remove(&path)?;
        }
        std::fs::create_dir(&path)?;
        Ok(path)
    }
}

/// A directory of this process in `parent`. Those of processes that are no more go.
fn new_dir(parent: &Path, prefix: &str) -> Result<TempDir> {
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let owner = owner.and_then(|owner| owner.split_once('-')?.0.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
            remove(&entry.path())?;
        }
    }
    let prefix = format!("{prefix}{}-", std::process::id());
    Ok(TempDir::with_prefix_in(prefix, parent)?)
}

/// Removes a directory with all that a turn may have left in it when it broke down, mounts included.
fn remove(dir: &Path) -> Result<()> {
    let inside = MOUNTPOINTS.iter().map(|name| dir.join(name));
    for mounted in inside.chain([dir.to_owned()]) {
        // Mostly nothing is mounted there.
        let _ = rustix::mount::unmount(&mounted, UnmountFlags::DETACH);
    }
    std::fs::remove_dir_all(dir).with_context(|| dir.display().to_string())
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_mounted {
            // Nothing is left to be done about a failure, and the directory then says what is there.
            let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirs_of_the_dead_go_and_those_of_the_living_stay() {
        let parent = tempfile::tempdir().unwrap();
        // Numbers of processes end far below.
        let names = [
            "stage-4294967295-dead",
            "stage-1-alive",
            "stage-other",
            "else",
        ];
        for name in names {
            std::fs::create_dir_all(parent.path().join(name).join("inside")).unwrap();
        }
        let mine = new_dir(parent.path(), "stage-").unwrap();
        let left = names.map(|name| parent.path().join(name).exists());
        assert_eq!(left, [false, true, true, true]);
        assert!(mine.path().exists());
    }
}
