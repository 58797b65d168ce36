//! Files of a mount: what is equal is looked for here, and the process that serves the mount compares and shares it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use platter::dedupe::{BLOCK_BYTES_MIN, Dedupe as Request, Duplicates, FileDeduped};
use platter_fuse::Control;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::Tally;
use crate::commands::mounted::{named, parent};

/// A file that was looked at.
struct Known {
    path: PathBuf,
    inode: u64,
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
    let mut search = Search {
        request,
        duplicates: Duplicates::new(request.block_bytes.max(BLOCK_BYTES_MIN)),
        seen: HashSet::new(),
    };
    let mut device = None;
    for operand in operands {
        let top = Path::new(operand);
        let found = top.metadata().map_err(|error| named(top, &error))?;
        if *device.get_or_insert(found.dev()) != found.dev() {
            return Err(named(top, &Errno::XDEV.into()).into());
        }
        let dir = if found.is_dir() { top } else { parent(top) };
        // What is compared here is what is there, as far as possible.
        let flushed = Control::open(dir).and_then(|control| control.flush_cache());
        flushed.map_err(|error| named(top, &error))?;
        if found.is_dir() && !is_recursive {
            tally.add(Err(named(top, &Errno::ISDIR.into()).into()));
            continue;
        }
        let mut waiting = vec![top.to_owned()];
        while let Some(path) = waiting.pop() {
            match search.visit(&path, found.dev(), &mut waiting) {
                Ok(None) => {}
                Ok(Some(came_to)) => tally.add(Ok(came_to)),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
                    return Err(named(&path, &error).into());
                }
                Err(error) => tally.add(Err(named(&path, &error).into())),
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
            let names = fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
            let mut names = names.collect::<io::Result<Vec<_>>>()?;
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
        self.look_at(path, found.ino()).map(Some)
    }

    fn look_at(&mut self, path: &Path, inode: u64) -> io::Result<FileDeduped> {
        let file = File::open(path)?;
        if file.metadata()?.ino() != inode {
            // Another one has the name now.
            return Ok(FileDeduped::default());
        }
        let mut came_to = FileDeduped::default();
        let known = Known {
            path: path.to_owned(),
            inode,
        };
        let data = data_of(&file)?;
        let dry_run = self.request.dry_run;
        let read = |at: u64, place: &mut [u8]| file.read_at(place, at);
        let found = |source: &Known, range: Range<u64>, to: u64| {
            let Ok(source_file) = File::open(&source.path) else {
                // It is gone.
                return Ok(());
            };
            let is_same = source_file.metadata()?.ino() == source.inode;
            if is_same && Control::dedupe(&file, &source_file, &range, to, dry_run)? {
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

/// The ranges of a file that are no holes.
fn data_of(file: &File) -> io::Result<Vec<Range<u64>>> {
    let size_bytes = file.metadata()?.size();
    let mut data = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size_bytes);
        if start >= end {
            break;
        }
        data.push(start..end);
        at = end;
    }
    Ok(data)
}
