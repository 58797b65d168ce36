//! `platter cat`: contents to standard output.

use std::ffi::OsString;

use anyhow::anyhow;
use platter::vfs::FileKind;
use platter::{Cause, Escaped};

use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{Console, raw_stdout};
use crate::output::kind::kind_text;

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
            let opened = volumes.file(operand, true);
            let opened = opened.and_then(|(_, file)| Ok((file.attr()?, file)));
            let written = match opened {
                Ok((attr, file)) if !has_contents(attr.kind) => {
                    let (image, path) = (file.volume().name(), Escaped(file.path()));
                    let kind = kind_text(&attr);
                    let error = anyhow!("{image}:{path}: is a {kind} and has no contents");
                    console.trouble(1, error)?;
                    continue;
                }
                Ok((_, file)) => file.write_to(&mut out).map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                if let Cause::Host(error) = error.cause {
                    // The output failed, not the file.
                    return Err(platter::Error::new(&"".into(), Cause::Host(error)).into());
                }
                console.trouble(1, error)?;
            }
        }
        Ok(console.finish()?)
    }
}

/// Whether it can be read; that a directory cannot has an errno of its own.
fn has_contents(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}
