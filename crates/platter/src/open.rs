//! From the name of an image to an open filesystem.

use std::path::PathBuf;
use std::sync::Arc;

use platter_block::{Access, GatheringDevice, RevocableDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::{Corruption, Locus};
use platter_vfs::clock::{FixedClock, SystemClock};
use platter_vfs::{CheckReport, CheckReporter, CheckSink, Clock, Condition, Finding, Timestamp};

use crate::counting::Counting;
use crate::devices::{DeviceRole, Devices};
use crate::driver::{self, Driver, MountRequest, Purpose};
use crate::host_file::explain_in_use;
use crate::options::{MountOption, Recovery, WriteOptions};
use crate::volume::VolumeParts;
use crate::{Cause, Error, Image, ImageSet, ImageSpec, Probe, Result, Volume};

pub use crate::driver::check_option;

/// Default size of the caches of one volume, in bytes.
pub const CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// How to open a filesystem. Unless it is opened for [writing](Self::writing), nothing is written to
/// the image.
///
/// ```no_run
/// let volume = platter::MountOptions::new().open(&"disk.img@2".parse()?)?;
/// print!("{}", volume.read("/etc/hostname")?.escape_ascii());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct MountOptions {
    recovery: Recovery,
    offset: Option<u64>,
    /// Devices in addition to the image.
    devices: Vec<(DeviceRole, PathBuf)>,
    options: Vec<MountOption>,
    superblock_kib: Option<u64>,
    access: Access,
    writing: Option<WriteOptions>,
    budget: Arc<MemoryBudget>,
    clock: Option<Arc<dyn Clock>>,
    /// The time of everything, where the same changes are to make the same bytes.
    date: Option<Timestamp>,
    pub(crate) count_requests: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            recovery: Recovery::default(),
            offset: None,
            devices: Vec::new(),
            options: Vec::new(),
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

impl MountOptions {
    /// The defaults: replay in memory, a lock that other readers share, the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what is done about a journal or log that holds changes.
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

    /// Another device of the filesystem: `IMAGE[@PARTITION]` of a further one that holds data, or of an
    /// external journal. Devices are never searched for.
    #[must_use]
    pub fn device(mut self, role: DeviceRole, path: impl Into<PathBuf>) -> Self {
        self.devices.push((role, path.into()));
        self
    }

    /// A mount option that not all filesystems have. Opening fails where the filesystem does not have
    /// it, or not with this value.
    #[must_use]
    pub fn option(mut self, option: MountOption) -> Self {
        self.options.push(option);
        self
    }

    /// Mounts with a copy of the superblock, at `superblock_kib` in units of 1 KiB from the start, as mount's `sb=` counts.
    #[must_use]
    pub fn superblock_kib(mut self, superblock_kib: u64) -> Self {
        self.superblock_kib = Some(superblock_kib);
        self
    }

    /// Takes no lock, so that an image that another process writes to can be read.
    #[must_use]
    pub fn without_lock(mut self) -> Self {
        self.access = Access::ReadUnlocked;
        self
    }

    /// Open it for writing, with an exclusive lock. A journal that holds changes is replayed
    /// onto the image first. [`Volume::close`] ends it.
    ///
    /// ```no_run
    /// use platter::WriteOptions;
    /// let volume = platter::MountOptions::new()
    ///     .writing(WriteOptions::default())
    ///     .open(&"disk.img".parse()?)?;
    /// volume.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn writing(mut self, options: WriteOptions) -> Self {
        self.access = Access::Write;
        self.writing = Some(options);
        self
    }

    /// Opens it for [writing](Self::writing) with the defaults.
    #[must_use]
    pub fn read_write(self) -> Self {
        self.writing(WriteOptions::default())
    }

    /// Makes the caches take their memory from `budget`, which other volumes may share.
    #[must_use]
    pub fn budget(mut self, budget: Arc<MemoryBudget>) -> Self {
        self.budget = budget;
        self
    }

    /// Takes time and random numbers from `clock`.
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

    /// Counts the requests that reach the image; see [`Volume::request_counts`].
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

    /// Opens the filesystem that an image holds, or several.
    pub fn mount(&self, images: impl Into<ImageSet>) -> Result<Volume> {
        let images = images.into();
        let image = images.first();
        let driver = self.driver(image)?;
        let mut revocable = Vec::new();
        let mut devices = self.devices(&images)?.map(|device| {
            let device = Arc::new(RevocableDevice::new(Arc::clone(&device.device)));
            revocable.push(Arc::clone(&device));
            device
        });
        let counting = self.count_requests.then(|| Counting::below(&mut devices));
        let mut gathering = Vec::new();
        if driver.gathers_reads() && self.writing.is_none() {
            devices = devices.map(|device| {
                let device = Arc::new(GatheringDevice::new(Arc::clone(&device.device)));
                gathering.push(Arc::clone(&device));
                device
            });
        }
        let request = self.request(driver, image, devices.clone())?;
        let fs = driver
            .mount(request)
            .map_err(|error| self.explain(image, driver, error))?;
        let volume = VolumeParts {
            devices: devices.all(),
            file: image.file().cloned(),
            host_files: devices.host_files(),
            counting,
            gathering,
            revocable: Some(revocable),
            ..VolumeParts::new(Arc::clone(image.name()), fs)
        };
        Ok(volume.volume())
    }

    /// Looks at the image with its devices, and at its partitions if it has any.
    pub fn probe(&self, images: impl Into<ImageSet>) -> Result<Probe> {
        let images = images.into();
        images
            .first()
            .probe_with(&self.all_images(&images)?.devices())
    }

    /// Reads all metadata of the filesystem that an image holds, and reports what breaks a
    /// rule to `sink`.
    ///
    /// A journal that holds changes is replayed in memory first. A filesystem too corrupt to be
    /// opened is a finding, too.
    pub fn check(
        &self,
        images: impl Into<ImageSet>,
        sink: &mut dyn CheckSink,
    ) -> Result<CheckReport> {
        let images = images.into();
        let image = images.first();
        let driver = self.driver(image)?;
        let mut request = self.request(driver, image, self.devices(&images)?)?;
        request.writing = None;
        match driver.check(request, sink) {
            Ok(report) => Ok(report),
            Err(platter_vfs::Error::Corrupt(corruption)) => {
                let mut reporter = CheckReporter::new(sink);
                // There is nothing to break off.
                let copy = self.superblock_copy(image, driver, &corruption);
                let _ = reporter.finding(Finding::error(*corruption));
                if let Some(kib) = copy {
                    let locus = Locus::default().at_offset(kib.saturating_mul(1024));
                    let hint = format!("is a valid copy: try --superblock {kib}");
                    let copy = Corruption::new("superblock", locus, hint);
                    let _ = reporter.finding(Finding::notice(copy));
                }
                Ok(reporter.finish())
            }
            Err(error) => Err(Error::new(image.name(), error)),
        }
    }

    /// Reads all data of the filesystem that an image holds, and every copy of it, and reports to `sink`
    /// what does not match its checksum.
    ///
    /// # Errors
    /// `Unsupported` where data has no checksums.
    pub fn verify_data(
        &self,
        images: impl Into<ImageSet>,
        sink: &mut dyn CheckSink,
    ) -> Result<CheckReport> {
        let images = images.into();
        let image = images.first();
        let driver = self.driver(image)?;
        let mut request = self.request(driver, image, self.devices(&images)?)?;
        request.writing = None;
        let verified = driver.verify_data(request, sink);
        verified.map_err(|error| self.explain(image, driver, error))
    }

    /// Why a filesystem cannot be opened, and which copy of its superblock may do.
    pub(crate) fn explain(
        &self,
        image: &Image,
        driver: &dyn Driver,
        error: platter_vfs::Error,
    ) -> Error {
        let corruption = match &error {
            platter_vfs::Error::Corrupt(corruption) => Some(corruption),
            platter_vfs::Error::Io(_)
            | platter_vfs::Error::Condition(_)
            | platter_vfs::Error::Refused(_)
            | platter_vfs::Error::Unsupported(_) => None,
        };
        let copy =
            corruption.and_then(|corruption| self.superblock_copy(image, driver, corruption));
        match copy {
            Some(kib) => Error::new(image.name(), Cause::SuperblockCorrupt { error, kib }),
            None => Error::new(image.name(), error),
        }
    }

    /// A copy of the superblock to look at, in units of 1 KiB, where `corruption` is in the first one
    /// or in a structure next to it.
    fn superblock_copy(
        &self,
        image: &Image,
        driver: &dyn Driver,
        corruption: &Corruption,
    ) -> Option<u64> {
        if self.superblock_kib.is_some() {
            return None;
        }
        driver.superblock_copy(&**image.device(), Some(corruption))
    }

    pub(crate) fn driver(&self, image: &Image) -> Result<&'static dyn Driver> {
        let format = image.format()?;
        let driver = match (format, self.superblock_kib) {
            // A driver with the location of the superblock needs no magic in the usual place.
            (None, Some(kib)) => driver::with_superblock_at(&**image.device(), kib),
            (format, _) => format.and_then(driver::serving),
        };
        driver.ok_or_else(|| image.not_a_filesystem(format))
    }

    /// The devices of the filesystem on `images`, with those that are named here, which are opened and
    /// locked.
    pub(crate) fn devices(&self, images: &ImageSet) -> Result<Devices> {
        let all = self.all_images(images)?;
        for (role, image) in all.iter().skip(images.len()) {
            if role == DeviceRole::Data {
                self.refuse_stranger(image, images.first())?;
            }
        }
        Ok(all.devices())
    }

    fn all_images(&self, images: &ImageSet) -> Result<ImageSet> {
        let mut all = images.clone();
        for (role, path) in &self.devices {
            let spec = ImageSpec::parse(path).map_err(|error| Error {
                image: Image::name_of(path),
                path: None,
                cause: Cause::Spec(error),
            })?;
            if spec.path.is_some() {
                return Err(Error::new(&Image::name_of(path), Cause::NotADevice));
            }
            let image = Image::open_spec(&spec, self.access)
                .map_err(|error| explain_in_use(error, &spec, &all.devices().host_files()))?;
            all = all.with(*role, image);
        }
        Ok(all)
    }

    /// Refuses a further device that is none of a filesystem as `first` is of, under its own name.
    fn refuse_stranger(&self, image: &Image, first: &Image) -> Result<()> {
        let driver = self.driver(first).ok();
        let Some(driver) = driver.filter(|driver| driver.pool().is_some()) else {
            return Ok(());
        };
        let format = image.format()?;
        let Err(error) = driver.identify(&Devices::single(image)) else {
            return Ok(());
        };
        let is_of_superblock = matches!(
            &error,
            platter_vfs::Error::Corrupt(corruption) if corruption.structure == "superblock"
        );
        if !is_of_superblock || driver.superblock_copy(&**image.device(), None).is_some() {
            return Ok(());
        }
        match format {
            Some(format) if format == driver.format() => Err(Error::new(image.name(), error)),
            Some(format) => {
                let text = format!("holds {format}, and is no device of a {}", driver.format());
                let refused = Condition::InvalidArgument.because(text);
                Err(Error::new(image.name(), refused))
            }
            None => Err(image.not_a_filesystem(None)),
        }
    }

    pub(crate) fn request(
        &self,
        driver: &dyn Driver,
        image: &Image,
        devices: Devices,
    ) -> Result<MountRequest> {
        for option in &self.options {
            driver.check_option(option).map_err(|error| {
                let (option, format) = (Box::new(option.clone()), driver.format());
                let cause = Cause::Option {
                    option,
                    format,
                    error,
                };
                Error::new(image.name(), cause)
            })?;
        }
        let clock: Arc<dyn Clock> = match (&self.clock, self.date) {
            (Some(clock), _) => Arc::clone(clock),
            (None, Some(date)) => Arc::new(FixedClock::new(date, driver::seed(&**devices.first()))),
            (None, None) => Arc::new(SystemClock::new()),
        };
        Ok(MountRequest {
            devices,
            recovery: self.recovery,
            superblock_kib: self.superblock_kib,
            options: self.options.clone(),
            writing: self.writing,
            purpose: Purpose::Use,
            budget: Arc::clone(&self.budget),
            clock,
        })
    }
}
