//! `platter check`: whether a filesystem keeps the rules of its format.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter::Escaped;
use platter::vfs::{CheckProgress, CheckReport, CheckSink, Finding};
use serde_json::{Map, Value, json};
use signal_hook::consts::SIGINT;

use super::operands::parse_image;
use crate::args::ImageOptions;
use crate::console::{Console, complain};
use crate::output::progress::Progress;

/// The command line asks for what there is not, as fsck(8) counts.
const STATUS_USAGE: u8 = 16;

/// What fsck(8) answers where the check could not be done.
const STATUS_FAILED: u8 = 8;

/// Check a filesystem without changing it
///
/// Reads all metadata and lists each finding with its structure, place and rule. A journal that
/// holds changes is replayed in memory first, unless --norecovery is given. The exit status is the
/// sum of fsck(8): 0 clean, 4 errors were found, 8 the check could not be done, 16 usage, 32
/// cancelled.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The filesystem, as IMAGE[@PARTITION]
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// Write one object with an array of findings
    #[arg(long)]
    json: bool,
    /// Stop after so many findings
    #[arg(long, value_name = "N")]
    max_findings: Option<u64>,
    /// Not possible: damage is told, not mended
    #[arg(long, hide = true)]
    repair: bool,
    /// Write findings only, and nothing about a clean filesystem
    #[arg(short, long)]
    quiet: bool,
}

impl Check {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        if self.repair {
            complain("--repair is not supported: the check only tells; e2fsck(8) mends");
            return Ok(STATUS_USAGE);
        }
        let spec = parse_image(&self.image)?;
        let open_options = options.open_options();
        let image = open_options.open_image(&spec)?;
        let mut console = Console::new();
        if self.json {
            let name = serde_json::to_string(&**image.name())?;
            write!(console.out, "{{\n\"image\": {name},\n\"findings\": [")?;
        }
        let interrupted = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?;
        let mut listener = Listener {
            interrupted: &interrupted,
            name: image.name(),
            json: self.json,
            left: self.max_findings,
            told: 0,
            progress: Progress::new(true),
            out: &mut console.out,
            failed: None,
        };
        let report = open_options.check(&image, &mut listener);
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
                if self.json {
                    let summary = json!({
                        "clean": false,
                        "failed": error.to_string(),
                        "exit_status": STATUS_FAILED,
                    });
                    let summary = serde_json::to_string_pretty(&summary)?;
                    writeln!(console.out, "\n],\n\"summary\": {summary}\n}}")?;
                }
                console.trouble(STATUS_FAILED, error)?;
                return Ok(console.finish()?);
            }
        };
        if self.json {
            let summary = serde_json::to_string_pretty(&summary_json(&report))?;
            writeln!(console.out, "\n],\n\"summary\": {summary}\n}}")?;
        } else if !self.quiet {
            write_summary(&mut console.out, image.name(), &report)?;
        }
        console.finish()?;
        Ok(report.exit_status())
    }
}

/// Writes findings as they come.
struct Listener<'a> {
    name: &'a str,
    json: bool,
    left: Option<u64>,
    told: u64,
    progress: Progress,
    out: &'a mut dyn Write,
    failed: Option<io::Error>,
    /// Somebody wants the check to end.
    interrupted: &'a AtomicBool,
}

impl CheckSink for Listener<'_> {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        let Self {
            name,
            json,
            told,
            out,
            ..
        } = self;
        let written = self.progress.suspend(|| {
            if *json {
                let separator = if *told == 0 { "\n" } else { ",\n" };
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
        *told += 1;
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
    let mut put = |key: &str, value: Value| {
        object.insert(key.into(), value);
    };
    put("severity", json!(finding.severity.to_string()));
    put("structure", json!(finding.corruption.structure));
    put("rule", json!(finding.corruption.rule));
    let locus = finding.corruption.locus;
    for (key, value) in [
        ("group", locus.group),
        ("inode", locus.inode),
        ("block", locus.block),
        ("offset", locus.offset),
    ] {
        if let Some(value) = value {
            put(key, json!(value));
        }
    }
    if let Some(path) = &finding.path {
        put("path", json!(String::from_utf8_lossy(path)));
        if str::from_utf8(path).is_err() {
            put("path_base64", json!(crate::output::base64::encode(path)));
        }
    }
    Value::Object(object)
}

fn summary_json(report: &CheckReport) -> Value {
    let counters = report.counters.iter();
    let counters: Map<String, Value> = counters
        .map(|(noun, number)| ((*noun).to_owned(), json!(number)))
        .collect();
    json!({
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
