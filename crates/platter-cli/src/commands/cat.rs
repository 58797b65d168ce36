//! `platter cat`: contents to standard output.

use std::ffi::OsString;

use platter::Cause;

use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{Console, raw_stdout};

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
        for operand in &self.files {
            let written = volumes
                .file(operand, true)
                .and_then(|(_, file)| file.write_to(&mut out));
            if let Err(error) = written {
                if matches!(error.cause, Cause::Host(_)) {
                    return Err(error.into());
                }
                console.trouble(1, error)?;
            }
        }
        Ok(console.finish()?)
    }
}
