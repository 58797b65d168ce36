//! The images of a filesystem whose log is in it, or on an image of its own, and copies of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;

const LOG_MIB: u64 = 20;

/// A filesystem on its data, then an external log if it has one. Copies have suffixes.
pub(super) struct Images {
    dir: tempfile::TempDir,
    has_external_log: bool,
}

impl Images {
    pub(super) fn make(mib: u64, options: &[&str], has_external_log: bool) -> Result<Self> {
        let images = Self {
            dir: tempfile::tempdir()?,
            has_external_log,
        };
        let paths = images.paths("");
        let mut options = options.to_vec();
        let log;
        if let Some(image) = paths.get(1) {
            File::create(image)?.set_len(LOG_MIB << 20)?;
            log = format!("logdev={},size={LOG_MIB}m", image.display());
            options.extend(["-l", &log]);
        }
        xfs::make(&paths[0], mib << 10, &options)?;
        Ok(images)
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn paths(&self, suffix: &str) -> Vec<PathBuf> {
        let path = |name: &str| self.dir.path().join(format!("{name}{suffix}"));
        let mut images = vec![path("image")];
        if self.has_external_log {
            images.push(path("log"));
        }
        images
    }

    pub(super) fn copy(&self, from: &str, to: &str) -> Result<()> {
        for (from, to) in self.paths(from).iter().zip(self.paths(to)) {
            fs::copy(from, to)?;
        }
        Ok(())
    }

    pub(super) fn kernel_mount(&self, suffix: &str) -> Result<(Mount, Vec<PathBuf>)> {
        let images = self.paths(suffix);
        let mount = Mount::images(FsType::Xfs, &paths(&images), "nouuid", Access::ReadWrite)?;
        Ok((mount, images))
    }
}

pub(super) fn paths(images: &[PathBuf]) -> Vec<&Path> {
    images.iter().map(PathBuf::as_path).collect()
}
