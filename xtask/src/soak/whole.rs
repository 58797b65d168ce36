//! Tests that have more to do in a long run than in a test run.

use super::cells::Kind;

/// Tests that run in full here.
pub(super) struct Whole {
    pub(super) name: &'static str,
    /// What they do.
    pub(super) title: &'static str,
    pub(super) filesystem: Kind,
    pub(super) tests: Tests,
    /// The filter of the tests.
    pub(super) test: &'static str,
    /// The variable that makes them whole, and its value.
    pub(super) variable: [&'static str; 2],
}

/// Where tests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tests {
    /// With the oracles, in the testkit.
    Oracle,
    /// In the driver of btrfs.
    Btrfs,
}

impl Tests {
    /// The package, and what cargo builds of it.
    pub(super) const fn target(self) -> &'static [&'static str] {
        match self {
            Self::Oracle => &["testkit", "--test", "oracle"],
            Self::Btrfs => &["platter-btrfs", "--lib"],
        }
    }

    /// What the program is called that cargo builds.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::Oracle => "oracle",
            Self::Btrfs => "platter_btrfs",
        }
    }
}

impl Whole {
    /// Words that leave the tests of other filesystems out: a filter is any part of a name.
    pub(super) fn skip(&self) -> impl Iterator<Item = &'static str> {
        let others: &[_] = match self.filesystem {
            Kind::Ext => &["--skip", "btrfs::", "--skip", "xfs::"],
            Kind::Btrfs | Kind::Xfs => &[],
        };
        others.iter().copied()
    }
}

/// All of them.
pub(super) const WHOLE: [Whole; 16] = [
    Whole {
        name: "many",
        title: "200,000 files made into an image, compared and checked",
        filesystem: Kind::Ext,
        tests: Tests::Oracle,
        test: "trees::many_files_become_an_image",
        variable: ["PLATTER_TEST_MANY_FILES", "200000"],
    },
    Whole {
        name: "usr",
        title: "all of /usr made into an image, compared and checked",
        filesystem: Kind::Ext,
        tests: Tests::Oracle,
        test: "usr::",
        variable: ["PLATTER_TEST_WHOLE_USR", "1"],
    },
    Whole {
        name: "layouts",
        title: "every layout: mkfs, check, resize and mount, judged by e2fsprogs and the kernel",
        filesystem: Kind::Ext,
        tests: Tests::Oracle,
        test: "layouts::",
        variable: ["PLATTER_TEST_ALL_LAYOUTS", "1"],
    },
    Whole {
        name: "combinations",
        title: "features of btrfs, combined at random, compared with the kernel",
        filesystem: Kind::Btrfs,
        tests: Tests::Oracle,
        test: "btrfs::layouts::combinations",
        variable: ["PLATTER_BTRFS_LAYOUTS", "0..60"],
    },
    Whole {
        name: "verdicts",
        title: "corruptions of btrfs, compared with btrfs check",
        filesystem: Kind::Btrfs,
        tests: Tests::Oracle,
        test: "btrfs::check::verdicts",
        variable: ["PLATTER_BTRFS_VERDICTS", "0..1000"],
    },
    Whole {
        name: "logs",
        title: "log trees of btrfs, compared with the kernel's replay",
        filesystem: Kind::Btrfs,
        tests: Tests::Oracle,
        test: "btrfs::log_cuts",
        variable: ["PLATTER_TEST_LOGS", "200"],
    },
    Whole {
        name: "streams",
        title: "random trees sent and received, by platter and by btrfs-progs",
        filesystem: Kind::Btrfs,
        tests: Tests::Oracle,
        test: "random_trees_are_sent_and_received",
        variable: ["PLATTER_STREAM_TREES", "50"],
    },
    Whole {
        name: "refs",
        title: "1,000,000 random changes of references, in each index of delayed references",
        filesystem: Kind::Btrfs,
        tests: Tests::Btrfs,
        test: "indexes_agree_on_random_changes",
        variable: ["PLATTER_BTRFS_REFS", "1000000"],
    },
    Whole {
        name: "groups",
        title: "200 commits of random writes by the library, each judged by btrfs check",
        filesystem: Kind::Btrfs,
        tests: Tests::Btrfs,
        test: "unchanged_groups_are_skipped_under_random_writes",
        variable: ["PLATTER_BTRFS_COMMITS", "200"],
    },
    Whole {
        name: "groups-mounted",
        title: "200 commits of random writes through a mount, each judged by btrfs check",
        filesystem: Kind::Btrfs,
        tests: Tests::Oracle,
        test: "btrfs::groups::",
        variable: ["PLATTER_BTRFS_COMMITS", "200"],
    },
    Whole {
        name: "btrfs-usr",
        title: "all of /usr in btrfs, with each compression, compared with the kernel",
        filesystem: Kind::Btrfs,
        tests: Tests::Oracle,
        test: "btrfs::usr::",
        variable: ["PLATTER_TEST_WHOLE_USR", "1"],
    },
    Whole {
        name: "xfs-usr",
        title: "all of /usr in XFS, compared with the kernel",
        filesystem: Kind::Xfs,
        tests: Tests::Oracle,
        test: "xfs::usr::",
        variable: ["PLATTER_TEST_WHOLE_USR", "1"],
    },
    Whole {
        name: "xfs-shapes",
        title: "sizes of XFS, combined, compared with the kernel",
        filesystem: Kind::Xfs,
        tests: Tests::Oracle,
        test: "xfs::matrix::",
        variable: ["PLATTER_XFS_ALL_SHAPES", "1"],
    },
    Whole {
        name: "xfs-verdicts",
        title: "corruptions of XFS, compared with xfs_repair",
        filesystem: Kind::Xfs,
        tests: Tests::Oracle,
        test: "xfs::check::xfs_check_agrees",
        variable: ["PLATTER_XFS_VERDICTS", "70"],
    },
    Whole {
        name: "xfs-logs",
        title: "logs of XFS, compared with the kernel's recovery",
        filesystem: Kind::Xfs,
        tests: Tests::Oracle,
        test: "xfs_log::many::many_logs",
        variable: ["PLATTER_XFS_LOGS", "1000"],
    },
    Whole {
        name: "xfs-exchanges",
        title: "recoveries of exchanges of XFS, with a crash in each, and in the next one",
        filesystem: Kind::Xfs,
        tests: Tests::Oracle,
        test: "xfs_log::recut::",
        variable: ["PLATTER_XFS_EXCHANGES", "40"],
    },
];
