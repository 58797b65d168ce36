//! `platter chmod`: permission bits in an image.

use std::ffi::OsString;

use platter::edit::ModeChange;

use super::editing::{Targets, scope};
use crate::args::ImageOptions;

/// Change permission bits in an image
///
/// A MODE that begins with - follows --. All files are changed, or none.
#[derive(Debug, clap::Args)]
pub(crate) struct Chmod {
    /// Octal, as 755, or symbolic, as u+rwX,go-w
    #[arg(value_name = "MODE")]
    mode: ModeChange,
    /// The files, as IMAGE[@PARTITION]:PATH; symbolic links are followed
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
    /// Change all below directories, too, but for what symbolic links lead to
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl Chmod {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        Targets::parse(&self.files)?.edit_each(options, |edit, path| {
            edit.change_mode(path, &self.mode, scope(self.recursive))
        })
    }
}
