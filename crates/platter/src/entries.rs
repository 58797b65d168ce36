//! The entries of a directory with their inodes, for tree walks that read a cold image in long
//! stretches.
//!
//! Entries come in the order asked for. Inodes are loaded a batch at a time in the order of their
//! numbers, and the contents of a group of files are announced in the order they lie on the
//! device.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use platter_block::{BlockDevice, GatheringDevice};
use platter_vfs::inode::OwnedDirEntry;
use platter_vfs::tree_walk::DirListing;
use platter_vfs::{Attr, FileKind, Filesystem, Inode, Place, WalkOrder};

use crate::data_map::DataMap;

/// The entries in memory at once, over all directories of a [`Shares`], in bytes. The share of one
/// directory is half of what those above it leave.
const LISTED_BYTES_MAX: usize = 32 << 20;

/// The inodes loaded and not yet given, shared the same way.
const LOADED_INODES_MAX: usize = 8192;

/// How many inodes are loaded together at least.
const BATCH_INODES_MIN: usize = 8;

/// How many bytes of contents are announced together.
const ANNOUNCED_BYTES: u64 = 32 << 20;

/// In how many ranges they lie at most.
const ANNOUNCED_RANGES_MAX: usize = 1 << 16;

/// Contents beyond this are announced by their reader.
pub(crate) const HEAD_BYTES: u64 = 1 << 20;

/// Announced ranges that lie at most this far apart are read as one.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// What the directories that are open at once may keep in memory.
#[derive(Debug)]
pub(crate) struct Shares {
    listed_bytes: usize,
    loaded_inodes: usize,
}

/// An entry whose inode was looked at.
#[derive(Debug)]
pub(crate) struct LoadedEntry {
    pub(crate) entry: OwnedDirEntry,
    pub(crate) file: platter_vfs::Result<(Arc<dyn Inode>, Attr)>,
    /// Where a regular file has data; only where contents are announced.
    pub(crate) map: Option<platter_vfs::Result<DataMap>>,
}

/// A directory being gone through.
#[derive(Debug)]
pub(crate) struct DirEntries {
    listing: DirListing,
    batch: VecDeque<LoadedEntry>,
    batch_inodes: usize,
    /// How many of the batch's first have been announced.
    announced: usize,
}

/// Where entries come from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntrySource<'a> {
    pub(crate) fs: &'a dyn Filesystem,
    /// The devices to announce contents to, in the order in which the filesystem was given them.
    pub(crate) devices: &'a [Arc<dyn BlockDevice>],
    /// The same devices where they can read what was announced together; else none.
    pub(crate) gathering: &'a [Arc<GatheringDevice>],
    /// Whether contents will be read.
    pub(crate) contents: bool,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            listed_bytes: LISTED_BYTES_MAX,
            loaded_inodes: LOADED_INODES_MAX,
        }
    }
}

impl Shares {
    /// Opens a directory.
    pub(crate) fn open(&mut self, dir: Arc<dyn Inode>, order: WalkOrder) -> DirEntries {
        let share_bytes = self.listed_bytes / 2;
        self.listed_bytes -= share_bytes;
        let batch_inodes = self.loaded_inodes / 2;
        self.loaded_inodes -= batch_inodes;
        DirEntries {
            listing: DirListing::new(dir, share_bytes, order),
            batch: VecDeque::new(),
            batch_inodes,
            announced: 0,
        }
    }

    /// Takes back the share of a directory that is done with.
    pub(crate) fn close(&mut self, entries: &DirEntries) {
        self.listed_bytes += entries.listing.share_bytes();
        self.loaded_inodes += entries.batch_inodes;
    }
}

impl DirEntries {
    /// The next entry, or the error that broke the listing off; after that, the entries read
    /// before it may still follow.
    pub(crate) fn next(
        &mut self,
        source: &EntrySource<'_>,
    ) -> Option<platter_vfs::Result<LoadedEntry>> {
        if self.batch.is_empty() {
            let count = self.batch_inodes.max(BATCH_INODES_MIN);
            let mut entries = Vec::new();
            let mut broken_off = None;
            for entry in self.listing.by_ref().take(count) {
                match entry {
                    Ok(entry) => entries.push(entry),
                    Err(error) => broken_off = Some(error),
                }
            }
            self.batch = source.load(entries);
            if let Some(error) = broken_off {
                return Some(Err(error));
            }
        }
        if self.announced == 0 && source.contents {
            self.announced = source.announce(&mut self.batch);
        }
        let entry = self.batch.pop_front()?;
        self.announced = self.announced.saturating_sub(1);
        Some(Ok(entry))
    }
}

impl EntrySource<'_> {
    /// Forgets what was announced and is not read any more.
    pub(crate) fn forget(&self) {
        for device in self.gathering {
            device.forget();
        }
    }

    /// Loads the inodes of entries, in the order of their numbers.
    fn load(&self, entries: Vec<OwnedDirEntry>) -> VecDeque<LoadedEntry> {
        let mut order: Vec<(usize, OwnedDirEntry)> = entries.into_iter().enumerate().collect();
        order.sort_unstable_by_key(|(_, entry)| entry.id);
        let mut loaded: Vec<(usize, LoadedEntry)> = order
            .into_iter()
            .map(|(place, entry)| {
                let file = self.fs.inode(entry.id).and_then(|inode| {
                    let attr = inode.attr()?;
                    Ok((inode, attr))
                });
                let map = None;
                (place, LoadedEntry { entry, file, map })
            })
            .collect();
        loaded.sort_unstable_by_key(|(place, _)| *place);
        loaded.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Finds out where the contents of the batch's first files lie and announces them. Returns
    /// how many entries that were.
    fn announce(&self, batch: &mut VecDeque<LoadedEntry>) -> usize {
        let mut ranges = Vec::new();
        let (mut total_bytes, mut total_ranges) = (0, 0);
        let mut count = 0;
        for LoadedEntry { file, map, .. } in batch.iter_mut() {
            count += 1;
            let Ok((inode, attr)) = file else { continue };
            if attr.kind == FileKind::Regular && attr.size_bytes > 0 {
                let mut announce = |place: Place, length| ranges.push((place, length));
                let read = DataMap::read(&**inode, attr.size_bytes, HEAD_BYTES, &mut announce);
                total_ranges += read.as_ref().map_or(0, DataMap::len);
                total_bytes += attr.size_bytes.min(HEAD_BYTES);
                *map = Some(read);
            }
            let ranges_reached = total_ranges.max(ranges.len()) >= ANNOUNCED_RANGES_MAX;
            if total_bytes >= ANNOUNCED_BYTES || ranges_reached {
                break;
            }
        }
        ranges.sort_unstable();
        for (member, device) in (0..).zip(self.gathering) {
            let own = ranges.iter().filter(|(place, _)| place.member == member);
            device.announce(
                own.map(|&(Place { offset, .. }, length)| offset..offset.saturating_add(length)),
            );
        }
        for (member, range) in joined(ranges) {
            if let Some(device) = self.devices.get(usize::from(member)) {
                device.will_need(range);
            }
        }
        count
    }
}

/// Joins ranges that lie close together. They are sorted by device and place.
fn joined(ranges: Vec<(Place, u64)>) -> Vec<(u16, Range<u64>)> {
    let mut joined: Vec<(u16, Range<u64>)> = Vec::new();
    for (Place { member, offset }, length) in ranges {
        let end = offset.saturating_add(length);
        match joined.last_mut() {
            Some((last_member, last))
                if *last_member == member && offset <= last.end.saturating_add(GAP_BYTES_MAX) =>
            {
                last.end = last.end.max(end);
            }
            _ => joined.push((member, offset..end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_lie_close_are_announced_as_one() {
        let near = 8 + GAP_BYTES_MAX;
        let far = 10 + near + GAP_BYTES_MAX;
        let on = |member, range: Range<u64>| {
            let offset = range.start;
            (Place { member, offset }, range.end - range.start)
        };
        let ranges = [near..near + 9, 4..8, 0..4, 6..7, far..far + 1];
        let mut ranges = ranges.map(|range| on(0, range)).to_vec();
        ranges.push(on(1, 8..9));
        ranges.sort_unstable();
        assert_eq!(
            joined(ranges),
            [(0, 0..near + 9), (0, far..far + 1), (1, 8..9)]
        );
        assert_eq!(joined(Vec::new()), []);
    }
}
