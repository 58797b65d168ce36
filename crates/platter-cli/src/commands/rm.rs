//! `platter rm`: names out of an image.

use std::ffi::OsString;

use platter::edit::{Missing, Removal};

use super::editing::Targets;
use crate::args::ImageOptions;

/// Remove files from an image
///
/// All of them go, or none.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// The files, as IMAGE[@PARTITION]:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
    /// Remove directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Remove empty directories
    #[arg(short, long)]
    dir: bool,
    /// Pass over what is not there
    #[arg(short, long)]
    force: bool,
}

impl Rm {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let missing = if self.force {
            Missing::PassOver
        } else {
            Missing::Refuse
        };
        let removal = match (self.recursive, self.dir) {
            (true, _) => Removal::Tree,
            (false, true) => Removal::EmptyDirectory,
            (false, false) => Removal::File,
        };
        Targets::parse(&self.files)?
            .edit_each(options, |edit, path| edit.remove(path, removal, missing))
    }
}
