//! `platter mv`: other names and places in an image.

use std::ffi::OsString;

use anyhow::bail;
use platter::Escaped;
use platter::edit::{Existing, Target};

use super::editing::Targets;
use crate::args::ImageOptions;
use crate::output::error::misuse;

/// Rename files in an image, or move them to another directory of it
///
/// What has the new name already is replaced, as rename(2) does it. All is moved, or nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Mv {
    /// The files, and last where they go, as IMAGE[@PARTITION]:PATH
    #[arg(required = true, value_name = "IMAGE:PATH... IMAGE:TARGET")]
    operands: Vec<OsString>,
    /// Replace what is there, which is the default
    #[arg(short, long, overrides_with = "no_clobber")]
    force: bool,
    /// Leave alone what is there already
    #[arg(short, long, overrides_with = "force")]
    no_clobber: bool,
    /// Move into this directory; all operands are files
    #[arg(short, long, value_name = "IMAGE:DIR")]
    target_directory: Option<OsString>,
    /// Take the target for the name itself, even if it is a directory
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,
}

impl Mv {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mut operands = self.operands.clone();
        operands.extend(self.target_directory.clone());
        let targets = Targets::parse(&operands)?;
        let existing = if self.no_clobber {
            Existing::Keep
        } else {
            Existing::Replace
        };
        let meaning = if self.no_target_directory {
            Target::Name
        } else {
            Target::Into
        };
        targets.edit(options, |edit, paths| {
            let Some((target, sources)) = paths.split_last().filter(|(_, left)| !left.is_empty())
            else {
                misuse!(
                    "no target after '{}'",
                    Escaped(operands[0].as_encoded_bytes())
                );
            };
            let must_be_directory = sources.len() > 1 || self.target_directory.is_some();
            if must_be_directory && !edit.is_directory(target) {
                bail!("target '{}' is not a directory", Escaped(target));
            }
            for source in sources {
                edit.rename(source, target, meaning, existing)?;
            }
            Ok(())
        })
    }
}
