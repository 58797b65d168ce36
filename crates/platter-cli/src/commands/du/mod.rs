//! `platter du`: the space that files take, and how much of it they share.

mod mounted;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

use platter::escape::unescape;
use platter::usage::Usage;
use serde_json::{Map, json};

use self::mounted::MountUsages;
use super::mounted::{is_file_in_mount, refuse_image_options};
use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{self, Console};
use crate::output::json::{JsonArray, put_name};
use crate::output::kind::kind_word;
use crate::output::quoting::Quoting;
use crate::output::size::human;

/// Something could not be read.
const STATUS: u8 = 1;

/// Show how much space files take, and how much of it they share
///
/// As btrfs filesystem du does: Total is the space of a file, or of all files below a directory; Exclusive is what of
/// it nothing else in the filesystem refers to; Set shared, of an operand, is what its files share, with each other or
/// with files elsewhere, below a directory each byte counted once. Contents inside metadata do not count, and
/// compressed ones count as long as they are when read. Files and directories of a filesystem that is mounted by
/// platter are named by their paths, and what was changed is written first; an image in a mount is named with a path, as
/// in mnt/disk.img:/.
#[derive(Debug, clap::Args)]
pub(crate) struct Du {
    /// The files and directories, as IMAGE[@PARTITION][:PATH], or paths in a mount
    #[arg(required = true, value_name = "IMAGE[:PATH]")]
    operands: Vec<OsString>,
    /// Show a total for each operand only
    #[arg(short, long)]
    summarize: bool,
    /// Show exact numbers of bytes
    #[arg(long)]
    raw: bool,
}

/// What names a file or directory and those below it.
struct Names<'o> {
    /// In JSON.
    image: Vec<u8>,
    /// What is written before the path of a file in an image.
    prefix: Option<&'o [u8]>,
}

impl Du {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mut volumes = Volumes::new(options);
        let mut console = Console::new();
        let mut array = JsonArray::default();
        if !console::is_json() {
            let (total, exclusive, shared) = ("Total", "Exclusive", "Set shared");
            writeln!(
                console.out,
                "{total:>10}  {exclusive:>10}  {shared:>10}  Filename"
            )?;
        }
        for operand in &self.operands {
            if is_file_in_mount(operand) {
                refuse_image_options(options)?;
                match MountUsages::of(Path::new(operand)) {
                    Ok(usages) => {
                        let names = Names {
                            image: operand.as_encoded_bytes().to_vec(),
                            prefix: None,
                        };
                        self.show((&mut console, &mut array), &names, usages)?;
                    }
                    Err(error) => console.trouble(STATUS, error)?,
                }
                continue;
            }
            match volumes.file(operand, true) {
                Ok((spec, file)) => {
                    let names = Names {
                        image: unescape(file.volume().name()),
                        prefix: Some(image_of(operand, spec.path.as_deref())),
                    };
                    self.show((&mut console, &mut array), &names, file.usage())?;
                }
                Err(error) => console.trouble(STATUS, error)?,
            }
        }
        if console::is_json() {
            array.end(&mut console.out)?;
        }
        Ok(console.finish()?)
    }

    fn show(
        &self,
        (console, array): (&mut Console, &mut JsonArray),
        names: &Names<'_>,
        usages: impl Iterator<Item = platter::Result<Usage>>,
    ) -> io::Result<()> {
        for found in usages {
            match found {
                Ok(usage) if self.summarize && usage.set_shared_bytes.is_none() => {}
                Ok(usage) if console::is_json() => {
                    array.push(&mut console.out, &object(&names.image, &usage))?;
                }
                Ok(usage) => self.write(console, names.prefix, &usage)?,
                Err(error) => console.trouble(STATUS, error)?,
            }
        }
        Ok(())
    }

    fn write(&self, console: &mut Console, prefix: Option<&[u8]>, usage: &Usage) -> io::Result<()> {
        let shown = |bytes: u64| {
            if self.raw {
                bytes.to_string()
            } else {
                human(bytes)
            }
        };
        let total = shown(usage.space.total_bytes);
        let exclusive = shown(usage.space.exclusive_bytes);
        let shared = usage.set_shared_bytes.map_or_else(|| "-".into(), shown);
        let quoting = Quoting::for_reader(console.is_terminal);
        let out = &mut console.out;
        write!(out, "{total:>10}  {exclusive:>10}  {shared:>10}  ")?;
        if let Some(image) = prefix {
            quoting.write(out, image)?;
            out.write_all(b":")?;
        }
        quoting.write(out, &usage.path)?;
        writeln!(out)
    }
}

/// What of an operand names the image.
fn image_of<'o>(operand: &'o OsStr, path: Option<&[u8]>) -> &'o [u8] {
    let operand = operand.as_encoded_bytes();
    let image = path.and_then(|path| operand.strip_suffix(path)?.strip_suffix(b":"));
    image.unwrap_or(operand)
}

fn object(image: &[u8], usage: &Usage) -> Map<String, serde_json::Value> {
    let mut object = Map::new();
    put_name(&mut object, "image", image);
    put_name(&mut object, "path", &usage.path);
    object.insert("type".into(), json!(kind_word(usage.kind)));
    object.insert("total_bytes".into(), json!(usage.space.total_bytes));
    object.insert("exclusive_bytes".into(), json!(usage.space.exclusive_bytes));
    if let Some(bytes) = usage.set_shared_bytes {
        object.insert("set_shared_bytes".into(), json!(bytes));
    }
    object
}
