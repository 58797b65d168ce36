//! Ranges that files of the memory filesystem share or exchange. Pages are copied, since no two files
//! hold one.

use std::collections::BTreeSet;
use std::ops::Range;

use super::content::{Content, Page};
use super::disk::{PAGE, PAGE_BITS};
use super::inode::MemInode;
use super::node::Number;
use platter_vfs::file;
use platter_vfs::ranges::{Deduped, Exchange};
use platter_vfs::{Condition, Inode, Result};

/// Makes `range` of the source what `target` has at byte `to`.
pub(super) fn clone(
    target: &MemInode,
    source: &dyn Inode,
    range: Range<u64>,
    to: u64,
) -> Result<()> {
    with_both(target, source, |source| {
        let blocks = pages_of(&file::shared_blocks(target, source, &range, to, false)?);
        let end = to + (range.end - range.start);
        let first = to >> PAGE_BITS;
        let replaced = first..first + (blocks.end - blocks.start);
        {
            let _mapping = target.data.mapping.write();
            let mut nodes = target.shared.nodes.write();
            let copied: Vec<(u64, Page)> = {
                let pages = nodes
                    .get(source.number)
                    .content()?
                    .pages
                    .range(blocks.clone());
                let pages = pages.map(|(number, page)| (number - blocks.start, page.copy()));
                pages.collect()
            };
            let present = &nodes.get(target.number).content()?.pages;
            let freed = present.range(replaced.clone()).count() as u64;
            nodes.must_have_pages((copied.len() as u64).saturating_sub(freed))?;
            nodes.change_content(target.number, |content| {
                content.unmap(replaced);
                let copied = copied.into_iter();
                let copied = copied.map(|(number, page)| (first + number, page));
                content.pages.extend(copied);
                content.extend(end);
                target.data.extend(end);
            })?;
            nodes.touch_contents(target.number, target.now());
        }
        target.pages.invalidate(0..u64::MAX);
        Ok(())
    })
}

/// Whether a range of the source has the bytes that `target` has at `to`.
pub(super) fn dedupe(
    target: &MemInode,
    source: &dyn Inode,
    range: Range<u64>,
    to: u64,
) -> Result<Deduped> {
    with_both(target, source, |source| {
        file::shared_blocks(target, source, &range, to, true)?;
        file::dedupe(target, source, &range, to, || Ok(()))
    })
}

/// Exchanges ranges of two files.
pub(super) fn exchange(inode: &MemInode, other: &dyn Inode, exchange: &Exchange) -> Result<()> {
    with_both(inode, other, |other| {
        let (size, other_size) = (inode.data.size_bytes(), other.data.size_bytes());
        let whole = |offset: u64, size: u64| {
            let end = match exchange.len_bytes {
                Some(len) => offset.checked_add(len).filter(|end| *end <= size),
                None => Some(size.next_multiple_of(PAGE)).filter(|end| offset <= *end),
            };
            let range = offset..end.ok_or(Condition::InvalidArgument)?;
            if range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE) {
                return Ok(range);
            }
            Err(platter_vfs::Error::from(Condition::InvalidArgument))
        };
        let range = whole(exchange.offset, size)?;
        let other_range = whole(exchange.other_offset, other_size)?;
        if inode.number == other.number {
            return Err(Condition::InvalidArgument.into());
        }
        if exchange.dry_run {
            return Ok(());
        }
        {
            let mine = (inode.number.id(), &inode.data);
            let _mappings = file::FileData::lock_both(mine, (other.number.id(), &other.data));
            let now = inode.now();
            let mut nodes = inode.shared.nodes.write();
            let mut take = |number| {
                let content = nodes.get_mut(number).content_mut();
                content.map(std::mem::take)
            };
            let (mut mine, mut theirs) = (take(inode.number)?, take(other.number)?);
            let (pages, other_pages) = (pages_of(&range), pages_of(&other_range));
            mine.exchange(&mut theirs, &pages, &other_pages, exchange.written_only);
            if exchange.len_bytes.is_none() {
                mine.set_end(range.start + (other_size - other_range.start));
                theirs.set_end(other_range.start + (size - range.start));
            }
            for (file, content) in [(inode, mine), (other, theirs)] {
                file.data.truncate(content.size_bytes());
                *nodes.get_mut(file.number).content_mut()? = content;
                nodes.touch_contents(file.number, now);
            }
        }
        inode.pages.invalidate(0..u64::MAX);
        other.pages.invalidate(0..u64::MAX);
        Ok(())
    })
}

/// Calls `work` with the other file, both locked and written back.
fn with_both<T>(
    inode: &MemInode,
    other: &dyn Inode,
    work: impl FnOnce(&MemInode) -> Result<T>,
) -> Result<T> {
    let other = inode.shared.object(Number(other.id().number))?;
    for file in [inode, &*other] {
        file.must_be_regular()?;
    }
    file::with_both_locked(inode, &*other, || work(&other))
}

impl Content {
    /// Exchanges pages of two files; with `written_only`, those that the other has written.
    fn exchange(
        &mut self,
        other: &mut Self,
        pages: &Range<u64>,
        other_pages: &Range<u64>,
        written_only: bool,
    ) {
        let (first, other_first) = (pages.start, other_pages.start);
        let mine = self.pages.range(pages.clone());
        let theirs = other.pages.range(other_pages.clone());
        let places: BTreeSet<u64> = mine
            .map(|(number, _)| number - first)
            .chain(theirs.map(|(number, _)| number - other_first))
            .collect();
        for place in places {
            let (mine, theirs) = (first + place, other_first + place);
            let is_written = other.pages.get(&theirs).is_some_and(|page| page.is_written);
            if written_only && !is_written {
                continue;
            }
            let (my_page, their_page) = (self.pages.remove(&mine), other.pages.remove(&theirs));
            self.pages.extend(their_page.map(|page| (mine, page)));
            other.pages.extend(my_page.map(|page| (theirs, page)));
        }
    }
}

/// The pages of a range of whole ones.
fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start >> PAGE_BITS..bytes.end >> PAGE_BITS
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::super::disk::PAGE_BYTES;
    use super::*;
    use crate::{MemFs, MemFsLimits};
    use platter_vfs::{
        Context, CreateKind, ExtendedFlags, Filesystem, FixedClock, Inode, SetAttr, Timestamp, Tune,
    };

    fn fs(pages: u64) -> MemFs {
        let clock = FixedClock::new(Timestamp::default(), 0);
        let limits = MemFsLimits {
            pages,
            ..MemFsLimits::default()
        };
        MemFs::new(Arc::new(clock), limits)
    }

    fn file(fs: &MemFs, name: &[u8], contents: &[u8]) -> Arc<dyn Inode> {
        let file = fs.plant(name, CreateKind::Regular, 0o644).unwrap();
        file.write_at(0, contents).unwrap();
        file
    }

    fn read(file: &Arc<dyn Inode>) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(file.attr().unwrap().size_bytes).unwrap()];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    /// Pages of one byte each.
    fn pages(bytes: &[u8]) -> Vec<u8> {
        let page = |&byte| vec![byte; PAGE_BYTES];
        bytes.iter().flat_map(page).collect()
    }

    fn errno<T>(result: Result<T>) -> rustix::io::Errno {
        result.map(|_| ()).unwrap_err().errno()
    }

    #[test]
    fn copy_reads_up_to_the_end_and_writes_the_rest() {
        let fs = fs(1 << 20);
        let source = file(&fs, b"source", &pages(b"abc"));
        let target = file(&fs, b"target", b"t");
        assert_eq!(
            target.copy_range(&*source, 4090..u64::MAX, 3).unwrap(),
            8198
        );
        let expected = [b"t\0\0", &pages(b"abc")[4090..]].concat();
        assert_eq!(read(&target), expected);
        assert_eq!(target.copy_range(&*source, 20_000..30_000, 0).unwrap(), 0);
        let overlapping = source.copy_range(&*source, 0..8192, 4096);
        assert_eq!(errno(overlapping), rustix::io::Errno::INVAL);
        assert_eq!(source.copy_range(&*source, 0..4096, 8192).unwrap(), 4096);
        assert_eq!(read(&source), pages(b"aba"));
    }

    #[test]
    fn clone_takes_holes_and_the_end_of_the_source() {
        let fs = fs(6);
        let source = file(&fs, b"source", &[&pages(b"a"), &b"end"[..]].concat());
        let grown = SetAttr {
            size_bytes: Some(3 * PAGE + 5),
            ..SetAttr::default()
        };
        source.set_attr(&Context::root(), &grown).unwrap();
        let target = file(&fs, b"target", &pages(b"wxyz"));
        target.clone_range(&*source, 0..3 * PAGE + 5, PAGE).unwrap();
        let expected = [&pages(b"w"), &read(&source)[..]].concat();
        assert_eq!(read(&target), expected);
        assert_eq!(target.attr().unwrap().sectors, 3 * PAGE / 512);
        let more = fs.stat_fs().unwrap().blocks_free;
        assert_eq!(more, 1);
        let full = target.clone_range(&*source, 0..2 * PAGE, 10 * PAGE);
        assert_eq!(errno(full), rustix::io::Errno::NOSPC);
        let beyond = target.clone_range(&*source, 0..2 * PAGE, u64::MAX - PAGE + 1);
        assert_eq!(errno(beyond), rustix::io::Errno::FBIG);
    }

    #[test]
    fn dedupe_compares_contents() {
        let fs = fs(1 << 20);
        let source = file(&fs, b"source", &pages(b"ab"));
        let target = file(&fs, b"target", &pages(b"bc"));
        let dedupe = |range| target.dedupe_range(&*source, range, 0).unwrap();
        assert_eq!(dedupe(PAGE..2 * PAGE), Deduped::Shared(PAGE));
        assert_eq!(dedupe(0..2 * PAGE), Deduped::Differs);
    }

    #[test]
    fn exchange_takes_a_range_or_everything_to_the_ends() {
        let fs = fs(1 << 20);
        let first = file(&fs, b"first", &pages(b"abc"));
        let second = file(&fs, b"second", &[&pages(b"x"), &b"yz"[..]].concat());
        let mut exchange = Exchange {
            offset: PAGE,
            other_offset: 0,
            len_bytes: Some(PAGE),
            written_only: false,
            dry_run: true,
        };
        first.exchange_range(&*second, &exchange).unwrap();
        assert_eq!(read(&first), pages(b"abc"), "only tried");
        exchange.dry_run = false;
        first.exchange_range(&*second, &exchange).unwrap();
        assert_eq!(read(&first), pages(b"axc"));
        exchange.len_bytes = None;
        exchange.other_offset = PAGE;
        first.exchange_range(&*second, &exchange).unwrap();
        assert_eq!(read(&first), [&pages(b"a"), &b"yz"[..]].concat());
        assert_eq!(read(&second), pages(b"bxc"));
        exchange.offset = 1;
        let unaligned = first.exchange_range(&*second, &exchange);
        assert_eq!(errno(unaligned), rustix::io::Errno::INVAL);
    }

    #[test]
    fn exchange_of_written_pages_leaves_holes_alone() {
        let fs = fs(1 << 20);
        let first = file(&fs, b"first", &pages(b"abc"));
        let second = file(&fs, b"second", &pages(b"xyz"));
        let mode = platter_vfs::FallocateMode::PunchHole;
        second.fallocate(PAGE..2 * PAGE, mode).unwrap();
        let exchange = Exchange {
            offset: 0,
            other_offset: 0,
            len_bytes: Some(3 * PAGE),
            written_only: true,
            dry_run: false,
        };
        first.exchange_range(&*second, &exchange).unwrap();
        assert_eq!(read(&first), pages(b"xbz"));
        assert_eq!(read(&second), pages(b"a\0c"));
    }

    #[test]
    fn extent_size_hints_are_kept() {
        let fs = fs(1 << 20);
        let file = file(&fs, b"file", &pages(b"ab"));
        let hints = SetAttr {
            xflags: Some(0x800),
            extent_size_bytes: Some(65_536),
            ..SetAttr::default()
        };
        file.set_attr(&Context::root(), &hints).unwrap();
        let expected = ExtendedFlags {
            xflags: 0x800,
            extent_size_bytes: 65_536,
            extents: 2,
            cow_extent_size_bytes: 0,
        };
        assert_eq!(file.extended_flags().unwrap(), expected);
    }

    #[test]
    fn frozen_filesystem_changes_when_it_is_thawed() {
        let fs = fs(1 << 20);
        let file = file(&fs, b"file", b"before");
        fs.freeze().unwrap();
        assert_eq!(errno(fs.freeze()), rustix::io::Errno::BUSY);
        thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_at(0, b"after!"));
            assert_eq!(read(&file), b"before");
            fs.thaw().unwrap();
            writer.join().unwrap().unwrap();
        });
        assert_eq!(read(&file), b"after!");
        assert_eq!(errno(fs.thaw()), rustix::io::Errno::INVAL);
        fs.tune(&[Tune::Label(b"label".to_vec())]).unwrap();
        assert_eq!(fs.label().unwrap(), b"label");
    }
}
