//! Copies files out of a volume onto the host.
//!
//! What is in an image is not trusted: below the target that the caller names, no symbolic link of
//! the host or of the image is ever followed, and what is there already is replaced, not written
//! through. Damage costs only what is damaged.

mod contents;
mod place;
mod attributes;
mod tree;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use platter_vfs::{Condition, FileKind, InodeId};
use rustix::fs::{Mode, OFlags};

use self::place::{Place, Remembered};
use crate::problem::{Effect, Problem};
use crate::{Cause, Error, File, Progress, Result};

/// What of a file is kept besides its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each can be kept without the others"
)]
pub struct Preserve {
    /// The permission bits; else those the umask leaves.
    pub mode: bool,
    /// Owner and group, as far as the caller may set them.
    pub ownership: bool,
    /// Times of the last read and the last change of the contents.
    pub timestamps: bool,
    /// Several names of one file.
    pub links: bool,
    /// Extended attributes and ACLs.
    pub xattrs: bool,
}

impl Preserve {
    /// Everything.
    pub const ALL: Self = Self {
        mode: true,
        ownership: true,
        timestamps: true,
        links: true,
        xattrs: true,
    };
}

/// How files are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyOptions {
    /// Copy directories with all that is in them, and special files as such. Symbolic links are
    /// copied as links.
    pub recursive: bool,
    /// What to keep.
    pub preserve: Preserve,
    /// Leave alone what is there already.
    pub no_clobber: bool,
}

/// Events reported while files are copied.
#[derive(Debug)]
pub enum CopyEvent<'a> {
    /// A file is copied to this path of the host.
    Copying(&'a File, &'a Path),
    /// Something went wrong with one file.
    Problem(&'a Problem),
    /// More was copied.
    Progress(CopySummary),
}

/// How much was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopySummary {
    /// Files of all kinds.
    pub files: u64,
    /// Bytes of contents, holes not counted.
    pub bytes: u64,
    /// Problems reported.
    pub problems: u64,
}

/// Listens to a copy.
pub type CopyObserver<'a> = dyn FnMut(CopyEvent<'_>) + 'a;

/// Copies files, and remembers which have several names.
#[derive(Debug)]
pub struct Copier {
    options: CopyOptions,
    progress: Progress,
    summary: CopySummary,
    /// Where an inode of a volume was copied to first.
    copied: HashMap<(Arc<str>, InodeId), Remembered>,
}

impl Copier {
    /// Nothing was copied yet.
    #[must_use]
    pub fn new(options: CopyOptions) -> Self {
        Self {
            options,
            progress: Progress::default(),
            summary: CopySummary::default(),
            copied: HashMap::new(),
        }
    }

    /// Counts in `progress`, which can cancel the copy: what was copied until then stays.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// How much was copied so far.
    #[must_use]
    pub fn summary(&self) -> CopySummary {
        self.summary
    }

    /// Copies `source` to `name` in the directory `dir` of the host. A symbolic link there that is
    /// to become a file is replaced.
    ///
    /// Errors below a directory are reported to `observer` and do not end the copying.
    ///
    /// # Errors
    /// When the source cannot be copied at all.
    pub fn copy_into(
        &mut self,
        source: &File,
        dir: &Path,
        name: &OsStr,
        observer: &mut CopyObserver<'_>,
    ) -> Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let opened = rustix::fs::open(dir, flags, Mode::empty());
        let opened = opened.map_err(|error| host_error(dir, error))?;
        let place = Place::top(Arc::new(opened.into()), dir, name);
        let copied = self.copy_tree(source, place, observer);
        source.volume().entry_source(true).forget();
        copied
    }

    /// Copies the contents of `source`, a regular file, over what `target` names, which may be a
    /// symbolic link or a device, as a shell redirection would.
    pub fn copy_over(
        &mut self,
        source: &File,
        target: &Path,
        observer: &mut CopyObserver<'_>,
    ) -> Result<()> {
        let attr = source.attr()?;
        if attr.kind != FileKind::Regular {
            return Err(source.error(Condition::InvalidArgument));
        }
        observer(CopyEvent::Copying(source, target));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(attr.permissions & 0o777);
        let file = rustix::fs::open(target, flags, mode);
        let file = file.map(std::fs::File::from);
        let file = file.map_err(|error| host_error(target, error))?;
        self.fill(source, &attr, None, (&file, target), observer)
    }

    fn report(&mut self, observer: &mut CopyObserver<'_>, problem: &Problem) {
        self.summary.problems += 1;
        observer(CopyEvent::Problem(problem));
    }

    fn report_damage(&mut self, observer: &mut CopyObserver<'_>, error: Error, effect: Effect) {
        let Error { image, path, cause } = error;
        let problem = Problem {
            image,
            path: path.unwrap_or_default(),
            effect,
            cause: Some(cause),
        };
        self.report(observer, &problem);
    }
}

/// An error at a path of the host.
fn host_error(path: &Path, error: rustix::io::Errno) -> Error {
    Error::at_path(
        &"".into(),
        path.as_os_str().as_encoded_bytes(),
        Cause::from(std::io::Error::from(error)),
    )
}
