//! `platter resize`: a larger filesystem.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::bail;
use platter::MemoryBudget;
use platter::vfs::{Clock, SystemClock};

use super::operands::parse_image;
use crate::args::{ImageOptions, parse_size};
use crate::console;

/// Make a filesystem larger that nobody has mounted
///
/// An image file grows with it. With a journal, the filesystem has its old or its new size whatever
/// happens meanwhile; so has one in a file, which needs room for a copy where there is no journal.
/// Nothing can be made smaller.
#[derive(Debug, clap::Args)]
pub(crate) struct Resize {
    /// The image, as IMAGE[@PARTITION]
    #[arg(value_name = "IMAGE")]
    image: OsString,
    /// The new size; of a partition or device, all of it if not given
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
}

impl Resize {
    pub(crate) fn run(&self, image_options: &ImageOptions) -> anyhow::Result<u8> {
        if image_options.offset.is_some() {
            bail!("--offset is not for growing a filesystem; name a partition");
        }
        let spec = parse_image(&self.image)?;
        let budget = Arc::new(MemoryBudget::new(image_options.cache));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let grown = platter::resize::grow(&spec, self.size, &budget, &clock)?;
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
