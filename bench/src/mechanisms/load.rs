//! What a load of a mechanism goes through: calls of the library, or system calls on a mount of the same filesystem.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use platter_fuse::{MountOptions, Session};
use platter_vfs::Filesystem;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::place::{Directory, HostDir, LibraryDir};

/// What makes the changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Load {
    Library,
    /// Over `/dev/fuse`, also where the kernel offers rings.
    Mount,
}

impl Load {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Mount => "mount",
        }
    }

    /// Opens `fs` for a load.
    pub(super) fn open(self, fs: Arc<dyn Filesystem>) -> Result<Opened> {
        Ok(match self {
            Self::Library => Opened::Library(fs),
            Self::Mount => {
                let dir = tempfile::tempdir()?;
                let options = MountOptions {
                    io_uring: false,
                    ..MountOptions::default()
                };
                let session = platter_fuse::mount(fs, dir.path(), options)?;
                Opened::Mount(session, dir)
            }
        })
    }
}

/// A filesystem that a load changes.
pub(super) enum Opened {
    Library(Arc<dyn Filesystem>),
    Mount(Session, TempDir),
}

impl Opened {
    pub(super) fn root(&self) -> Result<Box<dyn Directory>> {
        Ok(match self {
            Self::Library(fs) => Box::new(LibraryDir::root(fs)?),
            Self::Mount(_, dir) => Box::new(HostDir::open(dir.path())?),
        })
    }

    /// Where it is mounted, if it is.
    pub(super) fn mountpoint(&self) -> Option<&Path> {
        match self {
            Self::Library(_) => None,
            Self::Mount(_, dir) => Some(dir.path()),
        }
    }

    /// Unmounts the filesystem. Nothing of it may be open.
    pub(super) fn end(self) -> Result<()> {
        match self {
            Self::Library(fs) => Ok(fs.unmount()?),
            Self::Mount(mut session, _dir) => Ok(session.unmount()?),
        }
    }
}
