//! Equal contents of files of a filesystem that is not mounted, which are stored once.

mod duplicates;

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use platter_vfs::ranges::{is_worth_sharing, share_equal};
use platter_vfs::{
    Condition, FileKind, Inode, InodeId, SeekTarget, TreeWalk, WalkEvent, WalkOrder,
};

use crate::driver::unsupported;
use crate::edit::Scope;
use crate::volume::place::join;
use crate::{Error, File, Format, ImageSpec, MountOptions, Result, Volume};

pub use crate::host_file::data_ranges;
pub use duplicates::Duplicates;

/// How equal contents are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dedupe {
    /// Bytes of the blocks that are compared: a power of two, of at least [`BLOCK_BYTES_MIN`].
    pub block_bytes: u64,
    /// Files that are shorter are left alone.
    pub min_bytes: u64,
    /// Nothing is written.
    pub dry_run: bool,
}

/// The smallest blocks that are compared: those of most filesystems.
pub const BLOCK_BYTES_MIN: u64 = 4096;
/// The largest ones.
pub const BLOCK_BYTES_MAX: u64 = 16 << 20;

impl Default for Dedupe {
    fn default() -> Self {
        Self {
            block_bytes: 128 << 10,
            min_bytes: BLOCK_BYTES_MIN,
            dry_run: false,
        }
    }
}

/// What a file came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileDeduped {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes of ranges that it shares now and did not share as a whole before, or would.
    pub shared_bytes: u64,
    /// The runs that these are.
    pub ranges: u64,
}

impl Dedupe {
    /// Bytes of the blocks that are compared in a filesystem with blocks of `filesystem_bytes`, parts of which cannot be
    /// shared.
    #[must_use]
    pub fn compared_bytes(&self, filesystem_bytes: u64) -> u64 {
        let least = filesystem_bytes.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        self.block_bytes.max(least.next_power_of_two())
    }
}

impl FileDeduped {
    /// Adds what another one came to.
    pub fn add(&mut self, other: &Self) {
        self.read_bytes += other.read_bytes;
        self.shared_bytes += other.shared_bytes;
        self.ranges += other.ranges;
    }
}

/// Listens to files being looked at: what each came to, or why it could not be done.
pub type DedupeSink<'s> = dyn FnMut(Result<FileDeduped>) + 's;

/// Makes the files at `paths`, or in a [tree](Scope::Tree) all regular files below, share what is equal in them: with what
/// they have in common, and in themselves. Bytes are compared while both files are locked, before anything is shared, so
/// contents and times stay as they are; an error of one file does not keep the others from it. Others share what files in
/// read-only subvolumes have; these stay as they are.
///
/// # Errors
/// `Unsupported` for formats whose files share nothing, and then nothing was written; those of opening and of closing.
pub fn dedupe(
    options: &MountOptions,
    spec: &ImageSpec,
    paths: &[Vec<u8>],
    (request, scope): (&Dedupe, Scope),
    sink: &mut DedupeSink<'_>,
) -> Result<()> {
    let mut options = options.clone();
    if !request.dry_run {
        options = options.read_write();
    }
    let image = options.open_image(spec)?;
    let driver = options.driver(&image)?;
    let refused = |feature| Error::new(image.name(), unsupported(driver.format(), feature));
    if !driver.shares_extents() {
        return Err(refused("files that share extents"));
    }
    let volume = options.mount(&image)?;
    if driver.format() == Format::Xfs && !has_feature(&volume, "reflink") {
        return Err(refused(
            "files that share extents, without the feature reflink",
        ));
    }
    let block_bytes = volume.stat_fs()?.block_bytes;
    let mut search = Search {
        volume: &volume,
        request,
        duplicates: Duplicates::new(request.compared_bytes(block_bytes.into())),
        seen: HashSet::new(),
        read_only: HashSet::new(),
    };
    let tops = paths.iter().map(|path| volume.open(path));
    let tops: Vec<File> = tops
        .filter_map(|top| top.map_err(|error| sink(Err(error))).ok())
        .collect();
    search.find_read_only()?;
    // What others are to share comes first.
    let rounds = if search.read_only.is_empty() {
        &[false][..]
    } else {
        &[true, false]
    };
    for &of_read_only in rounds {
        for top in &tops {
            search.look_at(top, (scope, of_read_only), sink);
        }
    }
    drop((search, tops));
    volume.close()
}

fn has_feature(volume: &Volume, name: &str) -> bool {
    let features = volume.describe().features;
    features.iter().any(|feature| feature.name == name)
}

struct Search<'s> {
    volume: &'s Volume,
    request: &'s Dedupe,
    duplicates: Duplicates<InodeId>,
    /// Files that were looked at: they may have several names.
    seen: HashSet<InodeId>,
    /// Subvolumes that take no changes.
    read_only: HashSet<u64>,
}

impl Search<'_> {
    fn find_read_only(&mut self) -> Result<()> {
        let Some(subvolumes) = self.volume.filesystem().subvolumes() else {
            return Ok(());
        };
        let listed = subvolumes.list(&mut |subvolume| {
            if subvolume.read_only {
                self.read_only.insert(subvolume.id);
            }
            ControlFlow::Continue(())
        });
        listed.map_err(|error| Error::new(self.volume.name(), error))
    }

    /// Looks at the files that are in read-only subvolumes, or at those that are not.
    fn look_at(
        &mut self,
        top: &File,
        (scope, of_read_only): (Scope, bool),
        sink: &mut DedupeSink<'_>,
    ) {
        if scope == Scope::File {
            if self.read_only.contains(&top.inode().id().tree) != of_read_only {
                return;
            }
            let kind = top.attr().map(|attr| attr.kind);
            sink(kind.and_then(|kind| {
                kind.refuse_without_contents()
                    .and_then(|()| self.look_at_file(top.inode()))
                    .map_err(|error| top.error(error))
            }));
            return;
        }
        let named = |below: &[u8], error: platter_vfs::Error| {
            let path = match below {
                b"" => top.path().to_vec(),
                below => join(top.path(), below),
            };
            Error::at_path(top.volume().name(), &path, error)
        };
        let fs = Arc::clone(self.volume.filesystem());
        let walk = TreeWalk::new(fs, Arc::clone(top.inode()), WalkOrder::Name);
        for event in walk {
            match event {
                WalkEvent::Visit(visited) if visited.attr.kind == FileKind::Regular => {
                    if self.read_only.contains(&visited.inode.id().tree) != of_read_only {
                        continue;
                    }
                    let looked = self.look_at_file(&visited.inode);
                    sink(looked.map_err(|error| named(&visited.path, error)));
                }
                WalkEvent::Visit(_) | WalkEvent::Leave(_) => {}
                // Reported once.
                WalkEvent::Failed { .. } if of_read_only => {}
                WalkEvent::Failed { path, error } => sink(Err(named(&path, error))),
            }
        }
    }

    fn look_at_file(&mut self, inode: &Arc<dyn Inode>) -> platter_vfs::Result<FileDeduped> {
        let mut came_to = FileDeduped::default();
        let size_bytes = inode.attr()?.size_bytes;
        if size_bytes < self.request.min_bytes.max(1) || !self.seen.insert(inode.id()) {
            return Ok(came_to);
        }
        let data = data_of(&**inode, size_bytes)?;
        let (fs, dry_run) = (self.volume.filesystem(), self.request.dry_run);
        let read = |at: u64, place: &mut [u8]| inode.read_at(at, place);
        let found = |source: &InodeId, range: Range<u64>, to: u64| {
            let len_bytes = range.end - range.start;
            let source = fs.inode(*source)?;
            let is_shared = if dry_run {
                is_worth_sharing(&**inode, &*source, &range, to)?
            } else {
                share_equal(&**inode, &*source, range, to)?
            };
            if is_shared {
                came_to.shared_bytes += len_bytes;
                came_to.ranges += 1;
            }
            Ok::<(), platter_vfs::Error>(())
        };
        let read_bytes = self.duplicates.add(inode.id(), &data, read, found)?;
        Ok(FileDeduped {
            read_bytes,
            ..came_to
        })
    }
}

/// The ranges of a file that are no holes.
fn data_of(inode: &dyn Inode, size_bytes: u64) -> platter_vfs::Result<Vec<Range<u64>>> {
    let mut data = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let start = match inode.seek(at, SeekTarget::Data) {
            Ok(start) => start,
            Err(platter_vfs::Error::Condition(Condition::NoSuchAddress)) => break,
            Err(error) => return Err(error),
        };
        let end = inode.seek(start, SeekTarget::Hole)?.min(size_bytes);
        if start >= end {
            break;
        }
        data.push(start..end);
        at = end;
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_block_of_the_filesystem_is_compared() {
        let compared = |block_bytes, filesystem_bytes| {
            let request = Dedupe {
                block_bytes,
                ..Dedupe::default()
            };
            request.compared_bytes(filesystem_bytes)
        };
        assert_eq!(compared(4096, 1024), 4096);
        assert_eq!(compared(4096, 65_536), 65_536);
        assert_eq!(compared(131_072, 65_536), 131_072);
        // What no filesystem has takes no memory.
        assert_eq!(compared(4096, u64::MAX), BLOCK_BYTES_MAX);
        assert_eq!(compared(4096, 5000), 8192);
        assert_eq!(compared(0, 0), 4096);
    }
}
