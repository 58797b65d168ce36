//! The contents of devices as files in memory, for programs and the kernel.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use platter_block::{Access as DeviceAccess, BlockDevice};
use tempfile::NamedTempFile;

use crate::loopdev::{Access, is_clean};
use crate::subject::{Devices, Scene, open_images};
use crate::workload::Tree;

/// Bytes that are copied at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Files that hold the images of one filesystem.
#[derive(Debug)]
pub(crate) struct ImageFiles(Vec<NamedTempFile>);

impl ImageFiles {
    /// Copies all that the devices hold.
    pub(crate) fn of(devices: &[Arc<dyn BlockDevice>]) -> Result<Self> {
        let files = devices.iter().map(|device| copy(&**device));
        Ok(Self(files.collect::<Result<_>>()?))
    }

    /// Returns the files as devices.
    pub(crate) fn devices(&self, access: DeviceAccess) -> Result<Devices> {
        open_images(&self.paths(), access)
    }

    /// Returns the paths of the files.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        self.0.iter().map(NamedTempFile::path).collect()
    }

    /// Returns what the checker of Linux finds, without a change.
    pub(crate) fn complaints(&self, scene: &Scene) -> Result<Vec<String>> {
        Ok(scene.subject.fsck(&self.paths())?.complaints())
    }

    /// Whether nothing is left to recover.
    pub(crate) fn is_clean(&self, scene: &Scene) -> Result<bool> {
        is_clean(scene.subject.fs_type(), &self.paths())
    }

    /// Whether the other files hold the same.
    pub(crate) fn is_equal(&self, other: &Self) -> Result<bool> {
        let read = |files: &Self| -> Result<Vec<Vec<u8>>> {
            let bytes = files.paths().into_iter().map(std::fs::read);
            Ok(bytes.collect::<std::io::Result<_>>()?)
        };
        Ok(read(self)? == read(other)?)
    }

    /// Runs the tools of Linux, which replay the log and check everything. Returns what is wrong then.
    pub(crate) fn recover(&self, scene: &Scene) -> Result<Vec<String>> {
        scene.subject.recover(&self.paths())
    }

    /// The same where errors were encountered.
    pub(crate) fn recover_from_errors(&self, scene: &Scene) -> Result<Vec<String>> {
        let lines = self.recover(scene)?;
        self.after_errors(scene, &lines)
    }

    /// Returns those of the lines of [`recover`](Self::recover) that are errors where others were
    /// encountered before.
    pub(crate) fn after_errors(&self, scene: &Scene, lines: &[String]) -> Result<Vec<String>> {
        // The tools have checked everything already.
        if lines.is_empty() {
            return Ok(Vec::new());
        }
        scene.subject.after_errors(&self.paths(), lines)
    }

    /// Repairs with the checker of Linux, which must leave no errors.
    pub(crate) fn repair(&self, scene: &Scene) -> Result<()> {
        scene.subject.repair(&self.paths())
    }

    /// Returns what a kernel mount, which replays the log, shows.
    pub(crate) fn kernel_view(&self, scene: &Scene) -> Result<Tree> {
        let paths = self.paths();
        let mount = scene.subject.kernel_mount(&paths, "", Access::ReadWrite)?;
        let tree = Tree::read_host(mount.root());
        mount.unmount_all(&paths)?;
        tree
    }

    /// Keeps the files in a directory under a name that is free there. Returns the path of the first.
    pub(crate) fn keep_numbered(self, dir: &Path, name: &str) -> Result<String> {
        std::fs::create_dir_all(dir)?;
        let mut paths = (1..).map(|number| dir.join(format!("{name}-fault-{number}.img")));
        let path = paths.find(|path| !path.exists()).context("a free name")?;
        self.keep(&path)?;
        Ok(path.display().to_string())
    }

    /// Keeps the files: the first under this path, the others under it with their numbers.
    pub(crate) fn keep(self, path: &Path) -> Result<()> {
        for (member, file) in self.0.into_iter().enumerate() {
            let path = match member {
                0 => path.to_owned(),
                _ => PathBuf::from(format!("{}.{member}", path.display())),
            };
            std::io::copy(&mut file.as_file().try_clone()?, &mut File::create(path)?)?;
        }
        Ok(())
    }
}

fn copy(device: &dyn BlockDevice) -> Result<NamedTempFile> {
    // Memory is faster, where there is a filesystem for it.
    let memory = Path::new("/dev/shm");
    let file = if memory.is_dir() {
        NamedTempFile::new_in(memory)?
    } else {
        NamedTempFile::new()?
    };
    file.as_file().set_len(device.geometry().len_bytes)?;
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(data) = device.next_data(at)? {
        at = data.end.min(data.start + PIECE_BYTES);
        bytes.resize(usize::try_from(at - data.start)?, 0);
        device.read_at(data.start, &mut bytes)?;
        file.as_file().write_all_at(&bytes, data.start)?;
    }
    Ok(file)
}
