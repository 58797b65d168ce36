//! The mounts of the host that this process sees. See `proc_pid_mountinfo(5)`.
//!
//! The table answers which filesystem a path lies on without touching that filesystem, whose server may not
//! respond.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The mounts that this process sees, in the order in which the kernel lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<MountEntry>,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The number of the mount, which is used again after unmounting.
    pub id: u64,
    /// The mount that it is mounted on.
    pub parent: u64,
    /// The device number of the filesystem: one for all subvolumes of a btrfs, other than in `stat`.
    pub device: MountedDevice,
    /// The mount point, seen from the root directory of this process.
    pub mountpoint: PathBuf,
    /// The type of the filesystem, with its subtype.
    pub fs_type: OsString,
    /// What was mounted, as the filesystem names it.
    pub source: OsString,
    /// The options of the filesystem, separated by commas.
    pub fs_options: OsString,
}

/// The device number of a mounted filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountedDevice {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl MountTable {
    /// Reads the table of this process.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read("/proc/self/mountinfo")?))
    }

    /// Parses a table. Lines of another form are left out.
    #[must_use]
    pub fn parse(table: &[u8]) -> Self {
        let lines = table.split(|&byte| byte == b'\n');
        Self {
            mounts: lines.filter_map(MountEntry::parse).collect(),
        }
    }

    /// Returns the mounts in the order of the table.
    #[must_use]
    pub fn mounts(&self) -> &[MountEntry] {
        &self.mounts
    }

    /// Returns the mount with this number.
    #[must_use]
    pub fn by_id(&self, id: u64) -> Option<&MountEntry> {
        self.mounts.iter().find(|mount| mount.id == id)
    }

    /// Returns the mount on top at `mountpoint`, if something is mounted just there.
    #[must_use]
    pub fn at(&self, mountpoint: &Path) -> Option<&MountEntry> {
        let top = self.crossed(mountpoint).pop();
        top.filter(|mount| mount.mountpoint == mountpoint)
    }

    /// Returns the mounts that the lookup of an absolute path without symbolic links crosses, in this order. The
    /// last one has the file. There is none where the mount of the root directory is not listed, as after
    /// `chroot`, and no other follows.
    #[must_use]
    pub fn crossed(&self, path: &Path) -> Vec<&MountEntry> {
        let mut crossed: Vec<&MountEntry> = Vec::new();
        while crossed.len() < self.mounts.len() {
            let current = crossed.last().map(|mount| mount.id);
            let is_child = |mount: &&MountEntry| match current {
                // The lookup begins at the root directory, below what is mounted over it.
                Some(id) => mount.parent == id && mount.mountpoint != Path::new("/"),
                // The root of all mounts is its own parent.
                None => mount.parent == mount.id || self.by_id(mount.parent).is_none(),
            };
            let mounts = self.mounts.iter();
            let above = mounts.filter(|mount| path.starts_with(&mount.mountpoint));
            let children = above.filter(is_child);
            // A mount over a directory above hides the deeper ones on the same mount.
            let Some(next) = children.min_by_key(|mount| mount.mountpoint.as_os_str().len()) else {
                break;
            };
            crossed.push(next);
        }
        crossed
    }
}

impl MountEntry {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = number(fields.next()?)?;
        let parent = number(fields.next()?)?;
        let device = std::str::from_utf8(fields.next()?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let device = MountedDevice {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        };
        let mountpoint = unescaped(fields.nth(1)?).into();
        let mut after = fields.skip_while(|field| *field != b"-").skip(1);
        Some(Self {
            id,
            parent,
            device,
            mountpoint,
            fs_type: unescaped(after.next()?),
            source: unescaped(after.next()?),
            fs_options: unescaped(after.next()?),
        })
    }
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Decodes a field, where a blank, a tab, a newline or a backslash is a backslash with three octal digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let number = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = number.and_then(|number| u8::from_str_radix(number, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = match byte {
            Some(_) => after.get(3..).unwrap_or_default(),
            None => after,
        };
    }
    OsString::from_vec(bytes)
}

impl MountEntry {
    /// Whether lookups on the filesystem wait for no server: it has a block device, or is in memory.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let name = self.fs_type.as_bytes();
        let has_device = self.device.major != 0 && !name.starts_with(b"fuse");
        has_device || [&b"btrfs"[..], b"tmpfs", b"devtmpfs", b"ramfs", b"rootfs"].contains(&name)
    }

    /// Whether `source` is what was mounted, or a part of it, which follows an `@`.
    #[must_use]
    pub fn is_of(&self, source: &Path) -> bool {
        let rest = self.source.as_bytes();
        let rest = rest.strip_prefix(source.as_os_str().as_bytes());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"@"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime - xfs /dev/vda rw\n\
        30 22 0:45 / /mnt/a\\040b rw,nosuid shared:5 - fuse.platter disk.img@2 rw,user_id=7\n\
        31 22 0:46 / /mnt/x rw - tmpfs tmpfs rw\n\
        32 31 0:47 / /mnt/x rw - fuse.platter disk.img rw\n\
        33 22 0:48 / /hidden/below rw - tmpfs tmpfs rw\n\
        34 22 0:49 / /hidden rw - tmpfs tmpfs rw\n\
        odd line\n";

    fn devices(path: &str) -> Vec<u32> {
        let table = MountTable::parse(TABLE);
        let crossed = table.crossed(Path::new(path));
        crossed.iter().map(|mount| mount.device.minor).collect()
    }

    #[test]
    fn fields_are_parsed_and_decoded() {
        let table = MountTable::parse(TABLE);
        assert_eq!(table.mounts().len(), 6);
        let found = table.at(Path::new("/mnt/a b")).unwrap();
        let expected = MountEntry {
            id: 30,
            parent: 22,
            device: MountedDevice {
                major: 0,
                minor: 45,
            },
            mountpoint: "/mnt/a b".into(),
            fs_type: "fuse.platter".into(),
            source: "disk.img@2".into(),
            fs_options: "rw,user_id=7".into(),
        };
        assert_eq!(*found, expected);
        assert_eq!(table.by_id(30), Some(&expected));
        assert!(found.is_of(Path::new("disk.img")));
        assert!(!found.is_of(Path::new("disk")));
        assert_eq!(table.at(Path::new("/mnt")), None);
    }

    #[test]
    fn mount_on_top_is_found() {
        let table = MountTable::parse(TABLE);
        assert_eq!(table.at(Path::new("/mnt/x")).unwrap().id, 32);
    }

    #[test]
    fn root_directory_may_be_missing_or_its_own_parent() {
        let table = b"5 4 0:1 / /a rw - tmpfs a rw\n6 5 0:2 / /a rw - tmpfs b rw\n7 5 0:3 / /a/b rw - tmpfs c rw\n";
        let mut table = table.to_vec();
        let is_at = |table: &[u8]| MountTable::parse(table).at(Path::new("/a")).unwrap().id;
        assert_eq!(is_at(&table), 6);
        table.extend(b"4 4 0:4 / / rw - rootfs d rw\n");
        assert_eq!(is_at(&table), 6);
    }

    #[test]
    fn lookup_crosses_mounts_as_the_kernel_does() {
        assert_eq!(devices("/mnt/file"), [0]);
        assert_eq!(devices("/mnt/x/file"), [0, 46, 47]);
        assert_eq!(devices("/mnt/xy"), [0]);
        assert_eq!(devices("/hidden/below/file"), [0, 49]);
    }

    #[test]
    fn mounts_in_a_circle_end_the_lookup() {
        let table = b"1 0 0:1 / / rw - tmpfs a rw\n2 3 0:2 / /a rw - tmpfs b rw\n\
            3 2 0:3 / /a rw - tmpfs c rw\n4 4 0:4 / /b rw - tmpfs c rw\n";
        let table = MountTable::parse(table);
        assert_eq!(table.crossed(Path::new("/a/file")).len(), 1);
        assert_eq!(table.crossed(Path::new("/b/file")).len(), 1);
    }

    #[test]
    fn local_filesystems_have_a_device_or_are_in_memory() {
        let is_local = |device: &str, fs_type: &str| {
            let line = format!("5 4 {device} / /a rw - {fs_type} a rw\n");
            MountTable::parse(line.as_bytes()).mounts()[0].is_local()
        };
        assert!(is_local("254:0", "xfs") && is_local("0:30", "btrfs") && is_local("0:31", "tmpfs"));
        assert!(!is_local("0:32", "fuse.sshfs") && !is_local("254:1", "fuseblk"));
        assert!(!is_local("0:33", "nfs4") && !is_local("0:34", "autofs"));
        assert!(is_local("0:5", "devtmpfs"));
    }

    #[test]
    fn escapes_are_octal() {
        assert_eq!(unescaped(br"a\134\012b\0"), OsString::from("a\\\nb\\0"));
        assert_eq!(unescaped(br"odd\04"), OsString::from(r"odd\04"));
    }

    #[test]
    fn own_table_has_the_root_directory() {
        let table = MountTable::read().unwrap();
        let crossed = table.crossed(Path::new("/"));
        let first = crossed.first();
        assert!(first.is_none_or(|mount| mount.mountpoint == Path::new("/")));
    }
}
