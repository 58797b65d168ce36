//! How mounts begin and end, in order and otherwise.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use platter_fuse::{Ended, MountOptions, mount};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::Filesystem;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::mounted::{Mounted, force_detach, plant, run, soon};

/// A server in a process of its own.
pub(crate) struct Served {
    child: Child,
    dir: TempDir,
}

impl Served {
    fn new() -> Self {
        Self::started_by(&["env"])
    }

    /// Started by a program that takes it as its last operands.
    pub(crate) fn started_by(program: &[&str]) -> Self {
        let dir = TempDir::with_prefix("platter-fuse-").unwrap();
        fs::create_dir(dir.path().join("mount")).unwrap();
        let mut child = Command::new(program[0])
            .args(&program[1..])
            .arg(example("memory_mount"))
            .arg(dir.path().join("mount"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, dir }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("mount").join(path)
    }

    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// What `/proc` has in the file `name` of each of its threads.
    pub(crate) fn of_threads(&self, name: &str) -> Vec<String> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let files = threads.map(|thread| thread.unwrap().path().join(name));
        files
            .map(|file| fs::read_to_string(file).unwrap())
            .collect()
    }

    /// Whether all its threads have stopped.
    fn is_stopped(&self) -> bool {
        self.of_threads("stat").iter().all(|stat| {
            stat.rsplit(") ")
                .next()
                .is_some_and(|state| state.starts_with('T'))
        })
    }

    /// How it ends, which has to be soon.
    fn ends(&mut self) -> ExitStatus {
        for _ in 0..1000 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the server goes on");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        force_detach(&self.path(""));
    }
}

/// A program of this package, which `cargo test` builds together with the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join(name);
    assert!(
        path.exists(),
        "{} is missing: build the examples",
        path.display()
    );
    path
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(&format!(" {} ", path.display()))
}

#[test]
fn idle_mount_wakes_no_thread() {
    let served = Served::new();
    fs::write(served.path("f"), b"contents").unwrap();
    assert_eq!(fs::read(served.path("f")).unwrap(), b"contents");
    // How often threads slept, or were taken off their processors.
    let switches = || {
        let count = |status: &String| {
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            let counts = lines.filter_map(|line| line.split_whitespace().last());
            counts.map(|it| it.parse::<u64>().unwrap()).sum::<u64>()
        };
        served.of_threads("status").iter().map(count).sum::<u64>()
    };
    assert!(switches() > 0);
    // The last request may take a while to be forgotten.
    let is_idle = soon(|| {
        let before = switches();
        thread::sleep(Duration::from_millis(300));
        switches() == before
    });
    assert!(is_idle);
}

#[test]
fn the_mount_shows_its_type_source_and_options() {
    let mounted = Mounted::with("ro,fsname=disk.img,noexec", |_| {});
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let root = mounted.root();
    let line = mounts
        .lines()
        .find(|line| line.contains(root.to_str().unwrap()))
        .unwrap();
    assert!(line.starts_with("disk.img "), "{line}");
    for option in [
        " fuse.platter ",
        "ro,",
        "nosuid",
        "nodev",
        "noexec",
        "default_permissions",
    ] {
        assert!(line.contains(option), "{option} in {line}");
    }
    mounted.unmount();
}

#[test]
fn unmounting_from_outside_ends_the_session() {
    for program in ["umount", "fusermount3"] {
        let mut mounted = Mounted::new();
        let (root, session) = (mounted.root(), mounted.session.take().unwrap());
        let arguments = if program == "umount" {
            vec![]
        } else {
            vec!["-u"]
        };
        run(program, &[arguments, vec![root.to_str().unwrap()]].concat());
        assert_eq!(session.join().unwrap(), Ended::Unmounted);
        assert!(
            mounted.fs.is_read_only(),
            "the filesystem was brought to rest"
        );
        assert!(!is_mounted(&root));
    }
}

#[test]
fn a_mount_in_use_is_not_unmounted() {
    let mut mounted = Mounted::with("", |fs| drop(plant(fs, "f", b"x")));
    let mut session = mounted.session.take().unwrap();
    let mut file = File::open(mounted.path("f")).unwrap();
    let error = session.unmount().unwrap_err();
    assert!(error.to_string().contains("busy"), "{error}");
    let mut contents = String::new();
    file.read_to_string(&mut contents).unwrap();
    assert_eq!(contents, "x", "it is served on");
    drop(file);
    assert!(soon(|| session.unmount().is_ok()));
    assert!(!is_mounted(&mounted.root()));
}

#[test]
fn a_detached_mount_serves_programs_that_still_use_it() {
    let mut mounted = Mounted::with("", |fs| drop(plant(fs, "f", b"x")));
    let session = mounted.session.take().unwrap();
    let mut file = File::open(mounted.path("f")).unwrap();
    session.unmounter().detach().unwrap();
    assert!(!is_mounted(&mounted.root()));
    let mut contents = String::new();
    file.read_to_string(&mut contents).unwrap();
    assert_eq!(contents, "x");
    drop(file);
    assert_eq!(session.join().unwrap(), Ended::Unmounted);
}

#[test]
fn dropping_a_session_unmounts() {
    let mut mounted = Mounted::new();
    fs::write(mounted.path("f"), b"x").unwrap();
    drop(mounted.session.take());
    assert!(!is_mounted(&mounted.root()));
    assert!(mounted.fs.is_read_only());
}

/// Writes a file of a frozen mount, on a thread that waits for the thaw.
fn write_frozen(mounted: &Mounted) -> thread::JoinHandle<std::io::Result<()>> {
    mounted.fs.freeze().unwrap();
    let path = mounted.path("f");
    let writer = thread::Builder::new().name("writer".to_owned());
    let writing = writer.spawn(move || fs::write(path, b"x")).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(!writing.is_finished());
    writing
}

#[test]
fn frozen_mount_ends_though_its_kernel_is_gone() {
    let mut mounted = Mounted::new();
    let session = mounted.session.take().unwrap();
    let writing = write_frozen(&mounted);
    force_detach(&mounted.root());
    assert_eq!(session.join().unwrap(), Ended::Unmounted);
    writing.join().unwrap().unwrap_err();
    assert!(mounted.fs.is_read_only());
}

#[test]
fn dropping_a_frozen_session_lets_writers_end() {
    let mut mounted = Mounted::new();
    let writing = write_frozen(&mounted);
    drop(mounted.session.take());
    writing.join().unwrap().unwrap();
    assert!(!is_mounted(&mounted.root()));
}

#[test]
fn one_mount_over_another_takes_off_only_itself() {
    let mut first = Mounted::with("", |fs| drop(plant(fs, "first", b"")));
    let clock = std::sync::Arc::new(platter_vfs::SystemClock::new());
    let fs = std::sync::Arc::new(MemFs::new(clock, MemFsLimits::default()));
    let mut second = mount(fs, &first.root(), MountOptions::default()).unwrap();
    assert!(!first.path("first").exists());
    first.session.take().unwrap().unmounter().unmount().unwrap();
    assert!(is_mounted(&first.root()), "what lies on top is not ours");
    assert!(soon(|| second.unmount().is_ok()));
    assert!(first.path("first").exists());
    force_detach(&first.root());
}

#[test]
fn a_mount_point_that_is_none_is_refused() {
    let clock = std::sync::Arc::new(platter_vfs::SystemClock::new());
    let fs: std::sync::Arc<dyn Filesystem> =
        std::sync::Arc::new(MemFs::new(clock, MemFsLimits::default()));
    let file = tempfile::NamedTempFile::new().unwrap();
    let on_a_file = mount(fs.clone(), file.path(), MountOptions::default()).unwrap_err();
    assert!(
        on_a_file
            .to_string()
            .starts_with(file.path().to_str().unwrap()),
        "{on_a_file}"
    );
    let missing = Path::new("/nonexistent/place");
    let error = mount(fs.clone(), missing, MountOptions::default()).unwrap_err();
    assert!(
        error.to_string().starts_with("/nonexistent/place: "),
        "{error}"
    );
    assert!(
        !fs.is_read_only(),
        "it was never served, so it is not brought to rest"
    );
}

#[test]
fn mount_that_fails_leaves_nothing_mounted() {
    let dir = TempDir::with_prefix("platter-fuse-").unwrap();
    let mountpoint = dir.path().join("mount");
    fs::create_dir(&mountpoint).unwrap();
    let mut failures = 0;
    // Each step that needs a descriptor is the first that gets none.
    for limit in 4..24 {
        let mut server = Command::new("prlimit");
        server
            .arg(format!("--nofile={limit}:{limit}"))
            .arg(example("memory_mount"))
            .arg(&mountpoint)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut server = server.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(server.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        if line == "ready\n" {
            // It may have ended by itself.
            let _ = Command::new("umount").arg(&mountpoint).output();
        }
        let ended = server.wait().unwrap();
        let is_left = is_mounted(&mountpoint);
        force_detach(&mountpoint);
        assert!(!is_left, "with {limit} descriptors: {line:?}, {ended}");
        failures += usize::from(!ended.success());
    }
    assert!((2..20).contains(&failures), "{failures}");
}

#[test]
fn a_signal_unmounts_and_ends_well() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut served = Served::new();
        fs::write(served.path("f"), b"x").unwrap();
        served.send(signal);
        assert_eq!(served.ends().code(), Some(0), "{signal:?}");
        assert!(!is_mounted(&served.path("")));
    }
}

#[test]
fn a_signal_ends_a_mount_in_use_too() {
    let mut served = Served::new();
    fs::write(served.path("f"), b"x").unwrap();
    let file = File::open(served.path("f")).unwrap();
    served.send(Signal::TERM);
    assert_eq!(served.ends().code(), Some(0));
    assert!(!is_mounted(&served.path("")));
    let error = file.metadata().and_then(|_| file.sync_all()).unwrap_err();
    let errno = Errno::from_io_error(&error);
    assert!(
        matches!(
            errno,
            Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
        ),
        "{error}"
    );
}

#[test]
fn fusermount_ends_the_server_well() {
    let mut served = Served::new();
    run("fusermount3", &["-u", served.path("").to_str().unwrap()]);
    assert_eq!(served.ends().code(), Some(0));
}

#[test]
fn a_killed_server_leaves_no_process_hanging() {
    let mut served = Served::new();
    fs::write(served.path("f"), b"x").unwrap();
    // Stopped, it answers nothing: a process that asks now waits.
    served.send(Signal::STOP);
    assert!(soon(|| served.is_stopped()));
    let asking = served.path("asked while it is stopped");
    let waiting = thread::Builder::new()
        .spawn(move || fs::metadata(asking))
        .unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    served.send(Signal::KILL);
    assert_eq!(served.ends().signal(), Some(9));
    assert!(soon(|| waiting.is_finished()), "a waiting caller hangs");
    let error = waiting.join().unwrap().unwrap_err();
    let errno = Errno::from_io_error(&error);
    assert!(
        matches!(
            errno,
            Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
        ),
        "{error}"
    );
    let later = fs::metadata(served.path("asked later")).unwrap_err();
    assert!(
        matches!(
            Errno::from_io_error(&later),
            Some(Errno::NOTCONN | Errno::CONNABORTED)
        ),
        "{later}"
    );
    run(
        "fusermount3",
        &["-u", "-z", served.path("").to_str().unwrap()],
    );
    assert!(!is_mounted(&served.path("")));
    assert_eq!(fs::metadata(served.path("")).unwrap().nlink(), 2);
}
