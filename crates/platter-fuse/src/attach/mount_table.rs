//! What is mounted where. See `proc_pid_mountinfo(5)`.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The number of a mounted filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MountedDevice {
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// The filesystem that one sees at `mountpoint`, if something is mounted just there.
pub(super) fn device_at(mountpoint: &Path) -> io::Result<Option<MountedDevice>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(topmost(&table, mountpoint.as_os_str().as_bytes()))
}

/// The last line is the mount on top.
fn topmost(table: &[u8], mountpoint: &[u8]) -> Option<MountedDevice> {
    let lines = table.split(|&byte| byte == b'\n').rev();
    lines
        .filter_map(parse)
        .find(|(_, place)| place == mountpoint)
        .map(|(device, _)| device)
}

/// The device and the mount point of one line.
fn parse(line: &[u8]) -> Option<(MountedDevice, Vec<u8>)> {
    let mut fields = line.split(|&byte| byte == b' ').skip(2);
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let device = MountedDevice {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    };
    let mountpoint = fields.nth(1)?;
    Some((device, unescape(mountpoint)))
}

/// Blanks, newlines and backslashes stand as three octal digits after a backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let escaped = digits.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(escaped.unwrap_or(*first));
        rest = &rest[if escaped.is_some() { 4 } else { 1 }..];
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime - xfs /dev/vda rw\n\
        30 22 0:45 / /mnt/a\\040b rw,nosuid shared:5 - fuse.platter disk rw\n\
        31 22 0:46 / /mnt/x rw - tmpfs tmpfs rw\n\
        32 22 0:47 / /mnt/x rw - fuse.platter disk rw\n";

    #[test]
    fn the_mount_on_top_is_found() {
        let device = |minor| Some(MountedDevice { major: 0, minor });
        assert_eq!(topmost(TABLE, b"/mnt/x"), device(47));
        assert_eq!(topmost(TABLE, b"/mnt/a b"), device(45));
        assert_eq!(topmost(TABLE, b"/mnt"), None);
    }

    #[test]
    fn escapes_are_octal() {
        assert_eq!(unescape(br"a\134\012b\0"), b"a\\\nb\\0");
    }
}
