//! Files of a mount: what is equal is looked for here, and the process that serves the mount compares and shares it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use platter::dedupe::{Dedupe as Request, Duplicates, FileDeduped, data_ranges};
use platter_fuse::Control;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Tally;
use crate::commands::mount_walk::{MountEvent, MountFile, MountWalk};
use crate::commands::mounted::named;

struct Search<'s> {
    request: &'s Request,
    /// Blocks of files that were looked at.
    duplicates: Duplicates<MountFile>,
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
        let mut walk = MountWalk::new(given).map_err(|error| named(given, &error))?;
        let device_of_top = walk.top().dev();
        if *device.get_or_insert(device_of_top) != device_of_top {
            return Err(named(given, &Errno::XDEV.into()).into());
        }
        // What is compared here is what is there, as far as possible.
        let flushed = walk.control().and_then(|control| control.flush_cache());
        flushed.map_err(|error| named(given, &error))?;
        if walk.top().is_dir() && !is_recursive {
            tally.add(Err(named(given, &Errno::ISDIR.into()).into()));
            continue;
        }
        while let Some(event) = walk.next() {
            match event {
                MountEvent::Visit(file) if file.found.is_file() => match search.visit(&file) {
                    Ok(came_to) => tally.add(Ok(came_to)),
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
                        return Err(walk.named(&file.path, &error).into());
                    }
                    Err(error) => tally.add(Err(walk.named(&file.path, &error).into())),
                },
                MountEvent::Visit(_) | MountEvent::Leave(_) => {}
                MountEvent::Failed { path, error } => {
                    tally.add(Err(walk.named(&path, &error).into()));
                }
            }
        }
    }
    Ok(())
}

impl Search<'_> {
    fn visit(&mut self, file: &MountFile) -> io::Result<FileDeduped> {
        let found = &file.found;
        if found.size() < self.request.min_bytes.max(1) || !self.seen.insert(found.ino()) {
            return Ok(FileDeduped::default());
        }
        self.look_at(file)
    }

    fn look_at(&mut self, known: &MountFile) -> io::Result<FileDeduped> {
        let Some(file) = known.open(OFlags::empty())? else {
            return Ok(FileDeduped::default());
        };
        let mut came_to = FileDeduped::default();
        let data = data_ranges(&file, file.metadata()?.size())?;
        let dry_run = self.request.dry_run;
        let read = |at: u64, place: &mut [u8]| file.read_at(place, at);
        let found = |source: &MountFile, range: Range<u64>, to: u64| {
            let Ok(Some(source_file)) = source.open(OFlags::empty()) else {
                // It is gone.
                return Ok(());
            };
            if Control::dedupe(&file, &source_file, &range, to, dry_run)? {
                came_to.shared_bytes += range.end - range.start;
                came_to.ranges += 1;
            }
            Ok::<(), io::Error>(())
        };
        let read_bytes = self.duplicates.add(known.clone(), &data, read, found)?;
        Ok(FileDeduped {
            read_bytes,
            ..came_to
        })
    }
}
