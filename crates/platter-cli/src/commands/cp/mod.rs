//! `platter cp`: files out of an image, into one, and from one to another.

mod into_image;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;
use platter::copy::{Copier, CopyEvent, CopyOptions, Preserve};
use platter::vfs::FileKind;
use platter::{Escaped, File, ImageSpec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::operands::Volumes;
use crate::args::ImageOptions;
use crate::console::{Console, narrate, report_problem};
use crate::interrupt;
use crate::output::error::misuse;
use crate::output::kind::kind_text;
use crate::output::progress::Progress;
use crate::output::size::human;

/// Copy files out of an image, into an image, or from one to another
///
/// Out of an image, what cannot be read is reported and left out or, within a file, replaced by
/// zeros. Into an image, everything is copied or, after any error, nothing. Below the target, no
/// symbolic link is followed: links that are there are replaced, not written through. New files in
/// an image belong to the caller, unless owners are kept or --owner says otherwise.
#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Cp {
    /// The files, of the host or as IMAGE[@PARTITION]:PATH, and last where they go
    #[arg(required = true, value_name = "SOURCE... TARGET")]
    operands: Vec<OsString>,
    /// Copy directories with all that is in them, and special files
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// As -r --preserve=all: keep everything; outside of images, owners as far as the caller may
    /// set them
    #[arg(short, long)]
    archive: bool,
    /// As --preserve=mode,ownership,timestamps
    #[arg(short = 'p')]
    preserve_basic: bool,
    /// What to keep besides contents
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    preserve: Vec<Kept>,
    /// Follow symbolic links that are operands, even with -r
    #[arg(short = 'H')]
    follow: bool,
    /// Leave alone what is there already
    #[arg(short, long)]
    no_clobber: bool,
    /// Copy into this directory; all operands are files
    #[arg(short, long, value_name = "DIR")]
    target_directory: Option<PathBuf>,
    /// Owner of new files in an image, by number or by the names of the image
    #[arg(long, value_name = "USER[:GROUP]")]
    owner: Option<OsString>,
    /// Take the target for the file itself, even if it is a directory
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,
    /// Report each file on standard error
    #[arg(short, long)]
    verbose: bool,
}

/// A word of `--preserve`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kept {
    Mode,
    Ownership,
    Timestamps,
    Links,
    Xattr,
    All,
}

/// Where files go.
enum Target<'a> {
    /// Into this directory, under their own names.
    Directory(&'a Path),
    /// A single file becomes this.
    File(&'a Path),
}

impl Cp {
    pub(crate) fn run(&self, options: &ImageOptions) -> anyhow::Result<u8> {
        let named = self.target_directory.as_ref().map(|dir| dir.as_os_str());
        let target = named.or(self.operands.last().map(OsString::as_os_str));
        if target.is_some_and(ImageSpec::is_inside_image) {
            return self.copy_into_image(options);
        }
        if self.owner.is_some() {
            misuse!("--owner is for copying into an image");
        }
        let (sources, target) = self.take_apart()?;
        if let Target::File(target) = target {
            refuse_image_alone(sources, target)?;
        }
        allow_many_descriptors();
        let mut volumes = Volumes::new(options);
        let mut console = Console::new();
        let mut copier = Copier::new(self.copy_options()).progress(interrupt::progress());
        let mut progress = Progress::new(true);
        for operand in sources {
            let follow = self.follow || !(self.recursive || self.archive);
            let copied = volumes
                .file(operand, follow)
                .map_err(anyhow::Error::from)
                .and_then(|(_, file)| self.copy(&mut copier, &file, &target, &mut progress));
            if let Err(error) = copied {
                progress.suspend(|| console.trouble(1, error))?;
            }
            if interrupt::is_pending() {
                break;
            }
        }
        progress.finish();
        let status = console.finish()?;
        Ok(if copier.summary().problems > 0 {
            1
        } else {
            status
        })
    }

    /// The sources and the target that the operands name.
    fn take_apart(&self) -> anyhow::Result<(&[OsString], Target<'_>)> {
        if let Some(directory) = &self.target_directory {
            return Ok((&self.operands, Target::Directory(directory)));
        }
        let Some((target, sources)) = self.operands.split_last() else {
            misuse!("nothing to copy");
        };
        if sources.is_empty() {
            misuse!("no target after '{}'", Escaped(target.as_bytes()));
        }
        let target = Path::new(target);
        if target.is_dir() && !self.no_target_directory {
            return Ok((sources, Target::Directory(target)));
        }
        if sources.len() > 1 {
            bail!(
                "target '{}' is not a directory",
                Escaped(target.as_os_str().as_bytes())
            );
        }
        Ok((sources, Target::File(target)))
    }

    fn copy(
        &self,
        copier: &mut Copier,
        source: &File,
        target: &Target<'_>,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let mut observer = |event: CopyEvent<'_>| match event {
            CopyEvent::Copying(source, target) if self.verbose => {
                let image = source.volume().name();
                let (path, target) = (Escaped(source.path()), target.as_os_str().as_bytes());
                let target = Escaped(target);
                progress.suspend(|| narrate(format_args!("{image}:{path} -> {target}")));
            }
            CopyEvent::Copying(..) => {}
            CopyEvent::Problem(problem) => progress.suspend(|| report_problem(problem)),
            CopyEvent::Progress(summary) => {
                let (files, bytes) = (summary.files, human(summary.bytes));
                progress.update(summary.bytes, None, &format!("{files} files, {bytes}"));
            }
        };
        let attr = source.attr()?;
        if !(self.recursive || self.archive) && attr.kind != FileKind::Regular {
            let (image, path) = (source.volume().name(), Escaped(source.path()));
            let kind = kind_text(&attr);
            bail!("{image}:{path}: is a {kind}; copy it with -r or -a");
        }
        match *target {
            Target::Directory(directory) => {
                interrupt::catch()?;
                copier.copy_into(source, directory, name_of(source), &mut observer)?;
            }
            Target::File(target) => {
                let exists = target.exists();
                // Anything but contents replaces what is there.
                let is_contents = attr.kind == FileKind::Regular;
                if exists && is_contents && !self.no_clobber {
                    copier.copy_over(source, target, &mut observer)?;
                } else {
                    let name = target.file_name().context("the target has no name")?;
                    let parent = target.parent().filter(|path| !path.as_os_str().is_empty());
                    let parent = parent.unwrap_or(Path::new("."));
                    interrupt::catch()?;
                    copier.copy_into(source, parent, name, &mut observer)?;
                }
            }
        }
        Ok(())
    }

    fn copy_options(&self) -> CopyOptions {
        CopyOptions {
            recursive: self.recursive || self.archive,
            preserve: self.preserved(),
            no_clobber: self.no_clobber,
        }
    }

    fn preserved(&self) -> Preserve {
        let kept = |what| {
            let words = &self.preserve;
            self.archive || words.contains(&what) || words.contains(&Kept::All)
        };
        Preserve {
            mode: kept(Kept::Mode) || self.preserve_basic,
            ownership: kept(Kept::Ownership) || self.preserve_basic,
            timestamps: kept(Kept::Timestamps) || self.preserve_basic,
            links: kept(Kept::Links),
            xattrs: kept(Kept::Xattr),
        }
    }
}

/// Refuses to copy to what is there, and no directory, where no source is in an image: the target is
/// meant for one.
fn refuse_image_alone(sources: &[OsString], target: &Path) -> anyhow::Result<()> {
    let is_named =
        |source: &OsString| ImageSpec::parse(source).is_ok_and(|spec| spec.path.is_some());
    let is_there = target.metadata().is_ok();
    if !is_there || sources.iter().any(is_named) {
        return Ok(());
    }
    let target = Escaped(target.as_os_str().as_bytes());
    bail!("{target}: names no file in an image; write {target}:PATH to copy into it")
}

/// The last name of a path; that of the root, of `.` and of `..` is the target itself.
fn name_of(source: &File) -> &OsStr {
    let mut names = source.path().split(|&byte| byte == b'/').rev();
    let name = names.find(|name| !name.is_empty()).unwrap_or(b".");
    OsStr::from_bytes(if name == b".." { b"." } else { name })
}

/// A deep tree keeps a descriptor for each of its levels.
fn allow_many_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // Without it, only very deep trees are refused.
    let _ = setrlimit(Resource::Nofile, raised);
}
