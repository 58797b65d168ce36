//! How serving threads wait for requests: idle ones cost nothing, busy ones are not woken for each request, and those
//! that block keep no others waiting.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use platter_fuse::{MountOptions, Operation};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{Clock, Filesystem, SystemClock};
use rustix::fs::{XattrFlags, setxattr};

use crate::lifecycle::Served;
use crate::mounted::{Mounted, OVER_RINGS, plant, soon};

fn set_xattr(path: &Path) -> rustix::io::Result<()> {
    setxattr(
        path,
        OsStr::from_bytes(b"user.a"),
        b"value",
        XattrFlags::empty(),
    )
}

/// A line of `/proc/TID/status`.
fn field<'s>(status: &'s str, name: &str) -> &'s str {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.strip_prefix(':')).unwrap().trim()
}

/// How often threads of a server have slept, except the one that waits for the end of the mount.
fn sleeps(served: &Served) -> u64 {
    let statuses = served.of_threads("status");
    let serving = statuses
        .iter()
        .filter(|status| field(status, "Pid") != field(status, "Tgid"));
    serving
        .map(|status| {
            field(status, "voluntary_ctxt_switches")
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}

#[test]
fn threads_of_an_idle_mount_are_not_woken() {
    let served = Served::started_by(&["env"]);
    fs::write(served.path("f"), b"contents").unwrap();
    for _ in 0..100 {
        set_xattr(&served.path("f")).unwrap();
    }
    thread::sleep(Duration::from_millis(500));
    let before = sleeps(&served);
    thread::sleep(Duration::from_secs(2));
    assert_eq!(sleeps(&served), before);
}

#[test]
fn series_of_requests_wakes_hardly_any_thread() {
    const REQUESTS: u64 = 500;
    let served = Served::started_by(&["env"]);
    fs::write(served.path("f"), b"contents").unwrap();
    let mut counted = Vec::new();
    // Where other programs want the processors, threads do not look out.
    let is_seldom = soon(|| {
        let before = sleeps(&served);
        for _ in 0..REQUESTS {
            set_xattr(&served.path("f")).unwrap();
        }
        let count = sleeps(&served) - before;
        counted.push(count);
        count < REQUESTS / 4
    });
    assert!(is_seldom, "{counted:?} for {REQUESTS} requests");
}

#[test]
fn idle_threads_are_bound_to_no_processor() {
    if std::env::var_os(OVER_RINGS).is_some() {
        return;
    }
    let served = Served::started_by(&["env"]);
    fs::write(served.path("f"), b"contents").unwrap();
    for _ in 0..2000 {
        set_xattr(&served.path("f")).unwrap();
    }
    let processors = || -> Vec<String> {
        let statuses = served.of_threads("status");
        let lists = statuses
            .iter()
            .map(|status| field(status, "Cpus_allowed_list"));
        lists.map(str::to_owned).collect()
    };
    let are_equal = |lists: &[String]| lists.iter().all(|list| *list == lists[0]);
    assert!(soon(|| are_equal(&processors())), "{:?}", processors());
}

#[test]
fn requests_that_block_keep_no_others_waiting() {
    // Over rings, the threads are those of a processor.
    if std::env::var_os(OVER_RINGS).is_some() {
        return;
    }
    for blocked in [1, 2, 64] {
        let fs = Arc::new(MemFs::new(
            Arc::new(SystemClock::new()),
            MemFsLimits::default(),
        ));
        for number in 0..blocked {
            plant(&fs, &format!("f{number}"), b"");
        }
        let options = MountOptions {
            threads: Some(blocked + 1),
            io_uring: false,
            ..MountOptions::default()
        };
        let mounted = Mounted::serving(Arc::clone(&fs) as _, Arc::clone(&fs), options);
        fs.freeze().unwrap();
        let elapsed = thread::scope(|scope| {
            let setting: Vec<_> = (0..blocked)
                .map(|number| {
                    let path = mounted.path(&format!("f{number}"));
                    scope.spawn(move || set_xattr(&path))
                })
                .collect();
            let expected = u64::try_from(blocked).unwrap();
            let all_blocked = soon(|| {
                let requests = mounted.session().statistics();
                requests.count(Operation::SetXattr) == expected
            });
            let clock = SystemClock::new();
            let begin = clock.monotonic();
            for number in 0..100 {
                assert!(fs::metadata(mounted.path(&format!("none{number}"))).is_err());
            }
            let elapsed = clock.monotonic() - begin;
            let are_waiting = setting.iter().all(|thread| !thread.is_finished());
            fs.thaw().unwrap();
            assert!(all_blocked && are_waiting, "{blocked}");
            for thread in setting {
                thread.join().unwrap().unwrap();
            }
            elapsed
        });
        assert!(elapsed < Duration::from_secs(5), "{blocked}: {elapsed:?}");
        mounted.unmount();
    }
}
