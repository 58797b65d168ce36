//! Recovery compared with that of the kernel and of e2fsck, on devices that lost power under the
//! kernel's hands.

mod log;
mod fast_commit;

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ext4::FsContext;
use platter_ext4::ondisk::jbd2::LogBlock;
use platter_ext4::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_OFFSET_BYTES};
use platter_ext4::ondisk::{Geometry, Superblock};
use platter_ext4::recovery::{Onto, RecoveryReport, open_journal, recover};
use platter_vfs::{Clock, FixedClock, Timestamp};
use testkit::loopdev::{Access, LoopDevice, Mount};
use testkit::oracle::mke2fs;
use testkit::tool;

pub(crate) use log::compare_with_others;

/// A filesystem on files of its own, and its journal when that lies elsewhere.
pub(crate) struct Scene {
    pub(crate) dir: tempfile::TempDir,
    external: bool,
}

/// What was on the devices at one moment.
pub(crate) struct Cut {
    pub(crate) image: Vec<u8>,
    pub(crate) journal: Option<Vec<u8>>,
}

/// A recovered image, and where its journal lies in it.
pub(crate) struct Recovered {
    pub(crate) image: Vec<u8>,
    pub(crate) report: RecoveryReport,
    /// The features of its journal.
    pub(crate) features: Vec<&'static str>,
    journal_bytes: Vec<Range<u64>>,
}

impl Scene {
    fn make(size_kib: u64, options: &[&str]) -> Result<Self> {
        Self::make_filled(size_kib, options, None)
    }

    pub(crate) fn make_filled(
        size_kib: u64,
        options: &[&str],
        files: Option<&Path>,
    ) -> Result<Self> {
        let scene = Self {
            dir: tempfile::tempdir()?,
            external: false,
        };
        mke2fs::make(&scene.image(), size_kib, options, files)?;
        Ok(scene)
    }

    /// With a journal of 8 MiB on a device of its own.
    pub(crate) fn make_external(
        size_kib: u64,
        block_bytes: &str,
        files: Option<&Path>,
    ) -> Result<Self> {
        let scene = Self {
            dir: tempfile::tempdir()?,
            external: true,
        };
        let journal = scene.journal();
        std::fs::File::create(&journal)?.set_len(8 << 20)?;
        let mut make = tool::command("mke2fs");
        make.args(["-q", "-F", "-b", block_bytes, "-O", "journal_dev"])
            .arg(&journal);
        tool::succeed(&mut make)?;
        let device = LoopDevice::attach(&journal, Access::ReadWrite)?;
        let option = format!("device={}", device.path().display());
        let options = ["-t", "ext4", "-b", block_bytes, "-J", &option];
        mke2fs::make(&scene.image(), size_kib, &options, files)?;
        Ok(scene)
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// Runs `workload` on the mounted filesystem, and returns what the devices held at its end and
    /// whenever it asked.
    pub(crate) fn cuts(
        &self,
        options: &str,
        workload: impl FnOnce(&Path, &mut dyn FnMut() -> Result<()>) -> Result<()>,
    ) -> Result<Vec<Cut>> {
        let journal = self
            .external
            .then(|| LoopDevice::attach(&self.journal(), Access::ReadWrite));
        let journal = journal.transpose()?;
        // The kernel commits every 5 s by itself; no cut must race with that.
        let mut options = format!("{options},commit=600");
        if let Some(device) = &journal {
            options = format!("{options},journal_path={}", device.path().display());
        }
        let mount = Mount::image(&self.image(), &options, Access::ReadWrite)?;
        let mut cuts = Vec::new();
        let mut cut = || -> Result<()> {
            cuts.push(Cut {
                image: std::fs::read(self.image())?,
                journal: self
                    .external
                    .then(|| std::fs::read(self.journal()))
                    .transpose()?,
            });
            Ok(())
        };
        workload(mount.root(), &mut cut)?;
        cut()?;
        mount.unmount(&self.image())?;
        Ok(cuts)
    }
}

impl Cut {
    fn recover(&self) -> Result<Recovered> {
        self.recover_onto(Onto::Device)
    }

    fn recover_onto(&self, onto: Onto) -> Result<Recovered> {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", self.image.clone()));
        let journal = self.journal.as_ref().map(|bytes| -> Arc<dyn BlockDevice> {
            Arc::new(MemoryDevice::new("journal", bytes.clone()))
        });
        Recovered::of(&device, journal.as_ref(), onto)
    }

    fn volume(&self) -> Result<FsContext> {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", self.image.clone()));
        open_volume(&device, &Arc::new(MemoryBudget::new(16 << 20)))
    }

    /// Where the blocks of the fast commit area lie in the image, in bytes.
    fn fast_commit_blocks(&self) -> Result<Vec<usize>> {
        let volume = self.volume()?;
        let journal = open_journal(&volume, None)?;
        let area = journal.superblock().fast_commit.clone();
        let places = area.filter_map(|block| journal.map().locate(LogBlock(block)));
        let places = places.map(|(place, _)| volume.geometry.offset_bytes(place));
        Ok(places.map(usize::try_from).collect::<Result<_, _>>()?)
    }

    /// Writes the devices' contents into files of a new directory.
    pub(crate) fn save(&self) -> Result<Scene> {
        let scene = Scene {
            dir: tempfile::tempdir()?,
            external: self.journal.is_some(),
        };
        write_sparse(&scene.image(), &self.image)?;
        if let Some(journal) = &self.journal {
            write_sparse(&scene.journal(), journal)?;
        }
        Ok(scene)
    }

    /// The image after the kernel's own recovery, which a mount does.
    fn recovered_by_kernel(&self) -> Result<Scene> {
        let scene = self.save()?;
        scene.cuts("", |_, _| Ok(()))?;
        Ok(scene)
    }
}

impl Recovered {
    /// Recovers a device, whose journal is `external` if it does not lie there as well.
    fn of(
        device: &Arc<dyn BlockDevice>,
        external: Option<&Arc<dyn BlockDevice>>,
        onto: Onto,
    ) -> Result<Self> {
        let budget = Arc::new(MemoryBudget::new(16 << 20));
        let volume = open_volume(device, &budget)?;
        let mut journal = open_journal(&volume, external)?;
        let block_bytes = u64::from(volume.geometry.block_bytes);
        let journal_bytes = if journal.is_internal() {
            let places = journal.map().places().into_iter();
            places
                .map(|place| place.start * block_bytes..place.end * block_bytes)
                .collect()
        } else {
            Vec::new()
        };
        let features = journal.state().features;
        let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(Timestamp::default(), 0));
        let report = recover(
            &mut journal,
            device,
            onto,
            SUPERBLOCK_OFFSET_BYTES,
            &budget,
            &clock,
        )?;
        let mut image = vec![0; usize::try_from(device.geometry().len_bytes)?];
        device.read_at(0, &mut image)?;
        Ok(Self {
            image,
            report,
            features,
            journal_bytes,
        })
    }

    pub(crate) fn save(&self) -> Result<Scene> {
        Cut {
            image: self.image.clone(),
            journal: None,
        }
        .save()
    }

    /// Demands that `other` holds the same, but for the superblock and the journal.
    fn assert_same_blocks(&self, other: &[u8], reader: &str) {
        assert_eq!(self.image.len(), other.len());
        let unit = 1024;
        let blocks = self.image.chunks(unit).zip(other.chunks(unit));
        let differing: Vec<_> = blocks
            .enumerate()
            .filter(|(_, (ours, theirs))| ours != theirs)
            .map(|(index, _)| (index * unit) as u64)
            .filter(|at| *at != SUPERBLOCK_OFFSET_BYTES)
            .filter(|at| !self.journal_bytes.iter().any(|range| range.contains(at)))
            .collect();
        assert!(
            differing.is_empty(),
            "{reader} differs at bytes {differing:?}"
        );
    }
}

pub(crate) fn open_volume(
    device: &Arc<dyn BlockDevice>,
    budget: &Arc<MemoryBudget>,
) -> Result<FsContext> {
    let mut disk: DiskSuperblock = zerocopy::FromZeros::new_zeroed();
    device.read_at(
        SUPERBLOCK_OFFSET_BYTES,
        zerocopy::IntoBytes::as_mut_bytes(&mut disk),
    )?;
    let superblock = Superblock::decode(&disk)?;
    let geometry = Geometry::decode(&disk, &superblock)?;
    Ok(FsContext::new(
        Arc::clone(device),
        superblock,
        geometry,
        Arc::clone(budget),
    ))
}

fn write_sparse(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = std::fs::File::create(path)?;
    file.set_len(bytes.len() as u64)?;
    let unit = 64 * 1024;
    for (index, chunk) in bytes.chunks(unit).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            file.write_all_at(chunk, (index * unit) as u64)?;
        }
    }
    Ok(())
}
