//! A device's contents as a file in memory, which programs and the kernel look at.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use platter_block::{BlockDevice, MemoryDevice};
use tempfile::NamedTempFile;

use crate::loopdev::{Access, Mount};
use crate::oracle::{Verdict, e2fsck};
use crate::tool;
use crate::workload::Tree;

/// Pieces of zeros that are left as holes.
const PIECE_BYTES: usize = 64 << 10;

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
        let len = device.geometry().len_bytes;
        let mut bytes = vec![0; usize::try_from(len)?];
        device.read_at(0, &mut bytes)?;
        file.as_file().set_len(len)?;
        for (at, piece) in (0u64..).step_by(PIECE_BYTES).zip(bytes.chunks(PIECE_BYTES)) {
            if piece.iter().any(|&byte| byte != 0) {
                file.as_file().write_all_at(piece, at)?;
            }
        }
        Ok(Self(file))
    }

    /// What it holds now.
    pub(super) fn device(&self) -> Result<Arc<dyn BlockDevice>> {
        let bytes = std::fs::read(self.0.path())?;
        Ok(Arc::new(MemoryDevice::new("image", bytes)))
    }

    /// What `e2fsck -fn` has against it.
    pub(super) fn complaints(&self) -> Result<Vec<String>> {
        Ok(match e2fsck::check(self.0.path())? {
            Verdict::Clean => Vec::new(),
            Verdict::NotClean(lines) => lines,
            Verdict::Refused(line) => vec![line],
        })
    }

    /// Has `e2fsck -p` replay the journal; anything else that wants mending is an error.
    pub(super) fn preen(&self) -> Result<()> {
        self.run_e2fsck("-p", 1)
    }

    /// Has `e2fsck -fy` mend what it can.
    pub(super) fn mend(&self) -> Result<()> {
        self.run_e2fsck("-fy", 3)
    }

    fn run_e2fsck(&self, option: &str, code_max: i32) -> Result<()> {
        let mut e2fsck = tool::command("e2fsck");
        let finished = tool::finish(e2fsck.arg(option).arg(self.0.path()))?;
        if finished.code()? > code_max {
            bail!("e2fsck {option}: {}", finished.text());
        }
        Ok(())
    }

    /// What a kernel mount, which replays the journal, shows.
    pub(super) fn kernel_view(&self) -> Result<Tree> {
        let mount = Mount::image(self.0.path(), "", Access::ReadWrite)?;
        Tree::read_host(mount.root())
    }

    /// Its file.
    pub(super) fn file(&self) -> &File {
        self.0.as_file()
    }

    /// Keeps the file for later looks.
    pub(super) fn keep(self, path: &Path) -> Result<()> {
        std::io::copy(&mut self.file().try_clone()?, &mut File::create(path)?)?;
        Ok(())
    }
}
