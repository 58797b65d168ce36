//! Changing what is in an image without mounting it: all changes of one [`Edit`] at once, or none.
//!
//! An edit works above the image, on a device of its own, and nothing reaches the image before
//! [`commit`](Edit::commit): to drop it is to have done nothing. See `docs/design/editing.md`.

mod place;
mod removal;
mod names;
mod attributes;
mod mode;
mod owner;
mod contents;
mod copy_in;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::{
    Access, BatchDevice, BatchWriter, BlockDevice, ConcatDevice, FileDevice, IoError, Operation,
    OverlayDevice, OverlayOptions, RevocableDevice, ScratchDevice,
};
use platter_vfs::{Context, Credentials};

use crate::counting::Counting;
use crate::devices::{DeviceRole, Devices};
use crate::driver::ImageCommit;
use crate::{Cause, Error, Image, ImageSpec, OnError, OpenOptions, Result, Volume, WriteOptions};

pub use attributes::{SizeChange, Times};
pub use copy_in::{CopyIn, CopyInEvent, CopySource};
pub use mode::{ModeChange, ModeError};
pub use names::{Existing, Missing};
pub use owner::Owner;

/// What is written lies in files of this length: filesystems of hosts have none of any length.
const STORE_PART_BYTES: u64 = 1 << 40;
/// What errors call them.
const STORE_NAME: &str = "temporary file";

/// Changes of one filesystem that are made together.
///
/// ```no_run
/// use platter::OpenOptions;
/// let edit = OpenOptions::new().edit(&"disk.img".parse()?)?;
/// edit.make_dir(b"/srv/data", None)?;
/// edit.write(b"/srv/data/motto", b"all or nothing\n")?;
/// edit.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Edit {
    volume: Volume,
    scratch: Arc<ScratchDevice>,
    /// The image, and the same for writes that are to arrive together.
    image: Image,
    together: Image,
    /// The devices of the filesystem, with the image.
    devices: Devices,
    options: OpenOptions,
    context: Context,
    /// What files that outlive the edit would keep open.
    revocable: Vec<Arc<RevocableDevice>>,
    /// Set once it is over.
    ended: Arc<AtomicBool>,
    /// What was made is there to stay, at least in parts.
    is_kept: bool,
}

impl OpenOptions {
    /// Begins to edit the filesystem that `spec` names, ignoring its path. Nobody else may use the
    /// image until the edit is committed or dropped.
    pub fn edit(&self, spec: &ImageSpec) -> Result<Edit> {
        let image = self.part(spec, &whole(spec)?)?;
        Edit::begin(self, image.clone(), image)
    }

    /// As [`edit`](Self::edit), with what nobody may find half written written by the writer that
    /// `writer` makes for the image file.
    pub fn edit_with(
        &self,
        spec: &ImageSpec,
        writer: impl FnOnce(&FileDevice) -> Arc<dyn BatchWriter>,
    ) -> Result<Edit> {
        let whole = whole(spec)?;
        let mut together = whole.clone();
        if let Some(file) = whole.file() {
            let device = Arc::clone(whole.device());
            together = whole.on(Arc::new(BatchDevice::new(device, writer(file))));
        }
        let image = self.part(spec, &whole)?;
        Edit::begin(self, image, self.part(spec, &together)?)
    }

    /// The partition and the offset that were asked for, of the whole image.
    fn part(&self, spec: &ImageSpec, whole: &Image) -> Result<Image> {
        self.at_offset(match &spec.partition {
            Some(partition) => whole.partition(partition)?,
            None => whole.clone(),
        })
    }
}

/// All of the image, locked where all of it is edited.
fn whole(spec: &ImageSpec) -> Result<Image> {
    match spec.partition {
        Some(_) => Image::open_parts(&spec.image, Access::Write),
        None => Image::open(&spec.image, Access::Write),
    }
}

impl Edit {
    fn begin(options: &OpenOptions, image: Image, together: Image) -> Result<Self> {
        // The journal is written once at the end, and an error must not lead to a half of it.
        let options = options.clone().writing(WriteOptions {
            on_error: Some(OnError::ReadOnly),
            commit_interval: None,
            // Whoever may write the image may do all that the superuser may in it.
            uses_reserve: true,
        });
        let driver = options.driver(&image)?;
        let mut revocable = Vec::new();
        let mut revoked_later = |device| -> Arc<dyn BlockDevice> {
            let device = Arc::new(RevocableDevice::new(device));
            revocable.push(Arc::clone(&device));
            device
        };
        let devices = options.devices(&image)?;
        let mut bases = devices.map(|device| revoked_later(Arc::clone(&device.device)));
        let counting = options.count_requests.then(|| Counting::below(&mut bases));
        let base = bases.first();
        let store = store_for(&**base).map_err(|error| Error::new(image.name(), error))?;
        let mut scratch = ScratchDevice::new(Arc::clone(base), store);
        // What keeps the driver from finding them keeps the filesystem from being opened, below.
        let looked = options.request(driver, &image, bases.clone())?;
        if let Ok(Some(free)) = driver.free_ranges(&looked) {
            scratch = scratch.with_unused(free);
        }
        let scratch = Arc::new(scratch);
        let device: Arc<dyn BlockDevice> = Arc::<ScratchDevice>::clone(&scratch);
        let layers = bases
            .map(|other| match other.role {
                DeviceRole::Data => Arc::clone(&other.device),
                DeviceRole::Log | DeviceRole::Realtime => in_memory(Arc::clone(&other.device)),
            })
            .with_first(device);
        let mut request = options.request(driver, &image, layers.clone())?;
        request.on_scratch = true;
        let fs = driver
            .mount(request)
            .map_err(|error| Error::new(image.name(), error))?;
        let ended = Arc::new(AtomicBool::new(false));
        let mut volume = Volume::new(Arc::clone(image.name()), fs)
            .on_devices(&layers)
            .ending_with(Arc::clone(&ended));
        if let Some(counting) = counting {
            volume = volume.counting(counting);
        }
        Ok(Self {
            volume,
            scratch,
            image,
            together,
            devices,
            options,
            context: Context::root(),
            revocable,
            ended,
            is_kept: false,
        })
    }

    /// Has new files belong to this user, with these permission bits taken away where nothing else
    /// is said. Without it, they belong to the superuser and have all bits they ask for.
    #[must_use]
    pub fn acting_as(mut self, credentials: Credentials, umask: u32) -> Self {
        self.context = Context { credentials, umask };
        self
    }

    /// The filesystem as it is with the changes.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Whether a path names a directory, or leads to one.
    #[must_use]
    pub fn is_directory(&self, path: &[u8]) -> bool {
        self.directory(path).is_some()
    }

    /// Makes all changes in the image, durably, and lets others use it. Files of the edit's
    /// [volume](Self::volume) that are still there have no image any more: their errors say
    /// [`Cause::Ended`].
    ///
    /// # Errors
    /// Of the host, and then the image holds the state before, or the one after if it needs
    /// recovery.
    pub fn commit(mut self) -> Result<()> {
        let name = Arc::clone(self.image.name());
        let named = |error: platter_vfs::Error| Error::new(&name, error);
        self.volume.filesystem().unmount().map_err(named)?;
        let driver = self.options.driver(&self.image)?;
        let together = Arc::clone(self.together.device());
        let devices = self.devices.with_first(together);
        let commit = ImageCommit {
            mount: self.options.request(driver, &self.image, devices)?,
            unbatched: Arc::clone(self.image.device()),
            new: &self.scratch,
        };
        self.is_kept = true;
        driver.commit_image(commit).map_err(named)
    }

    fn error(&self, path: &[u8], cause: impl Into<Cause>) -> Error {
        Error::at_path(self.volume.name(), path, cause)
    }

    fn named<T>(&self, path: &[u8], result: platter_vfs::Result<T>) -> Result<T> {
        result.map_err(|error| self.error(path, error))
    }
}

impl Drop for Edit {
    fn drop(&mut self) {
        if !self.is_kept {
            self.scratch.revert_holes();
        }
        self.ended.store(true, Ordering::Relaxed);
        for device in &self.revocable {
            device.revoke();
        }
    }
}

/// A device as long as `base` that goes when it is closed.
fn store_for(base: &dyn BlockDevice) -> Result<Arc<dyn BlockDevice>, IoError> {
    let mut left = base.geometry().len_bytes;
    let mut parts = Vec::new();
    while left > 0 {
        let part = left.min(STORE_PART_BYTES);
        parts.push(temporary_file(part)?);
        left -= part;
    }
    Ok(Arc::new(ConcatDevice::new(STORE_NAME, parts)))
}

fn temporary_file(len_bytes: u64) -> Result<Arc<dyn BlockDevice>, IoError> {
    let failed = |error: std::io::Error| {
        let name = Arc::from(STORE_NAME);
        IoError::new(&name, Operation::Open, 0, 0, error)
    };
    let file = tempfile::NamedTempFile::new().map_err(failed)?;
    file.as_file().set_len(len_bytes).map_err(failed)?;
    let options = platter_block::OpenOptions {
        access: Access::Write,
        ..platter_block::OpenOptions::default()
    };
    Ok(Arc::new(FileDevice::open(file.path(), options)?))
}

/// The device, with all that is written to it kept in memory.
fn in_memory(device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    Arc::new(OverlayDevice::new(device, OverlayOptions::default()))
}
