//! `platter mount`: an image as a directory, through FUSE.

mod background;
mod errors;
mod lease;
mod options;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use platter::block::BlockDevice;
use platter::vfs::{Condition, Error};
use platter::{Cause, Escaped, ImageSpec, MountOption, MountOptions, Volume};
use platter_fuse::{DeviceOpener, ErrorSink, MountError};
use rustix::io::Errno;

use self::errors::ErrorLog;
use self::options::MountWords;
use super::operands::{parse_image, report_requests};
use super::outcome::{Outcome, Waiting};
use crate::args::ImageOptions;
use crate::console::{complain, in_one_line};
use crate::output::error::misuse;

const LONG_ABOUT: &str = "\
Mount an image on a directory, as any user

Serves the image through FUSE until it is unmounted, in the background unless -f is given. The image \
is written, and no other process may use it meanwhile; with -o ro, and where it is write-protected, it is \
only read.

Unmount with `platter umount`, which returns when all is written, and fails where something could not \
be. Errors of a mount in the background go to syslog, or to the file of --log.

Options of -o are ro, rw, allow_other, noperm, uid=, gid=, dev, suid, noexec, fsname=, relatime (the \
default), noatime, nodiratime and strictatime, user_subvol_rm_allowed, with which all users delete subvolumes of \
their own, io_uring=off and writeback=on, with which small writes are gathered; for the image offset=, norecovery, \
device=, journal_path=, logdev=, rtdev=, sb=, cachesize= and workers=; for writing errors=continue, \
errors=remount-ro and commit=SECONDS. Others are those of the filesystem, such as data= of ext3 and ext4 \
and allocsize= of XFS.

In fstab, with this program in the path of mount(8): /srv/disk.img@2 /mnt fuse.platter ro 0 0";

/// Mount an image on a directory, as any user
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT)]
pub(crate) struct Mount {
    /// The filesystem, as IMAGE[@PARTITION]
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// The directory
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Append errors to this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Mount options, separated by commas
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Serve from the process in the background
    #[arg(long, hide = true)]
    detached: bool,
    #[command(flatten)]
    helper: HelperFlags,
}

/// What mount(8) gives its helpers besides. None of it matters here.
#[derive(Debug, clap::Args)]
struct HelperFlags {
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    #[arg(short = 't', hide = true, value_name = "TYPE")]
    filesystem: Option<String>,
}

impl Mount {
    pub(crate) fn run(&self, given: &ImageOptions) -> anyhow::Result<u8> {
        let words = MountWords::parse(&self.options)?;
        check_mountpoint(&self.mountpoint)?;
        if !self.foreground && !self.detached {
            return background::respawn();
        }
        if self.detached {
            background::leave_session();
        }
        let spec = parse_image(&self.image)?;
        let volume = open(&words, given, &spec)?;
        let mut options = words.fuse;
        options.source.get_or_insert_with(|| source(&spec));
        options.end_on_signals = true;
        let log = self.open_log()?;
        let name = volume.name().clone();
        let sink = Arc::clone(&log);
        options.on_error = Some(ErrorSink::new(move |error| {
            sink.report(&platter::Error::new(&name, error.clone()).to_string());
        }));
        options.open_device = Some(DeviceOpener::new(open_new));
        let fs = volume.filesystem().clone();
        let is_written = !fs.is_read_only();
        let session = platter_fuse::mount(fs, &self.mountpoint, options)?;
        if let Some(file) = volume.image_file().filter(|_| is_written) {
            let fs = Arc::clone(volume.filesystem());
            lease::hold(Arc::clone(file), fs, session.watch()?, session.unmounter());
        }
        // Without it, `platter umount` cannot report how the mount ended.
        let waiting = Waiting::listen(session.device_number(), session.watch()?).ok();
        if self.detached {
            background::report_mounted()?;
        }
        let ended = session.join().map_err(|error| named(&volume, error));
        // The session has unmounted it, or reported why it could not.
        drop(volume.clone().into_filesystem());
        let outcome = match &ended {
            Ok(_) => Outcome::Complete,
            Err(error) => Outcome::Failed(in_one_line(error)),
        };
        if let Outcome::Failed(error) = &outcome
            && (self.detached || self.log.is_some())
        {
            log.report_end(error);
        }
        if let Some(waiting) = waiting {
            waiting.send(&outcome);
        }
        ended?;
        report_requests(&volume);
        Ok(0)
    }

    fn open_log(&self) -> anyhow::Result<Arc<ErrorLog>> {
        let file = self.log.as_deref();
        let log = ErrorLog::new(file, self.detached);
        let shown = || {
            let file = file.map_or(&b""[..], |file| file.as_os_str().as_bytes());
            Escaped(file).to_string()
        };
        Ok(Arc::new(log.with_context(shown)?))
    }
}

/// Refuses what cannot be mounted on, before anything is opened and in words of its own.
fn check_mountpoint(mountpoint: &Path) -> anyhow::Result<()> {
    let shown = || Escaped(mountpoint.as_os_str().as_bytes()).to_string();
    match std::fs::metadata(mountpoint) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => bail!("{}: Not a directory", shown()),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::ACCESS) => Ok(()),
        Err(error) => Err(error).with_context(shown),
    }
}

/// An error of the filesystem under the name of the image.
fn named(volume: &Volume, error: MountError) -> anyhow::Error {
    if let MountError::Filesystem(error) = error {
        return platter::Error::new(volume.name(), error).into();
    }
    error.into()
}

/// Opens the filesystem as the words ask for: for writing, if nothing else is said, as far as that is
/// possible.
fn open(words: &MountWords, given: &ImageOptions, spec: &ImageSpec) -> anyhow::Result<Volume> {
    let image_options = words.image_options(given);
    let options = image_options.open_options();
    let with = |options: MountOptions, option: &MountOption| options.option(option.clone());
    let options = words.driver.iter().fold(options, with);
    if words.fuse.read_only {
        return Ok(options.open(spec)?);
    }
    if image_options.no_lock {
        misuse!("--no-lock is for reading: mount with -o ro");
    }
    match options.clone().writing(words.write_options()).open(spec) {
        Err(error) if is_write_protected(&error) && !words.insists_on_writing => {
            let volume = options.open(spec)?;
            complain(format_args!(
                "{}: is write-protected, mounted read-only",
                volume.name()
            ));
            Ok(volume)
        }
        opened => Ok(opened?),
    }
}

/// Opens a device that is added to a mount, in the words of this program.
fn open_new(path: &Path, is_forced: bool) -> std::io::Result<Arc<dyn BlockDevice>> {
    let spec = parse_image(path.as_os_str()).map_err(std::io::Error::other)?;
    platter::pool::open_new(&spec, is_forced).map_err(std::io::Error::other)
}

/// Whether an image may only be read.
fn is_write_protected(error: &platter::Error) -> bool {
    let Cause::Filesystem(error) = &error.cause else {
        return false;
    };
    match error {
        Error::Condition(condition) => *condition == Condition::ReadOnly,
        Error::Io(error) => matches!(
            error.source.kind(),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
        ),
        Error::Refused(_) | Error::Unsupported(_) | Error::Corrupt(_) => false,
    }
}

/// The source that the table of mounts shows: the image from the root of the host.
fn source(spec: &ImageSpec) -> String {
    let mut spec = spec.clone();
    spec.path = None;
    if let Ok(image) = spec.image.canonicalize() {
        spec.image = image;
    }
    spec.to_string()
}
