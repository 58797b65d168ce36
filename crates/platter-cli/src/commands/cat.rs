//! `platter cat`: contents to standard output.

use std::ffi::OsString;
use std::io::Write;

use platter::File;

use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{Console, raw_stdout};

/// How much is read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Write the contents of files to standard output
#[derive(Debug, clap::Args)]
pub(crate) struct Cat {
    /// The files, as IMAGE[@PARTITION]:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    files: Vec<OsString>,
}

impl Cat {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mut volumes = Volumes::new(options);
        let mut console = Console::new();
        let mut out = raw_stdout()?;
        let mut buf = vec![0; CHUNK_BYTES];
        for operand in &self.files {
            let opened = volumes.file(operand, true);
            let copied = opened.map(|(_, file)| copy(&file, &mut buf, &mut out));
            match copied {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(error))) | Err(error) => console.trouble(1, error)?,
                Ok(Err(error)) => return Err(error.into()),
            }
        }
        Ok(console.finish()?)
    }
}

/// Copies to `out` until the end, or the error in the image that is returned.
fn copy(
    file: &File,
    buf: &mut [u8],
    out: &mut std::fs::File,
) -> std::io::Result<Option<platter::Error>> {
    let mut offset = 0;
    loop {
        match file.read_at(offset, buf) {
            Ok(0) => return Ok(None),
            Ok(count) => {
                out.write_all(&buf[..count])?;
                offset += count as u64;
            }
            Err(error) => return Ok(Some(error)),
        }
    }
}
