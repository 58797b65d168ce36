//! Extents that are written anew: several short ones as one, or what is to be compressed.

use std::cell::Cell;
use std::io::IoSlice;
use std::ops::{ControlFlow, Range};

use platter_vfs::file::{self, Allocation, FileBlocks, Request};
use platter_vfs::{Condition, Defragment, Error, FileKind, Result};

use super::delalloc::{Ahead, Allocated, Stored, allocated};
use super::state::{Purpose, SECTOR_BITS, SECTOR_BYTES};
use super::{BtrfsInode, delalloc, file_extents, ordered_data, properties};
use crate::compress::Method;
use crate::file::{Backing, FileRun, Runs};
use crate::ondisk::LogicalAddr;
use crate::ondisk::file_extent::{COMPRESSED_BYTES_MAX, Compression};
use crate::ondisk::inode_item::InodeFlags;
use crate::txn::{data_extents, space};

/// The most extents that are replaced in one handle.
const REPLACED_MAX: usize = 1024;
/// The most bytes of an extent that is written.
const EXTENT_BYTES_MAX: u64 = 32 << 20;
/// The most bytes of its checksums, which one handle inserts.
const CHECKSUM_BYTES_MAX: u64 = 32 << 10;
/// Extents in a row that may find no space: each search for it may take several commits.
const FAILURES_MAX: u32 = 4;
/// Bytes that are read, compressed and written at once.
const COPIED_BYTES: u64 = 1 << 20;

/// What to compress by, and whether that is done though it may not be worth it.
type Compressing = (Method, bool);

/// Takes the chunks of a range, compressed where that makes them shorter.
type ChunkSink<'s> = dyn FnMut(Range<u64>, Option<Vec<u8>>) -> Result<ControlFlow<()>> + 's;

/// A file whose extents are written anew, and how they are to be.
#[derive(Debug)]
struct Defragmenter<'i> {
    inode: &'i BtrfsInode,
    /// Where its last sector ends.
    end: u64,
    /// What plain extents that are written are compressed by.
    method: Option<Compressing>,
    /// All is to be compressed by the method, not only what is written anyway.
    compresses_all: bool,
    /// Without checksums, nothing is compressed: extents that are stay as they are.
    is_summed: bool,
    /// Extents of so many bytes are long enough.
    enough_bytes: u64,
    /// The longest plain extent that is written.
    plain_bytes_max: u64,
    /// The longest group of several extents; less where space is short.
    group_bytes_max: Cell<u64>,
    /// The last extent that was probed, and whether none of its chunks compresses.
    probed: Cell<Option<(u64, bool)>>,
    written_bytes: Cell<u64>,
}

/// What an extent is written anew as.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    method: Option<Compressing>,
    /// It is to be written in any case.
    is_due: bool,
    is_encoded: bool,
}

/// Extents that follow each other, and may be written anew together.
#[derive(Debug)]
struct Group {
    start: u64,
    /// Where each ends.
    ends: Vec<u64>,
    method: Option<Compressing>,
    /// One of them is to be written in any case.
    is_due: bool,
    /// One of them is compressed.
    has_encoded: bool,
}

impl Group {
    /// One of none.
    fn at(start: u64) -> Self {
        Self {
            start,
            ends: Vec::new(),
            method: None,
            is_due: false,
            has_encoded: false,
        }
    }

    fn end(&self) -> u64 {
        self.ends.last().copied().unwrap_or(self.start)
    }

    /// Whether an extent is written as the others are.
    fn goes_with(&self, candidate: &Candidate) -> bool {
        let method = |compressing: Option<Compressing>| compressing.map(|(method, _)| method);
        method(self.method) == method(candidate.method)
    }

    fn push(&mut self, candidate: &Candidate, end: u64) {
        let was_forced = self.method.is_some_and(|(_, is_forced)| is_forced);
        self.method = candidate
            .method
            .map(|(method, is_forced)| (method, is_forced || was_forced));
        self.is_due |= candidate.is_due;
        self.has_encoded |= candidate.is_encoded;
        self.ends.push(end);
    }

    /// How many of the extents have a part of a range.
    fn count_in(&self, range: &Range<u64>) -> usize {
        let first = self.ends.partition_point(|end| *end <= range.start);
        let last = self.ends.partition_point(|end| *end < range.end);
        last + 1 - first.min(last)
    }

    /// The first of the extents, two at least, that together have at most so many bytes.
    fn fitting(&self, len_bytes: u64) -> Option<Range<u64>> {
        let mut start = self.start;
        for (index, end) in self.ends.iter().enumerate() {
            let limit = start.saturating_add(len_bytes);
            let count = self.ends.partition_point(|end| *end <= limit);
            if count > index + 1
                && let Some(last) = self.ends.get(count - 1)
            {
                return Some(start..*last);
            }
            start = *end;
        }
        None
    }

    /// Where the last extent begins.
    fn last_start(&self) -> u64 {
        let before = self.ends.iter().rev().nth(1);
        before.copied().unwrap_or(self.start)
    }
}

impl<'i> Defragmenter<'i> {
    fn new(inode: &'i BtrfsInode, named: Option<Method>, enough_bytes: u64) -> Result<Self> {
        let item = inode.item();
        let unsummed = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        let is_summed = !item.flags.intersects(unsummed);
        let named = named.filter(|_| is_summed);
        let checksum_bytes = checksum_bytes(inode) as u64;
        let sectors = CHECKSUM_BYTES_MAX / checksum_bytes.max(1);
        let plain_bytes_max = EXTENT_BYTES_MAX.min(sectors << SECTOR_BITS);
        Ok(Self {
            inode,
            end: inode.data.size_bytes().next_multiple_of(SECTOR_BYTES),
            method: match named {
                Some(method) => Some((method, true)),
                None => properties::compression(inode, &item)?,
            },
            compresses_all: named.is_some(),
            is_summed,
            enough_bytes,
            plain_bytes_max,
            group_bytes_max: Cell::new(plain_bytes_max),
            probed: Cell::new(None),
            written_bytes: Cell::new(0),
        })
    }

    /// Writes the extents of a range, those at its ends as a whole.
    fn run(&self, range: &Range<u64>) -> Result<()> {
        let mut at = range.start - range.start % SECTOR_BYTES;
        let end = range.end.min(self.end);
        if at >= end {
            return Ok(());
        }
        let first = self.run_at(at)?;
        if matches!(first.backing, Backing::Data { .. }) {
            at = first.file.start;
        }
        let mut is_short = false;
        let mut failures = 0;
        while at < end {
            let group = self.next_group(at..end)?;
            if !self.is_gain(&group) {
                at = group.end();
                continue;
            }
            match self.write(&group) {
                Ok(next) => (at, failures) = (next, 0),
                // An operation that ended the transaction is no lack of space for a group.
                Err(Error::Condition(Condition::NoSpace)) if self.inode.fs.can_write() => {
                    is_short = true;
                    if group.ends.len() < 2 {
                        failures += 1;
                        if failures == FAILURES_MAX {
                            break;
                        }
                        at = group.end();
                    } else {
                        self.group_bytes_max.set((group.end() - group.start) / 2);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        if is_short && self.written_bytes.get() == 0 {
            return Err(Condition::NoSpace.into());
        }
        Ok(())
    }

    /// What backs a byte. Nothing of the tree is held afterwards, so that contents can be read.
    fn run_at(&self, at: u64) -> Result<FileRun> {
        let inode = self.inode;
        Runs::new(inode.context(), inode.tree(), inode.id.number).at(at)
    }

    /// The first extents of a range that may be written together. Where there are none, a group of none ends where
    /// to go on.
    fn next_group(&self, range: Range<u64>) -> Result<Group> {
        let mut group = Group::at(range.start);
        let end_max = range.start.saturating_add(self.group_bytes_max.get());
        while group.end() < range.end && group.ends.len() < REPLACED_MAX {
            let run = self.run_at(group.end())?;
            let end = run.file.end.min(self.end);
            let is_first = group.ends.is_empty();
            match self.candidate(&run)? {
                Some(candidate) if is_first || (end <= end_max && group.goes_with(&candidate)) => {
                    group.push(&candidate, end);
                }
                None if is_first => return Ok(Group::at(end)),
                _ => break,
            }
        }
        Ok(group)
    }

    /// What an extent may be written anew as, if it may.
    fn candidate(&self, run: &FileRun) -> Result<Option<Candidate>> {
        let Backing::Data { compression, .. } = run.backing else {
            return Ok(None);
        };
        let is_encoded = compression != Compression::None;
        if run.file.end > self.end || (is_encoded && !self.is_summed) {
            return Ok(None);
        }
        let mut method = match (Method::of(compression), self.method) {
            (Some(own), Some((method, _)))
                if self.compresses_all || method.compression == own.compression =>
            {
                Some((method, true))
            }
            // Written plain, it would take more space.
            (Some(own), _) => Some((own, true)),
            (None, method) => method,
        };
        let len_bytes = run.file.end - run.file.start;
        let has_other_form = method.is_some_and(|(method, _)| method.compression != compression);
        let mut is_due = self.compresses_all && len_bytes > SECTOR_BYTES && has_other_form;
        if is_due && !is_encoded && len_bytes >= COMPRESSED_BYTES_MAX && self.resists(run)? {
            (method, is_due) = (None, false);
        }
        let capacity = match method {
            Some(_) => COMPRESSED_BYTES_MAX,
            None => self.plain_bytes_max,
        };
        let candidate = Candidate {
            method,
            is_due,
            is_encoded,
        };
        Ok((is_due || len_bytes < self.enough_bytes.min(capacity)).then_some(candidate))
    }

    /// Whether it is worth it to write a group anew.
    fn is_gain(&self, group: &Group) -> bool {
        let len_bytes = group.end() - group.start;
        let longest = match group.method {
            Some(_) => COMPRESSED_BYTES_MAX,
            None => self.plain_bytes_max,
        };
        group.is_due || len_bytes.div_ceil(longest) < group.ends.len() as u64
    }

    /// Whether no chunk of an extent compresses.
    fn resists(&self, run: &FileRun) -> Result<bool> {
        let Some(compressing) = self.method else {
            return Ok(true);
        };
        let start = run.file.start;
        if let Some((probed, resists)) = self.probed.get()
            && probed == start
        {
            return Ok(resists);
        }
        let mut resists = true;
        self.each_chunk(run.file.clone(), compressing, &mut |_, bytes| {
            resists = bytes.is_none();
            Ok(if resists {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        self.probed.set(Some((start, resists)));
        Ok(resists)
    }

    /// Compresses the chunks of a range, in their order.
    fn each_chunk(
        &self,
        range: Range<u64>,
        compressing: Compressing,
        sink: &mut ChunkSink<'_>,
    ) -> Result<()> {
        let mut offset = range.start;
        while offset < range.end {
            let end = range.end.min(offset + COPIED_BYTES);
            let bytes = whole_sectors(self.inode, offset..end)?;
            let bufs = [IoSlice::new(&bytes)];
            let data = Request {
                offset,
                end,
                bufs: &bufs,
            };
            let mut ahead = Ahead::default();
            let mut blocks = offset >> SECTOR_BITS..end >> SECTOR_BITS;
            while !blocks.is_empty() {
                let (next, output) = if blocks.end - blocks.start < 2 {
                    (blocks.end, None)
                } else {
                    let chunk = delalloc::compress_chunk(
                        self.inode,
                        &blocks,
                        &data,
                        compressing,
                        &mut ahead,
                    );
                    (chunk.blocks.end, chunk.bytes)
                };
                let chunk = blocks.start << SECTOR_BITS..next << SECTOR_BITS;
                if sink(chunk, output)?.is_break() {
                    return Ok(());
                }
                blocks.start = next;
            }
            offset = end;
        }
        Ok(())
    }

    /// Writes a group. Returns where to go on.
    fn write(&self, group: &Group) -> Result<u64> {
        let writing = self.inode.fs.transactions()?;
        let len_bytes = group.end() - group.start;
        let tree = self.inode.tree_id();
        space::reserve_data(writing, tree, len_bytes)?;
        let written = match group.method {
            Some(compressing) => self.write_chunks(group, compressing),
            None => self.write_as_one(group),
        };
        space::release_reserved_data(writing, tree, len_bytes);
        written
    }

    /// Writes as many extents of a group as one as there is space for in one piece.
    fn write_as_one(&self, group: &Group) -> Result<u64> {
        let handle = self.inode.fs.begin(0, Purpose::Free)?;
        let (address, found_bytes) =
            data_extents::allocate_part(&handle, group.end() - group.start)?;
        let fitting = group.fitting(found_bytes);
        let len_bytes = fitting.as_ref().map_or(0, |range| range.end - range.start);
        if len_bytes < found_bytes {
            let rest = LogicalAddr(address.0 + len_bytes);
            data_extents::release(handle.fs(), rest, found_bytes - len_bytes)?;
        }
        drop(handle);
        match fitting {
            Some(range) => {
                let end = range.end;
                self.move_to(group, range, address)?;
                Ok(end)
            }
            // The last one may go together with what follows.
            None => Ok(group.last_start()),
        }
    }

    /// Writes the chunks of a group. Those that do not compress go into one extent, if they follow each other.
    fn write_chunks(&self, group: &Group, compressing: Compressing) -> Result<u64> {
        let mut plain = group.start..group.start;
        self.each_chunk(
            group.start..group.end(),
            compressing,
            &mut |chunk, bytes| {
                match bytes {
                    Some(bytes) => {
                        self.write_plain(group, plain.clone())?;
                        self.write_compressed(group, chunk.clone(), (compressing.0, bytes))?;
                        plain = chunk.end..chunk.end;
                    }
                    // What is compressed otherwise stays so.
                    None if group.has_encoded => plain = chunk.end..chunk.end,
                    None => plain.end = chunk.end,
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        if group.ends.len() > 1 || plain.start > group.start {
            self.write_plain(group, plain)?;
        }
        Ok(group.end())
    }

    fn write_plain(&self, group: &Group, mut range: Range<u64>) -> Result<()> {
        while !range.is_empty() {
            let wanted = (range.end - range.start).min(self.plain_bytes_max);
            let handle = self.inode.fs.begin(0, Purpose::Free)?;
            let (address, found_bytes) = data_extents::allocate_part(&handle, wanted)?;
            let end = range.start + found_bytes;
            if found_bytes < wanted && group.count_in(&(range.start..end)) < 2 {
                // It would be in more pieces than it is.
                return data_extents::release(handle.fs(), address, found_bytes);
            }
            drop(handle);
            self.move_to(group, range.start..end, address)?;
            range.start = end;
        }
        Ok(())
    }

    fn write_compressed(
        &self,
        group: &Group,
        chunk: Range<u64>,
        (method, bytes): (Method, Vec<u8>),
    ) -> Result<()> {
        let blocks = blocks_of(&chunk);
        let new =
            match delalloc::allocate_compressed(self.inode, &blocks, method.compression, bytes) {
                // In several pieces it is not compressed.
                Err(Error::Condition(Condition::NoSpace)) if !group.has_encoded => {
                    return self.write_plain(group, chunk);
                }
                placed => placed?,
            };
        let bytes = new.encoded().unwrap_or_default();
        let written = ordered_data::write(&self.inode.fs, new.address, &[IoSlice::new(bytes)]);
        self.map(group, new, written)
    }

    /// Writes the contents of a range to space that was allocated for them.
    fn move_to(&self, group: &Group, range: Range<u64>, address: LogicalAddr) -> Result<()> {
        let blocks = blocks_of(&range);
        let stored = Stored::Plain { resists: false };
        let new = allocated(&blocks, blocks.end - blocks.start, address, stored);
        let written = self.copy(range, address);
        self.map(group, new, written)
    }

    fn copy(&self, range: Range<u64>, address: LogicalAddr) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + COPIED_BYTES);
            let bytes = whole_sectors(self.inode, at..end)?;
            let to = LogicalAddr(address.0 + (at - range.start));
            ordered_data::write(&self.inode.fs, to, &[IoSlice::new(&bytes)])?;
            at = end;
        }
        Ok(())
    }

    /// Makes the file refer to what was written instead of extents of a group.
    fn map(&self, group: &Group, new: Allocated, written: Result<()>) -> Result<()> {
        let start = new.run().first << SECTOR_BITS;
        let len_bytes = new.len_bytes();
        let replaced = group.count_in(&(start..start + len_bytes));
        let sectors = usize::try_from(new.disk_bytes() >> SECTOR_BITS).unwrap_or(usize::MAX);
        let checksum_bytes = sectors.saturating_mul(checksum_bytes(self.inode));
        let credits = file_extents::replacing_credits(self.inode, replaced, checksum_bytes);
        delalloc::map_or_give_back(self.inode, new, written, |new| {
            delalloc::map_stored(self.inode, new, 0, (credits, Purpose::Update))
        })?;
        self.written_bytes.update(|bytes| bytes + len_bytes);
        Ok(())
    }

    /// Compresses contents that are in the item, if they are shorter then.
    fn compress_inline(&self) -> Result<()> {
        let run = self.run_at(0)?;
        let (Backing::Inline { compression, .. }, Some((method, _))) = (&run.backing, self.method)
        else {
            return Ok(());
        };
        let size = self.inode.data.size_bytes();
        let is_regular = self.inode.kind == FileKind::Regular;
        if !is_regular || *compression == method.compression || run.file.end < size {
            return Ok(());
        }
        let mut contents = whole_sectors(self.inode, 0..SECTOR_BYTES)?;
        contents.truncate(usize::try_from(size).unwrap_or(contents.len()));
        let form = delalloc::inline_form(self.inode, &contents, Some((method, true)));
        let Some((form, bytes)) = form.filter(|(form, _)| *form == method.compression) else {
            return Ok(());
        };
        data_extents::use_compression(self.inode.fs.transactions()?, form);
        let new = allocated(
            &(0..1),
            1,
            LogicalAddr(0),
            Stored::Inline(size, form, bytes),
        );
        self.map(&Group::at(0), new, Ok(()))
    }
}

/// Writes extents of a range anew. Returns how many bytes that were.
pub(super) fn defragment_file(inode: &BtrfsInode, request: &Defragment) -> Result<u64> {
    let named = request.compression.as_deref().map(Method::parse);
    if named == Some(None) {
        return Err(Condition::InvalidArgument.into());
    }
    inode.check_write()?;
    let _order = inode.order.write();
    file::write_back(inode)?;
    let defragmenter = Defragmenter::new(inode, named.flatten(), request.extent_bytes)?;
    let begins = request.range.start < SECTOR_BYTES && !request.range.is_empty();
    if defragmenter.compresses_all && begins {
        defragmenter.compress_inline()?;
    }
    defragmenter.run(&request.range)?;
    Ok(defragmenter.written_bytes.get())
}

/// The contents of whole sectors, with zeros after the end of the file.
fn whole_sectors(inode: &BtrfsInode, range: Range<u64>) -> Result<Vec<u8>> {
    let len = usize::try_from(range.end - range.start).unwrap_or_default();
    let mut bytes = vec![0; len];
    let expected = range.end.min(inode.data.size_bytes()) - range.start;
    if inode.pages.read_once(inode, range.start, &mut bytes)? as u64 != expected {
        return Err(Condition::Stale.into());
    }
    Ok(bytes)
}

/// Bytes of the checksum of a sector.
fn checksum_bytes(inode: &BtrfsInode) -> usize {
    inode.context().superblock.checksum_kind.len_bytes()
}

fn blocks_of(range: &Range<u64>) -> Range<u64> {
    range.start >> SECTOR_BITS..range.end >> SECTOR_BITS
}
