//! Space that is allocated before it is written.

use std::ops::Range;

use platter_vfs::Result;

use super::BtrfsInode;
use super::blocks::EXTENT_CREDITS;
use super::state::{Purpose, SECTOR_BYTES};
use crate::file::{Backing, Runs};
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeFlags;

/// The most bytes of an extent that is preallocated.
const EXTENT_BYTES_MAX: u64 = 128 << 20;

impl BtrfsInode {
    /// Allocates what of a range of whole sectors is a hole, or nothing.
    pub(super) fn preallocate(&self, range: Range<u64>) -> Result<()> {
        let holes = self.parts(&range, |backing| matches!(backing, Backing::Hole))?;
        let bytes = holes.iter().map(|hole| hole.end - hole.start).sum();
        let writing = self.fs.transactions()?;
        if bytes == 0 {
            return Ok(());
        }
        writing.reserve_data(bytes)?;
        let mut reserved = bytes;
        let mut done = Vec::new();
        let filled = holes.into_iter().try_for_each(|hole| {
            let mut at = hole.start;
            while at < hole.end {
                let len_bytes = self.preallocate_some(at..hole.end)?;
                writing.release_reserved_data(len_bytes);
                reserved -= len_bytes;
                done.push(at..at + len_bytes);
                at += len_bytes;
            }
            Ok(())
        });
        writing.release_reserved_data(reserved);
        filled.inspect_err(|_| {
            for range in done {
                // What cannot be taken back stays allocated.
                let _ = self.drop_extents(range, |_| {});
            }
        })
    }

    /// Allocates as much of a hole as there is in one piece. Returns how long that is.
    fn preallocate_some(&self, hole: Range<u64>) -> Result<u64> {
        let wanted = (hole.end - hole.start).min(EXTENT_BYTES_MAX);
        self.change(EXTENT_CREDITS, Purpose::Change, |handle, item| {
            let (logical, len_bytes) = handle.allocate_data_part(wanted)?;
            let extents = self.extents_in(handle);
            // A hole may have an item.
            extents.drop_range(hole.start..hole.start + len_bytes, usize::MAX)?;
            let extent = FileExtent {
                generation: handle.generation(),
                ram_bytes: len_bytes,
                compression: Compression::None,
                file_bytes: len_bytes,
                kind: FileExtentKind::Prealloc(ExtentPlace {
                    logical,
                    disk_bytes: len_bytes,
                    offset: 0,
                }),
            };
            extents.insert(hole.start, &extent, true)?;
            let end = item.size_bytes.next_multiple_of(SECTOR_BYTES);
            extents.fill_holes(end..hole.start.max(end))?;
            item.flags.insert(InodeFlags::PREALLOC);
            item.allocated_bytes = item.allocated_bytes.saturating_add(len_bytes);
            Ok(len_bytes)
        })
    }

    /// Drops what of a range has contents.
    pub(super) fn drop_written(&self, range: Range<u64>) -> Result<()> {
        let is_written = |backing: &Backing| matches!(backing, Backing::Data { .. });
        for part in self.parts(&range, is_written)? {
            self.drop_extents(part, |_| {})?;
        }
        Ok(())
    }

    /// The parts of a range that are backed in a way.
    fn parts(
        &self,
        range: &Range<u64>,
        is_one: impl Fn(&Backing) -> bool,
    ) -> Result<Vec<Range<u64>>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut runs = Runs::new(self.context(), self.tree(), self.id.number);
        let mut at = range.start;
        while at < range.end {
            let run = runs.at(at)?;
            let end = run.file.end.min(range.end);
            if is_one(&run.backing) {
                match found.last_mut().filter(|last| last.end == at) {
                    Some(last) => last.end = end,
                    None => found.push(at..end),
                }
            }
            at = end;
        }
        Ok(found)
    }
}
