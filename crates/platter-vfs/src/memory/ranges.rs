//! Ranges that files of the memory filesystem share or exchange. Pages are copied, since no two files
//! hold one.

use std::collections::BTreeSet;
use std::ops::Range;

use super::content::{Content, PAGE, PAGE_BYTES, Page};
use super::node::{Nodes, Number};
use crate::ranges::{CloneRequest, Deduped, Exchange};
use crate::{Condition, Result, Timestamp};

/// A range of one file and a place in another.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) source: Number,
    pub(super) range: Range<u64>,
    pub(super) target: Number,
    pub(super) to: u64,
}

impl Nodes {
    pub(super) fn clone_range(&mut self, pair: &Pair, now: Timestamp) -> Result<()> {
        let blocks = self.shared_blocks(pair, false)?;
        let size_bytes = pair.to + (pair.range.end - pair.range.start);
        let copied = self.get(pair.source).content()?.copy_of(&blocks);
        let replaced = pair.to..pair.to + (blocks.end - blocks.start);
        let freed = self.get(pair.target).content()?.pages_in(&replaced);
        self.must_have_pages((copied.len() as u64).saturating_sub(freed))?;
        self.change_content(pair.target, now, |content| {
            content.put(replaced, copied, size_bytes);
            Ok(())
        })
    }

    pub(super) fn dedupe_range(&self, pair: &Pair) -> Result<Deduped> {
        self.shared_blocks(pair, true)?;
        let len = pair.range.end - pair.range.start;
        let source = self.get(pair.source).content()?;
        let target = self.get(pair.target).content()?;
        let (mut first, mut second) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        for at in (0..len).step_by(PAGE_BYTES) {
            let part = usize::try_from(len - at).map_or(PAGE_BYTES, |left| left.min(PAGE_BYTES));
            source.read(pair.range.start + at, &mut first[..part]);
            target.read(pair.to + at, &mut second[..part]);
            if first[..part] != second[..part] {
                return Ok(Deduped::Differs);
            }
        }
        Ok(Deduped::Shared(len))
    }

    pub(super) fn exchange_range(
        &mut self,
        (this, other): (Number, Number),
        exchange: &Exchange,
        now: Timestamp,
    ) -> Result<()> {
        let (size, other_size) = (self.file_bytes(this)?, self.file_bytes(other)?);
        let whole = |offset: u64, size: u64| {
            let end = match exchange.len_bytes {
                Some(len) => offset.checked_add(len).filter(|end| *end <= size),
                None => Some(size.next_multiple_of(PAGE)).filter(|end| offset <= *end),
            };
            let range = offset..end.ok_or(Condition::InvalidArgument)?;
            if range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE) {
                return Ok(range);
            }
            Err(crate::Error::from(Condition::InvalidArgument))
        };
        let range = whole(exchange.offset, size)?;
        let other_range = whole(exchange.other_offset, other_size)?;
        if this == other {
            return Err(Condition::InvalidArgument.into());
        }
        if exchange.dry_run {
            return Ok(());
        }
        let mut contents = [(this, &range), (other, &other_range)]
            .map(|(number, _)| self.get_mut(number).content_mut().map(std::mem::take));
        if let [Ok(mine), Ok(theirs)] = &mut contents {
            mine.exchange(theirs, &range, &other_range, exchange.written_only);
            if exchange.len_bytes.is_none() {
                mine.set_end(range.start + (other_size - other_range.start));
                theirs.set_end(other_range.start + (size - range.start));
            }
        }
        for (number, content) in [this, other].into_iter().zip(contents) {
            let node = self.get_mut(number);
            *node.content_mut()? = content?;
            (node.modified, node.changed) = (now, now);
        }
        Ok(())
    }

    fn shared_blocks(&self, pair: &Pair, is_dedupe: bool) -> Result<Range<u64>> {
        let request = CloneRequest {
            range: pair.range.clone(),
            to: pair.to,
            same_file: pair.source == pair.target,
            source_bytes: self.file_bytes(pair.source)?,
            target_bytes: self.file_bytes(pair.target)?,
            block_bytes: PAGE,
            is_dedupe,
        };
        request.blocks()
    }

    fn file_bytes(&self, number: Number) -> Result<u64> {
        self.get(number).content().map(Content::size_bytes)
    }
}

impl Content {
    /// Exchanges the pages of whole pages of two files; with `written_only`, those that the other has
    /// written.
    fn exchange(
        &mut self,
        other: &mut Self,
        range: &Range<u64>,
        other_range: &Range<u64>,
        written_only: bool,
    ) {
        let (first, other_first) = (range.start / PAGE, other_range.start / PAGE);
        let mine = self.pages.range(first..range.end / PAGE);
        let theirs = other.pages.range(other_first..other_range.end / PAGE);
        let places: BTreeSet<u64> = mine
            .map(|(number, _)| number - first)
            .chain(theirs.map(|(number, _)| number - other_first))
            .collect();
        for place in places {
            let (mine, theirs) = (first + place, other_first + place);
            let is_written = other.pages.get(&theirs).is_some_and(Page::is_written);
            if written_only && !is_written {
                continue;
            }
            let (my_page, their_page) = (self.pages.remove(&mine), other.pages.remove(&theirs));
            self.pages.extend(their_page.map(|page| (mine, page)));
            other.pages.extend(my_page.map(|page| (theirs, page)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::memory::{MemFs, MemFsLimits};
    use crate::{
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
        let mode = crate::FallocateMode::PunchHole;
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
