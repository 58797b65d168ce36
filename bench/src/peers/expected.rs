//! What must hold on any machine, however busy: requests that an operation takes at most. Each one
//! that remains is there for the reason given.

use anyhow::{Result, ensure};

use super::{Part, Sample};
use crate::measure::float;
use crate::side::Side;

/// The most requests of a kind for each operation of a phase.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) workload: &'static str,
    pub(crate) phase: &'static str,
    /// Kernel to server, for each operation.
    pub(crate) requests: f64,
    pub(crate) why: &'static str,
}

/// Requests that come once for a directory or a run, not for each operation.
const ONCE: f64 = 24.0;

pub(crate) const BOUNDS: &[Bound] = &[
    bound(
        "files",
        "create",
        3.0,
        "LOOKUP that finds no such name, MKNOD, and GETATTR of the directory, whose permissions \
         are checked anew once it has changed",
    ),
    bound(
        "files",
        "stat",
        0.0,
        "the reply to creating the file stays valid",
    ),
    bound(
        "files",
        "cold stat",
        1.0,
        "LOOKUP, which returns the attributes too",
    ),
    bound(
        "files",
        "unlink",
        2.0,
        "UNLINK, and GETATTR of the directory",
    ),
    bound(
        "small",
        "create, write, close",
        5.0,
        "as for an empty file; GETXATTR for what a write would remove, and WRITE",
    ),
    bound(
        "small",
        "open, read, close",
        1.0,
        "GETATTR, once after a file was written, when it is read to its end",
    ),
    bound(
        "small",
        "cold open, read, close",
        2.0,
        "LOOKUP and READ: neither OPEN, FLUSH nor RELEASE is needed",
    ),
    bound("small", "unlink", 2.0, "as for an empty file"),
    bound(
        "fsync",
        "create, write, fsync",
        6.0,
        "as for a small file, and FSYNC",
    ),
    bound(
        "xattr",
        "setxattr",
        1.2,
        "SETXATTR, and GETATTR once for each file, whose st_blocks its first attribute changes",
    ),
    bound("sequential", "write", 1.0, "WRITE, for each MiB"),
    bound(
        "sequential",
        "read again",
        0.0,
        "pages stay with the kernel",
    ),
    bound("sequential", "cold read", 1.0, "READ, for each MiB"),
    bound("random", "write", 1.0, "WRITE"),
    bound("random", "direct write", 1.0, "WRITE"),
    bound("random", "read again", 0.0, "pages stay with the kernel"),
    bound(
        "tree",
        "cold find",
        0.1,
        "READDIRPLUS, of many names at once",
    ),
    bound(
        "tree",
        "cold ls -lR",
        0.1,
        "READDIRPLUS, which returns the attributes too",
    ),
    bound("tree", "cold tar", 1.1, "as well, and READ"),
];

const fn bound(
    workload: &'static str,
    phase: &'static str,
    requests: f64,
    why: &'static str,
) -> Bound {
    Bound {
        workload,
        phase,
        requests,
        why,
    }
}

/// Fails where a side of ours takes more than it may.
pub(super) fn check(sample: &Sample) -> Result<()> {
    if !matches!(sample.side, Side::Fuse | Side::Device) {
        return Ok(());
    }
    for part in &sample.phases {
        let bound = BOUNDS
            .iter()
            .find(|bound| (bound.workload, bound.phase) == (&*sample.workload, &*part.name));
        let Some(bound) = bound else {
            continue;
        };
        let requests = part.per(part.asked.requests());
        let once = part.per(1) * ONCE;
        ensure!(
            requests <= bound.requests + once,
            "{}, {}: {requests:.2} requests, and at most {} are needed: {}\n{:?}",
            sample.workload,
            part.name,
            bound.requests,
            bound.why,
            part.asked.fuse
        );
    }
    Ok(())
}

impl Part {
    /// A count for each of what the phase did; bytes count by the MiB.
    pub(crate) fn per(&self, count: u64) -> f64 {
        float(count) / self.units()
    }

    /// How much was done: operations, or MiB.
    pub(crate) fn units(&self) -> f64 {
        let amount = float(self.amount.max(1));
        if self.unit == "byte" {
            amount / f64::from(1 << 20)
        } else {
            amount
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work;

    #[test]
    fn every_bound_is_of_a_phase_there_is() {
        for bound in BOUNDS {
            let is_there = work::ALL.iter().any(|workload| {
                let phases = &mut workload.phases.iter();
                workload.name == bound.workload && phases.any(|phase| phase.name == bound.phase)
            });
            assert!(is_there, "{} {}", bound.workload, bound.phase);
        }
    }
}
