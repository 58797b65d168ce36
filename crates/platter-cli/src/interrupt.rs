//! Signals that end a command which has begun what must not be left over: its work is cancelled, which removes that,
//! and the signal ends the process afterwards, as if nothing had caught it.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::Context;
use platter::Progress;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;

static CAUGHT: LazyLock<Caught> = LazyLock::new(Caught::default);

/// What the handlers set.
#[derive(Default)]
struct Caught {
    has_handlers: AtomicBool,
    is_pending: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
    /// An interrupt came, and the next one ends the process at once. Other signals do not: shells send SIGHUP
    /// twice, and timeout(1) SIGTERM.
    is_interrupted: Arc<AtomicBool>,
}

/// Catches the signals from now on, unless the process was started with them ignored, as by nohup(1).
///
/// # Errors
/// Those of the system, which has had handlers of them so far.
pub(crate) fn catch() -> anyhow::Result<()> {
    register().context("catching signals")
}

fn register() -> io::Result<()> {
    let caught = &*CAUGHT;
    if caught.has_handlers.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_signals(&status);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored & bit_of(signal) != 0 {
            continue;
        }
        if signal == SIGINT {
            let is_second = &caught.is_interrupted;
            flag::register_conditional_default(signal, Arc::clone(is_second))?;
            flag::register(signal, Arc::clone(is_second))?;
        }
        let number = usize::try_from(signal).unwrap_or_default();
        flag::register_usize(signal, Arc::clone(&caught.signal), number)?;
        flag::register(signal, Arc::clone(&caught.is_pending))?;
    }
    Ok(())
}

/// A progress that is cancelled by a signal, once they are [caught](catch).
pub(crate) fn progress() -> Progress {
    Progress::new().cancelled_by(Arc::clone(&CAUGHT.is_pending))
}

/// Whether a signal was caught.
pub(crate) fn is_pending() -> bool {
    CAUGHT.is_pending.load(Ordering::SeqCst)
}

/// Ends the process by the signal that was caught, if any was.
pub(crate) fn end_if_pending() {
    let signal = CAUGHT.signal.load(Ordering::SeqCst);
    if let (true, Ok(signal)) = (signal != 0, i32::try_from(signal)) {
        // It does not return but for signals that end no process.
        let _ = emulate_default_handler(signal);
    }
}

const fn bit_of(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// A bit for each signal, that of SIGHUP first, by `/proc/self/status`. All of them but SIGTERM where it is not known:
/// what nohup(1) or a shell started without its terminal goes on.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.map(|mask| u64::from_str_radix(mask.trim(), 16));
    mask.and_then(Result::ok).unwrap_or(!bit_of(SIGTERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_signals_but_sigterm_count_as_ignored() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_signals(status), 0x1001);
        for status in ["", "SigIgn:\t\n", "SigIgn:\t?\n"] {
            assert_eq!(!ignored_signals(status), bit_of(SIGTERM), "{status:?}");
        }
    }
}
