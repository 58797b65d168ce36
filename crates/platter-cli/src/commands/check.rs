//! `platter check`: whether a filesystem keeps the rules of its format.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter::Escaped;
use platter::escape::unescape;
use platter::vfs::{CheckProgress, CheckReport, CheckSink, Finding};
use serde_json::{Map, Value, json};
use signal_hook::consts::SIGINT;

use super::operands::parse_image;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::error::{error_object, misuse, put_corruption};
use crate::output::json::{put_name, word};
use crate::output::progress::Progress;

/// What fsck(8) answers where the check could not be done.
const STATUS_FAILED: u8 = 8;

/// Check a filesystem without changing it
///
/// Reads all metadata and lists each finding with its structure, place and rule. A journal that
/// holds changes is replayed in memory first, unless --norecovery is given. The exit status is the
/// sum of fsck(8): 0 clean, 4 errors were found, 8 the check could not be done, 16 usage, 32
/// cancelled. With --data, btrfs filesystems are scrubbed, too: every copy of data is read and
/// compared with its checksum, and a sector that does not match is reported with its file.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The filesystem, as IMAGE[@PARTITION]
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// Verify all data, too, against the checksums that the filesystem has of it
    #[arg(long)]
    data: bool,
    /// Stop after so many findings
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_findings: Option<u64>,
    /// Not supported: use e2fsck(8)
    #[arg(long, hide = true)]
    repair: bool,
    /// Write findings only, and nothing about a clean filesystem
    #[arg(short, long)]
    quiet: bool,
}

impl Check {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        if self.repair {
            misuse!("--repair is not supported: use e2fsck(8)");
        }
        options.refuse_counting("check")?;
        let spec = parse_image(&self.image)?;
        let open_options = options.open_options();
        let json = console::is_json();
        let mut console = Console::new();
        if json {
            let mut head = Map::new();
            put_name(&mut head, "image", &unescape(&spec.to_string()));
            let head = serde_json::to_string(&head)?;
            let head = head.strip_suffix('}').unwrap_or(&head);
            write!(console.out, "{head},\n\"findings\": [")?;
        }
        let image = match open_options.open_image(&spec) {
            Ok(image) => image,
            Err(error) if json => return write_failure(console, error),
            Err(error) => return Err(error.into()),
        };
        let interrupted = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?;
        let mut listener = Listener {
            interrupted: &interrupted,
            name: image.name(),
            json,
            left: self.max_findings,
            reported: 0,
            progress: Progress::new(true),
            out: &mut console.out,
            failed: None,
        };
        let mut report = open_options.check(&image, &mut listener);
        let mut unverified = None;
        if let Ok(found) = &mut report
            && self.data
            && !found.cancelled
        {
            match open_options.verify_data(&image, &mut listener) {
                Ok(of_data) => found.add(of_data),
                Err(error) => unverified = Some(error),
            }
        }
        let Listener {
            failed, progress, ..
        } = listener;
        progress.finish();
        if let Some(error) = failed {
            return Err(error.into());
        }
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                if json {
                    return write_failure(console, error);
                }
                console.trouble(STATUS_FAILED, error)?;
                return Ok(console.finish()?);
            }
        };
        if let Some(error) = unverified {
            let status = report.exit_status() | STATUS_FAILED;
            if json {
                let error = anyhow::Error::from(error);
                let mut summary = summary_json(&report);
                summary["state"] = json!("not_checked");
                summary["clean"] = json!(false);
                summary["exit_status"] = json!(status);
                summary["error"] = error_object(&error);
                let summary = serde_json::to_string_pretty(&summary)?;
                writeln!(console.out, "\n],\n\"summary\": {summary}\n}}")?;
                console.trouble(status, error)?;
            } else {
                console.trouble(status, error)?;
            }
            return Ok(console.finish()?);
        }
        if json {
            let summary = serde_json::to_string_pretty(&summary_json(&report))?;
            writeln!(console.out, "\n],\n\"summary\": {summary}\n}}")?;
        } else if !self.quiet {
            write_summary(&mut console.out, image.name(), &report)?;
        }
        console.finish()?;
        Ok(report.exit_status())
    }
}

/// Ends the document of a check that could not be done.
fn write_failure(mut console: Console, error: platter::Error) -> anyhow::Result<u8> {
    let error = anyhow::Error::from(error);
    let summary = json!({
        "state": "not_checked",
        "clean": false,
        "exit_status": STATUS_FAILED,
        "error": error_object(&error),
    });
    let summary = serde_json::to_string_pretty(&summary)?;
    writeln!(console.out, "\n],\n\"summary\": {summary}\n}}")?;
    console.trouble(STATUS_FAILED, error)?;
    Ok(console.finish()?)
}

/// Writes findings as they come.
struct Listener<'a> {
    name: &'a str,
    json: bool,
    left: Option<u64>,
    reported: u64,
    progress: Progress,
    out: &'a mut dyn Write,
    failed: Option<io::Error>,
    /// Set to stop the check.
    interrupted: &'a AtomicBool,
}

impl CheckSink for Listener<'_> {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        let Self {
            name,
            json,
            reported,
            out,
            ..
        } = self;
        let written = self.progress.suspend(|| {
            if *json {
                let separator = if *reported == 0 { "\n" } else { ",\n" };
                write!(out, "{separator}{}", finding_json(&finding))
            } else {
                let path = finding.path.as_deref().unwrap_or_default();
                let colon = if path.is_empty() { "" } else { ":" };
                let (path, severity) = (Escaped(path), finding.severity);
                let text = finding.corruption.to_string();
                let text = Escaped(text.as_bytes());
                writeln!(out, "{name}{colon}{path}: {severity}: {text}").and_then(|()| out.flush())
            }
        });
        *reported += 1;
        if let Err(error) = written {
            self.failed = Some(error);
            return ControlFlow::Break(());
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                return ControlFlow::Break(());
            }
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

fn finding_json(finding: &Finding) -> Value {
    let mut object = Map::new();
    object.insert("severity".into(), json!(finding.severity.to_string()));
    put_corruption(&mut object, &finding.corruption);
    if let Some(path) = &finding.path {
        put_name(&mut object, "path", path);
    }
    Value::Object(object)
}

fn summary_json(report: &CheckReport) -> Value {
    let counters = report.counters.iter();
    let counters: Map<String, Value> = counters
        .map(|(noun, number)| (word(noun), json!(number)))
        .collect();
    let state = match (report.is_clean(), report.cancelled) {
        (true, _) => "clean",
        (false, true) => "cancelled",
        (false, false) => "not_clean",
    };
    json!({
        "state": state,
        "clean": report.is_clean(),
        "errors": report.errors,
        "unreadable": report.unreadable,
        "notices": report.notices,
        "cancelled": report.cancelled,
        "exit_status": report.exit_status(),
        "checked": counters,
    })
}

fn write_summary(out: &mut dyn Write, name: &str, report: &CheckReport) -> io::Result<()> {
    let verdict = if report.is_clean() {
        "clean"
    } else {
        "not clean"
    };
    write!(out, "{name}: {verdict}")?;
    for (count, one, many) in [
        (report.errors, "error", "errors"),
        (report.unreadable, "unreadable place", "unreadable places"),
        (report.notices, "notice", "notices"),
    ] {
        match count {
            0 => {}
            1 => write!(out, ", 1 {one}")?,
            count => write!(out, ", {count} {many}")?,
        }
    }
    if report.cancelled {
        write!(out, ", cancelled")?;
    }
    let counters = report
        .counters
        .iter()
        .map(|(noun, number)| format!("{number} {noun}"));
    let counters = counters.collect::<Vec<_>>().join(", ");
    if counters.is_empty() {
        return writeln!(out);
    }
    writeln!(out, "; checked {counters}")
}
