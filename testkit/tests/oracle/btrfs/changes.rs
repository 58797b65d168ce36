//! Random changes of files below some directories of a kernel mount, counted by their kind.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use testkit::prng::Prng;

/// Files that are open without a name, at most.
const UNNAMED_MAX: usize = 4;
/// A user of an access control list.
const USER_FIRST: u64 = 1000;
/// A major number for local use, which no driver has.
const DRIVERLESS_MAJOR: u32 = 60;
const MINOR_MAX: u64 = 70_000;

/// A kind of change.
struct Kind {
    name: &'static str,
    /// How often it is made compared with others.
    weight: usize,
    /// Makes it, and returns whether there was something to change.
    make: fn(&mut Changes) -> io::Result<bool>,
    /// What the kernel may refuse it with.
    refusals: &'static [Errno],
}

const fn kind(
    name: &'static str,
    weight: usize,
    make: fn(&mut Changes) -> io::Result<bool>,
    refusals: &'static [Errno],
) -> Kind {
    Kind {
        name,
        weight,
        make,
        refusals,
    }
}

/// Names may be taken, by directories, symbolic links and special files too, and directories not empty.
const NAME_OF_ANOTHER: &[Errno] = &[Errno::ISDIR, Errno::LOOP, Errno::NXIO];
const KINDS: &[Kind] = &[
    kind("create", 6, Changes::create, NAME_OF_ANOTHER),
    kind("mkdir", 2, Changes::make_dir, &[Errno::EXIST]),
    kind("rename", 3, Changes::rename, &[Errno::ISDIR, Errno::XDEV]),
    kind("link", 3, Changes::link, &[Errno::EXIST, Errno::XDEV]),
    kind("unlink", 2, Changes::unlink, &[]),
    kind("rmdir", 1, Changes::remove_dir, &[Errno::NOTEMPTY]),
    kind("symlink", 2, Changes::symlink, &[Errno::EXIST]),
    kind("mknod", 2, Changes::make_node, &[Errno::EXIST]),
    kind("tmpfile", 2, Changes::make_unnamed, &[]),
    kind(
        "link of a tmpfile",
        4,
        Changes::name_unnamed,
        &[Errno::EXIST, Errno::XDEV],
    ),
    kind("write", 6, Changes::write, &[]),
    kind("append", 4, Changes::append, &[]),
    kind("truncate", 2, Changes::truncate, &[]),
    kind("punch hole", 2, Changes::punch_hole, &[]),
    kind("fallocate", 2, Changes::preallocate, &[]),
    kind("setxattr", 3, Changes::set_attribute, &[]),
    kind(
        "removexattr",
        2,
        Changes::remove_attribute,
        &[Errno::NODATA],
    ),
    kind("access ACL", 2, Changes::set_access_acl, &[]),
    kind("default ACL", 1, Changes::set_default_acl, &[]),
    // Files without checksums are not compressed.
    kind("property", 2, Changes::set_property, &[Errno::INVAL]),
    kind("chmod", 2, Changes::change_mode, &[]),
    kind(
        "clone",
        2,
        Changes::clone_file,
        &[Errno::ISDIR, Errno::LOOP, Errno::NXIO, Errno::INVAL],
    ),
];

/// How many changes of each kind were made.
#[derive(Debug, Default)]
pub(super) struct Done(BTreeMap<&'static str, u32>);

impl Done {
    pub(super) fn add(&mut self, other: &Self) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// Fails unless changes of all kinds were made.
    pub(super) fn has_every_kind(&self) -> Result<()> {
        for kind in KINDS {
            ensure!(self.0.contains_key(kind.name), "no {}: {self:?}", kind.name);
        }
        Ok(())
    }
}

/// Changes files below some directories at random.
pub(super) struct Changes {
    prng: Prng,
    files: Vec<PathBuf>,
    /// Symbolic links and special files.
    others: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
    /// How many of the directories, from the first, are never removed.
    places: usize,
    unnamed: Vec<File>,
    next: u32,
    done: Done,
}

impl Changes {
    /// Changes of files below `places`, which may be in several subvolumes.
    pub(super) fn new(places: &[PathBuf], seed: u64) -> Self {
        Self {
            prng: Prng::new(seed),
            files: Vec::new(),
            others: Vec::new(),
            dirs: places.to_vec(),
            places: places.len(),
            unnamed: Vec::new(),
            next: 0,
            done: Done::default(),
        }
    }

    /// Adds a place that holds what another one holds: a snapshot of it.
    pub(super) fn add_snapshot(&mut self, of: &Path, snapshot: &Path) {
        for paths in [&mut self.files, &mut self.others, &mut self.dirs] {
            let inside = paths.iter().filter_map(|path| path.strip_prefix(of).ok());
            let inside = inside.filter(|path| !path.as_os_str().is_empty());
            let copies: Vec<PathBuf> = inside.map(|path| snapshot.join(path)).collect();
            paths.extend(copies);
        }
        self.dirs.insert(self.places, snapshot.to_owned());
        self.places += 1;
    }

    /// Closes all files. Returns what was done.
    pub(super) fn finish(self) -> Done {
        self.done
    }

    /// Makes one change. Only what its kind allows may be refused, and is no change.
    pub(super) fn change(&mut self) -> Result<()> {
        let mut chosen = self.below(KINDS.iter().map(|kind| kind.weight).sum());
        let is_chosen = |kind: &&Kind| match chosen.checked_sub(kind.weight) {
            Some(left) => {
                chosen = left;
                false
            }
            None => true,
        };
        let kind = KINDS.iter().find(is_chosen).expect("below the sum");
        match (kind.make)(self) {
            Ok(false) => {}
            Ok(true) => *self.done.0.entry(kind.name).or_default() += 1,
            Err(error) => {
                let errno = Errno::from_io_error(&error);
                let is_known = errno.is_some_and(|errno| kind.refusals.contains(&errno));
                ensure!(is_known, "{}: {error}", kind.name);
            }
        }
        Ok(())
    }

    /// Makes one to `most` changes.
    pub(super) fn change_some(&mut self, most: u64) -> Result<()> {
        for _ in 0..=self.prng.below(most) {
            self.change()?;
        }
        Ok(())
    }

    /// Makes a file, or seldom a directory, durable.
    pub(super) fn fsync(&mut self) -> Result<()> {
        let dir = self.dir();
        let choice = self.below(10);
        if choice == 0
            && let Some(file) = self.unnamed.first()
        {
            return Ok(file.sync_all()?);
        }
        let path = match choice {
            0 | 1 => None,
            _ => self.file(),
        };
        Ok(File::open(path.unwrap_or(dir))?.sync_all()?)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.prng.below(bound as u64)).unwrap_or_default()
    }

    fn file(&mut self) -> Option<PathBuf> {
        let index = self.below(self.files.len().max(1));
        self.files.get(index).cloned()
    }

    /// A file, or seldom a symbolic link or special file.
    fn name(&mut self) -> Option<PathBuf> {
        if self.below(4) > 0 || self.others.is_empty() {
            return self.file();
        }
        let index = self.below(self.others.len());
        self.others.get(index).cloned()
    }

    fn dir(&mut self) -> PathBuf {
        let index = self.below(self.dirs.len());
        self.dirs[index].clone()
    }

    /// A name that was not used before, or seldom one that was.
    fn new_path(&mut self) -> PathBuf {
        self.next += 1;
        let number = if self.below(8) == 0 {
            self.prng.below(self.next.into())
        } else {
            self.next.into()
        };
        self.dir().join(format!("name{number}"))
    }

    fn content(&mut self) -> Vec<u8> {
        let len = match self.below(4) {
            0 => self.below(3000),
            1 => self.below(9000),
            _ => self.below(300_000),
        };
        if self.below(2) == 0 {
            return self.prng.bytes(len);
        }
        let line = format!("line {} of a text\n", self.next);
        line.bytes().cycle().take(len).collect()
    }

    fn forget(&mut self, path: &Path) {
        self.files.retain(|it| it != path);
        self.others.retain(|it| it != path);
    }

    /// Makes a change of a file that is there, whose size is given, too. Returns whether there is one.
    fn change_file(
        &mut self,
        change: impl FnOnce(&mut Self, &File, u64) -> io::Result<()>,
    ) -> io::Result<bool> {
        let Some(path) = self.file() else {
            return Ok(false);
        };
        let file = open_file(&path, OFlags::empty())?;
        let size_bytes = file.metadata()?.len();
        change(self, &file, size_bytes)?;
        Ok(true)
    }

    /// A place in a file, or after its end.
    fn place(&mut self, size_bytes: u64) -> u64 {
        self.prng.below(size_bytes + 10_000)
    }

    fn create(&mut self) -> io::Result<bool> {
        let (path, content) = (self.new_path(), self.content());
        let file = open_file(&path, OFlags::CREATE | OFlags::TRUNC)?;
        file.write_all_at(&content, 0)?;
        self.forget(&path);
        self.files.push(path);
        Ok(true)
    }

    fn make_dir(&mut self) -> io::Result<bool> {
        let path = self.new_path();
        std::fs::create_dir(&path)?;
        self.dirs.push(path);
        Ok(true)
    }

    fn rename(&mut self) -> io::Result<bool> {
        let to = match self.below(3) {
            0 => self.name(),
            _ => Some(self.new_path()),
        };
        let (Some(from), Some(to)) = (self.name(), to) else {
            return Ok(false);
        };
        std::fs::rename(&from, &to)?;
        let is_file = self.files.contains(&from);
        self.forget(&from);
        self.forget(&to);
        self.list(is_file).push(to);
        Ok(true)
    }

    fn list(&mut self, is_file: bool) -> &mut Vec<PathBuf> {
        if is_file {
            &mut self.files
        } else {
            &mut self.others
        }
    }

    fn link(&mut self) -> io::Result<bool> {
        let to = self.new_path();
        let Some(from) = self.name() else {
            return Ok(false);
        };
        std::fs::hard_link(&from, &to)?;
        let is_file = self.files.contains(&from);
        self.list(is_file).push(to);
        Ok(true)
    }

    fn unlink(&mut self) -> io::Result<bool> {
        let Some(path) = self.name() else {
            return Ok(false);
        };
        std::fs::remove_file(&path)?;
        self.forget(&path);
        Ok(true)
    }

    fn remove_dir(&mut self) -> io::Result<bool> {
        let removable = self.dirs.len() - self.places;
        if removable == 0 {
            return Ok(false);
        }
        let index = self.places + self.below(removable);
        std::fs::remove_dir(&self.dirs[index])?;
        self.dirs.remove(index);
        Ok(true)
    }

    fn symlink(&mut self) -> io::Result<bool> {
        let path = self.new_path();
        std::os::unix::fs::symlink("target", &path)?;
        self.others.push(path);
        Ok(true)
    }

    fn make_node(&mut self) -> io::Result<bool> {
        let path = self.new_path();
        let minor = u32::try_from(self.prng.below(MINOR_MAX)).unwrap_or_default();
        let device = rustix::fs::makedev(DRIVERLESS_MAJOR, minor);
        let (file_type, device) = match self.below(4) {
            0 => (FileType::Fifo, 0),
            1 => (FileType::Socket, 0),
            2 => (FileType::CharacterDevice, device),
            _ => (FileType::BlockDevice, device),
        };
        let mode = Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(CWD, &path, file_type, mode, device)?;
        self.others.push(path);
        Ok(true)
    }

    /// Makes a file without a name.
    fn make_unnamed(&mut self) -> io::Result<bool> {
        let (dir, content) = (self.dir(), self.content());
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&dir, flags, Mode::from_raw_mode(0o600))?);
        file.write_all_at(&content, 0)?;
        if self.unnamed.len() == UNNAMED_MAX {
            self.unnamed.remove(0);
        }
        self.unnamed.push(file);
        Ok(true)
    }

    fn name_unnamed(&mut self) -> io::Result<bool> {
        let path = self.new_path();
        if self.unnamed.is_empty() {
            return Ok(false);
        }
        let index = self.below(self.unnamed.len());
        let descriptor = format!("/proc/self/fd/{}", self.unnamed[index].as_raw_fd());
        rustix::fs::linkat(CWD, descriptor, CWD, &path, AtFlags::SYMLINK_FOLLOW)?;
        self.unnamed.remove(index);
        self.files.push(path);
        Ok(true)
    }

    fn write(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, size_bytes| {
            let at = changes.place(size_bytes);
            file.write_all_at(&changes.content(), at)
        })
    }

    fn append(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, size_bytes| {
            file.write_all_at(&changes.content(), size_bytes)
        })
    }

    fn truncate(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, size_bytes| file.set_len(changes.place(size_bytes)))
    }

    fn punch_hole(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, size_bytes| {
            let (at, len) = (changes.place(size_bytes), 1 + changes.prng.below(50_000));
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(file, hole, at, len)?)
        })
    }

    fn preallocate(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, size_bytes| {
            let (at, len) = (changes.place(size_bytes), 1 + changes.prng.below(100_000));
            let flags = [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE][changes.below(2)];
            Ok(rustix::fs::fallocate(file, flags, at, len)?)
        })
    }

    fn set_attribute(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, _| {
            let value = changes.prng.bytes(20);
            Ok(rustix::fs::fsetxattr(
                file,
                "user.name",
                &value,
                XattrFlags::empty(),
            )?)
        })
    }

    fn remove_attribute(&mut self) -> io::Result<bool> {
        self.change_file(|_, file, _| Ok(rustix::fs::fremovexattr(file, "user.name")?))
    }

    fn set_access_acl(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, _| {
            let name = "system.posix_acl_access";
            Ok(rustix::fs::fsetxattr(
                file,
                name,
                &changes.acl(),
                XattrFlags::empty(),
            )?)
        })
    }

    fn set_default_acl(&mut self) -> io::Result<bool> {
        let (dir, acl) = (self.dir(), self.acl());
        let name = "system.posix_acl_default";
        rustix::fs::setxattr(&dir, name, &acl, XattrFlags::empty())?;
        Ok(true)
    }

    /// An access control list in the form of `setxattr`: of the owner, a user, the group, the mask and others.
    fn acl(&mut self) -> Vec<u8> {
        const VERSION: u32 = 2;
        const NO_ID: u32 = u32::MAX;
        let user = u32::try_from(USER_FIRST + self.prng.below(50)).unwrap_or(NO_ID);
        let entries: [(u16, u16, u32); 5] = [
            (0x01, 6, NO_ID),
            (0x02, 5, user),
            (0x04, 4, NO_ID),
            (0x10, 7, NO_ID),
            (0x20, 4, NO_ID),
        ];
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    fn set_property(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, _| {
            let value = ["zlib", "lzo", "zstd"][changes.below(3)];
            let name = "btrfs.compression";
            Ok(rustix::fs::fsetxattr(
                file,
                name,
                value.as_bytes(),
                XattrFlags::empty(),
            )?)
        })
    }

    fn change_mode(&mut self) -> io::Result<bool> {
        self.change_file(|changes, file, _| {
            let mode = u32::try_from(changes.prng.below(0o1000)).unwrap_or_default();
            file.set_permissions(Permissions::from_mode(mode))
        })
    }

    fn clone_file(&mut self) -> io::Result<bool> {
        let Some(from) = self.file() else {
            return Ok(false);
        };
        let to = self.new_path();
        let copy = open_file(&to, OFlags::CREATE | OFlags::TRUNC)?;
        self.forget(&to);
        self.files.push(to);
        rustix::fs::ioctl_ficlone(&copy, File::open(&from)?)?;
        Ok(true)
    }
}

/// Opens a regular file for writing. Special files without a driver or reader are refused.
fn open_file(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?.into())
}
