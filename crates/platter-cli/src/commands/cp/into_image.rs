//! Copying into an image: everything, or nothing.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::{Context, bail};
use platter::edit::{CopyIn, CopyInEvent, CopySource, Owner, Symlinks, Target};
use platter::vfs::FileKind;
use platter::{Edit, Escaped, File, ImageSpec};

use super::Cp;
use crate::args::ImageOptions;
use crate::commands::editing::{self, parse_file};
use crate::commands::operands::{Volumes, parse};
use crate::console;
use crate::output::error::misuse;
use crate::output::kind::kind_text;
use crate::output::progress::Progress;
use crate::output::size::human;

impl Cp {
    pub(super) fn copy_into_image(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let (sources, target) = self.take_apart_for_image()?;
        let target = parse_file(target)?;
        let path = target.path_or_root();
        let mut progress = Progress::new(true);
        let done = editing::edit(options, &target, |edit| {
            let must_be_directory = sources.len() > 1 || self.target_directory.is_some();
            if must_be_directory && !edit.is_directory(path) {
                bail!("target '{}' is not a directory", Escaped(path));
            }
            let owner = self.owner.as_ref();
            let owner = owner.map(|owner| edit.owner(owner.as_encoded_bytes()));
            let owner = owner.transpose()?.unwrap_or_default();
            self.copy_all(options, edit, (sources, &target), owner, &mut progress)
        });
        progress.finish();
        done
    }

    fn copy_all(
        &self,
        options: &ImageOptions,
        edit: &Edit,
        (sources, target): (&[OsString], &ImageSpec),
        owner: Owner,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let mut observer = |event: CopyInEvent<'_>| match event {
            CopyInEvent::Copying(source, path) if self.verbose => {
                let (source, image) = (source.name(), edit.volume().name());
                let path = Escaped(path);
                progress.suspend(|| console::narrate(format_args!("{source} -> {image}:{path}")));
            }
            CopyInEvent::Copying(..) => {}
            CopyInEvent::ImageLeftOut(source) => progress.suspend(|| {
                let source = source.name();
                console::complain(format_args!(
                    "{source}: note: is the image that is copied into, and was left out"
                ));
            }),
            CopyInEvent::Progress(summary) => {
                let (files, bytes) = (summary.files, human(summary.bytes));
                progress.update(summary.bytes, None, &format!("{files} files, {bytes}"));
            }
        };
        let mut volumes = Volumes::new(options);
        let is_recursive = self.recursive || self.archive;
        let follow = self.follow || !is_recursive;
        let meaning = if self.no_target_directory {
            Target::Name
        } else {
            Target::Into
        };
        let symlinks = if follow {
            Symlinks::Follow
        } else {
            Symlinks::NoFollow
        };
        let mut copy = CopyIn::new(self.copy_options(), owner);
        for operand in sources {
            let source = if ImageSpec::is_inside_image(operand) {
                let file = open_source(edit, target, operand, follow, &mut volumes)?;
                if !is_recursive {
                    refuse_special(&file)?;
                }
                CopySource::Image(file)
            } else {
                CopySource::Host(PathBuf::from(operand))
            };
            let target = (target.path_or_root(), meaning);
            copy.copy(edit, (&source, symlinks), target, &mut observer)?;
        }
        Ok(())
    }

    /// The sources and the target that the operands name.
    fn take_apart_for_image(&self) -> anyhow::Result<(&[OsString], &OsStr)> {
        if let Some(directory) = &self.target_directory {
            return Ok((&self.operands, directory.as_os_str()));
        }
        let (target, sources) = self.operands.split_last().context("nothing to copy")?;
        if sources.is_empty() {
            misuse!("no target after '{}'", Escaped(target.as_encoded_bytes()));
        }
        Ok((sources, target))
    }
}

/// Opens a source in an image: in the edited one, as it is by then.
fn open_source(
    edit: &Edit,
    target: &ImageSpec,
    operand: &OsStr,
    follow: bool,
    volumes: &mut Volumes<'_>,
) -> anyhow::Result<File> {
    let spec = parse(operand)?;
    if !spec.is_same_image(target) {
        return Ok(volumes.file(operand, follow)?.1);
    }
    let path = spec.path_or_root();
    Ok(if follow {
        edit.volume().open(path)?
    } else {
        edit.volume().open_no_follow(path)?
    })
}

fn refuse_special(file: &File) -> anyhow::Result<()> {
    let attr = file.attr()?;
    if attr.kind == FileKind::Regular {
        return Ok(());
    }
    let (image, path, kind) = (file.volume().name(), Escaped(file.path()), kind_text(&attr));
    bail!("{image}:{path}: is a {kind}; copy it with -r or -a")
}
