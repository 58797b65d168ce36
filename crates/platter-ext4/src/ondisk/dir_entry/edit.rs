//! Modifying a directory block in place: inserting, replacing and removing entries.
//!
//! `bytes` is the space for entries: the block without its tail.

use zerocopy::{FromBytes, IntoBytes};

use platter_vfs::FileKind;

use super::{
    DiskDirEntry, DiskDirTail, Entry, EntryFormat, Head, InodeNr, Surveyed, TAIL_BYTES,
    TAIL_FILE_TYPE, aligned, decode_rec_len, survey,
};

impl EntryFormat {
    /// Inserts an entry into the first gap that fits; returns false if there is none, or an entry
    /// is corrupt. `name` has 1 to 255 bytes, and no hash is stored with it.
    pub fn insert(self, bytes: &mut [u8], name: &[u8], inode: InodeNr, kind: FileKind) -> bool {
        let Some(gap) = self.gap(bytes, name.len()) else {
            return false;
        };
        self.insert_at(bytes, gap, name, inode, kind);
        true
    }

    /// Inserts an entry into a gap known to fit.
    pub fn insert_at(
        self,
        bytes: &mut [u8],
        gap: Gap,
        name: &[u8],
        inode: InodeNr,
        kind: FileKind,
    ) {
        if gap.start > gap.offset {
            self.set_len(bytes, gap.offset, gap.start.saturating_sub(gap.offset));
        }
        self.put(bytes, gap.start..gap.end, name, Some(inode), kind);
    }

    /// Whether [`insert`](Self::insert) would find a gap for a name of this length.
    #[must_use]
    pub fn has_space(self, bytes: &[u8], name_len: usize) -> bool {
        self.gap(bytes, name_len).is_some()
    }

    fn gap(self, bytes: &[u8], name_len: usize) -> Option<Gap> {
        match survey(self, bytes, (name_len, bytes.len()), |_| false) {
            Ok(Surveyed::Missing { gap }) => gap,
            Ok(Surveyed::There { .. }) | Err(_) => None,
        }
    }

    /// Changes the inode of the entry at `offset`.
    pub fn replace(self, bytes: &mut [u8], offset: usize, inode: InodeNr, kind: FileKind) {
        if let Some((disk, _)) = disk_at(bytes, offset) {
            disk.inode = inode.get().into();
            if self.has_file_type {
                disk.file_type = encode_kind(kind);
            }
        }
    }

    /// Replaces the contents of `bytes` with these entries in this order. Each is the [stored
    /// form](Self::stored) of an entry in use; together they fit, and the last one extends to the
    /// end.
    pub fn fill<'e>(self, bytes: &mut [u8], entries: impl IntoIterator<Item = &'e [u8]>) {
        self.clear(bytes);
        let (mut at, mut last) = (0usize, 0);
        for entry in entries {
            let end = at.saturating_add(entry.len());
            let Some(place) = bytes.get_mut(at..end) else {
                debug_assert!(false, "entries fit their block");
                break;
            };
            place.copy_from_slice(entry);
            self.set_len(bytes, at, entry.len());
            (last, at) = (at, end);
        }
        self.set_len(bytes, last, bytes.len().saturating_sub(last));
    }

    /// Returns the stored form of an entry in use, without the gap after its name.
    #[must_use]
    pub fn stored<'b>(self, bytes: &'b [u8], entry: &Entry<'_>) -> &'b [u8] {
        let end = entry.offset.saturating_add(stored_len(entry.name.len()));
        bytes.get(entry.offset..end).unwrap_or_default()
    }

    /// Extends the entries in the first `filled` bytes to all of `bytes`.
    pub fn stretch(self, bytes: &mut [u8], filled: usize) {
        let content = bytes.get(..filled).unwrap_or_default();
        let last = self.entries(content).map_while(Result::ok).last();
        match last.map(|entry| entry.offset) {
            Some(last) => self.set_len(bytes, last, bytes.len().saturating_sub(last)),
            None => self.clear(bytes),
        }
    }

    /// Removes the entry at `offset`: the preceding entry absorbs its space.
    pub fn remove(self, bytes: &mut [u8], offset: usize) {
        let entries = self.entries(bytes).map_while(Result::ok);
        let before = entries.take_while(|entry| entry.offset < offset).last();
        let before = before.map(|entry| entry.offset);
        self.remove_after(bytes, before, offset);
    }

    /// Like [`remove`](Self::remove), with the offset of the preceding entry, `before`. The name is
    /// overwritten with zeros.
    pub fn remove_after(self, bytes: &mut [u8], before: Option<usize>, offset: usize) {
        let Ok(Entry { end, .. }) = self.decode(bytes, offset) else {
            return;
        };
        if let Some(place) = bytes.get_mut(offset..end) {
            place.fill(0);
        }
        let from = before.unwrap_or(offset);
        self.set_len(bytes, from, end.saturating_sub(from));
    }

    /// Makes `bytes` an empty list of entries.
    pub fn clear(self, bytes: &mut [u8]) {
        bytes.fill(0);
        self.set_len(bytes, 0, bytes.len());
    }

    /// Makes `bytes` the first entries of the new, empty directory `inode`.
    pub fn begin(self, bytes: &mut [u8], inode: InodeNr, parent: InodeNr) {
        bytes.fill(0);
        let (end, dot_end) = (bytes.len(), stored_len(1));
        self.put(bytes, 0..dot_end, b".", Some(inode), FileKind::Directory);
        self.put(
            bytes,
            dot_end..end,
            b"..",
            Some(parent),
            FileKind::Directory,
        );
    }

    fn put(
        self,
        bytes: &mut [u8],
        place: std::ops::Range<usize>,
        name: &[u8],
        inode: Option<InodeNr>,
        kind: FileKind,
    ) {
        let len = place.len();
        let Some((disk, rest)) = disk_at(bytes, place.start) else {
            return;
        };
        disk.inode = inode.map_or(0, InodeNr::get).into();
        disk.name_len = u8::try_from(name.len()).unwrap_or(u8::MAX);
        disk.file_type = if self.has_file_type {
            encode_kind(kind)
        } else {
            0
        };
        if let Some(slot) = rest.get_mut(..name.len()) {
            slot.copy_from_slice(name);
        }
        self.set_len(bytes, place.start, len);
    }

    fn set_len(self, bytes: &mut [u8], offset: usize, len: usize) {
        if let Some((disk, _)) = disk_at(bytes, offset) {
            disk.rec_len = encode_rec_len(len, self.block_bytes).into();
        }
    }
}

/// Space for a new entry.
#[derive(Debug, Clone, Copy)]
pub struct Gap {
    /// The entry that owns the space: in use if it begins before `start`.
    offset: usize,
    start: usize,
    end: usize,
}

impl Gap {
    /// Returns the space between the entry at `offset` and `end`.
    #[inline]
    pub(super) fn after(offset: usize, head: Head, end: usize) -> Self {
        let start = offset.saturating_add(head.used());
        Self { offset, start, end }
    }
}

/// Splits the tail from a block of entries and initializes it, without a checksum.
pub fn split_new_tail(block: &mut [u8]) -> &mut [u8] {
    let tail = DiskDirTail {
        inode: 0.into(),
        rec_len: 12.into(),
        name_len: 0,
        file_type: TAIL_FILE_TYPE,
        checksum: 0.into(),
    };
    let Some((content, place)) = block.split_last_chunk_mut::<TAIL_BYTES>() else {
        return &mut [];
    };
    place.copy_from_slice(tail.as_bytes());
    content
}

/// Returns the bytes of an entry with a name of this length.
#[must_use]
pub fn stored_len(name_len: usize) -> usize {
    aligned(name_len)
}

fn disk_at(bytes: &mut [u8], offset: usize) -> Option<(&mut DiskDirEntry, &mut [u8])> {
    DiskDirEntry::mut_from_prefix(bytes.get_mut(offset..)?).ok()
}

/// The inverse of [`decode_rec_len`].
fn encode_rec_len(len: usize, block_bytes: u32) -> u16 {
    let high = (len >> 16) & 0x3;
    let folded = if len >= 0x1_0000 && block_bytes >= 0x1_0000 {
        0xffff
    } else {
        (len & 0xfffc) | high
    };
    let stored = u16::try_from(folded).unwrap_or(u16::MAX);
    debug_assert_eq!(decode_rec_len(stored, block_bytes), len);
    stored
}

fn encode_kind(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(block_bytes: u32) -> EntryFormat {
        EntryFormat {
            block_bytes,
            inodes_count: 100,
            has_file_type: true,
            has_hash: false,
        }
    }

    fn number(number: u32) -> InodeNr {
        InodeNr::new(number).unwrap()
    }

    fn names(format: EntryFormat, bytes: &[u8]) -> Vec<Vec<u8>> {
        let entries = format.entries(bytes).map(Result::unwrap);
        let used = entries.filter(|entry| entry.inode.is_some());
        used.map(|entry| entry.name.to_vec()).collect()
    }

    #[test]
    fn names_are_inserted_and_removed_until_full() {
        for block_bytes in [1024, 4096, 0x1_0000] {
            let format = format(block_bytes);
            let mut bytes = vec![0xff; block_bytes as usize];
            format.begin(&mut bytes, number(12), InodeNr::ROOT);
            let mut count = 0u32;
            let name = |count: u32| format!("name-{count}").into_bytes();
            while format.insert(&mut bytes, &name(count), number(13), FileKind::Fifo) {
                count += 1;
            }
            assert_eq!(names(format, &bytes).len(), count as usize + 2);
            for gone in (0..count).step_by(2) {
                let entries = format.entries(&bytes).map(Result::unwrap);
                let found = entries.into_iter().find(|entry| entry.name == name(gone));
                let offset = found.unwrap().offset;
                format.remove(&mut bytes, offset);
            }
            let left = names(format, &bytes);
            assert_eq!(left.len(), count as usize / 2 + 2);
            assert_eq!(left[..3], [b".".to_vec(), b"..".to_vec(), name(1)]);
            assert!(format.insert(&mut bytes, &name(0), number(13), FileKind::Fifo));
        }
    }

    #[test]
    fn removed_first_entry_becomes_unused() {
        let format = format(1024);
        let mut block = vec![0xff; 1024];
        let content = split_new_tail(&mut block);
        format.clear(content);
        assert!(format.insert(content, b"a", number(13), FileKind::Regular));
        assert_eq!(names(format, content), [b"a"]);
        format.remove(content, 0);
        assert_eq!(names(format, content), Vec::<Vec<u8>>::new());
        assert_eq!(format.entries(&block).map(Result::unwrap).count(), 2);
    }

    #[test]
    fn replaced_entry_keeps_name_and_offset() {
        let format = format(1024);
        let mut block = vec![0; 1024];
        format.clear(&mut block);
        format.insert(&mut block, b"a", number(13), FileKind::Regular);
        format.insert(&mut block, b"b", number(14), FileKind::Regular);
        format.replace(&mut block, 12, number(15), FileKind::Directory);
        let entry = format.entries(&block).nth(1).unwrap().unwrap();
        assert_eq!((entry.name, entry.inode), (&b"b"[..], Some(number(15))));
        assert_eq!(entry.kind, Some(FileKind::Directory));
    }

    #[test]
    fn filled_block_has_exactly_the_given_entries() {
        let format = format(1024);
        let mut old = vec![0; 1024];
        format.begin(&mut old, number(12), InodeNr::ROOT);
        for name in [&b"first"[..], b"second", b"third"] {
            format.insert(&mut old, name, number(13), FileKind::Socket);
        }
        let entries = format.entries(&old).map(Result::unwrap);
        let stored: Vec<_> = entries.map(|entry| format.stored(&old, &entry)).collect();
        let mut new = vec![0xff; 512];
        format.fill(&mut new, [stored[4], stored[2]]);
        assert_eq!(names(format, &new), [&b"third"[..], b"first"]);
        assert!(format.has_space(&new, 255) && !format.has_space(&new[..28], 1));
        format.fill(&mut new, []);
        assert_eq!(names(format, &new), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn extended_entries_fill_the_added_space() {
        let format = format(1024);
        let mut bytes = vec![0; 24];
        format.clear(&mut bytes);
        assert!(format.insert(&mut bytes, b"name", number(13), FileKind::Regular));
        assert!(!format.has_space(&bytes, 8));
        bytes.resize(40, 0);
        format.stretch(&mut bytes, 24);
        assert!(format.insert(&mut bytes, b"other", number(13), FileKind::Regular));
        format.stretch(&mut bytes, 0);
        assert_eq!(names(format, &bytes), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn removed_name_is_zeroed() {
        let format = format(1024);
        let mut bytes = vec![0; 64];
        format.clear(&mut bytes);
        format.insert(&mut bytes, b"secret", number(13), FileKind::Regular);
        format.remove(&mut bytes, 0);
        assert!(bytes[6..].iter().all(|&byte| byte == 0));
    }
}
