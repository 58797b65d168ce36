//! `platter chown`: owners in an image.

use std::ffi::OsString;

use super::editing::{Targets, scope, symlinks};
use crate::args::ImageOptions;

/// Change owners in an image
///
/// Names are those of the image's own /etc/passwd and /etc/group, as `platter ls -l` shows them;
/// numbers work always. Users that may write the image may set any owner. All files are changed, or
/// none.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Chown {
    /// USER, USER:GROUP, USER: for the user's own group, or :GROUP
    #[arg(value_name = "OWNER")]
    owner: OsString,
    /// The files, as IMAGE[@PARTITION]:PATH; symbolic links are followed
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
    /// Change all below directories, too, and symbolic links themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Chown {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        Targets::parse(&self.files)?.edit(options, |edit, paths| {
            let owner = edit.owner(self.owner.as_encoded_bytes())?;
            let symlinks = symlinks(self.no_dereference);
            let scope = scope(self.recursive);
            for path in paths {
                edit.change_owner(path, owner, symlinks, scope)?;
            }
            Ok(())
        })
    }
}
