//! A filesystem with a log that the kernel left dirty, and its copies.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use platter_block::sim::{CrashState, Event, Recorder, Recording, Request};
use platter_block::{BlockDevice, MemoryDevice, OverlayDevice, OverlayOptions};
use platter_cache::MemoryBudget;
use platter_ondisk::Locus;
use platter_vfs::Filesystem;
use platter_vfs::clock::SystemClock;
use platter_xfs::ondisk::features::Incompat;
use platter_xfs::ondisk::log::Intent;
use platter_xfs::ondisk::{Geometry, Superblock};
use platter_xfs::recovery::{self, RecoveryReport};
use platter_xfs::txn::{LogDevice, LogPosition, LogState, find_position, scan};
use platter_xfs::{MountOptions, Xfs, check};
use testkit::findings::Findings;
use testkit::fixtures::xfs_features;
use testkit::fs_type::FsType;
use testkit::kernel_recording::KernelRecording;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::parents;
use testkit::subject::{devices_of_files, store};
use testkit::tool;

use super::listing::Listing;

/// How a filesystem is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) size_mib: u64,
    pub(crate) options: &'static [&'static str],
    pub(crate) external_mib: Option<u64>,
    pub(crate) mount_options: &'static str,
    /// Features that `mkfs.xfs` and `xfs_repair` do not know, so that the test itself sets and clears them.
    pub(crate) incompat: Incompat,
}

/// How the kernel is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// With the log written, nothing else.
    Flushed,
    /// With the log as it happens to be.
    Abrupt,
}

/// What the kernel does before it is stopped; the files stay open until then.
pub(crate) type Work = fn(&Path) -> Result<Vec<File>>;

/// The images of one filesystem.
pub(crate) struct Scene {
    dir: tempfile::TempDir,
    shape: Shape,
}

impl Scene {
    pub(crate) fn make(shape: &Shape) -> Result<Self> {
        let scene = Self {
            dir: tempfile::tempdir()?,
            shape: *shape,
        };
        let image = scene.path("image");
        let mut options: Vec<&str> = shape.options.to_vec();
        let log = scene.path("log");
        let named;
        if let Some(mib) = shape.external_mib {
            File::create(&log)?.set_len(mib << 20)?;
            named = format!("logdev={},size={mib}m", log.display());
            options.extend(["-l", &named]);
        }
        xfs::make(&image, shape.size_mib << 10, &options)?;
        xfs_features::set(&image, shape.incompat, true)?;
        Ok(scene)
    }

    /// A filesystem as a power failure left it.
    pub(crate) fn of_state(shape: &Shape, state: &CrashState<'_>) -> Result<Self> {
        let scene = Self {
            dir: tempfile::tempdir()?,
            shape: *shape,
        };
        for (device, image) in state.devices()?.iter().zip(scene.images("")) {
            store(device, &image)?;
        }
        Ok(scene)
    }

    /// A filesystem as a power failure left it after all the writes before a position.
    pub(crate) fn of_position(shape: &Shape, recording: &Recording, at: usize) -> Result<Self> {
        let scene = Self {
            dir: tempfile::tempdir()?,
            shape: *shape,
        };
        for (device, image) in recording.replay(at)?.iter().zip(scene.images("")) {
            store(device, &image)?;
        }
        Ok(scene)
    }

    /// The positions after each write to the log.
    pub(crate) fn log_writes(&self, recording: &Recording) -> Result<Vec<usize>> {
        let (member, range) = match self.shape.external_mib {
            Some(_) => (1, 0..u64::MAX),
            None => (0, self.log_range()?),
        };
        let is_log = |event: &Event| match &event.request {
            Request::Write { offset, .. } => event.member == member && range.contains(offset),
            Request::Flush | Request::Discard(_) => false,
        };
        let events = recording.events().iter().enumerate();
        Ok(events
            .filter(|(_, event)| is_log(event))
            .map(|(at, _)| at + 1)
            .collect())
    }

    /// The position after the first write to a place outside the log that follows one to the log.
    pub(crate) fn first_written_back(&self, recording: &Recording) -> Result<Option<usize>> {
        let logged = self.log_writes(recording)?;
        let Some(&first) = logged.first() else {
            return Ok(None);
        };
        let events = (first + 1..).zip(&recording.events()[first..]);
        let mut writes = events.filter(|(_, event)| matches!(event.request, Request::Write { .. }));
        let found = writes.find(|(after, _)| logged.binary_search(after).is_err());
        Ok(found.map(|(after, _)| after))
    }

    /// Keeps the images, and says where.
    pub(crate) fn keep(self) -> PathBuf {
        self.dir.keep()
    }

    /// Lets the kernel work in a copy of the filesystem, until the power fails. Returns all it wrote.
    pub(crate) fn recorded(&self, work: Work) -> Result<Recording> {
        let images = self.images("");
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let sector = if self.shape.options.concat().contains("size=4096") {
            4096
        } else {
            512
        };
        let initial = devices_of_files(&paths, sector)?;
        let options = self.shape.mount_options;
        let recording = KernelRecording::start(FsType::Xfs, initial, options)?;
        let open_files = work(recording.root())?;
        let root = File::open(recording.root())?;
        rustix::fs::syncfs(&root)?;
        drop((open_files, root));
        recording.power_off()
    }

    /// How it was made.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether there is something to recover.
    pub(crate) fn is_dirty(&self) -> Result<bool> {
        Ok(self.log_position()?.state == LogState::Dirty)
    }

    /// Where the live part of the log is.
    pub(crate) fn log_position(&self) -> Result<LogPosition> {
        let images = self.images("");
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let (_, log) = open_log(&devices_of_files(&paths, 512)?)?;
        Ok(find_position(&log, true)?)
    }

    /// Where the internal log lies, in bytes.
    fn log_range(&self) -> Result<Range<u64>> {
        let mut sector = vec![0; 4096];
        File::open(self.path("image"))?.read_exact_at(&mut sector, 0)?;
        let superblock = Superblock::decode(&sector, Locus::UNKNOWN)?;
        let geometry = Geometry::new(&superblock);
        let start = geometry.byte_offset(superblock.log_start.context("an internal log")?);
        let len = u64::from(superblock.log_blocks) * u64::from(geometry.block_bytes());
        Ok(start..start + len)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn images(&self, suffix: &str) -> Vec<PathBuf> {
        let mut images = vec![self.path(&format!("image{suffix}"))];
        if self.shape.external_mib.is_some() {
            images.push(self.path(&format!("log{suffix}")));
        }
        images
    }

    /// Lets the kernel work in the filesystem, and stops it.
    pub(crate) fn work(&self, shutdown: Shutdown, work: Work) -> Result<()> {
        let images = self.images("");
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let options = self.shape.mount_options;
        let mount = Mount::images(FsType::Xfs, &paths, options, Access::ReadWrite)?;
        let open_files = work(mount.root())?;
        let command = match shutdown {
            Shutdown::Flushed => "shutdown -f",
            Shutdown::Abrupt => "shutdown",
        };
        let mut io = tool::command("xfs_io");
        io.args(["-x", "-c", command]).arg(mount.root());
        tool::succeed(&mut io)?;
        drop(open_files);
        drop(mount);
        // The kernel has released the image once its devices are gone.
        std::thread::sleep(std::time::Duration::from_millis(200));
        Ok(())
    }

    fn copy(&self, suffix: &str) -> Result<Vec<PathBuf>> {
        for (from, to) in self.images("").iter().zip(self.images(suffix)) {
            // A loop device that is still being detached may write to the file that was there.
            let _ = std::fs::remove_file(&to);
            std::fs::copy(from, to)?;
        }
        Ok(self.images(suffix))
    }

    /// What the kernel finds after its own recovery of a copy. A mount can fail with EIO while others come and go; the
    /// second try decides.
    pub(crate) fn recovered_by_the_kernel(&self) -> Result<Listing> {
        let (mount, images) = self
            .mounted_by_the_kernel()
            .or_else(|_| self.mounted_by_the_kernel())?;
        let listing = self.listing(&mount)?;
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        mount.release(&paths)?;
        Ok(listing)
    }

    /// The kernel's mount of a copy, which recovers it.
    fn mounted_by_the_kernel(&self) -> Result<(Mount, Vec<PathBuf>)> {
        let images = self.copy(".kernel")?;
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let mount = Mount::images(FsType::Xfs, &paths, "nouuid", Access::Replay)?;
        Ok((mount, images))
    }

    /// What the kernel finds in a copy that was recovered by platter: in an overlay of the images, which
    /// do not change, that is then written out.
    pub(crate) fn recovered(&self) -> Result<(Listing, RecoveryReport)> {
        let images = self.images("");
        let contents = images.iter().map(std::fs::read);
        let contents: Vec<Vec<u8>> = contents.collect::<Result<_, _>>()?;
        let bases: Vec<Arc<MemoryDevice>> = contents
            .iter()
            .map(|bytes| Arc::new(MemoryDevice::new("image", bytes.clone())))
            .collect();
        let overlays = bases.iter().map(|base| {
            let base = Arc::<MemoryDevice>::clone(base);
            let overlay = OverlayDevice::new(base, OverlayOptions::default());
            let overlay: Arc<dyn BlockDevice> = Arc::new(overlay);
            overlay
        });
        let devices: Vec<_> = overlays.collect();
        let [data, external @ ..] = &devices[..] else {
            bail!("no device");
        };
        let report = recovery::recover(data, external.first())
            .with_context(|| format!("recovery of {}", self.shape.name))?;
        ensure!(report.position.state == LogState::Dirty, "the log is clean");
        recovery::mark_clean(data, external.first(), &report)?;
        for (base, bytes) in bases.iter().zip(&contents) {
            ensure!(base.snapshot() == *bytes, "the image has changed");
        }
        for (device, image) in devices.iter().zip(self.images(".ours")) {
            store(&**device, &image)?;
        }
        Ok((self.judged(".ours")?, report))
    }

    /// What the kernel finds in a copy that platter mounted for writing, and unmounted. With all that was written.
    pub(crate) fn mounted_by_platter(&self) -> Result<(Listing, Recording)> {
        let mut initial: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for image in self.images("") {
            initial.push(Arc::new(MemoryDevice::new("image", std::fs::read(image)?)));
        }
        let recorder = Recorder::new(initial);
        let devices = recorder.devices().iter();
        let devices = devices.map(|device| -> Arc<dyn BlockDevice> { Arc::clone(device) as _ });
        let devices: Vec<_> = devices.collect();
        let options = MountOptions {
            log: devices.get(1).cloned(),
            ..MountOptions::default()
        };
        let budget = Arc::new(MemoryBudget::new(32 << 20));
        let clock = Arc::new(SystemClock::default());
        let mounted = Xfs::mount_writable(Arc::clone(&devices[0]), &options, budget, clock)
            .with_context(|| format!("mount of {}", self.shape.name))?;
        mounted.unmount()?;
        drop(mounted);
        for (device, image) in devices.iter().zip(self.images(".mounted")) {
            store(&**device, &image)?;
        }
        Ok((self.judged(".mounted")?, recorder.recording()))
    }

    /// What the kernel finds in copies that platter brought to rest, which the checkers and it accept.
    fn judged(&self, suffix: &str) -> Result<Listing> {
        let images = self.images(suffix);
        let found = self.problems(suffix)?;
        if !found.is_empty() {
            // Values of attributes are not logged: what was not written before the crash stays incomplete.
            let theirs = self.problems_after_the_kernel()?;
            let is_incomplete = found.iter().any(|line| line.contains("is INCOMPLETE"));
            ensure!(
                found == theirs && is_incomplete,
                "{found:#?}, and after the kernel {theirs:#?}"
            );
        }
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let options = "nouuid,norecovery";
        let mount = Mount::images(FsType::Xfs, &paths, options, Access::ReadOnly)?;
        let listing = self.listing(&mount)?;
        drop(mount);
        // The kernel takes the log we end for a clean one, and works on.
        let mount = Mount::images(FsType::Xfs, &paths, "nouuid", Access::ReadWrite)?;
        std::fs::write(mount.root().join("afterwards"), b"works")?;
        mount.unmount_all(&paths)?;
        let after = self.problems(suffix)?;
        ensure!(after == found, "afterwards: {after:#?}");
        Ok(listing)
    }

    /// What a mount shows. Parent pointers must be to the directories that name the inode.
    fn listing(&self, mount: &Mount) -> Result<Listing> {
        if self.shape.incompat.contains(Incompat::PARENT) {
            parents::compare(mount.root())?;
        }
        Listing::of(mount.root())
    }

    /// What `xfs_repair` and our check find in copies whose log is clean.
    fn problems(&self, suffix: &str) -> Result<BTreeSet<String>> {
        let images = self.images(suffix);
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let mut findings = Findings::default();
        let devices = devices_of_files(&paths, 512)?;
        let options = MountOptions {
            log: devices.get(1).cloned(),
            ..MountOptions::default()
        };
        let budget = Arc::new(MemoryBudget::new(32 << 20));
        check::check(&devices[0], &options, &budget, &mut findings)?;
        xfs_features::set(&images[0], self.shape.incompat, false)?;
        let verdict = xfs::check(&paths)?;
        xfs_features::set(&images[0], self.shape.incompat, true)?;
        let mut problems = problems(&verdict);
        if self.shape.incompat.contains(Incompat::PARENT) {
            let is_known = |line: &String| OF_PARENTS.iter().any(|known| line.contains(known));
            problems.retain(|line| !is_known(line));
        }
        problems.extend(findings.0.iter().map(|found| format!("{found:?}")));
        Ok(problems)
    }

    /// What is found in a copy after the kernel recovered it.
    pub(super) fn problems_after_the_kernel(&self) -> Result<BTreeSet<String>> {
        let images = self.copy(".repair")?;
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let mount = Mount::images(FsType::Xfs, &paths, "nouuid", Access::ReadWrite)?;
        mount.unmount_all(&paths)?;
        self.problems(".repair")
    }
}

/// What `xfs_repair` 6.1 says of attribute forks with parent pointers, and of what those directories lead to.
const OF_PARENTS: [&str; 10] = [
    "attr fork",
    "attribute entry",
    "attribute contents",
    "bad anextents",
    "bad nblocks",
    "couldn't map inode",
    "disconnected inode",
    "disconnected dir inode",
    "nlinks from",
    "lost+found",
];

/// The lines of a verdict; threads print them in any order.
fn problems(verdict: &Verdict) -> BTreeSet<String> {
    match verdict {
        Verdict::Clean => BTreeSet::new(),
        Verdict::NotClean(lines) => lines.iter().cloned().collect(),
        other @ Verdict::Refused(_) => BTreeSet::from([format!("{other:?}")]),
    }
}

/// The superblock and the log of a filesystem, from its device and that of its log, if it has one.
fn open_log(devices: &[Arc<dyn BlockDevice>]) -> Result<(Superblock, LogDevice)> {
    let [data, external @ ..] = devices else {
        bail!("no device");
    };
    let mut sector = vec![0; 4096];
    data.read_at(0, &mut sector)?;
    let superblock = Superblock::decode(&sector, Locus::UNKNOWN)?;
    let log = LogDevice::open(&superblock, data, external.first())?;
    Ok((superblock, log))
}

/// The intents that the log of a filesystem leaves open after all the writes before a position.
pub(super) fn open_intents(recording: &Recording, at: usize) -> Result<Vec<Intent>> {
    let devices = recording.replay(at)?.into_iter();
    let devices = devices.map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) });
    let devices: Vec<_> = devices.collect();
    let (superblock, log) = open_log(&devices)?;
    let position = find_position(&log, true)?;
    Ok(scan(&log, &position, &superblock)?.open_intents)
}
