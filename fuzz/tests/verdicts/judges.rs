//! What each of the two says about one image. Nothing said is clean.

use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;
use platter_fuzz::open;
use platter_vfs::check::{CheckSink, Finding, Severity};
use tempfile::NamedTempFile;
use testkit::oracle::{Verdict, e2fsck};

/// Cache for the check of one image.
const CACHE_BYTES: u64 = 16 << 20;
/// Pieces of a corrupt image that are written if they differ.
const PIECE_BYTES: usize = 64 << 10;
/// Findings kept of one check.
const FINDINGS_MAX: usize = 40;

/// The complaints about one image.
#[derive(Debug, Clone)]
pub(crate) struct Judged {
    /// Errors that the check found, or why it could not be opened.
    pub(crate) platter: Vec<String>,
    /// Lines of `e2fsck`.
    pub(crate) e2fsck: Vec<String>,
    /// All that `e2fsck` printed.
    pub(crate) e2fsck_said: String,
}

impl Judged {
    pub(crate) fn platter_is_clean(&self) -> bool {
        self.platter.is_empty()
    }

    pub(crate) fn e2fsck_is_clean(&self) -> bool {
        self.e2fsck.is_empty()
    }

    pub(crate) fn differs(&self) -> bool {
        self.platter_is_clean() != self.e2fsck_is_clean()
    }
}

/// A file that `e2fsck` looks at, with the bytes of one intact image between images.
pub(crate) struct Desk<'a> {
    file: NamedTempFile,
    intact: &'a [u8],
}

impl<'a> Desk<'a> {
    pub(crate) fn new(intact: &'a [u8]) -> Result<Self> {
        // Memory is faster, where there is a filesystem for it.
        let memory = Path::new("/dev/shm");
        let mut file = if memory.is_dir() {
            NamedTempFile::new_in(memory)?
        } else {
            NamedTempFile::new()?
        };
        file.write_all(intact)?;
        Ok(Self { file, intact })
    }

    /// Asks both about a corrupt form of the image.
    pub(crate) fn judge(&self, image: Vec<u8>) -> Result<Judged> {
        let pieces = || {
            self.intact
                .chunks(PIECE_BYTES)
                .zip(image.chunks(PIECE_BYTES))
        };
        let changed = || {
            let offsets = (0u64..).step_by(PIECE_BYTES);
            offsets.zip(pieces()).filter(|(_, (old, new))| old != new)
        };
        let file = self.file.as_file();
        for (offset, (_, new)) in changed() {
            file.write_all_at(new, offset)?;
        }
        file.set_len(image.len() as u64)?;
        let asked = ask_e2fsck(self.file.path());
        for (offset, (old, _)) in changed() {
            file.write_all_at(old, offset)?;
        }
        if let Some(rest) = self.intact.get(image.len()..) {
            file.write_all_at(rest, image.len() as u64)?;
        }
        let (e2fsck, e2fsck_said) = asked?;
        let platter = ask_platter(image);
        Ok(Judged {
            platter,
            e2fsck,
            e2fsck_said,
        })
    }
}

fn ask_e2fsck(image: &Path) -> Result<(Vec<String>, String)> {
    let (verdict, said) = e2fsck::report(image)?;
    let lines = match verdict {
        Verdict::Clean => Vec::new(),
        Verdict::NotClean(lines) => lines,
        Verdict::Refused(line) => vec![line],
    };
    Ok((lines, said))
}

struct Errors(Vec<String>);

impl CheckSink for Errors {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        if finding.severity != Severity::Notice && self.0.len() < FINDINGS_MAX {
            self.0.push(finding.corruption.to_string());
        }
        ControlFlow::Continue(())
    }
}

fn ask_platter(image: Vec<u8>) -> Vec<String> {
    let mut errors = Errors(Vec::new());
    let checked = open::options(CACHE_BYTES).check(open::image(image), &mut errors);
    match checked {
        Ok(report) => assert_eq!(report.is_clean(), errors.0.is_empty()),
        Err(error) => errors.0.push(format!("refused: {error}")),
    }
    errors.0
}
