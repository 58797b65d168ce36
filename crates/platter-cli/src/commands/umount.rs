//! `platter umount`: the end of a mount.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use platter::Escaped;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::console::{complain, in_one_line};

/// What mount(8) and umount(8) answer for a failure.
const STATUS_FAILED: u8 = 32;

/// Unmount what platter mounted
///
/// Waits until nothing is left to write, and refuses while files are in use, unless --lazy is
/// given. `umount` and `fusermount3 -u` do the same.
#[derive(Debug, clap::Args)]
pub(crate) struct Umount {
    /// The directories
    #[arg(required = true, value_name = "MOUNTPOINT")]
    mountpoints: Vec<PathBuf>,
    /// Detach at once; those who use it keep it
    #[arg(short, long)]
    lazy: bool,
}

impl Umount {
    pub(crate) fn run(&self) -> u8 {
        let mut status = 0;
        for mountpoint in &self.mountpoints {
            if let Err(error) = self.unmount(mountpoint) {
                complain(in_one_line(&error));
                status = STATUS_FAILED;
            }
        }
        status
    }

    fn unmount(&self, mountpoint: &Path) -> anyhow::Result<()> {
        let shown = Escaped(mountpoint.as_os_str().as_bytes()).to_string();
        // As the table of mounts and the set-id helper name it. Resolving asks nothing of the
        // mount itself, which may be dead.
        let place = mountpoint.canonicalize().with_context(|| shown.clone())?;
        let flags = if self.lazy {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
        match rustix::mount::unmount(&place, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            // Not the superuser: the set-id helper knows who mounted what.
            Err(Errno::PERM) => self.ask_helper(&place).context(shown),
            Err(Errno::INVAL) => bail!("{shown}: not mounted"),
            Err(error) => Err(error).context(shown),
        }
    }

    fn ask_helper(&self, mountpoint: &Path) -> anyhow::Result<()> {
        let mut helper = Command::new("fusermount3");
        helper.arg("-u");
        if self.lazy {
            helper.arg("-z");
        }
        let output = helper
            .arg("--")
            .arg(mountpoint)
            .output()
            .context("fusermount3")?;
        if !output.status.success() {
            bail!("{}", Escaped(output.stderr.trim_ascii()));
        }
        Ok(())
    }
}
