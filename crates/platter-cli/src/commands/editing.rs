//! What all commands that change an image share: their operands, whose files they make, and that
//! all of a command happens or nothing.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use anyhow::ensure;
use platter::edit::{Creation, Scope, Symlinks};
use platter::vfs::Credentials;
use platter::{Edit, Escaped, ImageSpec, MountOptions};
use rustix::fs::Mode;

use super::operands::{parse, report_requests};
use super::write_batch::Worker;
use crate::args::{ImageOptions, source_date};
use crate::interrupt;
use crate::output::error::misuse;

/// Operands in one image.
pub(super) struct Targets {
    pub(super) spec: ImageSpec,
    pub(super) paths: Vec<Vec<u8>>,
}

impl Targets {
    /// Reads operands, which have to name files of one image.
    pub(super) fn parse(operands: &[OsString]) -> anyhow::Result<Self> {
        let mut specs = operands.iter().map(|operand| parse_file(operand));
        let Some(first) = specs.next() else {
            misuse!("there is nothing to do");
        };
        let mut first = first?;
        let mut paths = vec![first.path_or_root().to_vec()];
        first.path = None;
        for spec in specs {
            let mut spec = spec?;
            paths.push(spec.path_or_root().to_vec());
            spec.path = None;
            ensure!(
                spec.is_same_image(&first),
                "{first} and {spec} are two images; a command changes one"
            );
        }
        Ok(Self { spec: first, paths })
    }

    /// Changes the image in one transaction: all that `work` does with the paths, or nothing.
    pub(super) fn edit(
        &self,
        options: &ImageOptions,
        work: impl FnOnce(&Edit, &[Vec<u8>]) -> anyhow::Result<()>,
    ) -> anyhow::Result<u8> {
        edit(options, &self.spec, |edit| work(edit, &self.paths))
    }

    /// As [`edit`](Self::edit), with `work` for each path.
    pub(super) fn edit_each(
        &self,
        options: &ImageOptions,
        mut work: impl FnMut(&Edit, &[u8]) -> platter::Result<()>,
    ) -> anyhow::Result<u8> {
        self.edit(options, |edit, paths| {
            for path in paths {
                work(edit, path)?;
            }
            Ok(())
        })
    }
}

/// Reads an operand that names a file in an image.
pub(super) fn parse_file(operand: &OsStr) -> anyhow::Result<ImageSpec> {
    let spec = parse(operand)?;
    if spec.path.is_none() {
        let operand = Escaped(operand.as_encoded_bytes());
        misuse!("{operand}: names no file in an image; write IMAGE:PATH");
    }
    Ok(spec)
}

/// Does `work` with an image, and makes the changes if it succeeds.
pub(super) fn edit(
    options: &ImageOptions,
    spec: &ImageSpec,
    work: impl FnOnce(&Edit) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let edit = begin(options, spec)?;
    let volume = edit.volume().clone();
    work(&edit)?;
    edit.commit()?;
    report_requests(&volume);
    Ok(0)
}

/// Refuses options that are for reading an image.
pub(super) fn refuse_reading_options(options: &ImageOptions) -> anyhow::Result<()> {
    if options.no_lock {
        misuse!("--no-lock is for reading only");
    }
    if options.norecovery {
        misuse!("--norecovery is for reading only");
    }
    Ok(())
}

/// Options to open an image by, to change it: `SOURCE_DATE_EPOCH` holds.
///
/// # Errors
/// Of options that are for reading.
pub(super) fn writing_options(options: &ImageOptions) -> anyhow::Result<MountOptions> {
    refuse_reading_options(options)?;
    let open_options = options.open_options();
    Ok(match source_date()? {
        Some(date) => open_options.reproducible(date),
        None => open_options,
    })
}

/// Opens an image to change it. What is made belongs to the caller, as far as the umask goes.
fn begin(options: &ImageOptions, spec: &ImageSpec) -> anyhow::Result<Edit> {
    let open_options = writing_options(options)?;
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    interrupt::catch()?;
    let edit = open_options.edit_with(spec, |file| Arc::new(Worker::new(file)))?;
    let edit = edit.acting_as(Credentials::new(user, group), umask());
    Ok(edit.progress(interrupt::progress()))
}

/// The umask of this process, which can be asked for by changing it only.
fn umask() -> u32 {
    let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

/// What a flag like `--no-dereference` means.
pub(super) fn symlinks(no_dereference: bool) -> Symlinks {
    if no_dereference {
        Symlinks::NoFollow
    } else {
        Symlinks::Follow
    }
}

/// What `--recursive` means.
pub(super) fn scope(recursive: bool) -> Scope {
    if recursive { Scope::Tree } else { Scope::File }
}

/// What `--no-create` means.
pub(super) fn creation(no_create: bool) -> Creation {
    if no_create {
        Creation::Never
    } else {
        Creation::IfMissing
    }
}
