//! `platter mount`: an image as a directory, through FUSE.

mod background;
mod options;

use std::ffi::OsString;
use std::path::PathBuf;

use platter::{Escaped, ImageSpec};
use platter_fuse::ErrorSink;

use self::options::MountWords;
use super::operands::{parse_image, tell_requests};
use crate::args::ImageOptions;
use crate::console::{complain, in_one_line};

const LONG_ABOUT: &str = "\
Mount an image on a directory, as any user

Serves the image through FUSE until it is unmounted, in the background unless -f is given. Mounts \
are read-only.

Options of -o are ro, allow_other, noperm, uid=, gid=, dev, suid, noexec and fsname=, and for the \
image offset=, norecovery, journal_path=, sb=, cachesize= and workers=.

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
        let volume = words.image_options(given).open_options().open(&spec)?;
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

/// The source that the table of mounts shows: the image from the root of the host.
fn source(spec: &ImageSpec) -> String {
    let mut spec = spec.clone();
    spec.path = None;
    if let Ok(image) = spec.image.canonicalize() {
        spec.image = image;
    }
    spec.to_string()
}
