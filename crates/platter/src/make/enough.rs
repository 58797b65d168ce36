//! The smallest length that is enough for an empty filesystem with some options: found by making it,
//! in a temporary file that takes hardly any space.

use std::sync::Arc;

use platter_block::{Access, BlockDevice, FileDevice, IoError};
use platter_vfs::Condition;

use super::{FormatOptions, is_full};
use crate::driver::OnDevice;
use crate::{Cause, Error, Image, Result};

/// Longer filesystems have space for the files they begin with, wherever there is space for their
/// groups.
pub(super) const TRIED_BYTES_MAX: u64 = 1 << 30;
/// What lengths are multiples of.
const UNIT_BYTES: u64 = 1 << 10;
/// Where the search for the smallest size that works ends.
const NEEDED_BYTES_MAX: u64 = 1 << 40;

/// Makes a filesystem in a temporary file of some length.
pub(super) fn try_elsewhere(
    options: &FormatOptions,
    name: &Arc<str>,
    len_bytes: u64,
) -> Result<()> {
    let host = |error: std::io::Error| Error::new(name, error);
    let file = tempfile::NamedTempFile::new().map_err(host)?;
    file.as_file().set_len(len_bytes).map_err(host)?;
    let open = platter_block::OpenOptions {
        access: Access::Write,
        ..platter_block::OpenOptions::default()
    };
    let device = FileDevice::open(file.path(), open)
        .map_err(|error| Error::new(name, IoError::from(error)))?;
    // Removed before the work, so that a process that is killed leaves nothing.
    drop(file);
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let image = Image::new(Arc::clone(name), device);
    options.make_empty(&image.into(), OnDevice::Zeros, &*options.fresh_clock())
}

/// Says how long an image has to be, where that is what was wrong.
pub(super) fn explain_too_small(options: &FormatOptions, error: Error, len_bytes: u64) -> Error {
    if !is_full(&error) && !is_invalid(&error) {
        return error;
    }
    match enough_bytes(options, &error.image, len_bytes) {
        Some(needed_bytes) => {
            let cause = Cause::TooSmall {
                len_bytes,
                needed_bytes,
            };
            Error::new(&error.image, cause)
        }
        None => error,
    }
}

/// The smallest length that is enough, if `len_bytes` is not and any other is.
fn enough_bytes(options: &FormatOptions, name: &Arc<str>, len_bytes: u64) -> Option<u64> {
    let is_enough = |len| try_elsewhere(options, name, len).is_ok();
    if is_enough(len_bytes) {
        return None;
    }
    let (mut short, mut enough) = (len_bytes / UNIT_BYTES, len_bytes / UNIT_BYTES + 1);
    while !is_enough(enough * UNIT_BYTES) {
        short = enough;
        enough *= 2;
        if enough * UNIT_BYTES > NEEDED_BYTES_MAX {
            return None;
        }
    }
    while enough - short > 1 {
        let middle = short.midpoint(enough);
        if is_enough(middle * UNIT_BYTES) {
            enough = middle;
        } else {
            short = middle;
        }
    }
    // What was cancelled is not enough either.
    (!options.progress.is_cancelled()).then_some(enough * UNIT_BYTES)
}

fn is_invalid(error: &Error) -> bool {
    let invalid = platter_vfs::Error::from(Condition::InvalidArgument);
    matches!(&error.cause, Cause::Filesystem(error) if error.errno() == invalid.errno())
}
