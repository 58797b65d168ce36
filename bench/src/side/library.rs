//! Platter in this process.

use std::sync::Arc;

use anyhow::{Context, Result};
use platter::block::Access;
use platter::{Image, MemoryBudget, MountOption, MountOptions, Volume, WriteOptions};

use super::{Asked, Ground, Live};
use crate::place::{Directory, LibraryDir};

pub(super) struct Library(Volume);

/// The image of `ground`, open for writing, with its requests counted.
pub(super) fn open(ground: &Ground) -> Result<Volume> {
    let image = Image::open(&ground.image, Access::Write)?;
    let mut options = MountOptions::new()
        .writing(WriteOptions::default())
        .budget(Arc::new(MemoryBudget::new(ground.cache_bytes)))
        .count_requests();
    if let Some(option) = &ground.mount {
        options = options.option(MountOption::parse(option));
    }
    Ok(options.mount(&image)?)
}

impl Library {
    pub(super) fn start(ground: &Ground) -> Result<Self> {
        Ok(Self(open(ground)?))
    }
}

impl Live for Library {
    fn root(&self) -> Result<Box<dyn Directory>> {
        Ok(Box::new(LibraryDir::root(self.0.filesystem())?))
    }

    fn server(&self) -> Option<u32> {
        None
    }

    fn asked(&mut self) -> Result<Asked> {
        let counts = self.0.request_counts().context("requests are counted")?;
        Ok(Asked {
            device: Some(counts.into()),
            ..Asked::default()
        })
    }

    fn end(self: Box<Self>) -> Result<()> {
        Ok(self.0.filesystem().unmount()?)
    }
}
