//! `platter mv`: other names and places in an image.

use std::ffi::OsString;

use anyhow::bail;
use platter::copy::{CopyOptions, Preserve};
use platter::edit::{CopyIn, CopySource, Existing, Missing, Owner, Removal, Symlinks, Target};
use platter::{Condition, Edit, Escaped, FileKind};

use super::editing::Targets;
use crate::args::ImageOptions;
use crate::interrupt;
use crate::output::error::misuse;

/// Rename files in an image, or move them to another directory of it
///
/// What has the new name already is replaced, as rename(2) does it. Files that go to another subvolume are copied and
/// removed. All is moved, or nothing.
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
            let mut across = Across::new();
            for source in sources {
                match edit.rename(source, target, meaning, existing) {
                    Err(error) if error.is(Condition::CrossDevice) => {
                        across.move_file(edit, source, target, meaning)?;
                    }
                    renamed => renamed?,
                }
            }
            Ok(())
        })
    }
}

/// Moves files to other subvolumes, which rename(2) does not: they are copied and removed.
struct Across(CopyIn);

impl Across {
    fn new() -> Self {
        let options = CopyOptions {
            recursive: true,
            preserve: Preserve::ALL,
            no_clobber: false,
        };
        Self(CopyIn::new(options, Owner::default()).progress(interrupt::progress()))
    }

    /// Moves a file that rename(2) would move but for that. What it replaces is gone first, as directories are not merged.
    fn move_file(
        &mut self,
        edit: &Edit,
        source: &[u8],
        target: &[u8],
        meaning: Target,
    ) -> platter::Result<()> {
        let goal = match last_name(source) {
            Some(name) if meaning == Target::Into && edit.is_directory(target) => {
                [target, b"/", name].concat()
            }
            _ => target.to_vec(),
        };
        let file = edit.volume().open_no_follow(source)?;
        let removal = if file.attr()?.kind == FileKind::Directory {
            if let Ok(there) = edit.volume().open_no_follow(&goal)
                && there.attr()?.kind != FileKind::Directory
            {
                let refused = platter::vfs::Error::from(Condition::NotDirectory);
                return Err(platter::Error::at_path(
                    edit.volume().name(),
                    &goal,
                    refused,
                ));
            }
            Removal::EmptyDirectory
        } else {
            Removal::File
        };
        edit.remove(&goal, removal, Missing::PassOver)?;
        let source_file = CopySource::Image(file);
        let what = (&source_file, Symlinks::NoFollow);
        self.0
            .copy(edit, what, (&goal, Target::Name), &mut |_| ())?;
        drop(source_file);
        edit.remove(source, Removal::Tree, Missing::Refuse)
    }
}

/// The last name of a path; `None` where that is none, as of the root.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    let mut names = path.split(|&byte| byte == b'/');
    let name = names.rfind(|name| !name.is_empty());
    name.filter(|name| *name != b"." && *name != b"..")
}
