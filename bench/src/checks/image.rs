//! Images that platter makes.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;
use testkit::{program, tool};

use crate::archive::Tree;
use crate::programs::count_files;
use crate::record::Extent;
use crate::stage::Stage;

/// A large tree that every system has, and a small one.
const SYSTEM: &str = "/usr";
const SYSTEM_QUICK: &str = "/usr/sbin";
const FILES_PER_DIR: u64 = 250;
const FILE_BYTES_BELOW: u64 = 800;

/// What an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Content {
    /// A system's programs, or in a quick run some of them.
    System,
    /// Many small files.
    Small,
}

/// An image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Image {
    pub(crate) format: FsType,
    pub(crate) content: Content,
    /// What it holds but directories.
    pub(crate) files: u64,
    /// The length of the image.
    pub(crate) bytes: u64,
}

impl Content {
    pub(crate) const ALL: [Self; 2] = [Self::System, Self::Small];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::System => "/usr",
            Self::Small => "small files",
        }
    }
}

impl Image {
    pub(super) fn title(&self) -> String {
        title(self.format, self.content)
    }
}

pub(super) fn title(format: FsType, content: Content) -> String {
    format!("{}, {}", format.kernel_name(), content.name())
}

/// Where the image lies.
pub(super) fn path(stage: &Stage) -> PathBuf {
    stage.path().join("image")
}

/// Has platter make the image, of a directory or of an archive that it is given as it is made.
pub(super) fn make(
    format: FsType,
    content: Content,
    (extent, files): (Extent, u64),
    stage: &Stage,
) -> Result<Image> {
    let path = path(stage);
    let mut platter = program::platter()?;
    // What it has to keep meanwhile is in memory, too.
    platter.env("TMPDIR", stage.path());
    platter.args(["mkfs", format.kernel_name()]).arg(&path);
    platter.arg("--from");
    let files = match content {
        Content::System => {
            let directory = match extent {
                Extent::Quick => SYSTEM_QUICK,
                Extent::Full => SYSTEM,
            };
            tool::succeed(platter.arg(directory))?;
            count_files(Path::new(directory))?
        }
        Content::Small => {
            let mut child = platter.arg("-").stdin(Stdio::piped()).spawn()?;
            let mut input = child.stdin.take().context("a pipe")?;
            let tree = Tree {
                files,
                files_per_dir: FILES_PER_DIR,
                file_bytes_below: FILE_BYTES_BELOW,
            };
            let written = tree.write(&mut std::io::BufWriter::new(&mut input));
            drop(input);
            let status = child.wait()?;
            ensure!(status.success(), "platter mkfs ended: {status}");
            written?;
            files
        }
    };
    Ok(Image {
        format,
        content,
        files,
        bytes: std::fs::metadata(&path)?.len(),
    })
}
