//! Applies the records of fast commits in their order.
//!
//! A record whose inode or directory does not exist is passed over: a later record undid it before it
//! reached the disk. So is one of the filesystem's own inodes: quota is counted from the others.
//!
//! Link counts of files come from their inode records, which follow those of their names. So a file that
//! loses its last name is deleted only after all records: replayed again over what they made, they may
//! remove a name before the inode record says that another one is there.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Name, Result};

use super::apply::Apply;
use super::{entries, inode_record, ranges};
use crate::inode;
use crate::ondisk::InodeNr;
use crate::ondisk::jbd2::fast_commit::{AddRange, Entry, FastCommitRule, Record};

/// Applies one record.
pub(super) fn replay(apply: &mut Apply<'_>, record: &Record<'_>) -> Result<()> {
    let is_awaited = match *record {
        Record::AddRange(AddRange { inode, .. })
        | Record::DelRange { inode, .. }
        | Record::Link(Entry { inode, .. }) => {
            let group = apply.fs.geometry.group_of_inode(inode);
            group.is_some() && !inode::is_reserved(apply.fs, inode)
        }
        Record::Unlink(entry) => apply.awaited.contains(entry.inode),
        Record::Head { .. }
        | Record::Create(_)
        | Record::Inode { .. }
        | Record::Pad
        | Record::Tail { .. } => false,
    };
    if is_awaited {
        apply.awaited.keep(record);
    }
    dispatch(apply, record)
}

/// Applies a record that is kept, if it is to be.
pub(super) fn dispatch(apply: &mut Apply<'_>, record: &Record<'_>) -> Result<()> {
    match *record {
        Record::Head { .. } | Record::Pad | Record::Tail { .. } => Ok(()),
        Record::AddRange(range) => ranges::add(apply, &range),
        Record::DelRange { inode, first, len } => ranges::delete(apply, inode, first, len),
        Record::Inode { inode, raw } => inode_record::replay(apply, inode, raw),
        Record::Create(entry) => entries::create(apply, &entry, name_of(&entry)?),
        Record::Link(entry) => entries::link(apply, &entry, name_of(&entry)?),
        Record::Unlink(entry) => entries::unlink(apply, &entry, name_of(&entry)?),
    }
}

fn name_of<'r>(entry: &Entry<'r>) -> Result<Name<'r>> {
    if entry.inode == InodeNr::ROOT {
        let locus = Locus::inode(u64::from(entry.parent.get()));
        return Err(Corrupt::new(locus, FastCommitRule::Root).into());
    }
    let name = Name::new(entry.name).ok();
    let name = name.filter(|name| !name.is_dot_or_dotdot());
    Ok(name.ok_or_else(|| {
        let locus = Locus::inode(u64::from(entry.parent.get()));
        Corrupt::new(locus, FastCommitRule::Name)
    })?)
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Rule;
    use platter_vfs::{Error, FileKind, FixedClock, Timestamp};
    use zerocopy::{FromZeros, IntoBytes};

    use super::super::recount;
    use super::*;
    use crate::alloc::Allocator;
    use crate::fs_context::tests::sample_writable;
    use crate::inode::STORE_CREDITS;
    use crate::ondisk::inode::DiskInode;
    use crate::ondisk::{BlockNr, FileBlock, Inode};

    fn number(number: u32) -> InodeNr {
        InodeNr::new(number).unwrap()
    }

    /// A record whose inode is not in use overwrites the link to the next orphan.
    #[test]
    fn new_inode_is_no_orphan() {
        let mut fs = sample_writable();
        let mut handle = fs.begin(3 * (STORE_CREDITS + 1)).unwrap();
        for (orphan, next) in [(14, 13), (13, 15), (15, 0)] {
            let file = Inode::new(number(orphan), FileKind::Regular, 1, 32, &fs.geometry);
            inode::initialize(&fs, &mut handle, &file).unwrap();
            inode::store_deleted(&fs, &mut handle, file.number, next).unwrap();
        }
        drop(handle);
        fs.superblock.last_orphan = InodeNr::new(14);
        let space = Allocator::open_for_replay(&fs, Vec::new()).unwrap();
        let clock = FixedClock::new(Timestamp::default(), 0);
        let mut apply = Apply::begin(&fs, &space, None, &clock, false).unwrap();
        let mut disk = DiskInode::new_zeroed();
        (disk.mode, disk.links) = (0o10_0644.into(), 1.into());
        let record = Record::Inode {
            inode: number(13),
            raw: disk.as_bytes(),
        };
        replay(&mut apply, &record).unwrap();
        assert_eq!(apply.register.all(), [number(14), number(15)]);
        assert_eq!(inode::read(&fs, number(14)).unwrap().deleted, 15);
        assert_eq!(inode::read(&fs, number(13)).unwrap().deleted, 0);
    }

    /// Returns the error of a record on a filesystem without inodes but one without extents.
    fn refusal(record: &Record<'_>) -> String {
        let fs = sample_writable();
        let mut file = Inode::new(number(13), FileKind::Regular, 1, 32, &fs.geometry);
        file.links = 1;
        let mut handle = fs.begin(STORE_CREDITS).unwrap();
        inode::initialize(&fs, &mut handle, &file).unwrap();
        drop(handle);
        let space = Allocator::open_for_replay(&fs, Vec::new()).unwrap();
        let clock = FixedClock::new(Timestamp::default(), 0);
        let mut apply = Apply::begin(&fs, &space, None, &clock, false).unwrap();
        match replay(&mut apply, record).and_then(|()| recount::finish(&mut apply)) {
            Err(Error::Corrupt(report)) => report.rule.into_owned(),
            other => panic!("expected corruption, got {other:?}"),
        }
    }

    const RANGE: AddRange = AddRange {
        inode: InodeNr::ROOT,
        first: FileBlock(0),
        len: 1,
        start: BlockNr(4000),
        unwritten: false,
    };

    #[test]
    fn range_outside_the_filesystem_is_refused() {
        let ranges = [
            AddRange {
                start: BlockNr(1 << 40),
                ..RANGE
            },
            AddRange {
                first: FileBlock::MAX,
                ..RANGE
            },
        ];
        for range in ranges {
            let text = FastCommitRule::Range.text();
            assert_eq!(refusal(&Record::AddRange(range)), text);
        }
    }

    #[test]
    fn range_over_the_inode_table_is_refused() {
        let range = AddRange {
            start: BlockNr(5),
            ..RANGE
        };
        let text = FastCommitRule::Range.text();
        assert_eq!(refusal(&Record::AddRange(range)), text);
    }

    #[test]
    fn range_of_a_file_without_extents_is_refused() {
        let range = AddRange {
            inode: number(13),
            ..RANGE
        };
        let removed = Record::DelRange {
            inode: number(13),
            first: FileBlock(0),
            len: 1,
        };
        for record in [Record::AddRange(range), removed] {
            assert_eq!(refusal(&record), FastCommitRule::NoExtents.text());
        }
    }

    #[test]
    fn invalid_name_is_refused() {
        for name in [&b"."[..], b"..", b"a/b", b"a\0"] {
            let entry = Entry {
                parent: InodeNr::ROOT,
                inode: number(12),
                name,
            };
            for record in [
                Record::Create(entry),
                Record::Link(entry),
                Record::Unlink(entry),
            ] {
                assert_eq!(refusal(&record), FastCommitRule::Name.text());
            }
        }
    }

    /// The kernel records a file that was made and removed between two fast commits as it is at the
    /// second one, and both of its names.
    #[test]
    fn name_of_an_inode_that_is_gone_is_passed_over() {
        let fs = sample_writable();
        let space = Allocator::open_for_replay(&fs, Vec::new()).unwrap();
        let clock = FixedClock::new(Timestamp::default(), 0);
        let mut apply = Apply::begin(&fs, &space, None, &clock, false).unwrap();
        let mut disk = DiskInode::new_zeroed();
        disk.mode = 0o10_0644.into();
        let entry = Entry {
            parent: InodeNr::ROOT,
            inode: number(12),
            name: b"name",
        };
        let raw = disk.as_bytes();
        for record in [
            Record::Inode {
                inode: entry.inode,
                raw,
            },
            Record::Create(entry),
            Record::Unlink(entry),
        ] {
            replay(&mut apply, &record).unwrap();
        }
        assert!(apply.find(entry.inode).unwrap().is_none());
    }

    #[test]
    fn name_of_an_unused_inode_is_refused() {
        let entry = Entry {
            parent: InodeNr::ROOT,
            inode: number(12),
            name: b"name",
        };
        let text = FastCommitRule::Missing.text();
        assert_eq!(refusal(&Record::Create(entry)), text);
    }
}
