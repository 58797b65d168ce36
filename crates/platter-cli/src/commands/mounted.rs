//! Operands that name directories of a mount: its server is asked, and no image is opened.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter::block::{MountEntry, MountTable};
use platter::escape::unescape;
use platter::vfs::Condition;
use platter::{Cause, Error, Escaped, ImageSpec};
use platter_fuse::{Control, DevicesCommand, DevicesOutcome, DevicesRefusal, Refusal};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use signal_hook::consts::SIGINT;

use crate::args::ImageOptions;
use crate::console;
use crate::output::error::misuse;
use crate::output::progress::Progress;

/// The type of what platter mounts, in the table of mounts.
pub(super) const FILESYSTEM_TYPE: &str = "fuse.platter";

/// Whether an operand names a directory in a mount, or something new in one. A file there may be an image.
pub(super) fn is_in_mount(operand: &OsStr) -> bool {
    let path = Path::new(operand);
    match path.metadata() {
        Ok(found) => found.is_dir() && is_mounted(path),
        Err(_) => !ImageSpec::is_inside_image(operand) && is_mounted(nearest(path)),
    }
}

/// The last of the directories above a path that is there.
fn nearest(path: &Path) -> &Path {
    let mut dir = parent(path);
    while dir != parent(dir) && dir.symlink_metadata().is_err() {
        dir = parent(dir);
    }
    dir
}

/// Whether an operand names a file or directory in a mount, for commands on files: an image there is named with a path
/// in it.
pub(super) fn is_file_in_mount(operand: &OsStr) -> bool {
    let path = Path::new(operand);
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    is_in_mount(operand) || is_file && source(path).is_some()
}

/// Whether an operand names a directory [in a mount](is_in_mount), where no image is opened.
///
/// # Errors
/// Where options say how to open one.
pub(super) fn is_mount(operand: &OsStr, options: &ImageOptions) -> anyhow::Result<bool> {
    let is_mount = is_in_mount(operand);
    if is_mount {
        refuse_image_options(options)?;
    }
    Ok(is_mount)
}

/// Refuses options that say how to open an image, which a mount is not.
pub(super) fn refuse_image_options(options: &ImageOptions) -> anyhow::Result<()> {
    options.refuse_others(&[], "a mounted filesystem")
}

/// Whether all operands are in mounts, as `is_in` says of each.
///
/// # Errors
/// Where some are, and others are not, and where options say how to open an image.
pub(super) fn are_in_mounts(
    operands: &[OsString],
    is_in: fn(&OsStr) -> bool,
    options: &ImageOptions,
) -> anyhow::Result<bool> {
    let mounted = operands.iter().filter(|it| is_in(it)).count();
    if mounted > 0 && mounted < operands.len() {
        misuse!("some are in images and some in mounts; a command takes either, not both");
    }
    if mounted > 0 {
        refuse_image_options(options)?;
    }
    Ok(mounted > 0)
}

/// Whether a directory is in a mount.
fn is_mounted(dir: &Path) -> bool {
    dir.is_dir() && source(dir).is_some()
}

/// The mount of platter that a path is in.
pub(super) fn mount(path: &Path) -> Option<MountEntry> {
    let path = path.canonicalize().ok()?;
    let table = MountTable::read().ok()?;
    let mount = table.crossed(&path).pop()?;
    (mount.fs_type == FILESYSTEM_TYPE).then(|| mount.clone())
}

/// What the mount that a path is in was made of.
pub(super) fn source(path: &Path) -> Option<Vec<u8>> {
    mount(path).map(|mount| mount.source.as_bytes().to_vec())
}

/// Whether an open file is the one that the filesystem of a mount is in, as far as that is known.
///
/// # Errors
/// That another process has locked the file: the server of the mount locks all of its images.
pub(super) fn is_image_of(dir: &Path, file: &fs::File) -> io::Result<bool> {
    let found = file.metadata()?;
    let spec = source(dir).and_then(|source| ImageSpec::parse(OsStr::from_bytes(&source)).ok());
    let image = spec.and_then(|spec| fs::metadata(spec.image).ok());
    if image.is_some_and(|image| (image.dev(), image.ino()) == (found.dev(), found.ino())) {
        return Ok(true);
    }
    if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        let text = "is locked by another process, and may be the image that is read from";
        return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
    }
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    Ok(false)
}

/// The directory of a path.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// A directory of a mount.
pub(super) fn open(dir: &Path) -> platter::Result<Control> {
    Control::open(dir).map_err(|error| named(dir, &error))
}

/// A name in a directory of a mount.
pub(super) struct Place {
    /// The path, for errors.
    path: PathBuf,
    pub(super) dir: Control,
    pub(super) name: Vec<u8>,
}

impl Place {
    /// The place that a path names.
    pub(super) fn of(path: &Path) -> platter::Result<Self> {
        let name = path.file_name();
        let name = name.ok_or_else(|| named(path, &Errno::INVAL.into()))?;
        let dir = parent(path);
        if let Err(error) = dir.metadata() {
            return Err(named(path, &error));
        }
        if !is_mounted(dir) {
            // The root of the mount: its name is in another filesystem, which may know these ioctls, too.
            return Err(named(path, &Errno::BUSY.into()));
        }
        Ok(Self {
            path: path.to_owned(),
            dir: open(dir)?,
            name: name.as_bytes().to_vec(),
        })
    }

    /// The place for what comes from `source`: a path, or in the directory that it names.
    pub(super) fn for_source(path: &Path, source: &Path) -> platter::Result<Self> {
        if !path.is_dir() {
            return Self::of(path);
        }
        // The last name may be a dot.
        let source = source
            .canonicalize()
            .map_err(|error| named(source, &error))?;
        let name = source
            .file_name()
            .ok_or_else(|| named(&source, &Errno::INVAL.into()))?;
        Self::of(&path.join(name))
    }

    /// The same, of a command for subvolumes alone.
    pub(super) fn named_subvolume<T>(&self, result: io::Result<T>) -> platter::Result<T> {
        result.map_err(|error| named_subvolume(&self.path, &error))
    }

    /// The result with the path in its error.
    pub(super) fn named<T>(&self, result: io::Result<T>) -> platter::Result<T> {
        result.map_err(|error| named(&self.path, &error))
    }
}

/// Asks the filesystem of a mount to carry out a command on its devices, and shows how far it is. An interrupt ends it as
/// soon as that can be.
pub(super) fn run_on_devices(
    dir: &Path,
    command: &DevicesCommand<'_>,
    what: &'static str,
) -> anyhow::Result<DevicesOutcome> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?;
    let control = open(dir)?;
    let mut progress = Progress::new(true);
    let name = Escaped(dir.as_os_str().as_bytes());
    let ended = control.run_on_devices(command, &mut |report| {
        for line in &report.found {
            let line = Escaped(line);
            progress.suspend(|| console::complain(format_args!("{name}: {line}")));
        }
        progress.update(report.done, Some(report.total), what);
        if interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    progress.finish();
    ended.map_err(|refusal| match refusal {
        DevicesRefusal::Asking(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => {
            anyhow::anyhow!("{name}: is mounted; its devices are changed while it is not")
        }
        DevicesRefusal::Asking(error) => named(dir, &error).into(),
        DevicesRefusal::Failed(refusal) => of_server(dir, &refusal),
    })
}

/// An error in the words of the process that serves a mount.
pub(super) fn of_server(path: &Path, refusal: &Refusal) -> anyhow::Error {
    let text = Escaped(refusal.message.as_bytes()).to_string();
    match Condition::of_errno(refusal.errno) {
        Some(condition) => Error::new(&shown(path), condition.because(text)).into(),
        None => anyhow::anyhow!("{}: {text}", shown(path)),
    }
}

/// The path of a device for the process that serves a mount, which may be in another directory.
pub(super) fn absolute(spec: &ImageSpec) -> anyhow::Result<Vec<u8>> {
    let mut spec = spec.clone();
    spec.path = None;
    spec.image = spec.image.canonicalize().map_err(|error| {
        let image = Escaped(spec.image.as_os_str().as_bytes());
        anyhow::anyhow!("{image}: {error}")
    })?;
    Ok(unescape(&spec.to_string()))
}

/// The error of a command for subvolumes alone.
pub(super) fn named_subvolume(path: &Path, error: &io::Error) -> Error {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL | Errno::NOTDIR) => {
            let refused = Condition::InvalidArgument.because("is not a subvolume");
            Error::new(&shown(path), refused)
        }
        _ => named(path, error),
    }
}

/// What errors call a path.
pub(super) fn shown(path: &Path) -> Arc<str> {
    Arc::from(Escaped(path.as_os_str().as_bytes()).to_string())
}

/// An error in the words of the filesystem, where it has some for that errno.
pub(super) fn named(path: &Path, error: &io::Error) -> Error {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    let condition = match errno {
        Errno::NOTTY => Some(Condition::NotSupported),
        errno => Condition::of_errno(errno),
    };
    let cause = match condition {
        Some(condition) => platter::vfs::Error::from(condition).into(),
        None => Cause::from(io::Error::from(errno)),
    };
    Error::new(&shown(path), cause)
}
