//! From the name of an image to an open filesystem.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use platter_block::{Access, BlockDevice, CountingDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::{Corruption, Locus};
use platter_vfs::clock::{FixedClock, SystemClock};
use platter_vfs::{CheckReport, CheckReporter, CheckSink, Clock, Finding, Timestamp};

use crate::driver::{self, Driver, MountRequest};
use crate::{Cause, Error};
use crate::{Format, Image, ImageSpec, Result, Volume};

/// What the caches of one volume may take unless told otherwise, in bytes.
pub const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// What to do about a journal or log that holds changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Replay it in memory. The image is not written.
    #[default]
    Replay,
    /// Leave it alone: what is read may be inconsistent (`norecovery`).
    Skip,
}

/// How a filesystem is kept up while it may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// What to do about damage that is met; `None` for what the filesystem asks for itself.
    pub on_error: Option<OnError>,
    /// How contents of files become durable; `None` for what the filesystem asks for itself.
    pub data_mode: Option<DataMode>,
    /// How often changes are made durable by themselves, by a thread of the volume's own. `None` for
    /// never: then only syncing and unmounting does it, in the caller's thread.
    pub commit_interval: Option<Duration>,
    /// Whether contents of files may take the blocks that the filesystem reserves for the superuser:
    /// true where everybody who writes is the superuser.
    pub uses_reserve: bool,
    /// Whether files get to share metadata of equal contents: on ext2, ext3 and ext4, blocks of
    /// attributes (`-o no_mbcache` for not).
    pub mbcache: bool,
}

impl Default for WriteOptions {
    /// What the filesystem asks for, every five seconds, for anybody, sharing what can be shared.
    fn default() -> Self {
        Self {
            on_error: None,
            data_mode: None,
            commit_interval: Some(Duration::from_secs(5)),
            uses_reserve: false,
            mbcache: true,
        }
    }
}

/// Structures that other groups have copies of.
const SUPERBLOCK: &str = "superblock";
const GROUP_DESCRIPTOR: &str = "group descriptor";

/// How contents of files become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataMode {
    /// Through the journal, as metadata does.
    Journal,
    /// Straight to their places, before what names them.
    Ordered,
    /// Straight to their places, in no order that is promised.
    Writeback,
}

/// What to do about damage that is met while a filesystem may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Note it in the filesystem and go on.
    Continue,
    /// Note it and change nothing any more.
    ReadOnly,
}

/// How to open a filesystem. Unless it is opened for [writing](Self::writing), nothing is written to
/// the image.
///
/// ```no_run
/// let volume = platter::OpenOptions::new().open(&"disk.img@2".parse()?)?;
/// print!("{}", volume.read("/etc/hostname", 4096)?.escape_ascii());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct OpenOptions {
    recovery: Recovery,
    offset: Option<u64>,
    journal: Option<PathBuf>,
    superblock_kib: Option<u64>,
    access: Access,
    writing: Option<WriteOptions>,
    budget: Arc<MemoryBudget>,
    clock: Option<Arc<dyn Clock>>,
    /// The time of everything, where the same changes are to make the same bytes.
    date: Option<Timestamp>,
    pub(crate) count_requests: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            recovery: Recovery::default(),
            offset: None,
            journal: None,
            superblock_kib: None,
            access: Access::Read,
            writing: None,
            budget: Arc::new(MemoryBudget::new(CACHE_BYTES_DEFAULT)),
            clock: None,
            date: None,
            count_requests: false,
        }
    }
}

impl OpenOptions {
    /// The defaults: replay in memory, a lock that other readers share, the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What to do about a journal that holds changes.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = recovery;
        self
    }

    /// The filesystem begins so many bytes into the image or partition.
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// The image or device of an external journal.
    #[must_use]
    pub fn journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.journal = Some(path.into());
        self
    }

    /// Take a copy of the superblock, in units of 1 KiB from the start, as mount's `sb=` counts.
    #[must_use]
    pub fn superblock_kib(mut self, superblock_kib: u64) -> Self {
        self.superblock_kib = Some(superblock_kib);
        self
    }

    /// Take no lock, so that an image somebody else writes to can be looked at.
    #[must_use]
    pub fn without_lock(mut self) -> Self {
        self.access = Access::ReadUnlocked;
        self
    }

    /// Open it for writing, with a lock that nobody shares. A journal that holds changes is replayed
    /// onto the image first. Whoever is done calls
    /// [`unmount`](platter_vfs::Filesystem::unmount): to drop the volume without that is a power
    /// cut.
    ///
    /// ```no_run
    /// use platter::WriteOptions;
    /// let volume = platter::OpenOptions::new()
    ///     .writing(WriteOptions::default())
    ///     .open(&"disk.img".parse()?)?;
    /// volume.filesystem().unmount()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn writing(mut self, options: WriteOptions) -> Self {
        self.access = Access::Write;
        self.writing = Some(options);
        self
    }

    /// Let the caches take their memory from `budget`, which other volumes may share.
    #[must_use]
    pub fn budget(mut self, budget: Arc<MemoryBudget>) -> Self {
        self.budget = budget;
        self
    }

    /// Take time and random numbers from `clock`.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Have all times be this one, and take random numbers from what the filesystem says of itself:
    /// the same changes of the same image make the same bytes. A [clock](Self::clock) goes before it.
    #[must_use]
    pub fn reproducible(mut self, date: Timestamp) -> Self {
        self.date = Some(date);
        self
    }

    /// Count the requests that reach the image; see [`Volume::request_counts`].
    #[must_use]
    pub fn count_requests(mut self) -> Self {
        self.count_requests = true;
        self
    }

    /// Opens the image that `spec` names, ignoring its path, to look at it or to mount it.
    pub fn open_image(&self, spec: &ImageSpec) -> Result<Image> {
        let image = Image::open_spec(spec, self.access)?;
        self.at_offset(image)
    }

    /// The image from the byte on where the filesystem is to begin.
    pub(crate) fn at_offset(&self, image: Image) -> Result<Image> {
        match self.offset {
            Some(offset) => image.at_offset(offset),
            None => Ok(image),
        }
    }

    /// Opens the filesystem that `spec` names, ignoring its path.
    pub fn open(&self, spec: &ImageSpec) -> Result<Volume> {
        self.mount(&self.open_image(spec)?)
    }

    /// Opens the filesystem that an image holds.
    pub fn mount(&self, image: &Image) -> Result<Volume> {
        let driver = self.driver(image)?;
        let mut device = Arc::clone(image.device());
        let counting = self.count_requests.then(|| {
            let counting = Arc::new(CountingDevice::new(Arc::clone(&device)));
            device = Arc::clone(&counting) as Arc<dyn BlockDevice>;
            counting
        });
        let request = self.request(Arc::clone(&device))?;
        let fs = (driver.mount)(request).map_err(|error| self.explain(image, driver, error))?;
        let mut volume = Volume::new(Arc::clone(image.name()), fs)
            .on_device(device)
            .on_file(image.file().cloned());
        if let Some(counting) = counting {
            volume = volume.counting(counting);
        }
        Ok(volume)
    }

    /// Reads all metadata of the filesystem that an image holds, and tells `sink` what breaks a
    /// rule.
    ///
    /// A journal that holds changes is replayed in memory first. A filesystem too damaged to be
    /// opened is a finding, too.
    pub fn check(&self, image: &Image, sink: &mut dyn CheckSink) -> Result<CheckReport> {
        let driver = self.driver(image)?;
        let mut request = self.request(Arc::clone(image.device()))?;
        request.writing = None;
        match (driver.check)(request, sink) {
            Ok(report) => Ok(report),
            Err(platter_vfs::Error::Corrupt(corruption)) => {
                let mut reporter = CheckReporter::new(sink);
                // There is nothing to break off.
                let copy = self.superblock_copy(image, driver, &corruption);
                let _ = reporter.finding(Finding::error(*corruption));
                if let Some(kib) = copy {
                    let locus = Locus::default().at_offset(kib.saturating_mul(1024));
                    let hint = format!("is a valid copy: try --superblock {kib}");
                    let copy = Corruption::new(SUPERBLOCK, locus, hint);
                    let _ = reporter.finding(Finding::notice(copy));
                }
                Ok(reporter.finish())
            }
            Err(error) => Err(Error::new(image.name(), error)),
        }
    }

    /// Why a filesystem cannot be opened, and which copy of its superblock may do.
    pub(crate) fn explain(
        &self,
        image: &Image,
        driver: &Driver,
        error: platter_vfs::Error,
    ) -> Error {
        let corruption = match &error {
            platter_vfs::Error::Corrupt(corruption) => Some(corruption),
            platter_vfs::Error::Io(_)
            | platter_vfs::Error::Condition(_)
            | platter_vfs::Error::Unsupported(_) => None,
        };
        let copy =
            corruption.and_then(|corruption| self.superblock_copy(image, driver, corruption));
        match copy {
            Some(kib) => Error::new(image.name(), Cause::SuperblockDamaged { error, kib }),
            None => Error::new(image.name(), error),
        }
    }

    /// A copy of the superblock to look at, in units of 1 KiB, where `corruption` is in the first one
    /// or in what lies beside it.
    fn superblock_copy(
        &self,
        image: &Image,
        driver: &Driver,
        corruption: &Corruption,
    ) -> Option<u64> {
        let has_copies = [SUPERBLOCK, GROUP_DESCRIPTOR].contains(&corruption.structure);
        if !has_copies || self.superblock_kib.is_some() {
            return None;
        }
        (driver.superblock_copy)(&**image.device())
    }

    pub(crate) fn driver(&self, image: &Image) -> Result<&'static Driver> {
        let format = match image.format()? {
            // A driver that is told where to look needs no magic in the usual place.
            None if self.superblock_kib.is_some() => Some(Format::Ext),
            format => format,
        };
        let driver = format.and_then(driver::serving);
        driver.ok_or_else(|| image.not_a_filesystem(format))
    }

    pub(crate) fn request(&self, device: Arc<dyn BlockDevice>) -> Result<MountRequest> {
        let journal = match &self.journal {
            Some(path) => Some(self.open_journal(path)?),
            None => None,
        };
        let clock: Arc<dyn Clock> = match (&self.clock, self.date) {
            (Some(clock), _) => Arc::clone(clock),
            (None, Some(date)) => Arc::new(FixedClock::new(date, driver::seed(&*device))),
            (None, None) => Arc::new(SystemClock::new()),
        };
        Ok(MountRequest {
            device,
            journal,
            recovery: self.recovery,
            superblock_kib: self.superblock_kib,
            writing: self.writing,
            on_scratch: false,
            budget: Arc::clone(&self.budget),
            clock,
        })
    }

    fn open_journal(&self, path: &Path) -> Result<Arc<dyn BlockDevice>> {
        let spec = ImageSpec::parse(path).map_err(|error| Error {
            image: "journal".into(),
            path: None,
            cause: Cause::Spec(error),
        })?;
        Ok(Arc::clone(Image::open_spec(&spec, self.access)?.device()))
    }
}
