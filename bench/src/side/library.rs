//! Platter in this process.

use std::path::PathBuf;
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

    fn path(&self) -> Option<PathBuf> {
        None
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

#[cfg(test)]
mod tests {
    use testkit::fs_type::FsType;
    use testkit::oracle::mke2fs;

    use super::*;
    use crate::place::Mode;

    #[test]
    fn direct_writes_reach_the_image_before_they_return() {
        let dir = tempfile::tempdir().unwrap();
        let ground = Ground {
            dir: dir.path().to_owned(),
            image: dir.path().join("image"),
            format: FsType::Ext4,
            mount: None,
            cache_bytes: 64 << 20,
        };
        mke2fs::make(&ground.image, 16 << 10, &["-t", "ext4"], None).unwrap();
        let mut live: Box<dyn Live> = Box::new(Library::start(&ground).unwrap());
        let root = live.root().unwrap();
        let page = [1; 4096];
        let file = root.create("file").unwrap();
        file.write_at(0, &page).unwrap();
        file.sync().unwrap();
        let mut writes_of = |mode: Mode| {
            let file = root.open("file", mode).unwrap();
            let before = live.asked().unwrap().device.unwrap().writes;
            file.write_at(0, &page).unwrap();
            live.asked().unwrap().device.unwrap().writes - before
        };
        assert_eq!(writes_of(Mode::Write), 0);
        assert!(writes_of(Mode::WriteDirect) >= 1);
        drop((file, root));
        live.end().unwrap();
    }
}
