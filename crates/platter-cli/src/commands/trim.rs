//! `platter trim`: free space given back.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use platter::vfs::Trim as Range;
use platter::{Error, Escaped, WriteOptions};
use serde_json::{Map, json};

use super::editing::refuse_reading_options;
use super::mounted::{self, is_mount};
use super::operands::{parse_image, report_requests};
use crate::args::{ImageOptions, parse_size};
use crate::console::{self, Console};
use crate::output::json::{put_name, write_object};

/// Discard the free space of a filesystem, so that its image takes less
///
/// A device that can discard does so; in an image file, holes are punched. A filesystem that is mounted by platter is
/// named by a directory of the mount; fstrim(8) works there, too.
#[derive(Debug, clap::Args)]
pub(crate) struct Trim {
    /// The image, as IMAGE[@PARTITION], or a directory of a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// Leave shorter runs of free space alone
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    minimum: u64,
}

impl Trim {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let asked = Range {
            start_bytes: 0,
            len_bytes: u64::MAX,
            min_bytes: self.minimum,
        };
        let trimmed = if is_mount(&self.image, options)? {
            let dir = Path::new(&self.image);
            let trimmed = mounted::open(dir)?.trim(&asked);
            trimmed.map_err(|error| mounted::named(dir, &error))?
        } else {
            self.trim_image(options, &asked)?
        };
        let mut console = Console::new();
        let image = self.image.as_encoded_bytes();
        if console::is_json() {
            let mut object = Map::new();
            put_name(&mut object, "image", image);
            object.insert("trimmed_bytes".into(), json!(trimmed));
            write_object(&mut console.out, &object)?;
        } else {
            writeln!(console.out, "{}: {trimmed} bytes trimmed", Escaped(image))?;
        }
        Ok(console.finish()?)
    }

    fn trim_image(&self, options: &ImageOptions, asked: &Range) -> anyhow::Result<u64> {
        refuse_reading_options(options)?;
        let spec = parse_image(&self.image)?;
        let volume = options
            .open_options()
            .writing(WriteOptions::default())
            .open(&spec)?;
        let named = |error| Error::new(volume.name(), error);
        let trimmed = volume.filesystem().trim(asked).map_err(named)?;
        report_requests(&volume);
        volume.close()?;
        Ok(trimmed)
    }
}
