//! `platter send`: a subvolume of a btrfs as a stream.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::bail;
use platter::{Escaped, ImageSpec, SendRequest, Volume};

use super::mounted::is_in_mount;
use super::operands::{Volumes, create_output, parse};
use crate::args::ImageOptions;
use crate::console::raw_stdout;
use crate::output::error::misuse;

/// Write a read-only subvolume of a btrfs as a send stream
///
/// `btrfs receive` and `platter receive` make a copy of the subvolume from it. With a parent, the stream holds what
/// differs from that, which the receiver must have received before. All of them are read-only subvolumes of one image,
/// which is not mounted for writing: of a mount, make read-only snapshots, and send them when it is unmounted.
#[derive(Debug, clap::Args)]
pub(crate) struct Send {
    /// The subvolume, as IMAGE[@PARTITION]:PATH
    #[arg(value_name = "IMAGE:PATH")]
    subvolume: OsString,
    /// The subvolume that the receiver has, as IMAGE[@PARTITION]:PATH
    #[arg(short, long, value_name = "IMAGE:PATH")]
    parent: Option<OsString>,
    /// Another one that the receiver has, whose extents may be referred to; can be given several times
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
        for operand in operands.chain(&self.clone_sources) {
            refuse_mount(operand)?;
        }
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
            version: Some(if self.compressed_data { 2 } else { self.proto }),
            compressed: self.compressed_data,
            no_data: self.no_data,
        };
        let mut out = BufWriter::new(self.open_output(&volume)?);
        volume.send(spec.path_or_root(), &request, &mut out)?;
        out.flush()?;
        Ok(0)
    }

    fn open_output(&self, volume: &Volume) -> anyhow::Result<File> {
        match &self.file {
            Some(path) if path.as_os_str() != "-" => create_output(path, volume),
            _ if std::io::stdout().is_terminal() => {
                misuse!("a send stream is not for a terminal: use -f or a pipe")
            }
            _ => Ok(raw_stdout()?),
        }
    }
}

/// Refuses what is in a mount: a stream goes to a descriptor, which does not reach the process that serves it.
fn refuse_mount(operand: &OsStr) -> anyhow::Result<()> {
    if is_in_mount(operand) {
        let operand = Escaped(operand.as_encoded_bytes());
        bail!(
            "{operand}: is mounted, and only images can be sent: create a snapshot with platter subvolume snapshot -r, \
             unmount the filesystem, and send IMAGE:PATH"
        );
    }
    Ok(())
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
