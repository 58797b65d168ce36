//! `platter ln`: further names, and symbolic links, in an image.

use std::ffi::OsString;

use anyhow::{bail, ensure};
use platter::edit::{Existing, Target};
use platter::{Edit, Escaped, ImageSpec};

use super::editing::{self, Targets, parse_file};
use crate::args::ImageOptions;
use crate::output::error::misuse;

/// Give files of an image further names, or make symbolic links
///
/// The target of a symbolic link is its text as it is, without the image. All links are made, or
/// none.
#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Ln {
    /// The files, as IMAGE[@PARTITION]:PATH or with -s as texts, and last where the links go
    #[arg(required = true, value_name = "TARGET... IMAGE:LINK")]
    operands: Vec<OsString>,
    /// Make symbolic links
    #[arg(short, long)]
    symbolic: bool,
    /// Replace what is there
    #[arg(short, long)]
    force: bool,
    /// Take a symbolic link to a directory for what it is itself
    #[arg(short, long)]
    no_dereference: bool,
    /// Take the last operand for the name itself, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

impl Ln {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let Some((link, targets)) = self
            .operands
            .split_last()
            .filter(|(_, left)| !left.is_empty())
        else {
            let operand = Escaped(self.operands[0].as_encoded_bytes()).to_string();
            misuse!("no link after '{operand}'");
        };
        if !self.symbolic {
            return Targets::parse(&self.operands)?.edit(options, |edit, paths| {
                let Some((link, files)) = paths.split_last() else {
                    return Ok(());
                };
                self.link_all(edit, files, link, Edit::link)
            });
        }
        for text in targets {
            let shown = Escaped(text.as_encoded_bytes());
            ensure!(
                !ImageSpec::is_inside_image(text),
                "{shown}: the target of a symbolic link is named without the image"
            );
        }
        let spec = parse_file(link)?;
        let texts: Vec<_> = targets
            .iter()
            .map(|text| text.as_encoded_bytes().to_vec())
            .collect();
        editing::edit(options, &spec, |edit| {
            self.link_all(edit, &texts, spec.path_or_root(), Edit::symlink)
        })
    }

    fn link_all(
        &self,
        edit: &Edit,
        targets: &[Vec<u8>],
        link: &[u8],
        make: impl Fn(&Edit, &[u8], &[u8], Target, Existing) -> platter::Result<()>,
    ) -> anyhow::Result<()> {
        let existing = if self.force {
            Existing::Replace
        } else {
            Existing::Refuse
        };
        let is_link = || edit.volume().read_link(link).is_ok();
        let is_itself = self.no_target_directory || self.no_dereference && is_link();
        let meaning = if is_itself {
            Target::Name
        } else {
            Target::Into
        };
        if targets.len() > 1 && (is_itself || !edit.is_directory(link)) {
            bail!("target '{}' is not a directory", Escaped(link));
        }
        for target in targets {
            make(edit, target, link, meaning, existing)?;
        }
        Ok(())
    }
}
