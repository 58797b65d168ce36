//! `platter receive`: send streams into an image or a mount.

mod tree;
mod apply;
mod origins;
mod mounted;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use platter::Escaped;
use platter::escape::unescape;
use platter::vfs::subvolumes::Received;
use serde_json::{Map, Value, json};

use super::editing::refuse_reading_options;
use super::mounted::is_mount;
use super::operands::parse;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::json::{put_name, write_object};

/// Make subvolumes of a btrfs from send streams
///
/// Streams are those of `btrfs send` and `platter send`, of version 1 or 2. Each subvolume is read-only and in the image
/// for good when it is complete. After an error, the one that was begun is deleted, and those before it stay; what
/// a killed process leaves is not marked as received, unless it was complete. The superuser receives into a directory of
/// a filesystem that is mounted by platter, too: what streams refer to has to be in the same mount, data that comes
/// compressed is stored as the mount compresses, and no other user should be able to write to the directory.
#[derive(Debug, clap::Args)]
pub(crate) struct Receive {
    /// The directory to receive into, as IMAGE[@PARTITION][:DIR], or a directory of a mount
    #[arg(value_name = "IMAGE[:DIR]")]
    directory: OsString,
    /// Read from this file instead of standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Receive {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        if is_mount(&self.directory, options)? {
            let dir = Path::new(&self.directory);
            let received = mounted::receive(dir, &mut BufReader::new(self.open_input()?))?;
            return report(self.directory.as_encoded_bytes(), &received);
        }
        options.refuse_counting("receive")?;
        refuse_reading_options(options)?;
        let spec = parse(&self.directory)?;
        let mut input = BufReader::new(self.open_input()?);
        let volume = options.open_options().read_write().open(&spec)?;
        let received = volume.receive(spec.path_or_root(), &mut input);
        let name = volume.name().clone();
        let closed = volume.close();
        let received = received?;
        closed?;
        report(&unescape(&name), &received)
    }

    fn open_input(&self) -> anyhow::Result<Box<dyn Read>> {
        match &self.file {
            Some(path) if path.as_os_str() != "-" => {
                let shown = Escaped(path.as_os_str().as_encoded_bytes()).to_string();
                Ok(Box::new(File::open(path).context(shown)?))
            }
            _ => Ok(Box::new(std::io::stdin())),
        }
    }
}

fn report(name: &[u8], received: &[Received]) -> anyhow::Result<u8> {
    let mut console = Console::new();
    if console::is_json() {
        let mut object = Map::new();
        put_name(&mut object, "image", name);
        let each = received.iter().map(|done| {
            let mut subvolume = Map::new();
            put_name(&mut subvolume, "name", &done.name);
            subvolume.insert("id".into(), json!(done.id));
            subvolume.insert("commands".into(), json!(done.commands));
            Value::Object(subvolume)
        });
        object.insert("received".into(), each.collect());
        write_object(&mut console.out, &object)?;
    } else {
        for done in received {
            let (name, id) = (Escaped(&done.name), done.id);
            writeln!(console.out, "received {name} as subvolume {id}")?;
        }
    }
    Ok(console.finish()?)
}
