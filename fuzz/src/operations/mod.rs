//! What a front end does with an image, one operation on a fresh copy of the mutant each: edits,
//! growing, a workload on a mount that writes, and copying out.

mod changes;
mod streams;
mod workload;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use platter::vfs::{FixedClock, Timestamp};
use platter::{DeviceRole, ImageSpec, MemoryBudget, MountOptions};

use crate::contents::Contents;
use crate::exercise::Tally;
use crate::open;

/// One operation.
#[derive(Clone, Copy)]
pub struct Operation {
    /// What to call it.
    pub name: &'static str,
    run: fn(&Desk, &mut Tally),
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name)
    }
}

/// Every operation.
pub const OPERATIONS: &[Operation] = &[
    operation("rm -r", changes::remove),
    operation("cp into", changes::copy_into),
    operation("mv", changes::move_names),
    operation("truncate", changes::truncate),
    operation("chown -R", changes::change_owners),
    operation("xattr", changes::change_xattrs),
    operation("resize", changes::resize),
    operation("tar", streams::archive),
    operation("cp -r", streams::copy_out),
    operation("mount", workload::run),
];

const fn operation(name: &'static str, run: fn(&Desk, &mut Tally)) -> Operation {
    Operation { name, run }
}

/// Names at the top of an image that operations take up.
const TOP_NAMES_MAX: usize = 40;
/// What a run may write to the host: no seed holds a hundredth of it.
pub(crate) const OUTPUT_BYTES_MAX: u64 = 64 << 20;

/// Where the images and what is copied lie.
#[derive(Debug)]
pub struct Desk {
    dir: tempfile::TempDir,
    cache_bytes: u64,
}

impl Desk {
    /// An empty desk, and a small tree to copy from.
    pub fn new(cache_bytes: u64) -> Result<Self> {
        let desk = Self {
            dir: tempfile::tempdir()?,
            cache_bytes,
        };
        let inner = desk.source().join("inner");
        std::fs::create_dir_all(&inner)?;
        for (name, length) in [("empty", 0), ("small", 50), ("large", 200_000)] {
            std::fs::write(inner.join(name), vec![7; length])?;
        }
        std::os::unix::fs::symlink("inner/small", desk.source().join("link"))?;
        Ok(desk)
    }

    /// Does `operation` with the images that lie one after the other in `contents`.
    pub fn perform(
        &self,
        operation: Operation,
        contents: &Contents,
        devices: &[Range<usize>],
        tally: &mut Tally,
    ) -> Result<()> {
        let old: Vec<_> = self.images().collect();
        for path in old {
            std::fs::remove_file(path)?;
        }
        for (number, range) in devices.iter().enumerate() {
            let path = self.path_of(number);
            contents
                .write_file(range.clone(), &path)
                .context("the image")?;
        }
        (operation.run)(self, tally);
        if self.target().exists() {
            std::fs::remove_dir_all(self.target())?;
        }
        Ok(())
    }

    /// The file of the first image.
    fn image(&self) -> PathBuf {
        self.path_of(0)
    }

    fn path_of(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("image{number}"))
    }

    /// The files of all images.
    fn images(&self) -> impl Iterator<Item = PathBuf> {
        let paths = (0..).map(|number| self.path_of(number));
        paths.take_while(|path| path.exists())
    }

    /// What is copied into images.
    fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    /// Where files of images are copied to.
    fn target(&self) -> PathBuf {
        self.dir.path().join("target")
    }

    fn spec(&self) -> ImageSpec {
        ImageSpec::new(self.image())
    }

    fn options(&self) -> MountOptions {
        let others = self.images().skip(1);
        let options = open::options(self.cache_bytes);
        others.fold(options, |options, path| {
            options.device(DeviceRole::Data, path)
        })
    }

    fn budget(&self) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget::new(self.cache_bytes))
    }

    /// Where files lie that only live as long as a run: in memory, if there is such a place.
    #[must_use]
    pub fn temporary_dir() -> PathBuf {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() {
            return memory.to_owned();
        }
        std::env::temp_dir()
    }
}

fn clock() -> Arc<dyn platter::vfs::Clock> {
    Arc::new(FixedClock::new(Timestamp::default(), 0))
}
