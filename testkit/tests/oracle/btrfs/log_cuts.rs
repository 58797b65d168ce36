//! Log trees of random changes: images as they are after each of many calls of `fsync`, compared with the
//! kernel's replay of a copy.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use platter_btrfs::MountOptions;
use rustix::fs::{FallocateFlags, XattrFlags};
use testkit::compare::{Rules, compare};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::prng::Prng;
use testkit::tool;

use super::image::{Pool, RULES, mount};

/// How many images there are, unless the variable says otherwise.
const IMAGES: usize = 12;
const IMAGES_VARIABLE: &str = "PLATTER_TEST_LOGS";
/// Images of one filesystem.
const IMAGES_OF_ONE: usize = 12;
/// Changes before each `fsync`.
const CHANGES_MAX: u64 = 5;

/// Options of `mkfs.btrfs` and of the mount, one set after the other.
const LAYOUTS: [(&[&str], &str); 5] = [
    (&["-n", "4096"], "compress=zstd"),
    (&[], ""),
    (&["-O", "^no-holes"], ""),
    (&["-n", "4096", "--csum", "xxhash"], "nodatasum"),
    (&["-n", "4096", "-O", "^no-holes"], "compress-force=lzo"),
];

/// Changes files below a directory at random.
pub(super) struct Changes {
    root: PathBuf,
    prng: Prng,
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
    next: u32,
}

impl Changes {
    pub(super) fn new(root: &Path, seed: u64) -> Self {
        Self {
            root: root.to_owned(),
            prng: Prng::new(seed),
            files: Vec::new(),
            dirs: vec![root.to_owned()],
            next: 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.prng.below(bound as u64)).unwrap_or_default()
    }

    fn file(&mut self) -> Option<PathBuf> {
        let index = self.below(self.files.len().max(1));
        self.files.get(index).cloned()
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

    /// Makes one change. What the kernel refuses is no change.
    pub(super) fn change(&mut self) {
        let kind = self.below(20);
        // Names may be taken, and directories not empty.
        let _ = match kind {
            0..3 => self.create(),
            3 => self.make_dir(),
            4 => self.rename(),
            5 => self.link(),
            6 => self.remove(),
            7 => self.symlink(),
            _ => self.change_file(kind),
        };
    }

    fn create(&mut self) -> Result<()> {
        let (path, content) = (self.new_path(), self.content());
        std::fs::write(&path, content)?;
        self.files.push(path);
        Ok(())
    }

    fn make_dir(&mut self) -> Result<()> {
        let path = self.new_path();
        std::fs::create_dir(&path)?;
        self.dirs.push(path);
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let to = match self.below(3) {
            0 => self.file(),
            _ => Some(self.new_path()),
        };
        let (Some(from), Some(to)) = (self.file(), to) else {
            return Ok(());
        };
        std::fs::rename(&from, &to)?;
        self.files.retain(|file| *file != from && *file != to);
        self.files.push(to);
        Ok(())
    }

    fn link(&mut self) -> Result<()> {
        let to = self.new_path();
        if let Some(from) = self.file() {
            std::fs::hard_link(from, &to)?;
            self.files.push(to);
        }
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        if self.below(4) == 0 && self.dirs.len() > 1 {
            let index = 1 + self.below(self.dirs.len() - 1);
            std::fs::remove_dir(&self.dirs[index])?;
            self.dirs.remove(index);
            return Ok(());
        }
        if let Some(file) = self.file() {
            std::fs::remove_file(&file)?;
            self.files.retain(|it| *it != file);
        }
        Ok(())
    }

    fn symlink(&mut self) -> Result<()> {
        let path = self.new_path();
        Ok(std::os::unix::fs::symlink("target", path)?)
    }

    fn change_file(&mut self, kind: usize) -> Result<()> {
        let Some(path) = self.file() else {
            return Ok(());
        };
        let file = OpenOptions::new().write(true).open(&path)?;
        let size = usize::try_from(file.metadata()?.len())?;
        let at = self.below(size + 10_000) as u64;
        match kind {
            8..11 => file.write_all_at(&self.content(), at)?,
            11 | 12 => file.write_all_at(&self.content(), size as u64)?,
            13 => file.set_len(at)?,
            14 => {
                let len = 1 + self.prng.below(50_000);
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, hole, at, len)?;
            }
            15 => {
                let keep = FallocateFlags::KEEP_SIZE;
                let flags = [FallocateFlags::empty(), keep][self.below(2)];
                rustix::fs::fallocate(&file, flags, at, 1 + self.prng.below(100_000))?;
            }
            16 => {
                let value = self.prng.bytes(20);
                rustix::fs::fsetxattr(&file, "user.name", &value, XattrFlags::empty())?;
            }
            17 => rustix::fs::fremovexattr(&file, "user.name")?,
            18 => {
                let mode = u32::try_from(self.prng.below(0o1000))?;
                file.set_permissions(std::fs::Permissions::from_mode(mode))?;
            }
            _ => {
                let clone = self.new_path();
                let copy = File::create(&clone)?;
                rustix::fs::ioctl_ficlone(&copy, File::open(&path)?)?;
                self.files.push(clone);
            }
        }
        Ok(())
    }

    /// Makes a file, or seldom a directory, durable.
    fn fsync(&mut self) -> Result<()> {
        let dir = self.dir();
        let path = match self.below(5) {
            0 => Some(dir),
            _ => self.file(),
        };
        let path = path.unwrap_or_else(|| self.root.clone());
        Ok(File::open(path)?.sync_all()?)
    }
}

/// Compares the image with the kernel's replay of it. Returns whether it has a log.
fn examine(image: &Pool, name: &str) -> Result<bool> {
    let ours = mount(&image.devices()?, &MountOptions::default())?;
    let has_log = ours.superblock().log_root.is_some();
    let replayed = Pool::empty(1)?;
    copy(&image.images[0], &replayed.images[0])?;
    let kernel = Mount::images(FsType::Btrfs, &replayed.paths(), "", Access::Replay)?;
    // Replay sets times of directories to its own time.
    let rules = Rules {
        times: false,
        ..RULES
    };
    let outcome = compare(&ours, kernel.root(), rules)?;
    assert_eq!(outcome.differences, 0, "{name}: {outcome}");
    Ok(has_log)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut cp = tool::command("cp");
    tool::succeed(cp.arg("--sparse=always").arg(from).arg(to))?;
    Ok(())
}

/// Examines images of one filesystem. Returns how many have a log.
fn examine_one(number: usize, images: usize) -> Result<usize> {
    let (mkfs, options) = LAYOUTS[number % LAYOUTS.len()];
    let pool = Pool::make(1, 120 << 10, mkfs)?;
    let options = format!("commit=300,{options}");
    let mounted = Mount::images(FsType::Btrfs, &pool.paths(), &options, Access::ReadWrite)?;
    let mut changes = Changes::new(mounted.root(), number as u64 + 1);
    for _ in 0..40 {
        changes.change();
    }
    mounted.sync()?;
    let mut logs = 0;
    for index in 0..images {
        for _ in 0..=changes.prng.below(CHANGES_MAX) {
            changes.change();
        }
        changes.fsync()?;
        let image = Pool::empty(1)?;
        copy(&pool.images[0], &image.images[0])?;
        let name = format!("image {index} of filesystem {number} ({mkfs:?}, {options})");
        logs += usize::from(examine(&image, &name)?);
    }
    mounted.unmount_all(&pool.paths())?;
    Ok(logs)
}

#[test]
fn logs_of_random_changes_are_replayed_as_by_the_kernel() -> Result<()> {
    let wanted = std::env::var(IMAGES_VARIABLE).ok();
    let wanted = wanted.map_or(Ok(IMAGES), |count| count.parse())?;
    let mut logs = 0;
    for number in 0..wanted.div_ceil(IMAGES_OF_ONE) {
        let images = (wanted - number * IMAGES_OF_ONE).min(IMAGES_OF_ONE);
        logs += examine_one(number, images)?;
    }
    assert!(logs >= wanted / 3, "{logs} of {wanted} images have a log");
    Ok(())
}
