//! Operands that name files in images: each image is opened once.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use platter::{Cause, Error, File, ImageSpec, Volume};

use crate::args::ImageOptions;
use crate::console;
use crate::output::error::misuse;

/// Opens volumes for operands, and keeps the last one open, since operands mostly name the same.
pub(crate) struct Volumes<'a> {
    options: &'a ImageOptions,
    open: Option<(ImageSpec, Volume)>,
}

impl<'a> Volumes<'a> {
    pub(crate) fn new(options: &'a ImageOptions) -> Self {
        Self {
            options,
            open: None,
        }
    }

    /// What an operand names, and the volume.
    pub(crate) fn find(&mut self, operand: &OsStr) -> platter::Result<(ImageSpec, Volume)> {
        let spec = parse(operand)?;
        let volume = self.open(spec.clone())?;
        Ok((spec, volume))
    }

    /// The file that an operand names, a symbolic link itself if not to be followed.
    pub(crate) fn file(
        &mut self,
        operand: &OsStr,
        follow: bool,
    ) -> platter::Result<(ImageSpec, File)> {
        let (spec, volume) = self.find(operand)?;
        let path = spec.path_or_root();
        let file = if follow {
            volume.open(path)
        } else {
            volume.open_no_follow(path)
        };
        Ok((spec, file?))
    }

    fn open(&mut self, mut spec: ImageSpec) -> platter::Result<Volume> {
        spec.path = None;
        if let Some((_, volume)) = self.open.as_ref().filter(|(open, _)| *open == spec) {
            return Ok(volume.clone());
        }
        self.close();
        let volume = self.options.open_options().open(&spec)?;
        self.open = Some((spec, volume.clone()));
        Ok(volume)
    }

    fn close(&mut self) {
        if let Some((_, volume)) = self.open.take() {
            report_requests(&volume);
        }
    }
}

impl Drop for Volumes<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens a file that is written anew, as [`fs::File::create`] does, unless it is the image that is read from.
pub(crate) fn create_output(path: &Path, volume: &Volume) -> anyhow::Result<fs::File> {
    create_unless(path, |file| volume.lies_in(file))
}

/// Opens a file that is written anew, as [`fs::File::create`] does, unless `is_image` says that it is the image that
/// is read from.
pub(crate) fn create_unless(
    path: &Path,
    is_image: impl FnOnce(&fs::File) -> io::Result<bool>,
) -> anyhow::Result<fs::File> {
    let shown = || platter::Escaped(path.as_os_str().as_encoded_bytes()).to_string();
    let mut options = fs::File::options();
    let file = options.write(true).create(true).truncate(false).open(path);
    let file = file.with_context(shown)?;
    if is_image(&file).with_context(shown)? {
        bail!(
            "{}: is the image that is read from, and would be overwritten",
            shown()
        );
    }
    if file.metadata().with_context(shown)?.is_file() {
        file.set_len(0).with_context(shown)?;
    }
    Ok(file)
}

/// Reports how many requests reached the image, if they were counted.
pub(crate) fn report_requests(volume: &Volume) {
    if let Some(counts) = volume.request_counts() {
        let (reads, bytes, hints) = (counts.reads, counts.read_bytes, counts.hints);
        let name = volume.name();
        console::complain(format_args!(
            "{name}: {reads} read requests of {bytes} bytes, {hints} announcements"
        ));
    }
}

/// Reads an operand that names an image, or a file in one.
pub(crate) fn parse(operand: &OsStr) -> platter::Result<ImageSpec> {
    ImageSpec::parse(operand).map_err(|error| {
        let image = platter::Escaped(operand.as_encoded_bytes()).to_string();
        Error::new(&Arc::from(image), Cause::Spec(error))
    })
}

/// Reads an operand that names an image as a whole.
pub(crate) fn parse_image(operand: &OsStr) -> anyhow::Result<ImageSpec> {
    let spec = parse(operand)?;
    if spec.path_or_root().iter().any(|&byte| byte != b'/') {
        let operand = platter::Escaped(operand.as_encoded_bytes());
        misuse!("{operand}: names a file in an image, where the image itself is asked for");
    }
    Ok(spec)
}
