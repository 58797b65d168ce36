//! A tmpfs of our own for images, so that no medium but memory takes part.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

/// A mounted tmpfs that goes with its owner.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: TempDir,
}

impl Stage {
    pub(crate) fn new() -> Result<Self> {
        let folder = TempDir::with_prefix("platter-bench-")?;
        let options = c"size=90%,mode=0700";
        let mounted = rustix::mount::mount(
            "bench",
            folder.path(),
            "tmpfs",
            MountFlags::NOATIME,
            options,
        );
        mounted.context("mounting a tmpfs takes root")?;
        Ok(Self { folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// An empty folder of that name.
    pub(crate) fn empty_folder(&self, name: &str) -> Result<std::path::PathBuf> {
        let path = self.path().join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Nothing is left to be done about a failure, and the folder then says what is there.
        let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
    }
}
