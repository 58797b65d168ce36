//! Files of a filesystem that is not mounted, whose extents are written anew.

use std::collections::HashSet;
use std::sync::Arc;

use platter_vfs::{FileKind, TreeWalk, WalkEvent, WalkOrder};

use crate::driver::unsupported;
use crate::edit::Scope;
use crate::volume::place::join;
use crate::{Error, File, ImageSpec, MountOptions, Result};

pub use crate::driver::is_compression;
pub use platter_vfs::Defragment;

/// Listens to files being defragmented: how many bytes were written anew, or why it could not be done.
pub type DefragmentSink<'s> = dyn FnMut(Result<u64>) + 's;

/// Defragments the files at `paths`, or in a [tree](Scope::Tree) all regular files below in the same subvolume. Each commit
/// leaves a filesystem in which all contents are as they were; an error of one file does not keep the others from it.
///
/// # Errors
/// `Unsupported` for formats that cannot do it, and then nothing was written; those of opening and of closing.
pub fn defragment(
    options: &MountOptions,
    spec: &ImageSpec,
    paths: &[Vec<u8>],
    (request, scope): (&Defragment, Scope),
    sink: &mut DefragmentSink<'_>,
) -> Result<()> {
    let options = options.clone().read_write();
    let image = options.open_image(spec)?;
    let driver = options.driver(&image)?;
    if !driver.defragments() {
        let error = unsupported(driver.format(), "defragmentation");
        return Err(Error::new(image.name(), error));
    }
    let volume = options.mount(&image)?;
    for path in paths {
        match volume.open(path) {
            Ok(file) => defragment_file(&file, request, scope, sink),
            Err(error) => sink(Err(error)),
        }
    }
    volume.close()
}

fn defragment_file(top: &File, request: &Defragment, scope: Scope, sink: &mut DefragmentSink<'_>) {
    if scope == Scope::File {
        let kind = top.attr().map(|attr| attr.kind);
        sink(kind.and_then(|kind| {
            kind.refuse_without_contents()
                .and_then(|()| top.inode().defragment(request))
                .map_err(|error| top.error(error))
        }));
        return;
    }
    let volume = top.volume();
    let named = |below: &[u8], error: platter_vfs::Error| {
        let path = match below {
            b"" => top.path().to_vec(),
            below => join(top.path(), below),
        };
        Error::at_path(volume.name(), &path, error)
    };
    let tree = top.inode().id().tree;
    // Those with several names.
    let mut linked = HashSet::new();
    let fs = Arc::clone(volume.filesystem());
    let mut walk = TreeWalk::new(fs, Arc::clone(top.inode()), WalkOrder::Name);
    while let Some(event) = walk.next() {
        match event {
            WalkEvent::Visit(visited) => match visited.attr.kind {
                FileKind::Regular => {
                    if visited.attr.links > 1 && !linked.insert(visited.inode.id()) {
                        continue;
                    }
                    let written = visited.inode.defragment(request);
                    sink(written.map_err(|error| named(&visited.path, error)));
                }
                FileKind::Directory if visited.inode.id().tree != tree => walk.skip_contents(),
                FileKind::Directory
                | FileKind::Symlink
                | FileKind::CharDevice
                | FileKind::BlockDevice
                | FileKind::Fifo
                | FileKind::Socket => {}
            },
            WalkEvent::Leave(_) => {}
            WalkEvent::Failed { path, error } => sink(Err(named(&path, error))),
        }
    }
}
