//! The processor of a lone caller, on which the threads of the device serve it.
//!
//! A caller waits for its answer, and the thread that gives it waits for the next request: they take turns. On one
//! processor a turn is a context switch; on two, it wakes one that is idle each time, which takes several times as
//! long. So while all requests come from one thread, they are served where it runs. Where several threads ask, or one
//! reads ahead, there is work for more processors, and the scheduler has its way.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Requests of one caller in a row before its processor is looked for, and between two looks.
const REQUESTS_BETWEEN_LOOKS: u32 = 64;
const FIRST_LOOK: u32 = 16;
/// Long reads in a row that are readahead.
const LONG_MIN: u32 = 2;
/// No processor.
const ANY: u32 = u32::MAX;
/// The field of `/proc/PID/stat` after the name of the program that says the processor (`proc_pid_stat(5)`).
const PROCESSOR_FIELD: usize = 36;

/// What the threads of the device know of their callers. It only costs speed where they see different states.
#[derive(Debug)]
pub(super) struct CallerCpu {
    /// The thread that sent the last request.
    caller: AtomicU32,
    /// Requests that it sent in a row.
    requests: AtomicU32,
    /// Long reads that it sent in a row.
    long: AtomicU32,
    /// Where it is to be served, or [`ANY`].
    cpu: AtomicU32,
    /// The processors of the process.
    given: CpuSet,
}

/// Where a thread of the device may run.
#[derive(Debug)]
pub(super) struct Placed<'c> {
    callers: &'c CallerCpu,
    cpu: u32,
}

impl CallerCpu {
    pub(super) fn new() -> Self {
        Self {
            caller: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            long: AtomicU32::new(0),
            cpu: AtomicU32::new(ANY),
            given: sched_getaffinity(None).unwrap_or_default(),
        }
    }

    /// Records a request of the thread `caller`; of none, those that no thread waits for.
    fn note(&self, caller: u32, is_long_read: bool) {
        if caller == 0 || self.given.count() < 2 {
            return;
        }
        let is_other = self.caller.swap(caller, Ordering::Relaxed) != caller;
        let long = if is_long_read {
            self.long.fetch_add(1, Ordering::Relaxed).saturating_add(1)
        } else {
            self.long.store(0, Ordering::Relaxed);
            0
        };
        if is_other || long >= LONG_MIN {
            self.requests.store(u32::from(is_other), Ordering::Relaxed);
            self.cpu.store(ANY, Ordering::Relaxed);
            return;
        }
        let requests = self.requests.fetch_add(1, Ordering::Relaxed);
        if requests % REQUESTS_BETWEEN_LOOKS == FIRST_LOOK {
            let found = cpu_of(caller).filter(|&cpu| self.is_given(cpu));
            self.cpu.store(found.unwrap_or(ANY), Ordering::Relaxed);
        }
    }

    fn is_given(&self, cpu: u32) -> bool {
        usize::try_from(cpu).is_ok_and(|cpu| cpu < CpuSet::MAX_CPU && self.given.is_set(cpu))
    }
}

impl<'c> Placed<'c> {
    pub(super) fn new(callers: &'c CallerCpu) -> Self {
        Self { callers, cpu: ANY }
    }

    /// Records a request of the thread `caller`, and moves this thread to where it is to be served: a long read anywhere,
    /// since several threads may decompress it.
    pub(super) fn note(&mut self, caller: u32, is_long_read: bool) {
        self.callers.note(caller, is_long_read);
        let cpu = self.callers.cpu.load(Ordering::Relaxed);
        self.move_to(if is_long_read { ANY } else { cpu });
    }

    /// Lets this thread, and those that it starts, run where the process may.
    pub(super) fn release(&mut self) {
        self.move_to(ANY);
    }

    fn move_to(&mut self, cpu: u32) {
        if cpu == self.cpu {
            return;
        }
        let mut alone = CpuSet::new();
        let processors = match usize::try_from(cpu) {
            Ok(number) if cpu != ANY => {
                alone.set(number);
                &alone
            }
            _ => &self.callers.given,
        };
        // A thread that cannot be moved only costs speed.
        let _ = sched_setaffinity(None, processors);
        self.cpu = cpu;
    }
}

/// Returns the processor on which a thread ran last; `None` of one that `/proc` does not show.
fn cpu_of(thread: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{thread}/stat")).ok()?;
    // The name of the program may contain anything.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    fields
        .split_ascii_whitespace()
        .nth(PROCESSOR_FIELD)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(callers: &CallerCpu) -> u32 {
        callers.cpu.load(Ordering::Relaxed)
    }

    /// A thread that waits, on a processor.
    fn waiting_on(cpu: usize, test: impl FnOnce(u32)) {
        let (said, says) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut alone = CpuSet::new();
                alone.set(cpu);
                sched_setaffinity(None, &alone).unwrap();
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                said.send(thread.cast_unsigned()).unwrap();
                let _ = ended.recv();
            });
            test(says.recv().unwrap());
            drop(end);
        });
    }

    #[test]
    fn lone_caller_is_served_where_it_runs() {
        let callers = CallerCpu::new();
        let given = callers.given;
        let last = (0..CpuSet::MAX_CPU)
            .rfind(|&cpu| given.is_set(cpu))
            .unwrap();
        let expected = match given.count() {
            0 | 1 => ANY,
            _ => u32::try_from(last).unwrap(),
        };
        waiting_on(last, |thread| {
            let mut placed = Placed::new(&callers);
            for _ in 0..FIRST_LOOK {
                placed.note(thread, false);
                assert_eq!(cpu(&callers), ANY, "too early");
            }
            placed.note(thread, false);
            assert_eq!(cpu(&callers), expected);
            let now = sched_getaffinity(None).unwrap();
            assert_eq!(now.count() == 1, expected != ANY || given.count() == 1);
            placed.note(0, true);
            assert_eq!(cpu(&callers), expected, "no thread waits for it");
            placed.note(thread, true);
            placed.note(thread, true);
            assert_eq!(cpu(&callers), ANY, "it reads ahead");
            assert_eq!(sched_getaffinity(None).unwrap(), given);
            for _ in 0..=FIRST_LOOK {
                placed.note(thread, false);
            }
            assert_eq!(cpu(&callers), expected, "it does not any more");
            placed.note(thread + 1, false);
            assert_eq!(cpu(&callers), ANY, "another one asks");
            assert_eq!(sched_getaffinity(None).unwrap(), given);
        });
    }

    #[test]
    fn released_thread_runs_anywhere() {
        let callers = CallerCpu::new();
        let mut placed = Placed::new(&callers);
        for _ in 0..=FIRST_LOOK {
            placed.note(std::process::id(), false);
        }
        placed.release();
        assert_eq!(sched_getaffinity(None).unwrap(), callers.given);
    }

    #[test]
    fn processor_of_a_thread_is_found_if_there_is_one() {
        assert!(cpu_of(std::process::id()).is_some());
        assert_eq!(cpu_of(u32::MAX), None);
    }
}
