//! A fixture as platter opens it.

use anyhow::{Context, Result};
use platter::block::Access;
use platter::{DeviceRole, Image, MountOptions, PartitionSelector, Volume};

use crate::fixtures::Built;

/// Opens a fixture for reading, replaying its journal in memory.
pub fn open(built: &Built) -> Result<Volume> {
    Ok(options(built).mount(&image(built)?)?)
}

/// The image, or the partition of it, that holds a fixture's filesystem.
pub fn image(built: &Built) -> Result<Image> {
    let disk = Image::open(&built.image, Access::Read)?;
    let Some(number) = built.partition else {
        return Ok(disk);
    };
    let number = number.try_into().context("partitions count from 1")?;
    Ok(disk.partition(&PartitionSelector::Number(number))?)
}

/// What opening a fixture takes.
#[must_use]
pub fn options(built: &Built) -> MountOptions {
    let options = MountOptions::new();
    match &built.journal {
        Some(journal) => options.device(DeviceRole::Log, journal),
        None => options,
    }
}
