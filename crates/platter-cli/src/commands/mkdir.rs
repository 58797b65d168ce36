//! `platter mkdir`: directories in an image.

use std::ffi::OsString;

use platter::edit::ModeChange;

use super::editing::Targets;
use crate::args::ImageOptions;

/// Make directories in an image
///
/// They belong to the caller. All of them are made, or none.
#[derive(Debug, clap::Args)]
pub(crate) struct Mkdir {
    /// The directories, as IMAGE[@PARTITION]:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    directories: Vec<OsString>,
    /// Make those above, too, and take what is there already for made
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, octal or symbolic, whatever the umask
    #[arg(short, long, value_name = "MODE")]
    mode: Option<ModeChange>,
}

impl Mkdir {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mode = self.mode.as_ref();
        Targets::parse(&self.directories)?.edit_each(options, |edit, path| {
            if self.parents {
                edit.make_dirs(path, mode)
            } else {
                edit.make_dir(path, mode)
            }
        })
    }
}
