//! `platter scrub`: every copy of everything, and those that are bad rewritten.

use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter::Escaped;
use platter::escape::unescape;
use platter::pool::Scrubbed;
use platter::vfs::{CheckProgress, CheckSink, Corruption, Finding, FindingRanges};
use platter_fuse::DevicesCommand;
use serde_json::{Map, Value, json};
use signal_hook::consts::SIGINT;

use super::editing::refuse_reading_options;
use super::mounted::{self, is_mount};
use super::operands::parse_image;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::json::{put_name, write_object};
use crate::output::progress::Progress;

/// What `btrfs scrub start -B` answers where errors are left.
const STATUS_ERRORS: u8 = 3;
/// Lines about errors that are written; further ones are counted.
const LINES_MAX: u64 = 1000;
/// Cancelled.
const STATUS_CANCELLED: u8 = 1;

/// Verify every copy of metadata and data of a btrfs, and rewrite bad ones
///
/// Reads what is in use on all devices (--device) and compares it with its checksums; of RAID5 and RAID6, parity, too.
/// Bad copies are rewritten from good ones or from parity. A device that missed commits has them then; with
/// --option degraded, devices may be missing. A filesystem that is mounted by platter is named by a directory of the
/// mount, and used meanwhile. The exit status is 0 if no error is left, 3 if some are, 1 if it could not be done.
#[derive(Debug, clap::Args)]
pub(crate) struct Scrub {
    /// The filesystem, as IMAGE[@PARTITION], or a directory of a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// Write nothing
    #[arg(short, long)]
    read_only: bool,
}

impl Scrub {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        if is_mount(&self.image, options)? {
            let command = DevicesCommand::Scrub {
                repairs: !self.read_only,
            };
            let outcome = mounted::run_on_devices(Path::new(&self.image), &command, "scrub")?;
            return report_scrubbed(self.image.as_encoded_bytes(), &outcome.scrubbed);
        }
        options.refuse_counting("scrub")?;
        if !self.read_only {
            refuse_reading_options(options)?;
        }
        let spec = parse_image(&self.image)?;
        let interrupted = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?;
        let mut listener = Listener {
            name: Some(self.image.as_encoded_bytes()),
            ..Listener::quiet(&interrupted)
        };
        let open_options = options.open_options();
        let scrubbed = platter::pool::scrub(&open_options, &spec, !self.read_only, &mut listener);
        listener.finish();
        report_scrubbed(&unescape(&spec.to_string()), &scrubbed?)
    }
}

/// Writes what a scrub came to. Returns the exit status.
pub(super) fn report_scrubbed(image: &[u8], scrubbed: &Scrubbed) -> anyhow::Result<u8> {
    let mut console = Console::new();
    if console::is_json() {
        let mut object = Map::new();
        put_name(&mut object, "image", image);
        object.insert("read_only".into(), json!(!scrubbed.repairs));
        object.insert("cancelled".into(), json!(scrubbed.is_cancelled));
        let counters = scrubbed.counters.iter();
        object.extend(counters.map(|(name, count)| (name.to_string(), Value::from(*count))));
        write_object(&mut console.out, &object)?;
    } else {
        for (name, count) in &scrubbed.counters {
            writeln!(console.out, "{name}: {count}")?;
        }
    }
    console.finish()?;
    if scrubbed.is_cancelled {
        report_interrupted(image, "not everything was read");
    }
    let left = if scrubbed.repairs {
        scrubbed.uncorrectable
    } else {
        scrubbed.errors
    };
    Ok(match (scrubbed.is_cancelled, left) {
        (true, _) => STATUS_CANCELLED,
        (false, 0) => 0,
        (false, _) => STATUS_ERRORS,
    })
}

/// Reports on standard error that an interrupt ended a command, and what that means; with --json, the object has it.
pub(super) fn report_interrupted(image: &[u8], meaning: &str) {
    if !console::is_json() {
        console::complain(format_args!("{}: interrupted; {meaning}", Escaped(image)));
    }
}

/// Writes errors as they are found.
pub(super) struct Listener<'a> {
    /// The name of the image; `None` to write none.
    name: Option<&'a [u8]>,
    interrupted: &'a AtomicBool,
    progress: Progress,
    ranges: FindingRanges,
    lines: u64,
}

impl<'a> Listener<'a> {
    /// One that writes none.
    pub(super) fn quiet(interrupted: &'a AtomicBool) -> Self {
        Self {
            name: None,
            interrupted,
            progress: Progress::new(true),
            ranges: FindingRanges::default(),
            lines: 0,
        }
    }

    /// Writes what is left, and ends the line of the progress.
    pub(super) fn finish(mut self) {
        while let Some(range) = self.ranges.next_left() {
            self.write(&range);
        }
        if let Some(name) = self.name
            && self.lines > LINES_MAX
        {
            let (name, more) = (Escaped(name), self.lines - LINES_MAX);
            let line = format_args!("{name}: and in {more} more places");
            self.progress.suspend(|| console::complain(line));
        }
        self.progress.finish();
    }

    fn write(&mut self, found: &Corruption) {
        let Some(name) = self.name else {
            return;
        };
        self.lines += 1;
        if self.lines > LINES_MAX {
            return;
        }
        let text = found.to_string();
        let (name, text) = (Escaped(name), Escaped(text.as_bytes()));
        self.progress
            .suspend(|| console::complain(format_args!("{name}: {text}")));
    }
}

impl CheckSink for Listener<'_> {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        if self.name.is_some()
            && let Some(range) = self.ranges.add(finding)
        {
            self.write(&range);
        }
        ControlFlow::Continue(())
    }

    fn progress(&mut self, progress: CheckProgress) -> ControlFlow<()> {
        let CheckProgress { pass, done, total } = progress;
        self.progress.update(done, Some(total), pass);
        if self.interrupted.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}
