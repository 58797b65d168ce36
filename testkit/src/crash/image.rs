//! A device's contents as a file in memory, which programs and the kernel look at.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_block::{Access as DeviceAccess, BlockDevice, FileDevice, OpenOptions};
use tempfile::NamedTempFile;

use crate::loopdev::{Access, Mount};
use crate::oracle::{Verdict, e2fsck};
use crate::workload::Tree;

/// Bytes that are copied at once.
const PIECE_BYTES: u64 = 256 << 10;

/// A file that holds an image.
#[derive(Debug)]
pub(super) struct ImageFile(NamedTempFile);

impl ImageFile {
    /// A copy of all that `device` holds.
    pub(super) fn of(device: &dyn BlockDevice) -> Result<Self> {
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
        Ok(Self(file))
    }

    /// The file as a device.
    pub(super) fn device(&self, access: DeviceAccess) -> Result<Arc<dyn BlockDevice>> {
        let options = OpenOptions {
            access,
            ..OpenOptions::default()
        };
        Ok(Arc::new(FileDevice::open(self.0.path(), options)?))
    }

    /// What `e2fsck -fn` has against it.
    pub(super) fn complaints(&self) -> Result<Vec<String>> {
        Ok(match e2fsck::check(self.0.path())? {
            Verdict::Clean => Vec::new(),
            Verdict::NotClean(lines) => lines,
            Verdict::Refused(line) => vec![line],
        })
    }

    /// Has `e2fsck` replay the journal and check everything; gives what else it had to say.
    pub(super) fn recover(&self) -> Result<Vec<String>> {
        let lines = e2fsck::recover(self.0.path())?;
        if e2fsck::begins_with_cut_commit(&lines) {
            return self.after_errors(&lines[1..]);
        }
        Ok(lines)
    }

    /// The same where errors were met.
    pub(super) fn recover_from_errors(&self) -> Result<Vec<String>> {
        let lines = self.recover()?;
        self.after_errors(&lines)
    }

    /// Of `lines` what is no word of orphans, which are left where there were errors. When they are
    /// gone, nothing may be wrong.
    pub(super) fn after_errors(&self, lines: &[String]) -> Result<Vec<String>> {
        if lines.is_empty() || e2fsck::are_of_orphans(lines) {
            return self.complaints();
        }
        Ok(lines.to_vec())
    }

    /// Has `e2fsck -fy` mend what it can, which must be all.
    pub(super) fn mend(&self) -> Result<()> {
        e2fsck::repair(self.0.path(), &["-fy"])?;
        let left = self.complaints()?;
        ensure!(left.is_empty(), "e2fsck -fy left: {}", left.join("\n"));
        Ok(())
    }

    /// What a kernel mount, which replays the journal, shows.
    pub(super) fn kernel_view(&self) -> Result<Tree> {
        let mount = Mount::image(self.0.path(), "", Access::ReadWrite)?;
        let tree = Tree::read_host(mount.root());
        mount.unmount(self.0.path())?;
        tree
    }

    /// Keeps the file in a folder under a name that is free there, and gives that.
    pub(super) fn keep_numbered(self, folder: &Path, name: &str) -> Result<String> {
        std::fs::create_dir_all(folder)?;
        let mut paths = (1..).map(|number| folder.join(format!("{name}-fault-{number}.img")));
        let path = paths.find(|path| !path.exists()).context("a free name")?;
        self.keep(&path)?;
        Ok(path.display().to_string())
    }

    /// Keeps the file for later looks.
    pub(super) fn keep(self, path: &Path) -> Result<()> {
        std::io::copy(&mut self.0.as_file().try_clone()?, &mut File::create(path)?)?;
        Ok(())
    }
}
