//! The CPU affinity of a queue's thread.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On the processor of its queue, with its caller, which waits.
    QueueCpu,
    /// On another one: its caller continues meanwhile.
    OtherCpus,
}

/// The affinity of the current thread, within the processors of the process.
#[derive(Debug)]
pub(super) struct CpuAffinity {
    queue_cpu: CpuSet,
    other_cpus: CpuSet,
    /// `None` if the thread cannot be moved.
    place: Option<Place>,
    /// The last request was long.
    was_long: bool,
}

impl CpuAffinity {
    /// Binds this thread to the processor of a queue, if permitted.
    pub(super) fn take(queue: u16) -> Self {
        let queue = usize::from(queue);
        let given = sched_getaffinity(None).unwrap_or_default();
        let mut affinity = Self {
            queue_cpu: CpuSet::new(),
            other_cpus: given,
            place: None,
            was_long: false,
        };
        affinity.other_cpus.unset(queue);
        if given.is_set(queue) {
            affinity.queue_cpu.set(queue);
            let is_bound = sched_setaffinity(None, &affinity.queue_cpu).is_ok();
            affinity.place =
                (is_bound && affinity.other_cpus.count() > 0).then_some(Place::QueueCpu);
        }
        affinity
    }

    /// Moves the thread to the best processor for the next request. Only the second of two long
    /// requests is worth moving.
    pub(super) fn finish(&mut self, is_long: bool) {
        let was_long = std::mem::replace(&mut self.was_long, is_long);
        let place = if is_long && was_long {
            Place::OtherCpus
        } else {
            Place::QueueCpu
        };
        if self.place.is_none_or(|now| now == place) {
            return;
        }
        let processors = match place {
            Place::QueueCpu => &self.queue_cpu,
            Place::OtherCpus => &self.other_cpus,
        };
        if sched_setaffinity(None, processors).is_ok() {
            self.place = Some(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_moves_for_consecutive_long_requests() {
        let given = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&number| given.is_set(number));
        let queue = u16::try_from(first.unwrap()).unwrap();
        let now = || sched_getaffinity(None).unwrap();
        let (mut queue_cpu, mut other_cpus) = (CpuSet::new(), given);
        queue_cpu.set(usize::from(queue));
        other_cpus.unset(usize::from(queue));
        let mut affinity = CpuAffinity::take(queue);
        assert_eq!(now(), queue_cpu);
        affinity.finish(true);
        assert_eq!(now(), queue_cpu, "the caller does not continue meanwhile");
        affinity.finish(true);
        assert_eq!(
            now(),
            if other_cpus.count() > 0 {
                other_cpus
            } else {
                queue_cpu
            }
        );
        affinity.finish(false);
        assert_eq!(now(), queue_cpu);
        let mut elsewhere = CpuAffinity::take(u16::try_from(CpuSet::MAX_CPU - 1).unwrap());
        elsewhere.finish(true);
        elsewhere.finish(true);
        assert_eq!(
            now(),
            queue_cpu,
            "a processor that is not there is left alone"
        );
    }
}
