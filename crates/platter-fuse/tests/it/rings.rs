//! Requests over `io_uring(7)`: everything holds there that holds over the device.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;

use rustix::fs::{IFlags, SeekFrom, ioctl_setflags, seek};

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
