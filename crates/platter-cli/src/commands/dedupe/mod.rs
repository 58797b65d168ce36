//! `platter dedupe`: equal contents of files, which are stored once.

mod mounted;

use std::ffi::OsString;
use std::io::Write;

use platter::dedupe::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Dedupe as Request, FileDeduped, dedupe};
use platter::escape::unescape;
use serde_json::{Map, json};

use super::editing::{Targets, scope, writing_options};
use super::mounted::{are_in_mounts, is_file_in_mount};
use crate::args::{ImageOptions, parse_size};
use crate::console::{self, Console};
use crate::output::json::{put_name, write_object};
use crate::output::progress::Progress;

/// Have files share the space of what is equal in them
///
/// Blocks of the files are compared by digests, and then byte by byte while both files are locked, so that all contents and
/// times stay as they are. Files of btrfs share, and those of an XFS with the feature reflink. What is shared already,
/// as with snapshots, is left alone, and so are files inside metadata. Without -r, directories are refused. The command may
/// commit several times; whatever ends it, all contents are as they were. Files and directories of a filesystem that is
/// mounted by platter are named by their paths, by the superuser or the user that mounted it; an image in a mount is named
/// with a path, as in mnt/disk.img:/. What a read-only subvolume has stays as it is; in an image, others share it.
#[derive(Debug, clap::Args)]
pub(crate) struct Dedupe {
    /// The files, as IMAGE[@PARTITION]:PATH, or paths in a mount
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
    /// All regular files below directories, those in other subvolumes as well
    #[arg(short, long)]
    recursive: bool,
    /// Compare blocks of this size, a power of two: smaller ones find more, and take more memory; those of the filesystem
    /// if they are larger
    #[arg(short, long, value_name = "SIZE", value_parser = parse_block_size, default_value = "128K")]
    block_size: u64,
    /// Leave shorter files alone
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "4K")]
    min_size: u64,
    /// Show what could be shared, and write nothing; digests are compared alone
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// What all files came to so far.
struct Tally {
    console: Console,
    progress: Progress,
    files: u64,
    sum: FileDeduped,
    /// Whether errors could be written.
    failed: anyhow::Result<()>,
}

impl Tally {
    fn add(&mut self, came_to: Result<FileDeduped, anyhow::Error>) {
        self.files += 1;
        self.progress.update(self.files, None, "files");
        match came_to {
            Ok(file) => self.sum.add(&file),
            Err(error) => {
                let Self {
                    console, progress, ..
                } = self;
                let troubled = progress.suspend(|| console.trouble(1, error));
                if self.failed.is_ok() {
                    self.failed = troubled.map_err(Into::into);
                }
            }
        }
    }
}

impl Dedupe {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let request = Request {
            block_bytes: self.block_size,
            min_bytes: self.min_size,
            dry_run: self.dry_run,
        };
        let mut tally = Tally {
            console: Console::new(),
            progress: Progress::new(true),
            files: 0,
            sum: FileDeduped::default(),
            failed: Ok(()),
        };
        let name = if are_in_mounts(&self.files, is_file_in_mount, options)? {
            mounted::dedupe(&self.files, &request, self.recursive, &mut tally)?;
            self.files[0].as_encoded_bytes().to_vec()
        } else {
            self.dedupe_image(options, &request, &mut tally)?
        };
        self.report(tally, &name)
    }

    fn dedupe_image(
        &self,
        options: &ImageOptions,
        request: &Request,
        tally: &mut Tally,
    ) -> anyhow::Result<Vec<u8>> {
        options.refuse_counting("dedupe")?;
        let open_options = writing_options(options)?;
        let targets = Targets::parse(&self.files)?;
        let what = (request, scope(self.recursive));
        dedupe(
            &open_options,
            &targets.spec,
            &targets.paths,
            what,
            &mut |came_to| tally.add(came_to.map_err(Into::into)),
        )?;
        Ok(unescape(&targets.spec.to_string()))
    }

    fn report(&self, tally: Tally, name: &[u8]) -> anyhow::Result<u8> {
        let Tally {
            mut console,
            progress,
            files,
            sum,
            failed,
        } = tally;
        progress.finish();
        failed?;
        let FileDeduped {
            read_bytes,
            shared_bytes,
            ranges,
        } = sum;
        if console::is_json() {
            let mut object = Map::new();
            put_name(&mut object, "image", name);
            object.insert("files".into(), json!(files));
            object.insert("read_bytes".into(), json!(read_bytes));
            object.insert("shared_bytes".into(), json!(shared_bytes));
            object.insert("ranges".into(), json!(ranges));
            object.insert("dry_run".into(), json!(self.dry_run));
            write_object(&mut console.out, &object)?;
        } else {
            let shares = if self.dry_run {
                "could share"
            } else {
                "shared"
            };
            let text = format!(
                "looked at {files} files, {shares} {shared_bytes} bytes in {ranges} ranges"
            );
            writeln!(console.out, "{text}")?;
        }
        Ok(console.finish()?)
    }
}

fn parse_block_size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes) && bytes.is_power_of_two() {
        return Ok(bytes);
    }
    Err("blocks are a power of two from 4K to 16M".to_owned())
}
