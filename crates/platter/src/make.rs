//! Making a filesystem in an image, a partition, or a new file.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use platter_block::Access;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, SystemClock};

use crate::error::Cause;
use crate::open::CACHE_BYTES_DEFAULT;
use crate::{Error, Escaped, Image, ImageSpec, Result};

pub use platter_ext4::mkfs::{Generation, MkfsOptions};
pub use platter_ondisk::Uuid;

/// What to make a filesystem of, and where its time and randomness come from.
#[derive(Debug, Clone)]
pub struct Maker {
    options: MkfsOptions,
    size_bytes: Option<u64>,
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
            size_bytes: None,
            overwrite: false,
            clock: Arc::new(SystemClock::new()),
            budget: Arc::new(MemoryBudget::new(CACHE_BYTES_DEFAULT)),
        }
    }

    /// Make a new image file of this size. One that is there is replaced if it may be overwritten.
    #[must_use]
    pub fn size_bytes(mut self, size_bytes: u64) -> Self {
        self.size_bytes = Some(size_bytes);
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

    /// Makes the filesystem in what `spec` names. A file that was made for it is removed again when
    /// that fails.
    ///
    /// # Errors
    /// `Occupied` where something is there that may not be overwritten.
    pub fn make(&self, spec: &ImageSpec) -> Result<()> {
        let Some(size_bytes) = self.size_bytes.filter(|_| spec.partition.is_none()) else {
            let image = Image::open_spec(spec, Access::Write)?;
            self.refuse_occupied(&image)?;
            return self.make_on(&image, false);
        };
        if spec.image.exists() && !self.overwrite {
            self.refuse_occupied(&Image::open(&spec.image, Access::Write)?)?;
        }
        let fresh = Fresh::create(&spec.image, size_bytes)?;
        self.make_on(&Image::open(&spec.image, Access::Write)?, true)?;
        fresh.keep();
        Ok(())
    }

    fn make_on(&self, image: &Image, is_zero: bool) -> Result<()> {
        let budget = Arc::clone(&self.budget);
        let (device, clock) = (image.device(), &*self.clock);
        platter_ext4::mkfs::mkfs(device, &self.options, is_zero, budget, clock)
            .map_err(|error| Error::new(image.name(), error))
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

/// A file that goes again unless it is kept.
struct Fresh<'a> {
    path: Option<&'a Path>,
}

impl<'a> Fresh<'a> {
    /// A file of zeros, which takes no space yet.
    fn create(path: &'a Path, size_bytes: u64) -> Result<Self> {
        let host = |error: std::io::Error| Error {
            image: Escaped(path.as_os_str().as_bytes()).to_string().into(),
            path: None,
            cause: error.into(),
        };
        let file = File::create(path).map_err(host)?;
        let fresh = Self { path: Some(path) };
        file.set_len(size_bytes).map_err(host)?;
        Ok(fresh)
    }

    fn keep(mut self) {
        self.path = None;
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path {
            // Whoever is told of the failure sees what is left.
            let _ = std::fs::remove_file(path);
        }
    }
}
