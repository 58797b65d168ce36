//! Where images lie: on a tmpfs of our own, so that no medium but memory takes part, or on the disk that
//! programs are built on, where a flush is one.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

use crate::record;

/// A folder that goes with its owner.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: TempDir,
    is_mounted: bool,
}

impl Stage {
    /// A tmpfs.
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
        Ok(Self {
            folder,
            is_mounted: true,
        })
    }

    /// On the disk.
    pub(crate) fn on_disk() -> Result<Self> {
        let beside = record::tried();
        std::fs::create_dir_all(&beside)?;
        Ok(Self {
            folder: TempDir::with_prefix_in("stage-", beside)?,
            is_mounted: false,
        })
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
        if self.is_mounted {
            // Nothing is left to be done about a failure, and the folder then says what is there.
            let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
        }
    }
}
