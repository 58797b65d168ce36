//! A filesystem with a log that the kernel left dirty, and its copies.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use platter_block::{BlockDevice, MemoryDevice, OverlayDevice, OverlayOptions};
use platter_ondisk::Locus;
use platter_xfs::ondisk::log::RecordHeader;
use platter_xfs::ondisk::{Geometry, Superblock};
use platter_xfs::recovery::{self, RecoveryReport};
use platter_xfs::txn::LogState;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
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
    folder: tempfile::TempDir,
    shape: Shape,
}

impl Scene {
    pub(crate) fn make(shape: &Shape) -> Result<Self> {
        let scene = Self {
            folder: tempfile::tempdir()?,
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
        Ok(scene)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
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

    /// The images as a crash before the end of the log would have left them: one scene for each of up to
    /// `most` records, none of whose successors was written. For a log that did not wrap.
    pub(crate) fn cuts(&self, most: usize) -> Result<Vec<Self>> {
        let image = std::fs::read(self.path("image"))?;
        let superblock = Superblock::decode(&image[..4096], Locus::UNKNOWN)?;
        let geometry = Geometry::new(&superblock);
        let start = superblock.log_start.context("an internal log")?;
        let start = usize::try_from(geometry.byte_offset(start))?;
        let len = usize::try_from(superblock.log_blocks)? * geometry.block_bytes() as usize;
        let log = &image[start..start + len];
        let first = &log[..512];
        assert!(RecordHeader::has_magic(first) && log[len - 512..len - 508] == [0; 4]);
        let is_record = |at: &usize| RecordHeader::has_magic(&log[*at..]);
        let records: Vec<usize> = (0..len).step_by(512).filter(is_record).collect();
        // The first record is mkfs's.
        let records = records.get(2..).context("a log of some records")?;
        let step = records.len().div_ceil(most).max(1);
        let mut cuts = Vec::new();
        for at in records.iter().step_by(step) {
            let cut = Self {
                folder: tempfile::tempdir()?,
                shape: self.shape,
            };
            let mut bytes = image.clone();
            bytes[start + at..start + len].fill(0);
            std::fs::write(cut.path("image"), bytes)?;
            cuts.push(cut);
        }
        Ok(cuts)
    }

    fn copy(&self, suffix: &str) -> Result<Vec<PathBuf>> {
        for (from, to) in self.images("").iter().zip(self.images(suffix)) {
            std::fs::copy(from, to)?;
        }
        Ok(self.images(suffix))
    }

    /// What the kernel finds after its own recovery of a copy.
    pub(crate) fn recovered_by_the_kernel(&self) -> Result<Listing> {
        let images = self.copy(".kernel")?;
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let mount = Mount::images(FsType::Xfs, &paths, "nouuid", Access::Replay)?;
        Listing::of(mount.root())
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
        self.explain(&report);
        recovery::mark_clean(data, external.first(), &report)?;
        for (base, bytes) in bases.iter().zip(&contents) {
            assert!(base.snapshot() == *bytes, "{}: changed", self.shape.name);
        }
        for (device, image) in devices.iter().zip(self.images(".ours")) {
            let mut bytes = vec![0; usize::try_from(device.geometry().len_bytes)?];
            device.read_at(0, &mut bytes)?;
            std::fs::write(image, bytes)?;
        }
        let images = self.images(".ours");
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let (verdict, text) = xfs::report(&paths)?;
        assert_eq!(verdict, Verdict::Clean, "{}: {text}", self.shape.name);
        let options = "nouuid,norecovery";
        let mount = Mount::images(FsType::Xfs, &paths, options, Access::ReadOnly)?;
        let listing = Listing::of(mount.root())?;
        drop(mount);
        // The kernel takes the log we end for a clean one, and works on.
        let mount = Mount::images(FsType::Xfs, &paths, "nouuid", Access::ReadWrite)?;
        std::fs::write(mount.root().join("afterwards"), b"works")?;
        mount.unmount_all(&paths)?;
        assert_eq!(xfs::check(&paths)?, Verdict::Clean, "{}", self.shape.name);
        Ok((listing, report))
    }

    fn explain(&self, report: &RecoveryReport) {
        let name = self.shape.name;
        assert_eq!(report.position.state, LogState::Dirty, "{name}");
        assert!(report.position.head > 0, "{name}: {report:?}");
    }
}
