//! A read-only mount that an ordinary user makes and reads: the same tree, byte by byte, as the kernel's.
//!
//! The program runs in a mount namespace where a FUSE device lies that everyone may open. A thread joins
//! that namespace and gives up its privileges, which the kernel keeps for each thread.

use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use platter_btrfs::MountOptions;
use rustix::fs::{CWD, FileType, Gid, Mode, Uid, makedev, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use testkit::compare::{Rules, compare};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::program;
use testkit::workload::Tree;

use super::image::{Pool, RULES, mount};
use super::log_cuts::Changes;

/// The user without files, on every distribution.
const USER: u32 = 65_534;
/// How often it is looked whether the mount is there, and the time between.
const LOOKS_MAX: u32 = 1500;
const LOOK: Duration = Duration::from_millis(20);

/// What the FUSE mount shares with the library: the kernel chooses sizes of I/O, and asks for no flags.
const FUSE_RULES: Rules = Rules {
    layout: false,
    ..RULES
};

/// Makes the user the owner of all files, with the permission to read them.
const TO_USER: &str = r#"
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
    fn new(pool: &Pool, folder: &Path, at: &Path) -> Result<Self> {
        let device = folder.join("fuse");
        let mode = Mode::from_raw_mode(0o666);
        let number = makedev(10, 229);
        mknodat(CWD, &device, FileType::CharacterDevice, mode, number)?;
        std::fs::set_permissions(&device, Permissions::from_mode(0o666))?;
        let mut platter = program::platter_as_user(folder)?;
        platter.args(["mount", "-f", "-o", "ro"]);
        for image in pool.images.iter().skip(1) {
            platter.arg("--device").arg(image);
        }
        platter.arg(&pool.images[0]).arg(at);
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation=private", "sh", "-c", SERVE, "sh"]);
        unshare.arg(&device).arg(platter.get_program());
        let served = Self(unshare.args(platter.get_args()).spawn()?);
        let table = format!("/proc/{}/mountinfo", served.0.id());
        for _ in 0..LOOKS_MAX {
            if std::fs::read_to_string(&table)?.contains(" fuse.platter ") {
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

/// Has a user mount the filesystem, and compares what the user reads with the library and with the tree
/// that the kernel shows.
fn read_as_user(pool: &Pool, expected: &Tree) -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let at = folder.path().join("mount");
    std::fs::create_dir(&at)?;
    chown(&at, Some(USER), Some(USER))?;
    for image in &pool.images {
        std::fs::set_permissions(image, Permissions::from_mode(0o444))?;
        let parent = image.parent().context("a folder")?;
        std::fs::set_permissions(parent, Permissions::from_mode(0o755))?;
    }
    let served = Served::new(pool, folder.path(), &at)?;
    let read = || -> Result<()> {
        served.join()?;
        let differences = Tree::read_host(&at)?.differences(expected);
        ensure!(differences.is_empty(), "{differences:#?}");
        let ours = mount(&pool.devices()?, &MountOptions::default())?;
        let outcome = compare(&ours, &at, FUSE_RULES)?;
        ensure!(outcome.files > 100, "{outcome}");
        ensure!(outcome.differences == 0, "{outcome}");
        let written = std::fs::write(at.join("new"), "");
        ensure!(written.is_err(), "it takes writes");
        Ok(())
    };
    let read = std::thread::scope(|scope| scope.spawn(read).join());
    read.map_err(|_| anyhow::anyhow!("the user's thread panicked"))?
}

/// The tree that the kernel shows.
fn kernel_tree(pool: &Pool) -> Result<Tree> {
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    Tree::read_host(kernel.root())
}

#[test]
fn user_reads_files_of_all_kinds() -> Result<()> {
    let pool = Pool::make(2, 160 << 10, &["-d", "raid1", "-m", "raid1"])?;
    pool.fill("compress=zstd")?;
    pool.run("", TO_USER)?;
    // Attributes that only the superuser sees.
    pool.run("", r#"setfattr -x trusted.two "$1/deep""#)?;
    read_as_user(&pool, &kernel_tree(&pool)?)
}

#[test]
fn user_reads_what_random_changes_left() -> Result<()> {
    for (seed, options) in [(11, "compress=lzo"), (12, "nodatasum")] {
        let pool = Pool::make(1, 200 << 10, &["-n", "4096"])?;
        let mounted = Mount::images(FsType::Btrfs, &pool.paths(), options, Access::ReadWrite)?;
        let mut changes = Changes::new(mounted.root(), seed);
        for _ in 0..600 {
            changes.change();
        }
        mounted.unmount_all(&pool.paths())?;
        pool.run("", TO_USER)?;
        read_as_user(&pool, &kernel_tree(&pool)?)?;
    }
    Ok(())
}
