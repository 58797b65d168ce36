//! Making a filesystem in an image, a partition, or a new file.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use platter_block::Access;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Condition, Filesystem, SystemClock};

use crate::error::Cause;
use crate::open::CACHE_BYTES_DEFAULT;
use crate::populate::Content;
use crate::{Error, Escaped, Image, ImageSpec, Result};

pub use platter_ext4::mkfs::{Generation, MkfsOptions};
pub use platter_ondisk::Uuid;

/// Inodes beside those of the content: the filesystem's own, and a few more.
const INODES_SPARE: u64 = 32;
/// What an inode takes with a name, and its share of directories.
const INODE_BYTES: u64 = 256 + 64;
/// Room for a journal and for what is not counted.
const SPARE_BYTES: u64 = 8 << 20;
/// Sizes that are chosen are multiples of this.
const SIZE_UNIT_BYTES: u64 = 1 << 20;
/// Smallest difference between two sizes that are tried.
const SIZE_STEP_BYTES: u64 = 64 << 10;
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

/// What to make a filesystem of, and where its time and randomness come from.
#[derive(Debug, Clone)]
pub struct Maker {
    options: MkfsOptions,
    size: Size,
    content: Option<Arc<Content>>,
    overwrite: bool,
    clock: Arc<dyn Clock>,
    budget: Arc<MemoryBudget>,
}

impl Maker {
    /// A filesystem with these options, on all of an image that is there.
    #[must_use]
    pub fn new(options: MkfsOptions) -> Self {
        Self {
            options,
            size: Size::AsItIs,
            content: None,
            overwrite: false,
            clock: Arc::new(SystemClock::new()),
            budget: Arc::new(MemoryBudget::new(CACHE_BYTES_DEFAULT)),
        }
    }

    /// Make a new image file of this size. One that is there is replaced if it may be overwritten.
    #[must_use]
    pub fn size_bytes(mut self, size_bytes: u64) -> Self {
        self.size = Size::Bytes(size_bytes);
        self
    }

    /// Make a new image file that has room for the content and some more.
    #[must_use]
    pub fn size_of_content(mut self) -> Self {
        self.size = Size::OfContent;
        self
    }

    /// Make a new image file that is no more than a hundredth longer than the content needs. Found
    /// by trying, so it takes several times as long.
    #[must_use]
    pub fn minimal_size(mut self) -> Self {
        self.size = Size::Minimal;
        self
    }

    /// Fill it with this.
    #[must_use]
    pub fn content(mut self, content: Content) -> Self {
        let inodes = content.inodes().saturating_add(INODES_SPARE);
        let inodes = u32::try_from(inodes).unwrap_or(u32::MAX);
        self.options.inodes_min = self.options.inodes_min.max(inodes);
        self.content = Some(Arc::new(content));
        self
    }

    /// Overwrite what is there, be it a filesystem or a partition table.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Take time and random numbers from `clock`: the same options, seed and time make the same
    /// bytes.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Let the caches take their memory from `budget`.
    #[must_use]
    pub fn budget(mut self, budget: Arc<MemoryBudget>) -> Self {
        self.budget = budget;
        self
    }

    /// Makes the filesystem in what `spec` names, and tells `tell` of the bytes of content as they
    /// are written. A file that was made for it is removed again when that fails.
    ///
    /// # Errors
    /// `Occupied` where something is there that may not be overwritten; `NoSpace` where the content
    /// does not fit.
    pub fn make(&self, spec: &ImageSpec, tell: &mut dyn FnMut(u64)) -> Result<()> {
        if self.size == Size::AsItIs || spec.partition.is_some() {
            let image = Image::open_spec(spec, Access::Write)?;
            self.refuse_occupied(&image)?;
            return self.make_on(&image, false, tell);
        }
        let fresh = Fresh::new(&spec.image);
        if !fresh.is_new {
            self.refuse_replaced(&spec.image)?;
        }
        match self.size {
            Size::Bytes(size_bytes) => self.try_size(&fresh, size_bytes, tell)?,
            Size::AsItIs | Size::OfContent => {
                self.find_enough(&fresh, tell)?;
            }
            Size::Minimal => self.find_smallest(&fresh, tell)?,
        }
        fresh.keep();
        Ok(())
    }

    fn try_size(
        &self,
        fresh: &Fresh<'_>,
        size_bytes: u64,
        tell: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.make_on(&fresh.create(size_bytes)?, true, tell)
    }

    /// Makes it with some room to spare, and gives its size.
    fn find_enough(&self, fresh: &Fresh<'_>, tell: &mut dyn FnMut(u64)) -> Result<u64> {
        let mut size_bytes = self.likely_bytes();
        for _ in 1..SIZES_MAX {
            match self.try_size(fresh, size_bytes, tell) {
                Err(error) if is_full(&error) => {
                    size_bytes = (size_bytes + size_bytes / 4).next_multiple_of(SIZE_UNIT_BYTES);
                }
                made => return made.map(|()| size_bytes),
            }
        }
        self.try_size(fresh, size_bytes, tell).map(|()| size_bytes)
    }

    /// Halves the distance between a size that is enough and one that is not until it does not
    /// matter.
    fn find_smallest(&self, fresh: &Fresh<'_>, tell: &mut dyn FnMut(u64)) -> Result<()> {
        let mut enough = self.find_enough(fresh, tell)?;
        let content = self.content.as_ref();
        let mut too_little = content.map_or(0, |content| content.data_bytes(1) / 2);
        let mut is_made = true;
        while enough - too_little > (enough / 100).max(SIZE_STEP_BYTES) {
            let middle = too_little
                .midpoint(enough)
                .next_multiple_of(SIZE_STEP_BYTES);
            if middle >= enough {
                break;
            }
            match self.try_size(fresh, middle, tell) {
                Ok(()) => {
                    enough = middle;
                    is_made = true;
                }
                Err(error) if is_full(&error) => {
                    too_little = middle;
                    is_made = false;
                }
                Err(error) => return Err(error),
            }
        }
        if !is_made {
            self.try_size(fresh, enough, tell)?;
        }
        Ok(())
    }

    /// What the content takes with what belongs to it, a journal, and a tenth to spare.
    fn likely_bytes(&self) -> u64 {
        let content = self.content.as_ref();
        let data = content.map_or(0, |content| content.data_bytes(4096));
        let inodes = content.map_or(0, |content| content.inodes());
        let own = inodes.saturating_mul(INODE_BYTES).saturating_add(data);
        // Longer is no file.
        let own = own.min(i64::MAX.unsigned_abs() / 2);
        let spare = own / 10 + SPARE_BYTES;
        (own + spare).next_multiple_of(SIZE_UNIT_BYTES)
    }

    fn make_on(&self, image: &Image, is_zero: bool, tell: &mut dyn FnMut(u64)) -> Result<()> {
        let named = |error: platter_vfs::Error| Error::new(image.name(), error);
        let (device, clock) = (image.device(), &*self.clock);
        let budget = Arc::clone(&self.budget);
        platter_ext4::mkfs::mkfs(device, &self.options, is_zero, budget, clock).map_err(named)?;
        let Some(content) = &self.content else {
            return Ok(());
        };
        let options = platter_ext4::MountOptions {
            read_only: false,
            uses_reserve: true,
            ..platter_ext4::MountOptions::default()
        };
        let (device, budget) = (Arc::clone(device), Arc::clone(&self.budget));
        let clock = Arc::clone(&self.clock);
        let fs = platter_ext4::Ext4::mount(device, &options, budget, clock).map_err(named)?;
        content.fill(&fs, tell)?;
        fs.unmount().map_err(named)
    }

    /// Refuses to replace a file that holds something, unless it may be overwritten.
    fn refuse_replaced(&self, path: &Path) -> Result<()> {
        let image = Image::open(path, Access::Write)?;
        self.refuse_occupied(&image)?;
        if self.overwrite || image.device().geometry().len_bytes == 0 {
            return Ok(());
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

fn is_full(error: &Error) -> bool {
    let full = platter_vfs::Error::Condition(Condition::NoSpace);
    matches!(&error.cause, Cause::Filesystem(error) if error.errno() == full.errno())
}

/// A file that goes again unless it is kept, if it was not there before.
struct Fresh<'a> {
    path: &'a Path,
    is_new: bool,
    is_kept: bool,
}

impl<'a> Fresh<'a> {
    fn new(path: &'a Path) -> Self {
        Self {
            path,
            is_new: std::fs::symlink_metadata(path).is_err(),
            is_kept: false,
        }
    }

    /// Makes it anew with zeros, which take no space yet.
    fn create(&self, size_bytes: u64) -> Result<Image> {
        let host = |error: std::io::Error| Error {
            image: Escaped(self.path.as_os_str().as_bytes()).to_string().into(),
            path: None,
            cause: error.into(),
        };
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false);
        let file = file.open(self.path).map_err(host)?;
        // An image that somebody uses is locked, and keeps what it holds.
        let unused = Image::open(self.path, Access::Write)?;
        file.set_len(0).map_err(host)?;
        file.set_len(size_bytes).map_err(host)?;
        drop(unused);
        Image::open(self.path, Access::Write)
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if self.is_new && !self.is_kept {
            // Whoever is told of the failure sees what is left.
            let _ = std::fs::remove_file(self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder_of(files: u32, bytes: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tree")).unwrap();
        for number in 0..files {
            let path = folder.path().join(format!("tree/{number}"));
            fs::write(path, vec![7; bytes]).unwrap();
        }
        folder
    }

    #[test]
    fn many_files_do_not_fill_the_memory_with_dirty_pages() {
        let folder = folder_of(300, 32 << 10);
        let budget = Arc::new(MemoryBudget::new(4 << 20));
        let content = Content::of_folder(&folder.path().join("tree")).unwrap();
        let spec = ImageSpec::parse(folder.path().join("image")).unwrap();
        let maker = Maker::new(MkfsOptions::new(Generation::Ext4))
            .budget(Arc::clone(&budget))
            .content(content)
            .size_of_content();
        let most = budget.dirty_limit_bytes() + (64 << 10);
        let mut told = 0;
        let mut tell = |bytes| {
            told += bytes;
            assert!(budget.dirty_bytes() <= most, "{}", budget.dirty_bytes());
        };
        maker.make(&spec, &mut tell).unwrap();
        assert_eq!(told, 300 * (32 << 10));
    }

    #[test]
    fn the_smallest_image_is_found_by_trying() {
        let folder = folder_of(20, 50_000);
        let spec = ImageSpec::parse(folder.path().join("image")).unwrap();
        let content = || Content::of_folder(&folder.path().join("tree")).unwrap();
        let maker = || Maker::new(MkfsOptions::new(Generation::Ext2)).content(content());
        maker().minimal_size().make(&spec, &mut |_| {}).unwrap();
        let smallest = fs::metadata(&spec.image).unwrap().len();
        fs::remove_file(&spec.image).unwrap();
        let less = smallest - smallest / 50 - SIZE_STEP_BYTES;
        let error = maker()
            .size_bytes(less)
            .make(&spec, &mut |_| {})
            .unwrap_err();
        assert!(is_full(&error), "{error}");
        assert!(!spec.image.exists());
    }

    #[test]
    fn a_file_that_is_there_is_replaced_only_when_nobody_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let spec = ImageSpec::parse(&path).unwrap();
        fs::write(&path, b"a letter").unwrap();
        let maker = Maker::new(MkfsOptions::new(Generation::Ext2)).size_bytes(4 << 20);
        let error = maker.make(&spec, &mut |_| {}).unwrap_err();
        assert!(matches!(error.cause, Cause::Occupied { .. }), "{error}");
        let maker = maker.overwrite(true);
        let user = Image::open(&path, Access::Write).unwrap();
        assert!(maker.make(&spec, &mut |_| {}).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
        drop(user);
        maker.make(&spec, &mut |_| {}).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
        let refused = maker.size_bytes(1024).make(&spec, &mut |_| {});
        assert!(refused.is_err() && path.exists());
    }
}
