//! A mount that is gone when the test is over, however it ends.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use platter_fuse::{MountOptions, Operation, Session, Statistics, mount};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{CreateKind, Filesystem, Inode, SystemClock};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

/// No test takes nearly as long. After it the mount is detached by force, so that a process hanging in it fails.
const LIMIT: Duration = Duration::from_mins(1);

/// With this in the environment, mounts are served over rings where the kernel knows of that.
pub(crate) const OVER_RINGS: &str = "PLATTER_TEST_OVER_RINGS";
/// With this in the environment, tests pass that need rings, though the kernel has none.
const WITHOUT_RINGS: &str = "PLATTER_TEST_WITHOUT_RINGS";
/// Whether the kernel offers rings to new mounts.
const OFFER: &str = "/sys/module/fuse/parameters/enable_uring";

pub(crate) struct Mounted {
    pub(crate) fs: Arc<MemFs>,
    pub(crate) session: Option<Session>,
    _watchdog: Watchdog,
    dir: TempDir,
}

impl Mounted {
    pub(crate) fn new() -> Self {
        Self::with("", |_| {})
    }

    /// Mounts with the options of `list` what `fill` makes.
    pub(crate) fn with(list: &str, fill: impl FnOnce(&MemFs)) -> Self {
        let fs = Arc::new(MemFs::new(
            Arc::new(SystemClock::new()),
            MemFsLimits::default(),
        ));
        fill(&fs);
        let mut options = MountOptions::default();
        assert_eq!(options.parse(list).unwrap(), [""; 0]);
        Self::serving(Arc::clone(&fs) as _, fs, options)
    }

    /// Mounts `served`, which stands on `fs`.
    pub(crate) fn serving(
        served: Arc<dyn Filesystem>,
        fs: Arc<MemFs>,
        options: MountOptions,
    ) -> Self {
        let dir = TempDir::with_prefix("platter-fuse-").unwrap();
        let mountpoint = dir.path().join("mount");
        fs::create_dir(&mountpoint).unwrap();
        let watchdog = Watchdog::new(mountpoint.clone());
        let over_rings = std::env::var_os(OVER_RINGS).is_some();
        let rings = over_rings.then(RingsOffered::new);
        let gathers = options.writeback;
        let session = mount(served, &mountpoint, options).expect("needs root and /dev/fuse");
        if let Some(rings) = rings {
            assert_eq!(session.uses_io_uring(), rings.is_possible() && !gathers);
        }
        Self {
            fs,
            session: Some(session),
            _watchdog: watchdog,
            dir,
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub(crate) fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    /// The requests that `action` causes.
    pub(crate) fn requests_of(&self, action: impl FnOnce()) -> Requests {
        let before = self.session().statistics();
        action();
        Requests(self.session().statistics().since(&before))
    }

    /// Unmounts in order. Tests fork next to each other, and until a child executes its program it
    /// holds whatever is open, so being busy is tried again.
    pub(crate) fn unmount(mut self) {
        let mut session = self.session.take().unwrap();
        let mut last = None;
        let unmounted = soon(|| match session.unmount() {
            Ok(()) => true,
            Err(error) => {
                last = Some(error);
                false
            }
        });
        assert!(unmounted, "{last:?}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.session.take());
        force_detach(&self.root());
    }
}

/// Makes the kernel offer rings, for this program alone at a time.
///
/// A kernel without them fails the test, unless the environment says that it may: then each test
/// that could say nothing of rings is counted where it is seen.
pub(crate) struct RingsOffered(Option<(File, Vec<u8>)>);

impl RingsOffered {
    pub(crate) fn new() -> Self {
        let file = match File::options().read(true).write(true).open(OFFER) {
            Ok(file) => file,
            Err(error) => {
                let may_lack = std::env::var_os(WITHOUT_RINGS).is_some();
                assert!(
                    may_lack && error.kind() == ErrorKind::NotFound,
                    "{OFFER}: {error}: tests need root and FUSE over io_uring (Linux 6.14, \
                     CONFIG_FUSE_IO_URING); with {WITHOUT_RINGS}=1 they pass without it"
                );
                count_without_rings();
                return Self(None);
            }
        };
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let before = fs::read(OFFER).unwrap();
        fs::write(OFFER, "Y").expect("needs root");
        Self(Some((file, before)))
    }

    /// Whether this kernel knows of rings at all.
    pub(crate) fn is_possible(&self) -> bool {
        self.0.is_some()
    }
}

/// Counts a test that says nothing of rings, past what captures the output of tests.
fn count_without_rings() {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let line = format!("no FUSE over io_uring: {count} mounts of tests said nothing of it\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

impl Drop for RingsOffered {
    fn drop(&mut self) {
        if let Some((_, before)) = &self.0 {
            fs::write(OFFER, before).unwrap();
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requests(Statistics);

impl Requests {
    pub(crate) fn of(&self, operation: Operation) -> u64 {
        self.0.count(operation)
    }

    /// All but `FORGET`, which comes when the kernel likes.
    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        let counts = self
            .0
            .iter()
            .filter(|(operation, _)| *operation != Operation::Forget);
        counts
            .map(|(operation, count)| (operation.name(), count))
            .collect()
    }
}

/// Forcibly detaches a mount when a test takes too long.
struct Watchdog {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    fn new(mountpoint: PathBuf) -> Self {
        let (done, waiting): (_, Receiver<()>) = channel();
        let watch = move || {
            if waiting.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!(
                    "{} took too long and is forcibly detached",
                    mountpoint.display()
                );
                force_detach(&mountpoint);
            }
        };
        Self {
            done: Some(done),
            thread: Some(thread::Builder::new().spawn(watch).unwrap()),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.done.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Most of a filesystem that stands on the one in a field of it.
macro_rules! stands_on {
    ($field:tt) => {
        fn is_read_only(&self) -> bool {
            self.$field.is_read_only()
        }

        fn root(&self) -> platter_vfs::Result<std::sync::Arc<dyn platter_vfs::Inode>> {
            platter_vfs::Filesystem::root(&*self.$field)
        }

        fn inode(
            &self,
            id: platter_vfs::InodeId,
        ) -> platter_vfs::Result<std::sync::Arc<dyn platter_vfs::Inode>> {
            self.$field.inode(id)
        }

        fn stat_fs(&self) -> platter_vfs::Result<platter_vfs::StatFs> {
            self.$field.stat_fs()
        }

        fn sync(&self) -> platter_vfs::Result<()> {
            self.$field.sync()
        }

        fn unmount(&self) -> platter_vfs::Result<()> {
            self.$field.unmount()
        }
    };
}
pub(crate) use stands_on;

/// Ends the connection of a mount and takes it off; nothing happens where there is none.
pub(crate) fn force_detach(mountpoint: &Path) {
    while unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH).is_ok() {}
}

pub(crate) fn plant(fs: &MemFs, path: &str, contents: &[u8]) -> Arc<dyn Inode> {
    let inode = fs
        .plant(path.as_bytes(), CreateKind::Regular, 0o644)
        .unwrap();
    inode.write_at(0, contents).unwrap();
    inode
}

/// Runs a program that has to succeed and returns what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or_else(|| panic!("{error} has no errno"))
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: std::io::Result<T>, expected: Errno) {
    assert_eq!(errno(&result.unwrap_err()), expected);
}

/// Whether something becomes true within a few seconds.
pub(crate) fn soon(mut is_true: impl FnMut() -> bool) -> bool {
    (0..500).any(|_| {
        let done = is_true();
        if !done {
            thread::sleep(Duration::from_millis(10));
        }
        done
    })
}
