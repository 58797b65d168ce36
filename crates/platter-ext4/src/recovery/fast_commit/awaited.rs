//! Records that no inode record followed yet. If that makes the inode anew, they are applied to it: the
//! kernel records a file that was made without a name (`O_TMPFILE`) only after its names and blocks. Its
//! own replay passes over these.

use std::collections::BTreeMap;

use platter_ondisk::Locus;
use platter_vfs::{Result, Unsupported};

use crate::ondisk::jbd2::fast_commit::{AddRange, Entry, Record};
use crate::ondisk::{FileBlock, InodeNr};

/// Maximum memory for the records of all inodes, in bytes.
const BYTES_MAX: usize = 8 << 20;
/// What an inode takes in the table in addition to its records.
const ENTRY_BYTES: usize = 2 * size_of::<(InodeNr, Awaiting)>();

/// A record that is kept.
#[derive(Debug)]
enum Kept {
    AddRange(AddRange),
    DelRange {
        inode: InodeNr,
        first: FileBlock,
        len: u32,
    },
    Link(OwnedEntry),
    Unlink(OwnedEntry),
}

#[derive(Debug)]
struct OwnedEntry {
    parent: InodeNr,
    inode: InodeNr,
    name: Box<[u8]>,
}

impl OwnedEntry {
    fn of(entry: &Entry<'_>) -> Self {
        Self {
            parent: entry.parent,
            inode: entry.inode,
            name: entry.name.into(),
        }
    }

    fn entry(&self) -> Entry<'_> {
        Entry {
            parent: self.parent,
            inode: self.inode,
            name: &self.name,
        }
    }
}

/// The records of an inode.
#[derive(Debug, Default)]
pub(super) struct Awaiting {
    records: Vec<Kept>,
    bytes: usize,
    /// How many of the records came before its last inode record, which was without links, and the
    /// generation in that.
    older: Option<(usize, u32)>,
    /// Records were dropped.
    is_partial: bool,
}

impl Awaiting {
    /// Returns the records in their order.
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.records.iter().map(|kept| match kept {
            Kept::AddRange(range) => Record::AddRange(*range),
            &Kept::DelRange { inode, first, len } => Record::DelRange { inode, first, len },
            Kept::Link(name) => Record::Link(name.entry()),
            Kept::Unlink(name) => Record::Unlink(name.entry()),
        })
    }

    /// Whether there are records of names.
    pub(super) fn has_names(&self) -> bool {
        let mut records = self.records.iter();
        records.any(|kept| matches!(kept, Kept::Link(_) | Kept::Unlink(_)))
    }

    /// Drops the records of an inode of another generation.
    fn retain(&mut self, generation: u32) {
        if let Some((count, _)) = self.older.take_if(|(_, older)| *older != generation) {
            self.records.drain(..count);
        }
    }
}

/// The records of all inodes that may come yet.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    by_inode: BTreeMap<InodeNr, Awaiting>,
    bytes: usize,
    /// Records of inodes were dropped that had none then: nothing is known of those without an entry, nor is an entry
    /// whole that is made later.
    is_partial: bool,
}

impl Awaited {
    /// Whether there are records of an inode.
    pub(super) fn contains(&self, number: InodeNr) -> bool {
        self.by_inode.contains_key(&number)
    }

    /// Keeps a record of an inode.
    pub(super) fn keep(&mut self, record: &Record<'_>) {
        let (number, kept, name_len) = match *record {
            Record::AddRange(range) => (range.inode, Kept::AddRange(range), 0),
            Record::DelRange { inode, first, len } => {
                (inode, Kept::DelRange { inode, first, len }, 0)
            }
            Record::Link(entry) => (
                entry.inode,
                Kept::Link(OwnedEntry::of(&entry)),
                entry.name.len(),
            ),
            Record::Unlink(entry) => (
                entry.inode,
                Kept::Unlink(OwnedEntry::of(&entry)),
                entry.name.len(),
            ),
            Record::Head { .. }
            | Record::Create(_)
            | Record::Inode { .. }
            | Record::Pad
            | Record::Tail { .. } => return,
        };
        let is_new = !self.by_inode.contains_key(&number);
        // A vector may have twice the space that it needs.
        let bytes = 2 * size_of::<Kept>() + name_len + if is_new { ENTRY_BYTES } else { 0 };
        if self.bytes + bytes > BYTES_MAX {
            match self.by_inode.get_mut(&number) {
                Some(awaiting) => awaiting.is_partial = true,
                None => self.is_partial = true,
            }
            return;
        }
        let is_partial = self.is_partial;
        let awaiting = self.by_inode.entry(number).or_insert_with(|| Awaiting {
            is_partial,
            ..Awaiting::default()
        });
        awaiting.records.push(kept);
        awaiting.bytes += bytes;
        self.bytes += bytes;
    }

    /// Returns the ranges that records mapped in an inode since its last inode record.
    pub(super) fn last_ranges(&self, number: InodeNr) -> Vec<(FileBlock, u32)> {
        let Some(awaiting) = self.by_inode.get(&number) else {
            return Vec::new();
        };
        let older = awaiting.older.map_or(0, |(count, _)| count);
        let last = awaiting.records.iter().skip(older);
        last.filter_map(|kept| match kept {
            Kept::AddRange(range) => Some((range.first, range.len)),
            Kept::DelRange { .. } | Kept::Link(_) | Kept::Unlink(_) => None,
        })
        .collect()
    }

    /// Records an inode record without links: more may follow, unless another inode gets its number.
    pub(super) fn pass_by(&mut self, number: InodeNr, generation: u32) {
        if let Some(awaiting) = self.by_inode.get_mut(&number) {
            awaiting.retain(generation);
            awaiting.older = Some((awaiting.records.len(), generation));
        }
    }

    /// Returns the records of an inode of this generation, and drops all of its number.
    ///
    /// # Errors
    /// `Unsupported` if there are more of them than memory holds, or may have been.
    pub(super) fn take(&mut self, number: InodeNr, generation: u32) -> Result<Awaiting> {
        let is_missing = self.is_partial && !self.contains(number);
        let mut awaiting = self.forget(number);
        if awaiting.is_partial || is_missing {
            let unsupported = Unsupported {
                filesystem: "ext4",
                feature: format!(
                    "{}: more than {BYTES_MAX} bytes of fast commits before those of the inode",
                    Locus::inode(u64::from(number.get()))
                ),
                reason: None,
            };
            return Err(unsupported.into());
        }
        awaiting.retain(generation);
        Ok(awaiting)
    }

    /// Drops the records of an inode, and returns them.
    pub(super) fn forget(&mut self, number: InodeNr) -> Awaiting {
        let awaiting = self.by_inode.remove(&number).unwrap_or_default();
        self.bytes -= awaiting.bytes;
        awaiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::BlockNr;

    fn number(number: u32) -> InodeNr {
        InodeNr::new(number).unwrap()
    }

    fn keep_range(awaited: &mut Awaited, inode: u32) {
        awaited.keep(&Record::AddRange(AddRange {
            inode: number(inode),
            first: FileBlock(0),
            len: 1,
            start: BlockNr(3000),
            unwritten: false,
        }));
    }

    #[test]
    fn inode_whose_record_was_dropped_is_refused() {
        let mut awaited = Awaited::default();
        while !awaited.is_partial {
            let next = u32::try_from(awaited.by_inode.len()).unwrap() + 12;
            keep_range(&mut awaited, next);
        }
        let dropped = u32::try_from(awaited.by_inode.len()).unwrap() + 12;
        assert!(awaited.bytes <= BYTES_MAX);
        assert_eq!(awaited.take(number(12), 1).unwrap().records().count(), 1);
        // There is memory again, but not what came before.
        keep_range(&mut awaited, dropped);
        assert!(awaited.contains(number(dropped)));
        assert!(awaited.take(number(dropped), 1).is_err());
        assert!(awaited.take(number(dropped + 1), 1).is_err());
    }
}
