//! `platter device`: devices of a btrfs that come and go.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Subcommand;
use platter::escape::unescape;
use platter::vfs::devices::NewLength;
use platter_fuse::DevicesCommand;
use serde_json::{Map, json};
use signal_hook::consts::SIGINT;

use super::balance::{MovingProgress, report_moved};
use super::editing::refuse_reading_options;
use super::mounted::{self, is_mount};
use super::operands::parse_image;
use super::scrub::{Listener, report_scrubbed};
use crate::args::{ImageOptions, parse_size};
use crate::console::{self, Console};
use crate::output::json::{put_name, write_object};

/// Add, remove, replace and resize devices of a btrfs
///
/// IMAGE is one device of the filesystem; the others are given with --device. DEVID is the number of a device, as `info`
/// shows it. With --option degraded, devices may be missing. A filesystem that is mounted by platter is named by a
/// directory of the mount instead, and used meanwhile; the process that serves it opens new devices.
#[derive(Debug, clap::Args)]
pub(crate) struct Device {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a device, whose contents are lost
    Add {
        /// The filesystem, as IMAGE[@PARTITION], or a directory of a mount
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
        /// The filesystem, as IMAGE[@PARTITION], or a directory of a mount
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
        /// The filesystem, as IMAGE[@PARTITION], or a directory of a mount
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
    /// Make a device longer, with its image file, or shorter; what is beyond is moved
    Resize {
        /// The filesystem, as IMAGE[@PARTITION], or a directory of a mount
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
        let (Action::Add { image, .. }
        | Action::Remove { image, .. }
        | Action::Replace { image, .. }
        | Action::Resize { image, .. }) = &self.action;
        if is_mount(image, options)? {
            return self.run_mounted(image);
        }
        options.refuse_counting("device")?;
        refuse_reading_options(options)?;
        let open_options = options.open_options();
        match &self.action {
            Action::Add { image, new, force } => {
                let (spec, new) = (parse_image(image)?, parse_image(new)?);
                let id = platter::pool::add_device(&open_options, &spec, &new, *force)?;
                report_added(&unescape(&spec.to_string()), id)
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

    /// Asks the process that serves the mount to do it.
    fn run_mounted(&self, mount: &OsStr) -> anyhow::Result<u8> {
        let name = mount.as_encoded_bytes();
        let run = |command| mounted::run_on_devices(Path::new(mount), &command, "chunks");
        let absolute = |new| mounted::absolute(&parse_image(new)?);
        match &self.action {
            Action::Add { new, force, .. } => {
                let outcome = run(DevicesCommand::Add {
                    path: &absolute(new)?,
                    is_forced: *force,
                })?;
                report_added(name, outcome.device)
            }
            Action::Remove { device, .. } => {
                let outcome = run(DevicesCommand::Remove { device: *device })?;
                report_moved(name, &outcome.resized.moved)
            }
            Action::Replace {
                device, new, force, ..
            } => {
                let outcome = run(DevicesCommand::Replace {
                    device: *device,
                    path: &absolute(new)?,
                    is_forced: *force,
                })?;
                report_scrubbed(name, &outcome.scrubbed)
            }
            Action::Resize { device, size, .. } => {
                let outcome = run(DevicesCommand::Resize {
                    device: Some(*device),
                    length: NewLength::Bytes(*size),
                })?;
                report_moved(name, &outcome.resized.moved)
            }
        }
    }
}

/// Writes the number of a device that was added. Returns the exit status.
fn report_added(image: &[u8], id: u64) -> anyhow::Result<u8> {
    let mut console = Console::new();
    if console::is_json() {
        let mut object = Map::new();
        put_name(&mut object, "image", image);
        object.insert("device".into(), json!(id));
        write_object(&mut console.out, &object)?;
    } else {
        writeln!(console.out, "added as device {id}")?;
    }
    Ok(console.finish()?)
}
