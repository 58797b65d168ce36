//! `platter sync`: a mounted filesystem made durable.

use std::path::{Path, PathBuf};

use super::mounted;

/// Write everything of a mounted filesystem to its image
///
/// Returns when everything done so far survives a power cut, except mapped or cached writes that an older kernel
/// (before 6.16) is still passing on: fsync(2) of the file makes sure of those. sync(1) and syncfs(2) do not reach what is mounted
/// through FUSE.
#[derive(Debug, clap::Args)]
pub(crate) struct Sync {
    /// Directories of mounts
    #[arg(required = true, value_name = "DIRECTORY")]
    dirs: Vec<PathBuf>,
}

impl Sync {
    pub(crate) fn run(&self) -> anyhow::Result<u8> {
        for dir in self.dirs.iter().map(Path::new) {
            let synced = mounted::open(dir)?.sync();
            synced.map_err(|error| mounted::named(dir, &error))?;
        }
        Ok(0)
    }
}
