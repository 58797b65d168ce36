//! Files of a mount: what is equal is looked for here, and the process that serves the mount compares and shares it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use platter::dedupe::{Dedupe as Request, Duplicates, FileDeduped, data_ranges};
use platter_fuse::Control;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use super::Tally;
use crate::commands::mounted::{named, parent};

/// A file that was looked at.
struct Known {
    path: PathBuf,
    found: Metadata,
}

struct Search<'s> {
    request: &'s Request,
    duplicates: Duplicates<Known>,
    /// Files that were looked at: they may have several names.
    seen: HashSet<u64>,
}

pub(super) fn dedupe(
    operands: &[OsString],
    request: &Request,
    is_recursive: bool,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let first = Path::new(operands.first().map_or(OsStr::new(""), OsString::as_os_str));
    let stat = rustix::fs::statvfs(first).map_err(|error| named(first, &error.into()))?;
    let mut search = Search {
        request,
        duplicates: Duplicates::new(request.compared_bytes(stat.f_bsize)),
        seen: HashSet::new(),
    };
    let mut device = None;
    for operand in operands {
        let given = Path::new(operand);
        // An operand may be a symbolic link; those below it are left alone.
        let top = &*given.canonicalize().map_err(|error| named(given, &error))?;
        let found = top.metadata().map_err(|error| named(given, &error))?;
        if *device.get_or_insert(found.dev()) != found.dev() {
            return Err(named(given, &Errno::XDEV.into()).into());
        }
        let dir = if found.is_dir() { top } else { parent(top) };
        // What is compared here is what is there, as far as possible.
        let flushed = Control::open(dir).and_then(|control| control.flush_cache());
        flushed.map_err(|error| named(given, &error))?;
        if found.is_dir() && !is_recursive {
            tally.add(Err(named(given, &Errno::ISDIR.into()).into()));
            continue;
        }
        let failed = |path: &Path, error: &io::Error| match path.strip_prefix(top) {
            Ok(below) if !below.as_os_str().is_empty() => named(&given.join(below), error),
            _ => named(given, error),
        };
        let mut waiting = vec![top.to_owned()];
        while let Some(path) = waiting.pop() {
            match search.visit(&path, found.dev(), &mut waiting) {
                Ok(None) => {}
                Ok(Some(came_to)) => tally.add(Ok(came_to)),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
                    return Err(failed(&path, &error).into());
                }
                Err(error) => tally.add(Err(failed(&path, &error).into())),
            }
        }
    }
    Ok(())
}

impl Search<'_> {
    /// Looks at a file, or has the names in a directory wait. `None` for what has no contents.
    fn visit(
        &mut self,
        path: &Path,
        device: u64,
        waiting: &mut Vec<PathBuf>,
    ) -> io::Result<Option<FileDeduped>> {
        let found = path.symlink_metadata()?;
        if found.dev() != device {
            return Ok(None);
        }
        if found.is_dir() {
            let Some(dir) = open(path, OFlags::DIRECTORY, &found)? else {
                return Ok(None);
            };
            let mut names = Vec::new();
            for entry in Dir::read_from(&dir)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    names.push(path.join(OsStr::from_bytes(name)));
                }
            }
            // The last one is looked at first.
            names.sort_unstable_by(|one, other| other.cmp(one));
            waiting.extend(names);
            return Ok(None);
        }
        if !found.is_file() {
            return Ok(None);
        }
        if found.size() < self.request.min_bytes.max(1) || !self.seen.insert(found.ino()) {
            return Ok(Some(FileDeduped::default()));
        }
        self.look_at(path, &found).map(Some)
    }

    fn look_at(&mut self, path: &Path, found: &Metadata) -> io::Result<FileDeduped> {
        let Some(file) = open(path, OFlags::empty(), found)? else {
            return Ok(FileDeduped::default());
        };
        let mut came_to = FileDeduped::default();
        let known = Known {
            path: path.to_owned(),
            found: found.clone(),
        };
        let data = data_ranges(&file, file.metadata()?.size())?;
        let dry_run = self.request.dry_run;
        let read = |at: u64, place: &mut [u8]| file.read_at(place, at);
        let found = |source: &Known, range: Range<u64>, to: u64| {
            let Ok(Some(source_file)) = open(&source.path, OFlags::empty(), &source.found) else {
                // It is gone.
                return Ok(());
            };
            if Control::dedupe(&file, &source_file, &range, to, dry_run)? {
                came_to.shared_bytes += range.end - range.start;
                came_to.ranges += 1;
            }
            Ok::<(), io::Error>(())
        };
        let read_bytes = self.duplicates.add(known, &data, read, found)?;
        Ok(FileDeduped {
            read_bytes,
            ..came_to
        })
    }
}

/// Opens what was found at a path, for reading, and leaves its time of access as it is. `None` if something else has the
/// name now, which is not waited for, as a FIFO would be.
fn open(path: &Path, flags: OFlags, found: &Metadata) -> io::Result<Option<File>> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    let opened = match open(flags | OFlags::NOATIME) {
        // Of files of others.
        Err(Errno::PERM) => open(flags),
        opened => opened,
    };
    let file = match opened {
        Ok(file) => File::from(file),
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let now = file.metadata()?;
    let is_same = (now.dev(), now.ino()) == (found.dev(), found.ino());
    Ok(is_same.then_some(file))
}
