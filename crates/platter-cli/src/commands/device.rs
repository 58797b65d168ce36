//! `platter device`: devices of a btrfs that come and go.

use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Subcommand;
use platter::escape::unescape;
use serde_json::{Map, json};
use signal_hook::consts::SIGINT;

use super::balance::{MovingProgress, report_moved};
use super::operands::parse_image;
use super::scrub::{Listener, report_scrubbed};
use crate::args::{ImageOptions, parse_size};
use crate::console::{self, Console};
use crate::output::json::{put_name, write_object};

/// Add, remove, replace and resize devices of a btrfs
///
/// IMAGE is one device of the filesystem, which must not be mounted; the others are given with --device. DEVID is the
/// number of a device, as `info` shows it. With --option degraded, devices may be missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Device {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a device, whose contents are lost
    Add {
        /// The filesystem, as IMAGE[@PARTITION]
        #[arg(value_name = "IMAGE")]
        image: OsString,
        /// The new device, as IMAGE[@PARTITION]
        #[arg(value_name = "NEW")]
        new: OsString,
        /// Although something is on it
        #[arg(short, long)]
        force: bool,
    },
    /// Move what is on a device to the others, and remove it; it may be missing
    Remove {
        /// The filesystem, as IMAGE[@PARTITION]
        #[arg(value_name = "IMAGE")]
        image: OsString,
        /// The number of the device
        #[arg(value_name = "DEVID")]
        device: u64,
    },
    /// Put another device in the place of one, which may be missing
    ///
    /// What cannot be read is made again from other copies or parity. The exit status is that of scrub.
    Replace {
        /// The filesystem, as IMAGE[@PARTITION]
        #[arg(value_name = "IMAGE")]
        image: OsString,
        /// The number of the device
        #[arg(value_name = "DEVID")]
        device: u64,
        /// The new device, as IMAGE[@PARTITION]
        #[arg(value_name = "NEW")]
        new: OsString,
        /// Although something is on it
        #[arg(short, long)]
        force: bool,
    },
    /// Make a device longer or shorter; what is beyond is moved
    Resize {
        /// The filesystem, as IMAGE[@PARTITION]
        #[arg(value_name = "IMAGE")]
        image: OsString,
        /// The number of the device
        #[arg(value_name = "DEVID")]
        device: u64,
        /// Its new length
        #[arg(value_name = "SIZE", value_parser = parse_size)]
        size: u64,
    },
}

impl Device {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let open_options = options.open_options();
        match &self.action {
            Action::Add { image, new, force } => {
                let (spec, new) = (parse_image(image)?, parse_image(new)?);
                let id = platter::pool::add_device(&open_options, &spec, &new, *force)?;
                let mut console = Console::new();
                if console::is_json() {
                    let mut object = Map::new();
                    put_name(&mut object, "image", &unescape(&spec.to_string()));
                    object.insert("device".into(), json!(id));
                    write_object(&mut console.out, &object)?;
                } else {
                    writeln!(console.out, "added as device {id}")?;
                }
                Ok(console.finish()?)
            }
            Action::Remove { image, device } => {
                let spec = parse_image(image)?;
                let moved = MovingProgress::new("chunks")?.follow(|moving| {
                    platter::pool::remove_device(&open_options, &spec, *device, moving)
                })?;
                report_moved(&unescape(&spec.to_string()), &moved)
            }
            Action::Replace {
                image,
                device,
                new,
                force,
            } => {
                let (spec, new) = (parse_image(image)?, parse_image(new)?);
                let interrupted = Arc::new(AtomicBool::new(false));
                signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?;
                // All that is there is found bad on a device that has nothing yet.
                let mut listener = Listener::quiet(&interrupted);
                let replaced = platter::pool::replace_device(
                    &open_options,
                    &spec,
                    *device,
                    &new,
                    *force,
                    &mut listener,
                );
                listener.finish();
                report_scrubbed(&unescape(&spec.to_string()), &replaced?)
            }
            Action::Resize {
                image,
                device,
                size,
            } => {
                let spec = parse_image(image)?;
                let moved = MovingProgress::new("chunks")?.follow(|moving| {
                    platter::pool::resize_device(&open_options, &spec, *device, *size, moving)
                })?;
                report_moved(&unescape(&spec.to_string()), &moved)
            }
        }
    }
}
