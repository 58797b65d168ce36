//! `platter umount`: the end of a mount.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use platter::block::{Access, MountTable};
use platter::error::is_of_dead_mount;
use platter::{Cause, Escaped, Image, ImageSpec};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::mounted;
use super::outcome::{DeviceNumber, Outcome, Server};
use crate::console::{complain, report};

/// What mount(8) and umount(8) answer for a failure.
const STATUS_FAILED: u8 = 32;

/// How long a server may take to write what is left.
const WRITING_MAX: Duration = Duration::from_mins(1);

/// How often an image is looked at whose server cannot be asked: a minute in all.
const REST_TRIES_MAX: u32 = 600;
const REST_TRY_PAUSE: Duration = Duration::from_millis(100);

const LONG_ABOUT: &str = "\
Unmount what platter mounted

Returns when all is written and the image can be used, and fails where something could not be written, \
with the reason. Refuses while files are in use, unless --lazy is given.

`fusermount3 -u` and umount(8) return before that, as the kernel does not wait for a FUSE server. \
A process that opens an image file then, on the same machine, still waits until it is complete, if it was \
mounted by its owner or the superuser; a block device does not wait, and no error is reported. umount(8) \
does all that this command does where this program is installed as its helper: ln -s \
/usr/local/bin/platter /sbin/umount.fuse.platter";

/// Unmount what platter mounted
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT)]
pub(crate) struct Umount {
    /// The directories
    #[arg(required = true, value_name = "MOUNTPOINT")]
    mountpoints: Vec<PathBuf>,
    /// Detach at once; processes that use it keep it
    #[arg(short, long)]
    lazy: bool,
    #[command(flatten)]
    helper: HelperFlags,
}

/// What umount(8) gives its helpers besides. None of it matters here.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of umount(8)")]
struct HelperFlags {
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[arg(short = 'f', hide = true)]
    force: bool,
    #[arg(short = 'r', hide = true)]
    read_only: bool,
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    #[arg(short = 'N', hide = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[arg(short = 't', hide = true, value_name = "TYPE")]
    filesystem: Option<String>,
}

impl Umount {
    pub(crate) fn run(&self) -> u8 {
        let mut status = 0;
        for mountpoint in &self.mountpoints {
            if let Err(error) = self.unmount(mountpoint) {
                report(&error);
                status = STATUS_FAILED;
            }
        }
        status
    }

    fn unmount(&self, mountpoint: &Path) -> anyhow::Result<()> {
        let shown = Escaped(mountpoint.as_os_str().as_bytes()).to_string();
        // As the table of mounts and the set-id helper name it. Resolving asks nothing of the mount
        // itself, which may be dead, unless a slash follows.
        let bytes = mountpoint.as_os_str().as_bytes();
        let end = bytes.iter().rposition(|&byte| byte != b'/');
        let bare = Path::new(OsStr::from_bytes(&bytes[..end.map_or(1, |end| end + 1)]));
        let place = bare.canonicalize().with_context(|| shown.clone())?;
        let served = mounted_on(&place);
        let server = served.as_ref().filter(|_| !self.lazy).map(|served| {
            let server = Server::connect(served.number, served.owner);
            let is_dead = server.is_err() && is_dead(&place);
            (server, is_dead)
        });
        let flags = if self.lazy {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
        match rustix::mount::unmount(&place, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not the superuser: the set-user-ID helper knows the user of each mount.
            Err(Errno::PERM) => self.ask_helper(&place).context(shown.clone())?,
            Err(Errno::INVAL) => bail!("{shown}: not mounted"),
            Err(error) => return Err(error).context(shown),
        }
        let (Some(served), Some((server, is_dead))) = (served, server) else {
            return Ok(());
        };
        match server {
            Ok(server) => wait_for_outcome(server, &served, WRITING_MAX).context(shown)?,
            Err(_) if is_dead => complain(format_args!(
                "{shown}: its server had been killed: what was not synced before is missing"
            )),
            // It runs where it cannot be reached, as in another network namespace.
            Err(_) => {}
        }
        match served.source {
            Some(image) if !is_dead => wait_for(&image),
            _ => Ok(()),
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

/// What platter mounted.
#[derive(Debug)]
struct Served {
    number: DeviceNumber,
    /// The image, as far as the source names it.
    source: Option<ImageSpec>,
    /// The user that mounted it.
    owner: Option<u32>,
}

/// What platter mounted on `place`, if that is what one sees there.
fn mounted_on(place: &Path) -> Option<Served> {
    let table = MountTable::read().ok()?;
    let mount = table.at(place)?;
    if mount.fs_type != mounted::FILESYSTEM_TYPE {
        return None;
    }
    let options = mount.fs_options.to_str().unwrap_or_default();
    let mut options = options.split(',');
    let owner = options.find_map(|option| option.strip_prefix("user_id="));
    Some(Served {
        number: (mount.device.major, mount.device.minor),
        source: ImageSpec::parse(Path::new(&mount.source)).ok(),
        owner: owner.and_then(|owner| owner.parse().ok()),
    })
}

/// Whether the server of the mount is gone.
fn is_dead(place: &Path) -> bool {
    let asked = rustix::fs::statfs(place);
    asked.is_err_and(|error| is_of_dead_mount(&error.into()))
}

/// Waits for the outcome that the server sends.
fn wait_for_outcome(server: Server, served: &Served, limit: Duration) -> anyhow::Result<()> {
    match server.wait(limit) {
        Ok(Outcome::Complete) => Ok(()),
        Ok(Outcome::Failed(error)) => Err(anyhow!(error)),
        Ok(Outcome::Unknown) => {
            bail!("its server ended without a word: what was not synced before may be missing")
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            // It listens as long as the filesystem is mounted.
            if Server::connect(served.number, served.owner).is_ok() {
                bail!("is unmounted here, and still mounted in another mount namespace");
            }
            bail!("is still being written")
        }
        Err(error) => Err(error.into()),
    }
}

/// Waits until the server of an image has written all of it and released its lock.
fn wait_for(spec: &ImageSpec) -> anyhow::Result<()> {
    for _ in 0..REST_TRIES_MAX {
        match Image::open_spec(spec, Access::Read) {
            Err(error) if is_in_use(&error) => sleep(REST_TRY_PAUSE),
            // Whether it can be opened otherwise is not asked here.
            _ => return Ok(()),
        }
    }
    let image = Escaped(spec.image.as_os_str().as_bytes());
    bail!("{image}: is still being written")
}

fn is_in_use(error: &platter::Error) -> bool {
    let Cause::Filesystem(platter::vfs::Error::Io(error)) = &error.cause else {
        return false;
    };
    error.source.kind() == ErrorKind::ResourceBusy
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::outcome::address;
    use super::*;

    #[test]
    fn server_that_still_listens_is_mounted_elsewhere() {
        let served = Served {
            // No filesystem has such a number.
            number: (std::process::id() | 1 << 31, 6),
            source: None,
            owner: Some(rustix::process::geteuid().as_raw()),
        };
        let listener = UnixListener::bind_addr(&address(served.number).unwrap()).unwrap();
        let connect = || Server::connect(served.number, served.owner).unwrap();
        let refused = |server| {
            let waited = wait_for_outcome(server, &served, Duration::from_millis(1));
            waited.unwrap_err().to_string()
        };
        let text = refused(connect());
        assert!(text.contains("in another mount namespace"), "{text}");
        let server = connect();
        // A connection that has been accepted outlives its listener.
        let (_first, _second) = (listener.accept().unwrap(), listener.accept().unwrap());
        let _third = listener.accept().unwrap();
        drop(listener);
        assert_eq!(refused(server), "is still being written");
    }
}
