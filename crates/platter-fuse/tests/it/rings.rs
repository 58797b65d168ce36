//! Requests over `io_uring(7)`: everything holds there that holds over the device.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;

use rustix::fs::{IFlags, SeekFrom, ioctl_setflags, seek};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::lifecycle::Served;
use crate::mounted::{Mounted, OVER_RINGS, RingsOffered};

#[test]
fn all_other_tests_pass_over_rings() {
    let program = std::env::current_exe().unwrap();
    let mut again = Command::new(program);
    again.env(OVER_RINGS, "1").args(["--skip", "rings::"]);
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

#[test]
fn rings_are_left_alone_where_that_is_asked_for() {
    let rings = RingsOffered::new();
    let mounted = Mounted::with("io_uring=off", |_| {});
    drop(rings);
    assert!(!mounted.session().uses_io_uring());
    mounted.unmount();
}

#[test]
fn the_device_serves_where_writes_are_gathered() {
    let rings = RingsOffered::new();
    let mounted = Mounted::with("writeback=on", |_| {});
    drop(rings);
    assert!(!mounted.session().uses_io_uring());
    mounted.unmount();
}

#[test]
fn requests_that_wait_for_the_kernel_do_not_stand_in_its_way() {
    const SEEKERS: u64 = 24;
    let rings = RingsOffered::new();
    let mounted = Mounted::new();
    assert_eq!(mounted.session().uses_io_uring(), rings.is_possible());
    drop(rings);
    thread::scope(|scope| {
        for seeker in 0..SEEKERS {
            let path = mounted.path(&format!("f{seeker}"));
            scope.spawn(move || {
                let file = File::create(path).unwrap();
                file.set_len(1 << 20).unwrap();
                for round in 1..20 {
                    let place = (1 << 20) - round * 4096;
                    file.write_all_at(b"x", place).unwrap();
                    // The kernel may have to write before this can be answered. Where too many ask
                    // at once, everything counts as data.
                    let data = seek(&file, SeekFrom::Data(0)).unwrap();
                    assert!(data == place || data == 0, "{data} of {place}");
                    let hole = seek(&file, SeekFrom::Hole(place)).unwrap();
                    assert!(hole == place + 4096 || hole == 1 << 20, "{hole} of {place}");
                }
            });
        }
    });
    // A change of flags is not refused because others wait.
    thread::scope(|scope| {
        for seeker in 0..SEEKERS {
            let path = mounted.path(&format!("f{seeker}"));
            scope.spawn(move || {
                let file = File::open(path).unwrap();
                for flags in [IFlags::NODUMP, IFlags::empty()] {
                    ioctl_setflags(&file, flags).unwrap();
                }
            });
        }
    });
    let file = File::open(mounted.path("f0")).unwrap();
    assert_eq!(
        seek(&file, SeekFrom::Data(0)),
        Ok((1 << 20) - 19 * 4096),
        "and alone the answer is exact"
    );
    drop(file);
    mounted.unmount();
}

#[test]
fn a_server_stays_on_the_processors_it_was_given() {
    let given = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&processor| given.is_set(processor));
    let first = first.unwrap().to_string();
    let rings = RingsOffered::new();
    let served = Served::started_by(&["taskset", "--cpu-list", &first]);
    let is_possible = rings.is_possible();
    drop(rings);
    fs::write(served.path("f"), b"contents").unwrap();
    assert_eq!(fs::read(served.path("f")).unwrap(), b"contents");
    let statuses = served.of_threads("status");
    let has_ring = statuses
        .iter()
        .any(|status| status.starts_with("Name:\tplatter-ring-"));
    assert_eq!(has_ring, is_possible);
    for status in statuses {
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(allowed.map(str::trim), Some(&*first), "{status}");
    }
}
