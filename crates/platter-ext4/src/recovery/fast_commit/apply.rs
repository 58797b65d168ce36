//! Applies the records of fast commits in their order.
//!
//! A record whose inode or directory does not exist is passed over: a later record undid it before it
//! reached the disk. So is one of the filesystem's own inodes: quota is counted from the others.
//!
//! Link counts of files come from their inode records, which follow those of their names. So a file that
//! loses its last name is deleted only after all records: replayed again over what they made, they may
//! remove a name before the inode record says that another one is there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Clock, Condition, Error, FileKind, Name, Result};

use super::awaited::Awaited;
use crate::FsContext;
use crate::alloc::{ALLOC_INODE_CREDITS, Allocator};
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{Backing, BlockMap, INLINE_DATA_NAME, MapChange, Progress, Run};
use crate::ondisk::jbd2::fast_commit::{AddRange, Entry, FastCommitRule, Record};
use crate::ondisk::xattr::remove_from_inode;
use crate::ondisk::{BlockNr, FileBlock, GroupNr, Inode, InodeFlags, InodeNr};
use crate::orphan::OrphanRegister;
use crate::quota::Charge;
use crate::quota_file::QuotaFiles;
use crate::txn::Handle;
use crate::xattr;

/// A replay of fast commits in progress. It is to be [finished](Self::finish).
#[derive(Debug)]
pub(super) struct Apply<'f> {
    pub(super) fs: &'f FsContext,
    pub(super) space: &'f Allocator,
    pub(super) handle: Handle<'f>,
    /// Where usage is counted.
    pub(super) quota_files: Option<QuotaFiles>,
    pub(super) register: OrphanRegister,
    pub(super) clock: &'f dyn Clock,
    /// Whether it may take several transactions.
    may_restart: bool,
    is_full: bool,
    /// Inodes whose space is recounted, and what they counted for before.
    pub(super) touched: BTreeMap<InodeNr, Option<Charge>>,
    /// Directories whose links are recounted: they have no records.
    pub(super) relinked: BTreeSet<InodeNr>,
    /// Groups whose directories are recounted.
    pub(super) groups: BTreeSet<GroupNr>,
    /// Inodes without links in their last record.
    pub(super) gone: BTreeSet<InodeNr>,
    /// Inodes without links since a record of a name, to be deleted unless a later record links them.
    pub(super) doomed: BTreeSet<InodeNr>,
    /// Records that no inode record followed yet: it may be that of another inode than the present one.
    pub(super) awaited: Awaited,
    /// Inodes without extents that lack what records say of their blocks: they may be of another file, or be deleted.
    pub(super) incomplete: BTreeSet<InodeNr>,
}

/// An inode and its block mapping.
pub(super) struct Mapped {
    pub(super) inode: Inode,
    pub(super) map: BlockMap,
}

impl Mapped {
    pub(super) fn new(fs: &FsContext, inode: Inode) -> Result<Self> {
        let map = BlockMap::decode(fs, &inode)?;
        Ok(Self { inode, map })
    }
}

impl<'f> Apply<'f> {
    /// Begins a replay onto `fs`, whose transactions take more of them only if it `may_restart`. No
    /// other thread uses it.
    pub(super) fn begin(
        fs: &'f FsContext,
        space: &'f Allocator,
        quota_files: Option<QuotaFiles>,
        clock: &'f dyn Clock,
        may_restart: bool,
    ) -> Result<Self> {
        Ok(Self {
            fs,
            space,
            handle: fs.begin(0)?,
            quota_files,
            register: OrphanRegister::open(fs)?,
            clock,
            may_restart,
            is_full: false,
            touched: BTreeMap::new(),
            relinked: BTreeSet::new(),
            groups: BTreeSet::new(),
            gone: BTreeSet::new(),
            doomed: BTreeSet::new(),
            awaited: Awaited::default(),
            incomplete: BTreeSet::new(),
        })
    }

    /// Whether it failed because its only transaction is full.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Applies one record.
    pub(super) fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let is_awaited = match *record {
            Record::AddRange(AddRange { inode, .. })
            | Record::DelRange { inode, .. }
            | Record::Link(Entry { inode, .. }) => {
                let group = self.fs.geometry.group_of_inode(inode);
                group.is_some() && !inode::is_reserved(self.fs, inode)
            }
            Record::Unlink(entry) => self.awaited.contains(entry.inode),
            Record::Head { .. }
            | Record::Create(_)
            | Record::Inode { .. }
            | Record::Pad
            | Record::Tail { .. } => false,
        };
        if is_awaited {
            self.awaited.keep(record);
        }
        self.apply(record)
    }

    pub(super) fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        match *record {
            Record::Head { .. } | Record::Pad | Record::Tail { .. } => Ok(()),
            Record::AddRange(range) => self.add_range(&range),
            Record::DelRange { inode, first, len } => self.del_range(inode, first, len),
            Record::Inode { inode, raw } => self.inode(inode, raw),
            Record::Create(entry) => self.create(&entry, name_of(&entry)?),
            Record::Link(entry) => self.link(&entry, name_of(&entry)?),
            Record::Unlink(entry) => self.unlink(&entry, name_of(&entry)?),
        }
    }

    /// Ensures that the handle has `credits` left. All that was changed is stored by then.
    pub(super) fn ensure(&mut self, credits: u32) -> Result<()> {
        let left = self.handle.credits();
        if left >= credits || self.handle.extend(credits - left) {
            return Ok(());
        }
        if self.may_restart {
            return self.handle.restart(credits);
        }
        self.is_full = true;
        Err(Condition::NoSpace.into())
    }

    fn add_range(&mut self, range: &AddRange) -> Result<()> {
        let end = range.first.checked_add(range.len);
        let may_be_mapped = self.space.may_hold_contents(range.start, range.len.into());
        let Some(end) = end.filter(|_| may_be_mapped) else {
            let locus = Locus::block(range.start.0).of_inode(u64::from(range.inode.get()));
            return Err(Corrupt::new(locus, FastCommitRule::Range).into());
        };
        self.move_contents_out(range.inode)?;
        let Some(mut file) = self.mapped(range.inode)? else {
            return Ok(());
        };
        let wanted = Run {
            first: range.first,
            count: range.len,
            backing: if range.unwritten {
                Backing::Unwritten(range.start)
            } else {
                Backing::Written(range.start)
            },
        };
        let mut at = range.first;
        while at < end {
            let found = file.map.lookup(self.fs, at)?;
            let found = found.truncated(end.0 - at.0);
            let wanted = wanted.starting_at(at).truncated(found.count);
            at = found.end();
            if found.backing == wanted.backing {
                continue;
            }
            if found.backing.start() == wanted.backing.start() {
                self.convert(&mut file, found.first..found.end(), range.unwritten)?;
                continue;
            }
            if found.backing != Backing::Hole {
                self.remove(&mut file, found.first..found.end())?;
            }
            self.insert(&mut file, wanted)?;
        }
        self.mark(range.start, u64::from(range.len))
    }

    /// Begins the mapping of a file with inline data. The record of its inode, which has it no longer,
    /// comes after those of its blocks.
    fn move_contents_out(&mut self, number: InodeNr) -> Result<()> {
        let Some(mut inode) = self.find_or_unnamed(number)?.filter(is_inline) else {
            return Ok(());
        };
        self.touch(number)?;
        remove_from_inode(&mut inode.tail, INLINE_DATA_NAME.0, INLINE_DATA_NAME.1);
        inode.flags.remove(InodeFlags::INLINE_DATA);
        inode.flags.insert(InodeFlags::EXTENTS);
        let _ = BlockMap::begin(self.fs, &mut inode);
        self.ensure(STORE_CREDITS)?;
        inode::store(self.fs, &mut self.handle, &inode)
    }

    pub(super) fn del_range(&mut self, number: InodeNr, first: FileBlock, len: u32) -> Result<()> {
        let inode = self.find_or_unnamed(number)?;
        if inode.as_ref().is_some_and(is_inline) {
            return Ok(());
        }
        let Some(mut file) = self.mapped(number)? else {
            return Ok(());
        };
        let end = FileBlock(first.0.saturating_add(len));
        self.remove(&mut file, first..end)
    }

    fn insert(&mut self, file: &mut Mapped, mut run: Run) -> Result<()> {
        while run.count > 0 {
            let count = self.change_map(file, |map, change| map.insert(change, run))?;
            run = run.starting_at(FileBlock(run.first.0.saturating_add(count.max(1))));
        }
        Ok(())
    }

    fn convert(
        &mut self,
        file: &mut Mapped,
        mut blocks: Range<FileBlock>,
        unwritten: bool,
    ) -> Result<()> {
        while let Progress::More(start) = self.change_map(file, |map, change| {
            map.convert(change, blocks.clone(), unwritten)
        })? {
            blocks.start = start;
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, file: &mut Mapped, mut blocks: Range<FileBlock>) -> Result<()> {
        while let Progress::More(end) =
            self.change_map(file, |map, change| map.remove(change, blocks.clone()))?
        {
            blocks.end = end;
        }
        Ok(())
    }

    /// Takes one step of a change of a map, and stores the inode.
    fn change_map<R>(
        &mut self,
        file: &mut Mapped,
        change: impl FnOnce(&mut BlockMap, &mut MapChange<'_, 'f>) -> Result<R>,
    ) -> Result<R> {
        self.ensure(file.map.step_credits() + STORE_CREDITS)?;
        let mut step = MapChange {
            fs: self.fs,
            space: self.space,
            handle: &mut self.handle,
            inode: &mut file.inode,
        };
        let result = change(&mut file.map, &mut step)?;
        inode::store(self.fs, &mut self.handle, &file.inode)?;
        Ok(result)
    }

    /// Marks blocks as in use.
    pub(super) fn mark(&mut self, start: BlockNr, count: u64) -> Result<()> {
        self.ensure(self.space.free_credits(count))?;
        let blocks = start..BlockNr(start.0.saturating_add(count));
        self.space.mark(self.fs, &mut self.handle, blocks, true)
    }

    /// Marks an inode as in use.
    pub(super) fn take_inode(&mut self, number: InodeNr, is_directory: bool) -> Result<()> {
        let blank = self.space.blank_table_blocks(self.fs, number)?;
        for block in (blank.start.0..blank.end.0).map(BlockNr) {
            self.ensure(1)?;
            let zeros = vec![0; self.fs.geometry.block_bytes as usize];
            self.handle.create(block, &Unverified, zeros)?;
        }
        self.ensure(ALLOC_INODE_CREDITS)?;
        self.space.mark_inode(self.fs, &mut self.handle, number)?;
        if is_directory {
            self.count_group_of(number);
        }
        Ok(())
    }

    pub(super) fn count_group_of(&mut self, number: InodeNr) {
        let group = self.fs.geometry.group_of_inode(number);
        self.groups.extend(group.map(|(group, _)| group));
    }

    /// Prepares an inode for its first change: records what it counts for, and updates its checksum if
    /// that does not match.
    pub(super) fn touch(&mut self, number: InodeNr) -> Result<()> {
        if self.touched.contains_key(&number) {
            return Ok(());
        }
        if self.in_use(number)?.is_some() && inode::find(self.fs, number).is_err() {
            self.ensure(1)?;
            inode::edit_bytes(self.fs, &mut self.handle, number, |_| ())?;
        }
        let charge = match self.fs.quotas() {
            Some(_) => self.charge(number)?,
            None => None,
        };
        self.touched.insert(number, charge);
        Ok(())
    }

    /// Returns what an inode counts for; `None` if it is not in use.
    pub(super) fn charge(&self, number: InodeNr) -> Result<Option<Charge>> {
        let inode = self.in_use(number)?;
        Ok(inode.map(|inode| xattr::charge_of(self.fs, &inode)))
    }

    pub(super) fn edit(&mut self, number: InodeNr, change: impl FnOnce(&mut Inode)) -> Result<()> {
        self.ensure(1)?;
        inode::edit(self.fs, &mut self.handle, number, |inode| {
            change(inode);
            Ok(())
        })
    }

    /// Returns the mapping of a file for changes; `None` if there is no such file, or it has no extents: unless it is
    /// deleted, or the record of another inode of this number follows, the replay fails at its end.
    fn mapped(&mut self, number: InodeNr) -> Result<Option<Mapped>> {
        let Some(inode) = self.find_or_unnamed(number)? else {
            return Ok(None);
        };
        if !inode.flags.contains(InodeFlags::EXTENTS) {
            self.incomplete.insert(number);
            return Ok(None);
        }
        self.touch(number)?;
        Mapped::new(self.fs, inode).map(Some)
    }

    /// Returns the directory with this number, if there is one.
    pub(super) fn directory(&self, number: InodeNr) -> Result<Option<Inode>> {
        let inode = self.find(number)?;
        Ok(inode.filter(|inode| inode.kind == FileKind::Directory))
    }

    /// Returns the inode with this number, if it is valid and may have a name.
    pub(super) fn find(&self, number: InodeNr) -> Result<Option<Inode>> {
        if inode::is_reserved(self.fs, number) {
            return Ok(None);
        }
        let inode = self.valid(number)?;
        Ok(inode.filter(|inode| inode::unfit_to_name(inode).is_none()))
    }

    /// Returns the inode with this number, if it has a name or may get one.
    pub(super) fn find_or_unnamed(&self, number: InodeNr) -> Result<Option<Inode>> {
        match self.find(number)? {
            None => self.unnamed(number),
            found => Ok(found),
        }
    }

    /// Returns the file with this number, if it has no name and may get one: it was made without
    /// (`O_TMPFILE`), or records, maybe of an interrupted replay, removed its last one.
    pub(super) fn unnamed(&self, number: InodeNr) -> Result<Option<Inode>> {
        if inode::is_reserved(self.fs, number) {
            return Ok(None);
        }
        Ok(self.in_use(number)?.filter(|inode| {
            let holds_value = inode.flags.contains(InodeFlags::EA_INODE);
            inode.links == 0 && inode.kind != FileKind::Directory && !holds_value
        }))
    }

    /// Returns the inode with this number, if it is valid and the bitmap has it in use.
    pub(super) fn in_use(&self, number: InodeNr) -> Result<Option<Inode>> {
        if !self.space.is_inode_in_use(self.fs, number)? {
            return Ok(None);
        }
        self.valid(number)
    }

    /// Returns the inode with this number, if it is valid. The kernel writes an inode before its checksum,
    /// so that one in use may lack that after an interrupted replay.
    pub(super) fn valid(&self, number: InodeNr) -> Result<Option<Inode>> {
        let found = inode::find(self.fs, number);
        let Err(Error::Corrupt(_)) = found else {
            return found;
        };
        match self.space.is_inode_in_use(self.fs, number) {
            Ok(true) => inode::find_unsummed(self.fs, number),
            Ok(false) | Err(Error::Corrupt(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The error of blocks for a file that maps its blocks otherwise.
pub(super) fn without_extents(number: InodeNr) -> Error {
    let locus = Locus::inode(u64::from(number.get()));
    Corrupt::new(locus, FastCommitRule::NoExtents).into()
}

fn is_inline(inode: &Inode) -> bool {
    inode.kind == FileKind::Regular && inode.flags.contains(InodeFlags::INLINE_DATA)
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
    use platter_vfs::{FixedClock, Timestamp};
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::fs_context::tests::sample_writable;
    use crate::ondisk::inode::DiskInode;

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
        apply.record(&record).unwrap();
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
        match apply.record(record).and_then(|()| apply.finish()) {
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
            apply.record(&record).unwrap();
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
