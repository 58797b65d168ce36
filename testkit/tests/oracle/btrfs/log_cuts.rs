//! Log trees of random changes: images cut between the writes of the kernel while `fsync` is called many times, compared
//! with the kernel's replay of a copy. Only images that have a log count.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use platter_block::sim::{CrashOptions, CrashState, Loss, Recording, Request};
use platter_btrfs::MountOptions;
use platter_btrfs::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_OFFSETS};
use rustix::fs::{FallocateFlags, XattrFlags};
use testkit::compare::compare;
use testkit::fs_type::FsType;
use testkit::kernel_recording::KernelRecording;
use testkit::loopdev::{Access, Mount};
use testkit::prng::Prng;
use testkit::subject::devices_of_files;
use testkit::tool;
use zerocopy::FromBytes;

use super::image::{Pool, mount};

/// How many images with a log there are, unless the variable says otherwise.
const IMAGES: usize = 12;
const IMAGES_VARIABLE: &str = "PLATTER_TEST_LOGS";
/// Calls of `fsync` in one filesystem.
const SYNCS: usize = 24;
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

/// Lets the kernel change a new filesystem, with many calls of `fsync`. Returns all it wrote.
fn record(number: usize) -> Result<Recording> {
    let (mkfs, options) = LAYOUTS[number % LAYOUTS.len()];
    let pool = Pool::make(1, 120 << 10, mkfs)?;
    let devices = devices_of_files(&pool.paths(), 512)?;
    let options = format!("commit=300,{options}");
    let recording = KernelRecording::start(FsType::Btrfs, devices, &options)?;
    let mut changes = Changes::new(recording.root(), number as u64 + 1);
    for _ in 0..40 {
        changes.change();
    }
    rustix::fs::syncfs(File::open(recording.root())?)?;
    for _ in 0..SYNCS {
        for _ in 0..=changes.prng.below(CHANGES_MAX) {
            changes.change();
        }
        changes.fsync()?;
    }
    recording.power_off()
}

/// The ranges of positions at which the superblock names the same log.
fn logs(recording: &Recording) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut has_log = false;
    for (index, event) in recording.events().iter().enumerate() {
        let Request::Write { offset, data } = &event.request else {
            continue;
        };
        let at = SUPERBLOCK_OFFSETS[0].checked_sub(*offset);
        let Some(bytes) = at.and_then(|at| data.get(usize::try_from(at).ok()?..)) else {
            continue;
        };
        if let Ok((superblock, _)) = DiskSuperblock::ref_from_prefix(bytes) {
            if has_log && let Some(last) = found.last_mut() {
                last.end = index + 1;
            }
            has_log = superblock.log_root.get() != 0;
            if has_log {
                found.push(index + 1..recording.events().len() + 1);
            }
        }
    }
    found
}

/// An image that a power failure left.
struct Cut {
    name: String,
    image: Pool,
    /// Whether a write reached the disk in part.
    is_torn: bool,
}

/// A cut at one of these positions: with all that was written before, or without some of the writes that no flush
/// followed.
fn cut(recording: &Recording, range: &Range<usize>, prng: &mut Prng) -> Result<Cut> {
    let position = range.start + usize::try_from(prng.below(range.len() as u64))?;
    if prng.below(2) == 0 {
        return Ok(Cut {
            name: format!("after request {position}"),
            image: Pool::of_devices(&recording.replay(position)?)?,
            is_torn: false,
        });
    }
    let options = CrashOptions {
        seed: prng.next_u64(),
        first_position: position,
        mixes_per_position: 3,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let states = recording.crash_states(options);
    let states: Vec<CrashState<'_>> = states
        .take_while(|state| state.as_ref().map_or(true, |it| it.position == position))
        .collect::<Result<_, _>>()?;
    let state = &states[usize::try_from(prng.below(states.len() as u64))?];
    let is_torn = |(_, loss): &(usize, Loss)| !matches!(loss, Loss::Kept | Loss::Dropped);
    Ok(Cut {
        name: format!("state at request {position}, {:?}", state.losses),
        image: Pool::of_devices(&state.devices()?)?,
        is_torn: state.losses.iter().any(is_torn),
    })
}

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    logs: usize,
    /// Images with torn writes that neither mounts.
    refused: usize,
    /// Images whose superblock with a log did not reach the disk.
    without_log: usize,
}

/// Compares the image with the kernel's replay of it.
fn examine(cut: &Cut, tally: &mut Tally) -> Result<()> {
    let ours = mount(&cut.image.devices()?, &MountOptions::default());
    let replayed = Pool::empty(1)?;
    copy(&cut.image.images[0], &replayed.images[0])?;
    let rules = replayed.replay_rules()?;
    let kernel = Mount::images(FsType::Btrfs, &replayed.paths(), "", Access::Replay);
    let (ours, kernel) = match (ours, kernel) {
        (Ok(ours), Ok(kernel)) => (ours, kernel),
        (Err(_), Err(_)) if cut.is_torn => {
            tally.refused += 1;
            return Ok(());
        }
        (ours, kernel) => bail!(
            "platter: {:?}, the kernel: {:?}",
            ours.map(|_| "mounted"),
            kernel.map(|_| "mounted")
        ),
    };
    let outcome = compare(&ours, kernel.root(), rules)?;
    ensure!(outcome.differences == 0, "{outcome}");
    match ours.superblock().log_root {
        Some(_) => tally.logs += 1,
        None => tally.without_log += 1,
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut cp = tool::command("cp");
    tool::succeed(cp.arg("--sparse=always").arg(from).arg(to))?;
    Ok(())
}

#[test]
fn logs_of_random_changes_are_replayed_as_by_the_kernel() -> Result<()> {
    let wanted = std::env::var(IMAGES_VARIABLE).ok();
    let wanted = wanted.map_or(Ok(IMAGES), |count| count.parse())?;
    let mut tally = Tally::default();
    for number in 0.. {
        let recording = record(number)?;
        let logs = logs(&recording);
        assert!(!logs.is_empty(), "filesystem {number} never had a log");
        let mut prng = Prng::new(number as u64);
        for range in &logs {
            if tally.logs == wanted {
                println!("{tally:?}");
                assert!(tally.refused <= 1 + wanted / 20, "{tally:?}");
                return Ok(());
            }
            let cut = cut(&recording, range, &mut prng)?;
            examine(&cut, &mut tally)
                .with_context(|| format!("filesystem {number}, {}", cut.name))?;
            assert!(tally.without_log <= 10 + tally.logs / 4, "{tally:?}");
        }
    }
    unreachable!("there are more filesystems")
}
