//! A read-only mount that an ordinary user makes and reads: the same tree, byte by byte, as the kernel's.
//!
//! The program runs in a mount namespace where a FUSE device lies that everyone may open. A thread joins
//! that namespace and gives up its privileges, which the kernel keeps for each thread.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use platter_vfs::Filesystem;
use rustix::fs::{CWD, FileType, Gid, Mode, Uid, makedev, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use testkit::compare::{Rules, compare};
use testkit::program;
use testkit::workload::Tree;

/// The user without files, on every distribution.
const USER: u32 = 65_534;
/// How often it is looked whether the mount is there, and the time between.
const LOOKS_MAX: u32 = 1500;
const LOOK: Duration = Duration::from_millis(20);

/// Makes the user the owner of all files, with the permission to read them.
pub(crate) const TO_USER: &str = r#"
cd "$1"
chattr -R -i -a . 2>/dev/null || true
chown -hR 65534:65534 .
chmod -R u+rwX .
"#;

/// Lays a device over that of FUSE, and mounts as an ordinary user.
const SERVE: &str = r#"
set -e
mount --bind "$1" /dev/fuse
shift
exec "$@"
"#;

/// A mount that an ordinary user made.
struct Served(Child);

impl Served {
    fn new(arguments: &[&OsStr], dir: &Path, at: &Path) -> Result<Self> {
        let device = dir.join("fuse");
        let mode = Mode::from_raw_mode(0o666);
        let number = makedev(10, 229);
        mknodat(CWD, &device, FileType::CharacterDevice, mode, number)?;
        std::fs::set_permissions(&device, Permissions::from_mode(0o666))?;
        let mut platter = program::platter_as_user(dir)?;
        platter.args(["mount", "-f", "-o", "ro"]);
        platter.args(arguments).arg(at);
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation=private", "sh", "-c", SERVE, "sh"]);
        unshare.arg(&device).arg(platter.get_program());
        let served = Self(unshare.args(platter.get_args()).spawn()?);
        let table = format!("/proc/{}/mountinfo", served.0.id());
        let name = format!(" {} ", at.display());
        for _ in 0..LOOKS_MAX {
            // Before the namespace is its own, the table is that of all others.
            let mounts = std::fs::read_to_string(&table)?;
            let is_ours = |line: &str| line.contains(&*name) && line.contains(" fuse.platter ");
            if mounts.lines().any(is_ours) {
                return Ok(served);
            }
            std::thread::sleep(LOOK);
        }
        anyhow::bail!("the mount is not there")
    }

    /// Has this thread see the mount as the user does.
    fn join(&self) -> Result<()> {
        leave_directory_of_process()?;
        let space = File::open(format!("/proc/{}/ns/mnt", self.0.id()))?;
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Mount))?;
        set_thread_groups(&[])?;
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)?;
        ensure!(!rustix::process::geteuid().is_root());
        Ok(())
    }
}

/// Separates the working directory of this thread, without which it may not join a mount namespace.
#[expect(
    deprecated,
    reason = "only with the flag FILES, which is not used, the function is unsafe"
)]
fn leave_directory_of_process() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::FS)
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// Has a user mount the filesystem on `images` with these arguments of `platter mount`, and compares what the
/// user reads with the library, by these rules, and with the tree that the kernel shows.
pub(crate) fn read_as_user(
    images: &[PathBuf],
    arguments: &[&OsStr],
    rules: Rules,
    open: impl FnOnce() -> Result<Arc<dyn Filesystem>> + Send,
    expected: &Tree,
) -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
    let at = dir.path().join("mount");
    std::fs::create_dir(&at)?;
    chown(&at, Some(USER), Some(USER))?;
    for image in images {
        std::fs::set_permissions(image, Permissions::from_mode(0o444))?;
        let parent = image.parent().context("a directory")?;
        std::fs::set_permissions(parent, Permissions::from_mode(0o755))?;
    }
    // The kernel chooses sizes of I/O, and asks for no flags.
    let rules = Rules {
        layout: false,
        ..rules
    };
    let served = Served::new(arguments, dir.path(), &at)?;
    let read = || -> Result<()> {
        served.join()?;
        let differences = Tree::read_host(&at)?.differences(expected);
        ensure!(differences.is_empty(), "{differences:#?}");
        let outcome = compare(&*open()?, &at, rules)?;
        ensure!(outcome.files > 100, "{outcome}");
        ensure!(outcome.differences == 0, "{outcome}");
        let written = std::fs::write(at.join("new"), "");
        ensure!(written.is_err(), "it takes writes");
        Ok(())
    };
    let read = std::thread::scope(|scope| scope.spawn(read).join());
    read.map_err(|_| anyhow::anyhow!("the user's thread panicked"))?
}
