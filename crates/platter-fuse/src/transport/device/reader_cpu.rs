//! The processor of a thread that looks out: that of its caller, which then has to be woken on no idle processor.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::readers::Readers;
use super::timer::Timer;

/// On the caller's processor, the caller runs until it has sent a request, so the second look finds it. More looks are
/// a sign of another one.
const NEAR_LOOKS: u32 = 2;
/// How many requests in a row have to be found late before the caller's processor is asked for.
const FAR_REQUESTS: u32 = 8;
/// How many have to be found early until the thread counts as well placed.
const NEAR_REQUESTS: u32 = 64;
/// Requests until a caller is followed again; twice as many each time, unless the thread was well placed since: the
/// scheduler may prefer to wake the caller elsewhere.
const PAUSE_MIN: u32 = 32;
const PAUSE_MAX: u32 = 4096;
/// The index of the processor in `/proc/TID/stat`, in what follows the name.
const PROCESSOR_FIELD: usize = 36;

/// Where a thread looks out.
#[derive(Debug)]
pub(super) struct ReaderCpu {
    /// The processor that it is bound to, and its affinity otherwise.
    bound: Option<(usize, CpuSet)>,
    /// Requests in a row that were found late, and early.
    far: u32,
    near: u32,
    pause: u32,
    next_pause: u32,
}

impl ReaderCpu {
    pub(super) fn new() -> Self {
        Self {
            bound: None,
            far: 0,
            near: 0,
            pause: 0,
            next_pause: PAUSE_MIN,
        }
    }

    /// Records that a request of `caller` was found by the look of this number, from 0 on, and binds the thread to the
    /// caller's processor where that seems to be another one.
    pub(super) fn found(&mut self, look: u32, caller: u32, readers: &Readers<Timer>) {
        self.pause = self.pause.saturating_sub(1);
        // One that was there at once came while the thread served another one.
        if look == 0 || caller == 0 {
            return;
        }
        if look <= NEAR_LOOKS {
            self.far = 0;
            self.near += 1;
            if self.near >= NEAR_REQUESTS {
                self.next_pause = PAUSE_MIN;
            }
            return;
        }
        self.near = 0;
        self.far += 1;
        if self.far < FAR_REQUESTS {
            return;
        }
        self.far = 0;
        self.release(readers);
        if self.pause == 0 {
            self.follow(caller, readers);
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(PAUSE_MAX);
        }
    }

    /// Binds the thread to the processor of `caller`, if it may run there and no other looking thread is bound to it.
    fn follow(&mut self, caller: u32, readers: &Readers<Timer>) {
        let Some(processor) = processor_of(caller).filter(|&now| now != sched_getcpu()) else {
            return;
        };
        let given = sched_getaffinity(None).unwrap_or_default();
        if !given.is_set(processor) || !readers.bind(processor) {
            return;
        }
        let mut one = CpuSet::new();
        one.set(processor);
        if sched_setaffinity(None, &one).is_err() {
            readers.unbind(processor);
            return;
        }
        readers.alarm().place(&one);
        self.bound = Some((processor, given));
    }

    /// Releases the thread from the processor it is bound to.
    pub(super) fn release(&mut self, readers: &Readers<Timer>) {
        let Some((processor, given)) = self.bound.take() else {
            return;
        };
        readers.unbind(processor);
        let now = sched_getaffinity(None).unwrap_or_default();
        // Otherwise another process gave it an affinity.
        if now.count() == 1 && now.is_set(processor) {
            readers.alarm().place(&given);
            // The thread may serve from one processor as well.
            let _ = sched_setaffinity(None, &given);
        }
    }
}

/// Returns the processor that a thread runs on, or ran on last.
fn processor_of(thread: u32) -> Option<usize> {
    let thread = Pid::from_raw(i32::try_from(thread).ok()?)?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", thread.as_raw_nonzero())).ok()?;
    processor_in(&stat)
}

fn processor_in(stat: &str) -> Option<usize> {
    // The name may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(PROCESSOR_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rustix::thread::gettid;

    use super::*;

    #[test]
    fn processor_is_read_after_any_name() {
        let fields = (3..=52).map(|field| field.to_string());
        let fields = fields.collect::<Vec<_>>().join(" ");
        assert_eq!(
            processor_in(&format!("12 (a) R 4 (b) {fields}\n")),
            Some(39)
        );
        assert_eq!(processor_in("12 (cut) R 1"), None);
        let own = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
        assert!(processor_of(own).is_some());
        assert_eq!(processor_of(0), None);
    }

    #[test]
    fn thread_follows_a_caller_and_is_released_again() {
        let given = sched_getaffinity(None).unwrap();
        let processors: Vec<_> = (0..CpuSet::MAX_CPU)
            .filter(|&at| given.is_set(at))
            .collect();
        let [one, other, ..] = processors[..] else {
            return;
        };
        let only = |processor| {
            let mut only = CpuSet::new();
            only.set(processor);
            only
        };
        let readers = Readers::new(Timer::new().unwrap(), 2);
        let (sender, caller) = std::sync::mpsc::channel();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sched_setaffinity(None, &only(other)).unwrap();
                let thread = gettid().as_raw_nonzero().get();
                sender.send(u32::try_from(thread).unwrap()).unwrap();
                let _ = is_done.recv();
            });
            let caller = caller.recv().unwrap();
            let mut cpu = ReaderCpu::new();
            let find = |cpu: &mut ReaderCpu, look| {
                sched_setaffinity(None, &only(one)).unwrap();
                sched_setaffinity(None, &given).unwrap();
                for _ in 0..FAR_REQUESTS {
                    cpu.found(look, caller, &readers);
                }
            };
            find(&mut cpu, 0);
            find(&mut cpu, NEAR_LOOKS);
            assert!(cpu.bound.is_none());
            assert_eq!(sched_getaffinity(None).unwrap(), given);
            // The scheduler may move the thread to its caller meanwhile.
            let follows = (0..100).any(|_| {
                cpu.pause = 0;
                find(&mut cpu, NEAR_LOOKS + 1);
                cpu.bound.is_some()
            });
            assert!(follows);
            assert_eq!(sched_getaffinity(None).unwrap(), only(other));
            assert!(!readers.bind(other), "it is for one thread");
            cpu.release(&readers);
            assert_eq!(sched_getaffinity(None).unwrap(), given);
            assert!(readers.bind(other));
            drop(done);
        });
    }
}
