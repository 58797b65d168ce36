//! What a thread makes of a file that is no directory.

use std::sync::Arc;

use platter_vfs::acl::ACL_ACCESS_NAME;
use platter_vfs::{Attr, Condition, FileKind};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::attributes::{Target, acl_of, put_attributes};
use super::contents::{Filling, Lost};
use super::links::{Key, Links};
use super::place::{Place, Remembered};
use super::{Copier, CopyOptions};
use crate::data_map::DataMap;
use crate::host_file::{HostFileId, holds_source};
use crate::{Cause, Error, File, Problem, Progress, Result};

/// What is to be copied: the file, its attributes, and where it has data, if that is known.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: File,
    pub(super) attr: Attr,
    pub(super) map: Option<DataMap>,
}

/// Copies files; one in each thread.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) options: CopyOptions,
    pub(super) progress: Progress,
    links: Arc<Links>,
    /// Contents on their way, as large as they ever were.
    pub(super) buf: Vec<u8>,
    /// The process' umask, if it is known.
    umask: Option<u32>,
}

/// What became of a file.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) source: Source,
    pub(super) place: Place,
    pub(super) stage: Stage,
    pub(super) bytes: u64,
    pub(super) problems: Vec<Problem>,
    /// Where its next names can be linked to.
    pub(super) remembered: Option<Remembered>,
}

/// How far a file has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// What was there stays.
    LeftAlone,
    /// It was not begun.
    Refused(Error),
    /// It was begun, and failed.
    Failed(Error),
    /// It is there.
    Made,
}

impl Copied {
    pub(super) fn new(source: Source, place: Place) -> Self {
        Self {
            source,
            place,
            stage: Stage::Made,
            bytes: 0,
            problems: Vec::new(),
            remembered: None,
        }
    }
}

impl Worker {
    /// Makes workers of a copier.
    pub(super) fn of(copier: &Copier) -> impl Fn() -> Self + use<> {
        let (options, progress) = (copier.options, copier.progress.clone());
        let (links, umask) = (Arc::clone(&copier.links), umask());
        move || Self {
            options,
            progress: progress.clone(),
            links: Arc::clone(&links),
            buf: Vec::new(),
            umask,
        }
    }

    /// Refuses to go on where the copy was cancelled.
    pub(super) fn check_progress(&self, file: &File) -> Result<()> {
        let cancelled = |cause| Error::at_path(file.volume().name(), file.path(), cause);
        self.progress.check().map_err(cancelled)
    }

    /// Copies a file, or makes it another name of `first`.
    pub(super) fn copy(
        &mut self,
        source: Source,
        place: Place,
        first: Option<&Remembered>,
    ) -> Copied {
        let mut copied = Copied::new(source, place);
        copied.stage = match self.make_way(&copied.source, &copied.place) {
            Ok(true) => match self.make(&mut copied, first) {
                Ok(()) => {
                    self.progress.add_file();
                    Stage::Made
                }
                Err(error) => Stage::Failed(error),
            },
            Ok(false) => Stage::LeftAlone,
            Err(error) => Stage::Refused(error),
        };
        copied
    }

    /// Removes what is there. Returns whether the file is to be copied.
    pub(super) fn make_way(&self, source: &Source, place: &Place) -> Result<bool> {
        self.check_progress(&source.file)?;
        let Some(found) = place.found().map_err(|error| place.error(error))? else {
            return Ok(true);
        };
        if self.options.no_clobber {
            return Ok(false);
        }
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            return Err(place.error(Errno::ISDIR));
        }
        let found = HostFileId::inode_of(&found);
        if source.file.volume().host_files().contains(&found) {
            return Err(holds_source(&place.path()));
        }
        self.links.forget(found);
        place.clear().map_err(|error| place.error(error))?;
        Ok(true)
    }

    /// Makes a file where nothing is.
    fn make(&mut self, copied: &mut Copied, first: Option<&Remembered>) -> Result<()> {
        let place = &copied.place;
        if let Some(first) = first {
            let linked = place.make_link(first, &self.links);
            if linked.map_err(|error| place.error(error))? {
                return Ok(());
            }
        }
        let Source { file, attr, .. } = &copied.source;
        if attr.kind == FileKind::Regular {
            return self.copy_regular(copied);
        }
        let host = |error| place.error(error);
        let kind = match attr.kind {
            FileKind::Symlink => {
                place.make_symlink(&file.read_link()?).map_err(host)?;
                None
            }
            FileKind::CharDevice => Some(FileType::CharacterDevice),
            FileKind::BlockDevice => Some(FileType::BlockDevice),
            FileKind::Fifo => Some(FileType::Fifo),
            FileKind::Socket => Some(FileType::Socket),
            FileKind::Directory | FileKind::Regular => {
                return Err(file.error(Condition::IsDirectory));
            }
        };
        if let Some(kind) = kind {
            if !self.options.recursive {
                return Err(file.error(Condition::NotSupported));
            }
            let device = (attr.device.major, attr.device.minor);
            place
                .make_special(kind, attr.permissions, device)
                .map_err(host)?;
        }
        let target = Target::Named(place, attr.kind);
        let preserve = self.options.preserve;
        put_attributes(preserve, false, file, attr, &target, &mut copied.problems);
        copied.remembered = self.remembered(&copied.source, place);
        Ok(())
    }

    /// Copies all of a regular file.
    fn copy_regular(&mut self, copied: &mut Copied) -> Result<()> {
        let mut filling = self.create(&mut copied.source, &copied.place)?;
        let mut lost = filling.take_lost();
        let ranges: Vec<_> = filling.ranges().collect();
        for range in ranges {
            copied.bytes += range.end - range.start;
            let Copied { source, place, .. } = &*copied;
            match self.fill(source, &filling, range, &|error| place.error(error)) {
                Ok(more) => lost.add(more),
                Err(error) => {
                    clear_if_cancelled(&error, place)?;
                    return Err(error);
                }
            }
        }
        let problems = &mut copied.problems;
        let ends = (&copied.source, &copied.place);
        copied.remembered = self.finish(ends, &filling, lost, problems);
        Ok(())
    }

    /// Makes a regular file where nothing is, which is to be filled.
    pub(super) fn create(&self, source: &mut Source, place: &Place) -> Result<Filling> {
        let is_final = self.makes_with_mode(source, place)
            && matches!(acl_of(&source.file, ACL_ACCESS_NAME), Ok(None));
        let permissions = if self.options.preserve.mode && !is_final {
            0o600
        } else {
            source.attr.permissions
        };
        let host = |error| place.error(error);
        let target = place.create(permissions).map_err(host)?;
        let mut filling = Filling::of_regular(source, target, &host)?;
        filling.has_mode = is_final;
        Ok(filling)
    }

    /// Puts attributes on a file that was filled, and says what could not be read of it. Returns where
    /// its next names can be linked to.
    pub(super) fn finish(
        &self,
        (source, place): (&Source, &Place),
        filling: &Filling,
        lost: Lost,
        problems: &mut Vec<Problem>,
    ) -> Option<Remembered> {
        problems.extend(lost.problem(&source.file));
        let target = Target::Open(filling.target(), place);
        let (preserve, has_mode) = (self.options.preserve, filling.has_mode);
        put_attributes(
            preserve,
            has_mode,
            &source.file,
            &source.attr,
            &target,
            problems,
        );
        self.remembered(source, place)
    }

    /// Whether a regular file has its permissions and its owner from the beginning.
    fn makes_with_mode(&self, source: &Source, place: &Place) -> bool {
        let Source { attr, .. } = source;
        let has_mode = (self.umask).is_some_and(|umask| place.makes_with(attr.permissions, umask));
        self.options.preserve.mode && has_mode && place.is_made_for(attr.uid, attr.gid)
    }

    /// What a file with several names is known by, where they are preserved.
    pub(super) fn key_of(&self, source: &Source) -> Option<Key> {
        let Source { file, attr, .. } = source;
        let has_links = self.options.preserve.links && attr.links > 1;
        has_links.then(|| (Arc::clone(file.volume().name()), file.inode().id()))
    }

    fn remembered(&self, source: &Source, place: &Place) -> Option<Remembered> {
        self.key_of(source).and_then(|_| place.remembered())
    }
}

/// The umask of the process, which no thread changes meanwhile.
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// Leaves no part of a file where the copy was cancelled.
pub(super) fn clear_if_cancelled(error: &Error, place: &Place) -> Result<()> {
    if matches!(error.cause, Cause::Cancelled) {
        place.clear().map_err(|error| place.error(error))?;
    }
    Ok(())
}
