//! The alarm of the readers: a timer that costs nothing while it is not set, and one system call to set. A thread with
//! a timed wait would have to be woken for that.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::readers::{Alarm, Readers};

const INTERVAL: Duration = Duration::from_millis(1);
const INTERVAL_NANOSECONDS: i64 = 1_000_000;

/// A periodic timer, and the thread that waits for it.
#[derive(Debug)]
pub(crate) struct Timer {
    timer: OwnedFd,
    thread: OnceLock<Pid>,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self {
            timer,
            thread: OnceLock::new(),
        })
    }

    /// Sets the processors of the thread. It is best on that of a looking thread: on another, idle one it would make
    /// the scheduler take that for one to wake callers on.
    pub(super) fn place(&self, processors: &CpuSet) {
        if let Some(&thread) = self.thread.get() {
            // The thread may watch from any processor as well.
            let _ = sched_setaffinity(Some(thread), processors);
        }
    }

    fn arm(&self, first: i64, interval: i64) {
        let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times = Itimerspec {
            it_interval: time(interval),
            it_value: time(first),
        };
        // It fails for invalid times only.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times);
    }

    fn wait(&self) {
        let mut count = [0; 8];
        if rustix::io::retry_on_intr(|| rustix::io::read(&self.timer, &mut count)).is_err() {
            std::thread::sleep(INTERVAL);
        }
    }
}

impl Alarm for Timer {
    fn set(&self) {
        self.arm(INTERVAL_NANOSECONDS, INTERVAL_NANOSECONDS);
    }

    fn clear(&self) {
        self.arm(0, 0);
    }

    fn end(&self) {
        self.arm(1, 0);
    }
}

/// Watches readers until they end.
pub(crate) fn watch(readers: &Readers<Timer>) {
    let timer = readers.alarm();
    let _ = timer.thread.set(gettid());
    loop {
        timer.wait();
        if !readers.watch() {
            return;
        }
    }
}
