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

/// Returns when something is mounted on `folder` by `server`.
pub(super) fn wait_for(folder: &Path, server: &mut Child) -> Result<()> {
    let parent = folder.parent().unwrap_or(folder);
    let outside = std::fs::metadata(parent)?.dev();
    for _ in 0..PAUSES_MAX {
        if let Some(status) = server.try_wait()? {
            bail!("the server of {} ended: {status}", folder.display());
        }
        if std::fs::metadata(folder).is_ok_and(|found| found.dev() != outside) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    bail!("nothing was mounted on {}", folder.display())
}

/// Takes a mount off. The last process that used it may not have exited yet.
pub(super) fn take_off(folder: &Path) -> Result<()> {
    for _ in 0..PAUSES_MAX {
        match rustix::mount::unmount(folder, UnmountFlags::empty()) {
            Err(Errno::BUSY) => std::thread::sleep(PAUSE),
            done => return Ok(done?),
        }
    }
    bail!("{} stays busy", folder.display())
}
