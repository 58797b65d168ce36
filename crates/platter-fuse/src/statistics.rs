//! How many requests of each kind the kernel sent: exact, and cheap enough to be always on.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use platter_vfs::stripes::stripe_of_thread;

macro_rules! operations {
    ($($name:ident => $text:literal,)*) => {
        /// A kind of request. The names are those of the FUSE protocol; `FORGET` counts the inodes
        /// forgotten, be it one by one or many in one request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the protocol's own names say it")]
        pub enum Operation {
            $($name,)*
        }

        impl Operation {
            /// Every kind, in the order of the protocol.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in the protocol.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

operations! {
    Lookup => "LOOKUP",
    Forget => "FORGET",
    GetAttr => "GETATTR",
    SetAttr => "SETATTR",
    ReadLink => "READLINK",
    Symlink => "SYMLINK",
    MkNod => "MKNOD",
    MkDir => "MKDIR",
    Unlink => "UNLINK",
    RmDir => "RMDIR",
    Rename => "RENAME",
    Link => "LINK",
    Open => "OPEN",
    Create => "CREATE",
    Read => "READ",
    Write => "WRITE",
    Flush => "FLUSH",
    Release => "RELEASE",
    Fsync => "FSYNC",
    OpenDir => "OPENDIR",
    ReadDir => "READDIR",
    ReadDirPlus => "READDIRPLUS",
    ReleaseDir => "RELEASEDIR",
    FsyncDir => "FSYNCDIR",
    StatFs => "STATFS",
    SetXattr => "SETXATTR",
    GetXattr => "GETXATTR",
    ListXattr => "LISTXATTR",
    RemoveXattr => "REMOVEXATTR",
    Access => "ACCESS",
    Ioctl => "IOCTL",
    Fallocate => "FALLOCATE",
    Lseek => "LSEEK",
    CopyFileRange => "COPY_FILE_RANGE",
    TmpFile => "TMPFILE",
    Statx => "STATX",
}

const OPERATIONS: usize = Operation::ALL.len();

/// Threads that count apart from each other. More than these share.
const LANES: usize = 16;

/// The counters of a running session, one set for each thread, so that counting shares no cache
/// line between threads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    lanes: [CachePadded<Lane>; LANES],
}

#[derive(Debug)]
struct Lane([AtomicU64; OPERATIONS]);

impl Default for Lane {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    pub(crate) fn count(&self, operation: Operation) {
        let counter = &self.lanes[stripe_of_thread() % LANES].0[operation as usize];
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Statistics {
        let sum = |operation: usize| {
            let counters = self.lanes.iter().map(|lane| &lane.0[operation]);
            counters
                .map(|counter| counter.load(Ordering::Relaxed))
                .sum()
        };
        Statistics {
            requests: std::array::from_fn(sum),
        }
    }
}

/// How many requests of each kind came since the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics {
    requests: [u64; OPERATIONS],
}

impl Statistics {
    /// The requests of one kind.
    #[must_use]
    pub fn count(&self, operation: Operation) -> u64 {
        self.requests[operation as usize]
    }

    /// All requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.requests.iter().sum()
    }

    /// What came after `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = |operation| self.requests[operation] - earlier.requests[operation];
        Self {
            requests: std::array::from_fn(counts),
        }
    }

    /// The kinds that came at all, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Operation, u64)> + '_ {
        let counts = Operation::ALL
            .iter()
            .map(|&operation| (operation, self.count(operation)));
        counts.filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_threads_are_counted() {
        let counters = Counters::default();
        let before = counters.snapshot();
        std::thread::scope(|scope| {
            for _ in 0..LANES + 4 {
                scope.spawn(|| (0..1000).for_each(|_| counters.count(Operation::Lookup)));
            }
        });
        counters.count(Operation::CopyFileRange);
        let counted = counters.snapshot().since(&before);
        assert_eq!(counted.count(Operation::Lookup), 20_000);
        assert_eq!(counted.total(), 20_001);
        let kinds: Vec<_> = counted
            .iter()
            .map(|(operation, _)| operation.name())
            .collect();
        assert_eq!(kinds, ["LOOKUP", "COPY_FILE_RANGE"]);
    }
}
