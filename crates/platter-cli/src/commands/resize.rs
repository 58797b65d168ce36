//! `platter resize`: a larger or smaller filesystem.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use platter::MemoryBudget;
use platter::escape::unescape;
use platter::resize::NewSize;
use platter::vfs::devices::NewLength;
use platter::vfs::{Clock, FixedClock, SystemClock};
use platter_fuse::DevicesCommand;
use serde_json::{Map, json};

use super::mounted::{self, is_mount};
use super::operands::parse_image;
use crate::args::{ImageOptions, parse_size, source_date};
use crate::console::{self, Console};
use crate::interrupt;
use crate::output::error::misuse;
use crate::output::json::{put_name, write_object};

/// Change the size of a filesystem
///
/// One that is mounted by platter is named by a directory of the mount, and used meanwhile: a btrfs, on one device, or
/// an XFS, which becomes larger only. Its image file does not become shorter then.
///
/// An image file grows with it. With a journal, the filesystem has its old or its new size whatever
/// happens meanwhile; so has one in a file, which needs space for a copy where there is no journal.
/// XFS becomes smaller as far as nothing lies at its end, btrfs down to 256 MiB; others do not.
#[derive(Debug, clap::Args)]
pub(crate) struct Resize {
    /// The image, as IMAGE[@PARTITION], or a directory of a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// The new size, or +SIZE for so much more; of a partition or device, all of it if not given
    #[arg(value_name = "[+]SIZE", value_parser = parse_new_size)]
    size: Option<NewSize>,
}

impl Resize {
    pub(crate) fn run(&self, image_options: &ImageOptions) -> anyhow::Result<u8> {
        if is_mount(&self.image, image_options)? {
            return self.resize_mounted();
        }
        if image_options.offset.is_some() {
            misuse!("--offset is not for resizing a filesystem; name a partition");
        }
        image_options.refuse_others(&[], "resizing a filesystem")?;
        let spec = parse_image(&self.image)?;
        let budget = Arc::new(MemoryBudget::new(image_options.cache));
        let clock: Arc<dyn Clock> = match source_date()? {
            Some(date) => Arc::new(FixedClock::new(date, 0)),
            None => Arc::new(SystemClock::new()),
        };
        let size = self.size.unwrap_or(NewSize::Whole);
        let found = std::fs::metadata(&spec.image);
        if spec.partition.is_none() && found.is_ok_and(|found| found.is_file()) {
            interrupt::catch()?;
        }
        let progress = interrupt::progress();
        let grown = platter::resize::grow(&spec, size, &budget, &clock, &progress)?;
        let name = unescape(&spec.to_string());
        self.report(&name, grown.before_bytes, grown.after_bytes)
    }

    /// Asks the process that serves the mount to do it.
    fn resize_mounted(&self) -> anyhow::Result<u8> {
        let command = DevicesCommand::Resize {
            device: None,
            length: match self.size.unwrap_or(NewSize::Whole) {
                NewSize::Whole => NewLength::Whole,
                NewSize::Bytes(bytes) => NewLength::Bytes(bytes),
                NewSize::Larger(bytes) => NewLength::Larger(bytes),
            },
        };
        let outcome = mounted::run_on_devices(Path::new(&self.image), &command, "chunks")?;
        let resized = outcome.resized;
        if resized.moved.is_cancelled {
            let image = platter::Escaped(self.image.as_encoded_bytes());
            bail!("{image}: interrupted; it has {} bytes", resized.after_bytes);
        }
        self.report(
            self.image.as_encoded_bytes(),
            resized.before_bytes,
            resized.after_bytes,
        )
    }

    fn report(&self, name: &[u8], before_bytes: u64, after_bytes: u64) -> anyhow::Result<u8> {
        if console::is_json() {
            let mut object = Map::new();
            put_name(&mut object, "image", name);
            object.insert("before_bytes".into(), json!(before_bytes));
            object.insert("after_bytes".into(), json!(after_bytes));
            let mut console = Console::new();
            write_object(&mut console.out, &object)?;
            return Ok(console.finish()?);
        }
        if before_bytes == after_bytes {
            let image = platter::Escaped(self.image.as_encoded_bytes());
            console::complain(format_args!(
                "{image}: is {after_bytes} bytes long already, as far as whole groups go"
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
