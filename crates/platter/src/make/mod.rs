//! Making a filesystem in an image, a partition, or a new file.

mod draft;
mod enough;
mod several;
mod smallest;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use platter_block::{Access, PartitionView};
use platter_cache::MemoryBudget;
use platter_vfs::{
    Clock, Condition, Context, FixedClock, SetAttr, SystemClock, Timestamp, Unsupported,
};

use crate::devices::DeviceRole;
use crate::driver::{FillRequest, MkfsRequest, OnDevice, unsupported};
use crate::error::Cause;
use crate::open::CACHE_BYTES_DEFAULT;
use crate::populate::{Content, host_error};
use crate::{Error, Image, ImageSet, ImageSpec, Progress, Result};
pub(crate) use draft::Draft;
use enough::{TRIED_BYTES_MAX, explain_too_small, try_elsewhere};
use several::make_on_several;
use smallest::make_smallest;

pub use crate::driver::{FilesystemType, NewFilesystem, mkfs_types as types};
pub use platter_ondisk::Uuid;

/// Inodes in addition to those of the content: the filesystem's own, and a few more.
const INODES_SPARE: u64 = 32;
/// What an inode takes with a name, and its share of directories.
const INODE_BYTES: u64 = 256 + 64;
/// Space for a journal and for what is not counted.
const SPARE_BYTES: u64 = 8 << 20;
/// Sizes that are chosen are multiples of this.
const SIZE_UNIT_BYTES: u64 = 1 << 20;
/// Sizes that are tried, each a quarter longer: what does not fit then fits no size.
const SIZES_MAX: usize = 12;

/// How long an image becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// The image is there.
    AsItIs,
    Bytes(u64),
    OfContent,
    Minimal,
}

/// How a filesystem is made: its type and options, its size and content, and the source of time and random numbers.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    new: NewFilesystem,
    size: Size,
    content: Option<Arc<Content>>,
    overwrite: bool,
    /// Further images to make it on.
    others: Vec<(DeviceRole, ImageSpec)>,
    clock: Arc<dyn Clock>,
    /// The time and the seed of everything, once they are chosen.
    moment: Option<(Timestamp, u64)>,
    budget: Arc<MemoryBudget>,
    progress: Progress,
}

impl Default for FormatOptions {
    /// The type that is made where none is named, on all of an image that is there.
    fn default() -> Self {
        Self::new(NewFilesystem::default())
    }
}

impl FormatOptions {
    /// A new filesystem on all of an image that is there, of a [type](FilesystemType) with its defaults, or with options.
    ///
    /// ```
    /// use platter::{FilesystemType, FormatOptions, Image};
    ///
    /// let image = Image::in_memory(300 << 20);
    /// FormatOptions::new(FilesystemType::Xfs).format(&image)?;
    /// # Ok::<(), platter::Error>(())
    /// ```
    #[must_use]
    pub fn new(new: impl Into<NewFilesystem>) -> Self {
        Self {
            new: new.into(),
            size: Size::AsItIs,
            content: None,
            overwrite: false,
            others: Vec::new(),
            clock: Arc::new(SystemClock::new()),
            moment: None,
            budget: Arc::new(MemoryBudget::new(CACHE_BYTES_DEFAULT)),
            progress: Progress::default(),
        }
    }

    /// Makes a new image file of this size in bytes. One that is there is replaced if it may be overwritten. Of
    /// a block device, only so much is used.
    #[must_use]
    pub fn size_bytes(mut self, size_bytes: u64) -> Self {
        self.size = Size::Bytes(size_bytes);
        self
    }

    /// Makes a new image file that has space for the content and some more.
    #[must_use]
    pub fn size_of_content(mut self) -> Self {
        self.size = Size::OfContent;
        self
    }

    /// Makes a new image file that is no more than a hundredth longer than the content needs. That
    /// takes about three times as long.
    #[must_use]
    pub fn minimal_size(mut self) -> Self {
        self.new.driver_mut().set_minimal();
        self.size = Size::Minimal;
        self
    }

    /// Fills the new filesystem with `content`.
    #[must_use]
    pub fn content(mut self, content: Content) -> Self {
        let inodes = content.inodes().saturating_add(INODES_SPARE);
        let inodes = u32::try_from(inodes).unwrap_or(u32::MAX);
        self.new.driver_mut().require_inodes(inodes);
        self.content = Some(Arc::new(content));
        self
    }

    /// Makes the filesystem on a further image, too: one that is there, or a new file of the size that was asked for.
    /// Then all images are written in place.
    #[must_use]
    pub fn target(mut self, role: DeviceRole, spec: ImageSpec) -> Self {
        self.others.push((role, spec));
        self
    }

    /// Allows to overwrite what is there, be it a filesystem or a partition table.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Takes time and random numbers from `clock`: the same options, seed and time make the same
    /// bytes.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the caches take their memory from `budget`.
    #[must_use]
    pub fn budget(mut self, budget: Arc<MemoryBudget>) -> Self {
        self.budget = budget;
        self
    }

    /// Counts content in `progress` as it is written. A new file does not appear if that is cancelled; what is
    /// written in place is incomplete then.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Makes the filesystem in what `spec` names.
    ///
    /// A block device, a partition, and a file that is made empty and keeps its size, are written in
    /// place, once it is sure that their size and the options go together. Everything else is made
    /// in a file next to it, which takes its place when it is done: until then nothing is changed.
    ///
    /// # Errors
    /// `Occupied` where something is there that may not be overwritten; `NoSpace` where the content
    /// does not fit.
    pub fn make(&self, spec: &ImageSpec) -> Result<()> {
        let maker = self.chosen();
        maker.refuse_content()?;
        let content = maker.content.as_ref();
        if content.is_some_and(|content| content.is_read_from(&spec.image)) {
            let text = "is the archive that the content is read from";
            return Err(host_error(&spec.image, std::io::Error::other(text)));
        }
        if !maker.others.is_empty() {
            return make_on_several(&maker, spec);
        }
        let there = match fs::metadata(&spec.image) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(host_error(&spec.image, error)),
        };
        let is_device = there
            .as_ref()
            .is_some_and(|file| file.file_type().is_block_device());
        let keeps_size = matches!(maker.size, Size::AsItIs | Size::OfContent);
        let is_empty = maker.content.is_none() && maker.size == Size::AsItIs;
        if spec.partition.is_some() || is_device || is_empty {
            return maker.make_in_place(spec);
        }
        let replaced = match &there {
            Some(_) => Some(maker.open_replaced(&spec.image)?),
            None if maker.size == Size::AsItIs => {
                return Err(host_error(&spec.image, ErrorKind::NotFound.into()));
            }
            None => None,
        };
        let size = match (maker.size, &there) {
            (_, Some(file)) if keeps_size && file.len() > 0 => Size::Bytes(file.len()),
            (size, _) => size,
        };
        let draft = Draft::begin(&spec.image, replaced)?;
        match size {
            Size::Bytes(size_bytes) => maker
                .try_size(&draft, size_bytes)
                .map_err(|error| explain_too_small(&maker, error, size_bytes))?,
            Size::AsItIs | Size::OfContent => maker.make_with_reserve(&draft)?,
            Size::Minimal => make_smallest(&maker, &draft)?,
        }
        self.refuse_cancelled(draft.name())?;
        draft.finish()
    }

    /// Makes the filesystem on images that are open, as long as they are: in memory, on a file, or on any
    /// device.
    ///
    /// # Errors
    /// `Occupied` where something is there that may not be overwritten; `NoSpace` where the content
    /// does not fit.
    pub fn format(&self, images: impl Into<ImageSet>) -> Result<()> {
        let (options, images) = (self.chosen(), images.into());
        options.refuse_content()?;
        let first = images.first();
        options.refuse_occupied(first)?;
        let len_bytes = first.device().geometry().len_bytes;
        let unfit = options.refuse_unfit(first);
        unfit.map_err(|error| explain_too_small(&options, error, len_bytes))?;
        options.make_on(&images, OnDevice::Anything)
    }

    /// Refuses content that the format cannot hold as it is asked for.
    fn refuse_content(&self) -> Result<()> {
        let (new, content) = (self.new.driver(), self.content.as_ref());
        let has = |what: fn(&Content) -> bool| content.is_some_and(|content| what(content));
        let feature = if has(Content::has_subvolumes) && !new.has_subvolumes() {
            "making subvolumes"
        } else if has(Content::has_clones) && !new.shares_extents() {
            "sharing extents between files"
        } else {
            return Ok(());
        };
        let name = content.map_or_else(|| Arc::from(""), |content| content.name());
        Err(Error::new(&name, unsupported(new.format(), feature)))
    }

    /// The same, with all that is random chosen: however often a size is tried, it is the same.
    fn chosen(&self) -> Self {
        let mut chosen = self.clone();
        chosen.new.driver_mut().choose_random(&*self.clock);
        chosen.moment = Some((self.clock.now(), self.clock.random_u64()));
        chosen
    }

    fn make_in_place(&self, spec: &ImageSpec) -> Result<()> {
        let image = Image::open_spec(spec, Access::Write)?;
        self.refuse_occupied(&image)?;
        if self.size == Size::Minimal {
            let text = "has the length it has; only a file is made as short as its content allows";
            return Err(Error::new(image.name(), std::io::Error::other(text)));
        }
        let image = self.part_to_use(image)?;
        let len_bytes = image.device().geometry().len_bytes;
        self.refuse_unfit(&image)
            .map_err(|error| explain_too_small(self, error, len_bytes))?;
        self.make_on(&image.into(), OnDevice::Anything)
    }

    /// As much of an image that is there as the filesystem is to use.
    fn part_to_use(&self, image: Image) -> Result<Image> {
        let Size::Bytes(size_bytes) = self.size else {
            return Ok(image);
        };
        let len_bytes = image.device().geometry().len_bytes;
        if size_bytes > len_bytes {
            let text = format!(
                "is {len_bytes} bytes long, and is to have a filesystem of {size_bytes} bytes"
            );
            return Err(Error::new(image.name(), Condition::NoSpace.because(text)));
        }
        let device = Arc::clone(image.device());
        let view = PartitionView::new(image.name(), device, 0..size_bytes)
            .map_err(|error| Error::new(image.name(), error))?;
        Ok(image.on(Arc::new(view)))
    }

    fn try_size(&self, draft: &Draft, size_bytes: u64) -> Result<()> {
        self.make_on(&draft.clear(size_bytes)?.into(), OnDevice::Zeros)
    }

    /// Makes it with some space to spare.
    fn make_with_reserve(&self, draft: &Draft) -> Result<()> {
        let mut size_bytes = self.likely_bytes()?;
        for _ in 1..SIZES_MAX {
            match self.try_size(draft, size_bytes) {
                Err(error) if is_full(&error) => {
                    size_bytes = (size_bytes + size_bytes / 4).next_multiple_of(SIZE_UNIT_BYTES);
                }
                made => return made,
            }
        }
        self.try_size(draft, size_bytes)
    }

    /// What the content takes with what belongs to it, a journal, and a tenth to spare.
    fn likely_bytes(&self) -> Result<u64> {
        let content = self.content.as_ref();
        let progress = &self.progress;
        let data = content.map_or(Ok(0), |content| content.data_bytes_max(progress))?;
        let inodes = content.map_or(0, |content| content.inodes());
        let own = inodes.saturating_mul(INODE_BYTES).saturating_add(data);
        // Longer is no file.
        let own = own.min(i64::MAX.unsigned_abs() / 2);
        let mut spare = own / 10 + SPARE_BYTES;
        if self.size != Size::Minimal {
            spare += self.new.driver().spare_bytes();
        }
        let classes = self.new.driver().length_classes();
        let least = classes.first().map_or(0, |class| class.start);
        Ok((own + spare).max(least).next_multiple_of(SIZE_UNIT_BYTES))
    }

    /// Makes it on images: of a draft, which holds nothing but zeros, or in place.
    fn make_on(&self, images: &ImageSet, before: OnDevice) -> Result<()> {
        let clock = self.fresh_clock();
        self.make_empty(images, before, &*clock)?;
        let Some(content) = &self.content else {
            return Ok(());
        };
        let named = |error: platter_vfs::Error| Error::new(images.first().name(), error);
        let request = FillRequest {
            targets: &images.devices(),
            before,
            budget: Arc::clone(&self.budget),
            clock,
        };
        let mounted = self.new.driver().mount(request);
        let fs = mounted.map_err(|error| named(explain_unwritable(error)))?;
        content.fill(&*fs, &self.progress)?;
        if let Some((uid, gid)) = self.new.driver().root_owner() {
            // Before that of what the root directory is copied from.
            let owner = SetAttr {
                uid: Some(uid),
                gid: Some(gid),
                ..SetAttr::default()
            };
            let root = fs.root().map_err(named)?;
            root.set_attr(&Context::root(), &owner).map_err(named)?;
        }
        fs.unmount().map_err(named)
    }

    fn make_empty(&self, images: &ImageSet, before: OnDevice, clock: &dyn Clock) -> Result<()> {
        self.refuse_cancelled(images.first().name())?;
        let request = MkfsRequest {
            targets: &images.devices(),
            before,
            budget: Arc::clone(&self.budget),
            clock,
        };
        let made = self.new.driver().make(request);
        made.map_err(|error| Error::new(images.first().name(), error))
    }

    fn refuse_cancelled(&self, name: &Arc<str>) -> Result<()> {
        let checked = self.progress.check();
        checked.map_err(|cause| Error::new(name, cause))
    }

    /// A clock that begins anew each time it is asked for.
    fn fresh_clock(&self) -> Arc<dyn Clock> {
        match self.moment {
            Some((now, seed)) => Arc::new(FixedClock::new(now, seed)),
            None => Arc::clone(&self.clock),
        }
    }

    /// Refuses sizes and options that do not go together. Short filesystems are tried elsewhere: there
    /// may be no space for the files they begin with.
    fn refuse_unfit(&self, image: &Image) -> Result<()> {
        let len_bytes = image.device().geometry().len_bytes;
        if len_bytes < TRIED_BYTES_MAX {
            return try_elsewhere(self, image.name(), len_bytes);
        }
        let checked = self
            .new
            .driver()
            .check(&ImageSet::from(image).devices(), &*self.fresh_clock());
        checked.map_err(|error| Error::new(image.name(), error))
    }

    /// Opens a file that is to be replaced. One that holds something is refused, unless it may be
    /// overwritten.
    fn open_replaced(&self, path: &Path) -> Result<Image> {
        let image = Image::open(path, Access::Write)?;
        self.refuse_occupied(&image)?;
        let is_blank = image.device().geometry().len_bytes == 0;
        let keeps_size = matches!(self.size, Size::AsItIs | Size::OfContent);
        if self.overwrite || is_blank || keeps_size {
            return Ok(image);
        }
        let found = "something".to_owned();
        Err(Error::new(image.name(), Cause::Occupied { found }))
    }

    fn refuse_occupied(&self, image: &Image) -> Result<()> {
        if self.overwrite {
            return Ok(());
        }
        let probe = image.probe()?;
        let found = match (&probe.signature, &probe.table) {
            (Some(signature), _) => signature.kind.to_owned(),
            (None, Some(_)) => "a partition table".to_owned(),
            (None, None) => return Ok(()),
        };
        Err(Error::new(image.name(), Cause::Occupied { found }))
    }
}

/// Says why a filesystem is not filled that would be made without content.
fn explain_unwritable(error: platter_vfs::Error) -> platter_vfs::Error {
    let platter_vfs::Error::Unsupported(unsupported) = error else {
        return error;
    };
    let reason = Some("it is made without content only");
    Unsupported {
        reason,
        ..unsupported
    }
    .into()
}

fn full(image: &Image) -> Error {
    Error::new(image.name(), platter_vfs::Error::from(Condition::NoSpace))
}

/// Whether the new filesystem was full, not the one of the host that it lies on.
fn is_full(error: &Error) -> bool {
    matches!(
        error.cause,
        Cause::Filesystem(platter_vfs::Error::Condition(Condition::NoSpace))
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::driver::samples::NEWEST;
    use crate::driver::{Generation, MkfsOptions};

    fn dir_of(files: u32, bytes: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        for number in 0..files {
            let path = dir.path().join(format!("tree/{number}"));
            fs::write(path, vec![7; bytes]).unwrap();
        }
        dir
    }

    #[test]
    fn many_files_do_not_fill_the_memory_with_dirty_pages() {
        let dir = dir_of(300, 32 << 10);
        let budget = Arc::new(MemoryBudget::new(4 << 20));
        let content = Content::of_dir(&dir.path().join("tree")).unwrap();
        let spec = ImageSpec::parse(dir.path().join("image")).unwrap();
        let maker = FormatOptions::new(MkfsOptions::new(NEWEST))
            .budget(Arc::clone(&budget))
            .content(content)
            .size_of_content();
        let most = budget.dirty_limit_bytes() + (64 << 10);
        let progress = Progress::listening(move |_| {
            assert!(budget.dirty_bytes() <= most, "{}", budget.dirty_bytes());
        });
        maker.progress(progress.clone()).make(&spec).unwrap();
        assert_eq!(progress.bytes(), 300 * (32 << 10));
        assert_eq!(progress.files(), 300);
    }

    #[test]
    fn cancelled_format_leaves_no_file() {
        let dir = dir_of(300, 32 << 10);
        let spec = ImageSpec::parse(dir.path().join("image")).unwrap();
        let content = Content::of_dir(&dir.path().join("tree")).unwrap();
        let progress = Progress::default();
        progress.cancel();
        let maker = FormatOptions::default().content(content).size_of_content();
        let error = maker.progress(progress).make(&spec).unwrap_err();
        assert_eq!(error.code(), "cancelled");
        assert_eq!(entries(dir.path()), 1, "only the tree is left");
    }

    fn entries(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn minimal_size_is_within_a_hundredth_of_the_smallest_image() {
        for (generation, files, bytes) in [
            (Generation::Ext2, 20, 50_000),
            (NEWEST, 1, 10),
            (NEWEST, 2000, 900),
            (Generation::Ext3, 3, 9 << 20),
        ] {
            let dir = dir_of(files, bytes);
            let spec = ImageSpec::parse(dir.path().join("image")).unwrap();
            let content = || Content::of_dir(&dir.path().join("tree")).unwrap();
            let maker = || FormatOptions::new(MkfsOptions::new(generation)).content(content());
            let progress = Progress::default();
            let minimal = maker().minimal_size().progress(progress.clone());
            minimal.make(&spec).unwrap();
            let reported = progress.bytes();
            let smallest = fs::metadata(&spec.image).unwrap().len();
            let most = u64::from(files) * bytes as u64 * 4;
            assert!(
                reported <= most,
                "made {reported} bytes of {most} at {smallest}"
            );
            fs::remove_file(&spec.image).unwrap();
            for part in [50, 20, 5, 2] {
                let less = smallest - (smallest / part).max(4096);
                let made = maker().size_bytes(less).make(&spec);
                let error = made.unwrap_err();
                let full = rustix::io::Errno::NOSPC;
                assert_eq!(error.errno(), full, "{smallest}, {less}: {error}");
                assert_eq!(entries(dir.path()), 1, "only the tree is left");
            }
        }
    }

    #[test]
    fn what_fails_changes_nothing() {
        let dir = dir_of(3, 1 << 20);
        let path = dir.path().join("image");
        let spec = ImageSpec::parse(&path).unwrap();
        fs::write(&path, b"a letter").unwrap();
        let tree = dir.path().join("tree");
        let maker = || {
            let content = Content::of_dir(&tree).unwrap();
            let maker = FormatOptions::new(MkfsOptions::new(NEWEST));
            maker.content(content).overwrite(true)
        };
        let error = maker().size_bytes(2 << 20).make(&spec);
        assert!(is_full(&error.unwrap_err()));
        let mut options = MkfsOptions::new(NEWEST);
        options.block_bytes = Some(3000);
        let unfit = FormatOptions::new(options).overwrite(true);
        for maker in [unfit.clone(), unfit.size_bytes(8 << 20)] {
            assert!(maker.make(&spec).is_err());
        }
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
        assert_eq!(entries(dir.path()), 2);
        maker().size_of_content().make(&spec).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"a letter", "it keeps its size");
    }

    #[test]
    fn an_image_is_not_made_over_its_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        fs::write(&path, [0; 1024]).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("a.tar", &link).unwrap();
        for image in [&path, &link] {
            let content = Content::of_archive(&path).unwrap();
            let maker = FormatOptions::new(MkfsOptions::new(Generation::Ext2));
            let maker = maker.content(content).overwrite(true).size_bytes(4 << 20);
            let spec = ImageSpec::parse(image).unwrap();
            assert!(maker.make(&spec).is_err());
        }
        assert_eq!(fs::read(&path).unwrap(), [0; 1024]);
    }

    #[test]
    fn link_to_an_image_stays_one() {
        let dir = dir_of(1, 10);
        let (path, link) = (dir.path().join("image"), dir.path().join("link"));
        fs::write(&path, b"").unwrap();
        std::os::unix::fs::symlink("image", &link).unwrap();
        let maker = FormatOptions::new(MkfsOptions::new(Generation::Ext2)).size_bytes(1 << 20);
        let spec = ImageSpec::parse(&link).unwrap();
        maker.make(&spec).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    }

    #[test]
    fn full_host_is_no_full_filesystem() {
        let name: Arc<str> = "image".into();
        let of_host = std::io::Error::from(ErrorKind::StorageFull);
        let write = platter_block::Operation::Write;
        let of_device = platter_block::IoError::new(&name, write, 0, 1, of_host);
        let of_device = Error::new(&name, platter_vfs::Error::from(of_device));
        assert_eq!(of_device.errno(), rustix::io::Errno::NOSPC);
        assert!(!is_full(&of_device));
        assert!(is_full(&full(&Image::in_memory(512))));
    }

    #[test]
    fn existing_file_is_replaced_only_when_it_is_not_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let spec = ImageSpec::parse(&path).unwrap();
        fs::write(&path, b"a letter").unwrap();
        let maker = FormatOptions::new(MkfsOptions::new(Generation::Ext2)).size_bytes(4 << 20);
        let error = maker.make(&spec).unwrap_err();
        assert!(matches!(error.cause, Cause::Occupied { .. }), "{error}");
        let maker = maker.overwrite(true);
        let user = Image::open(&path, Access::Write).unwrap();
        assert!(maker.make(&spec).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
        drop(user);
        maker.make(&spec).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
        let refused = maker.size_bytes(1024).make(&spec);
        assert!(refused.is_err() && path.exists());
    }
}
