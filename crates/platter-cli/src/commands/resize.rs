//! `platter resize`: a larger or smaller filesystem.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::bail;
use platter::MemoryBudget;
use platter::escape::unescape;
use platter::resize::NewSize;
use platter::vfs::{Clock, FixedClock, SystemClock};
use serde_json::{Map, json};

use super::mounted::is_in_mount;
use super::operands::parse_image;
use crate::args::{ImageOptions, parse_size, source_date};
use crate::console::{self, Console};
use crate::output::error::misuse;
use crate::output::json::{put_name, write_object};

/// Change the size of a filesystem that is not mounted
///
/// An image file grows with it. With a journal, the filesystem has its old or its new size whatever
/// happens meanwhile; so has one in a file, which needs space for a copy where there is no journal.
/// XFS becomes smaller as far as nothing lies at its end, btrfs down to 256 MiB; others do not.
#[derive(Debug, clap::Args)]
pub(crate) struct Resize {
    /// The image, as IMAGE[@PARTITION]
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// The new size, or +SIZE for so much more; of a partition or device, all of it if not given
    #[arg(value_name = "[+]SIZE", value_parser = parse_new_size)]
    size: Option<NewSize>,
}

impl Resize {
    pub(crate) fn run(&self, image_options: &ImageOptions) -> anyhow::Result<u8> {
        if is_in_mount(&self.image) {
            let image = platter::Escaped(self.image.as_encoded_bytes());
            bail!("{image}: is mounted; the size of a filesystem is changed while it is not");
        }
        if image_options.offset.is_some() {
            misuse!("--offset is not for growing a filesystem; name a partition");
        }
        let spec = parse_image(&self.image)?;
        let budget = Arc::new(MemoryBudget::new(image_options.cache));
        let clock: Arc<dyn Clock> = match source_date()? {
            Some(date) => Arc::new(FixedClock::new(date, 0)),
            None => Arc::new(SystemClock::new()),
        };
        let grown =
            platter::resize::grow(&spec, self.size.unwrap_or(NewSize::Whole), &budget, &clock)?;
        if console::is_json() {
            let mut object = Map::new();
            put_name(&mut object, "image", &unescape(&spec.to_string()));
            object.insert("before_bytes".into(), json!(grown.before_bytes));
            object.insert("after_bytes".into(), json!(grown.after_bytes));
            let mut console = Console::new();
            write_object(&mut console.out, &object)?;
            return Ok(console.finish()?);
        }
        if grown.before_bytes == grown.after_bytes {
            let image = platter::Escaped(self.image.as_encoded_bytes());
            let bytes = grown.after_bytes;
            console::complain(format_args!(
                "{image}: is {bytes} bytes long already, as far as whole groups go"
            ));
        }
        Ok(0)
    }
}

fn parse_new_size(text: &str) -> Result<NewSize, String> {
    match text.strip_prefix('+') {
        Some(more) => parse_size(more).map(NewSize::Larger),
        None => parse_size(text).map(NewSize::Bytes),
    }
}
