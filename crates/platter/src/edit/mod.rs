//! Changing what is in an image without mounting it: all changes of one [`Edit`] at once, or none.
//!
//! An edit works above the image, on a device of its own, and nothing reaches the image before
//! [`commit`](Edit::commit): to drop it is to have done nothing. See `docs/design/editing.md`.

mod scratch;
mod choices;
mod mode;
mod owner;
mod changes;
mod copy_in;
#[cfg(test)]
mod removal_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::{Access, BatchDevice, BatchWriter, FileDevice, RevocableDevice};
use platter_vfs::{Condition, Context, Credentials, Inode, SetAttr, Tune};

use crate::counting::Counting;
use crate::devices::Devices;
use crate::driver::{Driver, EditStrategy, Purpose, unsupported};
use crate::volume::VolumeParts;
use crate::volume::place::Place;
use crate::volume::rights::set_attr;
use crate::{
    Cause, Error, Image, ImageSet, ImageSpec, MountOptions, OnError, Progress, Result, Volume,
    WriteOptions,
};

use scratch::Scratches;

pub use choices::{
    Creation, Existing, Missing, Removal, Scope, SizeChange, SubvolumeAccess, Symlinks, Target,
    Times,
};
pub use copy_in::{CopyIn, CopyInEvent, CopyInObserver, CopySource};
pub use mode::{ModeChange, ModeError};
pub use owner::Owner;

/// The extended attribute with the capabilities of a program.
const CAPABILITY_NAME: &[u8] = b"security.capability";

/// Changes of one filesystem that are made together.
///
/// ```no_run
/// use platter::MountOptions;
/// let edit = MountOptions::new().edit(&"disk.img".parse()?)?;
/// edit.make_dir(b"/srv/data", None)?;
/// edit.write(b"/srv/data/motto", b"all or nothing\n")?;
/// edit.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Edit {
    volume: Volume,
    driver: &'static dyn Driver,
    stage: Stage,
    /// The image, and the same for writes that are to arrive together.
    image: Image,
    together: Image,
    /// The devices of the filesystem, with the image.
    devices: Devices,
    options: MountOptions,
    context: Context,
    /// What files that outlive the edit would keep open.
    revocable: Vec<Arc<RevocableDevice>>,
    /// Set once it is over.
    ended: Arc<AtomicBool>,
    progress: Progress,
    /// What was made is there to stay, at least in parts.
    is_kept: bool,
}

/// Where the changes are until they are committed.
#[derive(Debug)]
enum Stage {
    /// On devices above the image.
    Journaled(Scratches),
    /// In free space of the image.
    InPlace,
}

impl fmt::Debug for Edit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Edit")
            .field("volume", &self.volume)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl MountOptions {
    /// Begins to edit the filesystem that `spec` names, ignoring its path. The image is
    /// locked exclusively until the edit is committed or dropped.
    pub fn edit(&self, spec: &ImageSpec) -> Result<Edit> {
        let image = self.part(spec, &whole(spec)?)?;
        Edit::begin(self, image.clone(), image)
    }

    /// As [`edit`](Self::edit), but what must be written atomically is written by the writer that
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
    fn begin(options: &MountOptions, image: Image, together: Image) -> Result<Self> {
        let driver = options.driver(&image)?;
        Self::begin_with(driver, options, image, together)
    }

    fn begin_with(
        driver: &'static dyn Driver,
        options: &MountOptions,
        image: Image,
        together: Image,
    ) -> Result<Self> {
        let named = |error: platter_vfs::Error| Error::new(image.name(), error);
        // All is committed once at the end, and an error must not lead to a half of it.
        let options = options.clone().writing(WriteOptions {
            on_error: Some(OnError::ReadOnly),
            commit_interval: None,
            // A process that may write the image has all rights of the superuser in it.
            uses_reserve: true,
        });
        let devices = options.devices(&ImageSet::from(&image))?;
        let revocable: Vec<_> = devices
            .iter()
            .map(|device| Arc::new(RevocableDevice::new(Arc::clone(&device.device))))
            .collect();
        let mut left = revocable.iter();
        let mut bases = devices.map(|device| match left.next() {
            Some(revocable) => Arc::<RevocableDevice>::clone(revocable),
            None => Arc::clone(&device.device),
        });
        let counting = options.count_requests.then(|| Counting::below(&mut bases));
        let mut request = options.request(driver, &image, bases.clone())?;
        let stage = match driver.edit_strategy() {
            EditStrategy::Refused => return Err(named(unsupported(driver.format(), "editing"))),
            EditStrategy::Journaled(edits) => {
                Stage::Journaled(Scratches::above(edits, &request).map_err(named)?)
            }
            EditStrategy::InPlace => Stage::InPlace,
        };
        match &stage {
            Stage::Journaled(scratches) => {
                request.devices = scratches.devices(&bases);
                request.purpose = Purpose::EditOnScratch;
            }
            Stage::InPlace => request.purpose = Purpose::EditInPlace,
        }
        let mounted = request.devices.clone();
        let fs = driver.mount(request).map_err(named)?;
        let ended = Arc::new(AtomicBool::new(false));
        let volume = VolumeParts {
            devices: mounted.all(),
            host_files: mounted.host_files(),
            counting,
            ended: Some(Arc::clone(&ended)),
            ..VolumeParts::new(Arc::clone(image.name()), fs)
        };
        Ok(Self {
            volume: volume.volume(),
            driver,
            stage,
            image,
            together,
            devices,
            options,
            context: Context::root(),
            revocable,
            ended,
            progress: Progress::default(),
            is_kept: false,
        })
    }

    /// Has new files belong to this user, with these permission bits cleared where nothing else
    /// is said. Without it, they belong to the superuser and have all bits they ask for.
    #[must_use]
    pub fn acting_as(mut self, credentials: Credentials, umask: u32) -> Self {
        self.volume = self.volume.acting_as(credentials.clone(), umask);
        self.context = Context { credentials, umask };
        self
    }

    /// Has `progress` cancel changes of whole trees, and the commit up to the moment in which it begins to change the
    /// image.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
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

    /// Changes what the filesystem says of itself.
    ///
    /// # Errors
    /// `NotSupported` for what its format cannot change.
    pub fn tune(&self, changes: &[Tune]) -> Result<()> {
        let tuned = self.volume.filesystem().tune(changes);
        tuned.map_err(|error| Error::new(self.image.name(), error))
    }

    /// Makes all changes in the image, durably, and lets others use it. Files of the edit's
    /// [volume](Self::volume) that are still there have no image any more: their errors say
    /// [`Cause::Ended`].
    ///
    /// # Errors
    /// Of the host, and then the image holds the state before, or the one after if it needs
    /// recovery; [`Cause::Cancelled`], and then it holds the state before.
    pub fn commit(mut self) -> Result<()> {
        let name = Arc::clone(self.image.name());
        let named = |error: platter_vfs::Error| Error::new(&name, error);
        let refuse_cancelled = || {
            let checked = self.progress.check();
            checked.map_err(|cause| Error::new(&name, cause))
        };
        refuse_cancelled()?;
        self.volume.filesystem().unmount().map_err(named)?;
        if let Stage::Journaled(scratches) = &self.stage {
            let together = Arc::clone(self.together.device());
            let devices = self.devices.with_first(together);
            let mount = self.options.request(self.driver, &self.image, devices)?;
            refuse_cancelled()?;
            self.is_kept = true;
            let unbatched = Arc::clone(self.image.device());
            scratches.commit(mount, unbatched).map_err(named)?;
        }
        Ok(())
    }

    fn error(&self, path: &[u8], cause: impl Into<Cause>) -> Error {
        Error::at_path(self.volume.name(), path, cause)
    }

    fn named<T>(&self, path: &[u8], result: platter_vfs::Result<T>) -> Result<T> {
        result.map_err(|error| self.error(path, error))
    }

    /// Changes attributes as the superuser may.
    fn set_attr(&self, path: &[u8], inode: &dyn Inode, changes: &SetAttr) -> Result<()> {
        self.named(path, set_attr(inode, changes))
    }

    /// Removes the capabilities of a program (`security.capability`), as Linux does before its owner or contents change:
    /// they were granted to what it was.
    fn drop_capability(&self, path: &[u8], inode: &dyn Inode) -> Result<()> {
        if inode.get_xattr(CAPABILITY_NAME).is_err() {
            return Ok(());
        }
        let removed = inode.remove_xattr(&Context::root(), CAPABILITY_NAME);
        self.named(path, removed)
    }

    fn place(&self, path: &[u8], otherwise: Condition) -> Result<Place> {
        self.volume.place(path, otherwise)
    }

    fn directory(&self, path: &[u8]) -> Option<Arc<dyn Inode>> {
        self.volume.directory(path)
    }
}

impl Drop for Edit {
    fn drop(&mut self) {
        if let (Stage::Journaled(scratches), false) = (&self.stage, self.is_kept) {
            scratches.revert();
        }
        self.ended.store(true, Ordering::Relaxed);
        for device in &self.revocable {
            device.revoke();
        }
    }
}
