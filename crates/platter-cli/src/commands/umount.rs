//! `platter umount`: the end of a mount.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use platter::block::Access;
use platter::{Cause, Escaped, Image, ImageSpec};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::console::{complain, in_one_line};

/// What mount(8) and umount(8) answer for a failure.
const STATUS_FAILED: u8 = 32;

/// How often an image is looked at that is still being written: a minute in all.
const REST_TRIES_MAX: u32 = 600;
const REST_TRY_PAUSE: Duration = Duration::from_millis(100);

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
        let source = source_of(&place);
        let flags = if self.lazy {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
        match rustix::mount::unmount(&place, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not the superuser: the set-id helper knows who mounted what.
            Err(Errno::PERM) => self.ask_helper(&place).context(shown)?,
            Err(Errno::INVAL) => bail!("{shown}: not mounted"),
            Err(error) => return Err(error).context(shown),
        }
        match source {
            Some(image) if !self.lazy => wait_for(&image),
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

/// The image that is mounted on `place`, as far as the table of mounts tells.
fn source_of(place: &Path) -> Option<ImageSpec> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let lines = table.split(|&byte| byte == b'\n');
    let fields = |line: &'_ [u8]| -> Option<(Vec<u8>, Vec<u8>, Vec<u8>)> {
        let mut words = line.split(|&byte| byte == b' ').map(unescaped);
        let target = words.nth(4)?;
        let mut behind = words.skip_while(|word| word != b"-").skip(1);
        Some((target, behind.next()?, behind.next()?))
    };
    let is_here = |(target, kind, _): &(Vec<u8>, Vec<u8>, Vec<u8>)| {
        *target == place.as_os_str().as_bytes() && kind == b"fuse.platter"
    };
    // What was mounted last lies on top.
    let (_, _, source) = lines.filter_map(fields).rfind(is_here)?;
    ImageSpec::parse(Path::new(OsStr::from_bytes(&source))).ok()
}

/// A word of the table of mounts, where blanks and the like are octal numbers.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| first == b'\\');
        let number = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = number.and_then(|number| u8::from_str_radix(number, 8).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() {
            behind.get(3..).unwrap_or_default()
        } else {
            behind
        };
    }
    bytes
}

/// Waits until whoever served an image has brought it to rest, and lets others in.
fn wait_for(spec: &ImageSpec) -> anyhow::Result<()> {
    for _ in 0..REST_TRIES_MAX {
        match Image::open(&spec.image, Access::Read) {
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
    use super::*;

    #[test]
    fn blanks_in_the_table_of_mounts_are_numbers() {
        assert_eq!(unescaped(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescaped(b"odd\\04"), b"odd\\04");
    }
}
