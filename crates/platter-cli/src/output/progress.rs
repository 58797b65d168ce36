//! Progress of long work: on a terminal only, and only once it has taken a second.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use platter::vfs::clock::{Clock, SystemClock};

use crate::console::is_json;

/// Work that is done sooner shows nothing.
const QUIET: Duration = Duration::from_secs(1);

/// A line at the bottom of the terminal.
pub(crate) struct Progress {
    clock: SystemClock,
    started: Duration,
    state: State,
}

enum State {
    /// It would not be seen.
    Off,
    Quiet,
    Shown(ProgressBar),
}

impl Progress {
    /// Starts counting. `wanted` is false where the work itself writes to the terminal.
    pub(crate) fn new(wanted: bool) -> Self {
        let clock = SystemClock::new();
        Self {
            started: clock.monotonic(),
            clock,
            state: if wanted && !is_json() && stderr().is_terminal() {
                State::Quiet
            } else {
                State::Off
            },
        }
    }

    /// Shows `done` of `total` units, or just `done` where the total is not known, and `message`.
    pub(crate) fn update(&mut self, done: u64, total: Option<u64>, message: &str) {
        if let State::Quiet = self.state
            && self.clock.monotonic().saturating_sub(self.started) >= QUIET
        {
            self.state = State::Shown(bar());
        }
        if let State::Shown(bar) = &self.state {
            match total {
                Some(total) => bar.set_length(total.max(done)),
                None => bar.unset_length(),
            }
            bar.set_message(message.to_owned());
            bar.set_position(done);
        }
    }

    /// Clears the line while `write` writes to the terminal.
    pub(crate) fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.state {
            State::Shown(bar) => bar.suspend(write),
            State::Off | State::Quiet => write(),
        }
    }

    /// Clears the line for good.
    pub(crate) fn finish(self) {
        if let State::Shown(bar) = self.state {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{elapsed} {wide_bar} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
