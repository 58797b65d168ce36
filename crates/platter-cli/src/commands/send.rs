//! `platter send`: a subvolume of a btrfs as a stream.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use platter::vfs::Condition;
use platter::vfs::subvolumes::SendOptions;
use platter::volume::NOT_READ_ONLY;
use platter::{Escaped, ImageSpec, SendRequest};
use platter_fuse::{Control, SendFailure};
use rustix::fs::fstat;

use super::mounted::{self, are_in_mounts, is_in_mount};
use super::operands::{Volumes, create_output, create_unless, parse};
use crate::args::ImageOptions;
use crate::console::raw_stdout;
use crate::output::error::misuse;

/// Write a read-only subvolume of a btrfs as a send stream
///
/// `btrfs receive` and `platter receive` make a copy of the subvolume from it. With a parent, the stream holds what
/// differs from that, which the receiver must have received before. All of them are read-only subvolumes of one image,
/// or of one mount: while it is mounted by platter, they are named by the paths of their directories in the mount, by
/// the user that mounted it or the superuser. They are neither deleted nor made writable before the stream ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Send {
    /// The subvolume, as IMAGE[@PARTITION]:PATH or a directory of a mount
    #[arg(value_name = "IMAGE:PATH")]
    subvolume: OsString,
    /// The subvolume that the receiver has, as IMAGE[@PARTITION]:PATH or a directory of the same mount
    #[arg(short, long, value_name = "IMAGE:PATH")]
    parent: Option<OsString>,
    /// Another one that the receiver has, whose extents may be referred to; can be given several times, for a mount up to
    /// 1024 times
    #[arg(short = 'c', long = "clone-source", value_name = "IMAGE:PATH")]
    clone_sources: Vec<OsString>,
    /// Write to this file instead of standard output
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The version of the stream: 2 has holes, preallocated space, flags and times of creation
    #[arg(long, value_name = "VERSION", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    proto: u32,
    /// Write compressed extents as they are stored; the version is 2 then
    #[arg(long)]
    compressed_data: bool,
    /// Write which ranges of files differ, without their data; cannot be received
    #[arg(long)]
    no_data: bool,
}

impl Send {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let operands = [&self.subvolume].into_iter().chain(&self.parent);
        let operands: Vec<_> = operands.chain(&self.clone_sources).cloned().collect();
        if are_in_mounts(&operands, is_in_mount, options)? {
            self.run_mounted()?;
        } else {
            self.run_on_image(options)?;
        }
        Ok(0)
    }

    fn run_on_image(&self, options: &ImageOptions) -> anyhow::Result<()> {
        let mut volumes = Volumes::new(options);
        let (spec, volume) = volumes.find(&self.subvolume)?;
        let sources = self.clone_sources.iter();
        let parent = self.parent.as_ref();
        let request = SendRequest {
            parent: parent
                .map(|operand| path_in_image_of(&spec, operand))
                .transpose()?,
            clone_sources: sources
                .map(|operand| path_in_image_of(&spec, operand))
                .collect::<anyhow::Result<_>>()?,
            version: Some(self.version()),
            compressed: self.compressed_data,
            no_data: self.no_data,
        };
        let out = self.open_output(|path| create_output(path, &volume))?;
        let mut out = BufWriter::new(out);
        volume.send(spec.path_or_root(), &request, &mut out)?;
        out.flush()?;
        Ok(())
    }

    /// Writes the stream that the server of a mount makes.
    fn run_mounted(&self) -> anyhow::Result<()> {
        let dir = Path::new(&self.subvolume);
        let root = mounted::open(dir)?;
        refuse_writable(dir, &root)?;
        let sources = self.clone_sources.iter();
        let parent = self.parent.as_ref();
        let options = SendOptions {
            parent: parent
                .map(|operand| id_in_mount_of(&root, operand))
                .transpose()?,
            clone_sources: sources
                .map(|operand| id_in_mount_of(&root, operand))
                .collect::<anyhow::Result<_>>()?,
            version: Some(self.version()),
            compressed: self.compressed_data,
            no_data: self.no_data,
            cancellation: None,
        };
        let started = root.start_send(&options);
        let stream = started.map_err(|error| mounted::named(dir, &error))?;
        // A file that is there stays as it is where no stream is begun.
        let mut out =
            self.open_output(|path| create_unless(path, |file| mounted::is_image_of(dir, file)))?;
        let sent = stream.copy_to(&mut out);
        sent.map_err(|failure| self.name_failure(failure))
    }

    /// Why a mount did not send its subvolume, with the same text as for an image, where there is one.
    fn name_failure(&self, failure: SendFailure) -> anyhow::Error {
        let dir = Path::new(&self.subvolume);
        match failure {
            SendFailure::Asking(error) => mounted::named(dir, &error).into(),
            SendFailure::Writing(error) => self.name_output(error),
            SendFailure::Refused(refusal) => mounted::of_server(dir, &refusal),
        }
    }

    fn version(&self) -> u32 {
        if self.compressed_data { 2 } else { self.proto }
    }

    /// The file that the stream goes to; `None` for standard output.
    fn output_path(&self) -> Option<&Path> {
        let path = self.file.as_deref();
        path.filter(|path| path.as_os_str() != "-")
    }

    fn open_output(
        &self,
        create: impl FnOnce(&Path) -> anyhow::Result<File>,
    ) -> anyhow::Result<File> {
        match self.output_path() {
            Some(path) => create(path),
            None if std::io::stdout().is_terminal() => {
                misuse!("a send stream is not for a terminal: use -f or a pipe")
            }
            None => Ok(raw_stdout()?),
        }
    }

    /// An error of the output, which names standard output itself.
    fn name_output(&self, error: io::Error) -> anyhow::Error {
        let error = anyhow::Error::new(error);
        match self.output_path() {
            Some(path) => error.context(Escaped(path.as_os_str().as_encoded_bytes()).to_string()),
            None => error,
        }
    }
}

/// The path of an operand, which is in the same image as `spec`.
fn path_in_image_of(spec: &ImageSpec, operand: &OsStr) -> anyhow::Result<Vec<u8>> {
    let other = parse(operand)?;
    if !spec.is_same_image(&other) {
        let operand = Escaped(operand.as_encoded_bytes());
        misuse!("{operand}: is not in the image of the subvolume that is sent");
    }
    Ok(other.path_or_root().to_vec())
}

/// The number of the subvolume that an operand names, which is in the same mount as `root`.
fn id_in_mount_of(root: &Control, operand: &OsStr) -> anyhow::Result<u64> {
    let dir = Path::new(operand);
    let named = |error: io::Error| mounted::named(dir, &error);
    let other = mounted::open(dir)?;
    let device = |control: &Control| {
        let found = fstat(control).map_err(|errno| named(errno.into()));
        found.map(|found| found.st_dev)
    };
    if device(root)? != device(&other)? {
        let operand = Escaped(operand.as_encoded_bytes());
        misuse!("{operand}: is not in the mount of the subvolume that is sent");
    }
    refuse_writable(dir, &other)?;
    Ok(other.subvolume_id().map_err(named)?)
}

/// Refuses a subvolume of a mount that is not read-only.
fn refuse_writable(dir: &Path, root: &Control) -> platter::Result<()> {
    let is_read_only = root.is_read_only();
    if is_read_only.map_err(|error| mounted::named_subvolume(dir, &error))? {
        return Ok(());
    }
    let refused = Condition::NotPermitted.because(NOT_READ_ONLY);
    Err(platter::Error::new(&mounted::shown(dir), refused))
}
