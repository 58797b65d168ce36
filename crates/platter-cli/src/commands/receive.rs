//! `platter receive`: send streams into an image.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use platter::Escaped;
use platter::escape::unescape;
use serde_json::{Map, Value, json};

use super::editing::refuse_reading_options;
use super::operands::parse;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::json::{put_name, write_object};

/// Make subvolumes of a btrfs from send streams
///
/// Streams are those of `btrfs send` and `platter send`, of version 1 or 2. Each subvolume is read-only and in the image
/// for good when it is complete. After an error, the one that was begun is deleted, and those before it stay; what
/// a killed process leaves is not marked as received.
#[derive(Debug, clap::Args)]
pub(crate) struct Receive {
    /// The directory to receive into, as IMAGE[@PARTITION][:DIR]
    #[arg(value_name = "IMAGE[:DIR]")]
    directory: OsString,
    /// Read from this file instead of standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Receive {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
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
        let mut console = Console::new();
        if console::is_json() {
            let mut object = Map::new();
            put_name(&mut object, "image", &unescape(&name));
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
            for done in &received {
                let (name, id) = (Escaped(&done.name), done.id);
                writeln!(console.out, "received {name} as subvolume {id}")?;
            }
        }
        Ok(console.finish()?)
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
