//! Waiting for a server to have mounted, and taking its mount off.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

const PAUSE: Duration = Duration::from_millis(2);
const PAUSES_MAX: u32 = 5000;

/// Returns when something is mounted on `dir` by `server`.
pub(super) fn wait_for(dir: &Path, server: &mut Child) -> Result<()> {
    let parent = dir.parent().unwrap_or(dir);
    let outside = std::fs::metadata(parent)?.dev();
    for _ in 0..PAUSES_MAX {
        if let Some(status) = server.try_wait()? {
            bail!("the server of {} ended: {status}", dir.display());
        }
        if std::fs::metadata(dir).is_ok_and(|found| found.dev() != outside) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    bail!("nothing was mounted on {}", dir.display())
}

/// Takes a mount off. The last process that used it may not have exited yet.
pub(super) fn take_off(dir: &Path) -> Result<()> {
    for _ in 0..PAUSES_MAX {
        match rustix::mount::unmount(dir, UnmountFlags::empty()) {
            Err(Errno::BUSY) => std::thread::sleep(PAUSE),
            done => return Ok(done?),
        }
    }
    bail!("{} stays busy", dir.display())
}
