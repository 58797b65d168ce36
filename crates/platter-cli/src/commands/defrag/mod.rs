//! `platter defrag`: extents of files in an image or a mount that are written anew, longer or compressed.

mod mounted;

use std::ffi::OsString;
use std::io::{self, Write};

use platter::defragment::{Defragment, defragment, is_compression};
use platter::escape::unescape;
use serde_json::{Map, json};

use super::editing::{Targets, scope, writing_options};
use super::mounted::{are_in_mounts, is_file_in_mount};
use crate::args::{ImageOptions, parse_size};
use crate::console::{self, Console};
use crate::output::error::misuse;
use crate::output::json::{put_name, write_object};
use crate::output::progress::Progress;

/// Write the extents of files of a btrfs anew, as longer ones or compressed
///
/// Short extents that lie next to each other in a file become one, as btrfs filesystem defragment does it. Contents and
/// times stay as they are. What files share with others, such as snapshots or clones, they share no longer afterwards,
/// which takes space. The command may commit several times; whatever ends it, all contents are as they were. Files and
/// directories of a filesystem that is mounted by platter are named by their paths, by users that may write to the
/// files; an image in a mount is named with a path, as in mnt/disk.img:/.
#[derive(Debug, clap::Args)]
pub(crate) struct Defrag {
    /// The files, as IMAGE[@PARTITION]:PATH, or paths in a mount
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
    /// All regular files below directories, but not in other subvolumes
    #[arg(short, long)]
    recursive: bool,
    /// Compress by zlib, or by lzo or zstd as in -czstd or -czstd:9, without a space
    #[arg(short, long, value_name = "METHOD[:LEVEL]", num_args = 0..=1, require_equals = true, default_missing_value = "zlib", value_parser = parse_method)]
    compress: Option<String>,
    /// Leave extents as they are that are at least so long
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "32M")]
    target: u64,
    /// Begin at this byte of the files
    #[arg(short, long, value_name = "BYTE", value_parser = parse_size, default_value = "0")]
    start: u64,
    /// Go on for so many bytes
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    length: Option<u64>,
}

/// What all files came to so far.
struct Tally {
    console: Console,
    progress: Progress,
    files: u64,
    written_bytes: u64,
    /// Whether errors could be written.
    failed: io::Result<()>,
}

impl Tally {
    fn add(&mut self, done: platter::Result<u64>) {
        self.files += 1;
        self.progress.update(self.files, None, "files");
        match done {
            Ok(bytes) => self.written_bytes += bytes,
            Err(error) => {
                let Self {
                    console, progress, ..
                } = self;
                let troubled = progress.suspend(|| console.trouble(1, error));
                if self.failed.is_ok() {
                    self.failed = troubled;
                }
            }
        }
    }
}

impl Defrag {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let end = match self.length {
            Some(length) => self.start.saturating_add(length),
            None => u64::MAX,
        };
        if self.start >= end {
            misuse!("the range has no bytes");
        }
        let request = Defragment {
            range: self.start..end,
            extent_bytes: self.target,
            compression: self.compress.clone(),
        };
        let mut tally = Tally {
            console: Console::new(),
            progress: Progress::new(true),
            files: 0,
            written_bytes: 0,
            failed: Ok(()),
        };
        let name = if are_in_mounts(&self.files, is_file_in_mount, options)? {
            let what = (&request, scope(self.recursive));
            mounted::defragment(&self.files, what, &mut |done| tally.add(done));
            self.files[0].as_encoded_bytes().to_vec()
        } else {
            self.defragment_image(options, &request, &mut tally)?
        };
        report(tally, &name)
    }

    fn defragment_image(
        &self,
        options: &ImageOptions,
        request: &Defragment,
        tally: &mut Tally,
    ) -> anyhow::Result<Vec<u8>> {
        options.refuse_counting("defrag")?;
        let open_options = writing_options(options)?;
        let targets = Targets::parse(&self.files)?;
        let what = (request, scope(self.recursive));
        defragment(
            &open_options,
            &targets.spec,
            &targets.paths,
            what,
            &mut |done| tally.add(done),
        )?;
        Ok(unescape(&targets.spec.to_string()))
    }
}

fn report(tally: Tally, name: &[u8]) -> anyhow::Result<u8> {
    let Tally {
        mut console,
        progress,
        files,
        written_bytes,
        failed,
    } = tally;
    progress.finish();
    failed?;
    if console::is_json() {
        let mut object = Map::new();
        put_name(&mut object, "image", name);
        object.insert("files".into(), json!(files));
        object.insert("written_bytes".into(), json!(written_bytes));
        write_object(&mut console.out, &object)?;
    } else {
        let text = format!("looked at {files} files, wrote {written_bytes} bytes anew");
        writeln!(console.out, "{text}")?;
    }
    Ok(console.finish()?)
}

fn parse_method(text: &str) -> Result<String, String> {
    if is_compression(text) {
        return Ok(text.to_owned());
    }
    Err("no filesystem compresses by this".to_owned())
}
