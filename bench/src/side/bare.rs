//! The directory of tmpfs itself.

use std::path::PathBuf;

use anyhow::Result;

use super::{Asked, Ground, Live};
use crate::place::{Directory, HostDir};

pub(super) struct Bare(PathBuf);

impl Bare {
    pub(super) fn start(ground: &Ground) -> Result<Self> {
        Ok(Self(ground.backing()?))
    }
}

impl Live for Bare {
    fn root(&self) -> Result<Box<dyn Directory>> {
        Ok(Box::new(HostDir::open(&self.0)?))
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.0.clone())
    }

    fn server(&self) -> Option<u32> {
        None
    }

    fn asked(&mut self) -> Result<Asked> {
        Ok(Asked::default())
    }

    fn end(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
