//! The contents of regular files of the memory filesystem: the block mapping that [`platter_vfs::file`] reads
//! and writes through the page cache.

use platter_vfs::inode::InodeLock;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use platter_cache::page::WritableSpace;
use platter_cache::{AddressSpace, Mapping};

use super::content::{Content, FILE_BYTES_MAX, PAGES_MAX};
use super::disk::{Frame, PAGE_BITS, PAGE_BYTES};
use super::inode::MemInode;
use platter_vfs::file::{
    Allocation, Backing, BlockRuns, FileBlocks, FileData, FileEnd, FileMap, FileRun, Request,
    Target, write_back_files, write_runs,
};
use platter_vfs::permission::{APPEND_ONLY, IMMUTABLE};
use platter_vfs::writing::{InodeLists, Invalidations, ListedInode, Reach};
use platter_vfs::{Condition, Error, InodeId, Place, Result};

impl MemInode {
    fn content<T>(&self, read: impl FnOnce(&Content) -> T) -> Result<T> {
        self.read(|node| node.content().map(read))
    }

    /// Changes the block mapping, and counts the pages that came or went.
    pub(super) fn change_content<T>(&self, change: impl FnOnce(&mut Content) -> T) -> Result<T> {
        let mut nodes = self.shared.nodes.write();
        nodes.change_content(self.number, change)
    }

    /// Says that the cache has contents that the block mapping lacks.
    pub(super) fn add_to_dirty(&self) {
        let reach = {
            let nodes = self.shared.nodes.read();
            let node = nodes.get(self.number);
            Reach::new(node.links, node.may_get_first_name)
        };
        let (shared, is_closed) = (&self.shared, || self.shared.is_closed());
        shared
            .dirty
            .mark(self, reach, |id| shared.in_use.get(id), is_closed);
    }
}

impl ListedInode for MemInode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn lists(&self) -> &InodeLists {
        &self.lists
    }
}

/// Pages of the disk that were allocated and are not mapped yet.
#[derive(Debug)]
pub(super) struct Allocated {
    run: FileRun,
    /// The bytes of each page, if they are equal: then one page of the disk has them all.
    equal: Option<Box<[u8]>>,
}

impl Allocated {
    /// Pages of the disk, at least one.
    fn page_count(&self) -> u64 {
        self.equal.as_ref().map_or(self.run.count, |_| 1)
    }
}

impl Allocation for Allocated {
    fn run(&self) -> FileRun {
        self.run
    }

    fn encoded(&self) -> Option<&[u8]> {
        self.equal.as_deref()
    }
}

/// The bytes of the first page, if the next ones are equal to it, and how many those are.
fn equal_pages(bufs: &[IoSlice<'_>]) -> Option<(Box<[u8]>, u64)> {
    let mut bytes = bufs.iter().flat_map(|buf| buf.iter().copied());
    let first: Box<[u8]> = bytes.by_ref().take(PAGE_BYTES).collect();
    let equal = bytes
        .zip(first.iter().cycle())
        .take_while(|(byte, first)| byte == *first)
        .count();
    let pages = 1 + (equal / PAGE_BYTES) as u64;
    (pages > 1).then_some((first, pages))
}

impl AddressSpace for MemInode {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.data.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let _mapping = self.data.mapping.read();
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let pages = offset >> PAGE_BITS..(offset + len) >> PAGE_BITS;
        let written: Vec<_> = self.content(|content| {
            let written = content.written_in(pages);
            let written = written.map(|(page, address)| ((page << PAGE_BITS) - offset, address));
            written.collect()
        })?;
        self.shared.disk.read(&written, bufs);
        // What lies past the end in its page is no part of the file.
        let mut left = self.data.size_bytes().saturating_sub(offset);
        for buf in bufs {
            let kept = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            buf[kept..].fill(0);
            left -= kept as u64;
        }
        Ok(())
    }
}

impl WritableSpace for MemInode {
    fn extend(&self, end: u64) {
        self.data.extend(end);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        write_runs(self, offset, bufs)
    }
}

impl BlockRuns for MemInode {
    fn block_bits(&self) -> u32 {
        PAGE_BITS
    }

    fn run(&self, block: u64) -> Result<Option<FileRun>> {
        if block >= PAGES_MAX {
            return Ok(None);
        }
        self.content(|content| Some(content.run(block, PAGES_MAX)))
    }

    fn next_delayed(&self, block: u64) -> Option<Range<u64>> {
        self.content(|content| content.next_delayed(block)).ok()?
    }
}

impl FileMap for MemInode {
    fn filesystem_blocks(&self) -> u64 {
        self.shared.limits.pages
    }

    /// Addresses are of no device.
    fn place(&self, _: u64) -> Option<Place> {
        None
    }

    fn too_many_blocks(&self) -> Error {
        Condition::InvalidArgument.into()
    }
}

impl FileBlocks for MemInode {
    type Placement = ();
    type Allocation = Allocated;

    fn pages(&self) -> &Mapping<Error> {
        &self.pages
    }

    fn data(&self) -> &FileData<()> {
        &self.data
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.lock
    }

    fn invalidations(&self) -> &Invalidations {
        &self.shared.invalidations
    }

    fn size_bytes_max(&self) -> u64 {
        FILE_BYTES_MAX
    }

    fn size_on_disk(&self) -> u64 {
        self.content(Content::size_bytes).unwrap_or_default()
    }

    fn check_write(&self) -> Result<()> {
        let nodes = self.shared.nodes.read();
        if nodes.read_only {
            return Err(Condition::ReadOnly.into());
        }
        let node = nodes.get(self.number);
        if node.flags & IMMUTABLE != 0 {
            return Err(Condition::NotPermitted.into());
        }
        node.content().map(|_| ())
    }

    fn is_sync(&self) -> bool {
        false
    }

    fn is_append_only(&self) -> bool {
        self.shared.nodes.read().get(self.number).flags & APPEND_ONLY != 0
    }

    fn throttle(&self) {
        let shared = &self.shared;
        shared.dirty.throttle(&shared.budget, write_back_files);
    }

    fn note_dirty(&self) {
        self.add_to_dirty();
    }

    fn note_failure(&self, error: &Error) {
        self.shared.dirty.record_failure(error);
    }

    fn write_target(&self, blocks: Range<u64>) -> Result<(Target, u64)> {
        self.content(|content| content.write_target(&blocks))
    }

    fn reserve(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut nodes = self.shared.nodes.write();
        let missing = nodes.get(self.number).content()?.pages_missing(&blocks);
        nodes.must_have_pages(missing)?;
        nodes.change_content(self.number, |content| content.delay(blocks))
    }

    fn release(&self, blocks: Range<u64>) {
        // Only a regular file has blocks to release.
        let _ = self.change_content(|content| content.release(blocks));
    }

    fn allocate(&self, blocks: Range<u64>, data: &Request<'_>, (): &mut ()) -> Result<Allocated> {
        let mut run = FileRun {
            first: blocks.start,
            count: blocks.end - blocks.start,
            backing: Backing::Hole,
        };
        let equal = equal_pages(&data.blocks(&run, PAGE_BITS)).map(|(page, count)| {
            run.count = count;
            page
        });
        let mut allocated = Allocated { run, equal };
        let start = self.shared.disk.allocate(allocated.page_count());
        allocated.run.backing = Backing::Written(start);
        Ok(allocated)
    }

    fn give_back(&self, allocated: Allocated) -> Result<()> {
        if let Backing::Written(start) = allocated.run.backing {
            self.shared.disk.free(start, allocated.page_count());
        }
        Ok(())
    }

    fn map_written(&self, new: &mut Allocated, end: u64, _: Option<&Request<'_>>) -> Result<()> {
        self.change_content(|content| {
            content.map_written(&self.shared.disk, &new.run, new.equal.is_some());
            content.extend(end);
        })
    }

    fn note_placed(&self, (): &mut (), _: &FileRun) {}

    fn convert_written(&self, run: &FileRun, end: u64) -> Result<()> {
        self.change_content(|content| {
            content.convert_written(run.first..run.end());
            content.extend(end);
        })
    }

    fn write_device(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        Ok(self.shared.disk.write(at, bufs)?)
    }

    fn overwrite(&self, request: &Request<'_>, run: &FileRun) -> Result<()> {
        let disk = &self.shared.disk;
        for first in run.first..run.end() {
            let own = self.content(|content| content.own_address(first))?;
            let address = own.unwrap_or_else(|| disk.allocate(1));
            let page = FileRun {
                first,
                count: 1,
                backing: Backing::Written(address),
            };
            disk.write(address, &request.blocks(&page, PAGE_BITS))?;
            if own.is_none() {
                let frame = Arc::new(Frame::new(disk, address));
                self.change_content(|content| content.replace(first, frame))?;
            }
        }
        Ok(())
    }

    fn extend_on_disk(&self, end: FileEnd) -> Result<()> {
        self.change_content(|content| {
            if self.data.is_current(end) {
                content.extend(end.offset.min(self.data.size_bytes()));
            }
        })
    }

    fn touch(&self) -> Result<()> {
        let now = self.now();
        self.shared.nodes.write().touch_contents(self.number, now);
        Ok(())
    }

    fn set_larger_size(&self, size: u64) -> Result<()> {
        self.change_content(|content| content.set_end(size))?;
        self.touch()
    }

    fn prepare_truncate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn is_truncation_left(&self) -> bool {
        false
    }

    fn truncate_blocks(&self, size: u64, first: u64) -> Result<()> {
        self.change_content(|content| {
            content.set_end(size);
            content.unmap(first..u64::MAX);
            self.data.truncate(size);
        })?;
        self.touch()
    }

    fn abort(&self, _: &Error) {
        self.shared.nodes.write().read_only = true;
    }

    fn punch_blocks(&self, blocks: Range<u64>) -> Result<()> {
        self.change_content(|content| content.unmap(blocks))
    }

    fn convert_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        self.change_content(|content| content.convert_unwritten(blocks))
    }

    fn allocate_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        let mut nodes = self.shared.nodes.write();
        let missing = nodes.get(self.number).content()?.pages_missing(&blocks);
        nodes.must_have_pages(missing)?;
        let disk = &self.shared.disk;
        nodes.change_content(self.number, |content| content.allocate(disk, blocks))
    }

    fn collapse_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        self.change_content(|content| {
            content.collapse(blocks);
            content.set_end(size);
            self.data.truncate(size);
        })
    }

    fn may_shift_up(&self, count: u64) -> Result<bool> {
        self.content(|content| {
            let last = content.pages.last_key_value();
            last.is_none_or(|(&last, _)| last < PAGES_MAX.saturating_sub(count))
        })
    }

    fn insert_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        self.change_content(|content| {
            content.insert(&blocks);
            content.set_end(size);
            self.data.set_size(size);
        })
    }

    fn commit_mapping(&self) -> Result<()> {
        Ok(())
    }

    fn commit(&self, _: bool) -> Result<()> {
        Ok(())
    }
}
