//! `platter balance`: chunks of a btrfs placed anew, with another profile if that is wanted.

use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter::escape::unescape;
use platter::pool::{Balance as Wanted, Moved};
use platter_fuse::DevicesCommand;
use serde_json::{Map, json};
use signal_hook::consts::SIGINT;

use super::editing::refuse_reading_options;
use super::mounted::{self, is_mount};
use super::operands::parse_image;
use super::scrub::report_interrupted;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::error::misuse;
use crate::output::json::{put_name, write_object};
use crate::output::progress::Progress;

/// Place the chunks of a btrfs anew, and convert their profiles
///
/// FILTERS are those of btrfs balance, without a space after the letter and with commas in between, as in -dusage=50:
/// profiles=P|P, usage=PERCENT or MIN..MAX, devid=ID, drange= and vrange=START..END in bytes, stripes=MIN..MAX,
/// limit=MAX or MIN..MAX, convert=PROFILE, soft. Without -d, -m and -s, all chunks are balanced. Those with the lowest
/// addresses come first. What is in a chunk goes to other chunks of its type, of the profile that it is to have, if they
/// have the space for all of it, and the chunk is removed: so those that are used in part become fewer. Else the chunk
/// moves as a whole, in a commit of its own, to the devices with the most free space. What is interrupted goes on when it
/// is given again, with soft. A filesystem that is mounted by platter is named by a directory of the mount, and used
/// meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct Balance {
    /// The filesystem, as IMAGE[@PARTITION], or a directory of a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// Balance chunks of data
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    data: Option<String>,
    /// Balance chunks of metadata, and of the chunk tree
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    metadata: Option<String>,
    /// Balance chunks of the chunk tree
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    system: Option<String>,
    /// Let metadata have fewer copies after it
    #[arg(short, long)]
    force: bool,
}

impl Balance {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        if self.system.is_some() && self.metadata.is_none() && !self.force {
            misuse!("-s without -m needs --force");
        }
        let is_all = self.data.is_none() && self.metadata.is_none() && self.system.is_none();
        let all = || is_all.then(String::new);
        let wanted = Wanted {
            data: self.data.clone().or_else(all),
            metadata: self.metadata.clone().or_else(all),
            system: self.system.clone(),
            is_forced: self.force,
        };
        if is_mount(&self.image, options)? {
            let command = DevicesCommand::Balance(&wanted);
            let outcome = mounted::run_on_devices(Path::new(&self.image), &command, "chunks")?;
            return report_moved(self.image.as_encoded_bytes(), &outcome.resized.moved);
        }
        options.refuse_counting("balance")?;
        refuse_reading_options(options)?;
        let spec = parse_image(&self.image)?;
        let progress = MovingProgress::new("chunks")?;
        let moved = progress.follow(|moving| {
            platter::pool::balance(&options.open_options(), &spec, &wanted, moving)
        })?;
        report_moved(&unescape(&spec.to_string()), &moved)
    }
}

/// The progress of a command that moves chunks, which an interrupt ends after the chunk that is being moved.
pub(super) struct MovingProgress {
    progress: Progress,
    interrupted: Arc<AtomicBool>,
    what: &'static str,
}

impl MovingProgress {
    pub(super) fn new(what: &'static str) -> anyhow::Result<Self> {
        let interrupted = Arc::default();
        let flag = Arc::clone(&interrupted);
        signal_hook::flag::register(SIGINT, flag)?;
        Ok(Self {
            progress: Progress::new(true),
            interrupted,
            what,
        })
    }

    pub(super) fn follow<T>(
        mut self,
        command: impl FnOnce(platter::pool::Moving<'_>) -> platter::Result<T>,
    ) -> anyhow::Result<T> {
        let Self {
            progress,
            interrupted,
            what,
        } = &mut self;
        let done = command(&mut |done, total| {
            progress.update(done, Some(total), what);
            if interrupted.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        self.progress.finish();
        Ok(done?)
    }
}

/// Writes how many chunks were moved. Returns the exit status.
pub(super) fn report_moved(image: &[u8], moved: &Moved) -> anyhow::Result<u8> {
    let mut console = Console::new();
    if console::is_json() {
        let mut object = Map::new();
        put_name(&mut object, "image", image);
        object.insert("moved".into(), json!(moved.moved));
        object.insert("removed".into(), json!(moved.removed));
        object.insert("considered".into(), json!(moved.considered));
        object.insert("cancelled".into(), json!(moved.is_cancelled));
        write_object(&mut console.out, &object)?;
    } else {
        let Moved {
            moved,
            removed,
            considered,
            ..
        } = moved;
        let text = format!("moved {moved} out of {considered} chunks, removed {removed}");
        writeln!(console.out, "{text}")?;
    }
    console.finish()?;
    if moved.is_cancelled {
        report_interrupted(image, "what was moved stays so");
    }
    Ok(u8::from(moved.is_cancelled))
}
