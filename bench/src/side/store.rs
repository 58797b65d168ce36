//! A filesystem of ours for an image to lie in, which counts what is asked of it, where the process that uses
//! the image does not count himself.

use std::path::{Path, PathBuf};

use anyhow::Result;
use testkit::fs_type::FsType;

use super::served::{Kind, Served};
use super::{DeviceAsked, Ground, Live};

/// Where it is mounted, in the directory of the side.
pub(super) const MOUNTPOINT: &str = "store/mount";

pub(crate) struct CountedStore {
    server: Box<Served>,
    mountpoint: PathBuf,
}

impl CountedStore {
    /// Mounts it in `dir`.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let mountpoint = dir.join(MOUNTPOINT);
        let ground = Ground {
            dir: mountpoint.parent().unwrap_or(dir).to_owned(),
            image: PathBuf::new(),
            format: FsType::default(),
            mount: None,
            cache_bytes: 0,
        };
        std::fs::create_dir_all(&ground.dir)?;
        Ok(Self {
            server: Box::new(Served::start(Kind::Memory, &ground)?),
            mountpoint,
        })
    }

    /// Where the image lies.
    pub(crate) fn image(&self) -> PathBuf {
        self.mountpoint.join("image")
    }

    /// What was asked of it. A write of more than a request may have counts as several.
    pub(crate) fn asked(&mut self) -> Result<DeviceAsked> {
        let fuse = self.server.asked()?.fuse;
        let count = |name: &str| fuse.get(name).copied().unwrap_or(0);
        Ok(DeviceAsked {
            reads: count("READ"),
            read_bytes: None,
            writes: count("WRITE"),
            write_bytes: None,
            flushes: count("FSYNC"),
        })
    }

    pub(crate) fn end(self) -> Result<()> {
        self.server.end()
    }
}
