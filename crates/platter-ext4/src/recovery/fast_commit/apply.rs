//! Applies the records of fast commits in their order.
//!
//! A record whose inode or directory does not exist is skipped: a later record undid it before it
//! reached the disk. Link counts of files come from their inode records; those of directories are
//! recounted at the end, since directories have no such records.

use std::collections::BTreeSet;
use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result};
use zerocopy::FromBytes;

use super::file_map::FileMap;
use super::inode_slot;
use super::names::Names;
use super::space::ReplayAllocator;
use crate::FsContext;
use crate::ondisk::extent::Extent;
use crate::ondisk::features::Incompat;
use crate::ondisk::inode::DiskInode;
use crate::ondisk::jbd2::fast_commit::{AddRange, Entry, FastCommitRule, Record};
use crate::ondisk::xattr::{DiskXattrHeader, XattrBlockVerifier};
use crate::ondisk::{BlockNr, FileBlock, Inode, InodeFlags, InodeNr};

/// Maximum link count of a directory before it is stored as 1.
const DIRECTORY_LINKS_MAX: u32 = 65_000;
/// Number of records after which changes are written to the device.
const RECORDS_IN_MEMORY_MAX: u32 = 256;

/// A replay of fast commits in progress.
#[derive(Debug)]
pub(super) struct Apply<'v> {
    fs: &'v FsContext,
    space: ReplayAllocator<'v>,
    /// Inodes whose blocks are recounted at the end.
    changed: BTreeSet<u32>,
    /// Directories whose links are recounted at the end.
    recount: BTreeSet<u32>,
    /// The mapping that records are changing, not stored yet.
    open: Option<FileMap>,
    in_memory: u32,
}

impl<'v> Apply<'v> {
    /// Creates a replay onto `volume` that does not allocate `regions`, which records map.
    pub(super) fn new(fs: &'v FsContext, regions: Vec<Range<u64>>) -> Self {
        Self {
            fs,
            space: ReplayAllocator::new(fs, regions),
            changed: BTreeSet::new(),
            recount: BTreeSet::new(),
            open: None,
            in_memory: 0,
        }
    }

    /// Applies one record.
    pub(super) fn record(&mut self, record: &Record<'_>) -> Result<()> {
        if let Record::Create(entry) | Record::Link(entry) | Record::Unlink(entry) = *record {
            check_name(&entry)?;
        }
        match *record {
            Record::Head { .. } | Record::Pad | Record::Tail { .. } => {}
            Record::AddRange(range) => self.add_range(&range)?,
            Record::DelRange { inode, first, len } => self.del_range(inode, first, len)?,
            Record::Inode { inode, raw } => self.inode(inode, raw)?,
            Record::Create(entry) => self.create(&entry)?,
            Record::Link(entry) => self.link(&entry)?,
            Record::Unlink(entry) => self.unlink(&entry)?,
        }
        self.in_memory += 1;
        if self.in_memory >= RECORDS_IN_MEMORY_MAX {
            self.close_map()?;
            self.write()?;
        }
        Ok(())
    }

    /// Recounts, and writes all changes to the device.
    pub(super) fn finish(mut self) -> Result<()> {
        self.close_map()?;
        for number in std::mem::take(&mut self.recount) {
            self.count_links(number)?;
        }
        for number in std::mem::take(&mut self.changed) {
            self.count_space(number)?;
        }
        self.space.count_directories()?;
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        self.in_memory = 0;
        self.fs.buffers().write_dirty(0..u64::MAX)?;
        Ok(())
    }

    fn add_range(&mut self, range: &AddRange) -> Result<()> {
        if !self.fs.geometry.contains(range.start, u64::from(range.len))
            || range.first.checked_add(range.len).is_none()
        {
            let locus = Locus::block(range.start.0).of_inode(u64::from(range.inode.get()));
            return Err(Corrupt::new(locus, FastCommitRule::Range).into());
        }
        let extent = Extent {
            first: range.first,
            count: range.len,
            start: range.start,
            unwritten: range.unwritten,
        };
        if !self.open_map(range.inode)? {
            return Ok(());
        }
        match &mut self.open {
            Some(map) => map.insert(&self.space, extent),
            None => Ok(()),
        }
    }

    fn del_range(&mut self, inode: InodeNr, first: FileBlock, len: u32) -> Result<()> {
        if !self.open_map(inode)? {
            return Ok(());
        }
        match &mut self.open {
            Some(map) => map.remove(&self.space, first, len),
            None => Ok(()),
        }
    }

    fn inode(&mut self, number: InodeNr, raw: &[u8]) -> Result<()> {
        self.close_map()?;
        let Ok((new, _)) = DiskInode::ref_from_prefix(raw) else {
            return Ok(());
        };
        let was_taken = self.space.is_inode_taken(number)?;
        let old = inode_slot::find(self.fs, number)?.filter(|_| was_taken);
        let same = |old: &Inode| old.generation == new.generation.get();
        let keeps_map = old.as_ref().is_some_and(same);
        if let Some(old) = old.filter(|old| !same(old)) {
            self.free_contents(old)?;
        }
        let mut bytes = if keeps_map {
            inode_slot::read(self.fs, number)?
        } else {
            vec![0; usize::from(self.fs.geometry.inode_bytes)]
        };
        let block = match DiskInode::ref_from_prefix(&bytes) {
            Ok((disk, _)) if keeps_map && !carries_block(new) => disk.block,
            _ if carries_block(new) => new.block,
            _ => inode_slot::empty_map(flags_of(new)),
        };
        if let Some(slot) = bytes.get_mut(..raw.len()) {
            slot.copy_from_slice(raw);
        }
        let is_directory =
            FileKind::from_mode(u32::from(new.mode.get())) == Some(FileKind::Directory);
        if let Ok((disk, _)) = DiskInode::mut_from_prefix(&mut bytes) {
            disk.block = block;
        }
        // First the slot, then the bitmap: allocating the inode zeroes unused slots before it.
        self.space.take_inode(number, is_directory)?;
        inode_slot::write(self.fs, number, &mut bytes)?;
        self.changed.insert(number.get());
        Ok(())
    }

    fn create(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.close_map()?;
        let Some(inode) = inode_slot::find(self.fs, entry.inode)? else {
            let locus = Locus::inode(u64::from(entry.inode.get()));
            return Err(Corrupt::new(locus, FastCommitRule::Missing).into());
        };
        let Some(parent) = self.directory(entry.parent)? else {
            return Ok(());
        };
        let kind = inode.kind;
        self.space
            .take_inode(entry.inode, kind == FileKind::Directory)?;
        if kind == FileKind::Directory {
            Names::open(self.fs, &self.space, inode)?.begin(entry.parent)?;
            self.changed.insert(entry.inode.get());
            self.recount.insert(entry.inode.get());
            self.recount.insert(entry.parent.get());
        } else {
            inode_slot::edit(self.fs, entry.inode, |disk| disk.links = 1.into())?;
        }
        self.insert_name(parent, entry, kind)?;
        Ok(())
    }

    fn link(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.close_map()?;
        let Some(inode) = inode_slot::find(self.fs, entry.inode)? else {
            return Ok(());
        };
        let Some(parent) = self.directory(entry.parent)? else {
            return Ok(());
        };
        if !self.insert_name(parent, entry, inode.kind)? {
            return Ok(());
        }
        if inode.kind == FileKind::Directory {
            self.recount.insert(entry.parent.get());
            return Ok(());
        }
        inode_slot::edit(self.fs, entry.inode, |disk| {
            disk.links = disk.links.get().saturating_add(1).into();
        })
    }

    fn unlink(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.close_map()?;
        let Some(inode) = inode_slot::find(self.fs, entry.inode)? else {
            return Ok(());
        };
        let Some(parent) = self.directory(entry.parent)? else {
            return Ok(());
        };
        self.changed.insert(entry.parent.get());
        let mut names = Names::open(self.fs, &self.space, parent)?;
        let Some(found) = names.find(entry.name)? else {
            return Ok(());
        };
        // A name that refers to another inode by now was reused.
        let is_same = found.inode == entry.inode;
        if is_same {
            names.remove(&found)?;
        }
        if inode.kind != FileKind::Directory {
            return self.drop_link(inode);
        }
        self.recount.insert(entry.parent.get());
        let (any, _) = Names::open(self.fs, &self.space, inode.clone())?.count()?;
        if any || !is_same {
            return Ok(());
        }
        self.delete(inode)
    }

    fn insert_name(&mut self, parent: Inode, entry: &Entry<'_>, kind: FileKind) -> Result<bool> {
        self.changed.insert(entry.parent.get());
        Names::open(self.fs, &self.space, parent)?.insert(entry.name, entry.inode, kind)
    }

    fn drop_link(&mut self, inode: Inode) -> Result<()> {
        if inode.links <= 1 {
            return self.delete(inode);
        }
        inode_slot::edit(self.fs, inode.number, |disk| {
            disk.links = disk.links.get().saturating_sub(1).into();
        })
    }

    /// Deletes an unlinked inode.
    fn delete(&mut self, inode: Inode) -> Result<()> {
        let (number, kind) = (inode.number, inode.kind);
        let changed_seconds = inode.changed.seconds;
        self.free_contents(inode)?;
        self.space.free_inode(number, kind == FileKind::Directory)?;
        self.changed.remove(&number.get());
        self.recount.remove(&number.get());
        // The deletion time is not recorded; that of the last change is the nearest.
        let deleted = u32::try_from(changed_seconds).unwrap_or(u32::MAX).max(1);
        inode_slot::edit(self.fs, number, |disk| {
            let generation = disk.generation;
            *disk = DiskInode {
                block: inode_slot::empty_map(flags_of(disk)),
                links: 0.into(),
                size_lo: 0.into(),
                size_hi: 0.into(),
                blocks_lo: 0.into(),
                blocks_hi: 0.into(),
                xattr_block_lo: 0.into(),
                xattr_block_hi: 0.into(),
                deleted: deleted.into(),
                generation,
                ..*disk
            };
        })
    }

    fn free_contents(&mut self, inode: Inode) -> Result<()> {
        if let Some(block) = inode.xattr_block {
            self.drop_xattr_block(block)?;
        }
        if has_map(self.fs, &inode) {
            FileMap::load(self.fs, inode)?.free_all(&self.space)?;
        }
        Ok(())
    }

    /// Drops a reference to an attribute block.
    fn drop_xattr_block(&self, block: BlockNr) -> Result<()> {
        let features = self.fs.geometry.features;
        let seed = features
            .has_metadata_csum()
            .then_some(self.fs.geometry.checksum_seed);
        let verifier = XattrBlockVerifier {
            checksum_seed: seed,
            has_ea_inode: features.incompat.contains(Incompat::EA_INODE),
        };
        let mut bytes = self.fs.read_block(block, &verifier)?.to_vec();
        let Ok((header, _)) = DiskXattrHeader::mut_from_prefix(&mut bytes) else {
            return Ok(());
        };
        let references = header.references.get();
        if references <= 1 {
            return self.space.assign(block, 1, false);
        }
        header.references = references.saturating_sub(1).into();
        self.fs.buffers().publish(block.0, bytes, &verifier)?;
        Ok(())
    }

    /// Returns the directory with this number, if there is one.
    fn directory(&self, number: InodeNr) -> Result<Option<Inode>> {
        let inode = inode_slot::find(self.fs, number)?;
        Ok(inode.filter(|inode| inode.kind == FileKind::Directory))
    }

    /// Opens the mapping of a file for modification; false if there is no such file.
    fn open_map(&mut self, number: InodeNr) -> Result<bool> {
        if self
            .open
            .as_ref()
            .is_some_and(|map| map.inode().number == number)
        {
            return Ok(true);
        }
        self.close_map()?;
        let Some(inode) = inode_slot::find(self.fs, number)? else {
            return Ok(false);
        };
        self.open = Some(FileMap::load(self.fs, inode)?);
        self.changed.insert(number.get());
        Ok(true)
    }

    fn close_map(&mut self) -> Result<()> {
        match self.open.take() {
            Some(mut map) => map.store(self.fs, &self.space),
            None => Ok(()),
        }
    }

    /// Recounts a directory's links: two, and one for each subdirectory.
    fn count_links(&self, number: u32) -> Result<()> {
        let Some(inode) = InodeNr::new(number)
            .map(|number| self.directory(number))
            .transpose()?
            .flatten()
        else {
            return Ok(());
        };
        let number = inode.number;
        let (_, directories) = Names::open(self.fs, &self.space, inode)?.count()?;
        let links = directories.saturating_add(2);
        let links = if links >= DIRECTORY_LINKS_MAX {
            1
        } else {
            links
        };
        let links = u16::try_from(links).unwrap_or(1);
        inode_slot::edit(self.fs, number, |disk| disk.links = links.into())
    }

    /// Allocates all blocks of a file, some of which may have belonged to another file before, and
    /// updates `i_blocks`.
    fn count_space(&self, number: u32) -> Result<()> {
        let found = InodeNr::new(number).map(|number| inode_slot::find(self.fs, number));
        let Some(inode) = found.transpose()?.flatten() else {
            return Ok(());
        };
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        let (flags, number) = (inode.flags, inode.number);
        let geometry = &self.fs.geometry;
        let mut clusters = u64::from(inode.xattr_block.is_some());
        if let Some(block) = inode.xattr_block {
            self.space.assign(block, 1, true)?;
        }
        if has_map(self.fs, &inode) {
            let map = FileMap::load(self.fs, inode)?;
            map.take_all(&self.space)?;
            clusters += map.clusters(geometry.cluster_blocks);
        } else if inode.kind == FileKind::Regular || inode.kind == FileKind::Directory {
            // Indirect blocks have no records; their count is unchanged.
            return Ok(());
        }
        let blocks = clusters * u64::from(geometry.cluster_blocks);
        let units = if flags.contains(InodeFlags::HUGE_FILE) {
            blocks
        } else {
            blocks * u64::from(geometry.block_bytes / 512)
        };
        let [u0, u1, u2, u3, u4, u5, ..] = units.to_le_bytes();
        inode_slot::edit(self.fs, number, |disk| {
            disk.blocks_lo = u32::from_le_bytes([u0, u1, u2, u3]).into();
            disk.blocks_hi = u16::from_le_bytes([u4, u5]).into();
        })
    }
}

fn check_name(entry: &Entry<'_>) -> Result<(), Corrupt<FastCommitRule>> {
    let is_dot = matches!(entry.name, b"." | b"..");
    if is_dot || entry.name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        let locus = Locus::inode(u64::from(entry.parent.get()));
        return Err(Corrupt::new(locus, FastCommitRule::Name));
    }
    Ok(())
}

/// Whether an inode is mapped by extents.
fn has_map(fs: &FsContext, inode: &Inode) -> bool {
    let mapped = match inode.kind {
        FileKind::Regular | FileKind::Directory => true,
        FileKind::Symlink => !inode.has_target_inside(&fs.geometry),
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => false,
    };
    mapped
        && inode.flags.contains(InodeFlags::EXTENTS)
        && !inode.flags.contains(InodeFlags::INLINE_DATA)
}

fn flags_of(disk: &DiskInode) -> InodeFlags {
    InodeFlags::from_bits_retain(disk.flags.get())
}

/// Whether `i_block` of an inode record is data instead of a block mapping, which such a record
/// does not contain: inline data, a fast symlink target, a device number.
fn carries_block(disk: &DiskInode) -> bool {
    let flags = flags_of(disk);
    if flags.contains(InodeFlags::INLINE_DATA) {
        return true;
    }
    match FileKind::from_mode(u32::from(disk.mode.get())) {
        Some(FileKind::Symlink) => !flags.contains(InodeFlags::EXTENTS),
        Some(FileKind::CharDevice | FileKind::BlockDevice) => true,
        Some(FileKind::Regular | FileKind::Directory | FileKind::Fifo | FileKind::Socket)
        | None => false,
    }
}

#[cfg(test)]
mod tests {
    use platter_vfs::Error;

    use super::*;
    use crate::fs_context::tests::sample_fs;
    use crate::ondisk::inode::tests::sample;
    use platter_ondisk::Rule;

    fn number(number: u32) -> InodeNr {
        InodeNr::new(number).unwrap()
    }

    fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
        match result {
            Err(Error::Corrupt(report)) => report.rule.into_owned(),
            other => panic!("expected corruption, got {other:?}"),
        }
    }

    /// Returns the error of a record on a filesystem without inodes.
    fn refusal(record: &Record<'_>) -> String {
        let fs = sample_fs(&[]);
        text(Apply::new(&fs, Vec::new()).record(record))
    }

    fn file(fs: &FsContext, mode: u16) -> Inode {
        let bytes = sample(&fs.geometry, number(12), |disk, _| {
            disk.mode = mode.into();
        });
        Inode::decode(&bytes, number(12), &fs.geometry).unwrap()
    }

    #[test]
    fn range_outside_the_filesystem_is_refused() {
        let range = AddRange {
            inode: number(12),
            first: FileBlock(0),
            len: 1,
            start: BlockNr(1 << 40),
            unwritten: false,
        };
        assert_eq!(
            refusal(&Record::AddRange(range)),
            FastCommitRule::Range.text()
        );
        let range = AddRange {
            first: FileBlock::MAX,
            start: BlockNr(100),
            ..range
        };
        assert_eq!(
            refusal(&Record::AddRange(range)),
            FastCommitRule::Range.text()
        );
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

    #[test]
    fn file_without_extents_is_refused_ranges() {
        let fs = sample_fs(&[]);
        let result = FileMap::load(&fs, file(&fs, 0o10_0644));
        assert_eq!(text(result), FastCommitRule::NoExtents.text());
    }

    #[test]
    fn directory_without_dots_keeps_its_index() {
        let fs = sample_fs(&[]);
        let space = ReplayAllocator::new(&fs, Vec::new());
        let mut names = Names::open(&fs, &space, file(&fs, 0o4_0755)).unwrap();
        assert_eq!(text(names.forget_index()), FastCommitRule::Parent.text());
    }

    #[test]
    fn name_of_an_unused_inode_is_refused() {
        let mut table = vec![0; 1024];
        let (desc, _) =
            crate::ondisk::group_desc::DiskGroupDesc::mut_from_prefix(&mut table).unwrap();
        desc.block_bitmap_lo = 3.into();
        desc.inode_bitmap_lo = 4.into();
        desc.inode_table_lo = 5.into();
        let fs = sample_fs(&[(2, &table)]);
        let entry = Entry {
            parent: InodeNr::ROOT,
            inode: number(12),
            name: b"name",
        };
        let result = Apply::new(&fs, Vec::new()).record(&Record::Create(entry));
        assert_eq!(text(result), FastCommitRule::Missing.text());
    }
}
