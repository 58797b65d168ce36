//! Copies files out of a volume onto the host.
//!
//! What is in an image is not trusted: below the target that the caller names, no symbolic link of
//! the host or of the image is ever followed, and what is there already is replaced, not written
//! through. Corruption costs only what is corrupt.
//!
//! The caller's thread goes through directories, makes them, and reports what was done in that order. Several threads
//! make files and read and write their contents, a long file's pieces at once.

mod place;
mod attributes;
mod contents;
mod links;
mod worker;
mod tree;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::File as HostFile;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use platter_vfs::{Condition, FileKind};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use self::attributes::{Target, put_attributes};
use self::contents::Filling;
use self::links::Links;
use self::place::Place;
use self::tree::{Plan, READY_JOBS_MAX, Walk, work};
use self::worker::{Source, Worker};
use crate::host_file::{HostFileId, holds_source};
use crate::pipeline::Pipeline;
use crate::problem::{Effect, Problem};
use crate::{Cause, Error, File, Progress, Result};

/// What of a file is kept besides its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each can be kept without the others"
)]
pub struct Preserve {
    /// The permission bits and the ACLs; else the bits that the umask leaves.
    pub mode: bool,
    /// Owner and group, as far as the caller may set them.
    pub ownership: bool,
    /// Times of the last read and the last change of the contents.
    pub timestamps: bool,
    /// Several names of one file.
    pub links: bool,
    /// Extended attributes but ACLs.
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
    /// The attributes that copies keep.
    pub preserve: Preserve,
    /// Leave alone what is there already.
    pub no_clobber: bool,
}

/// Events reported while files are copied.
#[derive(Debug)]
pub enum CopyEvent<'a> {
    /// A file is copied to this path of the host, or was: several are at once.
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
    threads: NonZeroUsize,
    progress: Progress,
    summary: CopySummary,
    links: Arc<Links>,
}

impl Copier {
    /// A copier that has copied nothing yet. Trees are copied by as many threads as there are processors, and the caller's.
    #[must_use]
    pub fn new(options: CopyOptions) -> Self {
        Self {
            options,
            threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            progress: Progress::default(),
            summary: CopySummary::default(),
            links: Arc::default(),
        }
    }

    /// Counts in `progress`, which can cancel the copy: what was copied until then stays.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Copies trees with so many threads, and the caller's.
    #[must_use]
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = threads;
        self
    }

    /// Returns how much was copied so far.
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
    /// symbolic link or a device, as a shell redirection would. A regular file gets the attributes, too, that are to be
    /// preserved.
    ///
    /// # Errors
    /// Where `target` is the image that `source` is in, which is left as it is.
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
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = if self.options.preserve.mode {
            0o600
        } else {
            attr.permissions & 0o777
        };
        let host = |error| host_error(target, error);
        let file = rustix::fs::open(target, flags, Mode::from_raw_mode(mode)).map_err(host)?;
        let file = HostFile::from(file);
        let found = rustix::fs::fstat(&file).map_err(host)?;
        if HostFileId::of(&found).changes(source.volume().host_files()) {
            return Err(holds_source(target));
        }
        self.links.forget(HostFileId::inode_of(&found));
        let is_regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        let preserve = if is_regular {
            self.options.preserve
        } else {
            Preserve::default()
        };
        if is_regular {
            Target::Over(&file, target).restrict(preserve, found.st_mode & attr.permissions);
            file.set_len(0).map_err(|error| host(errno(&error)))?;
        }
        let mut source = Source {
            file: source.clone(),
            attr,
            map: None,
        };
        let mut filling = Filling::of_any(&mut source, file, &host)?;
        let mut lost = filling.take_lost();
        let mut worker = Worker::of(self)();
        for range in filling.ranges() {
            let bytes = range.end - range.start;
            lost.add(worker.fill(&source, &filling, range, &host)?);
            self.count_bytes(bytes, observer);
        }
        let mut problems = Vec::from_iter(lost.problem(&source.file));
        let over = Target::Over(filling.target(), target);
        put_attributes(
            preserve,
            false,
            &source.file,
            &source.attr,
            &over,
            &mut problems,
        );
        for problem in problems {
            self.report(observer, &problem);
        }
        Ok(())
    }

    fn copy_tree(
        &mut self,
        source: &File,
        place: Place,
        observer: &mut CopyObserver<'_>,
    ) -> Result<()> {
        let pipeline = Pipeline::new(READY_JOBS_MAX);
        let threads = self.threads.get();
        let new_worker = Worker::of(self);
        thread::scope(|scope| {
            let _guard = pipeline.stop_on_panic();
            let copy = || {
                let _guard = pipeline.stop_on_panic();
                let mut worker = new_worker();
                while let Some((ticket, job)) = pipeline.start() {
                    pipeline.finish(&ticket, work(&mut worker, job));
                }
            };
            // What some of them cannot do is done by the others.
            let start_threads = || {
                let start = |number| {
                    let name = format!("copy-{number}");
                    let thread = thread::Builder::new().name(name);
                    thread.spawn_scoped(scope, copy).is_ok()
                };
                (0..threads).filter(|&number| start(number)).count() > 0
            };
            let walk = Walk {
                copier: self,
                observer,
                pipeline: &pipeline,
                start_threads: &start_threads,
                worker: new_worker(),
                plan: Plan::default(),
            };
            let copied = walk.run(source, place);
            pipeline.stop();
            copied
        })
    }

    fn count_file(&mut self, observer: &mut CopyObserver<'_>) {
        self.summary.files += 1;
        observer(CopyEvent::Progress(self.summary));
    }

    fn count_bytes(&mut self, bytes: u64, observer: &mut CopyObserver<'_>) {
        self.summary.bytes += bytes;
        observer(CopyEvent::Progress(self.summary));
    }

    fn report(&mut self, observer: &mut CopyObserver<'_>, problem: &Problem) {
        self.summary.problems += 1;
        observer(CopyEvent::Problem(problem));
    }
}

/// A problem with what the error names.
fn problem_of(error: Error, effect: Effect) -> Problem {
    let Error { image, path, cause } = error;
    Problem {
        image,
        path: path.unwrap_or_default(),
        effect,
        cause: Some(cause),
    }
}

/// The number of an error of the host.
fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// An error at a path of the host.
fn host_error(path: &Path, error: rustix::io::Errno) -> Error {
    Error::at_path(
        &"".into(),
        path.as_os_str().as_encoded_bytes(),
        Cause::from(std::io::Error::from(error)),
    )
}
