//! `platter mount`: an image as a directory, through FUSE.

mod background;
mod options;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::bail;
use platter::vfs::{Condition, Error};
use platter::{Cause, Escaped, ImageSpec, Volume};
use platter_fuse::ErrorSink;

use self::options::MountWords;
use super::operands::{parse_image, tell_requests};
use crate::args::ImageOptions;
use crate::console::{complain, in_one_line};

const LONG_ABOUT: &str = "\
Mount an image on a directory, as any user

Serves the image through FUSE until it is unmounted, in the background unless -f is given. The image \
is written, and nobody else may use it meanwhile; with -o ro, and where it is write-protected, it is \
only read. Reading changes no times of access.

Options of -o are ro, rw, allow_other, noperm, uid=, gid=, dev, suid, noexec, fsname=, io_uring=off \
and writeback=on, with which small writes are gathered; for the image offset=, norecovery, \
journal_path=, sb=, cachesize= and workers=; for writing errors=continue, errors=remount-ro, data= \
and commit=SECONDS.

In fstab, with this program in the path of mount(8): /srv/disk.img@2 /mnt fuse.platter ro 0 0";

/// The command line makes no sense, as mount(8) counts.
const STATUS_USAGE: u8 = 1;

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
        let words = match MountWords::parse(&self.options) {
            Ok(words) => words,
            Err(error) => {
                complain(in_one_line(&error));
                return Ok(STATUS_USAGE);
            }
        };
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
        let name = volume.name().clone();
        options.on_error = Some(ErrorSink::new(move |error| {
            let text = error.to_string();
            complain(format_args!("{name}: {}", Escaped(text.as_bytes())));
        }));
        let fs = volume.filesystem().clone();
        let session = platter_fuse::mount(fs, &self.mountpoint, options)?;
        if self.detached {
            background::tell_mounted()?;
        }
        session.join()?;
        tell_requests(&volume);
        Ok(0)
    }
}

/// Opens the filesystem as the words ask for: for writing, if nothing else is said, as far as that is
/// possible.
fn open(words: &MountWords, given: &ImageOptions, spec: &ImageSpec) -> anyhow::Result<Volume> {
    let image_options = words.image_options(given);
    let options = image_options.open_options();
    if words.fuse.read_only {
        return Ok(options.open(spec)?);
    }
    if image_options.no_lock {
        bail!("--no-lock is for reading: mount with -o ro");
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
        Error::Unsupported(_) | Error::Corrupt(_) => false,
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
