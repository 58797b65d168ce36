//! Extents of a file that are inserted, dropped, split and marked as written, with the references to their data.

#[cfg(test)]
mod tests;

use std::ops::Range;

use platter_vfs::{Condition, Result};

use crate::delayed_refs::Action;
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, TreeId};
use crate::txn::{Editor, FileRange, Handle, data_extents};

/// The extents of one file in a transaction. Contents and the inode item are the caller's.
#[derive(Debug, Clone, Copy)]
pub struct ExtentChange<'h, 'f> {
    /// The transaction.
    pub handle: &'h Handle<'f>,
    /// The subvolume.
    pub tree: TreeId,
    /// The inode.
    pub inode: u64,
}

/// What was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// By how much fewer bytes are allocated to the file.
    pub bytes: u64,
    /// Where to go on, in another transaction; `None` if nothing is left.
    pub next: Option<u64>,
}

/// Extents that got references of another file, which has no items of them yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// Where they begin in the other file.
    pub extents: Vec<(u64, FileExtent<'static>)>,
    /// Where to go on.
    pub next: u64,
}

/// A change of a reference to data: where the file extent begins, what it refers to.
type RefChange = (u64, ExtentPlace, Action);

/// An item of the file, and where it ends.
struct Found {
    start: u64,
    end: u64,
    data: Vec<u8>,
}

impl ExtentChange<'_, '_> {
    fn key(&self, offset: u64) -> Key {
        Key::new(self.inode, ItemKind::EXTENT_DATA, offset)
    }

    /// Inserts an extent where none is. Data that was just allocated has no reference yet.
    pub fn insert(&self, offset: u64, extent: &FileExtent<'_>, is_new: bool) -> Result<()> {
        self.handle.edit(self.tree, |editor| {
            editor.insert(self.key(offset), &extent.encode())
        })?;
        let (FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place)) = extent.kind else {
            return Ok(());
        };
        if is_new {
            data_extents::add(self.handle, self.range(offset), &place)
        } else {
            data_extents::change(self.handle, self.range(offset), &place, Action::Add)
        }
    }

    /// Adds references of another file, in which the range begins at `to`, to the extents of a range of whole
    /// sectors: at most `count` of them, up to one in the item.
    pub fn share(&self, range: Range<u64>, count: usize, other: &Self, to: u64) -> Result<Shared> {
        let mut shared = Shared {
            extents: Vec::new(),
            next: range.end,
        };
        self.handle.edit(self.tree, |editor| {
            let mut at = range.start;
            while let Some(found) = self.find(editor, at, range.end)? {
                let inside = found.start.max(range.start)..found.end.min(range.end);
                let extent = self.decode(&found)?;
                let is_inline = matches!(extent.kind, FileExtentKind::Inline(_));
                if is_inline || shared.extents.len() == count {
                    shared.next = inside.start;
                    break;
                }
                at = found.end;
                let len_bytes = inside.end - inside.start;
                let part = part_of(&extent, inside.start - found.start, len_bytes);
                let kind = match part.kind {
                    FileExtentKind::Regular(place) => FileExtentKind::Regular(place),
                    FileExtentKind::Prealloc(place) => FileExtentKind::Prealloc(place),
                    FileExtentKind::Hole | FileExtentKind::Inline(_) => continue,
                };
                let extent = FileExtent {
                    generation: self.handle.generation(),
                    ram_bytes: part.ram_bytes,
                    compression: part.compression,
                    file_bytes: part.file_bytes,
                    kind,
                };
                let offset = to + (inside.start - range.start);
                shared.extents.push((offset, extent));
            }
            // Before the tree is unlocked: until then the extents are this file's.
            for (offset, extent) in &shared.extents {
                if let FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) =
                    extent.kind
                {
                    let range = other.range(*offset);
                    data_extents::change(self.handle, range, &place, Action::Add)?;
                }
            }
            Ok(())
        })?;
        Ok(shared)
    }

    /// Inserts what of an extent that has its reference already is before `end`; if that is nothing, drops the
    /// reference. Returns the bytes that were inserted.
    pub fn insert_shared(&self, offset: u64, extent: &FileExtent<'_>, end: u64) -> Result<u64> {
        let len_bytes = extent.file_bytes.min(end.saturating_sub(offset));
        if len_bytes > 0 {
            let part = part_of(extent, 0, len_bytes);
            self.handle.edit(self.tree, |editor| {
                editor.insert(self.key(offset), &part.encode())
            })?;
        } else if let FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) = extent.kind
        {
            data_extents::change(self.handle, self.range(offset), &place, Action::Drop)?;
        }
        Ok(len_bytes)
    }

    fn range(&self, offset: u64) -> FileRange {
        FileRange {
            tree: self.tree,
            inode: self.inode,
            offset,
        }
    }

    /// Drops what the file has in a range of whole sectors, at most `count` extents of it.
    ///
    /// # Errors
    /// `NotSupported` for a part of an extent in the item; then nothing was changed.
    pub fn drop_range(&self, range: Range<u64>, count: usize) -> Result<Dropped> {
        let mut refs = Vec::new();
        let mut dropped = Dropped {
            bytes: 0,
            next: None,
        };
        if self.cuts_inline(&range)? {
            return Err(Condition::NotSupported.into());
        }
        self.handle.edit(self.tree, |editor| {
            let mut at = range.start;
            let mut left = count;
            while let Some(found) = self.find(editor, at, range.end)? {
                if left == 0 {
                    dropped.next = Some(found.start.max(range.start));
                    break;
                }
                left -= 1;
                dropped.bytes += self.drop_one(editor, &found, &range, &mut refs)?;
                at = found.end;
            }
            Ok(())
        })?;
        self.change_refs(&refs)?;
        Ok(dropped)
    }

    /// Whether the range has a part of an extent in the item, but not all of it.
    fn cuts_inline(&self, range: &Range<u64>) -> Result<bool> {
        let found = self
            .handle
            .edit(self.tree, |editor| self.find(editor, 0, 1))?;
        let Some(found) = found.filter(|found| found.start == 0) else {
            return Ok(false);
        };
        let extent = self.decode(&found)?;
        let is_inline = matches!(extent.kind, FileExtentKind::Inline(_));
        let is_touched = range.start < found.end && !range.is_empty();
        Ok(is_inline && is_touched && (range.start > 0 || range.end < found.end))
    }

    fn decode<'d>(&self, found: &'d Found) -> Result<FileExtent<'d>> {
        let locus = platter_ondisk::Locus::tree(self.tree.0).at_key(self.key(found.start).into());
        let sector_bytes = self.handle.sector_bytes();
        Ok(FileExtent::decode(
            &found.data,
            found.start,
            sector_bytes,
            locus,
        )?)
    }

    /// The first extent that ends after `at` and begins before `end`.
    fn find(&self, editor: &Editor<'_, '_>, at: u64, end: u64) -> Result<Option<Found>> {
        let before = editor.at_or_before(self.key(at))?;
        let mut next = before.filter(|(key, _)| self.is_extent(*key));
        let mut from = self.key(at);
        loop {
            let item = match next.take() {
                Some(item) => Some(item),
                None => editor.at_or_after(from)?,
            };
            let item = item.filter(|(key, _)| self.is_extent(*key) && key.offset < end);
            let Some((key, data)) = item else {
                return Ok(None);
            };
            let mut found = Found {
                start: key.offset,
                end: key.offset,
                data,
            };
            let extent = self.decode(&found)?;
            // An extent in the item stands for a whole sector.
            let len_bytes = extent
                .file_bytes
                .next_multiple_of(self.handle.sector_bytes().into());
            found.end = key.offset.saturating_add(len_bytes);
            if found.end > at {
                return Ok(Some(found));
            }
            let Some(after) = key.successor() else {
                return Ok(None);
            };
            from = after;
        }
    }

    fn is_extent(&self, key: Key) -> bool {
        key.object == self.inode && key.kind == ItemKind::EXTENT_DATA
    }

    /// Drops what of an extent is in the range. Returns by how much fewer bytes are allocated.
    fn drop_one(
        &self,
        editor: &mut Editor<'_, '_>,
        found: &Found,
        range: &Range<u64>,
        refs: &mut Vec<RefChange>,
    ) -> Result<u64> {
        let extent = self.decode(found)?;
        let inside = found.start.max(range.start)..found.end.min(range.end);
        editor.remove(self.key(found.start))?;
        let mut kept = 0;
        for part in [found.start..inside.start, inside.end..found.end] {
            if !part.is_empty() {
                kept += 1;
                let cut = part_of(&extent, part.start - found.start, part.end - part.start);
                editor.insert(self.key(part.start), &cut.encode())?;
            }
        }
        let (FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place)) = extent.kind else {
            let is_hole = extent.kind == FileExtentKind::Hole;
            return Ok(if is_hole { 0 } else { extent.file_bytes });
        };
        match kept {
            0 => refs.push((found.start, place, Action::Drop)),
            1 => {}
            // The parts refer to the extent by the same offset, now twice.
            _ => refs.push((found.start, place, Action::Add)),
        }
        Ok(inside.end - inside.start)
    }

    /// Inserts an item for each hole of a range, unless the filesystem does without.
    pub fn fill_holes(&self, range: Range<u64>) -> Result<()> {
        if self.handle.leaves_holes() || range.is_empty() {
            return Ok(());
        }
        self.handle.edit(self.tree, |editor| {
            let mut at = range.start;
            while at < range.end {
                let found = self.find(editor, at, range.end)?;
                let next = found
                    .as_ref()
                    .map_or(range.end, |found| found.start.max(at));
                if at < next {
                    let hole = FileExtent {
                        generation: self.handle.generation(),
                        ram_bytes: next - at,
                        compression: Compression::None,
                        file_bytes: next - at,
                        kind: FileExtentKind::Hole,
                    };
                    editor.insert(self.key(at), &hole.encode())?;
                }
                at = found.map_or(range.end, |found| found.end);
            }
            Ok(())
        })
    }

    /// Makes preallocated extents of a range, to which data was written, read as that. What is not preallocated
    /// stays as it is.
    pub fn mark_written(&self, range: Range<u64>) -> Result<()> {
        let mut refs = Vec::new();
        self.handle.edit(self.tree, |editor| {
            let mut at = range.start;
            while let Some(found) = self.find(editor, at, range.end)? {
                self.mark_one(editor, &found, &range, &mut refs)?;
                at = found.end;
            }
            Ok(())
        })?;
        self.change_refs(&refs)
    }

    fn mark_one(
        &self,
        editor: &mut Editor<'_, '_>,
        found: &Found,
        range: &Range<u64>,
        refs: &mut Vec<RefChange>,
    ) -> Result<()> {
        let extent = self.decode(found)?;
        let FileExtentKind::Prealloc(place) = extent.kind else {
            return Ok(());
        };
        let inside = found.start.max(range.start)..found.end.min(range.end);
        editor.remove(self.key(found.start))?;
        let parts = [
            found.start..inside.start,
            inside.clone(),
            inside.end..found.end,
        ];
        let mut count = 0;
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let mut cut = part_of(&extent, part.start - found.start, part.end - part.start);
            if let FileExtentKind::Prealloc(place) = cut.kind
                && part == inside
            {
                cut.kind = FileExtentKind::Regular(place);
                cut.generation = self.handle.generation();
            }
            editor.insert(self.key(part.start), &cut.encode())?;
            count += 1;
        }
        refs.extend((1..count).map(|_| (found.start, place, Action::Add)));
        Ok(())
    }

    fn change_refs(&self, refs: &[RefChange]) -> Result<()> {
        for (offset, place, action) in refs {
            data_extents::change(self.handle, self.range(*offset), place, *action)?;
        }
        Ok(())
    }
}

/// The part of a file extent from `skipped` bytes on.
fn part_of<'d>(extent: &FileExtent<'d>, skipped: u64, len_bytes: u64) -> FileExtent<'d> {
    let moved = |place: ExtentPlace| ExtentPlace {
        offset: place.offset + skipped,
        ..place
    };
    let kind = match extent.kind {
        FileExtentKind::Regular(place) => FileExtentKind::Regular(moved(place)),
        FileExtentKind::Prealloc(place) => FileExtentKind::Prealloc(moved(place)),
        other @ (FileExtentKind::Inline(_) | FileExtentKind::Hole) => other,
    };
    FileExtent {
        file_bytes: len_bytes,
        kind,
        ..*extent
    }
}
