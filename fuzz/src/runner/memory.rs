//! How much memory this process holds, and the most it held since it was last asked.

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Resident memory now and at its peak, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resident {
    pub(super) now: u64,
    pub(super) peak: u64,
}

impl Resident {
    /// Asks the kernel.
    pub(super) fn read() -> Result<Self> {
        Ok(Self {
            now: field("VmRSS:")?,
            peak: field("VmHWM:")?,
        })
    }

    /// Lets the peak begin anew from what is held now.
    pub(super) fn reset_peak() -> Result<()> {
        std::fs::write("/proc/self/clear_refs", "5").context("/proc/self/clear_refs")
    }
}

/// A field of the process's status, in bytes.
fn field(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.with_context(|| name.to_owned())?.parse::<u64>()? * 1024)
}

/// Refuses this process more memory than `bytes` above what it has now, which are the seeds, so that a
/// mutant takes down itself and not the machine.
pub(super) fn limit(bytes: u64) -> Result<()> {
    let maximum = getrlimit(Resource::Data).maximum;
    let limit = Rlimit {
        current: Some(field("VmData:")? + bytes),
        maximum,
    };
    setrlimit(Resource::Data, limit).context("a limit of memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory is the process's, which other tests share: a try that one of them disturbed is
    /// made again.
    #[test]
    fn peak_shows_memory_that_was_given_back() {
        const LARGE: usize = 96 << 20;
        let shows = || {
            Resident::reset_peak().unwrap();
            let before = Resident::read().unwrap();
            drop(std::hint::black_box(vec![1_u8; LARGE]));
            let after = Resident::read().unwrap();
            Resident::reset_peak().unwrap();
            let grown = after.peak.saturating_sub(before.now);
            grown > (LARGE as u64) / 10 * 9 && Resident::read().unwrap().peak < after.peak
        };
        assert!((0..20).any(|_| shows()));
    }
}
