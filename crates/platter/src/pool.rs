//! The devices of a filesystem that is not mounted: scrubbing what is on them, balance, devices that come and go.

use std::sync::Arc;

use platter_block::{Access, BlockDevice};
use platter_vfs::CheckSink;

use crate::driver::{Driver, MountRequest, Pool, unsupported};
use crate::host_file::{HostFileId, explain_in_use};
use crate::{Cause, Error, Image, ImageSet, ImageSpec, MountOptions, Result};

pub use crate::driver::{Balance, Moved, Moving, Scrubbed};

/// Reads every copy of all metadata and data of the filesystem that `spec` names, and reports what is bad to `sink`. With
/// `repairs`, what is bad is rewritten from good copies or parity; nothing else may use the filesystem then.
///
/// # Errors
/// `Unsupported` for filesystems without checksums and copies; what keeps it from being opened, or from being read on.
pub fn scrub(
    options: &MountOptions,
    spec: &ImageSpec,
    repairs: bool,
    sink: &mut dyn CheckSink,
) -> Result<Scrubbed> {
    let options = if repairs {
        options.clone().read_write()
    } else {
        options.clone()
    };
    let (image, pool, mut request) = open(&options, spec)?;
    request.writing = None;
    let scrubbed = pool.scrub(request, repairs, sink);
    scrubbed.map_err(|error| Error::new(image.name(), error))
}

/// Places chunks of the filesystem that `spec` names anew, each in a commit of its own.
///
/// # Errors
/// `Unsupported` for filesystems without chunks, and for filters that are not known; `ENOSPC` where the devices have no
/// space for a chunk: those before it were moved.
pub fn balance(
    options: &MountOptions,
    spec: &ImageSpec,
    balance: &Balance,
    moving: Moving<'_>,
) -> Result<Moved> {
    let (image, pool, request) = open(&options.clone().read_write(), spec)?;
    let moved = pool.balance(request, balance, moving);
    moved.map_err(|error| Error::new(image.name(), error))
}

/// Adds the device that `added` names, whose contents are lost. Returns its number.
///
/// # Errors
/// `Occupied` where something that is known is on it, unless `is_forced`.
pub fn add_device(
    options: &MountOptions,
    spec: &ImageSpec,
    added: &ImageSpec,
    is_forced: bool,
) -> Result<u64> {
    let (image, pool, request) = open(&options.clone().read_write(), spec)?;
    let added = target(added, is_forced, &request.devices.host_files())?;
    let device = pool.add_device(request, added.device());
    device.map_err(|error| Error::new(image.name(), error))
}

/// Moves what is on a device of the filesystem to others, and removes it; it may be missing.
///
/// # Errors
/// `ENOSPC` where the others have no space for it, or are too few.
pub fn remove_device(
    options: &MountOptions,
    spec: &ImageSpec,
    device: u64,
    moving: Moving<'_>,
) -> Result<Moved> {
    let (image, pool, request) = open(&options.clone().read_write(), spec)?;
    let moved = pool.remove_device(request, device, moving);
    moved.map_err(|error| Error::new(image.name(), error))
}

/// Puts the device that `target` names in the place of another one of the filesystem, which may be missing.
///
/// # Errors
/// As of [`add_device`]; those of a scrub.
pub fn replace_device(
    options: &MountOptions,
    spec: &ImageSpec,
    device: u64,
    new: &ImageSpec,
    is_forced: bool,
    sink: &mut dyn CheckSink,
) -> Result<Scrubbed> {
    let (image, pool, request) = open(&options.clone().read_write(), spec)?;
    let new = target(new, is_forced, &request.devices.host_files())?;
    let replaced = pool.replace_device(request, device, new.device(), sink);
    replaced.map_err(|error| Error::new(image.name(), error))
}

/// Changes the length of a device of the filesystem, whose image file becomes longer with it; of a shorter one, what is
/// beyond is moved.
///
/// # Errors
/// `ENOSPC` where there is no space for it, or for a length beyond the device.
pub fn resize_device(
    options: &MountOptions,
    spec: &ImageSpec,
    device: u64,
    len_bytes: u64,
    moving: Moving<'_>,
) -> Result<Moved> {
    let (image, pool, request) = open(&options.clone().read_write(), spec)?;
    let moved = pool.resize_device(request, device, len_bytes, moving);
    moved.map_err(|error| Error::new(image.name(), error))
}

/// Opens the device that `spec` names for writing, to become one of a filesystem.
///
/// # Errors
/// `Occupied` where something that is known is on it, unless `is_forced`.
pub fn open_new(spec: &ImageSpec, is_forced: bool) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::clone(target(spec, is_forced, &[])?.device()))
}

/// A device that becomes one of a filesystem, whose devices are open.
fn target(spec: &ImageSpec, is_forced: bool, open: &[HostFileId]) -> Result<Image> {
    let image = Image::open_spec(spec, Access::Write);
    let image = image.map_err(|error| explain_in_use(error, spec, open))?;
    if is_forced {
        return Ok(image);
    }
    let probe = image.probe()?;
    let found = match (&probe.signature, &probe.table) {
        (Some(signature), _) => signature.kind.to_owned(),
        (None, Some(_)) => "a partition table".to_owned(),
        (None, None) => return Ok(image),
    };
    Err(Error::new(image.name(), Cause::Occupied { found }))
}

/// The first image, what can be done with its devices, and how they are opened.
fn open(
    options: &MountOptions,
    spec: &ImageSpec,
) -> Result<(Image, &'static dyn Pool, MountRequest)> {
    let image = options.open_image(spec)?;
    let driver: &'static dyn Driver = options.driver(&image)?;
    let pool = driver.pool().ok_or_else(|| {
        let error = unsupported(driver.format(), "commands on devices");
        Error::new(image.name(), error)
    })?;
    let devices = options.devices(&ImageSet::from(&image))?;
    let request = options.request(driver, &image, devices)?;
    Ok((image, pool, request))
}
