//! `platter tar`: files as an archive.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use platter::archive::{TarEvent, TarOptions, TarSummary, write_tar};
use platter::{Escaped, Volume};

use super::operands::{Volumes, create_output};
use crate::args::ImageOptions;
use crate::console::{raw_stdout, report_problem};
use crate::output::error::misuse;
use crate::output::progress::Progress;
use crate::output::size::human;

/// Something in the image could not be read.
const STATUS_CORRUPT: u8 = 2;

/// Write files as a tar archive
///
/// The archive is in PAX format, with nanoseconds, extended attributes, ACLs, holes, hard links and
/// special files; owners are numeric. Members are sorted by name, and the same image gives the same
/// bytes each time. GNU tar restores everything with: tar --xattrs --xattrs-include='*' --acls
/// --numeric-owner -xpf ARCHIVE. What cannot be read is reported and left out or, within a file,
/// replaced by zeros, so that the archive is always valid.
#[derive(Debug, clap::Args)]
pub(crate) struct Tar {
    /// The directory that members are counted from, as IMAGE[@PARTITION][:PATH]
    #[arg(value_name = "IMAGE[:DIR]")]
    base: OsString,
    /// What to write, as paths below the directory; everything without any
    #[arg(value_name = "MEMBER")]
    members: Vec<OsString>,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How many threads read; as many as there are processors by default
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Write holes as zeros, for programs that know no sparse members
    #[arg(long)]
    no_sparse: bool,
    /// Leave extended attributes out
    #[arg(long)]
    no_xattrs: bool,
    /// Leave ACLs out
    #[arg(long)]
    no_acls: bool,
}

impl Tar {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let mut volumes = Volumes::new(options);
        let (spec, volume) = volumes.find(&self.base)?;
        let mut out = self.open_output(&volume)?;
        let mut members: Vec<&[u8]> = self.members.iter().map(|name| name.as_bytes()).collect();
        if members.is_empty() {
            members.push(b".");
        }
        let mut progress = Progress::new(!self.is_shown());
        let mut observer = |event: TarEvent<'_>| match event {
            TarEvent::Problem(problem) => {
                progress.suspend(|| report_problem(problem));
            }
            TarEvent::Progress(summary) => show_progress(&mut progress, summary),
        };
        let options = TarOptions {
            threads: self.threads.unwrap_or(TarOptions::default().threads),
            sparse: !self.no_sparse,
            xattrs: !self.no_xattrs,
            acls: !self.no_acls,
        };
        let base = spec.path_or_root();
        let written = write_tar(&volume, base, &members, &mut out, &options, &mut observer);
        progress.finish();
        let summary = written.map_err(|error| self.name_output(error))?;
        Ok(if summary.corrupt > 0 {
            STATUS_CORRUPT
        } else {
            0
        })
    }

    /// Whether the archive would go to a terminal.
    fn is_shown(&self) -> bool {
        self.output.is_none() && std::io::stdout().is_terminal()
    }

    /// An error of the archive itself with the name of its file.
    fn name_output(&self, error: platter::Error) -> anyhow::Error {
        let is_nameless = error.image.is_empty() && error.path.is_none();
        match &self.output {
            Some(path) if is_nameless && path.as_os_str() != "-" => {
                let shown = Escaped(path.as_os_str().as_bytes()).to_string();
                anyhow::Error::from(error).context(shown)
            }
            _ => error.into(),
        }
    }

    fn open_output(&self, volume: &Volume) -> anyhow::Result<File> {
        if self.is_shown() {
            misuse!("an archive is not for a terminal: use -o or a pipe");
        }
        match &self.output {
            Some(path) if path.as_os_str() != "-" => create_output(path, volume),
            _ => Ok(raw_stdout()?),
        }
    }
}

fn show_progress(progress: &mut Progress, summary: TarSummary) {
    let (members, bytes) = (summary.members, human(summary.bytes));
    progress.update(members, None, &format!("{members} members, {bytes}"));
}
