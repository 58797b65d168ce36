//! Errors of a mounted filesystem, for the administrator: on standard error, in a file, or in the
//! system's log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use platter::vfs::lock::Mutex;
use platter::vfs::{Clock, SystemClock};

use crate::console::report;
use crate::output::time::TimeFormat;

/// As many lines in as much time, as the kernel limits its own.
const LINES_MAX: usize = 10;
const INTERVAL: Duration = Duration::from_secs(5);

/// Where syslog listens.
const SYSLOG: &str = "/dev/log";
/// A daemon's error, as syslog counts.
const PRIORITY: u32 = 3 << 3 | 3;

/// Where errors go.
#[derive(Debug)]
pub(super) struct ErrorLog {
    clock: SystemClock,
    target: Target,
    /// Errors reported lately, and how many were withheld.
    limit: Mutex<Limit>,
}

#[derive(Debug)]
enum Target {
    Terminal,
    Syslog,
    File(File),
}

impl ErrorLog {
    /// For a mount in the background, or in the foreground, with the file that was asked for.
    pub(super) fn new(file: Option<&Path>, is_in_background: bool) -> io::Result<Self> {
        let target = match file {
            Some(path) => Target::File(File::options().append(true).create(true).open(path)?),
            None if is_in_background => Target::Syslog,
            None => Target::Terminal,
        };
        Ok(Self {
            clock: SystemClock::new(),
            target,
            limit: Mutex::default(),
        })
    }

    /// Reports an error, unless it was reported just now, or too many were.
    pub(super) fn report(&self, error: &str) {
        let admitted = self.limit.lock().admit(self.clock.monotonic(), error);
        if let Some(withheld) = admitted.withheld {
            self.write(&withheld);
        }
        if admitted.is_reported {
            self.write(error);
        }
    }

    /// Reports the last error, whatever was reported before.
    pub(super) fn report_end(&self, error: &str) {
        if let Some(withheld) = self.limit.lock().end() {
            self.write(&withheld);
        }
        self.write(error);
    }

    fn write(&self, line: &str) {
        // Nothing is left to do where a line cannot be written.
        match &self.target {
            Target::Terminal => report(&anyhow!(line.to_owned())),
            Target::Syslog => {
                let process = std::process::id();
                let message = format!("<{PRIORITY}>platter[{process}]: {line}");
                let _ = UnixDatagram::unbound().and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    socket.send_to(message.as_bytes(), SYSLOG)
                });
            }
            Target::File(file) => {
                let now = TimeFormat::local(true).show(self.clock.now());
                let line = format!("{now} platter: {line}\n");
                let _ = (&mut &*file).write_all(line.as_bytes());
            }
        }
    }
}

/// Rate limit of errors, with those reported lately.
#[derive(Debug, Default)]
struct Limit {
    reported: VecDeque<String>,
    since: Duration,
    withheld: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Admitted {
    /// A line about the errors withheld so far, to be reported first.
    withheld: Option<String>,
    is_reported: bool,
}

impl Limit {
    fn admit(&mut self, now: Duration, error: &str) -> Admitted {
        let mut withheld = None;
        if now.saturating_sub(self.since) >= INTERVAL {
            withheld = self.end();
            self.reported.clear();
            self.since = now;
        }
        let is_new = !self.reported.iter().any(|reported| reported == error);
        let is_reported = is_new && self.reported.len() < LINES_MAX;
        if is_reported {
            self.reported.push_back(error.to_owned());
        } else if is_new {
            self.withheld += 1;
        }
        Admitted {
            withheld,
            is_reported,
        }
    }

    /// A line of the errors that were withheld.
    fn end(&mut self) -> Option<String> {
        let withheld = std::mem::take(&mut self.withheld);
        (withheld > 0).then(|| format!("{withheld} further errors are not shown"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_reported_once_each_and_rate_limited() {
        let mut limit = Limit::default();
        let at = Duration::from_secs;
        let mut admit = |now, error: &str| limit.admit(at(now), error);
        let yes = Admitted {
            withheld: None,
            is_reported: true,
        };
        let no = Admitted {
            withheld: None,
            is_reported: false,
        };
        assert_eq!(admit(0, "a"), yes);
        assert_eq!(admit(1, "a"), no);
        for number in 1..LINES_MAX {
            assert_eq!(admit(2, &number.to_string()), yes);
        }
        assert_eq!(admit(2, "x"), no);
        assert_eq!(admit(4, "y"), no);
        let next = admit(5, "a");
        assert!(next.is_reported);
        assert_eq!(
            next.withheld.as_deref(),
            Some("2 further errors are not shown")
        );
        assert_eq!(admit(11, "a"), yes);
    }
}
