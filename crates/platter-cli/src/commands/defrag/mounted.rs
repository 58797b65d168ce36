//! Files of a mount, whose extents are written anew by the process that serves it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use platter::defragment::{Defragment, DefragmentSink};
use platter::edit::Scope;
use platter_fuse::Control;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::commands::mount_walk::{MountEvent, MountFile, MountWalk};
use crate::commands::mounted::named;

/// Defragments files, or in a [tree](Scope::Tree) all regular files below in the same subvolume.
pub(super) fn defragment(
    operands: &[OsString],
    what: (&Defragment, Scope),
    sink: &mut DefragmentSink<'_>,
) {
    for operand in operands {
        let given = Path::new(operand);
        if let Err(error) = defragment_operand(given, what, sink) {
            sink(Err(named(given, &error)));
        }
    }
}

fn defragment_operand(
    given: &Path,
    (request, scope): (&Defragment, Scope),
    sink: &mut DefragmentSink<'_>,
) -> io::Result<()> {
    let mut walk = MountWalk::new(given)?;
    if walk.top().is_dir() && scope == Scope::File {
        return Err(Errno::ISDIR.into());
    }
    // What is written anew is what is there, as far as possible.
    walk.control()?.flush_cache()?;
    // That of the operand.
    let mut tree = None;
    // Those with several names.
    let mut linked = HashSet::new();
    while let Some(event) = walk.next() {
        match event {
            MountEvent::Visit(file) if file.found.is_dir() => {
                let found = subvolume_of(&file);
                let is_same = found
                    .as_ref()
                    .is_ok_and(|found| *tree.get_or_insert(*found) == *found);
                if !is_same {
                    walk.skip_contents();
                }
                if let Err(error) = found {
                    sink(Err(walk.named(&file.path, &error)));
                }
            }
            MountEvent::Visit(file) if file.found.is_file() => {
                if file.found.nlink() > 1 && !linked.insert(file.found.ino()) {
                    continue;
                }
                let done = defragment_file(&file, request);
                sink(done.map_err(|error| walk.named(&file.path, &error)));
            }
            MountEvent::Visit(_) | MountEvent::Leave(_) => {}
            MountEvent::Failed { path, error } => sink(Err(walk.named(&path, &error))),
        }
    }
    Ok(())
}

/// The subvolume that a directory is in; `None` for what is gone, or a directory no longer.
fn subvolume_of(dir: &MountFile) -> io::Result<Option<u64>> {
    let opened = dir.open(OFlags::DIRECTORY)?;
    opened.map(|dir| Control::subvolume_of(&dir)).transpose()
}

fn defragment_file(file: &MountFile, request: &Defragment) -> io::Result<u64> {
    match file.open(OFlags::empty())? {
        Some(file) => Control::defragment(&file, request),
        // It is gone.
        None => Ok(0),
    }
}
