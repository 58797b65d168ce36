//! Which processor a thread runs on.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread on one processor: threads of different numbers on different ones, as far as there
/// are any. Programs that it starts stay there, too.
pub(crate) fn stay_on_processor(number: usize) -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut all = (0..CpuSet::MAX_CPU)
        .filter(|&processor| allowed.is_set(processor))
        .cycle();
    let mut place = CpuSet::new();
    place.set(all.nth(number).context("no processor")?);
    Ok(sched_setaffinity(None, &place)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_on_one_processor_whatever_its_number() {
        for number in [0, 1, 63] {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    stay_on_processor(number).unwrap();
                    assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
                });
            });
        }
    }
}
