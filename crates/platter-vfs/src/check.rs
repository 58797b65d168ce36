//! What a check of a whole filesystem reports: findings as they are made, progress, a summary.
//!
//! Findings are streamed, never collected, so a badly corrupt image takes no more memory than a
//! clean one. The receiver may stop the check at any time.

use std::fmt;
use std::ops::ControlFlow;

use platter_block::IoError;
use platter_ondisk::{Corrupt, Corruption, Locus, Rule};

use crate::error::{Error, Result};

/// What a finding means for the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Legal, but worth knowing: a journal that wants recovery, a leftover orphan. Leaves the
    /// filesystem clean.
    Notice,
    /// A rule of the format does not hold.
    Error,
    /// The device would not give the bytes, so what they lead to was not checked.
    Unreadable,
}

impl fmt::Display for Severity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Notice => "notice",
            Self::Error => "error",
            Self::Unreadable => "unreadable",
        })
    }
}

/// One thing that a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it means.
    pub severity: Severity,
    /// The structure, where it lies, and the rule.
    pub corruption: Corruption,
    /// A path that leads there, from the root and with a leading slash, where one is known.
    pub path: Option<Vec<u8>>,
    /// How many bytes from the place on it is about, where it is about bytes; else 0.
    pub len_bytes: u64,
}

impl Finding {
    /// A broken rule.
    #[must_use]
    pub fn error(corruption: Corruption) -> Self {
        Self {
            severity: Severity::Error,
            corruption,
            path: None,
            len_bytes: 0,
        }
    }

    /// Something legal that is worth knowing.
    #[must_use]
    pub fn notice(corruption: Corruption) -> Self {
        Self {
            severity: Severity::Notice,
            corruption,
            path: None,
            len_bytes: 0,
        }
    }

    /// A `structure` at `locus` that the device would not give.
    #[must_use]
    pub fn unreadable(structure: &'static str, locus: Locus, error: &IoError) -> Self {
        Self {
            severity: Severity::Unreadable,
            corruption: Corruption::new(structure, locus, format!("cannot be read: {error}")),
            path: None,
            len_bytes: 0,
        }
    }

    /// What an error says about the `structure` that was read; `locus` has what the error leaves out.
    #[must_use]
    pub fn of_error(structure: &'static str, locus: Locus, error: Error) -> Self {
        match error {
            Error::Corrupt(mut corruption) => {
                corruption.locus = corruption.locus.within(locus);
                Self::error(*corruption)
            }
            Error::Io(error) => Self::unreadable(structure, locus, &error),
            error @ (Error::Condition(_) | Error::Refused(_) | Error::Unsupported(_)) => {
                Self::error(Corruption::new(structure, locus, error.to_string()))
            }
        }
    }

    /// The same finding, about so many bytes.
    #[must_use]
    pub fn of_length(mut self, len_bytes: u64) -> Self {
        self.len_bytes = len_bytes;
        self
    }

    /// The same finding, reached by `path`.
    #[must_use]
    pub fn at_path(mut self, path: impl Into<Vec<u8>>) -> Self {
        self.path = Some(path.into());
        self
    }
}

/// How far a check has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckProgress {
    /// What is being checked, as a short noun: `inodes`, `directories`, `bitmaps`.
    pub pass: &'static str,
    /// Units of this pass that are done.
    pub done: u64,
    /// Units of this pass in all, as far as known.
    pub total: u64,
}

/// Listens to a check.
pub trait CheckSink {
    /// Takes a finding. `Break` cancels the check.
    fn finding(&mut self, finding: Finding) -> ControlFlow<()>;

    /// Takes the progress; called at least once per pass and otherwise now and then. `Break`
    /// cancels the check.
    fn progress(&mut self, progress: CheckProgress) -> ControlFlow<()> {
        let _ = progress;
        ControlFlow::Continue(())
    }
}

/// What a check came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Findings that were notices.
    pub notices: u64,
    /// Findings that were broken rules.
    pub errors: u64,
    /// Findings that were unreadable places.
    pub unreadable: u64,
    /// The listener broke off, so the rest was not looked at.
    pub cancelled: bool,
    /// What was looked at, as plural noun and number, in the order it was counted.
    pub counters: Vec<(&'static str, u64)>,
}

impl CheckReport {
    /// All was looked at and every rule holds.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.unreadable == 0 && !self.cancelled
    }

    /// Adds what another check of the same filesystem found.
    pub fn add(&mut self, other: Self) {
        self.notices = self.notices.saturating_add(other.notices);
        self.errors = self.errors.saturating_add(other.errors);
        self.unreadable = self.unreadable.saturating_add(other.unreadable);
        self.cancelled |= other.cancelled;
        self.counters.extend(other.counters);
    }

    /// The exit status of fsck(8): 0 clean, 4 errors left uncorrected, 8 operational error, 32
    /// cancelled; the sum of those that apply.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        let mut status = 0;
        if self.errors > 0 || self.unreadable > 0 {
            status |= 4;
        }
        if self.unreadable > 0 {
            status |= 8;
        }
        if self.cancelled {
            status |= 32;
        }
        status
    }
}

/// The listener broke the check off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled;

/// The result of a step of a check.
pub type Flow<T = ()> = std::result::Result<T, Cancelled>;

/// A checker of one filesystem, which reports what it finds and goes on.
pub trait Checking {
    /// Passes a finding on, with what the checker knows about it, such as a path.
    ///
    /// # Errors
    ///
    /// [`Cancelled`], as from all functions here.
    fn report_finding(&mut self, finding: Finding) -> Flow;

    /// Reports a broken rule.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    fn found<R: Rule>(&mut self, locus: Locus, rule: R) -> Flow {
        self.report_finding(Finding::error(Corrupt::new(locus, rule).into()))
    }

    /// Reports something legal that is worth knowing.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    fn noticed<R: Rule>(&mut self, locus: Locus, rule: R) -> Flow {
        self.report_finding(Finding::notice(Corrupt::new(locus, rule).into()))
    }

    /// Returns what was read, or reports why `structure` at `locus` was not and returns `None`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    fn tolerate<T>(
        &mut self,
        structure: &'static str,
        locus: Locus,
        read: Result<T>,
    ) -> Flow<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                self.report_finding(Finding::of_error(structure, locus, error))?;
                Ok(None)
            }
        }
    }
}

/// The checker's side of a [`CheckSink`]: passes findings on and keeps the report.
pub struct CheckReporter<'a> {
    sink: &'a mut dyn CheckSink,
    report: CheckReport,
}

impl fmt::Debug for CheckReporter<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CheckReporter")
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl<'a> CheckReporter<'a> {
    /// A report without findings yet, for `sink`.
    pub fn new(sink: &'a mut dyn CheckSink) -> Self {
        Self {
            sink,
            report: CheckReport::default(),
        }
    }

    /// Counts the finding and passes it on.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    pub fn finding(&mut self, finding: Finding) -> Flow {
        let count = match finding.severity {
            Severity::Notice => &mut self.report.notices,
            Severity::Error => &mut self.report.errors,
            Severity::Unreadable => &mut self.report.unreadable,
        };
        *count = count.saturating_add(1);
        let flow = self.sink.finding(finding);
        self.note(flow)
    }

    /// Passes the progress on.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    pub fn progress(&mut self, pass: &'static str, done: u64, total: u64) -> Flow {
        let flow = self.sink.progress(CheckProgress { pass, done, total });
        self.note(flow)
    }

    /// Adds `number` to the counter called `noun`.
    pub fn count(&mut self, noun: &'static str, number: u64) {
        let counters = &mut self.report.counters;
        match counters.iter_mut().find(|(known, _)| *known == noun) {
            Some((_, sum)) => *sum = sum.saturating_add(number),
            None => counters.push((noun, number)),
        }
    }

    /// The report so far.
    #[must_use]
    pub fn report(&self) -> &CheckReport {
        &self.report
    }

    /// The report, at the end.
    #[must_use]
    pub fn finish(self) -> CheckReport {
        self.report
    }

    fn note(&mut self, flow: ControlFlow<()>) -> Flow {
        self.report.cancelled |= flow.is_break();
        if flow.is_break() {
            Err(Cancelled)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct StopAfter(usize);

    impl CheckSink for StopAfter {
        fn finding(&mut self, _: Finding) -> ControlFlow<()> {
            self.0 -= 1;
            if self.0 == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        }
    }

    fn broken() -> Finding {
        Finding::error(Corruption::new("inode", Locus::inode(12), "size is absurd"))
    }

    #[test]
    fn exit_status_follows_fsck() {
        let mut sink = StopAfter(2);
        let mut reporter = CheckReporter::new(&mut sink);
        assert_eq!(reporter.report().exit_status(), 0);
        assert!(reporter.finding(broken().at_path("/a/b")).is_ok());
        assert_eq!(reporter.report().exit_status(), 4);
        assert!(reporter.finding(broken()).is_err());
        reporter.count("inodes", 3);
        reporter.count("inodes", 4);
        let report = reporter.finish();
        assert_eq!(report.exit_status(), 4 | 32);
        assert_eq!(report.counters, [("inodes", 7)]);
        assert!(!report.is_clean());
    }

    #[test]
    fn a_notice_leaves_the_filesystem_clean() {
        let mut sink = StopAfter(9);
        let mut reporter = CheckReporter::new(&mut sink);
        let notice = Corruption::new("journal", Locus::default(), "wants recovery");
        assert!(reporter.finding(Finding::notice(notice)).is_ok());
        assert!(reporter.finish().is_clean());
    }

    #[test]
    fn an_unreadable_place_is_also_an_operational_error() {
        let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let device: std::sync::Arc<str> = "disk".into();
        let io = IoError::new(&device, platter_block::Operation::Read, 4096, 512, source);
        let finding = Finding::unreadable("block bitmap", Locus::group(1), &io);
        let mut sink = StopAfter(9);
        let mut reporter = CheckReporter::new(&mut sink);
        assert!(reporter.finding(finding).is_ok());
        assert_eq!(reporter.finish().exit_status(), 12);
    }
}
