//! An image served to the kernel by this process, for what programs see through a mount.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use platter::{ImageSpec, Volume};
use platter_fuse::{MountError, MountOptions, Session};
use platter_vfs::Filesystem;

/// Between two tries to unmount, and how many there are.
const BUSY: Duration = Duration::from_millis(20);
const BUSY_MAX: u32 = 100;

/// Mounts an image, opened as `open` says, with mount options such as `allow_other,dev`.
pub fn mount(
    image: &Path,
    open: &platter::MountOptions,
    mountpoint: &Path,
    options: &str,
) -> Result<Session> {
    let volume = open.open(&ImageSpec::parse(image)?)?;
    mount_filesystem(volume.into_filesystem(), mountpoint, options)
}

/// Mounts what is open here, too, and outlives the mount.
pub fn mount_volume(volume: &Volume, mountpoint: &Path, options: &str) -> Result<Session> {
    mount_filesystem(Arc::clone(volume.filesystem()), mountpoint, options)
}

fn mount_filesystem(
    filesystem: Arc<dyn Filesystem>,
    mountpoint: &Path,
    options: &str,
) -> Result<Session> {
    let mut mounting = MountOptions::default();
    let rest = mounting.parse(options)?;
    ensure!(rest.is_empty(), "{rest:?} is not about mounting");
    std::fs::create_dir_all(mountpoint)?;
    Ok(platter_fuse::mount(filesystem, mountpoint, mounting)?)
}

/// Unmounts. A program that another thread starts has our files open for a moment.
pub fn unmount(session: &mut Session) -> Result<()> {
    for _ in 0..BUSY_MAX {
        match session.unmount() {
            Err(MountError::Attach(_)) => thread::sleep(BUSY),
            ended => return Ok(ended?),
        }
    }
    Ok(session.unmount()?)
}
